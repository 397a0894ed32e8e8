"""Parse protobuf bytes from storage within fixed limits of size and memory.

Owns the one door through which protobuf bytes from storage become messages. Invariants:

1. Nothing is parsed that is larger than `max_bytes`.
2. Nothing is parsed that holds more than `MAX_FIELDS` fields: two bytes on the wire can become a hundred in memory, so
   a size limit alone does not stop a bomb. Input below `_WALK_FROM_BYTES` cannot do harm and is not walked.
3. The only error is `CorruptDataError`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]

from lance_memwal.errors import CorruptDataError

MAX_FIELDS = 500_000
_WALK_FROM_BYTES = 64 * 1024
_MAX_DEPTH = 16
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_M = TypeVar("_M", bound=Message)


def parse_message(kind: type[_M], data: bytes, *, what: str, max_bytes: int, path: str | None = None) -> _M:
    """The message in `data`, or `CorruptDataError`; memory stays within a small multiple of `max_bytes`."""
    if len(data) > max_bytes:
        raise CorruptDataError(f"{what} is too large: {len(data)} bytes, at most {max_bytes}", path=path)
    if len(data) > _WALK_FROM_BYTES and _count_fields(data, kind.DESCRIPTOR) > MAX_FIELDS:
        raise CorruptDataError(f"{what} holds more than {MAX_FIELDS} fields", path=path)
    message: _M = kind()
    try:
        message.ParseFromString(bytes(data))
    except DecodeError as error:
        raise CorruptDataError(f"{what} is not a valid message: {error}", path=path) from None
    return message


def _count_fields(data: bytes, descriptor: Any) -> int:
    """Fields in `data` and in its known nested messages; stops soon after `MAX_FIELDS`.

    Malformed input ends the walk of its message early: the parser, which sees the same bytes, refuses it.
    """
    total = 0
    pending = [(0, len(data), descriptor, 0)]
    while pending and total <= MAX_FIELDS:
        at, end, kind, depth = pending.pop()
        nested = _nested(kind)
        while 0 <= at < end and total <= MAX_FIELDS:
            total += 1
            key, at = _varint(data, at, end) if data[at] > 127 else (data[at], at + 1)
            body, at = _skip(data, at, end, key & 7)
            if body >= 0 and depth < _MAX_DEPTH and (key >> 3) in nested:
                pending.append((body, at, nested[key >> 3], depth + 1))
    return total


@lru_cache(maxsize=64)
def _nested(descriptor: Any) -> dict[int, Any]:
    """The message types of the fields that hold messages, by field number."""
    return {field.number: field.message_type for field in descriptor.fields if field.message_type is not None}


def _skip(data: bytes, at: int, end: int, wire_type: int) -> tuple[int, int]:
    """(start of a length-delimited body or -1, offset behind the field or -1 where it is malformed)."""
    if at < 0:
        return -1, -1
    if wire_type == _BYTES:
        size, body = _varint(data, at, end) if at == end or data[at] > 127 else (data[at], at + 1)
        return (body, body + size) if 0 <= body <= body + size <= end else (-1, -1)
    if wire_type == _VARINT:
        return -1, _varint(data, at, end)[1]
    if wire_type in (_FIXED64, _FIXED32):
        behind = at + (8 if wire_type == _FIXED64 else 4)
        return -1, behind if behind <= end else -1
    return -1, at  # a group: its fields are counted as if they were ours


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    return 0, -1
