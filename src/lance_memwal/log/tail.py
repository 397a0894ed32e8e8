"""The tail of a log: entries that no SSTable holds yet, and the generation number that the next one gets.

Owns `unflushed` and `LogRun`. Invariants:

1. Entries of a generation below the manifest's `current_generation` are flushed already, wherever the cursor stands.
2. A generation number never falls and never skips; it steps before the run would pass the memtable limits, since the
   peer refuses a generation that passes its limits in several entries, and before its dictionaries would have more
   values than one file can hold.
3. A tail that cannot be read is damage only as long as nobody has fenced us.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import pyarrow as pa

from lance_memwal.config import WriterConfig
from lance_memwal.errors import CorruptDataError, FencedError
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.wal import OpenedLog, read_run
from lance_memwal.rows.dictionaries import Place, SmallDictionaries, small_dictionaries
from lance_memwal.types import WalEntry

__all__ = ["LogRun", "unflushed"]


def unflushed(opened: OpenedLog) -> Iterator[WalEntry]:
    """The entries with rows between the cursor and our sentinel that no SSTable holds yet, in order."""
    log, current = opened.log, opened.manifest.current_generation
    try:
        start, end, looked = opened.replay_start, opened.replay_end, opened.looked
        for entry in read_run(log.location, log.shard_id, start, end, tag=log.table, looked=looked):
            if entry.writer_epoch > log.epoch:
                raise _fenced(log.epoch, entry.writer_epoch)
            if entry.unflushed_generation(current) is not None:
                yield entry
    except CorruptDataError:
        # What we miss may have been flushed and collected by whoever fenced us meanwhile.
        latest = ShardManifestStore(log.location, log.shard_id).read_latest()
        if latest is not None and latest.writer_epoch > log.epoch:
            raise _fenced(log.epoch, latest.writer_epoch) from None
        raise


def _fenced(our_epoch: int, current_epoch: int) -> FencedError:
    return FencedError(our_epoch, current_epoch, "WAL replay aborted: fenced while opening")


@dataclass(slots=True)
class LogRun:
    """The newest generation in the tail and what it holds, counted where there is no memtable to count it.

    Copies share `dictionaries`: what a copy adds and then does not write only ends the generation earlier.
    """

    generation: int
    rows: int = 0
    batches: int = 0
    size_bytes: int = 0
    dictionaries: SmallDictionaries | None = None

    @classmethod
    def of_tail(cls, opened: OpenedLog) -> LogRun:
        """The run at the end of an opened log."""
        run = cls(opened.manifest.current_generation)
        for entry in unflushed(opened):
            run.follow(entry)
        return run

    def copy(self) -> LogRun:
        """The same run, to be counted on without changing this one."""
        return replace(self)

    def follow(self, entry: WalEntry) -> None:
        """Count an entry with rows that is in the log."""
        if entry.generation is not None and entry.generation > self.generation:
            self._begin(entry.generation)
        self._count(entry.num_rows, len(entry.batches), entry.size_bytes)
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
            or not self._goes_with(held, small)
        ):
            self._begin(self.generation + 1)
        self._count(rows, batches, size_bytes)
        self._hold(held, small)
        return self.generation

    def _begin(self, generation: int) -> None:
        self.generation, self.dictionaries = generation, None
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
