"""What a later write of a key does, where a table says so: `merge=` of `create_table` and `enable`.

Owns `LastWrite` and `FirstRow`, their text among the writer settings of a table, and the order of sequences. Invariants:

1. A merge that is stored names its column by field id: a renamed column is the same one.
2. A text that this version does not know is not damaged: `UnsupportedFormatError`, for whoever wants to write.
3. Sequences are compared as numbers; null is below all others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_memwal.arguments import check_column, check_instance, check_text
from lance_memwal.errors import InvalidInputError, UnsupportedFormatError

MERGE_KEY = "memwal.merge"
SEQUENCE_KEY = "memwal.sequence"
"""Where a table without a merge says by which sequence some of its writes go; as text it is a `LastWrite`."""
_LAST_WRITE, _FIRST_ROW = "last_write", "first_row"
_WEEK = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class LastWrite:
    """The row with the larger value of the column `sequence` wins, whatever the order of arrival; of equal ones the later.

    Deletes have a sequence, too. They are remembered for `remember_deletes` after they were compacted.
    """

    sequence: str
    remember_deletes: timedelta = _WEEK

    def __post_init__(self) -> None:
        check_text("sequence", self.sequence)
        check_instance("remember_deletes", self.remember_deletes, timedelta, "a timedelta")
        if self.remember_deletes < timedelta(0):
            raise InvalidInputError("remember_deletes must not be negative")

    @property
    def remember_ms(self) -> int:
        """How long deletes are remembered."""
        return int(self.remember_deletes.total_seconds() * 1000)


@dataclass(frozen=True, slots=True)
class FirstRow:
    """The first row of a key stays; after a delete the next one is the first."""


Merge: TypeAlias = LastWrite | FirstRow


def check_merge(merge: Any, schema: pa.Schema, primary_key: Sequence[str], sharding_column: str | None) -> None:
    """Return only if a table with these columns can have this merge; None is none."""
    if merge is None:
        return
    check_instance("merge", merge, (LastWrite, FirstRow), "LastWrite(...), FirstRow() or None")
    if not primary_key:
        raise InvalidInputError("merge= is about rows of one key: the table needs a primary key")
    if isinstance(merge, FirstRow):
        return
    name = merge.sequence
    check_column(name, schema.names, "the sequence column")
    if name in primary_key or name == sharding_column:
        raise InvalidInputError(f"column {name!r} is part of the key or of the sharding, and cannot be the sequence")
    kind = schema.field(name).type
    types = pa.types
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_timestamp(kind) or types.is_date(kind)):
        raise InvalidInputError(
            f"column {name!r} ({kind}) cannot be the sequence: integers, floats, timestamps and dates can"
        )


def encode_merge(merge: Merge, column_ids: Mapping[str, int]) -> str:
    """The text that a table stores."""
    if isinstance(merge, FirstRow):
        return json.dumps({"kind": _FIRST_ROW})
    return json.dumps(
        {"kind": _LAST_WRITE, "field": column_ids[merge.sequence], "remember_deletes_ms": merge.remember_ms}
    )


def stored_merge(text: str | None, column_ids: Mapping[str, int]) -> Merge | None:
    """The merge that a table stores, for its columns of now; None if there is none."""
    if text is None:
        return None
    try:
        stored = json.loads(text)
        kind = stored["kind"]
        if kind == _FIRST_ROW:
            return FirstRow()
        field, remembered = int(stored["field"]), timedelta(milliseconds=int(stored["remember_deletes_ms"]))
        kind = kind if remembered >= timedelta(0) else None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        kind = None
    if kind != _LAST_WRITE:
        raise UnsupportedFormatError(f"the table merges rows in a way that this version does not know: {text[:80]!r}")
    names = [name for name, number in column_ids.items() if number == field]
    if not names:
        raise InvalidInputError(
            "the sequence column of the table was dropped: its rows cannot be put in order any more"
        )
    return LastWrite(names[0], remembered)


def text_of_merge(merge: Merge | None) -> str:
    """A merge for people: "none", "last-write:column" or "first-row"."""
    return "none" if merge is None else "first-row" if isinstance(merge, FirstRow) else f"last-write:{merge.sequence}"


def merge_of_text(text: str) -> Merge | None:
    """The merge that `text_of_merge` writes."""
    name, _, column = text.strip().partition(":")
    if name == "none" and not column:
        return None
    if name == "first-row" and not column:
        return FirstRow()
    if name == "last-write" and column.strip():
        return LastWrite(column.strip())
    raise InvalidInputError(f"{text!r} is none of last-write:column, first-row, none")


def order_of(column: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    """Sequences as numbers, and which of them are not null (None: all)."""
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        column = column.cast(pa.int32() if pa.types.is_date32(column.type) else pa.int64())
    if not column.null_count:
        return column.to_numpy(zero_copy_only=False), None
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    return column.fill_null(0).to_numpy(zero_copy_only=False), valid
