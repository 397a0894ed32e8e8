"""No call waits for ever for other work of the same process: it gives up with an error that says what to do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.clock import SystemClock
from lance_memwal.process.deadline import PATIENCE_SECONDS
from lance_memwal.write.gate import WriteGate
from tests.kit.writers import (
    BLOOM,
    MANIFEST,
    SHARD,
    WAL,
    Running,
    base_table,
    contents,
    everything,
    in_thread,
    open_writer,
    rows,
    wait_for,
    watched,
)


class HurryingClock(SystemClock):
    """A clock that skips time, or runs a thousand times as fast, once a test says so."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._skipped = 0.0

    def monotonic(self) -> float:
        now = super().monotonic()
        return now + self._skipped + (0 if self._since is None else 1000 * (now - self._since))

    def skip(self, seconds: float) -> None:
        self._skipped += seconds

    def hurry(self) -> None:
        self._since = super().monotonic()


def gives_up(clock: HurryingClock, call: Running, match: str) -> None:
    """Let all patience pass: `call`, which waits, raises."""
    assert call.running
    clock.hurry()
    with pytest.raises(mw.UnavailableError, match=match):
        call.result()


def test_a_close_whose_flush_hangs_gives_up_and_the_next_open_has_the_rows(tmp_path: Path) -> None:
    base_table(tmp_path / "t")
    store, location = watched(tmp_path / "t")
    clock = HurryingClock()
    writer = mw.ShardWriter.open(location, shard_id=SHARD, fsync=False, clock=clock)
    writer.put(rows([1, 2]))
    held = store.hold("put_new", MANIFEST)
    closing = in_thread(writer.close)
    held.wait_reached()
    second = in_thread(writer.close)
    gives_up(clock, closing, "1 memtables .* were not flushed.*the next open replays them")
    with pytest.raises(mw.UnavailableError, match="another thread was still closing"):
        second.result()
    assert writer.closed
    writer.close()
    held.open()
    assert contents(mw.open_table(str(tmp_path / "t")).scan().to_table()) == {1: "a", 2: "a"}


def test_a_change_of_columns_whose_flush_hangs_gives_up_and_the_writer_goes_on(tmp_path: Path) -> None:
    table = base_table(tmp_path / "t")
    store, location = watched(tmp_path / "t")
    clock = HurryingClock()
    with mw.ShardWriter.open(location, shard_id=SHARD, fsync=False, clock=clock) as writer:
        writer.put(rows([1]))
        lance.dataset(table.uri).add_columns(pa.field("extra", pa.int64()))
        held = store.hold("put_new", MANIFEST)
        moving = in_thread(writer.evolve_schema)
        held.wait_reached()
        gives_up(clock, moving, "1 memtables .* were not flushed; the writer goes on with its old columns")
        assert "extra" not in writer.schema.names
        held.open()
        writer.put(rows([2]), missing="null")
        writer.evolve_schema()
        assert "extra" in writer.schema.names
        assert contents(writer.lsm_scan(columns=["id", "v"]).to_table()) == {1: "a", 2: "a"}


def test_a_change_of_columns_gives_up_on_a_write_that_hangs(tmp_path: Path) -> None:
    table = base_table(tmp_path / "t")
    store, location = watched(tmp_path / "t")
    clock = HurryingClock()
    with mw.ShardWriter.open(location, shard_id=SHARD, fsync=False, clock=clock) as writer:
        lance.dataset(table.uri).add_columns(pa.field("extra", pa.int64()))
        held = store.hold("put_new", WAL)
        put = in_thread(lambda: writer.put(rows([1]), missing="null"))
        held.wait_reached()
        gives_up(clock, in_thread(writer.evolve_schema), "a write that began before has not ended")
        held.open()
        put.result()
        writer.put(rows([2]), missing="null")  # the gate is open again
        writer.evolve_schema()
        assert writer.get(2) == {"id": 2, "v": "a", "extra": None}


def waiting_write(gate: WriteGate) -> Running:
    return in_thread(lambda: gate.let_in(lambda: None))


def waiting_change(gate: WriteGate) -> Running:
    def change() -> None:
        with gate.closed():
            pass

    return in_thread(change)


@pytest.mark.parametrize("wait", [waiting_write, waiting_change])
def test_nobody_waits_for_ever_at_a_gate_that_is_closed(wait: Callable[[WriteGate], Running]) -> None:
    clock, leave = HurryingClock(), threading.Event()
    gate = WriteGate(clock)
    with gate.closed():
        gives_up(clock, wait(gate), "still being moved or parked")
    leave.set()
    wait(gate).result()


@pytest.mark.parametrize("durable_write", [True, False])
def test_a_put_that_waits_for_room_gives_up_on_a_flush_that_hangs(tmp_path: Path, durable_write: bool) -> None:
    store, location = watched(tmp_path)
    clock = HurryingClock()
    with open_writer(location, clock=clock, max_unflushed_memtable_bytes=1000, durable_write=durable_write) as writer:
        writer.put(rows(range(100)))
        held = store.hold("put_new", MANIFEST)
        waiting = in_thread(lambda: writer.put(rows([1000])))
        held.wait_reached()  # the waiting put froze the memtable
        gives_up(clock, waiting, "nothing of shard .* was flushed.*nothing of it was written, retry")
        held.open()
        writer.put(rows([2000]))
        assert {1000, 2000} & set(everything(writer, tmp_path)) == {2000}


def test_a_put_waits_for_room_for_as_long_as_flushes_go_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, location = watched(tmp_path)
    clock = HurryingClock()
    limits = {"max_unflushed_memtable_bytes": 20_000, "backpressure_log_interval_ms": 10}
    with open_writer(location, clock=clock, **limits) as writer:
        flushes = [store.hold("put_new", MANIFEST)]
        for ids in (range(10), range(10, 5000)):  # each finds room, and the second fills more than there is
            writer.put(rows(ids))
            writer.force_seal_active()
        waiting = in_thread(lambda: writer.put(rows([9000])))
        for _ in range(2):
            flushes[-1].wait_reached()
            clock.skip(PATIENCE_SECONDS * 2 / 3)
            looks = len(caplog.records) + 2
            wait_for(lambda looks=looks: len(caplog.records) > looks or not waiting.running)
            flushes.append(store.hold("put_new", MANIFEST))
            flushes[-2].open()
        flushes[-1].open()
        waiting.result()
        assert 9000 in everything(writer, tmp_path)


LARGE = {"max_entry_bytes": 4000}


def test_a_large_put_gives_up_on_a_flush_that_hangs_and_lets_others_in(tmp_path: Path) -> None:
    """It waited for ever for what came before it, and kept all other puts out."""
    store, location = watched(tmp_path)
    clock = HurryingClock()
    with open_writer(location, clock=clock, **LARGE) as writer:
        writer.put(rows([1]))
        held = store.hold("put_new", MANIFEST)
        large = in_thread(lambda: writer.put(rows(range(100, 1000))))
        held.wait_reached()
        gives_up(clock, large, "1 memtables .* were not flushed; nothing of the put was written")
        writer.put(rows([2]))
        held.open()
        writer.put(rows(range(100, 1000)))
        assert len(everything(writer, tmp_path)) == 902


def test_a_large_put_gives_up_on_another_one_that_hangs(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    clock = HurryingClock()
    with open_writer(location, clock=clock, **LARGE) as writer:
        held = store.hold("put", BLOOM)
        first = in_thread(lambda: writer.put(rows(range(100, 1000))))
        held.wait_reached()
        gives_up(clock, in_thread(lambda: writer.put(rows(range(2000, 3000)))), "another large put has not ended")
        held.open()
        first.result()
        writer.put(rows(range(2000, 3000)))
        assert len(everything(writer, tmp_path)) == 1900
