"""Logs of sinks stay short, beside their commits: sinks have no memtable that flushes itself.

Owns `LogLimits`, `LogLength` and `ShortLogs`. Invariants:

1. What is due is told by what sinks know after their appends: no request is made to find out.
2. The work is the engine's own: a flush of a joint shard, compaction by its policy, and maintenance, which collects. It runs in
   the threads of background work, fails no commit, and is tried again after the next one.
3. A log is bounded: one that is four times as long as its limit, because the background is behind, is flushed before the
   commit returns.
4. Flushes have a sink of their own, so that they hold up no append: appends meet the seal and read it. Memory holds the rows
   of at most four generations.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from lance_memwal.clock import SYSTEM_CLOCK, Clock, in_order
from lance_memwal.compact.policy import Background, CompactionPolicy
from lance_memwal.config import DEFAULT_MEMTABLE_AGE_MS, WriterConfig
from lance_memwal.errors import TableReplacedError
from lance_memwal.lance.base import BaseTable
from lance_memwal.process.background import Task, is_ending
from lance_memwal.store.location import Location
from lance_memwal.write.once import OnceAppender, ShardTail
from lance_memwal.write.table_appender import TableAppender

_LOG = logging.getLogger(__name__)
_FLUSHES_AT_ONCE = 4
_MAX_LOG_BYTES = 64 << 20
_TOO_LONG = 4
_RETRY_SECONDS = 30.0
_CHECK_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLimits:
    """When a log is flushed (by entries, bytes and age), generations are compacted and the table is maintained.

    0 switches one limit off. A log of four times the entries or bytes is flushed before the commit returns.
    """

    entries: int = 64
    size_bytes: int = _MAX_LOG_BYTES
    age_seconds: float = DEFAULT_MEMTABLE_AGE_MS / 1000
    generations: int = CompactionPolicy().max_generations
    maintain_seconds: float = 3600.0

    @classmethod
    def of(cls, config: WriterConfig) -> LogLimits:
        """The limits for sinks of a table with these writer settings: its memtables may be smaller, not larger."""
        return cls(
            size_bytes=min(_MAX_LOG_BYTES, config.max_memtable_size),
            age_seconds=(config.max_memtable_age_ms or 0) / 1000,
        )

    def is_reached(self, length: LogLength, times: int = 1) -> bool:
        """Whether a log is so long, or so large, that it is flushed."""
        by_entries = self.entries and length.entries >= times * self.entries
        return bool(by_entries or (self.size_bytes and length.size_bytes >= times * self.size_bytes))

    def policy(self) -> CompactionPolicy | None:
        """When generations are compacted."""
        if not self.generations:
            return None
        return CompactionPolicy(max_generations=self.generations, check_interval_seconds=_CHECK_SECONDS)


@dataclass(frozen=True, slots=True)
class LogLength:
    """Unflushed entries with rows, and their bytes."""

    entries: int
    size_bytes: int

    @classmethod
    def of(cls, tail: ShardTail) -> LogLength:
        """The length of a tail, as a sink knows it."""
        return cls(tail.entries, tail.size_bytes)


UNKNOWN_LENGTH = LogLength(1, 0)
"""Of a log that was appended to while others published: its age counts, until the next append tells more."""


class ShortLogs:
    """Flushes, compacts and maintains one table beside its sinks. Threads may share it."""

    def __init__(
        self,
        location: Location,
        newest_base: Callable[[], BaseTable],
        maintain: Callable[[], object],
        *,
        limits: LogLimits | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`newest_base` raises `TableReplacedError` once the table is another one, `maintain` does all other upkeep."""
        self._location = location
        self._maintain = maintain
        self._limits = limits or LogLimits()
        self._clock = clock
        self._lock = threading.Lock()
        self._lengths: dict[str, LogLength] = {}
        self._since: dict[str, float] = {}  # when the oldest unflushed entry was seen first
        self._flushing: set[str] = set()
        self._flushed: dict[str, int] = {}  # the shards with generations of ours, and how many these are
        self._maintained_at = clock.monotonic()
        self._flusher: TableAppender | None = None
        self._policy = self._limits.policy()
        self._compaction = Background(self._policy, location, newest_base, self.flushed_shards, clock)
        self._flushes, self._upkeep = Task("flush", clock), Task("compact", clock)
        self._started = False

    # ------------------------------------------------------------------------------------------------------- being told

    def note(self, lengths: Mapping[str, LogLength]) -> list[str]:
        """Take in how long logs are after appends; returns those that are far too long, for `flush`."""
        with self._lock:
            for shard_id, length in lengths.items():
                # What is appended while a log is flushed is counted with the old entries: nobody knows the new length yet.
                self._lengths[shard_id] = UNKNOWN_LENGTH if shard_id in self._flushing else length
                self._since.setdefault(shard_id, self._clock.monotonic())
        return [shard_id for shard_id, length in lengths.items() if self._limits.is_reached(length, _TOO_LONG)]

    def due(self) -> list[str]:
        """The shards whose logs are to be flushed now."""
        limits, now = self._limits, self._clock.monotonic()
        with self._lock:
            return [
                shard_id
                for shard_id, length in self._lengths.items()
                if limits.is_reached(length)
                or (limits.age_seconds and now - self._since[shard_id] >= limits.age_seconds)
            ]

    # ------------------------------------------------------------------------------------------------------ in line

    def flush(self, shards: Iterable[str]) -> int:
        """Publish the logs of these shards; how many were flushed. What fails is logged, and tried again later."""
        wanted = sorted(shards)
        return sum(in_order(self._flush, wanted, min(_FLUSHES_AT_ONCE, len(wanted)), "memwal-sink-flush"))

    def run(self) -> None:
        """Do everything that is due now."""
        self.flush(self.due())
        policy = self._policy
        if policy is not None:
            self._quietly("compaction", lambda: self._compaction.compact_due(policy))
        self._maintain_if_due()

    def _flush(self, shard_id: str) -> bool:
        with self._lock:
            self._flushing.add(shard_id)
            self._lengths.pop(shard_id, None)
            self._since.pop(shard_id, None)
        done = self._quietly("a flush", lambda: self._sink().flush(shard_id))
        with self._lock:
            flushes = self._flushed.get(shard_id, 0) + done
            self._flushing.discard(shard_id)
            if done:
                self._flushed[shard_id] = flushes
            else:
                self._lengths.setdefault(shard_id, UNKNOWN_LENGTH)
                self._since.setdefault(shard_id, self._clock.monotonic())
        return done

    def _sink(self) -> TableAppender:
        if self._flusher is None:
            made = TableAppender(OnceAppender(self._location, clock=self._clock), clock=self._clock)
            with self._lock:  # not while it is made: commits take the lock, too
                self._flusher = self._flusher or made
        return self._flusher

    def _quietly(self, what: str, work: Callable[[], object]) -> bool:
        """Do the work; False if it failed, which the next round makes good."""
        try:
            work()
        except TableReplacedError as error:
            _LOG.info("upkeep of a sink ends: %s", error)
            self.stop()
        except Exception as error:  # whatever it was, the sink goes on
            if not is_ending():
                _LOG.warning("%s beside a sink failed, it is tried again: %s", what, error)
        else:
            return True
        return False

    # ------------------------------------------------------------------------------------------------ in the background

    def start(self) -> None:
        """Work in the background from now on, when something is due; once is enough."""
        if not self._started:
            self._started = True
            self._flushes.start(self._run_flushes)
            self._upkeep.start(self._run_upkeep).poke()
            self._compaction.start()
        self._flushes.poke()

    def stop(self) -> None:
        """Begin nothing new; may be called anywhere."""
        for task in self._tasks:
            task.cancel()
        self._compaction.stop()

    @property
    def _tasks(self) -> tuple[Task, ...]:
        return self._flushes, self._upkeep

    def join(self) -> None:
        """Return when nothing runs any more, at most a minute later."""
        self.stop()
        for task in self._tasks:
            task.stop()
        self._compaction.join()

    def _run_flushes(self) -> float | None:
        due = self.due()
        failed = len(due) - self.flush(due)
        with self._lock:
            oldest = min(self._since.values(), default=None)
        if failed:
            return _RETRY_SECONDS
        if oldest is None or not self._limits.age_seconds:
            return None
        return max(0.1, oldest + self._limits.age_seconds - self._clock.monotonic())

    def _run_upkeep(self) -> float | None:
        self._maintain_if_due()
        return self._limits.maintain_seconds or None

    def _maintain_if_due(self) -> None:
        """Maintain the table if it is time to, and if this process has flushed anything since."""
        seconds = self._limits.maintain_seconds
        if not seconds or not self._flushed or self._clock.monotonic() - self._maintained_at < seconds:
            return
        self._maintained_at = self._clock.monotonic()
        self._quietly("maintenance", self._maintain)

    def flushed_shards(self) -> dict[str, int]:
        """The shards with generations that this process published, and how many."""
        with self._lock:
            return dict(self._flushed)
