"""Small rows, small tables, and what to look at in a log: shared by the tests of log and manifest."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from lance_memwal import CorruptDataError, WalEntry, WalTailer
from lance_memwal.clock import SYSTEM_CLOCK
from lance_memwal.log.entry import EntryEncoder, decode_entry
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.wal import OpenedLog, PersistPolicy, open_log
from lance_memwal.rows.schema import TableSchema
from lance_memwal.store import paths
from lance_memwal.store.location import Location, resolve
from lance_memwal.store.port import ObjectStore
from lance_memwal.store.wrap import WrappedStore
from lance_memwal.testing.clocks import SkippingClock
from lance_memwal.types import EntryFooter, SeenTransaction, ShardManifest, SsTable

SHARD = "5f1c7d1e-0a52-4f0b-9a35-3f3a1f6c2b10"
OTHER_SHARD = "0c5f6a1b-7d2e-4b3c-8a9f-1e2d3c4b5a69"
KEY = {"lance-schema:unenforced-primary-key": "true"}
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False, metadata=KEY), pa.field("name", pa.string())])
NO_SYNC = PersistPolicy(fsync=False, base_delay_seconds=0.0)


def rows(*ids: int, name: str = "n") -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": list(ids), "name": [f"{name}{i}" for i in ids]}, schema=SCHEMA)


def lance_table(directory: Path, schema: pa.Schema = SCHEMA, **options: Any) -> str:
    uri = str(directory / "table")
    lance.write_dataset(schema.empty_table(), uri).initialize_mem_wal(**options)
    return uri


def place(directory: Path, clock: SkippingClock | None = None, **options: Any) -> Location:
    """A location under which no retry costs time, and which nobody shares."""
    return resolve(str(directory / "table"), clock=clock or SkippingClock(), **options)


def interrupted(
    call: str, path: str, action: Callable[[], object], *, before: bool = False
) -> Callable[[ObjectStore], Any]:
    """A `wrap` for `place`: `action` runs once, right after (or before) the first `call` on `path`."""
    return lambda store: _Interrupted(store, call, path, action, before)


class _Interrupted(WrappedStore):
    def __init__(self, inner: ObjectStore, call: str, path: str, action: Callable[[], object], before: bool) -> None:
        super().__init__(inner)
        self._call = call
        self._path = path
        self._pending = [action]
        self._before = before

    def around(self, kind: str, call: Callable[..., Any], path: str, *rest: Any, **options: Any) -> Any:
        meets = kind == self._call and path == self._path and self._pending
        action = self._pending.pop() if meets else None
        if action is not None and self._before:
            action()
        result = call(path, *rest, **options)
        if action is not None and not self._before:
            action()
        return result


def manifests_at(location: Location, shard_id: str = SHARD) -> ShardManifestStore:
    return ShardManifestStore(location, shard_id, fsync=False, clock=SkippingClock())


def open_shard(location: Location, shard_id: str = SHARD) -> OpenedLog:
    """Claim, sentinel, second look."""
    return open_log(manifests_at(location, shard_id), policy=NO_SYNC, clock=SkippingClock())


def entry_bytes(epoch: int, *ids: int, generation: int = 1) -> bytes:
    """An entry with these rows, as a writer of that epoch would have made it."""
    batch = rows(*ids).append_column("_tombstone", pa.array([False] * len(ids)))
    return EntryEncoder(TableSchema.from_arrow(SCHEMA).wal, epoch, generation).encode([batch])


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


def read_until_damage(entries: Iterable[WalEntry]) -> tuple[list[int], CorruptDataError]:
    """The positions that came before damage was met, and the error that says so."""
    met: list[int] = []
    try:
        for entry in entries:
            met.append(entry.position)
    except CorruptDataError as error:
        return met, error
    raise AssertionError(f"no damage was met in {met}")


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


def flushed(location: Location, cursor: int, generation: int = 1, shard_id: str = SHARD) -> ShardManifest:
    """Commit what a flush of everything up to `cursor` commits (no SSTable is written: nobody here reads one)."""

    def update(manifest: ShardManifest) -> ShardManifest:
        return replace(
            manifest,
            version=manifest.version + 1,
            sstables=(*manifest.sstables, SsTable(generation, f"{generation:08x}_gen_{generation}")),
            current_generation=generation + 1,
            replay_after_wal_entry_position=cursor,
            wal_entry_position_last_seen=max(cursor, manifest.wal_entry_position_last_seen),
        )

    return manifests_at(location, shard_id).commit_maintenance(update)


def collected(location: Location, up_to: int, shard_id: str = SHARD) -> None:
    """Remove what collection may remove: entries up to `up_to` that are no sentinels."""
    for position in range(1, up_to + 1):
        path = paths.wal_entry_path(shard_id, position)
        if not decode_entry(location.store.get(path)).is_sentinel:
            location.store.delete(path)


def seen(**versions: int) -> dict[str, SeenTransaction]:
    return {app: SeenTransaction(version, SYSTEM_CLOCK.now_ms()) for app, version in versions.items()}


def map_of(entry: WalEntry) -> dict[str, int] | None:
    """The versions in the whole map of an entry; None if it carries none."""
    if entry.footer is None or entry.footer.seen is None:
        return None
    return {app: item.version for app, item in entry.footer.seen.items()}


def with_map(**versions: int) -> EntryFooter:
    return EntryFooter(seen=seen(**versions))


def manifest_faults(manifest: ShardManifest) -> list[str]:
    """What is odd about `manifest` by itself: legal where another implementation wrote it, never written by us."""
    faults = []
    generations = [sstable.generation for sstable in manifest.sstables]
    if generations != sorted(generations):
        faults.append("SSTables are not in ascending order")
    if generations and max(generations) - min(generations) + 1 != len(set(generations)):
        faults.append("there is a gap between the listed generations")
    if len(set(generations)) != len(generations):
        faults.append("a generation is listed twice")
    if generations and max(generations) >= manifest.current_generation:
        faults.append(f"generation {max(generations)} is listed, but the current one is {manifest.current_generation}")
    if manifest.wal_entry_position_last_seen < manifest.replay_after_wal_entry_position:
        faults.append("the last-seen position is below the replay cursor")
    return faults
