"""Anything that a user may hand over as data or keys, turned into Arrow record batches.

Owns the conversion of input. Invariants:

1. Arrow input is not copied: it does not change. What its owner may change later (numpy, pandas) is, since rows are kept in
   memory long after their write was acknowledged.
2. Plain Python values are converted with the table's types, so that `[1, 2]` fits an int32 and a uint64 column alike.
3. What cannot be converted is an `InvalidInputError` that names the column or the kind of input.
4. A type fits another (`may_cast`) if a cast keeps what the values mean.
5. A dict with a value that is no collection is one row; else it is columns. Objects with fields (dataclasses, models of
   pydantic) are rows. What has to be run to give its rows (an iterator, a dataset, a lazy frame) is run once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa
from lance.blob import blob_array
from pyarrow.dataset import Dataset

from lance_memwal.arguments import check_names
from lance_memwal.errors import InvalidInputError, reason_of
from lance_memwal.rows.blobs import is_second_layout
from lance_memwal.rows.dictionaries import array_of
from lance_memwal.rows.keys import one_array
from lance_memwal.rows.layouts import is_list_view, plain, value_type
from lance_memwal.rows.normal_form import loose, no_rows, normal
from lance_memwal.rows.schema import TableSchema
from lance_memwal.rows.uuid_text import is_uuid_text, uuids_as_bytes, uuids_of_texts, uuids_of_values

# What a value that holds several has; a numpy scalar has none of these.
_UUID_BYTES = pa.binary(16)
_COLLECTIONS = ("__len__", "__iter__", "__arrow_c_stream__", "__arrow_c_array__", "to_batches", "to_arrow", "collect")


def to_batches(data: Any, columns: pa.Schema, *, whole: bool = False) -> list[pa.RecordBatch]:
    """`data` as record batches; their schema is whatever the input had, except for plain Python values.

    With `whole` every dict must have the keys that the others have: what one leaves out would be null.
    """
    if isinstance(data, pa.RecordBatch):
        return [data]
    if isinstance(data, pa.Table):
        return list(data.to_batches())
    if isinstance(data, pa.RecordBatchReader):
        return list(data)
    if isinstance(data, Mapping):
        return _from_sequence([data], columns, whole) if _is_row(data) else _from_columns(data, columns, whole)
    if isinstance(data, (list, tuple)):
        return _from_sequence(data, columns, whole)
    if isinstance(data, Iterator):
        return _from_sequence(list(data), columns, whole)
    row = _as_row(data)
    return _from_foreign(data) if row is None else _from_sequence([row], columns, whole)


def reread(data: Any) -> Any:
    """`data`, so that it may be read more than once: an iterator, or a stream of another library, is read now."""
    if isinstance(data, Iterator):
        return list(data)
    if hasattr(data, "__arrow_c_stream__") and not isinstance(data, (pa.RecordBatch, pa.Table, pa.ChunkedArray)):
        try:
            return _from_foreign(data)
        except InvalidInputError:  # one column, such as a Polars series, which can be read again
            return data
    return data


def _is_row(data: Mapping[str, Any]) -> bool:
    """Whether a dict is one row: one of its values is no collection, so that it cannot be a column."""
    for value in data.values():  # noqa: SIM110  # on the path of every put, where a generator costs more than its checks
        if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__len__"):
            return True
    return False


def _as_row(item: Any) -> Mapping[str, Any] | None:
    """An object with fields as a row; None if it is none."""
    if isinstance(item, Mapping):
        return item
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        return dataclasses.asdict(item)
    dump = getattr(item, "model_dump", None)  # pydantic
    return dump() if callable(dump) and not isinstance(item, type) else None


def to_parts(data: Any, columns: pa.Schema) -> list[pa.RecordBatch]:
    """As `to_batches`, of rows that may leave columns out: dicts in a row that give the same columns are one batch."""
    if isinstance(data, pa.RecordBatch):
        return [data]
    if not isinstance(data, (list, tuple)) or not data or not all(isinstance(item, Mapping) for item in data):
        return to_batches(data, columns, whole=True)
    runs = (list(run) for _, run in groupby(data, key=frozenset))
    return [batch for run in runs for batch in to_batches(run, columns, whole=True)]


def _from_sequence(data: Sequence[Any], columns: pa.Schema, whole: bool) -> list[pa.RecordBatch]:
    if all(isinstance(item, pa.RecordBatch) for item in data):
        return list(data)
    if all(isinstance(item, pa.Table) for item in data):
        return [batch for table in data for batch in table.to_batches()]
    rows = [row for row in map(_as_row, data) if row is not None]
    if len(rows) == len(data):
        names = list(dict.fromkeys(name for row in rows for name in row))
        if not names:
            raise InvalidInputError("the dicts are empty: each must have a value for every column that it gives")
        if whole and sum(map(len, rows)) < len(names) * len(rows):
            raise refuse_missing([name for name in names if any(name not in row for row in rows)])
        return _from_columns({name: [row.get(name) for row in rows] for name in names}, columns, whole)
    kinds = sorted({type(item).__name__ for item in data})
    raise InvalidInputError(f"a list of {', '.join(kinds)} is no data; give record batches, dicts or dataclasses")


def _from_columns(data: Mapping[str, Any], columns: pa.Schema, whole: bool = False) -> list[pa.RecordBatch]:
    if not data:
        return []
    names = check_names("the columns", data)
    arrays = [_column(name, values, columns, whole) for name, values in data.items()]
    if len({len(array) for array in arrays}) > 1:
        raise InvalidInputError("the columns have different lengths")
    try:
        return list(pa.table(arrays, names=names).to_batches())
    except pa.ArrowException as error:
        raise InvalidInputError(f"the columns cannot be put together: {error}") from None


def _column(name: str, values: Any, columns: pa.Schema, whole: bool = False) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return values
    if isinstance(values, (list, tuple)) and values and isinstance(values[0], pa.Scalar):
        return _of_scalars(name, values)
    index = columns.get_field_index(name)
    kind = columns.field(index).type if index >= 0 else None
    try:
        array = pa.array(values) if kind is None else _typed(values, kind)
        array.validate()  # a set is taken for a list of the wrong length
        if kind is not None and isinstance(values, (list, tuple)) and _may_lose(kind):
            _check_exact(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(f"column {name!r} cannot be converted: {reason_of(error)}") from None
    if not isinstance(values, (list, tuple)):
        array = _own(array)
    if whole and kind is not None and pa.types.is_nested(kind) and isinstance(values, (list, tuple)):
        absent = dict.fromkeys(_keys_left_out(values, kind))
        if absent:
            raise refuse_missing([f"{name}.{path}" for path in absent])
    return array


def _own(array: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """`array` in buffers of its own: Arrow takes those of numpy and pandas over as they are, and their owner may change them."""
    if isinstance(array, pa.ChunkedArray):
        return pa.chunked_array([_own(chunk) for chunk in array.chunks], array.type)
    return pa.concat_arrays([array, array.slice(0, 0)])  # of two arrays, the result is always a new one


def _of_scalars(name: str, values: Sequence[Any]) -> pa.Array:
    """Arrow scalars as an array of their own type, which need not be that of the column."""
    try:
        return pa.array(values)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidInputError(f"column {name!r} cannot be converted: {reason_of(error)}") from None


def _keys_left_out(values: Iterable[Any], kind: pa.DataType) -> Iterator[str]:
    """The fields of structs that one of these Python values does not have; paths with dots."""
    if pa.types.is_struct(kind):
        rows = [value for value in values if isinstance(value, Mapping)]
        for field in kind:
            given = [row[field.name] for row in rows if field.name in row]
            if len(given) < len(rows):
                yield field.name
            yield from (f"{field.name}.{path}" for path in _keys_left_out(given, field.type))
    elif pa.types.is_map(kind):
        pairs = (value.items() if isinstance(value, Mapping) else value for value in values if value is not None)
        yield from _keys_left_out([item for part in pairs for _, item in part], kind.item_type)
    elif pa.types.is_nested(kind) and kind.num_fields == 1:
        yield from _keys_left_out([item for value in values if value is not None for item in value], kind.field(0).type)


def _typed(values: Any, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    if is_second_layout(kind):
        return blob_array(list(values))
    if isinstance(kind, pa.UuidType) and isinstance(values, (list, tuple)):
        return uuids_of_values(values)
    if kind == _UUID_BYTES and isinstance(values, (list, tuple)):
        values = uuids_as_bytes(values)
    kind = _plain_inside(kind)
    array = array_of(values, loose(kind))
    return normal(array, kind) if isinstance(array, pa.Array) else array


def _plain_inside(kind: pa.DataType) -> pa.DataType:
    """`kind`, with what extension types inside of it are stored as: Arrow makes no such value within another one."""
    if isinstance(kind, pa.BaseExtensionType) or not pa.types.is_nested(kind):
        return kind
    fields = [kind.field(i) for i in range(kind.num_fields)]
    inner = [field.with_type(_plain_inside(_storage_of(field.type))) for field in fields]
    if inner == fields:
        return kind
    if pa.types.is_map(kind):
        return pa.map_(*inner[0].type, keys_sorted=kind.keys_sorted)
    if pa.types.is_struct(kind):
        return pa.struct(inner)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(inner[0], kind.list_size)
    return (pa.large_list if pa.types.is_large_list(kind) else pa.list_)(inner[0])


def _may_lose(kind: pa.DataType) -> bool:
    """Whether Arrow converts Python values to this type that do not fit it: 1.5 to an integer, a time of day to a date, a
    dict to a struct without some of its keys."""
    types = pa.types
    if types.is_integer(kind) or types.is_temporal(kind) or types.is_struct(kind):
        return True
    return _is_list(kind) and _may_lose(kind.value_type)


def _check_exact(values: Sequence[Any], kind: pa.DataType) -> None:
    """Raise unless the values fit as Arrow values of their own type do."""
    try:
        own = pa.array(values)
    except (pa.ArrowException, OverflowError):  # no type of their own, as the largest unsigned integers
        return
    if pa.types.is_integer(own.type) and pa.types.is_temporal(kind):  # units since the epoch
        return
    if not may_cast(own.type, kind):
        raise TypeError(f"{own.type} does not fit {kind}")
    own.cast(kind, safe=True)


def _from_foreign(data: Any) -> list[pa.RecordBatch]:
    try:
        if type(data).__module__.split(".")[0] == "pandas":  # first: as a stream, its index would be a column
            table = pa.Table.from_pandas(data, preserve_index=False)
            return list(pa.table([_own(column) for column in table.columns], schema=table.schema).to_batches())
        if hasattr(data, "__arrow_c_stream__"):
            return list(pa.RecordBatchReader.from_stream(data))
        if hasattr(data, "__arrow_c_array__"):
            return [pa.record_batch(data)]
        if hasattr(data, "collect"):  # a lazy frame
            return _from_foreign(data.collect())
        if isinstance(data, Dataset):
            return list(data.to_batches())
        if hasattr(data, "to_arrow"):
            return list(pa.table(data.to_arrow()).to_batches())
    except (pa.ArrowException, AttributeError, TypeError, ValueError) as error:
        raise InvalidInputError(f"{type(data).__name__} cannot be read as Arrow data: {error}") from None
    raise InvalidInputError(
        f"{type(data).__name__} is no data; give record batches, a table, a reader, a dataset, pandas, polars, dicts, "
        "dataclasses or columns"
    )


def with_rows(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """`batches`, which are not empty; `InvalidInputError` if there are none, or one is."""
    if not batches:
        raise InvalidInputError("empty batch list: give at least one batch with rows")
    for number, batch in enumerate(batches):
        if batch.num_rows == 0:
            raise InvalidInputError(f"Batch {number} is empty: give batches with rows")
    return batches


# ----------------------------------------------------------------------------------------------------- what fits what


def refuse_missing(names: Sequence[str]) -> InvalidInputError:
    """The error of rows that leave columns out: on a table with a primary key a put replaces whole rows."""
    listed = ", ".join(repr(name) for name in names[:8]) + (", …" if len(names) > 8 else "")
    return InvalidInputError(
        f"left out: {listed}. A put replaces whole rows, and would erase what they have there: give every column, or put with "
        "missing='keep' to leave what the rows have, missing='null' to make these null"
    )


def left_out(given: pa.Schema | pa.DataType, wanted: pa.Schema | pa.DataType) -> list[str]:
    """The columns, and fields of structs at any depth, that `given` does not have; paths with dots."""
    if isinstance(given, pa.DataType):
        given = value_type(given)
    if isinstance(wanted, pa.Schema) or pa.types.is_struct(wanted):
        if not isinstance(wanted, pa.Schema) and not pa.types.is_struct(given):
            return []
        found = []
        for field in wanted:
            at = given.get_field_index(field.name)
            if at < 0:
                found.append(field.name)
            else:
                found += [f"{field.name}.{path}" for path in left_out(given.field(at).type, field.type)]
        return found
    if pa.types.is_map(given) and pa.types.is_map(wanted):
        return left_out(given.item_type, wanted.item_type)
    return left_out(given.value_type, wanted.value_type) if _is_list(given) and _is_list(wanted) else []


def may_cast(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether a cast keeps the meaning; the values are then checked by the safe cast itself."""
    types = pa.types
    source, target = value_type(source), value_type(target)
    if source == target or types.is_null(source):
        return True
    if is_second_layout(target):
        return _is_binary(source) or is_second_layout(source)
    if is_uuid_text(source, target):
        return True
    if isinstance(source, pa.BaseExtensionType) != isinstance(target, pa.BaseExtensionType):
        return may_cast(_storage_of(source), _storage_of(target))  # texts are JSON, 16 bytes are a UUID, and back
    if isinstance(source, pa.JsonType) and isinstance(target, pa.JsonType):
        return True
    if _is_list(source) and _is_list(target):
        return may_cast(source.value_type, target.value_type)
    if types.is_struct(source) and types.is_struct(target):
        return _may_cast_struct(source, target)
    if types.is_map(source) and types.is_map(target):
        return may_cast(source.key_type, target.key_type) and may_cast(source.item_type, target.item_type)
    if types.is_decimal(target):  # a float would be rounded
        return bool(types.is_integer(source) or types.is_decimal(source))
    if types.is_date(source) and types.is_timestamp(target):
        return True
    families = (_is_number, _is_text, _is_binary, types.is_timestamp, types.is_date, types.is_time, types.is_duration)
    return any(family(source) and family(target) for family in families)


def _storage_of(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _may_cast_struct(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether every field has its place: Arrow itself would drop the others and read missing ones as null."""
    given = {source.field(i).name: source.field(i) for i in range(source.num_fields)}
    wanted = [target.field(i) for i in range(target.num_fields)]
    if len(given) != source.num_fields or not given.keys() <= {field.name for field in wanted}:
        return False
    return all(
        may_cast(given[field.name].type, field.type) if field.name in given else field.nullable for field in wanted
    )


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_binary(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_binary_view(kind)
        or types.is_fixed_size_binary(kind)
    )


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)) or is_list_view(
        kind
    )


# ---------------------------------------------------------------------------------------------------------- keys


def key_batch(keys: Any, schema: TableSchema) -> pa.RecordBatch:
    """The primary key columns that `keys` names, in key order, with the table's types and no nulls.

    A dict may name other columns of the table, which are ignored. Another name is an error. Other columns of data are ignored.
    """
    target = pa.schema([schema.columns.field(name) for name in schema.need_key()])
    keys = list(keys) if isinstance(keys, Iterator) else keys
    table = _key_table(keys, target)
    twice = [name for name in target.names if table.schema.names.count(name) > 1]
    if twice:
        raise InvalidInputError(f"key column {twice[0]!r} is there twice")
    unknown = [name for name in table.schema.names if name not in schema.columns.names]
    if unknown and _are_dicts(keys):
        raise InvalidInputError(f"the table has no column {unknown[0]!r}; the key is ({', '.join(target.names)})")
    missing = [name for name in target.names if name not in table.schema.names]
    if missing:
        raise InvalidInputError(f"key column {missing[0]!r} is missing; the key is ({', '.join(target.names)})")
    arrays = [_key_column(table.column(name), column) for name, column in zip(target.names, target, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def _key_column(values: pa.ChunkedArray, column: pa.Field) -> pa.Array:
    if values.type != column.type and not may_cast(values.type, column.type):
        raise InvalidInputError(f"key column {column.name!r} has type {values.type}, the table needs {column.type}")
    try:
        array = plain(one_array(values), column.type)
        array = uuids_of_texts(array) if is_uuid_text(array.type, column.type) else array.cast(column.type, safe=True)
    except (pa.ArrowException, ValueError) as error:
        raise InvalidInputError(
            f"key column {column.name!r} cannot be cast to {column.type}: {reason_of(error)}"
        ) from None
    if array.null_count:
        raise InvalidInputError(f"key column {column.name!r} must not be null")
    return array


def _key_table(keys: Any, target: pa.Schema) -> pa.Table:
    if isinstance(keys, (pa.Array, pa.ChunkedArray)) and not pa.types.is_struct(keys.type):
        return _single(keys, target)
    if isinstance(keys, (pa.StructArray, pa.ChunkedArray)):
        return pa.table(keys.flatten(), names=[f.name for f in keys.type])
    if _is_one_key(keys, target):
        return _listed([keys], target)
    if isinstance(keys, (list, tuple, set, frozenset, range)):
        return _listed(list(keys), target)
    if hasattr(keys, "__array__") and not hasattr(keys, "columns"):  # numpy, a series of pandas or polars
        return _single(_column(target.names[0], keys, target), target)
    return _one_table(to_batches(keys, target), target)


def _are_dicts(keys: Any) -> bool:
    """Whether a person wrote the names: data of others may have more columns."""
    return isinstance(keys[0] if isinstance(keys, (list, tuple)) and keys else keys, Mapping)


def _is_one_key(keys: Any, target: pa.Schema) -> bool:
    """Whether this is one key: a plain value, or a tuple of them where the key has several columns."""
    if isinstance(keys, tuple):
        return len(target) > 1 and bool(keys) and not any(isinstance(key, (tuple, list, Mapping)) for key in keys)
    if isinstance(keys, (str, bytes)):
        return True
    return not any(hasattr(keys, name) for name in _COLLECTIONS) and _as_row(keys) is None


def _one_table(batches: list[pa.RecordBatch], target: pa.Schema) -> pa.Table:
    with_rows = [batch for batch in batches if batch.num_rows]
    if not with_rows:
        return target.empty_table()
    try:
        return pa.Table.from_batches(with_rows)
    except (pa.ArrowException, ValueError):
        raise InvalidInputError("the batches that hold the keys have different columns") from None


def _listed(keys: list[Any], target: pa.Schema) -> pa.Table:
    if not keys:
        return no_rows(target)
    if all(isinstance(key, (pa.RecordBatch, pa.Table)) for key in keys) or _as_row(keys[0]) is not None:
        return _one_table(to_batches(keys, target), target)
    if len(target) == 1 and not all(isinstance(key, (tuple, list)) for key in keys):
        return _single(_column(target.names[0], keys, target), target)
    if any(not isinstance(key, (tuple, list)) or len(key) != len(target) for key in keys):
        raise InvalidInputError(f"each key must be a tuple or dict of ({', '.join(target.names)})")
    columns = {name: [key[i] for key in keys] for i, name in enumerate(target.names)}
    return _one_table(_from_columns(columns, target), target)


def _single(values: pa.Array | pa.ChunkedArray, target: pa.Schema) -> pa.Table:
    if len(target) != 1:
        raise InvalidInputError(f"the key has {len(target)} columns; give tuples, dicts or data with these columns")
    return pa.table([values], names=target.names)
