"""Lives of writers with memtables: several threads each, group commits, flushes in the background, takeovers, readers of
other processes, compaction, collection, and a consumer.

Every key belongs to one client, whose writes follow each other, so that the possible values of a key are known at any
time: the last one that was acknowledged, and those of which nobody knows. Whatever the order, the faults and the crashes:
readers see nothing else (I1, I2, I5, I7), also after a reopen (I6). Of every put they see all keys that no later write touched,
or none of them (I4): the table has one shard. A consumer applies what it is handed before it commits, which may be done twice;
in the end its mirror is the table, whatever was cut off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

import lance_memwal as mw
from lance_memwal import ShardWriter
from lance_memwal.compact.run import Compactor
from lance_memwal.errors import MemWalError
from lance_memwal.feed.changes import Request
from lance_memwal.feed.consumers import Consumer
from lance_memwal.read.reader import Reader
from lance_memwal.store.location import Location
from lance_memwal.upkeep.gc import Collector
from lance_memwal.upkeep.verify import verify_table
from tests.simulation.chores import collect, compact, newest_base
from tests.simulation.schedule import ScheduledClock
from tests.simulation.world import Machine, World, empty_table

__all__ = ["WriterLife"]

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
        """Live, and say what is broken."""
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
        """Collects, without grace."""
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
        again = writer.lsm_scan().to_table()
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
