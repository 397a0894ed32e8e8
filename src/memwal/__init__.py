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
from memwal.types import ShardManifest, ShardStatus, SsTable, WalEntry
from memwal.wal import WalTailer

__all__ = [
    "ClosedError",
    "CollectedError",
    "ConflictError",
    "CorruptDataError",
    "FencedError",
    "InvalidInputError",
    "MemWalError",
    "ShardManifest",
    "ShardManifestStore",
    "ShardStatus",
    "SsTable",
    "UnavailableError",
    "UnsupportedFormatError",
    "WalAppender",
    "WalEntry",
    "WalTailer",
    "WriterConfig",
    "WriterPoisonedError",
]
