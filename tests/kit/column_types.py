"""Arrow types of all kinds, values of them, and the way of their rows through all tiers."""

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

import lance_memwal as mw
from lance_memwal.rows.dictionaries import array_of
from lance_memwal.rows.normal_form import loose, normal

KEY = {b"lance-schema:unenforced-primary-key": b"true"}
VERSIONS = ("2.0", "2.1", "2.2")
TAG = pa.dictionary(pa.int8(), pa.string())
PAIR = pa.struct([("a", pa.int32()), ("b", pa.string())])

FLAT = [
    *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64(), pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
    *(pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"), pa.timestamp("s")),
    *(pa.timestamp("ms"), pa.timestamp("us", "UTC"), pa.timestamp("ns", "Europe/Berlin"), pa.duration("s")),
    *(
        pa.duration("ns"),
        pa.decimal128(5, 2),
        pa.decimal128(38, 10),
        pa.list_(pa.float32(), 4),
        pa.list_(pa.float16(), 3),
    ),
]
OTHERS = [
    *(pa.null(), pa.decimal256(60, 3), pa.binary(4), pa.uuid(), pa.json_(), pa.bool8(), TAG),
    *(pa.string_view(), pa.binary_view(), pa.fixed_shape_tensor(pa.float32(), [2, 2])),
    *(pa.dictionary(pa.uint16(), pa.large_string()), pa.dictionary(pa.int32(), pa.int64())),
    *(pa.dictionary(pa.int64(), pa.binary()), pa.dictionary(pa.int8(), pa.string(), ordered=True)),
    *(
        pa.dictionary(pa.int32(), pa.float16()),
        pa.dictionary(pa.int32(), pa.float64()),
        pa.dictionary(pa.int32(), pa.date32()),
    ),
    *(pa.list_(pa.bool_(), 2), pa.list_(pa.uuid()), pa.list_(pa.json_()), pa.dictionary(pa.int32(), pa.bool_())),
    *(pa.decimal32(5, 2), pa.decimal64(10, 2), pa.month_day_nano_interval()),
    *(pa.struct([]), pa.list_view(pa.int32()), pa.dictionary(pa.int8(), pa.decimal128(5, 2))),
    *(pa.run_end_encoded(pa.int32(), pa.string()), pa.dense_union([pa.field("a", pa.int8())])),
]
INNER = [
    *(pa.int32(), pa.bool_(), pa.string(), pa.binary(), pa.null(), pa.decimal128(20, 3), pa.timestamp("us", "UTC")),
    *(TAG, PAIR, pa.struct([]), pa.uuid(), pa.binary(4), pa.list_(pa.int32()), pa.large_list(pa.string())),
    *(pa.list_(pa.float32(), 2), pa.map_(pa.string(), pa.int32())),
]


def around(inner: pa.DataType) -> Iterator[pa.DataType]:
    """The types that hold `inner` directly, with and without nulls inside."""
    yield from (pa.list_(inner), pa.large_list(inner), pa.struct([("x", inner)]))
    yield from (pa.map_(pa.string(), inner), pa.list_(pa.struct([("x", inner)])))
    if not pa.types.is_null(inner):
        strict = pa.field("x", inner, nullable=False)
        yield from (pa.list_(strict), pa.struct([strict]), pa.map_(pa.string(), strict))
    if not isinstance(inner, pa.BaseExtensionType):  # of which Lance stores no fixed-size lists; it says so itself
        yield pa.list_(inner, 2)
        if not pa.types.is_null(inner):
            yield pa.list_(pa.field("x", inner, nullable=False), 2)


NESTED = [kind for inner in INNER for kind in around(inner)]


def holds(kind: pa.DataType, *tests: Any) -> bool:
    """Whether one of the tests is true for the type or a type inside it."""
    if isinstance(kind, pa.BaseExtensionType):
        return holds(kind.storage_type, *tests)
    return any(test(kind) for test in tests) or any(holds(kind.field(i).type, *tests) for i in range(kind.num_fields))


def is_refused(kind: pa.DataType, version: str) -> bool:
    """Whether rows of this type do not come back from Lance 14, as trials of every type in every tier have shown."""
    types = pa.types

    def is_bad(inner: pa.DataType) -> bool:
        if types.is_fixed_size_list(inner):
            item = inner.value_type
            return holds(
                item,
                types.is_string,
                types.is_binary,
                types.is_struct,
                types.is_dictionary,
                types.is_map,
                is_list,
                types.is_fixed_size_list,
            )
        return types.is_struct(inner) and inner.num_fields == 0

    no_kind = (types.is_union, types.is_run_end_encoded, types.is_list_view, types.is_interval)
    few_bits = (types.is_decimal32, types.is_decimal64)
    return holds(kind, is_bad, *no_kind, *few_bits, is_odd_dictionary) or (
        version != "2.2" and holds(kind, types.is_map)
    )


def is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def is_odd_dictionary(kind: pa.DataType) -> bool:
    odd = (pa.types.is_decimal, pa.types.is_float16, pa.types.is_temporal, pa.types.is_fixed_size_binary)
    return bool(pa.types.is_dictionary(kind) and any(test(kind.value_type) for test in odd))


# ----------------------------------------------------------------------------------------------------------- values


def column(kind: pa.DataType, numbers: list[int], *, holes: bool) -> pa.Array:
    """A value for each number; lists are empty in every fourth. With `holes` every fourth is null or has nulls inside."""
    stored = _storage(kind)
    values = [None if holes and n % 4 == 3 else _value(stored, n, holes) for n in numbers]
    array = normal(array_of(values, loose(stored)), stored)
    return array if stored == kind else array.cast(kind)


def _storage(kind: pa.DataType) -> pa.DataType:
    """The type without extension types, whose values Arrow does not make of Python ones."""
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_storage(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, kind.item_field.with_type(_storage(kind.item_type)))
    if not (is_list(kind) or pa.types.is_fixed_size_list(kind)):
        return kind
    item = kind.field(0).with_type(_storage(kind.value_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(item, kind.list_size)
    return pa.list_(item) if pa.types.is_list(kind) else pa.large_list(item)


def _value(kind: pa.DataType, n: int, holes: bool) -> Any:
    types = pa.types
    if types.is_struct(kind):
        return {field.name: _inside(field, n, holes) for field in kind}
    if types.is_map(kind):
        return (
            []
            if n % 4 == 2
            else [(f"k{n}", _inside(kind.item_field, n, holes)), ("l", _inside(kind.item_field, n + 4, holes))]
        )
    if types.is_fixed_size_list(kind):
        return [_inside(kind.field(0), n + i, holes) for i in range(kind.list_size)]
    if is_list(kind):
        return [] if n % 4 == 2 else [_inside(kind.field(0), n + i, holes) for i in range(1 + n % 3)]
    if types.is_dictionary(kind):
        return _value(kind.value_type, n % 5, holes)
    if types.is_null(kind):
        return None
    if types.is_fixed_size_binary(kind):
        return bytes([n % 250]) * kind.byte_width
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return b"\x00\xff" * (n % 7)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return str(n)
    if types.is_decimal(kind):
        return Decimal(n % 100) / 4
    if types.is_boolean(kind):
        return n % 2 == 0
    return n % 100 * 86_400_000 if types.is_date64(kind) else n % 100


def _inside(field: pa.Field, n: int, holes: bool) -> Any:
    return None if holes and field.nullable and n % 4 == 1 else _value(field.type, n, holes)


# ----------------------------------------------------------------------------------------------------------- the way


def schema_of(kinds: list[pa.DataType], *, keyed: bool) -> pa.Schema:
    fields = [pa.field(f"c{i}", kind) for i, kind in enumerate(kinds)]
    return pa.schema([pa.field("id", pa.int64(), nullable=False, metadata=KEY if keyed else None), *fields])


def rows(schema: pa.Schema, numbers: list[int], *, holes: bool) -> pa.Table:
    columns = [column(field.type, numbers, holes=holes) for field in list(schema)[1:]]
    return pa.table([pa.array(numbers), *columns], schema=schema)


def shown(table: pa.Table) -> dict[int, Any]:
    found = {row["id"]: row for row in table.to_pylist()}
    assert len(found) == table.num_rows
    return found


def go_the_whole_way(root: Path, kinds: list[pa.DataType], version: Any, *, keyed: bool) -> None:
    """Rows of these types are the same in every tier; `InvalidInputError` if the table is refused."""
    schema = schema_of(kinds, keyed=keyed)
    holes = version != "2.0"  # whose files hold no null structs
    first = rows(schema, list(range(20)), holes=holes)
    second = rows(schema, [*range(20, 60), *(range(4) if keyed else ())], holes=holes)
    uri = str(root / "table")
    lance.write_dataset(first, uri, data_storage_version=version)
    table = mw.enable(uri, sharding=mw.Unsharded(), writer_defaults={"fsync": False})
    expected = {**shown(first), **shown(second)}
    with table.shard_writer() as writer:
        for start in range(0, len(second), 8):
            writer.put(second.slice(start, 8))
        if keyed:
            for key in (0, 19, 21, 999):
                writer.delete([key])
                expected.pop(key, None)
        assert shown(table.scan().to_table()) == expected, "memtable"
        writer.abort()
    assert shown(mw.open_table(uri).scan().to_table()) == expected, "log"
    with table.shard_writer():
        assert shown(table.scan().to_table()) == expected, "replay"
    assert shown(mw.open_table(uri).scan().to_table()) == expected, "SSTable"
    if keyed:
        found = table.lookup([0, 2, 10, 19, 40, 43, 999])
        assert shown(found) == {key: expected[key] for key in (2, 10, 40, 43)}, "lookup"
    table.compact()
    assert shown(mw.open_table(uri).scan().to_table()) == expected, "base"
    assert shown(lance.dataset(uri).to_table()) == expected, "base by Lance"
