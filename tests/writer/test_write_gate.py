"""The gate between writes and a change of columns: many writes or one change, and no interrupt that blocks it for ever."""

from __future__ import annotations

import threading
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.clock import SYSTEM_CLOCK
from lance_memwal.process.deadline import Deadline
from lance_memwal.write.gate import WriteGate
from tests.kit.interrupts import interrupted_everywhere
from tests.kit.writers import SHARD, WAL, Running, base_table, in_thread, rows, watched


def enter(gate: WriteGate, inside: threading.Event, leave: threading.Event) -> Running:
    def work() -> None:
        inside.set()
        assert leave.wait(30)

    running = in_thread(lambda: gate.let_in(work))
    assert inside.wait(30)
    return running


def close(gate: WriteGate, inside: threading.Event, leave: threading.Event) -> Running:
    def work() -> None:
        with gate.closed():
            inside.set()
            assert leave.wait(30)

    return in_thread(work)


def test_many_writes_pass_at_once_and_a_change_waits_for_the_last(tmp_path: Path) -> None:
    gate, leave, changing, done = WriteGate(), threading.Event(), threading.Event(), threading.Event()
    writes = [enter(gate, threading.Event(), leave) for _ in range(3)]
    change = close(gate, changing, done)
    late = in_thread(lambda: gate.let_in(lambda: None))
    assert not changing.wait(0.05)
    assert late.running, "a write passed a closed gate"
    leave.set()
    assert changing.wait(30)
    assert late.running
    done.set()
    for running in (*writes, change, late):
        running.result()


def test_changes_pass_one_by_one() -> None:
    gate, first, second, done = WriteGate(), threading.Event(), threading.Event(), threading.Event()
    one = close(gate, first, done)
    assert first.wait(30)
    two = close(gate, second, done)
    assert not second.wait(0.05)
    done.set()
    one.result()
    two.result()
    assert second.is_set()


def test_a_change_that_fails_opens_the_gate_again() -> None:
    gate = WriteGate()
    with pytest.raises(RuntimeError), gate.closed():
        raise RuntimeError
    assert gate.let_in(lambda: 1) == 1


def test_a_write_that_was_interrupted_anywhere_is_not_inside_any_more() -> None:
    """It was, until the same thread wrote again: changes of other threads waited until their deadline."""
    gate = WriteGate()

    def change() -> None:
        with gate.closed(Deadline(SYSTEM_CLOCK, 0.0)):
            pass

    def check(where: str) -> None:
        try:
            in_thread(change).result()
        except mw.UnavailableError as error:
            raise AssertionError(where) from error

    assert interrupted_everywhere(lambda: gate.let_in(lambda: None), check, "write/gate.py") > 3
    change()


def test_a_writer_moves_to_new_columns_while_others_write(tmp_path: Path) -> None:
    table = base_table(tmp_path / "t")
    stop = threading.Event()
    with table.shard_writer(SHARD, fsync=False) as writer:

        def work(thread: int) -> int:
            count = 0
            while not stop.is_set():
                writer.put(rows([1000 * thread + count], "x"), missing="null")
                count += 1
            return count

        threads = [in_thread(lambda t=t: work(t)) for t in range(3)]
        lance.dataset(table.uri).add_columns(pa.field("extra", pa.int64()))
        writer.evolve_schema()
        writer.put([{"id": 99_999, "v": "new", "extra": 5}])
        stop.set()
        counts = [thread.result() for thread in threads]
        assert writer.lsm_scan().count_rows() == sum(counts) + 1
        assert writer.get(99_999) == {"id": 99_999, "v": "new", "extra": 5}
    assert table.scan().count_rows() == sum(counts) + 1


def test_a_change_waits_for_a_write_that_is_under_way(tmp_path: Path) -> None:
    table = base_table(tmp_path / "t")
    store, location = watched(tmp_path / "t")
    with mw.ShardWriter.open(location, shard_id=SHARD, fsync=False) as writer:
        held = store.hold("put_new", WAL)
        put = in_thread(lambda: writer.put(rows([1])))
        held.wait_reached()
        lance.dataset(table.uri).add_columns(pa.field("extra", pa.int64()))
        moving = in_thread(writer.evolve_schema)
        assert put.running
        assert moving.running
        held.open()
        put.result()
        moving.result()
        assert "extra" in writer.schema.names
        assert writer.get(1) == {"id": 1, "v": "a", "extra": None}
