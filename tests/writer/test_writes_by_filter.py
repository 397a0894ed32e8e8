"""`delete(where=...)` and `update(where=..., set=...)`: over fresh and base rows, counted, exact."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_memwal as mw
from lance_memwal import crash_points
from tests.harness.kill_points import act_at
from tests.kit.writers import SECONDS

SHARDINGS = [mw.Unsharded(), mw.Bucket("id", 3), mw.Identity("g")]


@pytest.fixture(params=SHARDINGS, ids=str)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[mw.Table, mw.TableWriter]]:
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


def contents(writer: mw.TableWriter) -> dict[int, tuple[int, str]]:
    return {row["id"]: (row["n"], row["v"]) for row in writer.scan().to_table().to_pylist()}


BEFORE = {**{i: (i, "a") for i in range(9)}, 1: (100, "a")}
Pair = tuple[mw.Table, mw.TableWriter]


@pytest.mark.parametrize("where", ["n >= 5", pc.field("n") >= 5])
def test_delete_finds_rows_in_every_tier_and_no_superseded_one(table: Pair, where: Any) -> None:
    _, writer = table
    result = writer.delete(where=where)
    assert (result.matched, result.written, result.rejected) == (5, 5, None)
    assert contents(writer) == {i: (i, "a") for i in (0, 2, 3, 4)}
    assert writer.delete(where=where).matched == 0
    assert writer.delete(where="true").matched == 4
    assert contents(writer) == {}


def test_update_sets_columns_by_expressions(table: Pair) -> None:
    made, writer = table
    result = writer.update(where="n > 5", set={"n": "n * 2 + id", "v": "concat(v, '-', cast(id as string))"})
    assert (result.matched, result.written) == (4, 4)
    after = {**BEFORE, 1: (201, "a-1"), 6: (18, "a-6"), 7: (21, "a-7"), 8: (24, "a-8")}
    assert contents(writer) == after
    assert writer.update(where="id = 2", set={"v": "null"}).matched == 1
    writer.flush(SECONDS)
    made.compact()
    assert contents(writer) == {**after, 2: (2, None)}


def test_values_are_set_as_they_are(table: Pair) -> None:
    _, writer = table
    result = writer.update(where="n > 5", values={"v": "it's '{v}' -- n", "n": None})
    assert (result.matched, result.written, result.rejected) == (4, 4, None)
    set_to = (None, "it's '{v}' -- n")
    assert contents(writer) == {**{i: (i, "a") for i in range(6)}, **dict.fromkeys((1, 6, 7, 8), set_to)}
    assert writer.update(where="id = 2", set={"n": "n + 1"}, values={"v": "b"}).matched == 1
    assert contents(writer)[2] == (3, "b")


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"values": {"id": 1}}, "part of the key"),
        ({"values": {"nope": 1}}, "'nope' is not in the table"),
        ({"values": {"n": "x"}}, "n"),
        ({"values": {}}, "names no column"),
        ({"values": {"n": 1}, "set": {"n": "1"}}, "the same column"),
        ({"values": ["n"]}, "values must be a dict"),
        ({"set": ["n"]}, "set must be a dict"),
        ({"values": {1: 1}}, "an item of values"),
    ],
)
def test_wrong_values_are_refused(table: Pair, wrong: dict[str, Any], why: str) -> None:
    _, writer = table
    with pytest.raises(mw.InvalidInputError, match=why):
        writer.update(where="id = 2", **wrong)
    assert contents(writer) == BEFORE


def test_a_repeated_transaction_is_skipped(table: Pair) -> None:
    _, writer = table
    assert writer.update(where="id = 3", set={"n": "n + 1"}, txn=("app", 1)).written == 1
    again = writer.update(where="id = 3", set={"n": "n + 1"}, txn=("app", 1))
    assert (again.skipped, again.written) == (True, 0)
    assert contents(writer)[3] == (4, "a")


@pytest.mark.parametrize(
    "wrong",
    [
        {"where": "n >", "set": {"n": "1"}},
        {"where": "n > 1", "set": {"id": "1"}},
        {"where": "n > 1", "set": {"w": "1"}},
        {"where": "n > 1", "set": {"n": "w"}},
        {"where": "n > 1", "set": {"n": "1, 2"}},
        {"where": "n > 1", "set": {"n": 3}},
        {"where": "n > 1", "set": {"n": "'text'"}},
        {"where": "n > 1", "set": {"n": "9999999999"}},
        {"where": "n > 1"},
        {"set": {"n": "1"}},
        {"data": [{"id": 1}], "where": "n > 1", "set": {"n": "1"}},
        {"where": "n > 1", "set": {"n": "1"}, "insert": True},
    ],
)
def test_what_cannot_be_done_is_refused_and_changes_nothing(table: Pair, wrong: dict[str, Any]) -> None:
    _, writer = table
    with pytest.raises(mw.InvalidInputError):
        writer.update(**wrong)
    with pytest.raises(mw.InvalidInputError):
        writer.delete([1], where="true")
    assert contents(writer) == BEFORE


@pytest.mark.parametrize("wrong", [{"id": "1"}, {"w": "1"}, {"n": "w"}, {"n": "1, 2"}, {"n": 3}, {}])
def test_a_wrong_update_is_refused_even_if_there_is_no_row_to_change(table: Pair, wrong: Any) -> None:
    _, writer = table
    with pytest.raises(mw.InvalidInputError):
        writer.update(where="n = -1", set=wrong)


def test_a_shard_writer_touches_rows_of_its_shard_only(table: Pair) -> None:
    made, writer = table
    shards = writer.shard_writers
    gone = next(iter(shards.values())).delete(where="true").matched
    assert gone == 9 if made.sharding == mw.Unsharded() else 0 < gone < 9
    assert len(contents(writer)) == 9 - gone


def test_the_filter_is_asked_again_for_a_row_that_changed_meanwhile(tmp_path: Path) -> None:
    made = mw.create_table(
        str(tmp_path / "t"),
        pa.table({"id": [1, 2, 3], "n": [1, 1, 1]}),
        primary_key="id",
        writer_defaults={"fsync": False},
    )
    with made.writer(compaction=None) as writer:

        def change() -> None:
            thread = threading.Thread(target=writer.put, args=([{"id": 2, "n": 7}, {"id": 9, "n": 1}],))
            thread.start()
            thread.join(SECONDS)

        act_at("resolve.before_insert", 1, change)
        try:
            assert writer.delete(where="n = 1").matched == 2
        finally:
            crash_points.install(None)
        assert {row["id"]: row["n"] for row in writer.scan().to_table().to_pylist()} == {2: 7, 9: 1}
        writer.put({"id": [1, 2, 3], "n": [1, 1, 1]})
        act_at("resolve.before_insert", 1, change)
        try:
            assert writer.update(where="n = 1 and id < 9", set={"n": "n + 1"}).matched == 2
        finally:
            crash_points.install(None)
        assert {row["id"]: row["n"] for row in writer.scan().to_table().to_pylist()} == {1: 2, 2: 7, 3: 2, 9: 1}


def test_append_only_tables_have_no_rows_to_change(tmp_path: Path) -> None:
    made = mw.create_table(str(tmp_path / "t"), pa.table({"id": [1]}), writer_defaults={"fsync": False})
    with made.writer() as writer, pytest.raises(mw.InvalidInputError, match="primary key"):
        writer.delete(where="true")
