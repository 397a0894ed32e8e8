"""A column type is refused when a table is made or opened for writing, or its rows are the same in every tier."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.errors import InvalidInputError
from lance_memwal.log.entry import RowEncoder
from lance_memwal.rows.blobs import is_blob
from lance_memwal.rows.column_types import check_columns
from lance_memwal.rows.normal_form import blank, loose, no_rows, normal, nulls
from lance_memwal.rows.schema import TableSchema, as_lance
from lance_memwal.rows.validity import validate
from lance_memwal.types import TOMBSTONE_FIELD
from tests.kit.column_types import FLAT, NESTED, OTHERS, TAG, VERSIONS, go_the_whole_way, is_refused, schema_of

BLOB = {b"lance-encoding:blob": b"true"}


@pytest.mark.repro("writer-04")
@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "append-only"])
@pytest.mark.parametrize("version", VERSIONS)
def test_rows_of_accepted_types_are_equal_in_every_tier(tmp_path: Path, version: str, keyed: bool) -> None:
    kinds = [kind for kind in [*FLAT, *OTHERS, *NESTED] if not is_refused(kind, version)]
    go_the_whole_way(tmp_path, kinds, version, keyed=keyed)


REFUSED = [
    *(pa.list_(pa.struct([("a", pa.int32())]), 2), pa.list_(pa.string(), 2), pa.list_(pa.list_(pa.int32()), 2)),
    *(pa.struct([]), pa.list_(pa.struct([])), pa.decimal32(5, 2), pa.list_(TAG, 2), pa.month_day_nano_interval()),
    pa.list_(pa.list_(pa.float32(), 2), 2),  # Arrow gathers other values of a part of such a column
    *(pa.struct([("deep", pa.list_(pa.binary(), 2))]), pa.dictionary(pa.int8(), pa.decimal128(5, 2))),
]


@pytest.mark.repro("writer-04")
@pytest.mark.parametrize("kind", REFUSED, ids=str)
def test_unsupported_type_is_refused_by_name_before_writing(tmp_path: Path, kind: pa.DataType) -> None:
    schema = pa.schema([("id", pa.int64()), ("fine", pa.list_(pa.int8())), ("bad", kind)])
    for key in ("id", None):
        with pytest.raises(mw.InvalidInputError, match="column 'bad'"):
            mw.create_table(str(tmp_path / "t"), schema, primary_key=key, sharding=mw.Unsharded())
    assert not list(tmp_path.iterdir())


def test_maps_are_refused_where_files_are_too_old_for_them(tmp_path: Path) -> None:
    schema = schema_of([pa.map_(pa.string(), pa.int32())], keyed=True)
    for version in VERSIONS:
        with_maps = version == "2.2"
        uri = str(tmp_path / version)
        lance.write_dataset(schema.empty_table().select(["id"]), uri, data_storage_version=version)
        lance.dataset(uri).add_columns(pa.schema([pa.field("c0", schema.field("c0").type)]))
        if with_maps:
            mw.enable(uri, sharding=mw.Unsharded())
        else:
            with pytest.raises(mw.InvalidInputError, match=rf"column 'c0'.*version {version}"):
                mw.enable(uri, sharding=mw.Unsharded())


@pytest.mark.prove
@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "append-only"])
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", [*FLAT, *OTHERS, *NESTED], ids=str)
def test_type_is_refused_or_equal_in_every_tier(tmp_path: Path, kind: pa.DataType, version: str, keyed: bool) -> None:
    if is_refused(kind, version):
        with pytest.raises(mw.InvalidInputError, match="column 'c0'"):
            check_columns(as_lance(schema_of([kind], keyed=keyed)), version)
    else:
        go_the_whole_way(tmp_path, [kind], version, keyed=keyed)


FIELDS = [  # a column, and the versions of data files in which a table may have it
    (pa.field("c", pa.large_binary(), metadata=BLOB), "2.0 2.1"),
    (lance.blob_field("c"), "2.2"),
    (pa.field("c", pa.string(), metadata=BLOB), ""),
    (pa.field("c", pa.struct([pa.field("x", pa.large_binary(), metadata=BLOB)])), ""),
    (pa.field("c", pa.list_(lance.blob_field("item"))), ""),
    (pa.field("c", pa.large_binary(), metadata={b"unit": b"metre"}), "2.0 2.1 2.2"),
    (
        pa.field("c", pa.struct([pa.field("x", pa.string(), metadata={b"lance-encoding:compression": b"zstd"})])),
        "2.0 2.1 2.2",
    ),
    (pa.field("c", pa.int64(), metadata={b"lance-encoding:structural-encoding": b"fullzip"}), "2.0 2.1 2.2"),
    (pa.field("c", pa.int64(), metadata={b"lance-encoding:rle-threshold": b"0.5"}), "2.0 2.1 2.2"),
    (pa.field("c", pa.int64(), metadata={b"lance-encoding:compression": b"unknown"}), ""),
    (pa.field("c", pa.struct([("a", pa.int32())]), metadata={b"packed": b"true"}), ""),
    (pa.field("c", pa.large_binary(), metadata={b"ARROW:extension:name": b"lance.json"}), ""),
    (pa.field("c", pa.json_(pa.large_string())), ""),
    (pa.field("c", pa.struct([("x", pa.int8()), ("x", pa.int8())])), ""),
    (pa.field("c", pa.dictionary(pa.int32(), pa.float16())), ""),
]


@pytest.mark.parametrize(("field", "versions"), FIELDS, ids=lambda value: str(value)[:40])
def test_column_settings_are_accepted_only_if_rows_come_back(tmp_path: Path, field: pa.Field, versions: str) -> None:
    schema = schema_of([pa.int8()], keyed=True).append(field)
    for version in VERSIONS:
        if version not in versions.split():
            with pytest.raises(mw.InvalidInputError, match="column 'c'"):
                check_columns(schema, version)
            continue
        check_columns(schema, version)
        lance.write_dataset(no_rows(schema), tmp_path / version, data_storage_version=version)
        table = mw.enable(str(tmp_path / version), sharding=mw.Unsharded())
        is_bytes = is_blob(field) or pa.types.is_large_binary(field.type)
        value = {"x": "y"} if pa.types.is_struct(field.type) else b"x" if is_bytes else 1
        with table.writer(compaction=None) as writer:
            writer.put([{"id": number, "c0": 1, "c": value} for number in (1, 2)])
        for _ in ("SSTable", "base table"):
            found = [table.get_blob(key, "c").read() if is_blob(field) else table.get(key)["c"] for key in (1, 2)]
            assert found == [value, value]
            table.compact()
        assert table.dataset.count_rows() == 2


@pytest.mark.parametrize("version", ["0.1", "legacy"])
def test_data_files_of_the_first_format_are_refused_for_writing(version: str) -> None:
    with pytest.raises(mw.InvalidInputError, match=version):
        check_columns(schema_of([pa.int8()], keyed=True), version)


# ------------------------------------------------------------------------------------------------------- other people's


def odd_table(uri: str) -> None:
    """A table that pylance made and initialised, with a column that we do not write."""
    schema = schema_of([pa.int32()], keyed=True)
    lance.write_dataset(
        pa.table([[1, 2], pa.array([5, 6], pa.int32())], schema=schema), uri, data_storage_version="2.1"
    )
    lance.dataset(uri).add_columns(pa.schema([pa.field("odd", pa.map_(pa.string(), pa.int32()))]))
    lance.dataset(uri).initialize_mem_wal(unsharded=True)


def test_a_table_of_pylance_with_a_column_that_we_do_not_write_can_be_read_and_gives_no_writer(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    odd_table(uri)
    table = mw.open_table(uri)
    assert table.scan().to_table().to_pylist() == [{"id": 1, "c0": 5, "odd": None}, {"id": 2, "c0": 6, "odd": None}]
    assert table.get(2, columns=["c0"]) == {"c0": 6}
    assert table.count_rows() == 2
    assert table.verify().ok
    before = lance.dataset(uri).version
    shard = "11111111-2222-4333-8444-555555555555"
    for opening in (
        lambda: mw.open_table(uri).writer(),
        lambda: mw.open_table(uri).shard_writer(),
        lambda: mw.ShardWriter.open(uri, shard_id=shard),
        lambda: mw.WalAppender.open(uri, shard),
    ):
        with pytest.raises(mw.InvalidInputError, match=r"column 'odd'.*map"):
            opening()
    assert mw.open_table(uri).shards() == []
    assert lance.dataset(uri).version == before, "a refused table is left as it is"


@pytest.mark.repro("reads-05", "writer-05")
def test_a_column_that_does_not_come_back_is_refused_at_create_and_enable(tmp_path: Path) -> None:
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), ("odd", pa.list_(pa.struct([("a", pa.int8())]), 2))]
    )
    with pytest.raises(mw.InvalidInputError, match="column 'odd'"):
        mw.create_table(str(tmp_path / "made"), schema, primary_key="id", sharding=mw.Unsharded())
    lance.write_dataset(pa.table({"id": [1]}), tmp_path / "t", data_storage_version="2.1")
    lance.dataset(tmp_path / "t").add_columns(pa.schema([schema.field("odd")]))
    with pytest.raises(mw.InvalidInputError, match="column 'odd'"):
        mw.enable(str(tmp_path / "t"), sharding=mw.Unsharded())


# ------------------------------------------------------------------------------------------------------- added later


def test_a_column_that_is_added_later_is_checked_before_writers_take_it(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = mw.create_table(uri, schema_of([pa.int32()], keyed=True), sharding=mw.Unsharded())
    bad = pa.list_(pa.string(), 2)
    with table.writer(compaction=None) as routed:
        lance.dataset(uri).add_columns(pa.schema([pa.field("later", bad)]))
        with pytest.raises(mw.InvalidInputError, match="column 'later'"):
            routed.evolve_schema()
    with pytest.raises(mw.InvalidInputError, match="column 'later'"):
        table.shard_writer()
    lance.dataset(uri).drop_columns(["later"])
    with table.shard_writer() as writer:
        writer.put([{"id": 1, "c0": 1}])
        lance.dataset(uri).add_columns(pa.schema([pa.field("later", bad)]))
        with pytest.raises(mw.InvalidInputError, match="column 'later'"):
            writer.evolve_schema()
        writer.put([{"id": 2, "c0": 2}])
    assert sorted(row["id"] for row in table.scan(columns=["id"]).to_table().to_pylist()) == [1, 2]


def test_an_appender_without_a_base_table_checks_the_columns_of_its_first_rows(tmp_path: Path) -> None:
    appender = mw.WalAppender.open(str(tmp_path), "11111111-2222-4333-8444-555555555555")
    with pytest.raises(mw.InvalidInputError, match="column 'c0'"):
        appender.append(pa.table([[1], pa.array([["a", "b"]], pa.list_(pa.string(), 2))], names=["id", "c0"]))
    assert appender.append(pa.table({"id": [1], "c0": [["a", "b"]]})) > 0


KIND = pa.dictionary(pa.int8(), pa.string())
COLUMNS = pa.schema([("c", KIND)])


def batch(index: int) -> pa.RecordBatch:
    indices, values = pa.array([index], pa.int8()), pa.array(["a"])
    made = pa.DictionaryArray.from_arrays(indices, values, safe=False)
    return pa.RecordBatch.from_arrays([made, pa.array([False])], schema=COLUMNS.append(TOMBSTONE_FIELD))


def test_an_entry_that_is_whole_and_not_understood_is_invalid_input() -> None:
    encoder = RowEncoder(TableSchema.from_arrow(COLUMNS).wal)
    encoder.messages([batch(0)])
    with pytest.raises(mw.InvalidInputError, match="column 'c'"):
        encoder.messages([batch(5)])


ROWS = 5_000
_KINDS = (pa.string(), pa.large_string())


def _place(kind: pa.DataType) -> type[np.generic]:
    return np.int32 if kind == pa.string() else np.int64


def _texts(kind: pa.DataType, values: list[str | None]) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(range(len(values))), "text": pa.array(values, kind)})


def _with(batch: pa.RecordBatch, places: np.ndarray, data: bytes, nulls: pa.Buffer | None = None) -> pa.RecordBatch:
    """`batch` with other buffers in its texts; of `nulls`, one is told of."""
    kind = batch.column(1).type
    buffers = [nulls, pa.py_buffer(places.astype(_place(kind)).tobytes()), pa.py_buffer(data)]
    column = pa.Array.from_buffers(kind, batch.num_rows, buffers, null_count=0 if nulls is None else 1)
    return pa.RecordBatch.from_arrays([batch.column(0), column], names=["id", "text"])


def _says(check: Callable[[], None]) -> str | None:
    try:
        check()
    except (pa.ArrowException, ValueError) as error:
        return type(error).__name__
    return None


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize(
    "values",
    [
        [f"name {i}" for i in range(ROWS)],
        ["é" * (i % 3) for i in range(ROWS)],
        ["日本" if i % 7 else "" for i in range(ROWS)],
        [None if i % 5 == 0 else f"🙂{i}" for i in range(ROWS)],
        [None] * ROWS,
        [""] * ROWS,
    ],
)
def test_sound_texts_are_accepted_whole_and_in_part(kind: pa.DataType, values: list[str | None]) -> None:
    batch = _texts(kind, values)
    validate(batch)
    validate(batch.slice(3, ROWS - 5))


@pytest.mark.parametrize("kind", _KINDS)
def test_texts_that_arrow_refuses_are_refused(kind: pa.DataType) -> None:
    batch = _texts(kind, ["aé"] * ROWS)
    data, places = "aé".encode() * ROWS, np.arange(0, 3 * ROWS + 1, 3)
    inside, falling = places.copy(), places.copy()
    inside[17] -= 1  # between the two bytes of a character: only the whole is a text
    falling[17] = 7
    broken = data[:600] + b"\xff" + data[601:]
    all_null = pa.py_buffer(bytes((ROWS + 7) // 8))  # one is told of
    made = [
        _with(batch, inside, data),
        _with(batch, falling, data),
        _with(batch, places, broken),
        _with(batch, places, data[:-1] + b"\xc3"),
        _with(batch, places, data, all_null),
    ]
    for each in made:
        assert _says(partial(each.validate, full=True)) is not None
        assert _says(partial(validate, each)) is not None


def test_bytes_of_no_value_may_be_anything() -> None:
    sound = _texts(pa.string(), [None if i == 4 else "ab" for i in range(ROWS)])
    _, places, data = sound.column(1).buffers()
    told = np.frombuffer(places, np.int32).copy()
    told[5:] += 1  # the null gets a byte
    raw = bytes(data)
    garbage = pa.Array.from_buffers(
        pa.string(), ROWS, [sound.column(1).buffers()[0], pa.py_buffer(told), pa.py_buffer(raw[:8] + b"\xff" + raw[8:])]
    )
    garbage.validate(full=True)
    validate(pa.RecordBatch.from_arrays([sound.column(0), garbage], names=["id", "text"]))


@pytest.mark.parametrize("kind", _KINDS)
def test_buffers_may_be_longer_than_their_values(kind: pa.DataType) -> None:
    width = _place(kind)().itemsize
    sound = _texts(kind, ["é"] * ROWS).column(1)
    _, places, data = sound.buffers()
    longer = [None, pa.py_buffer(bytes(places)[: (ROWS + 1) * width] + b"\x07"), pa.py_buffer(bytes(data) + b"\xff")]
    column = pa.Array.from_buffers(kind, ROWS - 2, longer, offset=2)
    column.validate(full=True)
    validate(pa.RecordBatch.from_arrays([column], names=["text"]))


def test_damage_anywhere_is_judged_as_arrow_does() -> None:
    rng = np.random.default_rng(5)
    batch = _texts(pa.string(), ["aé日🙂"[: i % 5] for i in range(ROWS)])
    _, places, data = batch.column(1).buffers()
    refused = 0
    for _ in range(200):
        told, raw = np.frombuffer(places, np.int32).copy(), bytearray(data)
        if rng.random() < 0.5:
            raw[rng.integers(len(raw))] = rng.integers(256)
        else:
            told[rng.integers(1, ROWS)] += rng.integers(-2, 3)
        each = _with(batch, told, bytes(raw))
        verdict = _says(partial(each.validate, full=True))
        assert _says(partial(validate, each)) == verdict
        refused += verdict is not None
    assert 20 < refused < 200


def test_types_without_a_hash_are_looked_at_too() -> None:
    class Unhashed(pa.ExtensionType):
        __hash__ = None  # type: ignore[assignment]

        def __init__(self) -> None:
            super().__init__(pa.int64(), "tests.unhashed")

        def __arrow_ext_serialize__(self) -> bytes:
            return b""

    column = pa.ExtensionArray.from_storage(Unhashed(), pa.array(range(ROWS)))
    validate(pa.RecordBatch.from_arrays([column, pa.array(["é"] * ROWS)], names=["own", "text"]))


def strict(kind: pa.DataType, name: str = "x") -> pa.Field:
    return pa.field(name, kind, nullable=False)


STRICT_KINDS = [
    pa.struct([strict(TAG)]),
    pa.struct([strict(pa.struct([strict(TAG)]))]),
    pa.struct(
        [strict(pa.list_(strict(TAG))), strict(pa.map_(TAG, pa.int8()), "m"), strict(pa.list_(strict(TAG), 3), "f")]
    ),
    pa.struct(
        [strict(pa.uuid()), strict(pa.decimal256(40, 2), "d"), strict(pa.binary(4), "b"), strict(pa.float16(), "h")]
    ),
    pa.struct([strict(pa.struct([]))]),
    pa.list_(strict(TAG)),
    pa.list_(strict(pa.float32()), 2),
    pa.list_(strict(pa.struct([strict(TAG)])), 2),
    pa.large_list(strict(pa.struct([strict(pa.large_string())]))),
    pa.map_(pa.string(), strict(TAG, "value")),
    pa.map_(pa.string(), strict(pa.int32(), "value")),
]


@pytest.mark.parametrize("kind", STRICT_KINDS, ids=str)
def test_values_and_nulls_of_strict_types_become_valid_and_stay_the_same(kind: pa.DataType) -> None:
    value, missing = blank(kind), nulls(2, kind)
    assert missing.null_count == 2
    assert missing.type == kind
    unfilled = pa.nulls(2, kind)  # what Arrow itself makes of nulls, not always valid
    for parts in ([missing, value], [value, unfilled, value], [unfilled, value, missing]):
        whole = pa.concat_arrays(parts)
        for array in (whole, whole.slice(1)):
            found = normal(array)
            found.validate(full=True)
            assert found.type == kind
            assert found.to_pylist() == array.to_pylist()


@pytest.mark.parametrize("kind", STRICT_KINDS, ids=str)
def test_python_nulls_of_strict_types_are_converted_to_valid_arrays(kind: pa.DataType) -> None:
    if pa.types.is_struct(kind) and isinstance(kind.field(0).type, pa.BaseExtensionType):
        kind = pa.struct(list(kind)[1:])  # Arrow itself converts no Python values to extension types inside others
    found = normal(pa.array([None, None], loose(kind)), kind)
    found.validate(full=True)
    assert found.to_pylist() == [None, None]


def test_a_null_in_a_visible_strict_field_is_refused_by_name() -> None:
    inner = pa.struct([strict(TAG, "tag")])
    given = pa.array([{"tag": None}], loose(inner))
    with pytest.raises(InvalidInputError, match="'tag' must not be null"):
        normal(given, inner)
    with pytest.raises(InvalidInputError, match="'item' must not be null"):
        normal(pa.array([[1, None]], pa.list_(pa.int8())), pa.list_(strict(pa.int8(), "item")))


def test_a_full_dictionary_does_not_grow_by_what_fills_it() -> None:
    kind = pa.struct([strict(TAG, "tag")])
    words = pa.array([f"w{i}" for i in range(128)])
    tags = pa.DictionaryArray.from_arrays(pa.array([*range(128), None], pa.int8()), words)
    given = pa.StructArray.from_arrays([tags], fields=[pa.field("tag", TAG)], mask=pa.array([False] * 128 + [True]))
    found = normal(given, kind)
    found.validate(full=True)
    assert len(found.field(0).dictionary) == 128
    assert found.to_pylist()[-1] is None


@pytest.mark.parametrize("wrap", ["plain", "struct", "list", "fixed", "map"])
def test_a_null_among_dictionary_values_moves_into_the_indices(wrap: str) -> None:
    tags = pa.DictionaryArray.from_arrays(pa.array([1, 0, None, 2], pa.int8()), pa.array(["z", None, "y"]))
    array = {
        "plain": lambda: tags,
        "struct": lambda: pa.StructArray.from_arrays([tags], names=["t"]),
        "list": lambda: pa.ListArray.from_arrays([0, 1, 3, 4], tags),
        "fixed": lambda: pa.FixedSizeListArray.from_arrays(tags, 2),
        "map": lambda: pa.MapArray.from_arrays([0, 2, 4], pa.array(list("abcd")), tags),
    }[wrap]()
    found = normal(array)
    found.validate(full=True)
    assert found.to_pylist() == array.to_pylist()
    inner = {"plain": lambda: found, "struct": lambda: found.field(0), "map": lambda: found.items}.get(
        wrap, lambda: found.values
    )()
    assert inner.dictionary.to_pylist() == ["z", "y"]
