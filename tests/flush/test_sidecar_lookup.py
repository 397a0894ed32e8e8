"""A sidecar finds the newest row of every key, ours or the reference's, and never mistakes damage for absence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lance.file import LanceFileWriter

from lance_memwal.errors import CorruptDataError, InvalidInputError, ObjectNotFoundError
from lance_memwal.sstable.sidecar import PAGE_ROWS, PkSidecar, SortedKeys, WantedKeys, sort_keys, write_sidecar
from lance_memwal.store.location import Location, resolve
from lance_memwal.types import SsTable
from tests.kit.flush_peer import Tables, key_field

SHARD = "7a2f3c64-55a1-4d0e-9c44-0f6b2f9d1c10"
TABLE = SsTable(1, "0000abcd_gen_1")
ROWS = 3 * PAGE_ROWS + 17


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
    numbers = np.random.default_rng(5).integers(0, 12_000, ROWS)
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
    assert sidecar.offsets_of(wanted).tolist() == [
        -1,
        4,
        2 * PAGE_ROWS + 4,
        2 * PAGE_ROWS + 5,
        -1,
    ]
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
    write_sidecar(place, SHARD, TABLE.path, sort_keys([pa.array(np.arange(ROWS))]))
    sidecar = PkSidecar(place, SHARD, TABLE)
    wanted = WantedKeys.of([pa.array([PAGE_ROWS + 1, PAGE_ROWS + 2])])
    assert sidecar.offsets_of(wanted).tolist() == [
        PAGE_ROWS + 1,
        PAGE_ROWS + 2,
    ]
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


def test_the_filter_denies_most_absent_keys_and_no_present_one(tmp_path: Path) -> None:
    tables = Tables(tmp_path, pa.schema([key_field("id", pa.int64()), pa.field("v", pa.int32())]))
    sstable = tables.write(tables.rows([{"id": i, "v": i} for i in range(4_000)]))
    sidecar = PkSidecar(tables.location, tables.shard, sstable)
    assert sidecar.might_contain(WantedKeys.of([pa.array(np.arange(4_000))])).all()
    assert sidecar.might_contain(WantedKeys.of([pa.array(np.arange(10_000, 14_000))])).mean() < 0.01


def test_a_filter_that_ignores_values_says_maybe(tmp_path: Path) -> None:
    tables = Tables(tmp_path, pa.schema([key_field("id", pa.uint64()), pa.field("v", pa.int32())]))
    sstable = tables.write(tables.rows([{"id": 1, "v": 1}]))
    sidecar = PkSidecar(tables.location, tables.shard, sstable)
    assert sidecar.might_contain(WantedKeys.of([pa.array([1, 2, 3], pa.uint64())])).tolist() == [True, True, True]


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
    assert PkSidecar(tables.location, tables.shard, sstable).might_contain(WantedKeys.of(keys)).tolist() == [
        True,
        True,
    ]


def test_a_key_of_another_type_is_refused(place: Location) -> None:
    write_sidecar(place, SHARD, TABLE.path, sort_keys([pa.array([1])]))
    with pytest.raises(InvalidInputError, match="int64, not int32"):
        PkSidecar(place, SHARD, TABLE).offsets_of(WantedKeys.of([pa.array([1], pa.int32())]))


# --------------------------------------------------------------------------------------------------------- damage


def pk_index(place: Location) -> Path:
    assert place.root_path is not None
    return Path(place.root_path, "_mem_wal", SHARD, TABLE.path, "_pk_index")


@pytest.mark.parametrize("name", ["page_data.lance", "page_lookup.lance"])
def test_a_missing_file_is_reported_as_missing(place: Location, name: str) -> None:
    write_sidecar(place, SHARD, TABLE.path, sort_keys([pa.array([1, 2])]))
    (pk_index(place) / name).unlink()
    with pytest.raises(ObjectNotFoundError):
        PkSidecar(place, SHARD, TABLE).offsets_of(WantedKeys.of([pa.array([1])]))


@pytest.mark.parametrize("name", ["page_data.lance", "page_lookup.lance"])
@pytest.mark.parametrize("damage", ["empty", "garbage", "cut"])
def test_a_damaged_file_is_reported_as_corrupt(place: Location, name: str, damage: str) -> None:
    write_sidecar(place, SHARD, TABLE.path, sort_keys([pa.array([1, 2])]))
    file = pk_index(place) / name
    content = {"empty": b"", "garbage": b"x" * 500, "cut": file.read_bytes()[:-9]}[damage]
    file.write_bytes(content)
    with pytest.raises(CorruptDataError) as caught:
        PkSidecar(place, SHARD, TABLE).offsets_of(WantedKeys.of([pa.array([1])]))
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


def test_a_sidecar_with_another_page_size_is_read(place: Location) -> None:
    keys = SortedKeys(pa.array([1, 2, 3]), pa.array([1, 2, 3]), np.array([2, 1, 0]), np.array([], np.int64))
    write_sidecar(place, SHARD, TABLE.path, keys)
    lookup = pa.table(
        [pa.array([1, 3]), pa.array([2, 3]), pa.array([0, 0], pa.uint32()), pa.array([0, 1], pa.uint32())],
        names=["min", "max", "null_count", "page_idx"],
    )
    with LanceFileWriter(str(pk_index(place) / "page_lookup.lance"), lookup.schema, version="2.0") as writer:
        writer.write_batch(lookup)
        writer.add_schema_metadata("batch_size", "2")
    sidecar = PkSidecar(place, SHARD, TABLE)
    assert sidecar.offsets_of(WantedKeys.of([pa.array([1, 2, 3, 4])])).tolist() == [2, 1, 0, -1]


@pytest.mark.parametrize("size", ["0", "-1", "x", "99999999999"])
def test_a_page_size_that_makes_no_sense_is_corrupt(place: Location, size: str) -> None:
    write_sidecar(place, SHARD, TABLE.path, sort_keys([pa.array([1])]))
    lookup = pa.table(
        [pa.array([1]), pa.array([1]), pa.array([0], pa.uint32()), pa.array([0], pa.uint32())],
        names=["min", "max", "null_count", "page_idx"],
    )
    with LanceFileWriter(str(pk_index(place) / "page_lookup.lance"), lookup.schema, version="2.0") as writer:
        writer.write_batch(lookup)
        writer.add_schema_metadata("batch_size", size)
    with pytest.raises(CorruptDataError, match="malformed"):
        PkSidecar(place, SHARD, TABLE).offsets_of(WantedKeys.of([pa.array([1])]))
