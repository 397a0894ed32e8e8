"""Small rows, small tables, and what to look at in a log: shared by the tests of log and manifest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from memwal import WalEntry, WalTailer
from memwal.manifest import ShardManifestStore
from memwal.store import paths
from memwal.store.location import Location, resolve
from memwal.testing.clocks import SkippingClock
from memwal.types import SeenTransaction
from memwal.wal import OpenedLog, PersistPolicy, open_log

SHARD = "5f1c7d1e-0a52-4f0b-9a35-3f3a1f6c2b10"
OTHER_SHARD = "0c5f6a1b-7d2e-4b3c-8a9f-1e2d3c4b5a69"
KEY = {"lance-schema:unenforced-primary-key": "true"}
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False, metadata=KEY), pa.field("name", pa.string())])
NO_SYNC = PersistPolicy(fsync=False, base_delay_seconds=0.0)


def rows(*ids: int, name: str = "n") -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": list(ids), "name": [f"{name}{i}" for i in ids]}, schema=SCHEMA)


def lance_table(directory: Path, schema: pa.Schema = SCHEMA, **options: Any) -> str:
    """The path of an empty Lance table that takes shards."""
    uri = str(directory / "table")
    lance.write_dataset(schema.empty_table(), uri).initialize_mem_wal(**options)
    return uri


def place(directory: Path, clock: SkippingClock | None = None, **options: Any) -> Location:
    """A location under which no retry costs time, and which nobody shares."""
    return resolve(str(directory / "table"), clock=clock or SkippingClock(), **options)


def manifests_at(location: Location, shard_id: str = SHARD) -> ShardManifestStore:
    return ShardManifestStore(location, shard_id, fsync=False, clock=SkippingClock())


def open_shard(location: Location, shard_id: str = SHARD) -> OpenedLog:
    """Claim, sentinel, second look."""
    return open_log(manifests_at(location, shard_id), policy=NO_SYNC, clock=SkippingClock())


def ids(entry: WalEntry | None) -> list[int]:
    assert entry is not None
    return [value for batch in entry.batches for value in batch.column("id").to_pylist()]


def read_all(location: Location | str, shard_id: str = SHARD) -> list[WalEntry]:
    """Every entry from the first position to the tip, through the public reader."""
    tailer = WalTailer(location, shard_id)
    found: list[WalEntry] = []
    position = tailer.first_position()
    while (entry := tailer.read_entry(position)) is not None:
        found.append(entry)
        position += 1
    return found


def story(entries: Sequence[WalEntry]) -> list[tuple[int, int, list[int] | str]]:
    """(position, epoch, ids or what it is instead) per entry."""
    return [
        (
            entry.position,
            entry.writer_epoch,
            "sentinel" if entry.is_sentinel else ids(entry) if entry.batches else "mark",
        )
        for entry in entries
    ]


def put_entry(location: Location, position: int, data: bytes, shard_id: str = SHARD) -> None:
    """Lay bytes at a position, as somebody else would."""
    location.store.put_new(paths.wal_entry_path(shard_id, position), data)


def delete_entry(location: Location, position: int, shard_id: str = SHARD) -> None:
    location.store.delete(paths.wal_entry_path(shard_id, position))


def seen(**versions: int) -> dict[str, SeenTransaction]:
    return {app: SeenTransaction(version, 1_700_000_000_000) for app, version in versions.items()}
