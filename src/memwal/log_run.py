"""The tail of a log: entries that no SSTable holds yet, and the generation number that the next one gets.

Owns `unflushed` and `LogRun`. Invariants:

1. Entries of a generation below the manifest's `current_generation` are flushed already, wherever the cursor stands.
2. A generation number never falls and never skips; it steps before the run would pass the memtable limits, since the
   peer refuses a generation that passes its limits in several entries.
3. A tail that cannot be read is damage only as long as nobody has fenced us.

Called by: replay, writers without a memtable, the appender.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memwal.config import WriterConfig
from memwal.errors import CorruptDataError, FencedError
from memwal.manifest import ShardManifestStore
from memwal.types import WalEntry
from memwal.wal import OpenedLog, read_run

__all__ = ["LogRun", "unflushed"]


def unflushed(opened: OpenedLog) -> Iterator[WalEntry]:
    """The entries with rows between the cursor and our sentinel that no SSTable holds yet, in order."""
    log, current = opened.log, opened.manifest.current_generation
    try:
        for entry in read_run(log.location, log.shard_id, opened.replay_start, opened.replay_end):
            if entry.writer_epoch > log.epoch:
                raise _fenced(log.epoch, entry.writer_epoch)
            if entry.batches and (entry.generation is None or entry.generation >= current):
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
    """The newest generation in the tail and what it holds, counted where there is no memtable to count it."""

    generation: int
    rows: int = 0
    batches: int = 0
    size_bytes: int = 0

    @classmethod
    def of_tail(cls, opened: OpenedLog) -> LogRun:
        """The run at the end of an opened log."""
        run = cls(opened.manifest.current_generation)
        for entry in unflushed(opened):
            if entry.generation is not None and entry.generation > run.generation:
                run = cls(entry.generation)
            run.rows += entry.num_rows
            run.batches += len(entry.batches)
            run.size_bytes += entry.size_bytes
        return run

    def copy(self) -> LogRun:
        """The same run, to be counted on without changing this one."""
        return LogRun(self.generation, self.rows, self.batches, self.size_bytes)

    def add(self, rows: int, batches: int, size_bytes: int, limits: WriterConfig) -> int:
        """Count one more entry; returns the generation that it belongs to."""
        if self.batches and (
            self.rows + rows > limits.max_memtable_rows
            or self.batches + batches > limits.max_memtable_batches
            or self.size_bytes >= limits.max_memtable_size
        ):
            self.generation += 1
            self.rows = self.batches = self.size_bytes = 0
        self.rows += rows
        self.batches += batches
        self.size_bytes += size_bytes
        return self.generation
