"""Writes of one process that share entries of a shared epoch: what they become, and what their callers get."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import crash_points
from lance_memwal.errors import UnavailableError
from lance_memwal.lance.base import BaseTable, NewestBase
from lance_memwal.log.reading import list_positions
from lance_memwal.log.tailer import WalTailer
from lance_memwal.memtable import live
from lance_memwal.read.reader import Reader
from lance_memwal.types import Transaction
from lance_memwal.write.append_queue import QueuedAppend
from lance_memwal.write.changes import Terms
from lance_memwal.write.once import OnceAppender
from lance_memwal.write.table_appender import TableAppender
from tests.harness.points import run_once_at
from tests.kit.interrupts import interrupted_everywhere
from tests.kit.lost_answers import ANSWERS, Answer, losing
from tests.kit.writers import hide_writers, in_thread, take_over_shared, wait_for, watched

SHARD = mw.shard_id_for(mw.Unsharded())
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
FAST = {"fsync": False}


@pytest.fixture(autouse=True)
def no_hooks() -> Iterator[None]:
    yield
    crash_points.install(None)


@pytest.fixture
def table(tmp_path: Path) -> Iterator[mw.Table]:
    with mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", writer_defaults=FAST) as made:
        yield made


def appender_of(table: mw.Table, location: Any = None) -> TableAppender:
    base = BaseTable.need(table.location)
    return TableAppender(OnceAppender(location or table.location, look_up=Reader(NewestBase(base)).stored_rows))


def rows(*numbers: int, v: str = "") -> list[pa.RecordBatch]:
    return [pa.record_batch([pa.array(numbers), pa.array([v] * len(numbers))], schema=SCHEMA)]


def queue(
    appender: TableAppender,
    batches: list[pa.RecordBatch],
    *,
    txn: tuple[str, int] | None = None,
    terms: Terms | None = None,
    guard: Callable[[int], None] | None = None,
) -> QueuedAppend:
    named = None if txn is None else Transaction(*txn)
    write = appender.appender.queued(batches, named, terms or Terms(), guard)
    appender.queue(SHARD, write)
    return write


def ids_of(table: mw.Table) -> list[int]:
    return sorted(table.to_arrow()["id"].to_pylist())


def entries_with_rows(table: mw.Table) -> list[Any]:
    tailer = WalTailer(table.location, SHARD)
    found = [tailer.read_entry(position) for position in list_positions(table.location, SHARD)]
    return [entry for entry in found if entry is not None and entry.num_rows]


# ------------------------------------------------------------------------------------------------------- one entry


def test_queued_writes_share_one_entry(table: mw.Table) -> None:
    appender = appender_of(table)
    writes = [queue(appender, rows(number)) for number in range(5)]
    assert appender.finish(SHARD, writes[2]).rows == 1
    assert [write.outcome().rows for write in writes] == [1] * 5
    (entry,) = entries_with_rows(table)
    assert (entry.num_rows, len(entry.batches)) == (5, 1)
    assert ids_of(table) == list(range(5))


def test_transactions_of_one_entry_name_their_own_rows(table: mw.Table) -> None:
    appender = appender_of(table)
    writes = [queue(appender, rows(2 * n, 2 * n + 1), txn=(f"app{n}", 7)) for n in range(3)]
    appender.finish(SHARD, writes[0])
    assert len(entries_with_rows(table)) == 1
    found = pa.Table.from_batches(list(table.changes(until="now"))).to_pylist()
    assert {row["id"]: row["_txn"]["app"] for row in found} == {n: f"app{n // 2}" for n in range(6)}
    assert set(table.transactions()[SHARD]) == {"app0", "app1", "app2"}
    again = [queue(appender, rows(2 * n, 2 * n + 1), txn=(f"app{n}", 7)) for n in range(3)]
    assert [appender.finish(SHARD, write).skipped for write in again] == [True] * 3


def test_versions_of_one_application_have_entries_of_their_own(table: mw.Table) -> None:
    appender = appender_of(table)
    writes = [queue(appender, rows(version), txn=("app", version)) for version in (1, 2, 3)]
    for write in writes:
        assert not appender.finish(SHARD, write).skipped
    assert len(entries_with_rows(table)) == 3
    assert ids_of(table) == [1, 2, 3]


def test_conditional_write_sees_the_writes_queued_before_it(table: mw.Table) -> None:
    appender = appender_of(table)
    first = queue(appender, rows(1, v="first"))
    second = queue(appender, rows(1, v="second"), terms=Terms(if_absent=True))
    third = queue(appender, rows(1, 2, v="third"), terms=Terms(if_absent=True))
    appender.finish(SHARD, third)
    assert [write.outcome().rows for write in (first, second, third)] == [1, 0, 1]
    assert table.get(1) == {"id": 1, "v": "first"}


def test_write_that_must_not_be_made_fails_alone(table: mw.Table) -> None:
    appender = appender_of(table)
    queue(appender, rows(0), txn=("app", 5))
    before = queue(appender, rows(1))
    older = queue(appender, rows(2), txn=("app", 4))

    def refuse(_: int) -> None:
        raise mw.ChangedKeysError("changed")

    guarded = queue(appender, rows(3), guard=refuse)
    after = queue(appender, rows(4))
    assert appender.finish(SHARD, after).rows == before.outcome().rows == 1
    for write, error in ((older, mw.InvalidInputError), (guarded, mw.ChangedKeysError)):
        with pytest.raises(error):
            appender.finish(SHARD, write)
    assert ids_of(table) == [0, 1, 4]


def test_entry_holds_at_most_the_rows_of_a_memtable(tmp_path: Path) -> None:
    defaults = {**FAST, "max_memtable_rows": 4}
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", writer_defaults=defaults)
    appender = appender_of(table)
    writes = [queue(appender, rows(2 * n, 2 * n + 1)) for n in range(5)]
    for write in writes:
        appender.finish(SHARD, write)
    assert [entry.num_rows for entry in entries_with_rows(table)] == [4, 4, 2]


# ------------------------------------------------------------------------------------------------------- in doubt


@pytest.mark.parametrize("answer", ANSWERS)
def test_lost_answer_of_a_shared_entry_doubles_no_row(table: mw.Table, answer: Answer) -> None:
    store, location = losing(table.uri, answer)
    appender = appender_of(table, location)
    appender.append(SHARD, rows(0))
    store.prefix = f"_mem_wal/{SHARD}/wal/"
    writes = [queue(appender, rows(1)), queue(appender, rows(2), txn=("app", 1))]
    ambiguous = []
    for write in writes:
        try:
            appender.finish(SHARD, write)
        except UnavailableError as error:
            ambiguous.append(error.ambiguous)
    assert ambiguous == ([True, True] if answer == "last error" else [])
    appender.append(SHARD, rows(2), txn=("app", 1))
    assert Counter(row["id"] for row in pa.Table.from_batches(list(table.changes(until="now"))).to_pylist()) == {
        0: 1,
        1: 1,
        2: 1,
    }


@pytest.mark.parametrize("collected", [False, True])
def test_entry_that_others_flushed_before_the_check_counts_once(table: mw.Table, collected: bool) -> None:
    appender, other = appender_of(table), appender_of(table)
    appender.append(SHARD, rows(0))

    def flush() -> None:
        assert other.flush(SHARD)
        if collected:
            table.gc(grace_seconds=0)

    writes = [queue(appender, rows(n)) for n in (1, 2)]
    ran = run_once_at("once.after_put", flush)
    assert [appender.finish(SHARD, write).rows for write in writes] == [1, 1]
    assert ran
    appender.append(SHARD, rows(3))
    assert table.count_rows() == sum(len(entry.batches[0]) for entry in entries_with_rows(table)) + (
        3 if collected else 0
    )
    assert ids_of(table) == [0, 1, 2, 3]


def test_entry_created_in_a_shard_that_was_taken_over_is_decided_by_the_map(table: mw.Table) -> None:
    appender = appender_of(table)
    appender.append(SHARD, rows(0))
    writers: list[mw.ShardWriter] = []
    ran = run_once_at("once.after_put", lambda: writers.append(table.shard_writer()))
    assert appender.append(SHARD, rows(1)).rows == 1
    assert ran
    with writers[0] as writer:
        writer.put({"id": 2, "v": ""})
    assert ids_of(table) == [0, 1, 2]


def test_interrupt_anywhere_in_a_shared_put_loses_and_doubles_nothing(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, writer_defaults=FAST)
    done: list[int] = []
    with table.writer(shared=True) as writer:
        writer.put({"id": 0, "v": ""})
        numbers = iter(range(1, 1_000_000))

        def put() -> None:
            number = next(numbers)
            writer.put({"id": number, "v": ""})
            done.append(number)

        def check(where: str) -> None:
            try:
                in_thread(put).result(20)
            except BaseException as error:
                raise AssertionError(where) from error

        traced = ("write/shared_shards.py", "write/table_appender.py", "write/once.py", "write/append_queue.py")
        assert interrupted_everywhere(put, check, *traced) > 50
    found = Counter(ids_of(table))
    assert set(done) <= set(found)
    assert max(found.values()) == 1


# --------------------------------------------------------------------------------------------- writers that share


def test_threads_put_side_by_side_and_all_rows_are_there(table: mw.Table) -> None:
    with table.writer(shared=True) as writer:

        def put(thread: int) -> None:
            for number in range(20):
                writer.put({"id": 100 * thread + number, "v": "x"})

        for call in [in_thread(lambda thread=thread: put(thread)) for thread in range(6)]:  # type: ignore[misc]
            call.result(60)
        stats = writer.stats()[SHARD]
    assert stats.put_count == 120
    assert 0 < stats.wal_flush_count <= 120
    assert table.count_rows() == 120


def test_put_nowait_is_durable_when_its_ack_says_so(table: mw.Table) -> None:
    with table.writer(shared=True) as writer:
        acks = [writer.put_nowait({"id": number, "v": "x"}) for number in range(4)]
        assert acks[-1].wait().written == 1
        wait_for(lambda: all(ack.durable for ack in acks))
        assert ids_of(table) == [0, 1, 2, 3]
        deleted = writer.delete_nowait([0])
    assert deleted.durable
    assert ids_of(table) == [1, 2, 3]
    with pytest.raises(mw.InvalidInputError, match="null"), table.writer(shared=True) as writer:
        writer.put_nowait({"id": None, "v": "x"})


def test_abort_drops_queued_rows_and_tells_their_acks(table: mw.Table) -> None:
    writer = table.writer(shared=True, commit_linger_ms=100)
    writer.put({"id": 0, "v": "x"})
    held, go_on = threading.Event(), threading.Event()

    def hold(point: str) -> None:
        if point == "once.before_put" and not held.is_set():
            held.set()
            go_on.wait(30)

    crash_points.install(hold)
    first = in_thread(lambda: writer.put({"id": 1, "v": "x"}))
    assert held.wait(30)
    ack = writer.put_nowait({"id": 2, "v": "x"})
    ending = in_thread(writer.abort)
    go_on.set()
    first.result(30)
    ending.result(30)
    if not ack.durable:  # the thread that appended the first row may have taken the second one along
        with pytest.raises(mw.ClosedError):
            ack.wait(5)
    assert ids_of(table) == ([0, 1, 2] if ack.durable else [0, 1])


def test_abort_leaves_the_queued_rows_of_other_writers(table: mw.Table) -> None:
    settings = {"commit_linger_ms": 100}
    with table.writer(shared=True, **settings) as staying:  # type: ignore[arg-type]
        staying.put({"id": 0, "v": ""})
        leaving = table.writer(shared=True, **settings)  # type: ignore[arg-type]
        leaving.put({"id": 1, "v": ""})
        ack = staying.put_nowait({"id": 2, "v": ""})
        leaving.abort()
        assert ack.wait().written == 1
    assert ids_of(table) == [0, 1, 2]


def test_queued_rows_survive_a_store_that_fails_for_a_while(table: mw.Table) -> None:
    store, location = watched(table.uri)
    writer = mw.open_table(location).writer(shared=True, compaction=None)
    writer.put({"id": 0, "v": ""})
    store.fail("put_new", "/wal/", times=2, error=lambda: UnavailableError("out of reach", ambiguous=False))
    ack = writer.put_nowait({"id": 1, "v": ""})
    wait_for(lambda: ack.durable)
    writer.close()
    assert ids_of(table) == [0, 1]


def test_wait_with_a_limit_can_be_repeated(table: mw.Table) -> None:
    with table.shard_writer() as owner, mw.open_table(table.uri) as other:
        owner.put({"id": 0, "v": ""})
        hidden = hide_writers(table)
        with other.writer(shared=True) as writer:
            ack = writer.put_nowait({"id": 1, "v": ""})
            with pytest.raises(mw.UnavailableError, match="wait again") as caught:
                ack.wait(0.2)
            assert caught.value.ambiguous
            for each in hidden:
                live.register(table.location.key, each)
            owner.close()
            assert ack.wait().written == 1
    assert ids_of(table) == [0, 1]


def test_rows_queued_beyond_the_memory_limit_are_written_by_their_caller(tmp_path: Path) -> None:
    defaults = {**FAST, "max_unflushed_memtable_bytes": 30_000}
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", writer_defaults=defaults)
    with table.writer(shared=True, compaction=None, commit_linger_ms=100) as writer:
        acks = [writer.put_nowait({"id": number, "v": "x" * 5_000}) for number in range(40)]
        assert sum(ack.durable for ack in acks) >= 20
    assert ids_of(table) == list(range(40))


def test_put_nowait_that_raises_leaves_nothing_in_the_queue(tmp_path: Path) -> None:
    defaults = {**FAST, "max_unflushed_memtable_bytes": 1_000}
    made = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", writer_defaults=defaults)
    store, location = watched(made.uri)
    with mw.open_table(location).writer(shared=True, compaction=None) as writer:
        writer.put({"id": 0, "v": ""})
        rule = store.fail("put_new", "/wal/", error=lambda: UnavailableError("out of reach", ambiguous=False))
        with pytest.raises(UnavailableError):
            writer.put_nowait({"id": 1, "v": "x" * 5_000})
        rule.open()
    assert ids_of(made) == [0]


def test_tail_that_reaches_the_memory_limit_is_flushed_by_its_writer(tmp_path: Path) -> None:
    defaults = {**FAST, "max_unflushed_memtable_bytes": 20_000}
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", writer_defaults=defaults)
    with table.writer(shared=True, compaction=None) as writer:
        for number in range(30):
            writer.put({"id": number, "v": "x" * 2_000})
        assert len(table.shards()[0].generations) >= 2
    assert ids_of(table) == list(range(30))


@pytest.mark.parametrize(("puts", "generations"), [(3, 0), (12, 1)])
def test_close_publishes_long_tails_only(table: mw.Table, puts: int, generations: int) -> None:
    with table.writer(shared=True) as writer:
        for number in range(puts):
            writer.put({"id": number, "v": "x"})
    assert len(table.shards()[0].generations) == generations
    assert table.count_rows() == puts


def test_writes_that_return_before_they_are_durable_need_an_exclusive_writer(table: mw.Table) -> None:
    for settings in ({"durable_write": False}, {"config": mw.WriterConfig(durable_write=False)}):
        with pytest.raises(mw.InvalidInputError, match="put_nowait"):
            table.writer(shared=True, **settings)


# ------------------------------------------------------------------------------------------ beside exclusive writers


def test_verbs_go_through_the_exclusive_writer_of_this_process(table: mw.Table) -> None:
    with table.writer() as writer:
        writer.put({"id": 1, "v": "a"})
        assert table.update(where="id = 1", values={"v": "b"}).matched == 1
        assert table.insert({"id": 2, "v": "c"}).written == 1
        assert table.compare_and_set(2, {"id": 2, "v": "c"}, {"id": 2, "v": "d"})
        with pytest.raises(mw.InvalidInputError):
            table.insert({"id": 2, "v": "e"})
        assert writer.get(1) == {"id": 1, "v": "b"}
        assert live.all_of(table.location.key)[0].epoch == table.shards()[0].epoch == 1
    assert table.get(2) == {"id": 2, "v": "d"}


def test_idle_exclusive_writer_claims_its_shard_again_once_a_minute(table: mw.Table) -> None:
    with table.writer() as writer:
        writer.put({"id": 0, "v": ""})
        take_over_shared(table, rows(1)[0])
        writer.put({"id": 2, "v": ""})
        take_over_shared(table, rows(3)[0])
        with pytest.raises(mw.FencedError):
            writer.put({"id": 4, "v": ""})
        writer.abort()
    assert ids_of(table) == [0, 1, 2, 3]


def test_exclusive_writer_that_another_one_fenced_never_claims_again(table: mw.Table) -> None:
    writer = table.writer()
    writer.put({"id": 0, "v": ""})
    with mw.open_table(table.uri).writer() as newer:
        newer.put({"id": 1, "v": ""})
    table.put({"id": 2, "v": ""})  # the epoch of the newer writer is shared now
    with pytest.raises(mw.FencedError):
        writer.put({"id": 3, "v": ""})
    writer.abort()
    assert ids_of(table) == [0, 1, 2]
