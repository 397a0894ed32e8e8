"""One key as Python code gives it, as memtables hold it, and as arrays of keys have it.

Owns which Python class the values of a key column have, and their hashable form, which is that of
`lance_memwal.rows.key_encoding.comparable`: integers, booleans, texts and bytes. Invariants:

1. A value is converted only if it is exactly of its column's class, and only if nothing of it is lost; whatever else may
   stand for a key is left to the long way (`lance_memwal.rows.ingest`), which also says what is wrong with it.
2. What `whole` gives is what `lance_memwal.rows.keys.key_array` gives for that key; nothing, if no column could hold it.
3. Keys of the classes that most tables have cost one comparison of types, and are not converted.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from lance_memwal.rows.key_encoding import comparable, encoder_of

_EPOCH = datetime.date(1970, 1, 1).toordinal()
_DAY_MILLISECONDS = 86_400_000
_Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class KeyForm:
    """The Python classes of a key's values, in key order, how each becomes hashable (None: it is), and then one of many."""

    classes: tuple[type, ...]
    _converts: tuple[_Convert | None, ...]
    _is_plain: bool
    _fits: tuple[_Convert, ...]
    _encoders: tuple[_Convert, ...]

    @classmethod
    def of(cls, kinds: Sequence[pa.DataType]) -> KeyForm:
        """That of keys with these types."""
        parts = [_class_of(kind) for kind in kinds]
        converts = tuple(convert for _, convert in parts)
        fits, encoders = tuple(map(_fit_of, kinds)), tuple(map(encoder_of, kinds))
        return cls(tuple(kind for kind, _ in parts), converts, not any(converts), fits, encoders)

    @property
    def is_number(self) -> bool:
        """Whether a key is compared as one number."""
        return len(self.classes) == 1 and self.classes[0] not in (str, bytes, uuid.UUID, Decimal)

    def hashable(self, key: Any) -> Any:
        """`key` as memtables hold it; None if that cannot be told here."""
        given = key if isinstance(key, tuple) else (key,)
        if not given or tuple(map(type, given)) != self.classes:
            return None
        if self._is_plain:
            return given if len(given) > 1 else given[0]
        try:
            made = tuple(v if make is None else make(v) for v, make in zip(given, self._converts, strict=True))
        except (pa.ArrowException, ValueError, OverflowError):
            return None
        return made if len(self.classes) > 1 else made[0]

    def whole(self, held: Any) -> int | bytes | None:
        """The one value of a key that memtables hold as `held`; None if the columns cannot have it."""
        try:
            if len(self.classes) == 1:
                value: int | bytes = self._fits[0](held)
                return value
            parts = zip(held, self._fits, self._encoders, strict=True)
            return b"".join([encode(fit(value)) for value, fit, encode in parts])
        except (ValueError, OverflowError):
            return None


def _fit_of(kind: pa.DataType) -> _Convert:
    """What makes a hashable value of a column the bytes or the number that it is compared by; `ValueError` if it is none."""
    compared = comparable(pa.array([], kind)).type
    types = pa.types
    if types.is_boolean(compared):
        return int
    if types.is_integer(compared):
        bits = compared.bit_width
        low, high = (-(1 << bits - 1), 1 << bits - 1) if types.is_signed_integer(compared) else (0, 1 << bits)
        return lambda value: _in_range(value, low, high)
    if types.is_string(compared) or types.is_large_string(compared):
        return str.encode
    if types.is_fixed_size_binary(compared):
        width = compared.byte_width
        return lambda value: _of_width(value, width)
    return bytes


def _in_range(value: int, low: int, end: int) -> int:
    if not low <= value < end:
        raise ValueError("no value of the column")
    return value


def _of_width(value: bytes, width: int) -> bytes:
    if len(value) != width:
        raise ValueError("no value of the column")
    return value


def _class_of(kind: pa.DataType) -> tuple[type, _Convert | None]:
    types = pa.types
    if types.is_integer(kind):
        return int, None
    if types.is_boolean(kind):
        return bool, None
    if types.is_string(kind) or types.is_large_string(kind):
        return str, None
    if isinstance(kind, pa.UuidType):
        return uuid.UUID, lambda value: value.bytes
    if types.is_date32(kind):
        return datetime.date, lambda value: value.toordinal() - _EPOCH
    if types.is_date64(kind):
        return datetime.date, lambda value: (value.toordinal() - _EPOCH) * _DAY_MILLISECONDS
    if types.is_timestamp(kind):
        return datetime.datetime, lambda value: pa.scalar(value).cast(kind).value  # refuses to cut fractions off
    if types.is_decimal(kind):
        return Decimal, lambda value: comparable(pa.array([value], kind))[0].as_py()
    return bytes, None
