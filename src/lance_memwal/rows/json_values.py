"""JSON columns: texts in memory, Lance's bytes in the log, and the one spelling that every tier shows.

Owns the conversion, which Lance itself does: no other code agrees with it on numbers, the order of names and escapes. A
table has texts (`arrow.json`); Lance's files and the log have JSONB (a large binary named `lance.json`).
Invariants:

1. `spelled` gives a text as every tier shows it: a put stores `{"b": 1.50, "a": 2}` as `{"a":2,"b":1.5}`.
2. `spelled` refuses text that is not JSON (RFC 8259), JSON with a value that Lance's spelling changes, and JSON that nests
   deeper than `_MAX_DEPTH`. Lance itself takes `[1,]` and `{a: 1}`, makes null of 1e309, and overflows its stack at depth 10,000.
3. `spelled` drops texts that no value shows (below a null, outside of a slice): Lance would parse them too.
4. `decoded` refuses bytes that are not JSON: such a value could not be written again. It has no limit on the depth, because
   earlier versions had none.
5. JSON inside structs, lists and maps is spelled and checked in the same way; in the log it stays text.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any, Final, NoReturn

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_memwal.errors import InvalidInputError, is_failure, reason_of
from lance_memwal.rows.keys import one_array

_JSON_BYTES: Final = pa.large_binary()
_NAME, _DETAILS = b"ARROW:extension:name", b"ARROW:extension:metadata"
_LANCE_JSON = b"lance.json"
_MARKS = {_NAME: _LANCE_JSON, _DETAILS: b""}
_COLUMN = "j"
_FEW = 256  # up to so many, Python parses them faster than Lance writes a dataset
_FLAT_FILES: Final = "2.0"  # the cheapest to write and to read back
_NESTED_FILES: Final = "2.2"  # knows null structs
_WHY = re.compile(r"Failed to encode JSON: ([^,]*)")
_MAX_DEPTH: Final = 200  # Python's parser recurses: at depth 1,000 it fails, or earlier if the caller's stack is deep
_STRING: Final = r'"(?:[^"\\]|\\.)*"'
_ESCAPES = re.compile(rb"\\.", re.DOTALL)
_NO_BRACKETS_OR_QUOTES = bytes(byte for byte in range(256) if byte not in b'[]{}"')
_STEPS = np.zeros(256, dtype=np.int8)
_STEPS[list(b"[{")], _STEPS[list(b"]}")] = 1, -1
_SHOWN_CHARACTERS = 40


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
    """The same JSON in the spelling of Lance; `InvalidInputError` if a text is not JSON, or JSON that Lance would change."""
    array = _without_hidden_texts(array)
    if array.null_count == len(array):
        return array
    texts = _texts(array)
    for text in texts.filter(pc.greater(pc.count_substring_regex(texts, r"[\[{]"), _MAX_DEPTH)).to_pylist():
        _check_depth(text)  # before Lance parses it
    result = _spelling_of_lance(array)
    shown = _texts(result)
    is_same = pc.equal(pc.replace_substring_regex(texts, rf"({_STRING})|[ \t\r\n]+", r"\1"), shown)
    if not pc.all(is_same).as_py():
        is_other = pc.invert(is_same)
        for text, spelling in zip(texts.filter(is_other).to_pylist(), shown.filter(is_other).to_pylist(), strict=True):
            if _loaded(text) != json.loads(spelling):
                raise InvalidInputError(
                    f"cannot store the JSON {_shortened(text)}: Lance would make it {_shortened(spelling)}"
                )
    return result


def _spelling_of_lance(array: pa.Array) -> pa.Array:
    return one_array(_image(array, pa.field(_COLUMN, array.type)).to_table().column(0))


def _texts(array: pa.Array) -> pa.StringArray:
    """All JSON texts that are in `array`, without nulls."""
    if isinstance(array.type, pa.JsonType):
        return array.storage.drop_null()
    if pa.types.is_map(array.type):  # Arrow has no flatten for maps
        array = array.cast(pa.list_(pa.struct([array.type.key_field, array.type.item_field])))
    parts = array.flatten() if pa.types.is_struct(array.type) else [array.flatten()]
    found = [_texts(part) for part in parts if holds_json(part.type)]
    return pa.concat_arrays(found) if len(found) > 1 else found[0]


def _without_hidden_texts(array: pa.Array) -> pa.Array:
    """The same values without the texts below a null or outside of a slice: Lance parses those, too."""
    kind = array.type
    if isinstance(kind, pa.JsonType) or not holds_json(kind):
        return array
    mask = array.is_null() if array.null_count else None
    if pa.types.is_struct(kind):
        parts = [_without_hidden_texts(part) for part in array.flatten()]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=mask)
    array = array.take(pa.array(np.arange(len(array))))  # only values that are shown
    if pa.types.is_map(kind):
        items = _without_hidden_texts(array.items)
        return pa.MapArray.from_arrays(array.offsets, array.keys, items, type=kind, mask=mask)
    lists = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
    return lists.from_arrays(array.offsets, _without_hidden_texts(array.values), type=kind, mask=mask)


def _check_depth(text: str) -> None:
    if nesting(text.encode()) > _MAX_DEPTH:
        raise InvalidInputError(f"cannot store the JSON {_shortened(text)}: it nests deeper than {_MAX_DEPTH} levels")
    _loaded(text)  # what is not JSON may hide brackets from us, behind quotes that Lance reads in another way


def nesting(data: bytes) -> int:
    """The greatest number of brackets that are open at the same time, counted in linear time; strings are left out.

    ["]]", {}]  the brackets and quotes are [ " ] ] " { } ]: two of them follow an odd number of quotes, and the depth is 2
    """
    plain = _ESCAPES.sub(b"", data) if b"\\" in data else data
    signs = np.frombuffer(plain.translate(None, _NO_BRACKETS_OR_QUOTES), dtype=np.uint8)
    outside = ~np.logical_xor.accumulate(signs == ord('"'))
    heights = np.concatenate([[0], np.cumsum(_STEPS[signs[outside]], dtype=np.int64)])
    return int((heights - np.minimum.accumulate(heights)).max())


def _loaded(text: str) -> Any:
    """The value of a JSON text; `InvalidInputError` if it is not JSON, or has a number that a double cannot hold."""
    try:
        return json.loads(text, parse_float=_double, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"cannot store the JSON {_shortened(text)}: {error}") from None
    except ArithmeticError:
        raise InvalidInputError(f"cannot store the JSON {_shortened(text)}: an exponent is too large") from None


def _double(digits: str) -> float:
    """A number with a fraction or an exponent: a double that, written with as many digits, is that number."""
    value, exact = float(digits), Decimal(digits)
    if Decimal(f"{value:.{len(exact.as_tuple().digits) - 1}e}") != exact:
        raise ValueError(f"a double does not hold all digits of {_shortened(digits)}")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _shortened(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "...")


def encoded(texts: pa.Array) -> pa.Array:
    """The bytes of JSON texts; nulls stay nulls."""
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), _JSON_BYTES)
    image = _image(texts, pa.field(_COLUMN, texts.type))
    return one_array(image.to_table(columns={_COLUMN: f"cast({_COLUMN} as binary)"}).column(0)).cast(_JSON_BYTES)


def decoded(stored: pa.Array) -> pa.Array:
    """The texts of JSON in Lance's bytes; `InvalidInputError` if the bytes are not JSON."""
    if stored.null_count == len(stored):
        return pa.nulls(len(stored), pa.json_())
    texts = one_array(_image(stored, pa.field(_COLUMN, stored.type, metadata=_MARKS)).to_table().column(0))
    texts.validate(full=True)
    if len(texts) > _FEW:
        return _spelling_of_lance(texts)
    try:
        for text in texts.drop_null().to_pylist():
            json.loads(text)
    except ValueError as error:
        raise InvalidInputError(f"these bytes are not JSON: {error}") from None
    except RecursionError:
        return _spelling_of_lance(texts)
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
        raise InvalidInputError(f"cannot store the JSON: {why[1] if why else reason_of(error)}") from None
