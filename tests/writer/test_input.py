"""Input reconciliation: columns by name, reordered, safely cast, null-filled or kept; what does not fit is refused by name."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pydantic
import pytest

import lance_memwal as mw
from lance_memwal import InvalidInputError
from lance_memwal.write.changes import Terms
from lance_memwal.write.once import OnceAppender
from tests.kit.writers import KEYED, contents, flushed, key_field, open_writer, positions_of, rows, scanned

WIDE = pa.schema(
    [
        key_field(),
        pa.field("small", pa.int16()),
        pa.field("name", pa.string(), nullable=False),
        pa.field("score", pa.float32()),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("where", pa.struct([("x", pa.float64()), ("y", pa.float64())])),
        pa.field("vector", pa.list_(pa.float32(), 3)),
        pa.field("kind", pa.dictionary(pa.int32(), pa.string())),
    ]
)
NOON = dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)
FULL: dict[str, Any] = {
    "id": 1,
    "small": 7,
    "name": "n",
    "score": 0.5,
    "price": decimal.Decimal("1.25"),
    "at": NOON,
    "tags": ["a", None, "b"],
    "where": {"x": 1.0, "y": None},
    "vector": [1.0, 2.0, 3.0],
    "kind": "k",
}
EMPTY = dict.fromkeys(WIDE.names)


def put_and_read(root: Path, data: Any, schema: pa.Schema = WIDE) -> list[dict[str, Any]]:
    """`data` after a put, the same in memory, after replay and in the SSTable."""
    writer = open_writer(root, schema)
    writer.put(data, missing="null")
    in_memory: list[dict[str, Any]] = writer.memtable_scanner().to_table().to_pylist()
    writer.abort()
    writer = open_writer(root, schema)
    assert writer.memtable_scanner().to_table().to_pylist() == in_memory
    writer.close()
    [found] = flushed(root).values()
    assert [{k: v for k, v in row.items() if k != "_tombstone"} for row in found] == in_memory
    return in_memory


def test_columns_are_matched_by_name_and_reordered(tmp_path: Path) -> None:
    batch = pa.Table.from_pylist([FULL], schema=pa.schema(reversed(list(WIDE)))).to_batches()[0]
    assert put_and_read(tmp_path, batch) == [FULL]


def test_missing_columns_are_filled_with_nulls_where_that_is_asked_for(tmp_path: Path) -> None:
    assert put_and_read(tmp_path, pa.table({"name": ["n"], "id": [1]})) == [{**EMPTY, "id": 1, "name": "n"}]


SAFE: list[tuple[str, Any, Any]] = [
    ("id", pa.array([1], pa.int8()), 1),
    ("id", pa.array([1], pa.uint64()), 1),
    ("id", pa.array([1.0]), 1),
    ("small", pa.array([300], pa.int64()), 300),
    ("small", pa.array([None], pa.null()), None),
    ("name", pa.array(["n"], pa.large_string()), "n"),
    ("name", pa.array(["n"], pa.string_view()), "n"),
    ("name", pa.array(["n"]).dictionary_encode(), "n"),
    ("score", pa.array([0.5], pa.float64()), 0.5),
    ("score", pa.array([2], pa.int32()), 2.0),
    ("price", pa.array([decimal.Decimal("1.5")], pa.decimal128(4, 1)), decimal.Decimal("1.50")),
    ("at", pa.array([NOON], pa.timestamp("s", "UTC")), NOON),
    ("at", pa.array([NOON], pa.timestamp("ms", "Europe/Berlin")), NOON),
    ("tags", pa.array([["a"]], pa.large_list(pa.large_string())), ["a"]),
    ("where", pa.array([{"x": 1, "y": 2}], pa.struct([("x", pa.int64()), ("y", pa.int64())])), {"x": 1.0, "y": 2.0}),
    ("vector", pa.array([[1.0, 2.0, 3.0]], pa.list_(pa.float64(), 3)), [1.0, 2.0, 3.0]),
    ("vector", pa.array([[1.0, 2.0, 3.0]], pa.list_(pa.float32())), [1.0, 2.0, 3.0]),
    ("kind", pa.array(["k"]), "k"),
]


@pytest.mark.parametrize(("name", "array", "expected"), SAFE, ids=[f"{n}-{a.type}" for n, a, _ in SAFE])
def test_types_are_cast_where_no_value_changes(tmp_path: Path, name: str, array: pa.Array, expected: Any) -> None:
    columns: dict[str, Any] = {"id": pa.array([1]), "name": pa.array(["n"]), name: array}
    [row] = put_and_read(tmp_path, pa.table(columns))
    assert row[name] == expected


UNFIT: list[tuple[str, Any]] = [
    ("small", pa.array([70_000])),
    ("small", pa.array([1.5])),
    ("small", pa.array(["7"])),
    ("small", pa.array([True])),
    ("score", pa.array(["0.5"])),
    ("name", pa.array([7])),
    ("name", pa.array([b"n"])),
    ("price", pa.array([decimal.Decimal("1.234")])),
    ("at", pa.array(["2024-05-01"])),
    ("tags", pa.array(["a"])),
    ("tags", pa.array([[1]])),
    ("vector", pa.array([[1.0, 2.0]], pa.list_(pa.float32()))),
    ("where", pa.array([1.0])),
    ("where", pa.array([{"x": 1.0, "z": 2.0}])),
    ("price", pa.array([1.5])),
    ("at", pa.array([dt.date(2024, 5, 1)], pa.date32()).cast(pa.string())),
    ("at", pa.array([dt.time(12)])),
    ("id", pa.array([1 << 63], pa.uint64())),
    ("id", pa.array(["1"])),
]


@pytest.mark.parametrize(("name", "array"), UNFIT, ids=[f"{n}-{a.type}" for n, a in UNFIT])
def test_column_that_does_not_fit_is_refused_by_name(tmp_path: Path, name: str, array: pa.Array) -> None:
    with open_writer(tmp_path, WIDE) as writer:
        with pytest.raises(InvalidInputError, match=f"'{name}'"):
            writer.put(pa.table({"id": pa.array([1]), "name": pa.array(["n"]), name: array}), missing="null")
        assert writer.memtable_scanner().count_rows() == 0


def test_unknown_duplicate_and_reserved_columns_are_refused_by_name(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        with pytest.raises(InvalidInputError, match=r"'w' is not in the table; its columns: id, v"):
            writer.put({"id": [1], "w": [1]})
        with pytest.raises(InvalidInputError, match="'v' is there twice"):
            writer.put(pa.record_batch([pa.array([1]), pa.array(["a"]), pa.array(["b"])], names=["id", "v", "v"]))
        with pytest.raises(InvalidInputError, match=r"'_tombstone' is not for puts; use delete\(\)"):
            writer.put({"id": [1], "v": ["a"], "_tombstone": [True]})


def test_nulls_in_keys_and_not_null_columns_are_refused_by_name(tmp_path: Path) -> None:
    with open_writer(tmp_path, WIDE) as writer:
        for data, missing, reason in (
            ({"id": [1]}, "error", "'name' is missing"),
            ({"name": ["n"]}, "error", "'id' is missing"),
            ({"id": [1, None], "name": ["a", "b"]}, "null", "'id' must not be null"),
            ({"id": [1, 2], "name": ["a", None]}, "null", "'name' must not be null"),
        ):
            with pytest.raises(InvalidInputError, match=reason):
                writer.put(data, missing=missing)  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError, match="'id' must not be null"):
            writer.delete([1, None])


def test_values_that_could_not_be_replayed_are_refused_before_they_are_acknowledged(tmp_path: Path) -> None:
    days = pa.schema([key_field(), pa.field("day", pa.date64())])
    with (
        open_writer(tmp_path / "days", days) as writer,
        pytest.raises(InvalidInputError, match="'day' holds invalid values"),
    ):
        writer.put(pa.record_batch([pa.array([1]), pa.array([1], pa.date64())], schema=days))
    not_utf8 = pa.StringArray.from_buffers(1, pa.array([0, 2], pa.int32()).buffers()[1], pa.py_buffer(b"\xff\xff"))
    with open_writer(tmp_path / "text") as writer:
        with pytest.raises(InvalidInputError, match="'v' holds invalid values"):
            writer.put(pa.record_batch([pa.array([1]), not_utf8], schema=KEYED))
        writer.put(rows([2]))
        writer.abort()
    with open_writer(tmp_path / "text") as writer:
        assert scanned(writer) == {2: "a"}


TABLE = pa.table({"id": [1, 2], "v": ["a", "b"]}, schema=KEYED)


class StreamOnly:
    """An object with the Arrow PyCapsule stream interface and nothing else."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return TABLE.__arrow_c_stream__(requested_schema)


class ArrayOnly:
    """An object with the Arrow PyCapsule array interface and nothing else."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> object:
        return TABLE.to_batches()[0].__arrow_c_array__(requested_schema)


@dataclasses.dataclass
class Row:
    """A row as an object."""

    id: int
    v: str


class Model(pydantic.BaseModel):
    """A row as a model."""

    id: int
    v: str


FRAME = pd.DataFrame({"id": [1, 2, 3], "v": ["a", "b", "c"]})
KINDS: dict[str, Any] = {
    "record batch": TABLE.to_batches()[0],
    "list of batches": [TABLE.to_batches()[0].slice(0, 1), TABLE.to_batches()[0].slice(1)],
    "tuple of batches": (TABLE.to_batches()[0],),
    "table": TABLE,
    "list of tables": [TABLE.slice(0, 1), TABLE.slice(1)],
    "pandas": FRAME.iloc[:2],
    "pandas with another index": FRAME[FRAME["id"] != 3].set_index(pd.Index(["x", "y"])),
    "polars": pl.DataFrame({"id": [1, 2], "v": ["a", "b"]}),
    "list of dicts": [{"id": 1, "v": "a"}, {"v": "b", "id": 2}],
    "dict of lists": {"id": [1, 2], "v": ["a", "b"]},
    "dict of arrays": {"id": np.array([1, 2], dtype=np.int16), "v": pa.array(["a", "b"])},
    "stream capsule": StreamOnly(),
    "array capsule": ArrayOnly(),
    "lazy frame": pl.LazyFrame({"id": [1, 2], "v": ["a", "b"]}),
    "dataset": ds.dataset(TABLE),
    "dataclasses": [Row(1, "a"), Row(2, "b")],
    "models": [Model(id=1, v="a"), Model(id=2, v="b")],
    "rows of several kinds": [Row(1, "a"), {"id": 2, "v": "b"}],
}
ITERATORS: dict[str, Callable[[], Any]] = {
    "batches": lambda: iter(TABLE.to_batches()),
    "dicts": lambda: ({"id": number, "v": value} for number, value in [(1, "a"), (2, "b")]),
    "models": lambda: (Model(id=number, v=value) for number, value in [(1, "a"), (2, "b")]),
}
ONE_ROW: dict[str, Any] = {"dict": {"id": 1, "v": "a"}, "dataclass": Row(1, "a"), "model": Model(id=1, v="a")}
INPUTS: dict[str, tuple[Callable[[], Any], int]] = {
    **{kind: (lambda data=data: data, 2) for kind, data in KINDS.items()},
    **{f"iterator of {kind}": (made, 2) for kind, made in ITERATORS.items()},
    **{f"one {kind}": (lambda row=row: row, 1) for kind, row in ONE_ROW.items()},
}


@pytest.mark.parametrize("kind", INPUTS)
def test_input_of_every_kind_is_one_put(tmp_path: Path, kind: str) -> None:
    made, count = INPUTS[kind]
    with open_writer(tmp_path) as writer:
        writer.put(made())
        assert scanned(writer) == dict([(1, "a"), (2, "b")][:count])
        assert writer.stats().put_count == 1


def test_a_dict_with_a_value_that_is_no_collection_is_one_row(tmp_path: Path) -> None:
    with open_writer(tmp_path, WIDE) as writer:
        writer.put(FULL)
        writer.put({name: [value] for name, value in (FULL | {"id": 2}).items()})
        assert writer.memtable_scanner().to_table().to_pylist() == [FULL, FULL | {"id": 2}]


def test_one_key_can_be_given_as_it_is(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.put(rows(range(5)))
        for key in (0, np.int64(1), {"id": 2}, Row(3, "any")):
            writer.delete(key)
        assert scanned(writer) == {4: "a"}


def test_one_composite_key_can_be_given_as_a_tuple(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.int64()), ("v", pa.int64())])
    table = mw.create_table(str(tmp_path / "t"), schema, primary_key=["a", "b"], writer_defaults={"fsync": False})
    with table.writer() as writer:
        writer.put({"a": ["x", "y", "z"], "b": [1, 2, 3], "v": [1, 2, 3]})
        writer.delete(("x", 1))
        writer.delete({"a": "y", "b": 2})
        assert writer.lookup(("z", 3))["v"].to_pylist() == [3]
        assert writer.count_rows() == 1


def test_a_reader_is_drained_into_one_put(tmp_path: Path) -> None:
    reader = pa.RecordBatchReader.from_batches(KEYED, [rows([1]), rows([2], "b")])
    with open_writer(tmp_path) as writer:
        assert positions_of(writer.put(reader)) == range(2)
        assert scanned(writer) == {1: "a", 2: "b"}


@pytest.mark.parametrize(
    "nonsense", [7, "text", object(), [1, 2], [{"id": 1}, 2], {}, {"id": [1], "v": ["a", "b"]}, None]
)
def test_what_is_no_data_is_refused_in_words(tmp_path: Path, nonsense: Any) -> None:
    with (
        open_writer(tmp_path) as writer,
        pytest.raises(InvalidInputError, match=r"no data|different lengths|empty batch list"),
    ):
        writer.put(nonsense)


EXACT = pa.schema(
    [
        key_field(),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("s")),
        pa.field("ints", pa.list_(pa.int32())),
        pa.field("pair", pa.struct([("a", pa.int64()), ("b", pa.string())])),
        pa.field("counts", pa.map_(pa.string(), pa.int64())),
    ]
)


def test_plain_values_are_converted_exactly(tmp_path: Path) -> None:
    row = {
        "id": 1.0,
        "day": 19_844,
        "at": dt.datetime(2024, 5, 1),
        "ints": [1, 2.0, None],
        "pair": {"b": "x"},
        "counts": [("a", 1)],
    }
    [found] = put_and_read(tmp_path, [row], EXACT)
    assert found == {
        "id": 1,
        "day": dt.date(2024, 5, 1),
        "at": dt.datetime(2024, 5, 1),
        "ints": [1, 2, None],
        "pair": {"a": None, "b": "x"},
        "counts": [("a", 1)],
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("id", 1.5),
        ("id", decimal.Decimal("1.5")),
        ("id", True),
        ("id", "one"),
        ("day", dt.datetime(2024, 5, 1, 12)),
        ("at", dt.datetime(2024, 5, 1, 12, 0, 0, 5)),
        ("ints", [1, 2.5]),
        ("pair", {"a": 1.5}),
        ("pair", {"a": 1, "c": 2}),
        ("pair", 7),
    ],
)
def test_plain_values_that_would_be_cut_are_refused_by_column(tmp_path: Path, name: str, value: Any) -> None:
    with open_writer(tmp_path, EXACT) as writer:
        for data in ([{"id": 1, name: value}], {"id": 1, name: value}):
            with pytest.raises(InvalidInputError, match=f"'{name}' cannot be converted"):
                writer.put(data, missing="null")
        assert writer.memtable_scanner().count_rows() == 0


INNER = pa.schema(
    [
        key_field(),
        pa.field("s", pa.struct([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.string())])),
        pa.field("l", pa.list_(pa.field("item", pa.struct([pa.field("t", pa.string(), nullable=False)])))),
        pa.field("must", pa.struct([pa.field("a", pa.int64(), nullable=False)]), nullable=False),
    ]
)


def test_rows_and_tombstones_with_null_structs_of_not_null_fields_can_be_flushed(tmp_path: Path) -> None:
    """Lance refuses a null in such a field even below a null struct, where it means nothing."""
    full = {"id": 1, "s": {"a": 1, "b": None}, "l": [{"t": "x"}, None], "must": {"a": 5}}
    bare = {"id": 2, "s": None, "l": None, "must": {"a": 6}}
    fields = [INNER.field("s").type.field(0), INNER.field("s").type.field(1)]
    hollow = pa.StructArray.from_arrays(
        [pa.array([1, None]), pa.array([None, "y"])], fields=fields, mask=pa.array([False, True])
    )
    lists = pa.array([full["l"], None], INNER.field("l").type)
    must = pa.array([{"a": 5}, {"a": 6}], INNER.field("must").type)
    batch = pa.record_batch([pa.array([1, 2]), hollow, lists, must], schema=INNER)
    writer = open_writer(tmp_path, INNER)
    writer.put(batch)
    writer.put([{"id": 3, "must": {"a": 7}}, {"id": 4, "must": {"a": 7}}], missing="null")
    writer.delete([4])
    expected = [full, bare, {"id": 3, "s": None, "l": None, "must": {"a": 7}}]
    assert writer.memtable_scanner().to_table().to_pylist() == expected
    writer.abort()
    writer = open_writer(tmp_path, INNER)
    assert writer.memtable_scanner().to_table().to_pylist() == expected
    writer.close()
    assert [row for row in flushed(tmp_path)[1] if not row["_tombstone"]] == [
        {**row, "_tombstone": False} for row in expected
    ]


def test_slices_of_nested_columns_are_filtered_and_flushed(tmp_path: Path) -> None:
    """Native readers fail on slices of structs in structs; a batch that is alone in its memtable was never copied."""
    deep = pa.schema([key_field(), pa.field("s", pa.struct([("t", pa.struct([("n", pa.int64())]))]))])
    data = [{"id": k, "s": {"t": {"n": k} if k % 3 else None}} for k in range(12)]
    writer = open_writer(tmp_path, deep)
    writer.put(pa.Table.from_pylist(data, schema=deep).slice(5))
    assert writer.memtable_scanner().to_table().to_pylist() == data[5:]
    assert writer.memtable_scanner().filter("s.t.n = 7").to_table().to_pylist() == [data[7]]
    writer.close()
    assert [row["s"] for row in flushed(tmp_path)[1]] == [row["s"] for row in data[5:]]


def test_nulls_inside_not_null_fields_are_refused_by_column(tmp_path: Path) -> None:
    """They would be acknowledged, and no flush could ever write them."""
    must = pa.array([{"a": 5}], INNER.field("must").type)
    hole = pa.StructArray.from_arrays(
        [pa.array([None], pa.int64()), pa.array(["b"])], fields=list(INNER.field("s").type)
    )
    items = pa.StructArray.from_arrays([pa.array([None], pa.string())], fields=list(INNER.field("l").type.value_type))
    lists = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), items, type=INNER.field("l").type)
    with open_writer(tmp_path, INNER) as writer:
        with pytest.raises(InvalidInputError, match="column 's': field 'a' must not be null"):
            writer.put(pa.table({"id": [1], "s": hole, "must": must}), missing="null")
        with pytest.raises(InvalidInputError, match="column 'l': field 't' must not be null"):
            writer.put(pa.table({"id": [1], "l": lists, "must": must}), missing="null")
        assert writer.memtable_scanner().count_rows() == 0


def test_large_input_that_fits_is_not_copied(tmp_path: Path) -> None:
    batch = rows(range(20_000))
    writer = open_writer(tmp_path, durable_write=False, max_wal_flush_interval_ms=None)
    writer.put(batch)
    [(held, *_)] = writer.active_memtable_ref().memtable._log
    assert held.column(0).buffers()[1].address == batch.column(0).buffers()[1].address
    writer.abort()


def test_a_slice_of_a_huge_parent_does_not_keep_it_alive_and_is_no_bulk_put(tmp_path: Path) -> None:
    """Lesson 37: zero-copy slices pin their parents."""
    numbers = np.arange(1_000_000)
    parent = pa.record_batch([pa.array(numbers), pa.array(["v" * 10] * len(numbers))], schema=KEYED)
    assert parent.nbytes > 20_000_000
    before = pa.total_allocated_bytes()
    writer = open_writer(tmp_path, max_entry_bytes=1_000_000, durable_write=False, max_wal_flush_interval_ms=None)
    for start in range(0, 1000, 20):
        writer.put(parent.slice(start, 20))
    stats = writer.memtable_stats()
    assert (stats.row_count, stats.frozen_count) == (1000, 0)
    assert stats.estimated_size < 200_000
    assert stats.pending_wal_estimated_bytes < 200_000
    del parent
    assert pa.total_allocated_bytes() < before, "the parent is still alive"
    assert contents(writer.memtable_scanner().to_table()) == dict.fromkeys(range(1000), "v" * 10)
    writer.abort()


def test_a_large_slice_counts_its_parent(tmp_path: Path) -> None:
    parent = rows(range(100_000), "value")
    writer = open_writer(tmp_path, durable_write=False, max_wal_flush_interval_ms=None)
    writer.put(parent.slice(0, 50_000))
    assert writer.memtable_stats().estimated_size >= parent.nbytes
    writer.abort()


def test_a_null_struct_is_refused_where_the_files_of_the_base_table_cannot_store_it(tmp_path: Path) -> None:
    """It could be flushed, but never compacted."""
    schema = pa.schema([key_field(), pa.field("s", pa.struct([("a", pa.struct([("b", pa.int8())]))]))])
    lance.write_dataset(schema.empty_table(), str(tmp_path), data_storage_version="2.0")
    table = mw.enable(str(tmp_path), sharding=mw.Manual(), allow_keys_across_shards=True)
    with open_writer(tmp_path, None) as writer:
        writer.put([{"id": 1, "s": {"a": {"b": None}}}, {"id": 2, "s": {"a": {"b": 2}}}])
        refused: list[list[dict[str, Any]]] = [[{"id": 3, "s": None}], [{"id": 3, "s": {"a": None}}], [{"id": 3}]]
        for bad in refused:
            with pytest.raises(mw.InvalidInputError, match="column 's' holds a null struct"):
                writer.put(bad, missing="null")
        writer.delete([1])
    table.compact()
    assert table.dataset.to_table().to_pylist() == [{"id": 2, "s": {"a": {"b": 2}}}]


XY = pa.struct([("x", pa.int64()), ("y", pa.int64())])
COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("v", pa.int64()),
        pa.field("s", pa.struct([("a", pa.int64()), ("b", XY)])),
        pa.field("l", pa.list_(XY)),
    ]
)
WHOLE = {"id": 1, "v": 10, "s": {"a": 1, "b": {"x": 1, "y": 2}}, "l": [{"x": 1, "y": 2}]}
SHARD = mw.shard_id_for(mw.Unsharded())


def _without(row: dict[str, Any], path: str) -> dict[str, Any]:
    head, _, rest = path.partition(".")
    if not rest:
        return {name: value for name, value in row.items() if name != head}
    inner = [_without(item, rest) for item in row[head]] if isinstance(row[head], list) else _without(row[head], rest)
    return {**row, head: inner}


def _arrow(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows)


SHAPES: dict[str, Callable[[list[dict[str, Any]]], Any]] = {
    "dicts": lambda rows: rows,
    "columns": lambda rows: {name: [row[name] for row in rows] for name in rows[0]},
    "table": _arrow,
    "batch": lambda rows: _arrow(rows).to_batches()[0],
    "reader": lambda rows: _arrow(rows).to_reader(),
}


@pytest.mark.parametrize("path", ["v", "s.a", "s.b.y", "l.x"])
@pytest.mark.parametrize("shape", SHAPES)
def test_missing_column_is_refused_by_name_and_nothing_is_written(tmp_path: Path, shape: str, path: str) -> None:
    table = mw.create_table(str(tmp_path / "t"), COLUMNS, primary_key="id", writer_defaults={"fsync": False})
    part = _without(WHOLE, path)
    with table.writer() as writer:
        writer.put([WHOLE])
        for put in (
            writer.put,
            writer.put_nowait,
            writer.shard_writers[SHARD].put,
            writer.shard_writers[SHARD].put_nowait,
        ):
            with pytest.raises(mw.InvalidInputError, match=f"'{path}'.*missing='null'"):
                put(SHAPES[shape]([part]))
        assert table.scan().to_table().to_pylist() == [WHOLE]
        writer.put(SHAPES[shape]([part]), missing="null")
        (row,) = table.scan().to_table().to_pylist()
    head, *rest = path.split(".")
    found: Any = row[head][0] if head == "l" else row[head]
    for name in rest:
        found = found[name]
    assert found is None


def test_null_is_not_missing_and_a_dict_without_a_column_is(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), COLUMNS, primary_key="id", writer_defaults={"fsync": False})
    with table.writer() as writer:
        for path in ("v", "s.b.x", "l.y"):
            with pytest.raises(mw.InvalidInputError, match=f"'{path}'"):
                writer.put([WHOLE, {**_without(WHOLE, path), "id": 2}])
        writer.put([WHOLE, {**WHOLE, "id": 2, "s": None, "l": None}, {**WHOLE, "id": 3, "l": []}])
        assert table.count_rows() == 3
        writer.put(pa.table({"id": [1], "v": pa.nulls(1), "s": pa.nulls(1), "l": pa.nulls(1)}))
        assert table.get(1) == {"id": 1, "v": None, "s": None, "l": None}


def test_an_append_only_table_fills_what_is_left_out_unless_told_otherwise(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), COLUMNS, writer_defaults={"fsync": False})
    with table.writer() as writer:
        writer.put([{"id": 1}, {"id": 2, "v": 5}])
        writer.put(pd.DataFrame({"id": [3]}))
        with pytest.raises(mw.InvalidInputError, match="'v', 's', 'l'"):
            writer.put({"id": [4]}, missing="error")
        assert sorted(row["id"] for row in table.scan().to_table().to_pylist()) == [1, 2, 3]


@pytest.mark.parametrize("key", ["id", None])
def test_a_not_null_column_is_never_filled(tmp_path: Path, key: str | None) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("n", pa.int64(), nullable=False)])
    table = mw.create_table(str(tmp_path / "t"), schema, primary_key=key)
    with table.writer() as writer:
        for missing in (None, "error", "null"):
            with pytest.raises(mw.InvalidInputError, match="'n'"):
                writer.put({"id": [1]}, missing=missing)  # type: ignore[arg-type]


@pytest.mark.parametrize(("missing", "reason"), [("drop", "one of 'error', 'null'"), (3, "3")])
def test_what_cannot_be_done_with_missing_columns_is_refused(tmp_path: Path, missing: Any, reason: str) -> None:
    table = mw.create_table(str(tmp_path / "t"), COLUMNS, primary_key="id")
    with table.writer() as writer, pytest.raises(mw.InvalidInputError, match=reason):
        writer.put([WHOLE], missing=missing)


def test_appends_without_a_writer_follow_the_same_rule(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = mw.create_table(uri, COLUMNS, primary_key="id", writer_defaults={"fsync": False})
    part = _arrow([_without(WHOLE, "v")]).to_batches()
    deletes = [pa.record_batch({"id": [2], "_tombstone": [True]})]
    once = OnceAppender(table.location)
    claim = once.claim(SHARD)
    with pytest.raises(mw.InvalidInputError, match="'v'"):
        once.append(claim, part)
    once.append(claim, deletes)
    once.append(claim, part, terms=Terms("null"))
    assert table.get(1) == {**WHOLE, "v": None}
    appender = mw.WalAppender.open(uri, SHARD)
    with pytest.raises(mw.InvalidInputError, match="'v'"):
        appender.append(part)
    with pytest.raises(mw.InvalidInputError, match="'v'"):
        appender.append([WHOLE, {**_without(WHOLE, "v"), "id": 2}])
    appender.append(deletes)
    appender.append([{**WHOLE, "_tombstone": False}, {"id": 2, "_tombstone": True}])
    assert table.get(1) == WHOLE
    appender.append(part, missing="null")
    assert table.get(1) == {**WHOLE, "v": None}


def test_a_large_put_that_becomes_a_generation_follows_the_same_rule(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", pa.int64())])
    table = mw.create_table(str(tmp_path / "t"), schema, primary_key="id", writer_defaults={"max_entry_bytes": 1000})
    with table.writer(fsync=False) as writer:
        with pytest.raises(mw.InvalidInputError, match="'v'"):
            writer.put({"id": range(10_000)})
        writer.put({"id": pa.array(range(10_000))}, missing="null")
    assert table.count_rows("v is null") == 10_000
