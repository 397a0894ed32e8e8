"""The reference reads our generations: every column type, file version, kind of key, duplicates and deletes."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from tests.kit.flush_peer import Tables, key_field, schema_of

UTC = datetime.UTC
POINT = pa.struct([pa.field("x", pa.int32(), nullable=False), pa.field("y", pa.string())])
COLUMNS: dict[str, tuple[pa.DataType, Any, Any]] = {
    "struct": (POINT, {"x": 1, "y": "a"}, {"x": 2, "y": None}),
    "struct in struct": (pa.struct([pa.field("p", POINT)]), {"p": {"x": 1, "y": "a"}}, {"p": {"x": 2, "y": "b"}}),
    "list": (pa.list_(pa.int32()), [1, None], []),
    "list of structs": (pa.list_(POINT), [{"x": 1, "y": "a"}], []),
    "large list": (pa.large_list(pa.string()), ["a", None], ["b"]),
    "vector": (pa.list_(pa.float32(), 2), [1.0, 2.0], [3.0, 4.0]),
    "matrix": (pa.list_(pa.list_(pa.float32(), 2), 2), [[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), "a", "b"),
    "decimal": (pa.decimal128(10, 2), decimal.Decimal("1.50"), decimal.Decimal("-7.25")),
    "wide decimal": (pa.decimal256(40, 2), decimal.Decimal("1.50"), decimal.Decimal("-7.25")),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        datetime.datetime(2020, 1, 2, tzinfo=UTC),
        datetime.datetime(1960, 1, 1, tzinfo=UTC),
    ),
    "date": (pa.date32(), datetime.date(2020, 1, 1), datetime.date(1969, 12, 31)),
    "time": (pa.time64("us"), datetime.time(1, 2, 3), datetime.time(0)),
    "duration": (pa.duration("s"), datetime.timedelta(1), datetime.timedelta(-1)),
    "half": (pa.float16(), 1.5, -2.0),
    "fixed binary": (pa.binary(3), b"abc", b"\0\0\0"),
    "large binary": (pa.large_binary(), b"abc", b""),
    "bool": (pa.bool_(), True, False),
}


@pytest.mark.parametrize("storage", ["2.0", "2.1", "2.2"])
@pytest.mark.parametrize("nullable", [True, False], ids=["nullable", "not null"])
@pytest.mark.parametrize("column", COLUMNS)
def test_every_type_is_read_beside_duplicates_and_tombstones(
    tmp_path: Path, column: str, nullable: bool, storage: str
) -> None:
    kind, old, new = COLUMNS[column]
    schema = pa.schema(
        [pa.field("gone", pa.int8()), key_field("id", pa.int64()), pa.field("c", kind, nullable=nullable)]
    )
    rows = [{"id": i, "c": old} for i in range(4)]
    tables = Tables(tmp_path, schema, drop=["gone"], storage=storage, rows=rows)
    live = [{"id": 2, "c": old}, {"id": 9, "c": old}, {"id": 2, "c": new}]
    sstable = tables.write(tables.rows(live, [{"id": 1}, {"id": 9}]))
    assert tables.scan(sstable) == [{"id": 0, "c": old}, {"id": 2, "c": new}, {"id": 3, "c": old}]
    assert tables.look_up({"id": 2}, sstable) == [{"id": 2, "c": new}]
    assert tables.look_up({"id": 1}, sstable) == []
    assert tables.look_up({"id": 9}, sstable) == []


def test_a_map_column_is_read_where_lance_has_maps(tmp_path: Path) -> None:
    schema = pa.schema([key_field("id", pa.int64()), pa.field("m", pa.map_(pa.string(), pa.int32()))])
    tables = Tables(tmp_path, schema, storage="2.2", rows=[{"id": 1, "m": [("a", 1)]}])
    sstable = tables.write(tables.rows([{"id": 2, "m": [("b", None)]}], [{"id": 1}]))
    assert tables.scan(sstable) == [{"id": 2, "m": [("b", None)]}]


@pytest.mark.parametrize("storage", ["2.0", "2.1", "2.2"])
def test_a_delete_beside_a_struct_column_keeps_its_generation_readable(tmp_path: Path, storage: str) -> None:
    """The reference cannot flush this at file version 2.0: its tombstones hold null structs."""
    schema = pa.schema([key_field("id", pa.int64()), pa.field("c", POINT)])
    tables = Tables(tmp_path, schema, storage=storage, rows=[{"id": 1, "c": {"x": 1, "y": "a"}}])
    sstable = tables.write(tables.rows([], [{"id": 1}]))
    assert tables.scan(sstable) == []
    assert lance.dataset(str(tables.directory(sstable))).data_storage_version == max(storage, "2.1")


@pytest.mark.parametrize("storage", ["2.0", "2.1", "2.2"])
def test_the_file_version_is_the_base_table_s(tmp_path: Path, storage: str) -> None:
    schema = pa.schema([key_field("id", pa.int64()), pa.field("c", POINT)])
    tables = Tables(tmp_path, schema, storage=storage)
    sstable = tables.write(tables.rows([{"id": 1, "c": {"x": 1, "y": None}}]))
    assert lance.dataset(str(tables.directory(sstable))).data_storage_version == storage


KEYS: dict[str, tuple[list[pa.DataType], list[tuple[Any, ...]]]] = {
    "int8": ([pa.int8()], [(-128,), (0,), (127,)]),
    "uint64": ([pa.uint64()], [(0,), (1 << 63,), ((1 << 64) - 1,)]),
    "bool": ([pa.bool_()], [(False,), (True,)]),
    "string": ([pa.string()], [("",), ("a\0b",), ("é",)]),
    "large string": ([pa.large_string()], [("",), ("a",), ("b",)]),
    "binary": ([pa.binary()], [(b"",), (b"\0",), (b"\xff",)]),
    "composite": ([pa.string(), pa.int32()], [("a", -1), ("a", 1), ("a\0", 0), ("b", 0)]),
    "wide composite": ([pa.bool_(), pa.binary(), pa.uint8()], [(False, b"\0", 1), (True, b"", 2)]),
}


@pytest.mark.parametrize("key", KEYS)
def test_every_kind_of_key_replaces_and_deletes(tmp_path: Path, key: str) -> None:
    kinds, values = KEYS[key]
    names = [f"k{i}" for i in range(len(kinds))]
    schema = pa.schema([*(key_field(n, k) for n, k in zip(names, kinds, strict=True)), pa.field("v", pa.string())])
    keys = [dict(zip(names, value, strict=True)) for value in values]
    tables = Tables(tmp_path, schema, rows=[{**k, "v": "old"} for k in keys])
    first, last = keys[0], keys[-1]
    sstable = tables.write(tables.rows([{**last, "v": "mid"}, {**last, "v": "new"}, {**first, "v": "x"}], [first]))
    assert tables.scan(sstable) == [{**k, "v": "old"} for k in keys[1:-1]] + [{**last, "v": "new"}]
    assert tables.look_up(first, sstable) == []
    assert tables.look_up(last, sstable) == [{**last, "v": "new"}]


def test_the_newer_of_two_generations_wins(tmp_path: Path) -> None:
    tables = Tables(tmp_path, pa.schema([key_field("id", pa.int64()), pa.field("v", pa.string())]))
    first = tables.write(tables.rows([{"id": 1, "v": "a"}, {"id": 2, "v": "b"}, {"id": 3, "v": "c"}]), generation=1)
    second = tables.write(tables.rows([{"id": 2, "v": "B"}], [{"id": 3}]), generation=2)
    assert tables.scan(first, second) == [{"id": 1, "v": "a"}, {"id": 2, "v": "B"}]


def test_a_generation_of_tombstones_only_hides_its_keys(tmp_path: Path) -> None:
    schema = pa.schema([key_field("id", pa.int64()), pa.field("v", pa.string(), nullable=False)])
    tables = Tables(tmp_path, schema, rows=[{"id": i, "v": "x"} for i in range(3)])
    sstable = tables.write(tables.rows([], [{"id": 0}, {"id": 2}, {"id": 0}]))
    assert tables.scan(sstable) == [{"id": 1, "v": "x"}]


def test_many_rows_with_many_duplicates_read_as_the_last_of_each(tmp_path: Path) -> None:
    schema = pa.schema([key_field("id", pa.int64()), pa.field("v", pa.int64())])
    tables = Tables(tmp_path, schema)
    live = [{"id": (i * 7919) % 9_000, "v": i} for i in range(30_000)]
    sstable = tables.write(tables.rows(live))
    newest = {row["id"]: row["v"] for row in live}
    assert tables.scan(sstable) == [{"id": key, "v": newest[key]} for key in sorted(newest)]


def test_columns_that_were_added_later_and_out_of_order_ids_are_read_by_id(tmp_path: Path) -> None:
    schema = pa.schema([key_field("id", pa.int64()), pa.field("s", POINT)])
    tables = Tables(tmp_path, schema, rows=[{"id": 1, "s": {"x": 1, "y": "a"}}])
    dataset = lance.dataset(tables.uri)
    dataset.add_columns(pa.field("late", pa.string()))
    dataset.drop_columns(["s"])
    dataset.add_columns(pa.field("later", pa.int32()))
    tables = reopened(tables)
    assert tables.base.field_ids == (0, 4, 5)
    sstable = tables.write(tables.rows([{"id": 2, "late": "b", "later": 7}]))
    assert tables.scan(sstable) == [{"id": 1, "late": None, "later": None}, {"id": 2, "late": "b", "later": 7}]


def reopened(tables: Tables) -> Tables:
    tables.base = tables.base.refresh()
    tables.schema = schema_of(tables.base)
    return tables
