"""memwal: an LSM write path for Lance tables."""

from memwal.appender import WalAppender
from memwal.config import WriterConfig
from memwal.errors import (
    ClosedError,
    CollectedError,
    ConflictError,
    CorruptDataError,
    FencedError,
    InvalidInputError,
    MemWalError,
    UnavailableError,
    UnsupportedFormatError,
    WriterPoisonedError,
)
from memwal.format.index_details import MemWalDetails, ShardingField, ShardingSpec
from memwal.manifest import ShardManifestStore
from memwal.scan.scan import Scan
from memwal.shard_writer import ShardWriter
from memwal.sharding import Bucket, Identity, Unsharded, route, shard_id_for
from memwal.table import ShardInfo, Table, create_table, enable, open_table
from memwal.table_writer import TableWriter
from memwal.types import ShardManifest, ShardStatus, SsTable, WalEntry
from memwal.wal import WalTailer
from memwal.writer.engine import Ack, WriteResult

__all__ = [
    "Ack",
    "Bucket",
    "ClosedError",
    "CollectedError",
    "ConflictError",
    "CorruptDataError",
    "FencedError",
    "Identity",
    "InvalidInputError",
    "MemWalDetails",
    "MemWalError",
    "Scan",
    "ShardInfo",
    "ShardManifest",
    "ShardManifestStore",
    "ShardStatus",
    "ShardWriter",
    "ShardingField",
    "ShardingSpec",
    "SsTable",
    "Table",
    "TableWriter",
    "UnavailableError",
    "Unsharded",
    "UnsupportedFormatError",
    "WalAppender",
    "WalEntry",
    "WalTailer",
    "WriteResult",
    "WriterConfig",
    "WriterPoisonedError",
    "create_table",
    "enable",
    "open_table",
    "route",
    "shard_id_for",
]
