"""Turns of the processes that append to one shard (append R9).

Create-if-absent is not fair: the writer of the last entry is the first to know where the log ends. So writers take turns in the
order of their last entries. Entry points: `AppendTurns.seconds_left` says how long to wait; the `note_` methods record what the
log shows.

1. Turns are about speed only. Wrong estimates cost time, never rows.
2. A writer that does not use its turn loses it: once a later writer of the queue appends, the writers before it leave the queue.
3. A writer outside the queue appends at once. So that it does not always come second, all writers of the queue wait for one more
   turn before every 16th position.
4. On local file systems a kernel lock on the log directory takes the place of these waits (`process.directory_lock`).
5. Every wait ends. It is counted from the newest entry, and each new entry makes the queue before this writer shorter or puts
   its writer at the end.
"""

from __future__ import annotations

from typing import Final

from lance_memwal.clock import Clock
from lance_memwal.log.transactions import OWN_PREFIX
from lance_memwal.types import EntryFooter

_READS_PER_TURN: Final = 3  # the newest entry, the missing one, and the manifest check
_MIN_TURN_SECONDS: Final = 0.005  # a process must get a core within its turn
_POLLS_PER_TURN: Final = 8
_POSITIONS_PER_NEWCOMER: Final = 16
_MAX_QUEUE: Final = 64
_RECENT_SECONDS: Final = 10.0
_SMOOTHING: Final = 8


class AppendTurns:
    """The queue of writers of one shard, as this process sees it. Not thread-safe."""

    def __init__(self, writer: str, clock: Clock) -> None:
        """`writer` is the id of this process in its entries."""
        self._writer = writer
        self._clock = clock
        self._queue: list[str] = []  # the writer with the oldest last entry comes first
        self._newest_at = self._own_at = self._others_at = clock.monotonic()
        self._create_seconds = self._read_seconds = 0.0

    def note_create(self, seconds: float) -> None:
        """Record how long a create took."""
        self._create_seconds = _mean(self._create_seconds, seconds)

    def note_read(self, seconds: float) -> None:
        """Record how long a read of the log took."""
        self._read_seconds = _mean(self._read_seconds, seconds)

    def note_entry(self, footer: EntryFooter | None) -> None:
        """Record the newest entry of the log. Entries without a writer, such as seals, do not count."""
        names = (item.txn.app for item in (() if footer is None else footer.txns))
        writer = next((name for name in names if name.startswith(OWN_PREFIX)), None)
        if writer is None:
            return
        if writer in self._queue:
            del self._queue[: self._queue.index(writer) + 1]
        self._queue = [*self._queue[1 - _MAX_QUEUE :], writer]
        self._newest_at = self._clock.monotonic()
        if writer == self._writer:
            self._own_at = self._newest_at
        else:
            self._others_at = self._newest_at

    @property
    def has_others(self) -> bool:
        """Whether other writers appended lately."""
        return any(writer != self._writer for writer in self._queue) and self.alone_seconds < _RECENT_SECONDS

    @property
    def is_last(self) -> bool:
        """Whether this writer wrote the newest entry."""
        return bool(self._queue) and self._queue[-1] == self._writer

    @property
    def alone_seconds(self) -> float:
        """For how long no other writer has appended."""
        return self._clock.monotonic() - self._others_at

    @property
    def turn_seconds(self) -> float:
        """The time in which a writer has seen the newest entry and created the next one.

        Between several writers it is twice that: a writer that loses its turn to a shorter wait starves.
        """
        reads = _READS_PER_TURN * (self._read_seconds or self._create_seconds)
        slack = 1 if self._queue in ([], [self._writer]) else 2
        return max(_MIN_TURN_SECONDS, slack * (self._create_seconds + reads))

    @property
    def poll_seconds(self) -> float:
        """How often to read the log during a wait."""
        return self.turn_seconds / _POLLS_PER_TURN

    @property
    def follows_pause(self) -> bool:
        """Whether this writer paused for longer than a turn, and others may have appended since."""
        return self._queue != [self._writer] and self._clock.monotonic() - self._own_at > self.turn_seconds

    def rank(self, position: int) -> int:
        """How many turns pass before this writer may append at `position`."""
        if self._writer not in self._queue:
            return 0
        return self._queue.index(self._writer) + (position % _POSITIONS_PER_NEWCOMER == 0)

    def seconds_left(self, position: int) -> float:
        """How long to wait before an append at `position`; 0 if it is the turn of this writer."""
        rank = self.rank(position)
        return max(0.0, self._newest_at + rank * self.turn_seconds - self._clock.monotonic()) if rank else 0.0


def _mean(known: float, seconds: float) -> float:
    """A moving mean; one slow request changes it by less than half."""
    return known + (min(seconds, 4 * known) - known) / _SMOOTHING if known else seconds
