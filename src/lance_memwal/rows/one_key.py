"""One key as Python code gives it, and as memtables hold it.

Owns which Python class the values of a key column have, and their hashable form, which is that of
`lance_memwal.rows.key_encoding.comparable`: integers, booleans, texts and bytes. Invariants:

1. A value is converted only if it is exactly of its column's class, and only if nothing of it is lost; whatever else may
   stand for a key is left to the long way (`lance_memwal.rows.ingest`), which also says what is wrong with it.
2. Keys of the classes that most tables have cost one comparison of types, and are not converted.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from lance_memwal.rows.key_encoding import comparable

__all__ = ["KeyForm"]

_EPOCH = datetime.date(1970, 1, 1).toordinal()
_DAY_MILLISECONDS = 86_400_000
_Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class KeyForm:
    """The Python classes of a key's values, in key order, and how each becomes hashable (None: it is)."""

    classes: tuple[type, ...]
    _converts: tuple[_Convert | None, ...]
    _is_plain: bool

    @classmethod
    def of(cls, kinds: Sequence[pa.DataType]) -> KeyForm:
        """That of keys with these types."""
        parts = [_class_of(kind) for kind in kinds]
        converts = tuple(convert for _, convert in parts)
        return cls(tuple(kind for kind, _ in parts), converts, not any(converts))

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
