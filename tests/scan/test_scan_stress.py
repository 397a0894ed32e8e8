"""Reads while everything moves: a writer, rotation, flushes, compaction, trims and collection without a grace period.

Every row says which write made it, so each answer can be judged against what had been acknowledged before the read began
and what had been issued when it ended.
"""

from __future__ import annotations

import random
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.clock import SYSTEM_CLOCK
from tests.harness.processes import start
from tests.harness.profile import scaled
from tests.kit.tables import create

SECONDS = scaled(ci=4.0, prove=120.0)
KEYS = 24
TWO = mw.Bucket("id", 2)
APPEND = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.int64()), pa.field("s", pa.string())])


@dataclass
class Ledger:
    """What was issued and acknowledged, per key: the number of the write, negative where it deleted."""

    issued: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    acknowledged: dict[int, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def issue(self, keys: list[int], number: int) -> None:
        with self.lock:
            for key in keys:
                self.issued[key].append(number)

    def acknowledge(self, keys: list[int]) -> None:
        with self.lock:
            for key in keys:
                self.acknowledged[key] = len(self.issued[key])

    def before(self) -> dict[int, int]:
        """Per key, how many of its writes were acknowledged."""
        with self.lock:
            return dict(self.acknowledged)

    def judge(self, before: dict[int, int], found: dict[int, int]) -> str | None:
        """What is wrong with these rows (key to number), read after `before` was taken."""
        with self.lock:
            issued = {key: list(numbers) for key, numbers in self.issued.items()}
        for key in issued.keys() | found.keys():
            numbers, first = issued.get(key, []), before.get(key, 0)
            allowed = {numbers[first - 1] if first else None, *numbers[first:]}
            states = {number if number is not None and number > 0 else None for number in allowed}
            if found.get(key) not in states:
                return f"key {key}: found {found.get(key)}, allowed {sorted(map(str, states))} of {numbers[-6:]}"
        return None


def _write_keyed(
    put: Callable[[list[dict[str, Any]]], Any],
    delete: Callable[[list[int]], Any],
    tell: Callable[..., None],
    stop: Callable[[], bool],
) -> None:
    """Puts and deletes of random keys until told to stop; `tell` hears of each before and after."""
    draw = random.Random(7)
    number = 0
    while not stop():
        number += 1
        keys = draw.sample(range(KEYS), draw.choice((1, 1, 2, 5)))
        deletes = draw.random() < 0.2
        tell("issued", keys, -number if deletes else number)
        if deletes:
            delete(keys)
        else:
            put([{"id": key, "v": number, "s": "x" * draw.randrange(40)} for key in keys])
        tell("acknowledged", keys)


class Upkeep:
    """Compaction and collection, over and over, in a thread of their own."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._stop = threading.Event()
        self.failures: list[BaseException] = []
        self.compactions = 0
        self.collected = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Upkeep:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        table = mw.open_table(self._uri)
        while not self._stop.wait(0.02):
            try:
                self.compactions += bool(table.compact().generations)
                self.collected += len(table.gc(grace_seconds=0).objects)
            except BaseException as error:
                self.failures.append(error)
                return


def _read_and_judge(table: mw.Table, ledger: Ledger) -> Counter[str]:
    """Scans and lookups for a while; the first wrong answer is the failure."""
    reads: Counter[str] = Counter()
    end = SYSTEM_CLOCK.monotonic() + SECONDS
    while SYSTEM_CLOCK.monotonic() < end:
        before = ledger.before()
        if reads.total() % 3 == 2:
            rows = table.lookup(list(range(KEYS)), ["id", "v"])
            kind = "lookup"
        else:
            rows = table.scan(columns=["id", "v"]).to_table()
            kind = "scan"
        found = dict(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True))
        assert len(found) == rows.num_rows, f"{kind} {reads}: a key twice"
        wrong = ledger.judge(before, found)
        assert wrong is None, f"{kind} {reads}: {wrong}"
        reads[kind] += 1
    return reads


@pytest.mark.scaled
@pytest.mark.timeout(scaled(ci=300, prove=0))
def test_reads_beside_a_writer_of_this_process_miss_nothing(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), sharding=TWO)
    ledger, stop, failures = Ledger(), threading.Event(), []

    def tell(tag: str, keys: list[int], number: int = 0) -> None:
        ledger.issue(keys, number) if tag == "issued" else ledger.acknowledge(keys)

    with table.writer(max_memtable_rows=12, compaction=None) as writer:

        def write() -> None:
            try:
                _write_keyed(writer.put, writer.delete, tell, stop.is_set)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        with Upkeep(table.uri) as upkeep:
            reads = _read_and_judge(mw.open_table(table.uri), ledger)
        stop.set()
        thread.join()
    assert (failures, upkeep.failures) == ([], [])
    assert upkeep.compactions > 1
    assert upkeep.collected > 5
    assert reads["scan"] > 5
    final = {row["id"]: row["v"] for row in table.scan().to_table().to_pylist()}
    assert final == {key: numbers[-1] for key, numbers in ledger.issued.items() if numbers[-1] > 0}


def _keyed_child(uri: str, seconds: float, pipe: Connection) -> None:
    table = mw.open_table(uri)
    end = SYSTEM_CLOCK.monotonic() + seconds
    with table.writer(max_memtable_rows=12, compaction=None) as writer:
        _write_keyed(writer.put, writer.delete, lambda *told: pipe.send(told), lambda: SYSTEM_CLOCK.monotonic() > end)
    pipe.send(("done",))


@pytest.mark.scaled
@pytest.mark.timeout(scaled(ci=300, prove=0))
def test_reads_beside_a_writer_of_another_process_miss_nothing(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), sharding=TWO)
    ledger = Ledger()
    child = start(_keyed_child, table.uri, SECONDS + 2)
    done = threading.Event()

    def listen() -> None:
        while not done.is_set():
            message = child.receive(60)
            if message is None or message[0] == "done":
                done.set()
            elif message[0] == "issued":
                ledger.issue(message[1], message[2])
            else:
                ledger.acknowledge(message[1])

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    with Upkeep(table.uri) as upkeep:
        reads = _read_with_late_news(table, ledger)
    listener.join()
    assert child.wait(30) == 0
    assert upkeep.failures == []
    assert upkeep.compactions > 1
    assert reads["scan"] > 5
    final = {row["id"]: row["v"] for row in table.scan().to_table().to_pylist()}
    assert final == {key: numbers[-1] for key, numbers in ledger.issued.items() if numbers[-1] > 0}


def _read_with_late_news(table: mw.Table, ledger: Ledger) -> Counter[str]:
    """As `_read_and_judge`; what a read found may have been issued before we heard of it, so judgement waits for that."""
    reads: Counter[str] = Counter()
    end = SYSTEM_CLOCK.monotonic() + SECONDS
    while SYSTEM_CLOCK.monotonic() < end:
        before = ledger.before()
        rows = table.scan(columns=["id", "v"]).to_table()
        found = dict(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True))
        assert len(found) == rows.num_rows, "a key twice"
        patience = SYSTEM_CLOCK.monotonic() + 10
        while (wrong := ledger.judge(before, found)) is not None and SYSTEM_CLOCK.monotonic() < patience:
            SYSTEM_CLOCK.sleep(0.01)
        assert wrong is None, f"scan {reads}: {wrong}"
        reads["scan"] += 1
    return reads


@pytest.mark.scaled
@pytest.mark.timeout(scaled(ci=300, prove=0))
def test_reads_of_an_append_only_table_count_every_row_once(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), APPEND, primary_key=None, sharding=TWO)
    stop, failures = threading.Event(), []
    issued, acknowledged = [0], [0]
    with table.writer(max_memtable_rows=12, compaction=None) as writer:

        def write() -> None:
            try:
                while not stop.is_set():
                    first = issued[0]
                    issued[0] += 1 + first % 4
                    writer.put([{"id": i, "v": i, "s": "x"} for i in range(first, issued[0])])
                    acknowledged[0] = issued[0]
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        reader = mw.open_table(table.uri)
        reads, end = 0, SYSTEM_CLOCK.monotonic() + SECONDS
        with Upkeep(table.uri) as upkeep:
            while SYSTEM_CLOCK.monotonic() < end:
                before = acknowledged[0]
                found = reader.scan(columns=["id"]).to_table()["id"].to_pylist()
                after = issued[0]
                assert len(set(found)) == len(found), f"read {reads}: rows twice: {_twice(found)}"
                missing = set(range(before)) - set(found)
                assert not missing, f"read {reads}: {len(missing)} of {before} rows are missing: {sorted(missing)[:9]}"
                assert max(found, default=-1) < after
                reads += 1
        stop.set()
        thread.join()
    assert (failures, upkeep.failures) == ([], [])
    assert upkeep.compactions > 1
    assert reads > 5
    assert sorted(table.scan(columns=["id"]).to_table()["id"].to_pylist()) == list(range(issued[0]))


def _twice(found: list[int]) -> list[int]:
    return [value for value, count in Counter(found).items() if count > 1][:9]
