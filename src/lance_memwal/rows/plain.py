"""Values as JSON can hold them.

Owns `to_plain`. Invariants: NaN and infinities are null; bytes are base64, times are in ISO form; a dataclass is an object
of its fields, an enum its name in lower case.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import enum
import math
from collections.abc import Mapping
from typing import Any


def to_plain(value: Any) -> Any:
    """`value` as JSON can hold it: bytes in base64, times in ISO form, values as objects of what they were made of."""
    if value is None or isinstance(value, bool | int | str):
        return value.name.lower() if isinstance(value, enum.Enum) else value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        given = [field.name for field in dataclasses.fields(value) if field.init]
        return {name: to_plain(getattr(value, name)) for name in given}
    if isinstance(value, enum.Enum):
        return value.name.lower()
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset | range):
        return [to_plain(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    return str(value)
