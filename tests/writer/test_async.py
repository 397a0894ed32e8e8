"""Waiting without a thread: `put_nowait` and its `Ack`, and writers in event loops, where each caller gets its own result."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import Ack, ClosedError, FencedError, UnavailableError, WriterPoisonedError
from lance_memwal.process.aio import Together
from lance_memwal.write.writes import InsertedRows
from tests.harness.profile import profile
from tests.kit.tables import create
from tests.kit.writers import (
    MANIFEST,
    SECONDS,
    WAL,
    flushed,
    in_thread,
    open_writer,
    positions_of,
    row_entries,
    rows,
    scanned,
    wait_for,
    watched,
)


@pytest.mark.parametrize("durable", [True, False])
def test_put_nowait_becomes_durable_in_the_background(tmp_path: Path, durable: bool) -> None:
    store, location = watched(tmp_path)
    with open_writer(location, durable_write=durable, max_wal_flush_interval_ms=None) as writer:
        held = store.hold("put_new", WAL)
        ack = writer.put_nowait(rows([1]))
        held.wait_reached()  # although nobody waits for the ack
        assert not ack.durable
        assert repr(ack) == "Ack(durable=False)"
        assert scanned(writer) == ({} if durable else {1: "a"})
        held.open()
        ack.wait(timeout=30)
        assert ack.durable
        assert scanned(writer) == {1: "a"}
        ack.wait()
        ack.wait(timeout=0)


def test_waiting_ends_with_its_deadline_and_can_be_repeated(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    with open_writer(location) as writer:
        held = store.hold("put_new", WAL)
        ack = writer.put_nowait(rows([1]))
        for timeout in (0, 0.02):
            with pytest.raises(UnavailableError, match="not durable within") as caught:
                ack.wait(timeout)
            assert caught.value.retryable
        held.open()
        ack.wait()


@pytest.mark.parametrize(
    ("end", "error"), [("failed", WriterPoisonedError), ("fenced", FencedError), ("aborted", ClosedError)]
)
def test_waiting_raises_what_prevented_durability(tmp_path: Path, end: str, error: type[Exception]) -> None:
    store, location = watched(tmp_path)
    writer = open_writer(location, durable_write=False, max_wal_flush_interval_ms=None, max_wal_persist_retries=0)
    ack = Ack([InsertedRows(writer._shard.commits, writer.put(rows([1])), 1)])
    if end == "failed":
        store.fail("put_new", WAL)
    elif end == "fenced":
        open_writer(tmp_path).abort()
    else:
        writer.abort()
    for wait in (lambda: ack.wait(timeout=30), ack.wait):
        with pytest.raises(error):
            in_thread(wait).result()
    assert not ack.durable
    writer.abort()


def test_an_ack_that_was_durable_stays_durable_after_close(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    ack = writer.put_nowait(rows([1]))
    writer.close()
    assert ack.durable
    ack.wait()
    assert writer.stats().put_count == 1


def test_a_flood_of_put_nowait_is_drained_in_few_entries(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        acks = [writer.put_nowait(rows([k])) for k in range(3000)]
        acks[-1].wait(timeout=60)
        assert all(ack.durable for ack in acks)
        assert len(row_entries(tmp_path)) < 1500
        assert len(scanned(writer)) == 3000


def test_a_large_put_nowait_is_published_before_it_returns(tmp_path: Path) -> None:
    with open_writer(tmp_path, max_entry_bytes=1000) as writer:
        ack = writer.put_nowait(rows(range(1000)))
        assert ack.durable
        assert len(flushed(tmp_path)[1]) == 1000


def test_waiting_is_not_told_of_a_flush_that_fails(tmp_path: Path) -> None:
    """It was told that nothing happened, of a write that was on its way into the log."""
    store, location = watched(tmp_path)
    writer = open_writer(location)
    writer.put(rows([1]))
    store.fail("put_new", MANIFEST, error=lambda: UnavailableError("no manifests today", ambiguous=False))
    writer.force_seal_active()
    with pytest.raises(UnavailableError, match="no manifests"):
        writer.wait_for_flush_drain(SECONDS)  # after a few failures
    held = store.hold("put_new", WAL)
    ack = writer.put_nowait(rows([2]))
    held.wait_reached()
    waiting = in_thread(lambda: ack.wait(timeout=SECONDS))
    waiting.wait(0.1)
    assert waiting.running
    held.open()
    waiting.result()
    writer.abort()


def test_waiting_is_told_of_an_abort_only_if_the_write_is_not_in_the_log(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    writer = open_writer(location)
    held = store.hold("put_new", WAL)
    ack = writer.put_nowait(rows([1]))
    held.wait_reached()  # its entry is on its way
    waiting, aborting = in_thread(lambda: ack.wait(timeout=SECONDS)), in_thread(writer.abort)
    waiting.wait(0.1)
    assert waiting.running
    held.open()
    waiting.result()
    aborting.result()
    assert len(row_entries(tmp_path)) == 1


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, SECONDS))


def row(number: int) -> dict[str, Any]:
    return {"id": number, "v": 1, "s": "a"}


def test_puts_of_many_tasks_are_durable_and_share_entries(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_writer(tmp_path) as writer:
            results = await asyncio.gather(*(writer.aio.put(rows([n])) for n in range(300)))
            assert sorted(positions_of(result).start for result in results) == list(range(300))
            assert all(result.written == 1 and not result.skipped for result in results)
            assert len(row_entries(tmp_path)) <= 3
            assert len(scanned(writer)) == 300

    run(work())


def test_a_table_writer_routes_them_and_its_acknowledgement_can_be_awaited(tmp_path: Path) -> None:
    async def work() -> None:
        table = create(str(tmp_path / "t"), sharding=mw.Bucket("id", 4))
        async with table.writer(fsync=False) as writer:
            results = await asyncio.gather(*(writer.aio.put(row(n)) for n in range(40)))
            assert sum(result.written for result in results) == 40
            await asyncio.gather(*(writer.aio.delete(n) for n in range(10)))
            assert (await writer.aio.delete(range(20), count=True)).matched == 10
            ack = writer.put_nowait(row(1))
            await ack
            assert (ack.durable, ack.wait().written) == (True, 1)
        assert table.count_rows() == 21

    run(work())


def test_what_is_wrong_with_one_put_is_raised_in_its_own_task(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_writer(tmp_path) as writer:
            calls = [writer.aio.put(rows([1])), writer.aio.put({"nothing": [1]}), writer.aio.put(rows([2]))]
            found = await asyncio.gather(*calls, return_exceptions=True)
            assert isinstance(found[1], mw.InvalidInputError)
            assert [type(result) for result in found[::2]] == [mw.WriteResult] * 2
            assert scanned(writer) == {1: "a", 2: "a"}

    run(work())


class PanicException(BaseException):
    """As native code raises it: no `Exception`."""


def test_a_call_in_which_native_code_panics_leaves_no_task_waiting() -> None:
    class Done:
        def wait(self) -> Any:
            return "written"

    class Lost(Done):
        def wait(self) -> None:
            raise PanicException("at the end")

    def panics() -> Done:
        raise PanicException("at the start")

    async def work() -> None:
        together = Together()
        queued = [together.write(begin) for begin in (Done, panics, Lost, Done)]
        found = await asyncio.wait_for(asyncio.gather(*queued, return_exceptions=True), SECONDS)
        assert [str(each) for each in found] == ["written", "at the start", "at the end", "written"]

    run(work())


def test_transactions_and_conditions_take_the_same_way(tmp_path: Path) -> None:
    async def work() -> None:
        table = create(str(tmp_path / "t"))
        async with table.writer(fsync=False) as writer:
            assert not (await writer.aio.put(row(1), txn=("app", 1))).skipped
            assert (await writer.aio.put(row(1), txn=("app", 1))).skipped
            assert (await writer.aio.put(row(1), if_absent=True)).written == 0
            await writer.aio.put({"id": 1, "v": 7}, missing="keep")
            assert await table.aio.get(1) == {"id": 1, "v": 7, "s": "a"}

    run(work())


def test_a_loop_goes_on_while_storage_stands_still(tmp_path: Path) -> None:
    store, location = watched(tmp_path)

    async def work() -> None:
        async with open_writer(location) as writer:
            held = store.hold("put_new", WAL)
            putting = [asyncio.create_task(writer.aio.put(rows([n]))) for n in range(20)]
            while not held.reached.is_set():
                await asyncio.sleep(0.001)
            for _ in range(20):
                await asyncio.sleep(0.001)
            putting.append(asyncio.create_task(writer.aio.put(rows([20]))))
            await asyncio.sleep(0)
            assert not any(task.done() for task in putting)
            held.open()
            await asyncio.gather(*putting)
            assert len(scanned(writer)) == 21

    run(work())


def test_a_put_that_waits_for_room_does_not_stop_the_loop(tmp_path: Path) -> None:
    store, location = watched(tmp_path)

    async def work() -> None:
        small = {"max_memtable_size": 2_000, "max_unflushed_memtable_bytes": 4_000}
        async with open_writer(location, **small) as writer:
            held = store.hold("put_new", "manifest")
            putting = [asyncio.create_task(writer.aio.put(rows(range(50 * n, 50 * n + 50)))) for n in range(40)]
            while writer.backpressure_stats().total_count == 0:
                await asyncio.sleep(0.001)
            assert not all(task.done() for task in putting)
            held.open()
            await asyncio.gather(*putting)
            assert writer.stats().put_count == 40

    run(work())


def test_a_task_that_is_cancelled_does_not_take_its_put_back(tmp_path: Path) -> None:
    store, location = watched(tmp_path)

    async def work() -> None:
        async with open_writer(location) as writer:
            held = store.hold("put_new", WAL)
            first, second = (asyncio.create_task(writer.aio.put(rows([n]))) for n in (1, 2))
            while not held.reached.is_set():
                await asyncio.sleep(0.001)
            first.cancel()
            held.open()
            await second
            assert first.cancelled()
            assert scanned(writer) == {1: "a", 2: "a"}

    run(work())


@pytest.mark.parametrize(("end", "error"), [("close", ClosedError), ("abort", ClosedError), ("takeover", FencedError)])
def test_tasks_of_a_writer_that_ended_raise(tmp_path: Path, end: str, error: type[Exception]) -> None:
    async def work() -> None:
        writer = open_writer(tmp_path)
        await writer.aio.put(rows([1]))
        if end == "takeover":
            open_writer(tmp_path).abort()
        else:
            getattr(writer, end)()
        found = await asyncio.gather(*(writer.aio.put(rows([n])) for n in (2, 3)), return_exceptions=True)
        assert [type(each) for each in found] == [error] * 2
        writer.abort()

    run(work())
    with open_writer(tmp_path) as writer:
        assert not {2, 3} & scanned(writer).keys()


def test_a_writer_that_is_closed_while_tasks_wait_leaves_none_waiting(tmp_path: Path) -> None:
    store, location = watched(tmp_path)

    async def work() -> None:
        writer = open_writer(location)
        held = store.hold("put_new", WAL)
        first = asyncio.create_task(writer.aio.put(rows([1])))
        while not held.reached.is_set():
            await asyncio.sleep(0.001)
        queued = [asyncio.create_task(writer.aio.put(rows([n]))) for n in (2, 3)]
        await asyncio.sleep(0.01)
        closing = asyncio.create_task(writer.aio.close())
        held.open()
        await asyncio.gather(first, closing)
        found = await asyncio.gather(*queued, return_exceptions=True)
        assert {type(each) for each in found} <= {ClosedError, mw.WriteResult}

    run(work())


def test_two_loops_share_a_writer(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:

        async def work(first: int) -> None:
            for step in range(20):
                await asyncio.gather(*(writer.aio.put(rows([first + 10 * step + n])) for n in range(10)))

        threads = [in_thread(partial(run, work(1_000 * number))) for number in range(2)]
        for thread in threads:
            thread.result(SECONDS)
        assert len(scanned(writer)) == 400


def test_a_loop_that_ended_before_its_put_did_is_no_trouble(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    with open_writer(location) as writer:
        held = store.hold("put_new", WAL)

        async def leave() -> None:
            task = asyncio.create_task(writer.aio.put(rows([1])))
            while not held.reached.is_set():
                await asyncio.sleep(0.001)
            task.cancel()

        run(leave())
        held.open()
        wait_for(lambda: scanned(writer) == {1: "a"})
        run(writer.aio.put(rows([2])))


def test_a_put_that_a_closed_loop_left_behind_does_not_undo_a_later_one(tmp_path: Path) -> None:
    left: list[Any] = []

    async def leave() -> None:
        left.append(asyncio.ensure_future(writer.aio.put(rows([1], "old"))))

    with open_writer(tmp_path) as writer:
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)  # which is told of a task that nobody waits for
        loop.run_until_complete(leave())  # it ends in the turn in which the put is queued
        loop.close()
        writer.put(rows([1], "new"))
        run(writer.aio.put(rows([2], "new")))
        assert scanned(writer) == {1: "new", 2: "new"}


def test_reads_have_an_async_form(tmp_path: Path) -> None:
    async def work() -> None:
        schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("vec", pa.list_(pa.float32(), 2))])
        table = mw.create_table(str(tmp_path / "t"), schema, primary_key="id")
        async with table.writer(fsync=False) as writer:
            await writer.aio.put([{"id": n, "vec": [float(n), 0.0]} for n in range(5)])
            assert (await table.aio.lookup([1, 2])).num_rows == 2
            assert (await table.aio.search(vector=[3.1, 0.0], k=1))["id"].to_pylist() == [3]
            assert (await table.aio.scan(filter="id > 2")).num_rows == 2
            assert [
                row async for batch in table.aio.scan(order_by=["id"], limit=2) for row in batch["id"].to_pylist()
            ] == [0, 1]
            with pytest.raises(mw.InvalidInputError):
                await table.aio.scan(["nothing"])

    run(work())


@pytest.mark.scaled
def test_a_loop_with_many_tasks_keeps_its_beat(tmp_path: Path) -> None:
    """At full size: 1,000 tasks, 10,000 puts, the loop's latency p99 below 10 ms and at most 50 ms.

    What was imported is kept out of full garbage collections, as the how-to says: they would be the longest pauses.
    """
    tasks, puts, late = (1_000, 10, 0.01) if profile() == "prove" else (100, 5, 0.1)
    beats: list[float] = []

    async def beat() -> None:
        while True:
            started = time.perf_counter()
            await asyncio.sleep(0.001)
            beats.append(time.perf_counter() - started - 0.001)

    async def work() -> None:
        table = create(str(tmp_path / "t"))
        async with table.writer() as writer:
            await writer.aio.put(row(-1))
            gc.collect()
            gc.freeze()

            async def one(number: int) -> None:
                for step in range(puts):
                    await writer.aio.put(row(puts * number + step))

            beating = asyncio.create_task(beat())
            await asyncio.gather(*map(one, range(tasks)))
            beating.cancel()
        assert table.count_rows() == tasks * puts + 1

    try:
        run(work())
    finally:
        gc.unfreeze()
    beats.sort()
    assert beats[int(len(beats) * 0.99)] < late
    assert beats[-1] < 5 * late


def test_calls_that_wait_have_threads_of_their_own_and_not_those_of_the_event_loop(tmp_path: Path) -> None:
    table, held = create(str(tmp_path / "t")), threading.Event()

    async def main() -> None:
        with ThreadPoolExecutor(1) as default, table.writer(shared=True) as writer:
            asyncio.get_running_loop().set_default_executor(default)
            default.submit(held.wait)  # whatever else the program does there
            try:
                puts = [writer.aio.put([row(n)]) for n in range(40)]
                async with asyncio.timeout(30):
                    await asyncio.gather(*puts)
                    await writer.aio.delete([0], count=True)
            finally:
                held.set()
            names = [thread.name for thread in threading.enumerate() if thread.name.startswith("memwal-async")]
            assert 0 < len(names) <= 16

    asyncio.run(main())
    assert len(table) == 39
