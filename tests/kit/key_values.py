"""Key types that only we write, with values of them as Python code has them, in ascending order."""

import datetime
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa

from lance_memwal.rows.uuid_text import uuids_as_bytes

_DAYS = [datetime.date(1912, 6, 23), datetime.date(1969, 12, 31), datetime.date(1970, 1, 1), datetime.date(2026, 2, 28)]
_TIMES = [datetime.datetime(day.year, day.month, day.day, 1, 2, 3) for day in _DAYS]
_AWARE = [time.replace(tzinfo=datetime.timezone.utc) for time in _TIMES]  # noqa: UP017

OWN_KEYS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.uuid(), [uuid.UUID(int=number) for number in (0, 7, 1 << 64, (1 << 128) - 1)]),
    (pa.binary(16), [bytes(16), b"\0" * 15 + b"a", b"k'" * 8, b"\xff" * 16]),
    (pa.date32(), _DAYS),
    (pa.date64(), _DAYS),
    (pa.timestamp("s"), _TIMES),
    (pa.timestamp("ns"), _TIMES),
    (pa.timestamp("us", "Europe/Berlin"), _AWARE),
    (pa.timestamp("ms", "+02:00"), _AWARE),
    (pa.decimal128(10, 2), [Decimal("-99999999.99"), Decimal("-0.01"), Decimal("0.00"), Decimal("12.50")]),
    (pa.decimal256(76, 6), [Decimal(-(10**60)), Decimal("-0.000001"), Decimal("0.500000"), Decimal(10**60)]),
]


def other_forms(kind: pa.DataType, value: Any) -> list[Any]:
    """Other ways to say the same key: an Arrow scalar, bytes of a UUID, a UUID for 16 bytes, an aware or a naive time."""
    scalar = pa.array(uuids_as_bytes([value]), kind)[0]
    forms = [scalar]
    if isinstance(value, uuid.UUID):
        forms.append(value.bytes)
    if kind == pa.binary(16):
        forms.append(uuid.UUID(bytes=value))
    if isinstance(value, datetime.datetime):
        berlin = datetime.timezone(datetime.timedelta(hours=2))
        aware = value if value.tzinfo is not None else value.replace(tzinfo=datetime.timezone.utc)  # noqa: UP017
        forms += [aware.astimezone(berlin), aware.replace(tzinfo=None)]
    if isinstance(value, Decimal) and value == value.to_integral_value():
        forms.append(int(value))
    return forms
