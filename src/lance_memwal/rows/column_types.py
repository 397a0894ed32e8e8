"""Column types that a table may have: those whose rows come back unchanged from every tier.

Entry point: `check_columns`. It is an allow-list over the structure of a type; key types have a list of their own in
`key_encoding`. `tests/schema/test_column_types.py` is its proof: it writes rows of every listed type through log, memtable,
SSTable, lookup and compaction, for each version of Lance's data files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa

from lance_memwal.errors import InvalidInputError
from lance_memwal.rows.blobs import BLOB_MARK, is_second_layout
from lance_memwal.rows.key_encoding import primary_key_columns

_FILES_WITHOUT_MAPS: Final = ("2.0", "2.1")  # they lack blobs of the second layout, too
_NUMBERS: Final = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating)
_FIXED_WIDTH: Final = (
    *_NUMBERS,
    *(pa.types.is_date, pa.types.is_time, pa.types.is_timestamp, pa.types.is_duration, pa.types.is_null),
    *(pa.types.is_decimal128, pa.types.is_decimal256, pa.types.is_fixed_size_binary),
)
_STRINGS: Final = (
    *(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    *(pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
)
_FIELD_SETTINGS: Final = {  # what Lance reads in the metadata of a column, and the values that work for every type
    b"lance-encoding:compression": (b"none", b"zstd", b"lz4", b"fsst"),
    b"lance-encoding:structural-encoding": (b"miniblock", b"fullzip"),
    b"lance-encoding:packed": (b"false",),
    b"packed": (b"false",),
}
_FREE_SETTINGS: Final = (b"compression-level", b"rle-threshold", b"bss", b"dict-divisor", b"dict-size-ratio")


def check_columns(schema: pa.Schema, file_version: str | None = None) -> None:
    """Return only if a table can have these columns; `InvalidInputError` names the first one that it cannot have.

    `file_version`: of Lance's data files, None for the one of new tables.
    """
    if file_version is not None and not file_version.startswith("2."):
        raise InvalidInputError(
            f"data files of version {file_version} cannot be written; copy the table to version 2.1 or later"
        )
    for field in schema:
        reason = _top_level_problem(field, file_version)
        if reason:
            raise InvalidInputError(f"column {field.name!r} cannot be {field.type}: {reason}")
    # Lance's merge writes the name of the key between double quotes. Tables with flat columns do not need that merge.
    quoted = [name for name in primary_key_columns(schema) if '"' in name]
    if quoted and not all(_is_any(field.type, (*_FIXED_WIDTH, *_STRINGS)) for field in schema):
        raise InvalidInputError(f"key column {quoted[0]!r} has a quote in its name, next to nested columns; rename it")


def _is_any(kind: pa.DataType, tests: tuple[Callable[[pa.DataType], bool], ...]) -> bool:
    return any(test(kind) for test in tests)


def _top_level_problem(field: pa.Field, version: str | None) -> str:
    is_old = version in _FILES_WITHOUT_MAPS
    if is_second_layout(field.type):
        return (
            f"data files of version {version} have no such blobs; mark a large_binary column instead" if is_old else ""
        )
    if (field.metadata or {}).get(BLOB_MARK) == b"true" and pa.types.is_large_binary(field.type):
        return "" if is_old else "data files of this version have other blobs; use lance.blob_field"
    return _field_problem(field, version)


def _field_problem(field: pa.Field, version: str | None) -> str:
    """Why a column or a nested field cannot be stored; empty if it can."""
    for key, value in (field.metadata or {}).items():
        allowed = _FIELD_SETTINGS.get(key)
        is_free = key.removeprefix(b"lance-encoding:") in _FREE_SETTINGS
        is_json = key == b"ARROW:extension:name" and value in (b"arrow.json", b"lance.json")
        if value not in allowed if allowed else is_json or (key.startswith(b"lance-encoding:") and not is_free):
            return f"its metadata {key.decode(errors='replace')}={value.decode(errors='replace')} is not supported"
    return _type_problem(field.type, version)


def _type_problem(kind: pa.DataType, version: str | None) -> str:
    types = pa.types
    if isinstance(kind, pa.JsonType):
        return "" if types.is_string(kind.storage_type) else "JSON is stored as pa.json_(pa.string())"
    if is_second_layout(kind):
        return "blobs are not nested"
    if isinstance(kind, pa.BaseExtensionType):
        return _type_problem(kind.storage_type, version)
    if types.is_dictionary(kind):
        is_known = not types.is_float16(kind.value_type) and _is_any(
            kind.value_type, (*_NUMBERS, *_STRINGS, types.is_null)
        )
        return "" if is_known else f"dictionaries of {kind.value_type} are not supported"
    if types.is_fixed_size_list(kind):
        item = kind.value_type.storage_type if isinstance(kind.value_type, pa.BaseExtensionType) else kind.value_type
        is_known = _is_any(item, _FIXED_WIDTH) and not _type_problem(item, version)
        return (
            _field_problem(kind.value_field, version) if is_known else f"fixed-size lists of {item} are not supported"
        )
    if types.is_list(kind) or types.is_large_list(kind):
        return _field_problem(kind.value_field, version)
    if types.is_map(kind) and not kind.keys_sorted:
        if version in _FILES_WITHOUT_MAPS:
            return f"data files of version {version} have no maps; write the table with version 2.2"
        return _field_problem(kind.key_field, version) or _field_problem(kind.item_field, version)
    if types.is_struct(kind) and 0 < kind.num_fields == len({field.name for field in kind}):
        return next(filter(None, (_field_problem(field, version) for field in kind)), "")
    is_known = _is_any(kind, (*_FIXED_WIDTH, *_STRINGS)) and kind != pa.binary(0)
    return "" if is_known else "the type is not supported"
