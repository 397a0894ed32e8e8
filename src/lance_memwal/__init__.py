"""lance-memwal: an LSM write path for Lance tables. `import lance_memwal as mw`."""

from lance_memwal.compact.policy import CompactionPolicy
from lance_memwal.compact.reports import CompactionReport
from lance_memwal.config import WriterConfig
from lance_memwal.errors import (
    ClosedError,
    CollectedError,
    ConflictError,
    CorruptDataError,
    FencedError,
    InvalidInputError,
    MemWalError,
    SearchIncompleteWarning,
    TableReplacedError,
    UnavailableError,
    UnsupportedFormatError,
    WriterPoisonedError,
)
from lance_memwal.feed.checkpoints import Checkpoint
from lance_memwal.feed.view import TableView
from lance_memwal.lance.details import MemWalDetails
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.wal import WalTailer
from lance_memwal.memtable.index import BTreeIndex, FtsIndex, HnswIndex
from lance_memwal.process.cache import set_cache_bytes
from lance_memwal.read.blobs import BlobFile
from lance_memwal.read.scan import Scan
from lance_memwal.read.snapshot import Snapshot
from lance_memwal.rows.merging import FirstRow, LastWrite
from lance_memwal.rows.sharding import Bucket, Identity, Manual, Unsharded, route, shard_id_for
from lance_memwal.shard_writer import ShardWriter
from lance_memwal.table import Table, create_table, enable, open_table
from lance_memwal.table_writer import TableWriter
from lance_memwal.types import ShardingField, ShardingSpec, ShardManifest, ShardStatus, SsTable, WalEntry
from lance_memwal.upkeep.reports import (
    FlushReport,
    GcReport,
    MaintenanceReport,
    Problem,
    RepairReport,
    SettleReport,
    ShardInfo,
    TableStats,
    VerifyReport,
)
from lance_memwal.write.appender import WalAppender
from lance_memwal.write.results import WriteResult
from lance_memwal.write.writes import Ack

__all__ = [
    "Ack",
    "BTreeIndex",
    "BlobFile",
    "Bucket",
    "Checkpoint",
    "ClosedError",
    "CollectedError",
    "CompactionPolicy",
    "CompactionReport",
    "ConflictError",
    "CorruptDataError",
    "FencedError",
    "FlushReport",
    "FirstRow",
    "FtsIndex",
    "GcReport",
    "HnswIndex",
    "Identity",
    "LastWrite",
    "InvalidInputError",
    "MaintenanceReport",
    "Manual",
    "MemWalDetails",
    "MemWalError",
    "Problem",
    "RepairReport",
    "Scan",
    "SearchIncompleteWarning",
    "SettleReport",
    "ShardInfo",
    "ShardManifest",
    "ShardManifestStore",
    "ShardStatus",
    "ShardWriter",
    "ShardingField",
    "ShardingSpec",
    "Snapshot",
    "SsTable",
    "Table",
    "TableReplacedError",
    "TableStats",
    "TableView",
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
    "set_cache_bytes",
    "shard_id_for",
]
