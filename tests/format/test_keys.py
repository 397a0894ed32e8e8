"""Primary keys are found, checked, encoded in order, and hashed, exactly as the reference does it."""

from __future__ import annotations

import datetime
import re
import struct
import uuid
import zoneinfo
from collections.abc import Sequence
from decimal import Context, Decimal
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lance.schema import LanceSchema

from lance_memwal.errors import CorruptDataError, InvalidInputError
from lance_memwal.memtable.key_index import key_values
from lance_memwal.rows.ingest import key_batch
from lance_memwal.rows.key_encoding import (
    check_primary_key,
    encode_composite,
    hash_is_exact,
    is_key_type,
    is_key_type_of_others,
    key_hashes,
    primary_key_columns,
)
from lance_memwal.rows.keys import key_array
from lance_memwal.rows.one_key import KeyForm
from lance_memwal.rows.schema import TableSchema
from lance_memwal.rows.sql import in_list
from tests.kit.composite_keys import decode_composite
from tests.kit.key_values import OWN_KEYS, other_forms

KEY = "lance-schema:unenforced-primary-key"
POSITION = KEY + ":position"
KEY_TYPES = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.bool_(), pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
]
OWN_TYPES = [
    *(pa.binary(1), pa.binary(16), pa.uuid(), pa.date32(), pa.date64(), pa.timestamp("s"), pa.timestamp("ms", "UTC")),
    *(pa.timestamp("us", "Europe/Berlin"), pa.timestamp("ns"), pa.decimal128(9, 2), pa.decimal128(38, 0)),
    *(pa.decimal256(76, 10),),
]
REFUSED_TYPES = [
    *(pa.float64(), pa.float16(), pa.time64("us"), pa.duration("s"), pa.dictionary(pa.int8(), pa.string())),
    *(pa.decimal128(5, -2), pa.json_(), pa.bool8(), pa.binary(0)),
]


# ------------------------------------------------------------------------------------------------------ discovery


def column(name: str, **metadata: str) -> pa.Field:
    return pa.field(
        name, pa.int64(), nullable=False, metadata={KEY if k == "key" else POSITION: v for k, v in metadata.items()}
    )


FLAGS = ["true", "TRUE", "True", "1", "yes", "YES", "on", "On", "y", "Y", "t", "", "0", "false", "no", " true", "01"]
PLACES = ["0", "1", "+1", "-1", " 1", "01", "4294967295", "4294967296", "1_0", "x", "", "٣"]


@pytest.mark.parametrize("flag", FLAGS)
def test_a_flag_counts_exactly_where_the_reference_counts_it(flag: str) -> None:
    schema = pa.schema([column("a", key=flag)])
    reference = LanceSchema.from_pyarrow(schema).fields()[0].is_unenforced_primary_key()
    assert primary_key_columns(schema) == (["a"] if reference else [])


@pytest.mark.parametrize("place", PLACES)
def test_a_position_alone_makes_a_key_exactly_where_it_does_for_the_reference(place: str) -> None:
    schema = pa.schema([column("a", position=place), column("b", position="2", key="false")])
    reference = [field.name() for field in LanceSchema.from_pyarrow(schema).unenforced_primary_key()]
    assert primary_key_columns(schema) == reference


def test_positions_come_first_in_ascending_order_then_schema_order() -> None:
    schema = pa.schema(
        [
            column("last", key="true"),
            column("upper_half", position="3000000000"),
            column("second", position="7"),
            column("zero", position="0"),
            column("first", position="2"),
            column("tie", position="7"),
            pa.field("plain", pa.int64()),
        ]
    )
    assert primary_key_columns(schema) == ["upper_half", "first", "second", "tie", "last", "zero"]
    assert primary_key_columns(schema) == [f.name() for f in LanceSchema.from_pyarrow(schema).unenforced_primary_key()]


def test_a_schema_without_metadata_has_no_key() -> None:
    assert primary_key_columns(pa.schema([pa.field("a", pa.int64())])) == []


@pytest.mark.parametrize(
    "wrap", [lambda f: pa.struct([f]), lambda f: pa.list_(f), lambda f: pa.list_(pa.struct([f]), 2)]
)
def test_a_nested_key_is_refused_with_its_name(wrap: Any) -> None:
    schema = pa.schema([pa.field("outer", wrap(column("inner", key="true")))])
    with pytest.raises(InvalidInputError, match=r"'inner' is nested in column 'outer'"):
        primary_key_columns(schema)


def test_the_reference_writes_tables_with_exactly_our_key_types(tmp_path: Any) -> None:
    for number, kind in enumerate([*KEY_TYPES, *OWN_TYPES, pa.float64(), pa.float16()]):
        schema = pa.schema([pa.field("k", kind, nullable=False, metadata={KEY: "true"})])
        dataset = lance.write_dataset(schema.empty_table(), tmp_path / str(number))
        try:
            dataset.initialize_mem_wal()
            accepted = True
        except (OSError, ValueError):
            accepted = False
        assert is_key_type_of_others(kind) == accepted, kind
        assert is_key_type(kind) == (kind in KEY_TYPES or kind in OWN_TYPES), kind


@pytest.mark.parametrize("kind", REFUSED_TYPES)
def test_a_key_of_another_type_is_refused_with_name_and_type(kind: pa.DataType) -> None:
    with pytest.raises(InvalidInputError, match=f"^primary key column 'k' has type {re.escape(str(kind))};"):
        check_primary_key(pa.schema([pa.field("k", kind, nullable=False)]), ["k"])


def test_a_nullable_or_missing_key_column_is_refused() -> None:
    schema = pa.schema([pa.field("k", pa.int64())])
    with pytest.raises(InvalidInputError, match="'k' must not be nullable"):
        check_primary_key(schema, ["k"])
    with pytest.raises(InvalidInputError, match="'x' is not in the schema"):
        check_primary_key(schema, ["x"])


# ------------------------------------------------------------------------------------------------------- encoding


def test_composite_keys_have_the_documented_bytes() -> None:
    first = encode_composite([pa.array([-1]), pa.array(["a\0z"])])
    assert first[0].as_py().hex() == "017fffffffffffffff016100ff7a0000"
    second = encode_composite(
        [pa.array([2], pa.int32()), pa.array([7], pa.uint16()), pa.array([True]), pa.array([b"\x00\xff"])]
    )
    assert second[0].as_py().hex() == "01800000000000000201000000000000000701010100ffff0000"
    assert second.type == pa.binary()
    third = encode_composite(
        [
            pa.array([-1], pa.date32()),
            pa.array([2], pa.timestamp("us", "UTC")),
            pa.array([b"\0" * 15 + b"z"], pa.uuid()),
            pa.array([Decimal("-0.01")], pa.decimal128(5, 2)),
        ]
    )
    assert third[0].as_py().hex() == (
        "017fffffffffffffff01800000000000000201" + "00ff" * 15 + "7a0000017fffffffffffffffffffffffffffffff"
    )


def value_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_boolean(kind):
        return st.booleans()
    if pa.types.is_integer(kind):
        bits = kind.bit_width
        low, high = (
            (-(1 << bits - 1), (1 << bits - 1) - 1) if pa.types.is_signed_integer(kind) else (0, (1 << bits) - 1)
        )
        return st.integers(low, high) | st.sampled_from([low, 0, high])
    if pa.types.is_temporal(kind):
        return value_of(pa.int32() if pa.types.is_date32(kind) else pa.int64())
    if pa.types.is_decimal(kind):
        most = 10**kind.precision - 1
        exact = Context(prec=80)
        return (st.integers(-most, most) | st.sampled_from([-most, -1, 0, 1, most])).map(
            lambda number: exact.scaleb(Decimal(number), -kind.scale)
        )
    if isinstance(kind, pa.UuidType) or pa.types.is_fixed_size_binary(kind):
        return st.binary(min_size=kind.byte_width, max_size=kind.byte_width)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return st.text(st.characters(codec="utf-8"), max_size=6) | st.text("\0a\xff", max_size=4)
    return st.binary(max_size=6) | st.binary(max_size=3).map(lambda b: b.replace(b"\x01", b"\0"))


@st.composite
def keys(draw: st.DrawFn) -> tuple[list[pa.DataType], list[tuple[Any, ...]]]:
    kinds = draw(st.lists(st.sampled_from([*KEY_TYPES, *OWN_TYPES]), min_size=1, max_size=4))
    row = st.tuples(*(st.none() | value_of(kind) for kind in kinds))
    return kinds, draw(st.lists(row, min_size=1, max_size=12))


def columns_of(kinds: Sequence[pa.DataType], rows: Sequence[tuple[Any, ...]]) -> list[pa.Array]:
    return [pa.array([row[i] for row in rows], kind) for i, kind in enumerate(kinds)]


def comparable(row: tuple[Any, ...]) -> list[tuple[int, Any]]:
    return [(0, 0) if v is None else (1, v.encode() if isinstance(v, str) else v) for v in row]


@given(keys())
def test_encoded_keys_sort_like_their_rows(case: tuple[list[pa.DataType], list[tuple[Any, ...]]]) -> None:
    kinds, rows = case
    encoded = encode_composite(columns_of(kinds, rows)).to_pylist()
    for i in range(len(rows)):
        for j in range(len(rows)):
            left, right = comparable(rows[i]), comparable(rows[j])
            assert (encoded[i] < encoded[j]) == (left < right)
            assert (encoded[i] == encoded[j]) == (left == right)


@given(keys(), st.integers(0, 3))
def test_decoding_gives_the_columns_back(case: tuple[list[pa.DataType], list[tuple[Any, ...]]], skip: int) -> None:
    kinds, rows = case
    columns = columns_of(kinds, rows)
    decoded = decode_composite(encode_composite(columns), kinds)
    assert all(left.equals(right) for left, right in zip(decoded, columns, strict=True))
    assert [array.type for array in decoded] == kinds
    tail = decode_composite(encode_composite(columns).slice(skip), kinds)
    assert all(left.equals(right.slice(skip)) for left, right in zip(tail, columns, strict=True))


@given(keys(), st.integers(1, 4))
def test_sliced_columns_hash_like_copies(case: tuple[list[pa.DataType], list[tuple[Any, ...]]], skip: int) -> None:
    kinds, rows = case
    sliced = [array.slice(skip) for array in columns_of(kinds, rows)]
    copies = columns_of(kinds, rows[skip:])
    assert encode_composite(sliced).to_pylist() == encode_composite(copies).to_pylist()
    assert key_hashes(sliced).tolist() == key_hashes(copies).tolist()


@given(
    st.lists(st.sampled_from([*KEY_TYPES, *OWN_TYPES]), min_size=1, max_size=3),
    st.lists(st.binary(max_size=30), max_size=4),
)
def test_hostile_bytes_decode_to_valid_keys_or_are_refused(kinds: list[pa.DataType], hostile: list[bytes]) -> None:
    encoded = pa.array(hostile, pa.binary())
    try:
        columns = decode_composite(encoded, kinds)
    except CorruptDataError:
        return
    assert encode_composite(columns).to_pylist() == hostile


@pytest.mark.parametrize(
    ("kinds", "hexadecimal"),
    [
        ([pa.int64()], "01800000000000"),
        ([pa.int64()], "0180000000000000000000"),
        ([pa.int64()], "02"),
        ([pa.int8()], "018000000000000080"),
        ([pa.bool_()], "0102"),
        ([pa.string()], "0161"),
        ([pa.string()], "016100"),
        ([pa.string()], "01610001"),
        ([pa.string()], "01ff0000"),
        ([pa.string(), pa.int64()], "01610000"),
    ],
)
def test_a_malformed_encoded_key_is_refused(kinds: list[pa.DataType], hexadecimal: str) -> None:
    with pytest.raises(CorruptDataError):
        decode_composite(pa.array([bytes.fromhex(hexadecimal)]), kinds)


def test_a_terminator_is_not_looked_for_in_the_next_row() -> None:
    rows = pa.array([bytes.fromhex("0161"), bytes.fromhex("01620000")])
    with pytest.raises(CorruptDataError, match="unterminated"):
        decode_composite(rows, [pa.string()])


# ------------------------------------------------------------------------------------------------------- hashing


def siphash13(data: bytes) -> int:
    """The definition, one message at a time."""
    mask = (1 << 64) - 1

    def rotate(x: int, bits: int) -> int:
        return ((x << bits) | (x >> (64 - bits))) & mask

    def step(v: list[int]) -> None:
        v[0] = (v[0] + v[1]) & mask
        v[1] = rotate(v[1], 13) ^ v[0]
        v[0] = rotate(v[0], 32)
        v[2] = (v[2] + v[3]) & mask
        v[3] = rotate(v[3], 16) ^ v[2]
        v[0] = (v[0] + v[3]) & mask
        v[3] = rotate(v[3], 21) ^ v[0]
        v[2] = (v[2] + v[1]) & mask
        v[1] = rotate(v[1], 17) ^ v[2]
        v[2] = rotate(v[2], 32)

    v = [0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573]
    whole = len(data) // 8 * 8
    words = [int.from_bytes(data[i : i + 8], "little") for i in range(0, whole, 8)]
    words.append((len(data) & 255) << 56 | int.from_bytes(data[whole:], "little"))
    for word in words:
        v[3] ^= word
        step(v)
        v[0] ^= word
    v[2] ^= 0xFF
    for _ in range(3):
        step(v)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def message(kinds: Sequence[pa.DataType], row: Sequence[Any]) -> bytes:
    out = b""
    for kind, value in zip(kinds, row, strict=True):
        out += b"\1" if value is None else b"\0"
        if value is None:
            continue
        if kind in (pa.int32(), pa.int64()):
            out += struct.pack("<i" if kind == pa.int32() else "<q", value)
        elif kind == pa.string():
            out += value.encode() + b"\xff"
        elif kind == pa.binary():
            out += struct.pack("<Q", len(value)) + value
    return out


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ([pa.array([2])], 0xD8D0C7D906895713),
        ([pa.array([-5])], 0x9B0DE7484FB16FF8),
        ([pa.array([7], pa.int32())], 0x173136168BF50EFB),
        ([pa.array(["abc"])], 0xFDE4B1F7E5502580),
        ([pa.array([""])], 0xDA5735E7144B8D9F),
        ([pa.array([b"\x00\x01"])], 0xFD952BAA9FED36E8),
        ([pa.array([1]), pa.array(["x"])], 0x6CCBDA8A9BEF3E8C),
        ([pa.array([99], pa.uint64())], 0x68A914128E01E473),
        ([], 0xD1FBA762150C532C),
    ],
)
def test_documented_hashes(columns: list[pa.Array], expected: int) -> None:
    assert key_hashes(columns).tolist() == [expected]


@given(keys())
def test_hashes_equal_the_scalar_definition(case: tuple[list[pa.DataType], list[tuple[Any, ...]]]) -> None:
    kinds, rows = case
    assert key_hashes(columns_of(kinds, rows)).tolist() == [siphash13(message(kinds, row)) for row in rows]


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_every_length_up_to_three_hundred_hashes_right(kind: pa.DataType) -> None:
    texts = [bytes(48 + (i * 7 + n) % 74 for i in range(n)) for n in range(300)]
    values = [text.decode() for text in texts] if kind == pa.string() else texts
    expected = [siphash13(message([kind], [value])) for value in values]
    assert key_hashes([pa.array(values, kind)]).tolist() == expected


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64()])
def test_integers_hash_right_across_blocks(kind: pa.DataType) -> None:
    bits = kind.bit_width
    numbers = np.random.default_rng(1).integers(-(1 << bits - 1), (1 << bits - 1) - 1, 40_000)
    hashes = key_hashes([pa.array(numbers, kind)])
    for row in (0, 1, 16_383, 16_384, 32_768, 39_999):
        assert hashes[row] == siphash13(message([kind], [int(numbers[row])]))


def test_one_very_long_key_among_short_ones_hashes_right() -> None:
    values = [f"key-{i}" for i in range(20_000)]
    values[12_345] = "long" * 50_000
    hashes = key_hashes([pa.array(values)])
    for row in (0, 12_344, 12_345, 12_346, 19_999):
        assert hashes[row] == siphash13(message([pa.string()], [values[row]]))


def test_a_hash_is_exact_only_where_every_key_type_is_hashed() -> None:
    exact = [pa.int32(), pa.int64(), pa.string(), pa.binary()]
    for kind in [*KEY_TYPES, *OWN_TYPES]:
        assert hash_is_exact([kind]) == (kind in exact)
    assert hash_is_exact([pa.int64(), pa.string()])
    assert not hash_is_exact([pa.int64(), pa.uint8()])
    assert not hash_is_exact([])


# ------------------------------------------------------------------------------------------------------- one by one


@given(keys())
def test_keys_compare_as_their_values_do(case: tuple[list[pa.DataType], list[tuple[Any, ...]]]) -> None:
    kinds, rows = case
    for kind, column in zip(kinds, columns_of(kinds, rows), strict=True):
        found = key_array([column])
        for part in (found, key_array([column.slice(1)])):
            assert not isinstance(part.type, pa.BaseExtensionType)
        values = [row[kinds.index(kind)] for row in rows] if kinds.count(kind) == 1 else None
        if values is not None and None not in values:
            held = [v.encode() if isinstance(v, str) else v for v in found.to_pylist()]
            order = sorted(range(len(rows)), key=held.__getitem__)
            assert [comparable((values[i],)) for i in order] == sorted(comparable((v,)) for v in values)


def family(kind: pa.DataType) -> str:
    tests = {
        "uuid": lambda: isinstance(kind, pa.UuidType),
        "integer": lambda: pa.types.is_integer(kind),
        "bool": lambda: pa.types.is_boolean(kind),
        "text": lambda: pa.types.is_string(kind) or pa.types.is_large_string(kind),
        "date": lambda: pa.types.is_date(kind),
        "timestamp": lambda: pa.types.is_timestamp(kind),
        "decimal": lambda: pa.types.is_decimal(kind),
    }
    return next((name for name, holds in tests.items() if holds()), "binary")


def as_bytes(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


@given(keys())
@settings(max_examples=60)
def test_one_key_equals_the_value_in_arrays(case: tuple[list[pa.DataType], list[tuple[Any, ...]]]) -> None:
    kinds, rows = case
    columns = columns_of(kinds, [row for row in rows if None not in row])
    form = KeyForm.of(kinds)
    for held, value in zip(key_values(columns), key_array(columns).to_pylist(), strict=True):
        assert form.whole(held) == as_bytes(value)


@pytest.mark.parametrize("kind", [*KEY_TYPES, *OWN_TYPES], ids=str)
def test_a_python_value_is_the_key_that_its_row_has(kind: pa.DataType) -> None:
    examples = {
        "integer": 7,
        "bool": True,
        "text": "a'b",
        "uuid": uuid.UUID(int=5),
        "date": datetime.date(1969, 12, 30),
        "timestamp": datetime.datetime(1969, 12, 30, 1, 2, 3),
        "decimal": Decimal("-7"),
    }
    known = examples.get(family(kind), b"x" * (kind.byte_width if pa.types.is_fixed_size_binary(kind) else 3))
    held = key_values([pa.array([known], kind)])
    assert KeyForm.of([kind]).hashable(known) == held[0]
    assert KeyForm.of([kind, pa.string()]).hashable((known, "z")) == (held[0], "z")
    assert KeyForm.of([kind]).hashable(object()) is None
    for columns, key in (([pa.array([known], kind)], held[0]), ([pa.array([known], kind)] * 2, (held[0], held[0]))):
        assert KeyForm.of([kind] * len(columns)).whole(key) == as_bytes(key_array(columns)[0].as_py())


BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
TIMES = [
    *(datetime.datetime(2026, 7, 1, 12, 0, 0, 123000, tzinfo=BERLIN), datetime.datetime(1, 1, 1)),
    *(datetime.datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=fold) for fold in (0, 1)),
    datetime.datetime(9999, 12, 31, 23, 59, 59, 999999),
]


@pytest.mark.parametrize(("kind", "values"), OWN_KEYS, ids=[str(kind) for kind, _ in OWN_KEYS])
def test_short_key_path_agrees_with_the_long_one(kind: pa.DataType, values: list[Any]) -> None:
    schema = TableSchema.from_arrow(pa.schema([pa.field("k", kind, nullable=False, metadata={KEY: "true"})]))
    forms = [form for value in values for form in (value, *other_forms(kind, value))]
    known = 0
    for form in [*forms, *(TIMES if pa.types.is_timestamp(kind) else ())]:
        short = schema.key_form.hashable(form)
        if short is not None:
            columns = key_batch([form], schema).columns
            assert key_values(columns) == [short], form
            assert schema.key_form.whole(short) == as_bytes(key_array(columns)[0].as_py())
            known += 1
    assert known >= len(values)


@given(keys())
@settings(max_examples=40)
def test_lance_finds_the_values_of_key_filters(case: tuple[list[pa.DataType], list[tuple[Any, ...]]]) -> None:
    kinds, rows = case
    kind, column = kinds[0], columns_of(kinds, rows)[0]
    known = column.drop_null()
    if not len(known):
        return
    table = pa.table({"k": column, "n": range(len(column))})
    dataset = lance.write_dataset(table, "memory://")
    asked = in_list("k", known.slice(0, 1), kind)
    found = dataset.to_table(columns=["n"], filter=asked).column("n").to_pylist()
    first = key_array([known])[0]
    assert found == [i for i, value in enumerate(key_array([column])) if value.is_valid and value == first]
