"""JSON columns: texts in memory, Lance's bytes in the log, and the one spelling that every tier shows.

Owns the conversion, which Lance itself does: no other code agrees with it on numbers, the order of names and escapes. A
table has texts (`arrow.json`); Lance's files, and the log with them, have JSONB (a large binary named `lance.json`).
Invariants:

1. `spelled` gives a text as every tier shows it: `{"b": 1.50, "a": 2}` is `{"a":2,"b":1.5}` from the put on. What Lance
   cannot encode is refused there, and never acknowledged.
2. `decoded` trusts no bytes: what is no JSON is refused, since nobody could write it again.
3. Columns that hold JSON inside of others are spelled alike; in the log they stay texts.
"""

from __future__ import annotations

import json
import re
from typing import Final

import lance
import pyarrow as pa

from lance_memwal.errors import InvalidInputError, is_failure, reason_of
from lance_memwal.rows.keys import one_array

__all__ = ["decoded", "encoded", "holds_json", "is_json_bytes", "logged", "spelled", "texts_field"]

_JSON_BYTES: Final = pa.large_binary()
_NAME, _DETAILS = b"ARROW:extension:name", b"ARROW:extension:metadata"
_LANCE_JSON = b"lance.json"
_MARKS = {_NAME: _LANCE_JSON, _DETAILS: b""}
_COLUMN = "j"
_FEW = 256  # which are looked at one by one faster than Lance writes a dataset
_FLAT_FILES: Final = "2.0"  # the cheapest to write and to read back
_NESTED_FILES: Final = "2.2"  # knows null structs
_WHY = re.compile(r"Failed to encode JSON: ([^,]*)")


def holds_json(kind: pa.DataType) -> bool:
    """Whether values of this type are JSON, or hold some."""
    return isinstance(kind, pa.JsonType) or any(holds_json(kind.field(i).type) for i in range(kind.num_fields))


def logged(column: pa.Field) -> pa.Field:
    """A column as entries of the log hold it."""
    if not isinstance(column.type, pa.JsonType):
        return column
    return pa.field(column.name, _JSON_BYTES, column.nullable, {**(column.metadata or {}), **_MARKS})


def texts_field(stored: pa.Field) -> pa.Field:
    """A column of JSON in Lance's bytes, as one of texts."""
    metadata = {key: value for key, value in (stored.metadata or {}).items() if key not in _MARKS}
    return pa.field(stored.name, pa.json_(), stored.nullable, metadata)


def is_json_bytes(stored: pa.Field) -> bool:
    """Whether a stored column holds JSON in Lance's bytes."""
    marked = (stored.metadata or {}).get(_NAME) == _LANCE_JSON
    return bool(marked and (pa.types.is_large_binary(stored.type) or pa.types.is_binary(stored.type)))


def spelled(array: pa.Array) -> pa.Array:
    """The same JSON in the spelling of Lance; `InvalidInputError` if a text is none."""
    if array.null_count == len(array):
        return array
    return one_array(_image(array, pa.field(_COLUMN, array.type)).to_table().column(0))


def encoded(texts: pa.Array) -> pa.Array:
    """The bytes of JSON texts; nulls stay nulls."""
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), _JSON_BYTES)
    image = _image(texts, pa.field(_COLUMN, texts.type))
    return one_array(image.to_table(columns={_COLUMN: f"cast({_COLUMN} as binary)"}).column(0)).cast(_JSON_BYTES)


def decoded(stored: pa.Array) -> pa.Array:
    """The texts of JSON in Lance's bytes; `InvalidInputError` if they are none."""
    if stored.null_count == len(stored):
        return pa.nulls(len(stored), pa.json_())
    texts = one_array(_image(stored, pa.field(_COLUMN, stored.type, metadata=_MARKS)).to_table().column(0))
    texts.validate(full=True)
    if len(texts) > _FEW:
        return spelled(texts)
    try:
        for text in texts.drop_null().to_pylist():
            json.loads(text)
    except ValueError as error:
        raise InvalidInputError(f"these bytes are no JSON: {error}") from None
    return texts


def _image(array: pa.Array, column: pa.Field) -> lance.LanceDataset:
    """The column as a dataset in memory, which goes when nobody holds it."""
    try:
        rows = pa.Table.from_arrays([array], schema=pa.schema([column]))
        nested = pa.types.is_nested(column.type)
        return lance.write_dataset(rows, "memory://", data_storage_version=_NESTED_FILES if nested else _FLAT_FILES)
    except BaseException as error:
        if not is_failure(error):
            raise
        why = _WHY.search(str(error))
        raise InvalidInputError(f"a text is no JSON: {why[1] if why else reason_of(error)}") from None
