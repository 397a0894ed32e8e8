"""lance-memwal: an LSM write path for Lance tables. `import lance_memwal as mw`.

Nothing is loaded at import: a name is, when it is used first.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from lance_memwal import polars
    from lance_memwal.compact.policy import CompactionPolicy
    from lance_memwal.compact.reports import CompactionReport
    from lance_memwal.config import WriterConfig
    from lance_memwal.errors import (
        ChangedKeysError,
        ClosedError,
        CollectedError,
        ConflictError,
        CorruptDataError,
        FencedError,
        InvalidInputError,
        MemWalError,
        MissingLibraryError,
        SearchIncompleteWarning,
        TableReplacedError,
        UnavailableError,
        UnsupportedFormatError,
        WriterPoisonedError,
    )
    from lance_memwal.feed.changes import ChangeFeed
    from lance_memwal.feed.checkpoints import Checkpoint
    from lance_memwal.feed.consumers import Consumer
    from lance_memwal.feed.cursor import Cursor
    from lance_memwal.feed.view import TableView
    from lance_memwal.lance.details import MemWalDetails
    from lance_memwal.log.manifest import ShardManifestStore
    from lance_memwal.log.tailer import WalTailer
    from lance_memwal.memtable.index import BTreeIndex, FtsIndex, HnswIndex, query
    from lance_memwal.memtable.memtable import InMemoryMemTableRef, InMemoryMemTables
    from lance_memwal.process.cache import set_cache_bytes
    from lance_memwal.read.blobs import BlobFile
    from lance_memwal.read.memory_scan import MemTableScanner
    from lance_memwal.read.scan import Scan
    from lance_memwal.read.snapshot import Snapshot
    from lance_memwal.rows.merging import FirstRow, LastWrite
    from lance_memwal.rows.sharding import Bucket, Identity, Manual, Unsharded, route, shard_id_for
    from lance_memwal.rows.where import where
    from lance_memwal.shard_writer import ShardWriter
    from lance_memwal.store.check import StoreReport, check_store
    from lance_memwal.table import Table, create_table, enable, from_lancedb, open_table
    from lance_memwal.table_writer import TableWriter
    from lance_memwal.types import ShardingField, ShardingSpec, ShardManifest, ShardStatus, SsTable, WalEntry
    from lance_memwal.upkeep.indexes import IndexInfo
    from lance_memwal.upkeep.reports import (
        ConsumerInfo,
        FlushReport,
        GcReport,
        MaintenanceReport,
        Problem,
        RepairReport,
        ShardInfo,
        TableStats,
        VerifyReport,
    )
    from lance_memwal.write.appender import WalAppender
    from lance_memwal.write.results import ShardWrite, WriteResult
    from lance_memwal.write.stats import BackpressureStats, MemTableStats, WalStats, WriteStats
    from lance_memwal.write.writes import Ack

__version__ = "0.1.0"

__all__ = [
    "__version__",
    "Ack",
    "BTreeIndex",
    "BackpressureStats",
    "BlobFile",
    "Bucket",
    "ChangeFeed",
    "Checkpoint",
    "ChangedKeysError",
    "ClosedError",
    "CollectedError",
    "CompactionPolicy",
    "CompactionReport",
    "ConflictError",
    "Consumer",
    "ConsumerInfo",
    "CorruptDataError",
    "Cursor",
    "FencedError",
    "FlushReport",
    "FirstRow",
    "FtsIndex",
    "GcReport",
    "HnswIndex",
    "Identity",
    "InMemoryMemTableRef",
    "InMemoryMemTables",
    "IndexInfo",
    "LastWrite",
    "InvalidInputError",
    "MaintenanceReport",
    "Manual",
    "MemTableScanner",
    "MemTableStats",
    "MemWalDetails",
    "MemWalError",
    "MissingLibraryError",
    "Problem",
    "RepairReport",
    "Scan",
    "SearchIncompleteWarning",
    "ShardInfo",
    "ShardManifest",
    "ShardManifestStore",
    "ShardStatus",
    "ShardWrite",
    "ShardWriter",
    "ShardingField",
    "ShardingSpec",
    "Snapshot",
    "SsTable",
    "StoreReport",
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
    "WalStats",
    "WalTailer",
    "WriteResult",
    "WriteStats",
    "WriterConfig",
    "WriterPoisonedError",
    "check_store",
    "create_table",
    "enable",
    "from_lancedb",
    "open_table",
    "polars",
    "query",
    "route",
    "set_cache_bytes",
    "shard_id_for",
    "where",
]

_HOMES: Final = {  # module: the names that it defines
    "compact.policy": "CompactionPolicy",
    "compact.reports": "CompactionReport",
    "config": "WriterConfig",
    "errors": (
        "ChangedKeysError ClosedError CollectedError ConflictError CorruptDataError FencedError "
        "InvalidInputError MemWalError MissingLibraryError SearchIncompleteWarning "
        "TableReplacedError UnavailableError UnsupportedFormatError WriterPoisonedError"
    ),
    "feed.changes": "ChangeFeed",
    "feed.checkpoints": "Checkpoint",
    "feed.consumers": "Consumer",
    "feed.cursor": "Cursor",
    "feed.view": "TableView",
    "lance.details": "MemWalDetails",
    "log.manifest": "ShardManifestStore",
    "log.tailer": "WalTailer",
    "memtable.index": "BTreeIndex FtsIndex HnswIndex",
    "memtable.memtable": "InMemoryMemTableRef InMemoryMemTables",
    "process.cache": "set_cache_bytes",
    "read.blobs": "BlobFile",
    "read.memory_scan": "MemTableScanner",
    "read.scan": "Scan",
    "read.snapshot": "Snapshot",
    "rows.merging": "FirstRow LastWrite",
    "rows.sharding": "Bucket Identity Manual Unsharded route shard_id_for",
    "rows.where": "where",
    "shard_writer": "ShardWriter",
    "store.check": "StoreReport check_store",
    "table": "Table create_table enable from_lancedb open_table",
    "table_writer": "TableWriter",
    "types": "ShardingField ShardingSpec ShardManifest ShardStatus SsTable WalEntry",
    "upkeep.indexes": "IndexInfo",
    "upkeep.reports": (
        "ConsumerInfo FlushReport GcReport MaintenanceReport Problem RepairReport ShardInfo TableStats VerifyReport"
    ),
    "write.appender": "WalAppender",
    "write.results": "ShardWrite WriteResult",
    "write.stats": "BackpressureStats MemTableStats WalStats WriteStats",
    "write.writes": "Ack",
}
_MODULES: Final = {"polars": "polars", "query": "memtable.index.query"}
_HOME_OF: Final = {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    # Lance reads this when it is loaded. Without it, each text search logs that the MemWAL index has no columns.
    os.environ.setdefault("LANCE_LOG", "warn,lance::index=off")
    if name in _MODULES:
        return importlib.import_module(f"lance_memwal.{_MODULES[name]}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'lance_memwal' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"lance_memwal.{_HOME_OF[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
