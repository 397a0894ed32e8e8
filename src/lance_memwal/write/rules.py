"""The rules of writes: which rows are written, given the live ones.

Owns every `Rule` that `resolve` is given. Invariants:

1. A rule is a value: asked twice with the same rows it gives the same answer, so that a write may be resolved again.
2. A tombstone is a row, and is asked for like one, where a rule does not say otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_memwal.errors import InvalidInputError
from lance_memwal.rows.adapt import live_flags
from lance_memwal.rows.filter import FilterLike, RowFilter
from lance_memwal.rows.merging import order_of
from lance_memwal.rows.row_codes import occurrences
from lance_memwal.rows.schema import TableSchema
from lance_memwal.types import TOMBSTONE
from lance_memwal.write.resolve import Live, Mask, Numbers, Part
from lance_memwal.write.sequences import span_of

EXCLUDED = "excluded"  # what a condition calls the row that is given
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class MustExist:
    """Every row's key, which is in the columns `key`, has a live row, or nothing is written. Tombstones need none."""

    key: tuple[str, ...]
    columns: tuple[str, ...] = ()
    one_by_one: bool = False

    def admits(self, part: Part, live: Live) -> Mask | None:
        """All rows; `InvalidInputError` names the keys that are not there."""
        if live.in_order:
            return None
        alive = live.alive(part.keys)
        if part.flags is not None:
            alive |= part.flags.to_numpy(zero_copy_only=False)
        if not alive.all():
            raise InvalidInputError(
                f"{_count(~alive)} rows of this update have no row in the table: {_named(part, ~alive, self.key)}; nothing "
                "was written. To insert them: insert=True, or a put with missing='keep'"
            )
        return alive


@dataclass(frozen=True, slots=True)
class MustBeNew:
    """No row's key, which is in the columns `key`, has a live row, and none comes twice, or nothing is written."""

    key: tuple[str, ...]
    columns: tuple[str, ...] = ()
    one_by_one: bool = False

    def admits(self, part: Part, live: Live) -> Mask:
        """All rows; `InvalidInputError` names the keys that are there."""
        known = np.asarray(live.alive(part.keys) | (occurrences(part.keys) > 0))
        if known.any():
            raise InvalidInputError(
                f"{_count(known)} rows that were to be inserted have a key that is there, or comes twice: "
                f"{_named(part, known, self.key)}; nothing was written. use put to replace rows"
            )
        return ~known


def _count(mask: Mask) -> int:
    return int(np.count_nonzero(mask))


def _named(part: Part, mask: Mask, key: tuple[str, ...]) -> str:
    """The keys of some rows, for a person."""
    some = part.rows.filter(pa.array(mask)).select(list(key))
    shown = ", ".join(str(row) for row in some.slice(0, _SHOWN).to_pylist())
    return f"{shown}, …" if some.num_rows > _SHOWN else shown


@dataclass(frozen=True, slots=True)
class OnlyAbsent:
    """A row is written if its key has no live row; of rows of one key the first. Tombstones are written anyway."""

    columns: tuple[str, ...] = ()
    one_by_one: bool = False

    def admits(self, part: Part, live: Live) -> Mask:
        """The first row of each key that is not there."""
        first = np.asarray(~live.alive(part.keys) & (occurrences(part.keys) == 0))
        return first if part.flags is None else first | part.flags.to_numpy(zero_copy_only=False)


class OnlyIf:
    """A row supersedes a live one if a condition on both is true; one whose key is not there is written."""

    __slots__ = ("_filter", "_named", "columns")
    one_by_one = True

    def __init__(self, source: FilterLike, schema: TableSchema) -> None:
        """The condition names columns of the live row, and of the row that is given as `excluded.<column>`."""
        if any(name.lower() == EXCLUDED for name in schema.columns.names):
            raise InvalidInputError(f"where= needs the name {EXCLUDED!r}, and this table has such a column")
        text = source.lower() if isinstance(source, str) else None
        plain = [pa.field(field.name, field.type) for field in schema.columns if field.name not in schema.blobs]
        self._named = [
            field for field in plain if text is None or field.name.lower() in text
        ] or plain  # these, or more
        self._filter = RowFilter(source, pa.schema([*plain, pa.field(EXCLUDED, pa.struct(self._named))]))
        self.columns = tuple(name for name in self._filter.columns if name != EXCLUDED)

    def admits(self, part: Part, live: Live) -> Mask:
        """The rows whose key is not there, and those for which the condition is true."""
        alive = live.alive(part.keys)
        admitted = ~alive
        if alive.any():
            met = part.filter(alive)
            columns = live.take(self.columns, met.keys)
            if EXCLUDED in self._filter.columns:
                columns[EXCLUDED] = self._given(met, live)
            admitted[alive] = self._filter.mask(pa.table(columns or _counted(len(met.keys))))
        return admitted

    def _given(self, part: Part, live: Live) -> pa.Array:
        kept = live.take([field.name for field in self._named if field.name in part.kept], part.keys)
        arrays = [kept[field.name] if field.name in kept else part.rows.column(field.name) for field in self._named]
        return pa.StructArray.from_arrays(arrays, fields=self._named)


class OnlyMatching:
    """A row is written if its key has a live row for which a filter is true."""

    __slots__ = ("_filter", "columns")
    one_by_one = False

    def __init__(self, row_filter: RowFilter) -> None:
        self._filter = row_filter
        self.columns = tuple(row_filter.columns)

    def admits(self, part: Part, live: Live) -> Mask:
        """The rows whose live row matches."""
        admitted = live.alive(part.keys)
        met = np.flatnonzero(admitted)
        if len(met):
            columns = live.take(self.columns, part.keys[met]) or _counted(len(met))
            admitted[met] = self._filter.mask(pa.table(columns))
        return admitted


def _counted(rows: int) -> dict[str, pa.Array]:
    """A table with as many rows, for a filter that names no column."""
    return {TOMBSTONE: live_flags(rows)}


@dataclass(frozen=True, slots=True)
class NotLate:
    """A row or tombstone is written unless the newest of its key, a tombstone too, has a larger sequence."""

    sequence: str
    one_by_one: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """The sequence."""
        return (self.sequence,)

    def admits(self, part: Part, live: Live) -> Mask:
        """The rows that are not late; those that keep the sequence of the live row are not."""
        if self.sequence in part.kept:
            return np.ones(len(part.keys), dtype=bool)
        given, _ = order_of(part.rows.column(self.sequence) if part.computed is None else self._made(part, live))
        newest, valid = order_of(live.columns[self.sequence])
        late = _earlier_in_part(part.keys, given)
        if len(newest):
            at = live.at(part.keys)
            known = (at >= 0) if valid is None else (at >= 0) & valid[at]
            late |= known & (given < newest[at])
        return ~late

    def _made(self, part: Part, live: Live) -> pa.Array:
        """What an update sets the sequence to; `InvalidInputError` if that is none, which could not be late."""
        if part.computed is None or not len(part.keys):
            return live.columns[self.sequence].slice(0, 0)
        made = part.computed.make(pa.table(live.take(part.computed.columns, part.keys)))[self.sequence]
        span_of([pa.record_batch({self.sequence: made})], self.sequence)
        return made


def _earlier_in_part(keys: Numbers, given: npt.NDArray[Any]) -> Mask:
    """Per row: whether a row of the same key before it has a larger sequence.

    Keys [a, a, b, a] with [5, 3, 1, 4]: rows by key are a5 a3 a4 | b1, the largest so far is 5 5 5 | 1, so a3 and a4 are.
    """
    if len(keys) < 2 or (given[1:] >= given[:-1]).all():
        return np.zeros(len(keys), dtype=bool)
    ranks = np.unique(given, return_inverse=True)[1].reshape(-1)
    order = np.argsort(keys, kind="stable")
    ordered = keys[order] * (len(keys) + 1) + ranks[order]
    earlier = np.empty(len(keys), dtype=bool)
    earlier[order] = np.maximum.accumulate(ordered) > ordered
    return earlier


@dataclass(frozen=True, slots=True)
class OnlyIfEqual:
    """The one row of a write is written if the live row has what is `expected`; None: if there is none."""

    expected: dict[str, Any] | None
    one_by_one: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """What is expected."""
        return tuple(self.expected or ())

    def admits(self, part: Part, live: Live) -> Mask:
        """Whether the live row is the expected one; not a number is equal to itself."""
        alive = live.alive(part.keys)
        if self.expected is None or not alive.all():
            return ~alive if self.expected is None else alive
        found = {name: column[0].as_py() for name, column in live.take(self.columns, part.keys).items()}
        return np.array([_is_same(found, self.expected)])


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(value, other[name]) for name, value in one.items())
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return bool(one == other) or (one != one and other != other)
