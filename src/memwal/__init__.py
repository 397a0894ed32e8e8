"""memwal: an LSM write path for Lance tables."""

import logging
import os

# Lance logs an error for every index without fields whenever it looks at a table's indexes; the MemWAL index has none.
# It reads this once, at its first import; a value that the user has set stays.
os.environ.setdefault("LANCE_LOG", "warn,lance::index=off")
# A library is silent until the application says where its log lines go.
logging.getLogger("memwal").addHandler(logging.NullHandler())

from memwal.appender import WalAppender
from memwal.compaction_policy import CompactionPolicy
from memwal.config import WriterConfig
from memwal.errors import (
    ClosedError,
    CollectedError,
    ConflictError,
    CorruptDataError,
    FencedError,
    InvalidInputError,
    MemWalError,
    TableReplacedError,
    UnavailableError,
    UnsupportedFormatError,
    WriterPoisonedError,
)
from memwal.format.index_details import MemWalDetails, ShardingField, ShardingSpec
from memwal.index import BTreeIndex, FtsIndex, HnswIndex
from memwal.manifest import ShardManifestStore
from memwal.reports import (
    CompactionReport,
    FlushReport,
    GcReport,
    Problem,
    RepairReport,
    TableStats,
    VerifyReport,
)
from memwal.scan.scan import Scan
from memwal.shard_writer import ShardWriter
from memwal.sharding import Bucket, Identity, Manual, Unsharded, route, shard_id_for
from memwal.table import ShardInfo, Table, create_table, enable, open_table
from memwal.table_writer import TableWriter
from memwal.types import ShardManifest, ShardStatus, SsTable, WalEntry
from memwal.wal import WalTailer
from memwal.writer.engine import Ack, WriteResult

__all__ = [
    "HnswIndex",
    "FtsIndex",
    "BTreeIndex",
    "Ack",
    "Bucket",
    "ClosedError",
    "CollectedError",
    "CompactionPolicy",
    "CompactionReport",
    "ConflictError",
    "CorruptDataError",
    "FencedError",
    "FlushReport",
    "GcReport",
    "Identity",
    "InvalidInputError",
    "Manual",
    "MemWalDetails",
    "MemWalError",
    "Problem",
    "RepairReport",
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
    "TableReplacedError",
    "TableStats",
    "TableWriter",
    "UnavailableError",
    "Unsharded",
    "UnsupportedFormatError",
    "VerifyReport",
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
