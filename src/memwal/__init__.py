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
from memwal.manifest import ShardManifestStore
from memwal.shard_writer import ShardWriter
from memwal.sharding import Bucket, Identity, Unsharded, route, shard_id_for
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
    "MemWalError",
    "ShardManifest",
    "ShardManifestStore",
    "ShardStatus",
    "ShardWriter",
    "SsTable",
    "UnavailableError",
    "Unsharded",
    "UnsupportedFormatError",
    "WalAppender",
    "WalEntry",
    "WalTailer",
    "WriterConfig",
    "WriteResult",
    "WriterPoisonedError",
    "route",
    "shard_id_for",
]
