"""The reference reads our generations and we read its own; where bytes are not random they are equal; damage is no absence."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lance.file import LanceFileReader, LanceFileWriter
from lance.mem_wal import LsmScanner, ShardSnapshot

from lance_memwal.errors import CorruptDataError, InvalidInputError, ObjectNotFoundError
from lance_memwal.lance import wire
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.deletions import decode_deletions
from lance_memwal.lance.manifest import Fragment, parse_lance_manifest
from lance_memwal.sstable.sidecar import PAGE_ROWS, PkSidecar, SortedKeys, WantedKeys, sort_keys, write_sidecar
from lance_memwal.sstable.write import write_sstable
from lance_memwal.store.location import Location, resolve
from lance_memwal.types import SsTable
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
def test_type_is_read_with_duplicates_and_tombstones(tmp_path: Path, column: str, nullable: bool, storage: str) -> None:
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


def test_the_newer_of_two_generations_wins_and_one_of_tombstones_only_hides_its_keys(tmp_path: Path) -> None:
    schema = pa.schema([key_field("id", pa.int64()), pa.field("m", pa.map_(pa.string(), pa.int32()), nullable=False)])
    a, b, c = ([(name, number)] for name, number in (("a", 1), ("b", None), ("c", 3)))
    tables = Tables(tmp_path, schema, storage="2.2", rows=[{"id": i, "m": a} for i in range(3)])  # Lance has maps here
    first = tables.write(tables.rows([{"id": 3, "m": a}, {"id": 4, "m": b}, {"id": 5, "m": c}]), generation=1)
    second = tables.write(tables.rows([{"id": 4, "m": c}], [{"id": 5}]), generation=2)
    base = [{"id": i, "m": a} for i in range(3)]
    assert tables.scan(first, second) == [*base, {"id": 3, "m": a}, {"id": 4, "m": c}]
    third = tables.write(tables.rows([], [{"id": 0}, {"id": 2}, {"id": 0}]), generation=3)
    assert tables.scan(first, second, third) == [base[1], {"id": 3, "m": a}, {"id": 4, "m": c}]


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


TEXTS = ["b", "a", "", "b", "\0", "a\0", "日本", "zz" * 40, "a", "~", "abcdefgh", "abcdefg"]
BYTES = [b"b", b"a", b"", b"b", b"\0", b"a\0", b"\xff\xff", b"zz" * 40, b"a", b"\xfe", b"abcdefgh", b"abcdefg"]


def integers(bits: int, signed: bool) -> list[int]:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return [5, high, 0, 5, low, 1, high, 7, 0, 100, high - 1, low + 1]


KEY_BYTES: list[tuple[str, list[tuple[pa.DataType, list[Any]]]]] = [
    *((f"int{bits}", [(getattr(pa, f"int{bits}")(), integers(bits, True))]) for bits in (8, 16, 32, 64)),
    *((f"uint{bits}", [(getattr(pa, f"uint{bits}")(), integers(bits, False))]) for bits in (8, 16, 32, 64)),
    ("bool", [(pa.bool_(), [True, False, True] * 4)]),
    ("string", [(pa.string(), TEXTS)]),
    ("large_string", [(pa.large_string(), TEXTS)]),
    ("binary", [(pa.binary(), BYTES)]),
    ("large_binary", [(pa.large_binary(), BYTES)]),
    ("int64+string", [(pa.int64(), [1, 2, 1, 1] * 3), (pa.string(), TEXTS)]),
    ("string+binary+bool", [(pa.string(), TEXTS), (pa.binary(), BYTES), (pa.bool_(), [True, False] * 6)]),
    ("uint8+int16", [(pa.uint8(), [255, 0, 3] * 4), (pa.int16(), [-1, 0, -1, 1] * 3)]),
]


def flush_twice(root: Path, key: list[tuple[pa.DataType, list[Any]]], repeat: int = 1) -> tuple[Path, Path]:
    names = [f"k{i}" for i in range(len(key))]
    fields = [key_field(name, kind) for name, (kind, _) in zip(names, key, strict=True)]
    tables = Tables(root, pa.schema([*fields, pa.field("v", pa.int32(), nullable=False)]))
    keys = [dict(zip(names, row, strict=True)) for row in zip(*(values for _, values in key), strict=True)] * repeat
    live = [{**row, "v": i} for i, row in enumerate(keys)]
    ours = tables.directory(tables.write(tables.rows(live, keys[:2])))
    return ours, tables.peer(live, keys[:2])


@pytest.mark.parametrize("key", [k for _, k in KEY_BYTES], ids=[name for name, _ in KEY_BYTES])
def test_sidecar_bytes_equal_the_reference(tmp_path: Path, key: list[tuple[pa.DataType, list[Any]]]) -> None:
    ours, theirs = flush_twice(tmp_path, key)
    assert_same_side_files(ours, theirs)


@pytest.mark.parametrize(
    "key", [KEY_BYTES[3][1], KEY_BYTES[9][1], KEY_BYTES[13][1]], ids=["int64", "string", "composite"]
)
def test_sidecars_of_many_pages_equal_the_reference(tmp_path: Path, key: list[tuple[pa.DataType, list[Any]]]) -> None:
    ours, theirs = flush_twice(tmp_path, key, repeat=1500)
    assert_same_side_files(ours, theirs)
    assert LanceFileReader(str(ours / "_pk_index/page_lookup.lance")).num_rows() == 3


def assert_same_side_files(ours: Path, theirs: Path) -> None:
    for name in ("bloom_filter.bin", "_pk_index/page_data.lance"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes(), name
    # The reference spells its schema metadata in random order, so that only the content can be the same.
    mine, other = (LanceFileReader(str(d / "_pk_index/page_lookup.lance")) for d in (ours, theirs))
    assert mine.read_all().to_table().equals(other.read_all().to_table())
    assert mine.metadata().schema.equals(other.metadata().schema, check_metadata=True)
    assert mine.metadata().minor_version == other.metadata().minor_version
    assert deleted(ours) == deleted(theirs)


def deleted(generation: Path) -> list[int]:
    (file,) = (generation / "_deletions").iterdir()
    rows: list[int] = decode_deletions(file.read_bytes(), physical_rows=1 << 20).tolist()
    return rows


def manifest_of(generation: Path) -> bytes:
    (file,) = (generation / "_versions").glob("*.manifest")
    return file.read_bytes()


def comparable(generation: Path) -> list[tuple[int, Any]]:
    """The manifest without time, random names, file sizes and transaction, every other field as it stands.

    We name no transaction; neither does the reference where a generation has a deletion vector.
    """
    manifest = parse_lance_manifest(manifest_of(generation))
    out: list[tuple[int, Any]] = []
    for field in manifest.message:
        if field.number == 2:
            (fragment,) = manifest.fragments()
            out.append((2, without_names(fragment)))
            out.append((2, [inner.number for inner in wire.parse(field.as_bytes())]))
        elif field.number not in {7, 12, 23}:
            out.append((field.number, field.value))
    return out


def without_names(fragment: Fragment) -> Any:
    (file,) = fragment.files
    shape = (file.field_ids, file.column_indices, file.major_version, file.minor_version)
    gone = fragment.deletion
    return (
        fragment.id,
        shape,
        fragment.physical_rows,
        gone and (gone.file_type, gone.read_version, gone.num_deleted_rows),
    )


SCHEMA = pa.schema(
    [
        pa.field("gone", pa.int32()),
        key_field("id", pa.int64()),
        pa.field("st", pa.struct([pa.field("x", pa.int32(), nullable=False), pa.field("y", pa.list_(pa.string()))])),
        pa.field("also_gone", pa.int32()),
        pa.field("v", pa.list_(pa.float32(), 2), nullable=False, metadata={"note": "kept"}),
        pa.field("d", pa.dictionary(pa.int8(), pa.string())),
        pa.field("last_gone", pa.int32()),
    ],
    metadata={"table": "note"},
)
ROWS = [
    {"id": 1, "st": {"x": 1, "y": ["q"]}, "v": [1.0, 2.0], "d": "a"},
    {"id": 2, "st": {"x": 2, "y": []}, "v": [3.0, 4.0], "d": "b"},
]


@pytest.mark.parametrize("storage", ["2.0", "2.1", "2.2"])
@pytest.mark.parametrize("drop", [(), ("gone", "also_gone", "last_gone")], ids=["no gaps", "gaps in ids"])
@pytest.mark.parametrize(
    "extra", [[], [{"id": 1, "st": {"x": 3, "y": None}, "v": [5.0, 6.0], "d": None}]], ids=["unique", "duplicate"]
)
def test_the_manifest_is_the_reference_s_but_for_time_and_names(
    tmp_path: Path, storage: str, drop: tuple[str, ...], extra: list[dict[str, Any]]
) -> None:
    tables = Tables(tmp_path, SCHEMA, drop=drop, storage=storage)
    live = [*ROWS, *extra]
    ours = tables.directory(tables.write(tables.rows(live)))
    theirs = tables.peer(live)
    assert comparable(ours) == comparable(theirs)
    assert [path.name for path in (ours / "_versions").glob("*.manifest")] == ["18446744073709551614.manifest"]


def test_a_table_without_a_key_has_the_empty_filter_and_no_sidecar(tmp_path: Path) -> None:
    tables = Tables(tmp_path, pa.schema([pa.field("a", pa.int64()), pa.field("b", pa.string())]))
    live = [{"a": 1, "b": "x"}, {"a": 1, "b": "x"}]
    sstable = tables.write(tables.rows(live))
    ours, theirs = tables.directory(sstable), tables.peer(live)
    assert (ours / "bloom_filter.bin").read_bytes() == (theirs / "bloom_filter.bin").read_bytes()
    assert comparable(ours) == comparable(theirs)
    assert {path.name for path in ours.iterdir()} == {"_versions", "data", "bloom_filter.bin"}
    assert sstable.primary_key_bytes is None


SHARD = "7a2f3c64-55a1-4d0e-9c44-0f6b2f9d1c10"
SERVED = pa.schema([pa.field("gone", pa.int8()), key_field("id", pa.string()), pa.field("v", pa.int32())])


@pytest.fixture(params=["s3_table", "azure_table"])
def table(request: pytest.FixtureRequest) -> tuple[str, dict[str, str]]:
    place: tuple[str, dict[str, str]] = request.getfixturevalue(request.param)
    uri, options = place
    rows = pa.Table.from_pylist([{"id": "a", "v": 1}, {"id": "b", "v": 2}], schema=SERVED)
    dataset = lance.write_dataset(rows, uri, storage_options=options)
    dataset.drop_columns(["gone"])
    dataset.initialize_mem_wal()
    return place


def test_a_generation_is_written_read_and_looked_up(table: tuple[str, dict[str, str]]) -> None:
    uri, options = table
    location = resolve(uri, options)
    base = BaseTable.open(location)
    assert base is not None
    assert base.field_ids == (1, 2)
    assert base.details is not None
    rows = {"id": ["b", "c", "b", "a"], "v": [3, 4, 5, None], "_tombstone": [False, False, False, True]}
    sstable = write_sstable(
        location,
        SHARD,
        1,
        pa.table(rows, schema=pa.schema([("id", pa.string()), ("v", pa.int32()), ("_tombstone", pa.bool_())])),
        schema=base.columns,
        storage_version=base.data_storage_version,
        fsync=True,
    )
    snapshot = ShardSnapshot(SHARD).with_current_generation(2).with_sstable(1, sstable.path)
    dataset = lance.dataset(uri, storage_options=options)
    found: list[dict[str, Any]] = LsmScanner.from_snapshots(dataset, [snapshot]).to_table().to_pylist()
    assert sorted(found, key=lambda row: row["id"]) == [{"id": "b", "v": 5}, {"id": "c", "v": 4}]
    sidecar = PkSidecar(location, SHARD, sstable)
    assert sidecar.offsets_of(WantedKeys.of([pa.array(["a", "b", "c", "d"])])).tolist() == [3, 2, 1, -1]
    assert sidecar.might_contain(WantedKeys.of([pa.array(["a", "b", "c", "nothing"])])).tolist() == [
        True,
        True,
        True,
        False,
    ]


def test_absence_is_reported_as_absence(table: tuple[str, dict[str, str]]) -> None:
    uri, options = table
    assert BaseTable.open(resolve(f"{uri}-nothing", options)) is None
    sidecar = PkSidecar(resolve(uri, options), SHARD, SsTable(1, "00000000_gen_1"))
    with pytest.raises(ObjectNotFoundError):
        sidecar.offsets_of(WantedKeys.of([pa.array(["a"])]))
    assert sidecar.might_contain(WantedKeys.of([pa.array(["a"])])).tolist() == [True]


TABLE = SsTable(1, "0000abcd_gen_1")
MANY = 3 * PAGE_ROWS + 17


def columns_of(kind: str, numbers: np.ndarray[Any, Any]) -> list[pa.Array]:
    texts = pa.array([f"key-{number}" for number in numbers.tolist()])
    if kind == "composite":
        return [pa.array(numbers % 5), texts]
    if kind == "bool":
        return [pa.array(numbers % 2 == 0)]
    made = {"int64": pa.array(numbers), "uint16": pa.array(numbers % 9_000, pa.uint16()), "string": texts}
    return [made[kind] if kind in made else texts.cast(kind)]


def rows_of(columns: list[pa.Array]) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


@pytest.fixture
def place(tmp_path: Path) -> Location:
    return resolve(str(tmp_path / "table"))


@pytest.mark.parametrize("kind", ["int64", "uint16", "bool", "string", "large_string", "binary", "composite"])
def test_the_newest_row_of_every_key_is_found_and_no_other(place: Location, kind: str) -> None:
    numbers = np.random.default_rng(5).integers(0, 12_000, MANY)
    columns = columns_of(kind, numbers)
    write_sidecar(place, SHARD, TABLE.path, sort_keys(columns))
    newest = {key: offset for offset, key in enumerate(rows_of(columns))}
    wanted = columns_of(kind, np.arange(0, 14_000, 3))
    sidecar = PkSidecar(place, SHARD, TABLE)
    expected = [newest.get(key, -1) for key in rows_of(wanted)]
    assert sidecar.offsets_of(WantedKeys.of(wanted)).tolist() == expected
    assert sidecar.offsets_of(WantedKeys.of(wanted)).tolist() == expected  # again, from memory
    assert -1 in expected or kind == "bool"
    assert len(sidecar.all_entries()[0]) == len(newest)
    keys, offsets = sidecar.all_entries()
    assert keys.equals(sidecar.all_entries()[0])
    assert sorted(offsets.tolist()) == sorted(newest.values())


def test_a_key_that_fills_more_than_a_page_is_found_in_the_last_one(place: Location) -> None:
    keys = pa.array([1] * 5 + [2] * (2 * PAGE_ROWS) + [3])
    write_sidecar(place, SHARD, TABLE.path, sort_keys([keys]))
    sidecar = PkSidecar(place, SHARD, TABLE)
    wanted = WantedKeys.of([pa.array([0, 1, 2, 3, 4])])
    assert sidecar.offsets_of(wanted).tolist() == [-1, 4, 2 * PAGE_ROWS + 4, 2 * PAGE_ROWS + 5, -1]
    assert sidecar.all_entries()[0].to_pylist() == [1, 2, 3]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.lists(st.binary(max_size=3) | st.sampled_from([b"a", b"a\0", b""]), min_size=1, max_size=30))
def test_any_keys_are_found(place: Location, keys: list[bytes]) -> None:
    write_sidecar(place, SHARD, TABLE.path, sort_keys([pa.array(keys)]))
    newest = {key: offset for offset, key in enumerate(keys)}
    wanted = [*keys, b"a\0\0", b"zzzz", b"\xff" * 4]
    found = PkSidecar(place, SHARD, TABLE).offsets_of(WantedKeys.of([pa.array(wanted)]))
    assert found.tolist() == [newest.get(key, -1) for key in wanted]


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3), min_size=1, max_size=50))
def test_keys_sort_by_value_then_offset(keys: list[int]) -> None:
    ordered = sort_keys([pa.array(keys, pa.int64())])
    assert ordered.order.tolist() == sorted(range(len(keys)), key=lambda i: (keys[i], i))
    assert sorted(ordered.replaced.tolist()) == [i for i in range(len(keys)) if keys[i] in keys[i + 1 :]]
    unsigned = [key % 2**64 for key in keys]
    again = sort_keys([pa.array(unsigned, pa.uint64())])
    assert again.order.tolist() == sorted(range(len(keys)), key=lambda i: (unsigned[i], i))


KEY_TEXTS = st.binary(max_size=12) | st.sampled_from(
    [b"", b"a", b"a\0", b"a" * 8, b"a" * 8 + b"\0", b"a" * 9, b"\xff" * 9]
)


@given(st.lists(KEY_TEXTS, min_size=1, max_size=40), st.binary(max_size=20), st.integers(0, 3))
def test_binary_keys_sort_by_bytes_then_offset(texts: list[bytes], prefix: bytes, skip: int) -> None:
    keys = [prefix + text for text in texts]
    sliced = pa.array([b"before"] * skip + keys + [b"behind"]).slice(skip, len(keys))
    ordered = sort_keys([sliced])
    assert ordered.order.tolist() == sorted(range(len(keys)), key=lambda i: (keys[i], i))
    assert ordered.values.to_pylist() == sorted(keys)
    assert sorted(ordered.replaced.tolist()) == [i for i in range(len(keys)) if keys[i] in keys[i + 1 :]]


def test_a_lookup_reads_only_the_pages_that_it_needs(place: Location) -> None:
    write_sidecar(place, SHARD, TABLE.path, sort_keys([pa.array(np.arange(MANY))]))
    sidecar = PkSidecar(place, SHARD, TABLE)
    wanted = WantedKeys.of([pa.array([PAGE_ROWS + 1, PAGE_ROWS + 2])])
    assert sidecar.offsets_of(wanted).tolist() == [PAGE_ROWS + 1, PAGE_ROWS + 2]
    one_page = sidecar.size_bytes
    assert one_page == PAGE_ROWS * 16
    assert sidecar.offsets_of(WantedKeys.of([pa.array([-5])])).tolist() == [-1]
    assert sidecar.size_bytes == one_page


def test_null_keys_are_never_found(place: Location) -> None:
    write_sidecar(place, SHARD, TABLE.path, sort_keys([pa.array([0, 1])]))
    sidecar = PkSidecar(place, SHARD, TABLE)
    assert sidecar.offsets_of(WantedKeys.of([pa.array([None, 1], pa.int64())])).tolist() == [-1, 1]
    assert sidecar.offsets_of(WantedKeys.of([pa.array([], pa.int64())])).tolist() == []


def test_the_reference_s_sidecar_and_filter_are_read(tmp_path: Path) -> None:
    tables = Tables(tmp_path, pa.schema([key_field("id", pa.string()), pa.field("v", pa.int32())]))
    theirs = tables.peer([{"id": f"k{i % 10_000}", "v": i} for i in range(20_000)])
    sidecar = PkSidecar(tables.location, theirs.parent.name, SsTable(1, theirs.name))
    wanted = [pa.array(["k0", "k9999", "nothing", ""])]
    assert sidecar.offsets_of(WantedKeys.of(wanted)).tolist() == [10_000, 19_999, -1, -1]
    assert sidecar.might_contain(WantedKeys.of([pa.array(["k0", "k9999"])])).tolist() == [True, True]


@pytest.mark.parametrize(("kind", "mean"), [(pa.int64(), 0.01), (pa.uint64(), 1.1)], ids=["values", "values ignored"])
def test_the_filter_denies_no_present_key_and_most_absent_ones(tmp_path: Path, kind: pa.DataType, mean: float) -> None:
    """A filter of keys whose values the reference ignores says maybe."""
    tables = Tables(tmp_path, pa.schema([key_field("id", kind), pa.field("v", pa.int32())]))
    sstable = tables.write(tables.rows([{"id": i, "v": i} for i in range(4_000)]))
    sidecar = PkSidecar(tables.location, tables.shard, sstable)
    assert sidecar.might_contain(WantedKeys.of([pa.array(np.arange(4_000), kind)])).all()
    absent = sidecar.might_contain(WantedKeys.of([pa.array(np.arange(10_000, 14_000), kind)]))
    assert absent.mean() < mean
    assert absent.all() == (mean > 1)


def test_a_missing_filter_says_maybe_and_a_damaged_one_is_an_error(tmp_path: Path) -> None:
    tables = Tables(tmp_path, pa.schema([key_field("id", pa.int64()), pa.field("v", pa.int32())]))
    sstable = tables.write(tables.rows([{"id": 1, "v": 1}]))
    file = tables.directory(sstable) / "bloom_filter.bin"
    keys = [pa.array([1, 2])]
    for damage in (b"", b"\0" * 32768, b"abc", b"\1" * 40_000):
        file.write_bytes(damage)
        with pytest.raises(CorruptDataError):
            PkSidecar(tables.location, tables.shard, sstable).might_contain(WantedKeys.of(keys))
    file.unlink()
    assert PkSidecar(tables.location, tables.shard, sstable).might_contain(WantedKeys.of(keys)).tolist() == [True, True]


def test_a_key_of_another_type_is_refused(place: Location) -> None:
    write_sidecar(place, SHARD, TABLE.path, sort_keys([pa.array([1])]))
    with pytest.raises(InvalidInputError, match="int64, not int32"):
        PkSidecar(place, SHARD, TABLE).offsets_of(WantedKeys.of([pa.array([1], pa.int32())]))


# --------------------------------------------------------------------------------------------------------- damage


def pk_index(place: Location) -> Path:
    assert place.root_path is not None
    return Path(place.root_path, "_mem_wal", SHARD, TABLE.path, "_pk_index")


@pytest.mark.parametrize("name", ["page_data.lance", "page_lookup.lance"])
@pytest.mark.parametrize("damage", ["missing", "empty", "garbage", "cut"])
def test_a_damaged_file_is_reported_as_corrupt_and_a_missing_one_as_missing(
    place: Location, name: str, damage: str
) -> None:
    write_sidecar(place, SHARD, TABLE.path, sort_keys([pa.array([1, 2])]))
    file = pk_index(place) / name
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes({"empty": b"", "garbage": b"x" * 500, "cut": file.read_bytes()[:-9]}[damage])
    with pytest.raises(ObjectNotFoundError if damage == "missing" else CorruptDataError) as caught:
        PkSidecar(place, SHARD, TABLE).offsets_of(WantedKeys.of([pa.array([1])]))
    if isinstance(caught.value, CorruptDataError):
        assert caught.value.path is not None
        assert caught.value.path.endswith(name)


def write_data(place: Location, table: pa.Table) -> None:
    with LanceFileWriter(str(pk_index(place) / "page_data.lance"), table.schema, version="2.0") as writer:
        writer.write_batch(table)


def page_data(values: Any, ids: list[int]) -> pa.Table:
    schema = pa.schema([pa.field("values", values.type), pa.field("ids", pa.uint64(), nullable=False)])
    return pa.table([values, pa.array(ids, pa.uint64())], schema=schema)


@pytest.mark.parametrize(
    "table",
    [
        page_data(pa.array([1, 2]), [0, 7]),
        page_data(pa.array([1, 3]), [0, 1]),
        page_data(pa.array([0, 2]), [0, 1]),
        page_data(pa.array([1, None]), [0, 1]),
        page_data(pa.array(["a", "b"]), [0, 1]),
    ],
    ids=["row that is not there", "other largest", "other smallest", "null key", "other type"],
)
def test_a_page_that_contradicts_the_rest_is_corrupt(place: Location, table: pa.Table) -> None:
    write_sidecar(place, SHARD, TABLE.path, sort_keys([pa.array([1, 2])]))
    write_data(place, table)
    sidecar = PkSidecar(place, SHARD, TABLE)
    for _ in range(2):  # what was found to be damaged is not kept
        with pytest.raises(CorruptDataError):
            sidecar.offsets_of(WantedKeys.of([pa.array([1])]))


def test_more_data_than_the_lookup_knows_is_corrupt(place: Location) -> None:
    write_sidecar(place, SHARD, TABLE.path, sort_keys([pa.array([1, 2])]))
    write_data(place, page_data(pa.array(np.arange(PAGE_ROWS + 1)), list(range(PAGE_ROWS + 1))))
    with pytest.raises(CorruptDataError, match="disagree"):
        PkSidecar(place, SHARD, TABLE).offsets_of(WantedKeys.of([pa.array([1])]))


def write_lookup(place: Location, least: list[int], most: list[int], size: str) -> None:
    pages, zeros = pa.array(range(len(least)), pa.uint32()), pa.array([0] * len(least), pa.uint32())
    lookup = pa.table([pa.array(least), pa.array(most), zeros, pages], names=["min", "max", "null_count", "page_idx"])
    with LanceFileWriter(str(pk_index(place) / "page_lookup.lance"), lookup.schema, version="2.0") as writer:
        writer.write_batch(lookup)
        writer.add_schema_metadata("batch_size", size)


def test_a_sidecar_with_another_page_size_is_read(place: Location) -> None:
    keys = SortedKeys(pa.array([1, 2, 3]), pa.array([1, 2, 3]), np.array([2, 1, 0]), np.array([], np.int64))
    write_sidecar(place, SHARD, TABLE.path, keys)
    write_lookup(place, [1, 3], [2, 3], "2")
    sidecar = PkSidecar(place, SHARD, TABLE)
    assert sidecar.offsets_of(WantedKeys.of([pa.array([1, 2, 3, 4])])).tolist() == [2, 1, 0, -1]


@pytest.mark.parametrize("size", ["0", "-1", "x", "99999999999"])
def test_a_page_size_that_makes_no_sense_is_corrupt(place: Location, size: str) -> None:
    write_sidecar(place, SHARD, TABLE.path, sort_keys([pa.array([1])]))
    write_lookup(place, [1], [1], size)
    with pytest.raises(CorruptDataError, match="malformed"):
        PkSidecar(place, SHARD, TABLE).offsets_of(WantedKeys.of([pa.array([1])]))
