"""What a shard's files must look like at any instant, whoever was killed when.

Owns `ShardAudit`. It reads storage only and judges the bytes by the format's rules, not by the engine's own checks:

I3   positions have no hole (nothing here collects), and every entry can be read
I9   versions have no hole; epochs of the manifest never fall, and those of the log follow `epoch_faults`
I10  listed generations are contiguous up to `current_generation`; every SSTable is whole: dataset, rows, sidecar, filter;
     the cursor covers every entry of a published generation and none of a later one
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import lance

from lance_memwal.lance.base import BaseTable
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.reading import list_positions
from lance_memwal.log.tailer import WalTailer
from lance_memwal.store import paths
from lance_memwal.store.location import Location, resolve
from lance_memwal.types import ShardManifest, SsTable, WalEntry
from tests.harness.log_rules import epoch_faults
from tests.harness.oracle import Broken

__all__ = ["ShardAudit"]


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
