"""UUIDs as texts, and back, many at once.

Owns both ways. Invariants: a text is the usual one (36 characters, in lower case); what is read back may have capitals and
may lack hyphens, and anything else is an `InvalidInputError`; nulls stay nulls.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_memwal.errors import InvalidInputError

_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)
_HYPHENS = (8, 13, 18, 23)
_PLACES = np.array([at for at in range(36) if at not in _HYPHENS])
_VALUES = np.full(256, 255, np.uint8)
_VALUES[_DIGITS] = np.arange(16)


def is_uuid_text(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether texts are given where UUIDs are needed."""
    is_text = pa.types.is_string(source) or pa.types.is_large_string(source) or pa.types.is_string_view(source)
    return isinstance(target, pa.UuidType) and bool(is_text)


def uuids_of_values(values: Sequence[Any]) -> pa.Array:
    """Python values as UUIDs: `uuid.UUID`, 16 bytes, texts, or None."""
    if not any(isinstance(value, str) for value in values):
        return pa.array(uuids_as_bytes(values), pa.uuid())
    texts = [value.hex if isinstance(value, uuid.UUID) else value for value in values]
    return uuids_of_texts(pa.array([text.hex() if isinstance(text, bytes) else text for text in texts], pa.string()))


def uuids_as_bytes(values: Sequence[Any]) -> list[Any]:
    """Python values, each `uuid.UUID` as its 16 bytes: Arrow makes them of it only since its version 23."""
    return [value.bytes if isinstance(value, uuid.UUID) else value for value in values]


def uuids_as_texts(array: pa.Array) -> pa.StringArray:
    """Each UUID (of the extension type, or 16 bytes) as its text."""
    stored = array.storage if isinstance(array.type, pa.BaseExtensionType) else array
    cells = np.frombuffer(stored.buffers()[1] or b"", np.uint8, len(stored) * 16, stored.offset * 16)
    nibbles = np.stack([cells >> 4, cells & 15], axis=1).reshape(len(stored), 32)
    texts = np.full((len(stored), 36), ord("-"), np.uint8)
    texts[:, _PLACES] = _DIGITS[nibbles]
    whole = pa.FixedSizeBinaryArray.from_buffers(pa.binary(36), len(stored), [None, pa.py_buffer(texts)])
    made = whole.cast(pa.binary()).cast(pa.string())
    return pc.if_else(stored.is_valid(), made, pa.scalar(None, pa.string())) if stored.null_count else made


def uuids_of_texts(array: pa.Array) -> pa.Array:
    """Each text as a UUID."""
    digits = pc.utf8_lower(pc.replace_substring(array.cast(pa.string()), "-", "")).fill_null("0" * 32)
    wrong = pc.not_equal(pc.binary_length(digits), 32)
    if not pc.any(wrong).as_py():
        cells = _VALUES[np.frombuffer("".join(digits.to_pylist()).encode("latin-1", "replace"), np.uint8)]
        if len(cells) == 32 * len(array) and not (cells == 255).any():
            pairs = cells.reshape(-1, 2)
            data = pa.py_buffer(np.ascontiguousarray(pairs[:, 0] << 4 | pairs[:, 1]))
            valid = array.is_valid().buffers()[1] if array.null_count else None
            storage = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(array), [valid, data])
            return pa.uuid().wrap_array(storage)
    raise InvalidInputError("a text is no UUID: give 32 hexadecimal digits, with or without hyphens")
