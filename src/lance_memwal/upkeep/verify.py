"""Verify: does everything on storage keep the invariants, and if not, where and what to do.

Owns `inspect_shard`, `inspect_base`, `inspect_checkpoints` and `inspect_records`. It reads storage only, claims nothing and may
run beside live writers, compactors and collectors: what looks wrong is checked again, and counts only if nothing moved
concurrently. Invariants checked:

V-1  A shard that holds anything has a manifest, and every retained version of it can be read. No link leads elsewhere.
V-2  Over the retained versions epoch, replay cursor and `current_generation` never fall.
V-3  Every entry of the log can be read.
V-4  The log has no hole above the replay cursor.
V-5  No entry carries an epoch that nobody claimed.
V-6  In the tail, generations begin at `current_generation`, never fall and never skip.
V-7  Every generation between the compacted one and `current_generation` is listed, once.
V-8  Every SSTable that readers need is whole: dataset, one fragment, its rows, filter, and a sidecar with exactly its
     keys.
V-9  Nothing is marked as compacted that was not published.
V-10 The entries of published generations are at or below the cursor (where only this implementation wrote).
V-11 A table that has shards has a MemWAL index, and its base can be opened.
V-12 Everything is understood by this version. What is not is not damaged: nothing but a newer version may touch it.
V-13 Every active checkpoint can be read: its record, its base version and, per shard, its manifest, entries and SSTables.
V-15 The record that counts of every consumer, and of the floor of every shard, can be read.
V-16 For every column of unflushed and uncompacted rows it is known which column of the table it is. V-14 is not used any more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import lance
import numpy as np
import pyarrow as pa

from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.errors import (
    CollectedError,
    CorruptDataError,
    InvalidInputError,
    MemWalError,
    ObjectNotFoundError,
    TableReplacedError,
    UnsupportedFormatError,
)
from lance_memwal.lance.base import BaseTable, find_no_file, lance_reading
from lance_memwal.lance.damage import find_damage, version_names
from lance_memwal.lance.door import lance_at
from lance_memwal.lance.marks import compacted
from lance_memwal.lance.restored import REMEDY, given_up, is_restored
from lance_memwal.log.entry import EntryDecoder
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.manifest_codec import unknown_fields
from lance_memwal.log.reading import list_positions
from lance_memwal.log.shards import Floor, list_shards
from lance_memwal.log.tail import may_follow
from lance_memwal.log.transactions import is_whole
from lance_memwal.log.understood import KnownColumns
from lance_memwal.read.rebuilt import rebuild
from lance_memwal.rows.key_encoding import primary_key_columns
from lance_memwal.rows.keys import key_array, one_array
from lance_memwal.rows.past_columns import Undecided, undecided_text
from lance_memwal.sstable.catch_up import CatchUp
from lance_memwal.sstable.read import SsTableReader, open_sstable
from lance_memwal.sstable.sidecar import PkSidecar, WantedKeys
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.types import ROW_ADDRESS, TOMBSTONE, ShardManifest, SsTable, WalEntry
from lance_memwal.upkeep.checkpoint_records import checkpoint_names, checkpoint_record
from lance_memwal.upkeep.consumer_records import consumer_names, consumer_record
from lance_memwal.upkeep.reports import Problem, VerifyReport

_LOG = logging.getLogger(__name__)
_LOOKS = 4
_PAUSE_SECONDS = 0.05
_RESTORE = "restore the object from a backup; if there is none, the rows in it are lost"
_RESTORE_OR_GIVE_UP = f"{_RESTORE}, and repair with accept_loss=True lets the rest open"
_NO_DIRECTORY = "move it away, and restore what belongs there from a backup; until then reads of the table fail"
_CATCH_UP = (
    "its rows are in the base table, and only readers that ask an index of that alone miss them: bring the indexes up to "
    "date with Table.maintain"
)
_DECIDE = (
    "run repair with reused_ids='values' if the column was renamed, or 'null' if it was dropped and another one was added; until "
    "then reads show null, and no row is lost"
)
_UPGRADE = "read it with the version that wrote it, or a newer one; it is not damaged, and repair leaves it alone"


@dataclass(frozen=True, slots=True)
class EntryInfo:
    """What collection needs to know of one entry of the log; `readable` is False if it is damaged or not understood."""

    position: int
    size_bytes: int
    readable: bool = True
    damaged: bool = False
    writer_epoch: int = 0
    generation: int | None = None
    rows: int = 0
    is_sentinel: bool = False
    is_foreign: bool = False  # of another table: it takes its position and says nothing
    has_footer: bool = False
    has_map: bool = False
    bulk_path: str | None = None  # the directory that a bulk mark announces


@dataclass(slots=True)
class ShardFindings:
    """One shard as it was found: its newest manifest, its log, its problems."""

    shard_id: str
    manifest: ShardManifest | None = None
    entries: dict[int, EntryInfo] = field(default_factory=dict)
    sstables: int = 0
    problems: list[Problem] = field(default_factory=list)
    undecided: set[tuple[int, str]] = field(default_factory=set)

    def add(self, invariant: str, where: str, what: str, remedy: str, position: int | None = None) -> None:
        """Record one broken invariant."""
        self.problems.append(Problem(where, what, remedy, invariant, self.shard_id, position))

    def add_undecided(self, where: str, undecided: Mapping[str, Undecided], position: int | None = None) -> None:
        """Record columns of the table that may be others than the stored ones."""
        self.undecided |= {item for stored in undecided.values() for item in stored}
        self.add("V-16", where, undecided_text(undecided), _DECIDE, position)


def verify_table(newest_base: Callable[[], BaseTable], clock: Clock = SYSTEM_CLOCK) -> VerifyReport:
    """Check every invariant of the table on storage; reads only, and may run beside writers."""
    started = clock.monotonic()
    base = newest_base()
    shards = list_shards(base.location)
    found = [inspect_shard(base.location, shard_id, newest_base, clock=clock) for shard_id in shards]
    manifests = [findings.manifest for findings in found if findings.manifest is not None]
    return VerifyReport(
        problems=inspect_base(base, shards)
        + inspect_checkpoints(base)
        + inspect_records(base.location, [manifest.shard_id for manifest in manifests])
        + [problem for findings in found for problem in findings.problems],
        shards=len(found),
        entries=sum(len(findings.entries) for findings in found),
        sstables=sum(findings.sstables for findings in found),
        seconds=clock.monotonic() - started,
    )


def _bulk_path(entry: WalEntry) -> str | None:
    bulk = entry.bulk
    return None if bulk is None else bulk.path


def inspect_base(base: BaseTable, shards: Sequence[str]) -> list[Problem]:
    """What is wrong with the base table itself (V-11)."""
    newer = damaged_newest(base)
    if newer is not None:
        return [newer]
    where, problems = base.location.describe(), []
    try:
        if base.details is None and shards:
            what = (
                f"the base table has no MemWAL index, but {len(shards)} shards hold data: it was overwritten, or the "
                "index was dropped"
            )
            remedy = (
                "run repair: it restores the index, and with it the rows of the shards; if the base table was restored "
                "to a version before a compaction, restore a later version, or pass restored='keep_base'"
            )
            problems.append(Problem(where, what, remedy, "V-11"))
        damage = find_damage(base.location, manifest_path=base.stamp.path)
        if damage is not None:
            raise damage
        with base.reading("validating the base table"):
            dataset: Any = base.dataset
            dataset.validate()
    except MemWalError as error:
        problems.append(_base_problem(base, error))
    return problems


def damaged_newest(base: BaseTable) -> Problem | None:
    """What is wrong with a version above `base`, which is then the newest one that can be read."""
    names = version_names(base.location)
    newest = max(names, default=base.version)
    if newest <= base.version:
        return None
    damage = find_no_file(base.location, newest) or find_damage(base.location, manifest_path=names[newest])
    if damage is None:
        return None
    remedy = (
        f"{_RESTORE}: remove it then, and the base table is as it was at version {base.version}, without what was "
        f"compacted into later ones; {REMEDY}"
    )
    return Problem(names[newest], f"the newest version of the base table cannot be read: {damage}", remedy, "V-11")


def _base_problem(base: BaseTable, error: MemWalError) -> Problem:
    where = getattr(error, "path", None) or base.location.describe()
    if isinstance(error, UnsupportedFormatError):
        return Problem(where, str(error), _UPGRADE, "V-12")
    remedy = (
        "restore the object from a backup, or an older version of the base with Lance's restore(), and decide then with "
        "Table.repair(restored=...) about what was compacted after it"
    )
    return Problem(where, f"Lance finds a fault: {error}", remedy, "V-11")


def inspect_shard(
    location: Location,
    shard_id: str,
    newest_base: Callable[[], BaseTable],
    *,
    deep: bool = True,
    clock: Clock = SYSTEM_CLOCK,
) -> ShardFindings:
    """What one shard looks like and what is wrong with it; `deep` reads every key of every SSTable."""
    manifests = ShardManifestStore(location, shard_id, clock=clock)
    for look in range(_LOOKS):
        try:
            versions = manifests.list_versions()
            findings = _Inspection(location, shard_id, newest_base, deep=deep).run()
            moved = manifests.list_versions()[-1:] != versions[-1:]
        except CorruptDataError as error:  # a directory is none: what was found before that decides nothing
            findings, moved = ShardFindings(shard_id), False
            findings.add("V-1", error.path or paths.shard_dir(shard_id), str(error), _NO_DIRECTORY)
        if not findings.problems or (look and not moved):
            return findings
        clock.sleep(_PAUSE_SECONDS)
    return findings


class _Inspection:
    """One look at one shard."""

    def __init__(self, location: Location, shard_id: str, newest_base: Callable[[], BaseTable], *, deep: bool) -> None:
        self._location = location
        self._shard_id = shard_id
        self._newest_base = newest_base
        self._deep = deep
        self._found = ShardFindings(shard_id)

    def run(self) -> ShardFindings:
        found = self._found
        positions = list_positions(self._location, self._shard_id)
        found.manifest = manifest = self._read_manifests(positions)
        if manifest is None:
            return found
        cursor = manifest.replay_after_wal_entry_position
        self._read_entries(list_positions(self._location, self._shard_id), self._newest_base(), cursor)
        self._check_log(manifest)
        base = self._newest_base()
        self._check_generations(manifest, compacted(base), base)
        return found

    # ------------------------------------------------------------------------------------------------------ manifests

    def _read_manifests(self, positions: Sequence[int]) -> ShardManifest | None:
        store = ShardManifestStore(self._location, self._shard_id)
        read: list[ShardManifest] = []
        versions = store.list_versions()
        for version in versions:
            path = paths.manifest_path(self._shard_id, version)
            try:
                read.append(store.read_version(version))
            except ObjectNotFoundError:
                continue  # collected meanwhile
            except CorruptDataError as error:
                remedy = _RESTORE if version == versions[-1] else "nothing reads it any more; delete it"
                self._found.add("V-1", path, f"the manifest cannot be read: {error}", remedy)
            except UnsupportedFormatError as error:
                self._found.add("V-12", path, f"the manifest is not understood by this version: {error}", _UPGRADE)
        if not versions and positions:
            where = paths.manifest_dir(self._shard_id)
            self._found.add("V-1", where, f"{len(positions)} log entries, but no manifest", _RESTORE)
        for old, new in pairwise(read):
            self._check_step(old, new)
        newest = read[-1] if read and read[-1].version == versions[-1] else None
        unknown = () if newest is None else unknown_fields(newest)
        if newest is not None and unknown:
            what = f"the manifest is not understood by this version: {', '.join(unknown)}"
            self._found.add("V-12", paths.manifest_path(self._shard_id, newest.version), what, _UPGRADE)
        return newest

    def _check_step(self, old: ShardManifest, new: ShardManifest) -> None:
        for name in ("writer_epoch", "replay_after_wal_entry_position", "current_generation"):
            before, after = getattr(old, name), getattr(new, name)
            if after < before:
                where = paths.manifest_path(self._shard_id, new.version)
                what = f"{name} fell from {before} to {after} after version {old.version}"
                self._found.add("V-2", where, what, "stop all writers of the shard and report it: this is a bug")

    # ------------------------------------------------------------------------------------------------------ the log

    def _read_entries(self, positions: Sequence[int], base: BaseTable, cursor: int) -> None:
        decoder, tag = EntryDecoder(), base.tag
        flushed = KnownColumns(
            self._location, None
        )  # nobody flushes their columns again, which may be forgotten by now
        unflushed = KnownColumns(self._location, base.columns)
        for position in positions:
            path = paths.wal_entry_path(self._shard_id, position)
            try:
                data = self._location.store.get(path)
            except ObjectNotFoundError:
                continue  # collected meanwhile
            except CorruptDataError as error:  # a link, or a pipe: there are no bytes that repair could keep
                self._found.entries[position] = EntryInfo(position, 0, readable=False)
                self._found.add("V-3", path, str(error), _RESTORE, position)
                continue
            try:
                entry = decoder.decode(data, position, path=path)
            except CorruptDataError as error:
                self._found.entries[position] = EntryInfo(position, len(data), readable=False, damaged=True)
                is_last = position == positions[-1]
                remedy = "run repair: it keeps the bytes aside" if is_last else _RESTORE_OR_GIVE_UP
                self._found.add("V-3", path, str(error), remedy, position)
                continue
            except UnsupportedFormatError as error:
                self._found.entries[position] = EntryInfo(position, len(data), readable=False)
                self._found.add("V-12", path, str(error), _UPGRADE, position)
                continue
            known = flushed if position <= cursor else unflushed
            unknown = known.unknown_in(entry) if entry.is_of(tag) else ()
            if unknown:
                what = f"the entry is not understood by this version: {', '.join(unknown)}"
                self._found.add("V-12", path, what, _UPGRADE, position)
            is_foreign = not entry.is_of(tag)
            if not is_foreign and (undecided := known.undecided_in(entry)):
                self._found.add_undecided(path, undecided, position)
            entry = entry.as_mark() if is_foreign else entry
            self._found.entries[position] = EntryInfo(
                position=position,
                is_foreign=is_foreign,
                size_bytes=len(data),
                writer_epoch=entry.writer_epoch,
                generation=entry.generation,
                rows=entry.num_rows,
                is_sentinel=entry.is_sentinel,
                has_footer=is_foreign or entry.footer is not None,
                has_map=entry.footer is not None and is_whole(entry.footer),
                bulk_path=_bulk_path(entry),
            )

    def _check_log(self, manifest: ShardManifest) -> None:
        cursor, entries = manifest.replay_after_wal_entry_position, self._found.entries
        tail = [entries[position] for position in sorted(entries) if position > cursor]
        newest = max((position for position, info in entries.items() if not info.is_foreign), default=cursor)
        missing = set(range(cursor + 1, newest + 1)) - entries.keys()
        for position in sorted(missing):
            path = paths.wal_entry_path(self._shard_id, position)
            self._found.add("V-4", path, f"the log goes on above position {position}, which is missing", _RESTORE)
        for info in tail:
            if info.writer_epoch > manifest.writer_epoch:
                what = f"epoch {info.writer_epoch} was never claimed, the manifest has {manifest.writer_epoch}"
                path = paths.wal_entry_path(self._shard_id, info.position)
                self._found.add("V-5", path, what, "restore the newest manifest of the shard", info.position)
        self._check_tail_generations(manifest, [info for info in tail if info.rows and info.generation is not None])

    def _check_tail_generations(self, manifest: ShardManifest, tail: Sequence[EntryInfo]) -> None:
        ours = all(info.has_footer for info in self._found.entries.values())
        expected, seen_any = manifest.current_generation, False
        for info in tail:
            generation = info.generation or 0
            path = paths.wal_entry_path(self._shard_id, info.position)
            if generation < manifest.current_generation:
                if ours:
                    what = f"generation {generation} is published, but this entry of it is after the cursor"
                    self._found.add("V-10", path, what, "reopen the shard with a writer and close it", info.position)
                continue
            if not may_follow(generation, expected, is_first=not seen_any):
                what = f"generation {generation} follows {expected}: generations never fall and never skip"
                self._found.add("V-6", path, what, "stop all writers of the shard and report it: this is a bug")
            expected, seen_any = max(expected, generation), True

    # ------------------------------------------------------------------------------------------------------ generations

    def _check_generations(self, manifest: ShardManifest, marks: Mapping[str, int], base: BaseTable) -> None:
        mark = marks.get(self._shard_id, 0)
        where = paths.manifest_path(self._shard_id, manifest.version)
        if mark >= manifest.current_generation:
            what = f"generation {mark} is marked as compacted, but the current one is {manifest.current_generation}"
            self._found.add("V-9", where, what, "restore the newest manifest of the shard")
        needed = manifest.above(mark)
        listed = [sstable.generation for sstable in needed]
        wanted = list(range(mark + 1, max(mark + 1, manifest.current_generation)))
        if listed != wanted:
            what = f"generations {listed} are listed where {wanted} are published and not compacted"
            remedy = "restore an older manifest version that lists the missing ones"
            if given_up(manifest, mark):
                if is_restored(base, manifest, mark):
                    what += ": the base table was restored to a version before the others were compacted into it"
                else:
                    what += ": another compactor left no mark, or newest versions of the base table were removed"
                remedy = REMEDY
            self._found.add("V-7", where, what, remedy)
        kept = manifest.above(
            CatchUp.of(base).through(self._shard_id)
        )  # compacted ones too, which readers of an index need
        for sstable in kept:
            self._found.sstables += 1
            remedy = _RESTORE if sstable.generation > mark else _CATCH_UP
            for what in sstable_faults(self._location, self._shard_id, sstable, base.primary_key, deep=self._deep):
                self._found.add("V-8", paths.sstable_dir(self._shard_id, sstable.path), what, remedy)
            if sstable.generation > mark:
                self._check_columns(sstable, base)

    def _check_columns(self, sstable: SsTable, base: BaseTable) -> None:
        """Readers must be able to read every column of a generation that is not compacted."""
        where = paths.sstable_dir(self._shard_id, sstable.path)
        try:
            undecided = SsTableReader(self._location, self._shard_id, sstable).undecided(base.columns)
            if undecided:
                self._found.add_undecided(where, undecided)
        except UnsupportedFormatError as error:
            self._found.add("V-12", where, str(error), _UPGRADE)
        except MemWalError as error:
            _LOG.debug("the columns cannot be read, which V-8 reports [path=%s]: %s", where, error)


def sstable_faults(
    location: Location, shard_id: str, sstable: SsTable, primary_key: Sequence[str], *, deep: bool
) -> Iterator[str]:
    """What is wrong with one SSTable; nothing if it is whole. `deep` reads every key."""
    directory = paths.sstable_dir(shard_id, sstable.path)
    try:
        with lance_reading(location, "opening the generation", directory):
            dataset = lance_at(location).dataset(directory)
            fragments = dataset.get_fragments()
            rows = sum(fragment.physical_rows for fragment in fragments)
        damage = find_damage(location, directory)
        if damage is not None:
            raise damage
        if deep:
            with lance_reading(location, "reading the rows of the generation", directory):
                for _ in dataset.scanner().to_batches():
                    continue
    except MemWalError as error:
        yield f"the generation cannot be read: {error}"
        return
    if len(fragments) != 1:
        yield f"the generation has {len(fragments)} fragments instead of one"
        return
    if TOMBSTONE not in dataset.schema.names:
        yield f"the generation has no column {TOMBSTONE!r}"
        return
    if sstable.physical_rows is not None and rows != sstable.physical_rows:
        yield f"the manifest lists {sstable.physical_rows} rows, the generation holds {rows}"
    present = set(location.store.list_names(directory))
    wanted = [paths.bloom_path(shard_id, sstable.path)]
    wanted += [paths.pk_index_dir(shard_id, sstable.path)] if primary_key else []
    missing = [name for path in wanted if (name := path.rpartition("/")[2]) not in present]
    if missing:
        yield f"the generation was published without {', '.join(missing)}"
    elif primary_key:
        yield from _key_faults(location, directory, PkSidecar(location, shard_id, sstable), dataset, deep=deep)


def _key_faults(
    location: Location, directory: str, sidecar: PkSidecar, dataset: lance.LanceDataset, *, deep: bool
) -> Iterator[str]:
    try:
        keys, offsets = sidecar.all_entries()
        if not deep:
            return
        names = _key_names(dataset)
        if not names:
            return
        with lance_reading(location, "reading the keys of the generation", directory):
            table = dataset.to_table(columns=names, with_row_address=True)
        columns = [one_array(table.column(name)) for name in names]
        denied = not sidecar.might_contain(WantedKeys.of(columns)).all()
    except MemWalError as error:
        yield f"the keys cannot be read: {error}"
        return
    stored = key_array(columns)
    order = np.argsort(offsets)
    addresses = table.column(ROW_ADDRESS).to_numpy().astype(np.int64)
    if not np.array_equal(offsets[order], addresses) or not keys.take(pa.array(order)).equals(stored):
        yield "the sidecar does not list exactly the newest row of every key"
    if denied:
        yield "the bloom filter denies a key that the generation holds"


def _key_names(dataset: lance.LanceDataset) -> list[str]:
    """The key columns under the names that the generation has, in key order; none if it does not say."""
    return list(primary_key_columns(dataset.schema))


# ------------------------------------------------------------------------------------------------- verify checkpoints


_BROKEN = (
    CollectedError,
    CorruptDataError,
    InvalidInputError,
    ObjectNotFoundError,
    TableReplacedError,
    UnsupportedFormatError,
)
_UNREADABLE = (CorruptDataError, UnsupportedFormatError)


def inspect_checkpoints(base: BaseTable) -> list[Problem]:
    """What is missing or damaged of checkpoints; `base` is the newest version."""
    names, problems = _names(base.location, checkpoint_names, "V-13")
    for name in names:
        try:
            _read(base, name)
        except _BROKEN as error:
            what = f"the checkpoint {name!r} cannot be read any more: {error}"
            remedy = "restore what is missing from a backup, or drop the checkpoint: newer states of the table are not affected"
            problems.append(Problem(paths.record_dir(paths.CHECKPOINTS_DIR, name), what, remedy, "V-13"))
    return problems


def inspect_records(location: Location, shards: Sequence[str]) -> list[Problem]:
    """What is damaged of the records of consumers, and of the floors of these shards: without them nothing is collected."""
    names, problems = _names(location, consumer_names, "V-15")
    for name in names:
        try:
            consumer_record(location, name)
        except _UNREADABLE as error:
            remedy = "drop the consumer, and let it begin again from a snapshot: until then nothing is collected"
            what = f"the place of the consumer {name!r} cannot be read: {error}"
            problems.append(Problem(paths.record_dir(paths.CONSUMERS_DIR, name), what, remedy, "V-15"))
    for shard_id in shards:
        floor = Floor(location, shard_id)
        try:
            floor.announced(), floor.manifest()
        except _UNREADABLE as error:
            remedy = "restore the record from a backup; without one, remove it: those before it say nearly the same"
            what = f"how far collection went cannot be read: {error}"
            problems.append(Problem(paths.floor_dir(shard_id), what, remedy, "V-15", shard_id))
    return problems


def _names(
    location: Location, listed: Callable[[Location], list[str]], invariant: str
) -> tuple[list[str], list[Problem]]:
    """The names that have records; or none, and what lies in their place."""
    try:
        return listed(location), []
    except CorruptDataError as error:
        return [], [Problem(str(error.path), str(error), "replace it with the directory from a backup", invariant)]


def _read(base: BaseTable, name: str) -> None:
    record = checkpoint_record(base.location, name)
    if record is None or not record.is_active(base.table_id):
        return
    for view in rebuild(base.location, record.snapshot, lambda *_: True).shards:  # by this record
        for sstable in view.sstables:
            open_sstable(base.location, view.shard_id, sstable).stored.open()
