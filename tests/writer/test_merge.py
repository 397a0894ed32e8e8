"""Tables that say what a later write of a key does: `LastWrite` and `FirstRow`."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.shard_writer import park
from lance_memwal.store import paths
from lance_memwal.write.once import OnceAppender
from lance_memwal.write.sequences import HighestSequence
from tests.harness.shard_audit import peer_rows
from tests.kit.writers import SECONDS, SHARD, in_thread, in_threads, watched

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string()), ("ts", pa.int64())])
LAST = mw.LastWrite(sequence="ts")


def row(key: int, ts: int | None, v: str = "a") -> dict[str, Any]:
    return {"id": key, "v": v, "ts": ts}


def make(place: Path, merge: Any = LAST, kind: pa.DataType | None = None, **options: Any) -> mw.Table:
    """A table whose sequence is of `kind`."""
    schema = SCHEMA.set(2, pa.field("ts", kind)) if kind else SCHEMA
    return mw.create_table(
        str(place), schema, primary_key="id", merge=merge, writer_defaults={"fsync": False}, **options
    )


def contents(table: mw.Table | mw.TableWriter) -> dict[int, tuple[str, int]]:
    return {item["id"]: (item["v"], item["ts"]) for item in table.scan().to_table().to_pylist()}


Step = Callable[[mw.Table, mw.TableWriter], None]


def nothing(_: mw.Table, __: mw.TableWriter) -> None:
    """Everything stays in memory."""


def flush(_: mw.Table, writer: mw.TableWriter) -> None:
    writer.flush(SECONDS)


def compact(table: mw.Table, writer: mw.TableWriter) -> None:
    writer.flush(SECONDS)
    table.compact()


def collect(table: mw.Table, writer: mw.TableWriter) -> None:
    compact(table, writer)
    table.gc(grace_seconds=0)


@pytest.mark.parametrize("move", [nothing, flush, compact, collect])
def test_a_late_row_or_delete_changes_nothing_in_any_tier(tmp_path: Path, move: Step) -> None:
    table = make(tmp_path / "t")
    with table.writer(compaction=None) as writer:
        assert writer.put([row(1, 10), row(2, 10), row(3, 10), row(4, 10)]).written == 4
        assert writer.delete([2], sequence=20).written == 1
        assert writer.delete({"id": [3], "ts": [30]}).written == 1
        move(table, writer)
        late = writer.put([row(1, 9, "late"), row(2, 19, "late"), row(3, 29, "late"), row(4, 11, "new"), row(5, 1)])
        assert (late.written, late.rejected.column("id").to_pylist()) == (2, [1, 2, 3])
        deleted = writer.delete([{"id": 1, "ts": 9}, {"id": 4, "ts": 11}], count=True)
        assert (deleted.written, deleted.matched, deleted.rejected.column("id").to_pylist()) == (1, 1, [1])
        move(table, writer)
        assert writer.put([row(2, 20, "equal"), row(3, 31, "later"), row(4, 10, "late")]).written == 2
        assert contents(writer) == {1: ("a", 10), 2: ("equal", 20), 3: ("later", 31), 5: ("a", 1)}
    with table.writer(compaction=None) as writer:
        assert writer.put([row(4, 10, "late"), row(1, 9, "late")]).written == 0
    assert contents(table) == {1: ("a", 10), 2: ("equal", 20), 3: ("later", 31), 5: ("a", 1)}


EVENTS = [
    ("put", 1, 1),
    ("put", 1, 3),
    ("delete", 1, 2),
    ("put", 2, 5),
    ("delete", 2, 6),
    ("put", 3, 4),
    ("delete", 1, 5),
]


def apply(writer: mw.TableWriter, event: tuple[str, int, int]) -> None:
    kind, key, ts = event
    if kind == "put":
        writer.put([row(key, ts, f"v{ts}")])
    else:
        writer.delete([key], sequence=ts)


def expected(events: list[tuple[str, int, int]]) -> dict[int, tuple[str, int]]:
    newest = {key: max((ts, kind) for kind, k, ts in events if k == key) for key in {key for _, key, _ in events}}
    return {key: (f"v{ts}", ts) for key, (ts, kind) in newest.items() if kind == "put"}


@pytest.mark.parametrize("seed", range(6))
def test_any_order_of_arrival_gives_the_same_table(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    events = [
        (draw.choice(["put", "put", "delete"]), draw.randrange(6), ts) for ts in draw.sample(range(1000), 40)
    ]  # no two events of a key have the same sequence
    wanted = expected(events)
    for order in range(2):
        draw.shuffle(events)
        table = make(tmp_path / str(order))
        writer = table.writer(compaction=None)
        for event in events:
            apply(writer, event)
            step = draw.randrange(12)
            if step in (0, 1):
                (flush if step else compact)(table, writer)
            elif step == 2:
                writer.close() if draw.random() < 0.5 else writer.abort()
                writer = table.writer(compaction=None)
        assert contents(writer) == wanted
        writer.close()
        assert contents(table) == wanted
        (shard,) = table.shards()
        peer = peer_rows(str(tmp_path / str(order)), shard.shard_id).to_pylist()
        assert {item["id"]: (item["v"], item["ts"]) for item in peer} == wanted, "pylance reads the same"


def test_all_orders_of_a_few_events_give_the_same_table(tmp_path: Path) -> None:
    wanted, table = expected(EVENTS), make(tmp_path / "t")
    with table.writer(compaction=None) as writer:
        for number, order in enumerate(itertools.islice(itertools.permutations(EVENTS), 0, None, 97)):
            for kind, key, ts in order:
                apply(writer, (kind, 10 * number + key, ts))
            found = {key - 10 * number: value for key, value in contents(writer).items() if key >= 10 * number}
            assert found == wanted, order


def test_rows_of_one_put_are_ordered_and_a_late_transaction_leaves_no_mark(tmp_path: Path) -> None:
    with make(tmp_path / "t").writer() as writer:
        result = writer.put(
            [row(1, 5), row(1, 3, "late"), row(2, 1), row(1, 4, "late"), row(1, 6, "b"), row(2, 0, "late")]
        )
        assert (result.written, result.rejected.column("id").to_pylist()) == (3, [1, 1, 2])
        assert contents(writer) == {1: ("b", 6), 2: ("a", 1)}
        assert writer.put([row(1, 10)], txn=("app", 1)).written == 1
        assert writer.put([row(1, 10)], txn=("app", 1)).skipped
        assert not writer.put([row(1, 9)], txn=("app", 2)).skipped
        assert writer.put([row(1, 11)], txn=("app", 2)).written == 1


@pytest.mark.parametrize("forget", [False, True])
def test_deletes_are_remembered_until_their_time_is_over(tmp_path: Path, forget: bool) -> None:
    table = make(tmp_path / "t", mw.LastWrite(sequence="ts", remember_deletes=timedelta(0)) if forget else LAST)
    with table.writer(compaction=None) as writer:
        writer.put([row(1, 10)])
        writer.delete([1], sequence=20)
        assert writer.put([row(1, 15, "late")]).written == 0, "the tombstone itself is not compacted yet"
        (shard_id,) = writer.shard_writers
        compact(table, writer)
        assert len(table.location.store.list(paths.deletes_dir(shard_id))) == 1
        table.gc(grace_seconds=0)
        if forget:
            assert table.location.store.list(paths.deletes_dir(shard_id)) == []
        else:
            for number in range(2, 6):
                writer.put([row(number, 1)])
                collect(table, writer)
            assert table.verify().ok
        assert writer.put([row(1, 15, "late or new")]).written == forget


def test_partial_and_conditional_writes_keep_to_the_order(tmp_path: Path) -> None:
    with make(tmp_path / "t").writer() as writer:
        writer.put([row(1, 10), row(2, 10)])
        assert writer.update([{"id": 1, "v": "b"}]).written == 1, "it keeps the sequence"
        assert writer.update([{"id": 1, "v": "late", "ts": 9}]).written == 0
        assert not writer.compare_and_set(1, row(1, 10, "b"), row(1, 9, "late"))
        assert writer.compare_and_set(1, row(1, 10, "b"), row(1, 12, "c"))
        assert writer.update(where="id = 2", set={"v": "'w'", "ts": "ts + 5"}).matched == 1
        assert writer.update(where="id = 2", set={"ts": "ts - 5"}).written == 0
        assert writer.put([row(1, 13, "d"), row(1, 12, "late")], where="v = 'c' or excluded.v = 'late'").written == 1
        assert contents(writer) == {1: ("d", 13), 2: ("w", 15)}
        assert writer.delete(where="id = 2").matched == 1
        assert writer.put([row(2, 14, "late")]).written == 0
        assert writer.put([row(2, 16)]).written == 1


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.timestamp("us", "UTC"), [datetime(2024, 1, day, tzinfo=UTC) for day in (1, 2, 3)]),
        (pa.date32(), [datetime(2024, 1, day).date() for day in (1, 2, 3)]),
        (pa.float64(), [-1.5, 0.0, 2.5]),
        (pa.uint64(), [1, 1 << 63, (1 << 64) - 1]),
        (pa.float16(), [-1.5, 0.0, 2.5]),
    ],
)
@pytest.mark.parametrize("shared", [False, True])
def test_sequences_may_be_numbers_and_times(tmp_path: Path, kind: pa.DataType, values: list[Any], shared: bool) -> None:
    low, middle, high = values
    schema = SCHEMA.set(2, pa.field("ts", kind))
    table = mw.create_table(str(tmp_path / "t"), schema, primary_key="id", merge=LAST, writer_defaults={"fsync": False})
    with table.writer(compaction=None, shared=shared) as writer:
        writer.put([row(1, middle), row(2, middle)])
        compact(table, writer)
        assert writer.put([row(1, low, "late"), row(2, high, "b")]).written == 1
        assert writer.delete([1], sequence=low).written == 0
        assert writer.delete([1], sequence=high).written == 1
        compact(table, writer)
        assert writer.put([row(1, middle, "late")]).written == 0
        assert contents(writer) == {2: ("b", high)}


def test_a_renamed_sequence_column_is_the_same_one(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    with table.writer() as writer:
        writer.put([row(1, 10)])
    table.dataset.alter_columns({"path": "ts", "name": "at"})
    with table.writer() as writer:
        assert table.merge == mw.LastWrite(sequence="at")
        assert writer.put([{"id": 1, "v": "late", "at": 9}]).written == 0
        assert writer.put([{"id": 1, "v": "new", "at": 11}]).written == 1


@pytest.mark.parametrize("sharding", [mw.Bucket("id", 3), mw.Manual()])
def test_sharded_tables_have_an_order_too(tmp_path: Path, sharding: Any) -> None:
    table = make(tmp_path / "t", sharding=sharding, allow_keys_across_shards=True)
    with table.writer() as writer:
        writer.put([row(key, 10) for key in range(9)])
        writer.delete([{"id": key, "ts": 20} for key in range(3)])
        assert writer.put([row(key, 15, "b") for key in range(9)]).written == 6
        assert writer.delete(list(range(9)), sequence=14).written == 0


def test_many_threads_agree_on_the_last_write(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    with table.writer(compaction=None, max_memtable_rows=40) as writer:

        def write(own: int) -> None:
            draw = random.Random(own)
            for ts in draw.sample(range(own, 400, 4), 40):
                writer.put([row(ts % 3, ts, f"v{ts}")])

        in_threads(write, range(4))
        seen = [ts for own in range(4) for ts in random.Random(own).sample(range(own, 400, 4), 40)]
        newest = {key: max(ts for ts in seen if ts % 3 == key) for key in range(3)}
        assert contents(writer) == {key: (f"v{ts}", ts) for key, ts in newest.items()}


def test_the_first_row_of_a_key_stays(tmp_path: Path) -> None:
    table = make(tmp_path / "t", mw.FirstRow())
    with table.writer(compaction=None) as writer:
        result = writer.put([row(1, 1), row(1, 2, "second"), row(2, 1)])
        assert (result.written, result.rejected.column("id").to_pylist()) == (2, [1])
        compact(table, writer)
        assert writer.put([row(1, 3, "third"), row(3, 1)]).written == 1
        writer.delete([1])
        assert writer.put([row(1, 4, "next")]).written == 1
        assert contents(writer) == {1: ("next", 4), 2: ("a", 1), 3: ("a", 1)}
        for change in (
            lambda: writer.update([row(1, 5)]),
            lambda: writer.put([{"id": 1, "v": "x"}], missing="keep"),
            lambda: writer.put([row(1, 5)], where="true"),
            lambda: writer.update(where="true", set={"v": "'x'"}),
            lambda: writer.compare_and_set(2, row(2, 1), row(2, 2)),
        ):
            with pytest.raises(mw.InvalidInputError, match="first row"):
                change()
        assert writer.delete(where="id = 2").matched == 1
        assert writer.compare_and_set(2, None, row(2, 9))


def test_writers_that_look_nothing_up_are_refused(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    with table.writer() as writer:
        with pytest.raises(mw.InvalidInputError, match="merge="):
            writer.put_nowait([row(1, 1)])
        with pytest.raises(mw.InvalidInputError, match="merge="):
            writer.delete_nowait([1])
    with table.writer(enable_memtable=False) as writer, pytest.raises(mw.InvalidInputError, match="WAL-only"):
        writer.put([row(1, 1)])
    once = OnceAppender(table.location)
    batch = pa.RecordBatch.from_pylist([row(1, 1)], schema=SCHEMA)
    with pytest.raises(mw.InvalidInputError, match="merge="):
        once.append(once.claim(SHARD), [batch])
    with pytest.raises(mw.InvalidInputError, match="merge="):
        mw.WalAppender.open(table.uri, SHARD).append([batch])


def test_async_writes_keep_to_the_order(tmp_path: Path) -> None:
    async def write(writer: mw.TableWriter) -> None:
        assert (await writer.aio.put([row(1, 10)])).written == 1
        assert (await writer.aio.put([row(1, 9)])).written == 0
        assert (await writer.aio.delete([1], sequence=9)).written == 0
        assert (await writer.aio.delete({"id": [1], "ts": [11]})).written == 1
        assert (await writer.aio.put([row(1, 10)])).written == 0

    with make(tmp_path / "t").writer() as writer:
        asyncio.run(write(writer))
        assert contents(writer) == {}


@pytest.mark.parametrize(
    ("merge", "key"),
    [
        (mw.LastWrite(sequence="nothing"), "id"),
        (mw.LastWrite(sequence="v"), "id"),
        (mw.LastWrite(sequence="id"), "id"),
        (mw.LastWrite(sequence="ts"), None),
        (mw.FirstRow(), None),
        ("last", "id"),
    ],
)
def test_a_merge_that_does_not_fit_is_refused(tmp_path: Path, merge: Any, key: str | None) -> None:
    with pytest.raises(mw.InvalidInputError):
        mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key=key, merge=merge)


WRONG_SEQUENCES = [object(), {1: 2}, 1 << 70, np.datetime64("2020"), pd.NaT, float("nan"), None, "x", [1]]


@pytest.mark.parametrize("wrong", WRONG_SEQUENCES, ids=lambda wrong: type(wrong).__name__)
@pytest.mark.parametrize("shared", [False, True])
def test_whatever_is_no_sequence_is_refused_and_nothing_is_written(tmp_path: Path, shared: bool, wrong: Any) -> None:
    """Null and not a number have no place in the order: what they would do depended on the order of arrival."""
    table = make(tmp_path / "t", kind=pa.float64() if isinstance(wrong, float) else None)
    with table.writer(shared=shared) as writer:
        writer.put([row(1, 5)])
        for attempt in (
            lambda: writer.delete([1], sequence=wrong),
            lambda: writer.delete([{"id": 1, "ts": wrong}]),
            lambda: writer.update(where="id = 1", values={"ts": wrong}),
            lambda: writer.update([{"id": 1, "ts": wrong}]),
            lambda: writer.update([{"id": 9, "v": "x"}], insert=True),
            lambda: writer.put([row(1, wrong)]),
        ):
            with pytest.raises(mw.InvalidInputError):
                attempt()
        assert contents(writer) == {1: ("a", 5)}


def test_an_expression_that_gives_no_sequence_is_refused_and_not_late(tmp_path: Path) -> None:
    with make(tmp_path / "t").writer() as writer:
        writer.put([row(1, 5), row(2, -5)])
        for key in (1, 2):
            with pytest.raises(mw.InvalidInputError, match="sequence"):
                writer.update(where=f"id = {key}", set={"ts": "cast(null as bigint)"})
        assert writer.update(where="id = 99", set={"ts": "cast(null as bigint)"}).matched == 0
        assert contents(writer) == {1: ("a", 5), 2: ("a", -5)}


def test_no_rows_are_a_put_and_a_delete_of_nothing(tmp_path: Path) -> None:
    for merge in (LAST, mw.FirstRow()):
        with make(tmp_path / type(merge).__name__, merge).writer() as writer:
            writer.put([row(1, 5)])
            assert writer.put([]).written == 0
            assert writer.put(SCHEMA.empty_table()).written == 0
            assert writer.delete([], sequence=5 if merge is LAST else None).written == 0


def test_a_merge_is_part_of_what_an_existing_table_must_be(tmp_path: Path) -> None:
    make(tmp_path / "t")
    assert mw.open_table(str(tmp_path / "t")).merge == LAST
    make(tmp_path / "t", exist_ok=True)
    with pytest.raises(mw.InvalidInputError, match="another way"):
        make(tmp_path / "t", mw.FirstRow(), exist_ok=True)


def test_a_put_that_is_not_late_looks_nothing_up_whatever_the_order_of_its_rows(tmp_path: Path) -> None:
    make(tmp_path / "t")
    store, location = watched(tmp_path / "t")
    with mw.ShardWriter.open(location, fsync=False) as writer:
        writer.put([row(1, 10)])

        def looks(*rows: dict[str, Any]) -> tuple[int, int]:
            """How many calls beside the put of the entry, and how many rows were written."""
            store.calls.clear()
            written = writer.put(list(rows)).written
            return sum(kind != "put_new" for kind, _ in store.calls), written

        assert looks(row(2, 11), row(3, 12)) == (0, 2)
        assert looks(row(4, 20), row(5, 15), row(6, 18)) == (0, 3), "each key once"
        calls, written = looks(row(7, 30), row(7, 25, "late"), row(8, 26))
        assert calls
        assert written == 2
        calls, written = looks(row(9, 21))
        assert calls, "below the highest sequence, it may be late"
        assert written == 1


def test_writer_with_a_put_inside_is_not_parked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A put with late rows left the writer to be looked up, was parked by threads that waited, and began again and again."""
    table = make(tmp_path / "t")
    writer = table.shard_writer()
    writer.put([row(1, 5)])
    (parked, honest) = ([], HighestSequence.know)

    def know(sequences: HighestSequence, find: Callable[[], Any]) -> None:
        parked.append(in_thread(lambda: park(writer)).result())
        honest(sequences, find)

    monkeypatch.setattr(HighestSequence, "know", know)
    assert writer.put([row(1, 3, "late"), row(2, 4)]).written == 1
    assert parked == [None]
    assert park(writer) is not None
    assert contents(table) == {1: ("a", 5), 2: ("a", 4)}
