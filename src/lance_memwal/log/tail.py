"""The tail of a log: which of its entries no SSTable holds yet, when it was read whole, and the number of the next one.

Owns `generation_of`, `settled` and `LogRun`; whoever reads a tail goes through them. Invariants:

1. Entries of a generation below the manifest's `current_generation` are flushed already, wherever the cursor stands.
   Entries without a number are of the newest generation of the tail, as for the peer: they came after it.
2. A tail was read whole only if the manifest that it starts from is still the newest one afterwards: collection empties
   slots, and a late put may fill them. A hole is damage once a second look at the same manifest shows it again.
3. A generation number never falls and never skips; it steps before the run would pass the memtable limits, since the
   peer refuses a generation that passes its limits in several entries, and before its dictionaries would have more
   values than one file can hold.
4. A tail that a writer cannot read is damage only as long as nobody has fenced it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeVar

import pyarrow as pa

from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.config import WriterConfig
from lance_memwal.errors import CorruptDataError, FencedError, ObjectNotFoundError
from lance_memwal.log.blob_targets import directory_of, has_blob_target
from lance_memwal.log.entry import EntryDecoder
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.reading import read_run
from lance_memwal.log.wal import OpenedLog
from lance_memwal.rows.dictionaries import Place, SmallDictionaries, small_dictionaries
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.store.sequenced import attempts
from lance_memwal.types import ShardManifest, WalEntry

T = TypeVar("T")


def generation_of(entry: WalEntry, current: int, newest: int) -> int | None:
    """The generation of an entry's rows; None if it has none, or if an SSTable holds them.

    `current` is the manifest's `current_generation`, `newest` the highest of the tail up to here (at first `current`).
    """
    generation = newest if entry.generation is None else entry.generation
    return generation if entry.batches and generation >= current else None


def unflushed(entries: Iterable[WalEntry], current: int, newest: int | None = None) -> Iterator[tuple[int, WalEntry]]:
    """The entries of a tail, read from its cursor on, whose rows no SSTable holds, each with its generation.

    `newest` is the highest generation of the entries before these, where there are any after the cursor.
    """
    newest = current if newest is None else newest
    for entry in entries:
        generation = generation_of(entry, current, newest)
        if generation is not None:
            newest = max(newest, generation)
            yield generation, entry


def is_reserved(entry: WalEntry) -> bool:
    """Whether the peer has named the files of this entry's generation."""
    return entry.footer is None and has_blob_target(entry)


def reserved_directories(location: Location, shard_id: str, after: int, through: int) -> set[str]:
    """The directories in which the peer keeps blobs of the entries in `(after, through]`; what is gone names none."""
    found, decoder = set(), EntryDecoder()
    for position in range(after + 1, through + 1):
        path = paths.wal_entry_path(shard_id, position)
        try:
            entry = decoder.decode(location.store.get(path), position, path=path)
        except ObjectNotFoundError:
            continue
        if is_reserved(entry):
            found.add(directory_of(entry))
    return found


def may_follow(generation: int, newest: int, *, is_first: bool) -> bool:
    """Whether unflushed rows may have this number after `newest`; the first ones have the manifest's."""
    return generation == newest or (generation == newest + 1 and not is_first)


def settled(
    manifests: ShardManifestStore,
    first: ShardManifest,
    read: Callable[[ShardManifest], T],
    clock: Clock = SYSTEM_CLOCK,
    again: Callable[[], ShardManifest | None] | None = None,
) -> T | None:
    """What `read` makes of the log after the cursor of the newest manifest, which did not move meanwhile.

    `first` is that manifest, `again` gives it after a lost attempt; None if it is gone then.
    """
    manifest, doubted = first, set[int]()
    for attempt in attempts(f"the log of shard {manifests.shard_id}", clock):
        if attempt:
            newest = (again or manifests.read_latest)()
            if newest is None:
                return None
            manifest = newest
        try:
            found = read(manifest)
        except CorruptDataError:  # collection may have passed here since the manifest was read
            if manifest.version in doubted:
                raise
            doubted.add(manifest.version)
        else:
            if manifests.is_newest(manifest.version):
                return found
    raise AssertionError("the last attempt returns or raises")


def unflushed_of(opened: OpenedLog) -> Iterator[tuple[int, WalEntry]]:
    """`unflushed`, for the owner of a log: the entries between its cursor and our sentinel."""
    log = opened.log
    try:
        yield from unflushed(_of_our_epoch(opened), opened.manifest.current_generation)
    except CorruptDataError:
        # What we miss may have been flushed and collected by whoever fenced us meanwhile.
        latest = ShardManifestStore(log.location, log.shard_id).read_latest()
        if latest is not None and latest.writer_epoch > log.epoch:
            raise _fenced(log.epoch, latest.writer_epoch) from None
        raise


def _of_our_epoch(opened: OpenedLog) -> Iterator[WalEntry]:
    log, start, end = opened.log, opened.replay_start, opened.replay_end
    for entry in read_run(log.location, log.shard_id, start, end, tag=log.table, looked=opened.looked):
        if entry.writer_epoch > log.epoch:
            raise _fenced(log.epoch, entry.writer_epoch)
        yield entry


def _fenced(our_epoch: int, current_epoch: int) -> FencedError:
    return FencedError(our_epoch, current_epoch, "WAL replay aborted: fenced while opening")


@dataclass(slots=True)
class LogRun:
    """The newest generation in the tail and what it holds, counted where there is no memtable to count it.

    It `is_reserved` if the peer has named the files of this generation, which we do not go on with.

    Copies share `dictionaries`: what a copy adds and then does not write only ends the generation earlier.
    """

    generation: int
    rows: int = 0
    batches: int = 0
    size_bytes: int = 0
    dictionaries: SmallDictionaries | None = None
    is_reserved: bool = False

    @classmethod
    def of_tail(cls, opened: OpenedLog) -> LogRun:
        """The run at the end of an opened log."""
        run = cls(opened.manifest.current_generation)
        for generation, entry in unflushed_of(opened):
            run.follow(generation, entry)
        return run

    def after(
        self, batches: Sequence[pa.RecordBatch], size_bytes: int, limits: WriterConfig, small: Mapping[Place, int]
    ) -> LogRun:
        """The run with one more entry of `batches`, whose generation it has; this one is not changed."""
        run = replace(self)
        rows = sum(batch.num_rows for batch in batches)
        run.add(rows, len(batches), size_bytes, limits, held=batches, small=small)
        return run

    def follow(self, generation: int, entry: WalEntry) -> None:
        """Count an entry with rows that is in the log."""
        if generation > self.generation:
            self._begin(generation)
        self._count(entry.num_rows, len(entry.batches), entry.size_bytes)
        self.is_reserved = self.is_reserved or is_reserved(entry)
        if entry.batches:
            self._hold(entry.batches, small_dictionaries(entry.batches[0].schema))

    def add(
        self,
        rows: int,
        batches: int,
        size_bytes: int,
        limits: WriterConfig,
        *,
        held: Sequence[pa.RecordBatch] = (),
        small: Mapping[Place, int] = MappingProxyType({}),
    ) -> int:
        """Count one more entry; returns the generation that it belongs to.

        `small`: the dictionaries of the table that can be full, `held`: the batches of the entry, which hold them.
        """
        if self.batches and (
            self.rows + rows > limits.max_memtable_rows
            or self.batches + batches > limits.max_memtable_batches
            or self.size_bytes >= limits.max_memtable_size
            or self.is_reserved
            or not self._goes_with(held, small)
        ):
            self._begin(self.generation + 1)
        self._count(rows, batches, size_bytes)
        self._hold(held, small)
        return self.generation

    def _begin(self, generation: int) -> None:
        self.generation, self.dictionaries, self.is_reserved = generation, None, False
        self.rows = self.batches = self.size_bytes = 0

    def _count(self, rows: int, batches: int, size_bytes: int) -> None:
        self.rows += rows
        self.batches += batches
        self.size_bytes += size_bytes

    def _goes_with(self, held: Sequence[pa.RecordBatch], small: Mapping[Place, int]) -> bool:
        """Whether one file can hold the dictionaries of these batches beside those of the run."""
        known = self.dictionaries
        return known is None or (known.limits == small and known.too_small_for(held) is None)

    def _hold(self, held: Sequence[pa.RecordBatch], small: Mapping[Place, int]) -> None:
        if not small and self.dictionaries is None:
            return
        if self.dictionaries is None:
            self.dictionaries = SmallDictionaries(small)
        elif self.dictionaries.limits != small:  # the columns changed on the way: nothing goes with both
            self.dictionaries = SmallDictionaries({(-1,): 0})
            return
        for batch in held:
            self.dictionaries.add(batch)
