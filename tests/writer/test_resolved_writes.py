"""Writes that depend on existing rows: partial updates, conditions, compare and set, inserts, writes by filter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_memwal as mw
from lance_memwal import crash_points
from tests.harness.kill_points import act_at
from tests.harness.profile import scaled
from tests.kit.turns import Play
from tests.kit.writers import SECONDS, in_thread, in_threads, row_entries

COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("v", pa.string()),
        pa.field("ts", pa.int64()),
        pa.field("e", pa.list_(pa.float32(), 2)),
        pa.field("d", pa.dictionary(pa.int8(), pa.string())),
        pa.field("s", pa.struct([("a", pa.int64()), ("b", pa.string())])),
    ]
)


def row(key: int, v: str | None = "a", ts: int | None = 1) -> dict[str, Any]:
    return {"id": key, "v": v, "ts": ts, "e": [1.0, 2.0], "d": "x", "s": {"a": key, "b": None}}


@pytest.fixture(params=["memory", "sstable", "base"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[mw.Table, mw.TableWriter]]:
    """A table with the rows 1, 2 and 3 in one of its tiers, and 4, which was deleted there."""
    made = mw.create_table(str(tmp_path / "t"), COLUMNS, primary_key="id", writer_defaults={"fsync": False})
    with made.writer(compaction=None) as writer:
        writer.put([row(1), row(2), row(3), row(4)])
        writer.delete([4])
        if request.param != "memory":
            writer.flush()
        if request.param == "base":
            made.compact()
        yield made, writer


def contents(writer: mw.TableWriter) -> dict[int, dict[str, Any]]:
    return {item["id"]: item for item in writer.scan().to_table().to_pylist()}


Pair = tuple[mw.Table, mw.TableWriter]


@contextmanager
def in_between(call: Callable[[], Any]) -> Iterator[None]:
    """Let another thread make a call after the next look at live rows, and before the insert that follows."""

    def act() -> None:
        thread = in_thread(call)
        thread.result(SECONDS)

    act_at("resolve.before_insert", 1, act)
    try:
        yield
    finally:
        crash_points.install(None)


def test_update_changes_what_is_given_and_keeps_the_rest(table: Pair) -> None:
    _, writer = table
    result = writer.update({"id": [1, 3], "v": ["b", None]})
    assert (result.written, result.matched, result.rejected, result.skipped) == (2, 2, None, False)
    assert contents(writer) == {1: row(1, "b"), 2: row(2), 3: row(3, None)}


def test_dicts_of_an_update_may_give_different_columns_and_count_in_their_order(table: Pair) -> None:
    _, writer = table
    writer.update(
        [{"id": 1, "v": "b"}, {"id": 2, "ts": 7}, {"id": 1, "ts": 9}, {"id": 1, "ts": 8}, {"id": 1, "v": "c"}]
    )
    assert contents(writer) == {1: row(1, "c", 8), 2: row(2, "a", 7), 3: row(3)}


@pytest.mark.parametrize("key", [4, 5])
def test_an_update_of_a_key_that_is_not_there_writes_nothing(table: Pair, key: int) -> None:
    made, writer = table
    before = contents(writer)
    with pytest.raises(mw.InvalidInputError, match=f"'id': {key}"):
        writer.update({"id": [1, key], "v": ["b", "b"]}, txn=("app", 1))
    assert contents(writer) == before
    assert not any(made.transactions().values())
    result = writer.update({"id": [1, key], "v": ["b", "b"]}, txn=("app", 1), insert=True)
    assert (result.written, result.matched) == (2, 1)
    absent = {"ts": None, "e": None, "d": None, "s": None}
    assert contents(writer) == {**before, 1: row(1, "b"), key: {"id": key, "v": "b", **absent}}


def test_a_put_that_keeps_is_an_update_that_inserts(table: Pair) -> None:
    _, writer = table
    writer.put([{"id": 1, "ts": 5}, {"id": 9, "ts": 6}], missing="keep")
    assert contents(writer)[1] == row(1, "a", 5)
    assert contents(writer)[9]["v"] is None


def test_a_row_without_a_not_null_column_is_never_made(tmp_path: Path) -> None:
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), pa.field("n", pa.int64(), nullable=False), ("v", pa.string())]
    )
    made = mw.create_table(str(tmp_path / "t"), schema, primary_key="id", writer_defaults={"fsync": False})
    with made.writer() as writer:
        writer.put({"id": [1], "n": [7], "v": ["a"]})
        writer.update({"id": [1], "v": ["b"]}, insert=True)
        with pytest.raises(mw.InvalidInputError, match="'n'"):
            writer.update({"id": [1, 2], "v": ["c", "c"]}, insert=True)
        with pytest.raises(mw.InvalidInputError, match="'n'"):
            writer.update({"id": [1], "n": pa.array([None], pa.int64())})
        assert writer.scan().to_table().to_pylist() == [{"id": 1, "n": 7, "v": "b"}]


def test_only_absent_keys_are_put(table: Pair) -> None:
    _, writer = table
    rows = [row(1, "new"), row(4, "new"), row(6, "new"), row(6, "second")]
    result = writer.put(rows, if_absent=True, txn=("app", 1))
    assert (result.written, result.rejected.column("id").to_pylist()) == (2, [1, 6])
    assert contents(writer) == {1: row(1), 2: row(2), 3: row(3), 4: row(4, "new"), 6: row(6, "new")}
    again = writer.put(rows, if_absent=True, txn=("app", 1))
    assert (again.skipped, again.written, again.rejected) == (True, 0, None)


def test_a_write_of_which_nothing_is_left_leaves_no_mark(table: Pair) -> None:
    made, writer = table
    result = writer.put([row(1, "new"), row(2, "new")], if_absent=True, txn=("app", 1))
    assert (result.written, result.skipped, result.rejected.column("id").to_pylist()) == (0, False, [1, 2])
    assert not any(made.transactions().values())
    writer.delete([1])
    assert writer.put([row(1, "new")], if_absent=True, txn=("app", 1)).written == 1


@pytest.mark.parametrize(
    "where", ["excluded.ts > ts", "EXCLUDED.`ts` > ts and v <> ''", pc.field("excluded", "ts") > pc.field("ts")]
)
def test_a_condition_compares_the_given_row_with_the_live_one(table: Pair, where: Any) -> None:
    """Rows of one key meet the condition one after the other."""
    _, writer = table
    rows = [row(1, "new", 2), row(2, "late", 0), row(3, "null", None), row(4, "gone", 0), row(7, "absent", 0)]
    result = writer.put([*rows, row(1, "late", 1), row(1, "newest", 3)], where=where)
    assert (result.written, result.rejected.column("id").to_pylist()) == (4, [2, 3, 1])
    new = {1: row(1, "newest", 3), 4: row(4, "gone", 0), 7: row(7, "absent", 0)}
    assert contents(writer) == {2: row(2), 3: row(3), **new}


@pytest.mark.parametrize("where", ["excluded.nothing > 1", "ts >", "nothing = 1", 3])
def test_a_condition_that_cannot_be_read_is_refused(table: Pair, where: Any) -> None:
    _, writer = table
    with pytest.raises(mw.InvalidInputError):
        writer.put([row(1)], where=where)


def test_a_condition_may_be_about_one_row_only(table: Pair) -> None:
    _, writer = table
    assert writer.put([row(1, "b")], where="true").written == 1
    assert writer.put([row(1, "c")], where="false").written == 0
    assert writer.put([row(1, "c")], where="v = 'b'").written == 1
    assert writer.put([row(1, "d")], where="excluded.v <> 'd'").written == 0


def test_compare_and_set_changes_the_row_that_is_expected(table: Pair) -> None:
    _, writer = table
    assert not writer.compare_and_set(1, row(1, "other"), row(1, "b"), txn=("app", 1))
    assert not writer.compare_and_set(1, None, row(1, "b"))
    assert not writer.compare_and_set(4, row(4), row(4))
    assert writer.compare_and_set(1, row(1), row(1, "b"), txn=("app", 1))
    assert writer.compare_and_set(1, row(1), row(1, "b"), txn=("app", 1)), "it was applied"
    assert writer.compare_and_set(4, None, {**row(4), "e": None})
    assert writer.compare_and_set(2, row(2), None)
    assert contents(writer) == {1: row(1, "b"), 3: row(3), 4: {**row(4), "e": None}}
    with pytest.raises(mw.InvalidInputError, match="another key"):
        writer.compare_and_set(3, row(3), row(5))
    with pytest.raises(mw.InvalidInputError, match="left out"):
        writer.compare_and_set(3, {"v": "a"}, None)


def test_what_a_get_returned_can_be_compared_even_if_it_is_no_number(tmp_path: Path) -> None:
    made = mw.create_table(
        str(tmp_path / "t"),
        pa.table({"id": [1], "x": [float("nan")]}),
        primary_key="id",
        writer_defaults={"fsync": False},
    )
    with made.writer() as writer:
        assert writer.compare_and_set(1, writer.get(1), {"id": 1, "x": 2.0})


def test_a_delete_counts_the_live_rows_that_it_hides(table: Pair) -> None:
    _, writer = table
    result = writer.delete([1, 3, 4, 99, 1], count=True)
    assert (result.matched, result.written) == (2, 5)
    assert writer.delete([1], count=True).matched == 0
    assert writer.delete([], count=True).matched == 0
    assert writer.delete([2]).matched is None
    assert contents(writer) == {}


def test_entries_hold_whole_rows(table: Pair, tmp_path: Path) -> None:
    _, writer = table
    (shard_id,) = writer.shard_writers
    writer.update({"id": [1], "v": ["b"]})
    newest = row_entries(tmp_path / "t", shard_id)[-1]
    assert [{**row(1, "b"), "_tombstone": False}] == pa.Table.from_batches(newest.batches).to_pylist()


def test_partial_writes_need_memory(tmp_path: Path) -> None:
    keyed = mw.create_table(str(tmp_path / "k"), COLUMNS, primary_key="id", writer_defaults={"fsync": False})
    with keyed.writer(enable_memtable=False) as writer, pytest.raises(mw.InvalidInputError, match="WAL-only"):
        writer.update([row(1)])


@pytest.mark.parametrize(
    "what", [{"v": ["a"]}, {"id": [None], "v": ["a"]}, {"id": [1], "w": [1]}, {"id": [1], "ts": ["a"]}]
)
def test_bad_updates_are_refused(table: Pair, what: Any) -> None:
    _, writer = table
    with pytest.raises(mw.InvalidInputError):
        writer.update(what)
    with pytest.raises(mw.InvalidInputError, match=r"s\.b"):
        writer.update([{"id": 1, "s": {"a": 1}}])


def test_rows_too_large_for_an_entry_are_resolved_too(tmp_path: Path) -> None:
    made = mw.create_table(str(tmp_path / "t"), COLUMNS, primary_key="id", writer_defaults={"fsync": False})
    with made.writer(compaction=None, max_entry_bytes=3000) as writer:
        writer.put([row(1), row(2)])
        result = writer.update({"id": list(range(200)), "v": ["w"] * 200}, insert=True, txn=("app", 1))
        assert (result.written, result.matched) == (200, 2)
        assert contents(writer)[1] == row(1, "w")
        assert writer.update({"id": list(range(200)), "v": ["x"] * 200}, insert=True, txn=("app", 1)).skipped
        result = writer.put([row(key, "new") for key in range(202)], if_absent=True)
        assert (result.written, result.rejected.num_rows) == (2, 200)
        rejected = writer.put([row(key, "new") for key in range(202)], if_absent=True, txn=("app", 2))
        assert (rejected.written, rejected.rejected.num_rows) == (0, 202)
        assert writer.put([row(key, "y") for key in range(202)], where="excluded.v > v", txn=("app", 2)).written == 202


@pytest.mark.parametrize("sharding", [mw.Bucket("id", 4), mw.Bucket("ts", 3), mw.Identity("ts")])
def test_sharded_tables_resolve_in_each_shard(tmp_path: Path, sharding: Any) -> None:
    key = "id" if sharding == mw.Bucket("id", 4) else ["id", "ts"]
    made = mw.create_table(
        str(tmp_path / "t"), COLUMNS.set(2, pa.field("ts", pa.int64(), nullable=False)), primary_key=key, sharding=sharding,
        writer_defaults={"fsync": False},
    )  # fmt: skip
    with made.writer(compaction=None) as writer:
        writer.put([row(i, "a", i % 3) for i in range(20)])
        assert writer.update([{"id": i, "ts": i % 3, "v": "b"} for i in range(20)]).matched == 20
        assert writer.put([row(i, "c", i % 3) for i in range(30)], if_absent=True).written == 10
        one = 5 if key == "id" else (5, 2)
        assert writer.compare_and_set(one, row(5, "b", 2), row(5, "d", 2))
        assert not writer.compare_and_set(one, row(5, "b", 2), row(5, "d", 2))
        gone = [1, 77] if key == "id" else [(1, 1), (77, 1)]
        assert writer.delete(gone, count=True).matched == 1
        assert {i: r["v"] for i, r in contents(writer).items()} == {
            **{i: "b" for i in range(20) if i != 1}, 5: "d", **dict.fromkeys(range(20, 30), "c")
        }  # fmt: skip


def test_row_written_between_look_up_and_insert_counts(table: Pair) -> None:
    _, writer = table
    with in_between(lambda: writer.put([row(1, "between", 50)])):
        writer.update({"id": [1, 2], "v": ["mine", "mine"]})
    assert contents(writer) == {1: row(1, "mine", 50), 2: row(2, "mine"), 3: row(3)}
    with in_between(lambda: writer.put([row(1, "between", 60)])):
        result = writer.put([row(1, "mine", 55), row(2, "mine", 55)], where="excluded.ts > ts")
    assert (result.written, result.rejected.column("id").to_pylist()) == (1, [1])
    assert contents(writer) == {1: row(1, "between", 60), 2: row(2, "mine", 55), 3: row(3)}


@pytest.mark.parametrize("then", ["flush", "bulk"])
def test_a_row_that_came_between_and_was_flushed_counts(tmp_path: Path, then: str) -> None:
    made = mw.create_table(str(tmp_path / "t"), COLUMNS, primary_key="id", writer_defaults={"fsync": False})
    with made.writer(compaction=None, max_entry_bytes=3000) as writer:
        writer.put([row(1)])

        def between() -> None:
            if then == "bulk":
                writer.put([row(key, "between", 50) for key in range(200)])
            else:
                writer.put([row(1, "between", 50)])
                writer.flush(SECONDS)

        with in_between(between):
            assert writer.update({"id": [1], "v": ["mine"]}).written == 1
        assert contents(writer)[1] == row(1, "mine", 50)


def test_a_writer_with_older_columns_does_not_erase_a_newer_one(tmp_path: Path) -> None:
    made = mw.create_table(
        str(tmp_path / "t"), pa.table({"id": [1], "v": ["a"]}), primary_key="id", writer_defaults={"fsync": False}
    )
    with made.writer() as writer:
        writer.put([{"id": 2, "v": "a"}])
        made.dataset.add_columns(pa.field("w", pa.string()))
        with pytest.raises(mw.InvalidInputError, match="evolve_schema"):
            writer.update({"id": [1], "v": ["b"]})
        made.dataset.update({"w": "'kept'"})
        writer.evolve_schema()
        writer.update({"id": [1], "v": ["b"]})
        assert writer.get(1) == {"id": 1, "v": "b", "w": "kept"}


def test_counters_of_many_threads_lose_nothing(tmp_path: Path) -> None:
    made = mw.create_table(
        str(tmp_path / "t"), pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int64()), ("m", pa.int64())]),
        primary_key="id", writer_defaults={"fsync": False},
    )  # fmt: skip
    with made.writer(compaction=None, max_memtable_rows=60) as writer:
        writer.put({"id": [0, 1], "n": [0, 0], "m": [0, 0]})

        def count(own: int) -> None:
            for step in range(25):
                key = (own + step) % 2
                while True:
                    seen = writer.get(key)
                    assert seen is not None
                    if writer.compare_and_set(key, seen, {**seen, "n": seen["n"] + 1}):
                        break
                writer.update({"id": [10 + own], "m": [step]}, insert=True)

        in_threads(count, range(4))
        assert {r["id"]: (r["n"], r["m"]) for r in writer.scan().to_table().to_pylist()} == {
            0: (50, 0), 1: (50, 0), **{10 + own: (None, 24) for own in range(4)}
        }  # fmt: skip


def test_whole_rows_of_an_update_must_belong_to_the_shard(tmp_path: Path) -> None:
    sharding = mw.Bucket("id", 4)
    table = mw.create_table(str(tmp_path / "t"), COLUMNS, primary_key="id", sharding=sharding)
    mine = sharding.shard_for(1, pa.int64())
    foreign = next(key for key in range(2, 99) if sharding.shard_for(key, pa.int64()) != mine)
    with table.shard_writer(mine) as writer:
        for attempt in (
            lambda: writer.update([row(foreign)], insert=True),
            lambda: writer.put([row(foreign)], missing="keep"),
            lambda: writer.compare_and_set(foreign, None, row(foreign)),
        ):
            with pytest.raises(mw.InvalidInputError, match="belong to shard"):
                attempt()
    assert table.count_rows() == 0


def test_a_fenced_writer_does_not_even_say_what_it_would_reject(tmp_path: Path) -> None:
    """What it knows is old: the key that it finds may be deleted by now."""
    table = mw.create_table(str(tmp_path / "t"), COLUMNS, primary_key="id", writer_defaults={"fsync": False})
    shard_id = str(table.sharding.default_shard())
    attempts: list[Callable[[mw.ShardWriter], Any]] = [
        lambda stale: stale.put([row(1)], if_absent=True),
        lambda stale: stale.compare_and_set(1, None, row(1, "b")),
        lambda stale: stale.put([row(1)], where="false"),
    ]
    for attempt in attempts:
        stale = table.shard_writer(shard_id)
        stale.put([row(1)])
        with table.shard_writer(shard_id) as successor:
            successor.delete([1])
            with pytest.raises(mw.FencedError):
                attempt(stale)
            with pytest.raises(mw.FencedError):
                stale.put([row(2)])
        stale.abort()


@pytest.mark.scaled
@pytest.mark.parametrize("seed", range(scaled(ci=5, prove=400)))
def test_writers_that_take_turns_leave_what_a_dict_holds(tmp_path: Path, seed: int) -> None:
    Play(tmp_path / "t", seed).run(8)


SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string()), ("ts", pa.int64())])


def new_table(path: Path, **options: Any) -> mw.Table:
    options = {"primary_key": "id", **options}
    return mw.create_table(str(path / "t"), SCHEMA, writer_defaults={"fsync": False}, **options)


def new_row(key: int, v: str = "new", ts: int = 0) -> dict[str, Any]:
    return {"id": key, "v": v, "ts": ts}


@pytest.fixture(params=[False, True], ids=["own", "shared"])
def tiers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    """Row 1 in the base table, 2 in an SSTable, 3 in memory; 4 was deleted."""
    made = new_table(tmp_path)
    with made.writer(compaction=None, shared=request.param) as writer:
        writer.put([new_row(1, "old")])
        writer.flush(SECONDS)
        made.compact()
        writer.put([new_row(2, "old"), new_row(4)])
        writer.flush(SECONDS)
        writer.put([new_row(3, "old")])
        writer.delete([4])
        yield made, writer


def values(tiers: mw.Table) -> dict[int, str]:
    return {found["id"]: found["v"] for found in tiers.scan().to_table().to_pylist()}


@pytest.mark.parametrize("known", [1, 2, 3])
def test_a_key_that_is_there_in_any_tier_is_refused_and_nothing_is_written(tiers: Pair, known: int) -> None:
    made, writer = tiers
    with pytest.raises(mw.InvalidInputError, match=rf"1 rows .*'id': {known}.*nothing was written"):
        writer.insert([new_row(8), new_row(known), new_row(9)])
    assert values(made) == {1: "old", 2: "old", 3: "old"}


def test_tables_with_a_merge_take_inserts(tmp_path: Path) -> None:
    first = new_table(tmp_path / "a", merge=mw.FirstRow())
    last = new_table(tmp_path / "b", merge=mw.LastWrite(sequence="ts"))
    for made in (first, last):
        with made.writer() as writer:
            writer.insert([new_row(1, "a", 5)])
            with pytest.raises(mw.InvalidInputError, match="nothing was written"):
                writer.insert([new_row(1, "b", 9), new_row(2)])
        assert values(made) == {1: "a"}
    with last.writer() as writer:
        writer.delete([1], sequence=7)
        late = writer.insert([new_row(1, "late", 6)])
        assert late.written == 0
        assert late.rejected is not None
        assert values(last) == {}


SHARDINGS = [mw.Unsharded(), mw.Bucket("id", 3), mw.Identity("g")]


@pytest.fixture(params=SHARDINGS, ids=str)
def filtered(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[mw.Table, mw.TableWriter]]:
    """Rows 0 to 5 in the base table, 6 and 7 in an SSTable, 8 in memory, which also has a newer row of 1."""
    schema = pa.schema(
        [pa.field(name, pa.int64(), nullable=False) for name in ("id", "g")]
        + [pa.field("n", pa.int32()), pa.field("v", pa.string())]
    )
    key = ["id", "g"] if request.param == mw.Identity("g") else "id"
    rows = [{"id": i, "g": i % 2, "n": i, "v": "a"} for i in range(9)]
    made = mw.create_table(
        str(tmp_path / "t"), pa.Table.from_pylist(rows[:6], schema), primary_key=key, sharding=request.param,
        writer_defaults={"fsync": False},
    )  # fmt: skip
    with made.writer(compaction=None) as writer:
        writer.put(rows[6:8])
        writer.flush(SECONDS)
        writer.put([rows[8], {**rows[1], "n": 100}])
        yield made, writer


def values_of(writer: mw.TableWriter) -> dict[int, tuple[int, str]]:
    return {row["id"]: (row["n"], row["v"]) for row in writer.scan().to_table().to_pylist()}


BEFORE = {**{i: (i, "a") for i in range(9)}, 1: (100, "a")}


@pytest.mark.parametrize("where", ["n >= 5", pc.field("n") >= 5])
def test_delete_finds_rows_in_every_tier_and_no_superseded_one(filtered: Pair, where: Any) -> None:
    _, writer = filtered
    result = writer.delete(where=where)
    assert (result.matched, result.written, result.rejected) == (5, 5, None)
    assert values_of(writer) == {i: (i, "a") for i in (0, 2, 3, 4)}
    assert writer.delete(where=where).matched == 0
    assert writer.delete(where="true").matched == 4
    assert values_of(writer) == {}


def test_update_sets_columns_by_expressions(filtered: Pair) -> None:
    made, writer = filtered
    result = writer.update(where="n > 5", set={"n": "n * 2 + id", "v": "concat(v, '-', cast(id as string))"})
    assert (result.matched, result.written) == (4, 4)
    after = {**BEFORE, 1: (201, "a-1"), 6: (18, "a-6"), 7: (21, "a-7"), 8: (24, "a-8")}
    assert values_of(writer) == after
    assert writer.update(where="id = 2", set={"v": "null"}).matched == 1
    writer.flush(SECONDS)
    made.compact()
    assert values_of(writer) == {**after, 2: (2, None)}


def test_values_are_set_as_they_are(filtered: Pair) -> None:
    _, writer = filtered
    result = writer.update(where="n > 5", values={"v": "it's '{v}' -- n", "n": None})
    assert (result.matched, result.written, result.rejected) == (4, 4, None)
    set_to = (None, "it's '{v}' -- n")
    assert values_of(writer) == {**{i: (i, "a") for i in range(6)}, **dict.fromkeys((1, 6, 7, 8), set_to)}
    assert writer.update(where="id = 2", set={"n": "n + 1"}, values={"v": "b"}).matched == 1
    assert values_of(writer)[2] == (3, "b")


@pytest.mark.parametrize("where", ["n > 1", "n = -1"], ids=["rows to change", "no row to change"])
@pytest.mark.parametrize("wrong", [{"id": "1"}, {"w": "1"}, {"n": "w"}, {"n": "1, 2"}, {"n": 3}, {}], ids=str)
def test_wrong_expressions_are_refused_and_change_nothing(filtered: Pair, wrong: Any, where: str) -> None:
    _, writer = filtered
    with pytest.raises(mw.InvalidInputError):
        writer.update(where=where, set=wrong)
    assert values_of(writer) == BEFORE


@pytest.mark.parametrize(
    "wrong",
    [
        {"where": "n >", "set": {"n": "1"}},
        {"where": "n > 1", "set": {"n": "'text'"}},
        {"where": "n > 1", "set": {"n": "9999999999"}},
    ],
)
def test_what_cannot_be_done_is_refused_and_changes_nothing(filtered: Pair, wrong: dict[str, Any]) -> None:
    _, writer = filtered
    with pytest.raises(mw.InvalidInputError):
        writer.update(**wrong)
    assert values_of(writer) == BEFORE


def test_a_shard_writer_touches_rows_of_its_shard_only(filtered: Pair) -> None:
    made, writer = filtered
    shards = writer.shard_writers
    gone = next(iter(shards.values())).delete(where="true").matched
    assert gone == 9 if made.sharding == mw.Unsharded() else 0 < gone < 9
    assert len(values_of(writer)) == 9 - gone
