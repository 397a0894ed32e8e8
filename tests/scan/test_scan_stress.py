"""Reads while everything moves: a writer, rotation, flushes, compaction, trims and collection without a grace period.

Every row says which write made it, so each answer can be judged against what had been acknowledged before the read began
and what had been issued when it ended.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from tests.harness.processes import start
from tests.harness.profile import scaled
from tests.kit.log_life import Ledger, Write
from tests.kit.tables import create
from tests.kit.writers import in_thread

SECONDS = scaled(ci=4.0, prove=120.0)
KEYS = 24
TWO = mw.Bucket("id", 2)
APPEND = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.int64()), pa.field("s", pa.string())])


def _write_keyed(writer: mw.TableWriter, tell: Callable[[tuple[Any, ...]], None], stop: Callable[[], bool]) -> None:
    """Puts and deletes of random keys until told to stop; `tell` hears of each before and after."""
    draw = random.Random(7)
    number = 0
    while not stop():
        number += 1
        keys = draw.sample(range(KEYS), draw.choice((1, 1, 2, 5)))
        deletes = draw.random() < 0.2
        tell(("issued", Write(number, "delete" if deletes else "put", tuple(keys), time.monotonic())))
        if deletes:
            writer.delete(keys)
        else:
            writer.put([{"id": key, "v": number, "s": "x" * draw.randrange(40)} for key in keys])
        tell(("returned", number, time.monotonic()))


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


def _take(ledger: Ledger, said: Iterable[tuple[Any, ...]]) -> None:
    for tag, *values in said:
        ledger.issued(*values) if tag == "issued" else ledger.returned(*values)


def _read_and_judge(uri: str, ledger: Ledger, said: Callable[[], Iterable[tuple[Any, ...]]]) -> Counter[str]:
    """Scans and lookups for a while; the first wrong answer is the failure. `said` gives what the writer said by now: whatever a
    read found was told before it was written."""
    table, reads = mw.open_table(uri), Counter[str]()
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        began = time.monotonic()
        if reads.total() % 3 == 2:
            rows = table.lookup(list(range(KEYS)), ["id", "v"])
            kind = "lookup"
        else:
            rows = table.scan(columns=["id", "v"]).to_table()
            kind = "scan"
        ended = time.monotonic()
        _take(ledger, said())
        _judge(ledger, rows, began, ended, f"{kind} {reads}")
        ledger.forget(began)
        reads[kind] += 1
    return reads


def _judge(ledger: Ledger, rows: pa.Table, began: float, ended: float, what: str) -> None:
    found = dict(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True))
    assert len(found) == rows.num_rows, f"{what}: a key twice"
    assert found.keys() <= set(range(KEYS)), f"{what}: keys that nobody wrote"
    wrong = ledger.wrong(found, range(KEYS), began, ended)
    assert wrong == [], f"{what}: {wrong[:3]}"


@pytest.mark.scaled
@pytest.mark.timeout(scaled(ci=300, prove=0))
def test_reads_beside_a_writer_of_this_process_miss_nothing(tmp_path: Path) -> None:
    table, ledger = create(str(tmp_path / "t"), sharding=TWO), Ledger(range(KEYS), None)
    stop, told = threading.Event(), SimpleQueue[tuple[Any, ...]]()

    def said() -> Iterator[tuple[Any, ...]]:
        while not told.empty():
            yield told.get()

    with table.writer(max_memtable_rows=12, compaction=None) as writer:
        writing = in_thread(lambda: _write_keyed(writer, told.put, stop.is_set))
        with Upkeep(table.uri) as upkeep:
            reads = _read_and_judge(table.uri, ledger, said)
        stop.set()
        writing.result()
    assert upkeep.failures == []
    assert upkeep.compactions > 1
    assert upkeep.collected > 5
    assert reads["scan"] > 5
    _take(ledger, said())
    now = time.monotonic()
    _judge(ledger, table.scan().to_table(), now, now, "in the end")


def _keyed_child(uri: str, seconds: float, pipe: Connection) -> None:
    end = time.monotonic() + seconds
    with mw.open_table(uri).writer(max_memtable_rows=12, compaction=None) as writer:
        _write_keyed(writer, pipe.send, lambda: time.monotonic() > end)


@pytest.mark.scaled
@pytest.mark.timeout(scaled(ci=300, prove=0))
def test_reads_beside_a_writer_of_another_process_miss_nothing(tmp_path: Path) -> None:
    table, ledger = create(str(tmp_path / "t"), sharding=TWO), Ledger(range(KEYS), None)
    child = start(_keyed_child, table.uri, SECONDS + 2)

    def said(seconds: float = 0.0) -> Iterator[tuple[Any, ...]]:
        with suppress(EOFError):  # it has said its last word
            while (message := child.receive(seconds)) is not None:
                yield message

    with Upkeep(table.uri) as upkeep:
        reads = _read_and_judge(table.uri, ledger, said)
    _take(ledger, said(60))
    assert child.wait(30) == 0
    assert upkeep.failures == []
    assert upkeep.compactions > 1
    assert reads["scan"] > 5
    now = time.monotonic()
    _judge(ledger, table.scan().to_table(), now, now, "in the end")


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
        reads, end = 0, time.monotonic() + SECONDS
        with Upkeep(table.uri) as upkeep:
            while time.monotonic() < end:
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
