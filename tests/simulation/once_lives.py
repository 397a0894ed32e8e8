"""Lives of appenders that share an epoch: transactions and their repeats, rows too large for an entry, flushes, claims,
compaction, collection and a consumer of the changes.

Whatever the order, the faults and the crashes: what was acknowledged is there exactly once, what was not at most once, a
repeat is skipped. A consumer is handed every row, in the order of the log, and none again that was in a batch whose commit
returned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

import lance_memwal as mw
from lance_memwal.errors import FencedError, MemWalError
from lance_memwal.feed.changes import Request
from lance_memwal.feed.consumers import Consumer
from lance_memwal.read.reader import Reader
from lance_memwal.store.location import Location
from lance_memwal.types import Transaction
from lance_memwal.upkeep.verify import verify_table
from lance_memwal.write.claim import ShardClaim
from lance_memwal.write.once import OnceAppender
from tests.simulation.chores import collect, compact, newest_base
from tests.simulation.schedule import ScheduledClock
from tests.simulation.world import Machine, World, empty_table

__all__ = ["OnceLife"]

SHARD = mw.shard_id_for(mw.Unsharded())
_ENTRY_BYTES = 1_500
_LARGE_ROWS = 100
_TRIES = 12
_COMMIT_CALLS = 4  # of a consumer


class OnceLife:
    """One life, and what happened in it, as seen from outside."""

    def __init__(self, seed: int, *, keep_trace: bool = False, directory: Path | None = None) -> None:
        """With a directory it is a life with Lance."""
        self.world = world = World(seed, empty_table(keyed=False), keep_trace=keep_trace, directory=directory)
        draw = world.draw
        self.acknowledged: set[int] = set()
        self.uncertain: set[int] = set()
        self.skipped = 0
        self._handed_out: set[int] = set()
        self._committed: set[int] = set()
        self._committed_position = 0
        self._is_consumed = False
        self._claim: ShardClaim | None = None
        self._last: dict[str, int] = {}
        count = draw.choice((1, 2, 2, 4))
        self._large = {number for number in range(40) if draw.random() < 0.2}
        world.client("sink", lambda machine: self._appender(machine, "app", range(1, 1 + count)))
        world.client("sink", lambda machine: self._appender(machine, "app", range(1, 1 + count)))
        others = [self._flusher, self._collector, self._taker, self._compactor, self._consumer]
        draw.shuffle(others)
        for other in others[: draw.choice((1, 2, 2, 3))]:
            world.client(other.__name__.strip("_"), other)
        if draw.random() < 0.5:
            world.client("sink", lambda machine: self._appender(machine, None, range(11, 11 + count)))

    def run(self) -> list[str]:
        """Live, and say what is broken."""
        self.world.live()
        self.world.afterwards(self._judge)
        return self.world.verdict()

    # --------------------------------------------------------------------------------------------------------- clients

    def _once(self, machine: Machine) -> OnceAppender:
        return OnceAppender(machine.location, max_entry_bytes=_ENTRY_BYTES, clock=machine.clock)

    def _newer_claim(self, once: OnceAppender, stale: ShardClaim | None) -> ShardClaim:
        """A claim that somebody told us of, or one of our own."""
        if self._claim is None or (stale is not None and self._claim.epoch <= stale.epoch):
            self.world.claim(SHARD)
            made = once.claim(SHARD)
            if self._claim is None or made.epoch > self._claim.epoch:
                self._claim = made
        return self._claim

    def _appender(self, machine: Machine, app: str | None, numbers: range) -> None:
        """Appends each number, with its transaction again and again until it is told that it is there."""
        once, claim = self._once(machine), None
        for number in numbers:
            if app is None and number in self.uncertain:  # another process tried, and nobody knows
                continue
            txn = None if app is None else Transaction(app, number, "query")
            self.uncertain.add(number)
            for _ in range(_TRIES if app is not None else 1):
                try:
                    claim = claim or self._newer_claim(once, None)
                    done = once.append(claim, [_rows(number, number in self._large)], txn=txn)
                except FencedError as error:
                    self.world.expect(error, *self.world.fences(SHARD))
                    claim = self._claim if self._claim != claim else None
                    if claim is None:
                        claim = self._again(once)
                except MemWalError as error:
                    self.world.expect(error)
                else:
                    self.skipped += done.skipped
                    self.acknowledged.add(number)
                    break

    def _again(self, once: OnceAppender) -> ShardClaim | None:
        try:
            return self._newer_claim(once, self._claim)
        except MemWalError as error:
            self.world.expect(error, *self.world.fences(SHARD))
            return None

    def _flusher(self, machine: Machine) -> None:
        """Publishes what is in the tail, while others append."""
        try:
            once = self._once(machine)
            for _ in range(2):
                once.flush_tail(self._newer_claim(once, None))
        except MemWalError as error:
            self.world.expect(error, *self.world.fences(SHARD))

    def _taker(self, machine: Machine) -> None:
        """Claims the shard, and leaves it."""
        self.world.claim(SHARD)
        try:
            self._once(machine).claim(SHARD)
        except MemWalError as error:
            self.world.expect(error, *self.world.fences(SHARD))

    def _compactor(self, machine: Machine) -> None:
        """Folds what is published into the base table."""
        for _ in range(2):
            compact(machine)

    def _collector(self, machine: Machine) -> None:
        """Collects whatever may go, without grace."""
        for _ in range(2):
            collect(machine)

    def _consumer(self, machine: Machine) -> None:
        """Reads the changes under a name, and commits what it saw."""
        self._is_consumed = True
        for _ in range(2):
            try:
                self._consume(machine.location, machine.clock, lambda: machine.may_die_within(_COMMIT_CALLS))
            except MemWalError as error:
                self.world.expect(error)  # it is never passed, as it is never silent for days

    def _consume(
        self, location: Location, clock: ScheduledClock, before_commit: Callable[[], None] = lambda: None
    ) -> None:
        check = self.world.check
        reader = Consumer(newest_base(location), "life", Request(), until="now", clock=clock)
        for batch in reader:
            found, positions = batch.column("id").to_pylist(), batch.column("_position").to_pylist()
            again = self._committed.intersection(found)
            check(not again, f"a consumer is handed out what it has committed: {sorted(again)[:3]}")
            check(len(set(found)) == len(found), f"a consumer is handed out rows twice: {sorted(found)[:3]}")
            in_order = [self._committed_position, *positions]
            check(in_order == sorted(in_order), f"a consumer goes back in the log: {in_order[:5]}")
            self._handed_out.update(found)
            before_commit()
            reader.commit()  # whether one that is cut off landed, nobody knows: its rows may come again
            self._committed.update(found)
            self._committed_position = positions[-1]

    # ------------------------------------------------------------------------------------------------------- verdict

    def _judge(self, location: Location, clock: ScheduledClock) -> None:
        check = self.world.check
        newest = newest_base(location)
        found = Reader(newest, clock).scan().to_table().column("id").to_pylist()
        counts = Counter(found)
        possible = Counter(row for number in self.uncertain for row in _ids(number, number in self._large))
        for number in sorted(self.acknowledged):
            lost = [row for row in _ids(number, number in self._large) if not counts[row]]
            check(not lost, f"I1: append {number} was acknowledged, and {len(lost)} of its rows are gone")
        for number in sorted(self.uncertain):
            there = sum(row in counts for row in _ids(number, number in self._large))
            whole = there in (0, len(_ids(number, number in self._large)))
            check(whole, f"I4: {there} rows of append {number} are there")
        doubled = [row for row, count in counts.items() if count > 1]
        check(not doubled, f"rows are there twice: {doubled[:3]}")
        check(counts.keys() <= possible.keys(), f"I2: never issued: {sorted(counts.keys() - possible.keys())[:3]}")
        problems = verify_table(newest, clock).problems
        check(not problems, f"verify finds a fault: {problems[:1]}")
        self._judge_consumer(location, clock, counts)
        once = OnceAppender(location, clock=clock)
        for number in sorted(self.acknowledged & set(range(1, 10))):
            txn = Transaction("app", number, "query")
            if number == max(self.acknowledged & set(range(1, 10))):
                again = once.append(once.claim(SHARD), [_rows(number, False)], txn=txn)
                check(again.skipped, f"a repeat of {number} was written")

    def _judge_consumer(self, location: Location, clock: ScheduledClock, counts: Counter[int]) -> None:
        if not self._is_consumed:
            return
        self._consume(location, clock)
        missed, invented = sorted(counts.keys() - self._handed_out), sorted(self._handed_out - counts.keys())
        self.world.check(not missed, f"a consumer missed {missed[:3]}")
        self.world.check(not invented, f"a consumer was handed out what is not in the table: {invented[:3]}")


def _ids(number: int, large: bool) -> list[int]:
    return [number * 1_000 + k for k in range(_LARGE_ROWS if large else 1)]


def _rows(number: int, large: bool) -> pa.RecordBatch:
    ids = _ids(number, large)
    return pa.record_batch({"id": pa.array(ids, pa.int64()), "value": pa.array([number] * len(ids), pa.int64())})
