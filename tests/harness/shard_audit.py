"""The tables that crash tests of one shard write, their rows read the slow way, and what their files must look like.

Every row says which write made it. Nothing here uses the engine's read path, sidecars, filters or indexes. The audit
reads storage only and judges the bytes by the format's rules, not by the engine's own checks.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import lance
import pyarrow as pa
from lance.mem_wal import LsmScanner, ShardSnapshot

from lance_memwal.lance.base import BaseTable
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.reading import list_positions
from lance_memwal.log.tailer import WalTailer
from lance_memwal.memtable.memtable import InMemoryMemTables
from lance_memwal.shard_writer import ShardWriter
from lance_memwal.store import paths
from lance_memwal.store.location import Location, resolve
from lance_memwal.types import ShardManifest, SsTable, WalEntry
from tests.harness.oracle import Broken, Row, epoch_faults


class ShardAudit:
    """Audits one shard again and again; a version, an entry and an SSTable never change, so each is looked at once."""

    def __init__(self, uri: str, shard_id: str) -> None:
        self._location: Location = resolve(uri)
        self._shard_id = shard_id
        self._manifests = ShardManifestStore(self._location, shard_id)
        self._tailer = WalTailer(self._location, shard_id)
        self._versions: dict[int, ShardManifest] = {}
        self._entries: dict[int, WalEntry] = {}
        self._sound: set[str] = set()
        base = BaseTable.open(self._location)
        self._has_key = base is not None and bool(base.primary_key)

    def run(self) -> list[Broken]:
        """Everything that is wrong now; an unclaimed shard is fine."""
        versions = self._manifests.list_versions()
        if not versions:
            return []
        for version in versions:
            if version not in self._versions:
                self._versions[version] = self._manifests.read_version(version)
        manifests = [self._versions[version] for version in versions]
        entries = self._read_entries()
        newest = manifests[-1]
        return [
            *_version_faults(versions, manifests),
            *_log_faults(entries),
            *_cursor_faults(newest, entries),
            *_generation_faults(newest),
            *(fault for sstable in newest.sstables for fault in self._sstable_faults(sstable)),
        ]

    def _read_entries(self) -> list[WalEntry]:
        for position in list_positions(self._location, self._shard_id):
            if position not in self._entries:
                entry = self._tailer.read_entry(position)
                if entry is not None:
                    self._entries[position] = entry
        return [self._entries[position] for position in sorted(self._entries)]

    def _sstable_faults(self, sstable: SsTable) -> Iterator[Broken]:
        if sstable.path in self._sound:
            return
        missing = [path for path in self._sidecar_paths(sstable.path) if not self._exists(path)]
        if missing:
            yield Broken("I10", f"generation {sstable.generation} was published without {missing}")
            return
        uri = self._location.child_uri(paths.sstable_dir(self._shard_id, sstable.path))
        dataset = lance.dataset(uri)
        fragments = dataset.get_fragments()
        physical = sum(fragment.physical_rows for fragment in fragments)
        if len(fragments) != 1 or physical != sstable.physical_rows:
            yield Broken("I10", f"generation {sstable.generation} lists {sstable.physical_rows} rows, holds {physical}")
            return
        self._sound.add(sstable.path)

    def _sidecar_paths(self, name: str) -> list[str]:
        found = [paths.bloom_path(self._shard_id, name)]
        if self._has_key:
            directory = paths.pk_index_dir(self._shard_id, name)
            found += [f"{directory}/page_data.lance", f"{directory}/page_lookup.lance"]
        return found

    def _exists(self, path: str) -> bool:
        directory, _, name = path.rpartition("/")
        return name in self._location.store.list_names(directory)


def _version_faults(versions: Sequence[int], manifests: Sequence[ShardManifest]) -> Iterator[Broken]:
    if list(versions) != list(range(1, len(versions) + 1)):
        yield Broken("I9", f"manifest versions have a hole: {versions}")
    for old, new in pairwise(manifests):
        if new.writer_epoch not in (old.writer_epoch, old.writer_epoch + 1):
            yield Broken("I9", f"version {new.version}: epoch {old.writer_epoch} became {new.writer_epoch}")


def _log_faults(entries: Sequence[WalEntry]) -> Iterator[Broken]:
    positions = [entry.position for entry in entries]
    if positions != list(range(1, len(positions) + 1)):
        yield Broken("I3", f"WAL positions have a hole: {positions}")
    yield from (Broken("I9", what) for what in epoch_faults(entries))
    generation = 1
    for entry in entries:
        if entry.generation is not None:
            if entry.generation < generation:
                yield Broken("I10", f"position {entry.position}: generation {entry.generation} behind {generation}")
            generation = entry.generation


def _cursor_faults(newest: ShardManifest, entries: Sequence[WalEntry]) -> Iterator[Broken]:
    cursor, current = newest.replay_after_wal_entry_position, newest.current_generation
    for entry in entries:
        if not entry.batches or entry.generation is None:
            continue
        if entry.generation >= current and entry.position <= cursor:
            what = f"cursor {cursor} is past position {entry.position} of unpublished generation {entry.generation}"
            yield Broken("I10", what)
        if entry.generation < current and entry.position > cursor:
            what = f"position {entry.position} of published generation {entry.generation} is above cursor {cursor}"
            yield Broken("I10", what)


def _generation_faults(newest: ShardManifest) -> Iterator[Broken]:
    generations = [sstable.generation for sstable in newest.sstables]
    wanted = list(range(newest.current_generation - len(generations), newest.current_generation))
    if generations != wanted:
        yield Broken("I10", f"generations {generations} are listed, the current one is {newest.current_generation}")


# All rows of a shard, read the slow and obvious way, to check the fast one against.
#
# Nothing here uses the engine's read path, sidecars, filters or indexes.

TOMBSTONE = "_tombstone"


def merged_rows(writer: ShardWriter, uri: str) -> pa.Table:
    """The live rows of the writer's shard in all tiers, base table included, in no order."""
    memtables = writer.in_memory_memtable_refs()
    return _merge(resolve(uri), writer.manifest(), memtables)


def stored_rows(uri: str, shard_id: str) -> pa.Table:
    """The live rows of base table and SSTables: what is left of a shard whose writer was closed."""
    location = resolve(uri)
    return _merge(location, _manifest(location, shard_id), None)


def _manifest(location: Location, shard_id: str) -> ShardManifest:
    manifest = ShardManifestStore(location, shard_id).read_latest()
    if manifest is None:
        raise LookupError(f"shard {shard_id} has no manifest")
    return manifest


def _merge(location: Location, manifest: ShardManifest, memtables: InMemoryMemTables | None) -> pa.Table:
    base = BaseTable.open(location)
    if base is None:
        raise LookupError("there is no base table")
    keys, names = base.primary_key, base.schema.names
    compacted = 0 if base.details is None else base.details.compacted.get(manifest.shard_id, 0)
    tiers = [
        base.dataset.to_table(),
        *_sstables(location, manifest, compacted),
        *_memtables(memtables, max(manifest.current_generation, compacted + 1)),
    ]
    rows = [row for tier in tiers for row in tier.to_pylist()]
    if keys:
        rows = list({tuple(row[key] for key in keys): row for row in rows}.values())
    live = [
        {name: row.get(name) for name in names} for row in rows if not row.get(TOMBSTONE)
    ]  # an older tier lacks a new column
    return pa.Table.from_pylist(live, schema=base.schema)


def _sstables(location: Location, manifest: ShardManifest, compacted: int) -> Iterator[pa.Table]:
    for sstable in sorted(manifest.sstables, key=lambda item: item.generation):
        if sstable.generation > compacted:
            yield lance.dataset(location.child_uri(paths.sstable_dir(manifest.shard_id, sstable.path))).to_table()


def _memtables(memtables: InMemoryMemTables | None, first_generation: int) -> Iterator[pa.Table]:
    for ref in memtables.ascending if memtables is not None else ():
        if ref.generation >= first_generation:  # else it was published between the two looks
            yield ref.table()


def peer_rows(uri: str, shard_id: str, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of base table and SSTables as pylance reads them; it needs a primary key."""
    location = resolve(uri)
    scanner: Any = LsmScanner.from_snapshots(lance.dataset(location.dataset_uri), [peer_snapshot(uri, shard_id)])
    table = scanner.to_table()
    return table if columns is None else table.select(list(columns))


def peer_snapshot(uri: str, shard_id: str) -> ShardSnapshot:
    """What the newest manifest lists, as pylance's readers want to be told."""
    location = resolve(uri)
    manifest = _manifest(location, shard_id)
    snapshot = ShardSnapshot(shard_id).with_spec_id(manifest.shard_spec_id)
    snapshot = snapshot.with_current_generation(manifest.current_generation)
    for sstable in manifest.sstables:
        snapshot = snapshot.with_sstable(sstable.generation, sstable.path)
    return snapshot


# The tables that crash tests write: every row says which write made it.
#
# Invariant: `rows_of(batch_of(key, number))` gives the same key and number back, intact; any other note is not.

_KEY: Final = "lance-schema:unenforced-primary-key"


class TableKind:
    """One shape of table. `name` is `integer`, `composite` or `append`."""

    def __init__(self, name: str) -> None:
        if name not in KINDS:
            raise ValueError(f"{name!r} is no kind of table; known: {', '.join(KINDS)}")
        self.name = name
        self.schema = pa.schema(
            [
                *_KEY_FIELDS[name],
                pa.field("number", pa.int64(), nullable=False),
                pa.field("note", pa.string()),
            ]
        )

    @property
    def has_key(self) -> bool:
        return self.name != "append"

    def create(self, uri: str) -> None:
        """An empty table of this kind with a MemWAL index."""
        lance.write_dataset(self.schema.empty_table(), uri).initialize_mem_wal()

    def batch_of(self, keys: Sequence[int], number: int) -> pa.RecordBatch:
        columns = self._key_columns(keys)
        columns["number"] = [number] * len(keys)
        columns["note"] = [_note(key, number) for key in keys]
        return pa.RecordBatch.from_pydict(columns, schema=self.schema)

    def keys_of(self, keys: Sequence[int]) -> pa.RecordBatch:
        fields = _KEY_FIELDS[self.name]
        return pa.RecordBatch.from_pydict(self._key_columns(keys), schema=pa.schema(fields))

    def key_values(self, keys: Sequence[int]) -> list[Any]:
        """These keys as a lookup takes them: scalars, or tuples for a composite key."""
        columns = list(self._key_columns(keys).values())
        return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))

    def rows_of(self, table: pa.Table) -> list[Row]:
        keys = self._keys(table)
        numbers, notes = table.column("number").to_pylist(), table.column("note").to_pylist()
        read = zip(keys, numbers, notes, strict=True)
        return [Row(key, number, note == _note(key, number)) for key, number, note in read]

    def _key_columns(self, keys: Sequence[int]) -> dict[str, list[Any]]:
        if self.name == "composite":
            return {"region": [region_of(key) for key in keys], "id": list(keys)}
        return {"id": list(keys)}

    def _keys(self, table: pa.Table) -> Iterable[int]:
        keys: list[int] = table.column("id").to_pylist()
        if self.name != "composite":
            return keys
        regions = table.column("region").to_pylist()
        # A row whose two key columns do not belong together is nobody's: an impossible key makes it a phantom.
        return [key if region == region_of(key) else -1 for key, region in zip(keys, regions, strict=True)]


def region_of(key: int) -> str:
    return f"region-{key % 3}"


def _note(key: int, number: int) -> str | None:
    return None if number % 11 == 0 else f"{key}/{number}" + "." * (number % 7 * 5)


_KEY_FIELDS: Final = {
    "integer": [pa.field("id", pa.int64(), nullable=False, metadata={_KEY: "true"})],
    "composite": [
        pa.field("region", pa.string(), nullable=False, metadata={f"{_KEY}:position": "1"}),
        pa.field("id", pa.int32(), nullable=False, metadata={f"{_KEY}:position": "2"}),
    ],
    "append": [pa.field("id", pa.int64(), nullable=False)],
}
KINDS: Final = tuple(_KEY_FIELDS)
