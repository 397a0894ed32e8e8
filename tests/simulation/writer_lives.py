"""Lives of writers with memtables, and of appenders without one: several threads each, group commits, flushes in the
background, takeovers, crashes and lost answers.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

import lance_memwal as mw
from lance_memwal import ShardWriter
from lance_memwal.compact.run import Compactor
from lance_memwal.errors import FencedError, MemWalError
from lance_memwal.feed.changes import Request
from lance_memwal.feed.consumers import Consumer
from lance_memwal.lance.base import BaseTable, NewestBase
from lance_memwal.read.reader import Reader
from lance_memwal.store.location import Location
from lance_memwal.types import Transaction
from lance_memwal.upkeep.gc import Collector
from lance_memwal.upkeep.verify import verify_table
from lance_memwal.write.claim import ShardClaim
from lance_memwal.write.once import OnceAppender
from tests.simulation.schedule import ScheduledClock
from tests.simulation.world import Machine, World, empty_table

_GONE = None
_SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("value", pa.int64())])
_LARGE_KEYS = 60
_COMMIT_CALLS = 4  # of a consumer
_SHARD = mw.shard_id_for(mw.Unsharded())


class WriterLife:
    """One life, and what happened in it, as seen from outside."""

    def __init__(self, seed: int, *, keep_trace: bool = False, directory: Path | None = None) -> None:
        """With a directory it is a life with Lance."""
        self.world = world = World(seed, empty_table(keyed=True), keep_trace=keep_trace, directory=directory)
        draw = world.draw
        self.possible: dict[int, set[int | None]] = {}
        self.acknowledged: set[tuple[int, int | None]] = set()
        self._issued: list[tuple[int, int | None]] = []
        self._version = 0
        self._puts: list[tuple[int, frozenset[int]]] = []
        self._newest: dict[int, int] = {}  # the last write that was issued, per key
        self._mirror: dict[int, int | None] = {}
        self._is_mirrored = False
        self._first_keys = iter(range(0, 100_000, 1_000))
        self._settings: dict[str, Any] = {
            "max_memtable_rows": draw.choice((3, 8, 1_000)),
            "max_entry_bytes": draw.choice((1_200, 1 << 20)),
            "max_memtable_age_ms": draw.choice((50, 300_000)),
        }
        for _ in range(draw.choice((1, 2, 2))):
            clients = [next(self._first_keys) for _ in range(draw.choice((1, 2, 3)))]
            world.client("writer", lambda machine, clients=clients: self._writer(machine, clients))
        others = [self._reader, self._compactor, self._collector, self._consumer]
        draw.shuffle(others)
        for other in others[: draw.choice((0, 1, 2, 3))]:
            world.client(other.__name__.strip("_"), other)

    def run(self) -> list[str]:
        self.world.live()
        self.world.afterwards(self._judge)
        return self.world.verdict()

    # --------------------------------------------------------------------------------------------------------- writers

    def _writer(self, machine: Machine, clients: list[int]) -> None:
        """Opens the shard, lets its clients write, and closes or leaves it."""
        draw = self.world.draw
        self.world.claim(_SHARD)
        try:
            writer = ShardWriter.open(machine.location, clock=machine.clock, **self._settings)
        except MemWalError as error:
            self.world.expect(error, *self.world.fences(_SHARD))
            return
        left = [len(clients)]
        for first in clients:
            machine.start(lambda first=first: self._client(writer, first, left), f"client{first}")
        while left[0]:
            machine.clock.sleep(0.5)
        try:
            writer.close() if draw.random() < 0.7 else writer.abort()
        except MemWalError as error:
            self.world.expect(error, *self.world.fences(_SHARD))
            writer.abort()

    def _client(self, writer: ShardWriter, first: int, left: list[int]) -> None:
        try:
            for _ in range(self.world.draw.choice((1, 2, 4))):
                if not self._act(writer, first):
                    return
        finally:
            left[0] -= 1

    def _act(self, writer: ShardWriter, first: int) -> bool:
        """One write or look; False if the writer does not write any more."""
        draw = self.world.draw
        chance = draw.random()
        keys = [first + draw.randrange(4) for _ in range(draw.choice((1, 1, 2)))]
        try:
            if chance < 0.5:
                self._put(writer, keys, "put")
            elif chance < 0.6:
                self._put(writer, keys, "nowait")
            elif chance < 0.7:
                self._put(writer, keys, "txn")
            elif chance < 0.8:
                self._delete(writer, keys[:1])
            elif chance < 0.87:
                self._put(writer, list(range(first + 100, first + 100 + _LARGE_KEYS)), "put")
            elif chance < 0.93:
                writer.force_seal_active()
            else:
                self._get(writer, keys[0])
        except MemWalError as error:
            self.world.expect(error, *self.world.fences(_SHARD))
            return False
        return True

    def _put(self, writer: ShardWriter, keys: list[int], how: str) -> None:
        value = self._issue(keys)
        self._puts.append((value, frozenset(keys)))
        rows = pa.table({"id": keys, "value": [value] * len(keys)}, schema=_SCHEMA)
        if how == "nowait":
            writer.put_nowait(rows).wait()
        elif how == "txn":
            txn = (f"client {keys[0] // 1_000}", value)
            writer.put(rows, txn=txn)
            self._acknowledge(keys, value)
            if not writer.put(rows, txn=txn).skipped:
                self.world.check(False, f"a repeat of {txn} was written")
        else:
            writer.put(rows)
        self._acknowledge(keys, value)

    def _delete(self, writer: ShardWriter, keys: list[int]) -> None:
        self._issue(keys, is_delete=True)
        writer.delete(keys)
        self._acknowledge(keys, _GONE)

    def _issue(self, keys: Iterable[int], *, is_delete: bool = False) -> int:
        self._version += 1
        value = _GONE if is_delete else self._version
        for key in keys:
            self.possible.setdefault(key, {_GONE}).add(value)
            self._issued.append((key, value))
            self._newest[key] = self._version
        return self._version

    def _acknowledge(self, keys: list[int], value: int | None) -> None:
        for key in keys:
            self.acknowledged.add((key, value))
            self.possible[key] = {value}

    def _get(self, writer: ShardWriter, key: int) -> None:
        known, issued = set(self.possible.get(key, {_GONE})), len(self._issued)
        row = writer.get(key)
        self._check_value("get", key, None if row is None else row["value"], known, issued)

    # ---------------------------------------------------------------------------------------------------------- others

    def _reader(self, machine: Machine) -> None:
        """Scans the table from another process, fresh rows included."""
        reader = Reader(newest_base(machine.location), machine.clock)
        for _ in range(2):
            known, issued = {key: set(values) for key, values in self.possible.items()}, len(self._issued)
            try:
                rows = reader.scan().to_table()
            except MemWalError as error:
                self.world.expect(error)
                continue
            self._check_rows("a scan", rows, known, issued)
            machine.clock.sleep(self.world.draw.choice((0.01, 0.2)))

    def _compactor(self, machine: Machine) -> None:
        """Folds what is published into the base table."""
        for _ in range(2):
            compact(machine)
            machine.clock.sleep(self.world.draw.choice((0.01, 0.5)))

    def _collector(self, machine: Machine) -> None:
        for _ in range(2):
            collect(machine)
            machine.clock.sleep(self.world.draw.choice((0.01, 0.5)))

    def _consumer(self, machine: Machine) -> None:
        """Mirrors the table from its changes."""
        self._is_mirrored = True
        for _ in range(2):
            try:
                self._consume(machine.location, machine.clock, lambda: machine.may_die_within(_COMMIT_CALLS))
            except MemWalError as error:
                self.world.expect(error)  # it is never passed, as it is never silent for days

    def _consume(
        self, location: Location, clock: ScheduledClock, before_commit: Callable[[], None] = lambda: None
    ) -> None:
        reader = Consumer(newest_base(location), "mirror", Request(), until="now", clock=clock)
        for batch in reader:
            for row in batch.to_pylist():
                self._mirror[row["id"]] = _GONE if row["_op"] == "d" else row["value"]
            before_commit()
            reader.commit()

    # ------------------------------------------------------------------------------------------------------- verdict

    def _judge(self, location: Location, clock: ScheduledClock) -> None:
        check, newest = self.world.check, newest_base(location)
        rows = Reader(newest, clock).scan().to_table()
        self._check_rows("the table", rows, self.possible, len(self._issued))
        writer = ShardWriter.open(location, clock=clock)
        again = writer.scan().to_table()
        check(_values(again) == _values(rows), "I6: after a reopen the rows are others")
        for key in sorted(self.possible)[:: max(1, len(self.possible) // 6)]:
            row = writer.get(key)
            value = None if row is None else row["value"]
            check(value == _values(rows).get(key), f"I7: a lookup of {key} gives {value}, the scan does not")
        writer.close()
        Compactor(location, newest, clock=clock).run()
        Collector(location, newest, clock).run(grace_seconds=0)
        after = Reader(newest, clock).scan().to_table()
        check(_values(after) == _values(rows), "I8: after compaction and collection the rows are others")
        problems = verify_table(newest, clock).problems
        check(not problems, f"verify finds a fault: {problems[:1]}")
        self._judge_mirror(location, clock, _values(after))

    def _judge_mirror(self, location: Location, clock: ScheduledClock, rows: dict[int, int]) -> None:
        if not self._is_mirrored:
            return
        self._consume(location, clock)
        mirror = {key: value for key, value in self._mirror.items() if value is not _GONE}
        other = {key: (value, rows.get(key)) for key, value in mirror.items() if rows.get(key) != value}
        self.world.check(not other, f"the mirror of a consumer differs: {dict(list(other.items())[:3])}")
        self.world.check(rows.keys() <= mirror.keys(), f"a consumer missed {sorted(rows.keys() - mirror.keys())[:3]}")

    def _check_rows(self, what: str, rows: pa.Table, known: dict[int, set[int | None]], issued: int) -> None:
        counts = Counter(rows.column("id").to_pylist())
        twice = [key for key, count in counts.items() if count > 1]
        self.world.check(not twice, f"I5: {what} shows keys twice: {twice[:3]}")
        found = _values(rows)
        for key in known.keys() | found.keys():
            self._check_value(what, key, found.get(key), known.get(key, {_GONE}), issued)
        for value, keys in self._puts:
            own = [key for key in keys if self._newest[key] == value]
            shown = sum(found.get(key) == value for key in own)
            self.world.check(shown in (0, len(own)), f"I4: {what} shows {shown} of {len(own)} keys of put {value}")

    def _check_value(self, what: str, key: int, value: int | None, known: set[int | None], issued: int) -> None:
        """A read that began with `known` values, and before the write number `issued`, may show these and what came since."""
        if value not in known and (key, value) not in self._issued[issued:]:
            self.world.check(
                False, f"I1, I2: {what} shows {value} for key {key}, possible was {sorted(map(str, known))}"
            )


def _values(rows: pa.Table) -> dict[int, int]:
    return dict(zip(rows.column("id").to_pylist(), rows.column("value").to_pylist(), strict=True))


# Lives of appenders that share an epoch: transactions and their repeats, rows too large for an entry, flushes,
# claims, compaction, collection and a consumer of the changes.
#
# Whatever the order, the faults and the crashes: what was acknowledged is there exactly once, what was not at most
# once, a repeat is skipped. A consumer is handed every row, in the order of the log, and none again that was in a
# batch whose commit returned.

SHARD = mw.shard_id_for(mw.Unsharded())
_ENTRY_BYTES = 1_500
_LARGE_ROWS = 100
_TRIES = 12


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


def newest_base(location: Location) -> NewestBase:
    """Who follows the base table of a place."""
    return NewestBase(BaseTable.need(location))


def compact(machine: Machine) -> None:
    """Fold what is published into the base table; others may be faster."""
    try:
        Compactor(machine.location, newest_base(machine.location), clock=machine.clock).run()
    except MemWalError as error:
        machine.world.expect(error)


def collect(machine: Machine) -> None:
    """Collect whatever may go, without grace."""
    try:
        Collector(machine.location, newest_base(machine.location), machine.clock).run(grace_seconds=0)
    except MemWalError as error:
        machine.world.expect(error)
