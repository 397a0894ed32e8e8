"""Protobuf wire format, only as much as surgery on Lance manifests needs.

Owns parsing a message into its fields in file order and joining them again. A generated class would put unknown fields
after the known ones and re-spell defaults; here a message that is not touched keeps its bytes, and one that is touched
keeps everything that we do not know. Invariants:

1. `join(parse(data)) == data` for every message in canonical varint spelling.
2. Input is hostile: anything that is no complete message raises `CorruptDataError`, in time linear in its size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from lance_memwal.errors import CorruptDataError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_MAX = (1 << 64) - 1
_FIXED = {FIXED64: 8, FIXED32: 4}


class Field(NamedTuple):
    """One field of a message as it stands there; varints are unsigned numbers, everything else is bytes."""

    number: int
    wire_type: int
    value: int | bytes

    def as_bytes(self) -> bytes:
        """The content of a length-delimited field."""
        if not isinstance(self.value, bytes) or self.wire_type != BYTES:
            raise CorruptDataError(f"protobuf field {self.number} is not length-delimited")
        return self.value

    def as_int(self) -> int:
        """The number in a varint field, unsigned."""
        if not isinstance(self.value, int):
            raise CorruptDataError(f"protobuf field {self.number} is not a number")
        return self.value

    def as_text(self) -> str:
        """The text in a string field."""
        try:
            return self.as_bytes().decode()
        except UnicodeDecodeError as error:
            raise CorruptDataError(f"protobuf field {self.number} is not UTF-8") from error


class Message:
    """The fields of a message by number. An absent field has its proto3 default; of a repeated scalar the last counts."""

    __slots__ = ("fields",)

    def __init__(self, data: bytes) -> None:
        self.fields = tuple(parse(data))

    def has(self, number: int) -> bool:
        """Whether the field is there, if only with its default."""
        return any(field.number == number for field in self.fields)

    def number(self, number: int) -> int:
        """An unsigned number."""
        field = self._last(number)
        return 0 if field is None else field.as_int()

    def signed(self, number: int) -> int:
        """An int32 or int64."""
        return _to_signed(self.number(number))

    def data(self, number: int) -> bytes:
        """Bytes, or the bytes of a message."""
        field = self._last(number)
        return b"" if field is None else field.as_bytes()

    def text(self, number: int) -> str:
        """A string."""
        field = self._last(number)
        return "" if field is None else field.as_text()

    def all(self, number: int) -> list[bytes]:
        """Every occurrence of a repeated bytes or message field."""
        return [field.as_bytes() for field in self.fields if field.number == number]

    def numbers(self, number: int) -> tuple[int, ...]:
        """A repeated int32 or int64: packed, or one by one (both are legal)."""
        out: list[int] = []
        for field in self.fields:
            if field.number == number:
                out += [field.as_int()] if field.wire_type == VARINT else varints(field.as_bytes())
        return tuple(_to_signed(value) for value in out)

    def _last(self, number: int) -> Field | None:
        return next((field for field in reversed(self.fields) if field.number == number), None)


def parse(data: bytes) -> list[Field]:
    """The fields of a message, in file order."""
    fields: list[Field] = []
    at, size = 0, len(data)
    while at < size:
        key, at = _read_varint(data, at)
        number, wire_type = key >> 3, key & 7
        if not 0 < number < 1 << 29:
            raise CorruptDataError(f"protobuf field number {number} is out of range")
        if wire_type == VARINT:
            value, at = _read_varint(data, at)
            fields.append(Field(number, wire_type, value))
            continue
        if wire_type == BYTES:
            length, at = _read_varint(data, at)
        elif wire_type in _FIXED:
            length = _FIXED[wire_type]
        else:
            raise CorruptDataError(f"protobuf wire type {wire_type} is unknown")
        if length > size - at:
            raise CorruptDataError("protobuf message is cut off")
        fields.append(Field(number, wire_type, data[at : at + length]))
        at += length
    return fields


def join(fields: Iterable[Field]) -> bytes:
    """The message with exactly these fields, in this order."""
    out = bytearray()
    for number, wire_type, value in fields:
        out += _varint(number << 3 | wire_type)
        if isinstance(value, int):
            out += _varint(value)
        else:
            if wire_type == BYTES:
                out += _varint(len(value))
            out += value
    return bytes(out)


def varint_field(number: int, value: int) -> Field:
    """A number; negative ones are spelled as int64."""
    return Field(number, VARINT, value & _MAX)


def bytes_field(number: int, value: bytes | str) -> Field:
    """A string, bytes or message."""
    return Field(number, BYTES, value.encode() if isinstance(value, str) else value)


def varints(data: bytes) -> Iterator[int]:
    """The numbers of a packed repeated field, unsigned."""
    at = 0
    while at < len(data):
        value, at = _read_varint(data, at)
        yield value


def varints_of(numbers: Iterable[int]) -> bytes:
    """The content of a packed repeated field."""
    return b"".join(_varint(number & _MAX) for number in numbers)


def _to_signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _varint(number: int) -> bytes:
    if number < 128:
        return bytes((number,))
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    if at < len(data) and data[at] < 128:  # nearly all of them
        return data[at], at + 1
    value = shift = 0
    for at in range(at, min(at + 10, len(data))):  # noqa: B020
        byte = data[at]
        value |= (byte & 127) << shift
        if byte < 128:
            return value & _MAX, at + 1
        shift += 7
    raise CorruptDataError("protobuf varint is cut off or too long")
