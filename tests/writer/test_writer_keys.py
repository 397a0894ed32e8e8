"""Keys: every key type, composite keys, tables without a key, deletes."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import InvalidInputError
from tests.kit.writers import SHARD, UNKEYED, base_table, key_field, open_writer, rows, scanned

TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    **{f"int{b}": (getattr(pa, f"int{b}")(), [0, -1, 1, 2 ** (b - 1) - 1, -(2 ** (b - 1))]) for b in (8, 16, 32, 64)},
    **{f"uint{b}": (getattr(pa, f"uint{b}")(), [0, 1, 2, 2**b - 1, 2 ** (b - 1)]) for b in (8, 16, 32, 64)},
    "bool": (pa.bool_(), [True, False]),
    "string": (pa.string(), ["", "a", "ä", "a\0", "long" * 50]),
    "large_string": (pa.large_string(), ["", "a", "b", "日本"]),
    "binary": (pa.binary(), [b"", b"\0", b"\xff", b"a"]),
    "large_binary": (pa.large_binary(), [b"", b"\0\0", b"\xfe"]),
}


@pytest.mark.parametrize("kind", TYPES)
def test_every_key_type_puts_overwrites_deletes_and_replays(tmp_path: Path, kind: str) -> None:
    key_type, keys = TYPES[kind]
    table = base_table(tmp_path / "t", pa.schema([key_field("id", key_type), pa.field("v", pa.int64())]))
    writer = table.shard_writer(SHARD, fsync=False)
    writer.put({"id": pa.array(keys, key_type), "v": [1] * len(keys)})
    writer.put({"id": keys[:-1], "v": [2] * (len(keys) - 1)})
    writer.delete([keys[0]])
    expected = dict.fromkeys(keys[1:-1], 2) | {keys[-1]: 1}
    in_memory = writer.scan().to_table().to_pylist()
    assert {row["id"]: row["v"] for row in in_memory} == expected
    writer.abort()
    writer = table.shard_writer(SHARD, fsync=False)
    assert {row["id"]: row["v"] for row in writer.scan().to_table().to_pylist()} == expected
    writer.close()
    assert {row["id"]: row["v"] for row in table.scan().to_table().to_pylist()} == expected
    for key in keys:
        found = table.get(key)
        assert (None if found is None else found["v"]) == expected.get(key)


@pytest.mark.parametrize(
    "key_type",
    [
        pa.float64(),
        pa.list_(pa.int64()),
        pa.struct([("a", pa.int8())]),
    ],
    ids=str,
)
def test_key_types_that_the_format_does_not_know_are_refused_at_open(tmp_path: Path, key_type: pa.DataType) -> None:
    with pytest.raises(InvalidInputError):
        open_writer(tmp_path, pa.schema([key_field("id", key_type), pa.field("v", pa.int64())]))


PAIR = pa.schema(
    [
        pa.field("v", pa.int64(), nullable=False),
        key_field("second", pa.int32(), position=2),
        key_field("first", pa.string(), position=1),
    ]
)


def pairs(table: pa.Table) -> dict[tuple[str, int], int]:
    return {(row["first"], row["second"]): row["v"] for row in table.to_pylist()}


def test_composite_keys_are_one_key(tmp_path: Path) -> None:
    table = base_table(tmp_path / "t", PAIR)
    assert table.primary_key == ["first", "second"]
    writer = table.shard_writer(SHARD, fsync=False)
    writer.put({"first": ["a", "a", "b"], "second": [1, 2, 1], "v": [1, 2, 3]})
    writer.put({"first": ["a"], "second": [2], "v": [20]})
    assert pairs(writer.scan().to_table()) == {("a", 1): 1, ("a", 2): 20, ("b", 1): 3}
    writer.delete([("a", 1)])
    writer.delete([{"second": 1, "first": "b"}])
    assert pairs(writer.scan().to_table()) == {("a", 2): 20}
    writer.put({"first": ["b"], "second": [1], "v": [30]})
    writer.force_seal_active()
    writer.wait_for_flush_drain()
    writer.delete(pa.table({"first": ["a"], "second": [2], "ignored": [0]}))
    assert pairs(writer.lsm_scan().to_table()) == {("b", 1): 30}
    writer.abort()
    with table.shard_writer(SHARD, fsync=False) as writer:
        assert pairs(writer.lsm_scan().to_table()) == {("b", 1): 30}
        assert writer.get(("b", 1)) == {"v": 30, "second": 1, "first": "b"}


def test_composite_keys_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with open_writer(tmp_path, PAIR) as writer:
        for keys in (["a"], [("a",)], [("a", 1, 2)], pa.array(["a"]), np.array([1])):
            with pytest.raises(InvalidInputError):
                writer.delete(keys)
        with pytest.raises(InvalidInputError, match="'second' is missing"):
            writer.delete([{"first": "a"}])
        with pytest.raises(InvalidInputError, match="'second' must not be null"):
            writer.delete([("a", None)])


KEYS: dict[str, Any] = {
    "list": [1, 2],
    "tuple": (1, 2),
    "set": {1, 2},
    "range": range(1, 3),
    "list of one-tuples": [(1,), (2,)],
    "list of dicts": [{"id": 1}, {"id": 2}],
    "array": pa.array([1, 2]),
    "narrow array": pa.array([1, 2], pa.int8()),
    "chunked array": pa.chunked_array([[1], [2]]),
    "struct array": pa.array([{"id": 1}, {"id": 2}]),
    "table with more columns": pa.table({"v": ["x", "y"], "id": [1, 2]}),
    "record batch": rows([1, 2]),
    "dict of columns": {"id": [1, 2]},
    "numpy": np.array([1, 2]),
    "pandas series": pd.Series([1, 2], index=["x", "y"]),
    "polars series": pl.Series([1, 2]),
    "pandas frame": pd.DataFrame({"id": [1, 2]}),
    "polars frame": pl.DataFrame({"id": [1, 2], "w": [0, 0]}),
}


@pytest.mark.parametrize("kind", KEYS)
def test_keys_may_be_given_in_many_ways(tmp_path: Path, kind: str) -> None:
    with open_writer(tmp_path) as writer:
        writer.put(rows([1, 2, 3]))
        assert writer.delete(KEYS[kind]).batch_positions == range(1, 2)
        assert scanned(writer) == {3: "a"}


@pytest.mark.parametrize("keys", [5.5, "abc", ["a"], pa.array(["1"]), [1.5], [True, "x"], None, [dt.date(2024, 1, 1)]])
def test_what_is_no_key_is_refused(tmp_path: Path, keys: Any) -> None:
    with open_writer(tmp_path) as writer:
        writer.put(rows([1]))
        with pytest.raises(InvalidInputError):
            writer.delete(keys)
        assert scanned(writer) == {1: "a"}


def test_deleting_nothing_writes_nothing(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.put(rows([1]))
        assert writer.delete([]).batch_positions == range(1, 1)
        assert writer.stats().wal_flush_count == 1
    with pytest.raises(mw.ClosedError):
        writer.delete([])


def test_a_delete_works_with_not_null_columns_and_whether_or_not_the_key_exists(tmp_path: Path) -> None:
    schema = pa.schema(
        [key_field(), pa.field("v", pa.string(), nullable=False), pa.field("n", pa.int64(), nullable=False)]
    )
    table = base_table(tmp_path / "t", schema, [{"id": 1, "v": "base", "n": 1}, {"id": 2, "v": "base", "n": 2}])
    writer = table.shard_writer(SHARD, fsync=False)
    writer.put([{"id": 3, "v": "x", "n": 3}])
    writer.delete([1, 3, 99])
    assert [row["id"] for row in writer.lsm_scan().to_table().to_pylist()] == [2]
    writer.abort()
    with table.shard_writer(SHARD, fsync=False) as writer:
        assert writer.get(1) is None
    assert table.scan().to_table().to_pylist() == [{"id": 2, "v": "base", "n": 2}]


def test_a_key_deleted_and_inserted_again_lives(tmp_path: Path) -> None:
    table = base_table(tmp_path / "t")
    with table.shard_writer(SHARD, fsync=False) as writer:
        for step in range(3):
            writer.put(rows([1], str(step)))
            assert writer.get(1) == {"id": 1, "v": str(step)}
            writer.delete([1])
            assert writer.get(1) is None
            if step == 1:
                writer.force_seal_active()
                writer.wait_for_flush_drain()
                assert writer.get(1) is None
        writer.put(rows([1], "alive"))
        assert writer.lsm_scan().to_table().to_pylist() == [{"id": 1, "v": "alive"}]
    assert table.get(1) == {"id": 1, "v": "alive"}


def test_a_generation_of_deletes_alone_is_flushed(tmp_path: Path) -> None:
    """Lesson 36: a delete-only generation failed its flush."""
    table = base_table(tmp_path / "t", data=[{"id": 1, "v": "base"}])
    with table.shard_writer(SHARD, fsync=False) as writer:
        writer.delete([1, 2])
    assert table.scan().count_rows() == 0


def test_newest_wins_inside_every_source(tmp_path: Path) -> None:
    """Lesson 21: a lookup returned the oldest row of a key that was in one memtable twice."""
    table = base_table(tmp_path / "t")
    with table.shard_writer(SHARD, fsync=False) as writer:
        writer.put([rows([1], "oldest"), rows([1], "older"), rows([1], "newest")])
        assert writer.get(1) == {"id": 1, "v": "newest"}
        assert writer.lookup([1]).to_pylist() == [{"id": 1, "v": "newest"}]
    assert table.get(1) == {"id": 1, "v": "newest"}


def test_an_append_only_table_counts_every_row_and_has_no_deletes(tmp_path: Path) -> None:
    """Lesson E2: without a key, rows could be written but never read."""
    table = base_table(tmp_path / "t", UNKEYED)
    writer = table.shard_writer(SHARD, fsync=False)
    writer.put(rows([1, 1, 2], schema=UNKEYED))
    writer.put({"id": [None, 1], "v": ["a", None]})
    with pytest.raises(InvalidInputError, match="no primary key"):
        writer.delete([1])
    assert writer.scan().to_table().column("id").to_pylist() == [1, 1, 2, None, 1]
    writer.force_seal_active()
    writer.wait_for_flush_drain()
    writer.put(rows([1], schema=UNKEYED))
    assert writer.lsm_scan().count_rows() == 6
    writer.abort()
    with table.shard_writer(SHARD, fsync=False) as writer:
        assert writer.scan().count_rows() == 1
        assert writer.lsm_scan().count_rows() == 6
    assert table.scan().count_rows() == 6
