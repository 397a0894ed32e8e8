"""What a write becomes, given the live rows: whole rows, tombstones, and what was kept out.

Owns `resolve`, a pure function, and the rules that it asks. Invariants:

1. Rows of one key count in their order: each sees what became of those before it.
2. What comes out are whole rows of the table: columns that were left out have what the live row has, null where there is
   none.
3. A rule admits a row or keeps it out; a rule that cannot be asked raises, and nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_memwal.errors import InvalidInputError
from lance_memwal.rows.blobs import bytes_of, shown_blobs
from lance_memwal.rows.filter import FilterLike, RowFilter
from lance_memwal.rows.merging import order_of
from lance_memwal.rows.schema import TableSchema
from lance_memwal.types import TOMBSTONE

__all__ = [
    "Live",
    "MustExist",
    "NotLate",
    "OnlyAbsent",
    "OnlyIf",
    "OnlyIfEqual",
    "OnlyMatching",
    "Part",
    "Resolved",
    "Rule",
    "resolve",
]

EXCLUDED = "excluded"  # what a condition calls the row that is given
_SHOWN = 5
Mask: TypeAlias = npt.NDArray[np.bool_]
Numbers: TypeAlias = npt.NDArray[np.int64]


class Computed(Protocol):
    """Columns that are made of live rows."""

    @property
    def columns(self) -> Sequence[str]:
        """The columns of live rows that it needs."""

    def make(self, rows: pa.Table) -> dict[str, pa.Array]:
        """The columns, of live rows with the columns that are needed."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a write.

    `keys` has per row the number of its key among the keys of the write. `kept` are the table's columns that the rows do
    not have, `computed` makes others of the live rows.
    `flags` say which rows are tombstones; None: none is. `blobs` are the table's blob columns: what is kept of them are
    the bytes, which live rows have under another name.
    """

    rows: pa.RecordBatch
    keys: Numbers
    kept: tuple[str, ...] = ()
    flags: pa.BooleanArray | None = None
    computed: Computed | None = None
    blobs: tuple[str, ...] = ()

    def name_of(self, kept: str) -> str:
        """What live rows call a column that is kept."""
        return bytes_of(kept) if kept in self.blobs else kept

    @property
    def is_dead(self) -> bool:
        """Whether all rows are tombstones."""
        return self.flags is not None and self.flags.true_count == len(self.flags)

    def filter(self, mask: Mask) -> Part:
        """Some of the rows."""
        if mask.all():
            return self
        some = pa.array(mask)
        flags = None if self.flags is None else self.flags.filter(some)
        return replace(self, rows=self.rows.filter(some), keys=self.keys[mask], flags=flags)


class Live:
    """The newest rows of the keys of a write: columns by name, `_tombstone` among them, and per key its row, or -1."""

    __slots__ = ("_alive", "_at", "columns")

    def __init__(self, columns: dict[str, pa.Array], at: Numbers) -> None:
        self.columns = columns
        self._at = at
        self._alive: Mask = at >= 0
        flags = columns[TOMBSTONE]
        if flags.true_count:
            self._alive &= ~flags.to_numpy(zero_copy_only=False)[at]

    def __len__(self) -> int:
        return len(self._at)

    def alive(self, keys: Numbers) -> Mask:
        """Per key number: whether it has a row that is no tombstone."""
        return self._alive[keys]

    def at(self, keys: Numbers) -> Numbers:
        """Per key number its row, even if it is a tombstone; -1 if there is none."""
        return self._at[keys]

    def take(self, names: Sequence[str], keys: Numbers) -> dict[str, pa.Array]:
        """Columns of the live rows of these keys, null where none is."""
        at, alive = self._at[keys], self._alive[keys]
        if not alive.all():
            places = pa.array(at, mask=~alive)
        elif len(at) == len(self.columns[TOMBSTONE]) and (at == np.arange(len(at))).all():
            return {name: self.columns[name] for name in names}
        else:
            places = pa.array(at)
        return {name: self.columns[name].take(places) for name in names}

    def below(self, keys: Numbers, columns: dict[str, pa.Array]) -> Live:
        """These rows, superseded by newer ones, the last of which counts for each key."""
        start = len(self.columns[TOMBSTONE])
        at = self._at.copy()
        at[keys] = np.arange(start, start + len(keys))
        return Live({name: pa.concat_arrays([old, columns[name]]) for name, old in self.columns.items()}, at)


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a write becomes: batches with their flags, the keys that were kept out, and how many live rows are superseded."""

    batches: list[pa.RecordBatch]
    flags: list[pa.BooleanArray | None]
    rejected: list[pa.RecordBatch]
    matched: int = 0


class Rule(Protocol):
    """A condition on the rows of a write."""

    @property
    def columns(self) -> Sequence[str]:
        """The columns of live rows that it looks at."""

    @property
    def one_by_one(self) -> bool:
        """Whether it must be asked for rows of one key one after the other."""

    def admits(self, part: Part, live: Live) -> Mask:
        """Per row: whether it is written."""


def resolve(
    parts: Sequence[Part],
    live: Live,
    rules: Sequence[Rule],
    schema: TableSchema,
    check: Callable[[pa.RecordBatch], None],
) -> Resolved:
    """What becomes of `parts`, which follow each other; `check` refuses whole rows that must not be."""
    done, first = Resolved([], [], []), live
    met = np.zeros(len(live), dtype=bool)
    steps = [step for part in parts for step in _steps(part, rules)]
    for number, part in enumerate(steps, 1):
        for rule in rules:
            admitted = rule.admits(part, live)
            if not admitted.all():
                done.rejected.append(part.rows.select(list(schema.primary_key)).filter(pa.array(~admitted)))
                part = part.filter(admitted)
        if not len(part.keys):
            continue
        rows = _whole(part, live, schema)
        if (part.kept or part.computed is not None) and part.flags is None:
            check(rows)
        met[part.keys] = True
        done.batches.append(rows)
        done.flags.append(part.flags)
        if number < len(steps):
            live = live.below(part.keys, _columns(rows, part.flags, schema.blobs))
    return replace(done, matched=int(np.count_nonzero(first.alive(np.flatnonzero(met)))))


def _steps(part: Part, rules: Sequence[Rule]) -> Iterator[Part]:
    """`part`, cut so that each key occurs once in a step, where the rules need that: keys [a, b, a] give [a, b], [a]."""
    if len(rules) < 2 and not any(rule.one_by_one for rule in rules):
        yield part
        return
    before = _occurrences(part.keys)
    for number in range(int(before.max()) + 1):
        yield part.filter(before == number)


def _occurrences(keys: Numbers) -> Numbers:
    """Per row, how often its key came before: [7, 8, 7, 7] gives [0, 0, 1, 2]."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    lengths = np.diff(np.append(starts, len(keys)))
    before = np.empty(len(keys), dtype=np.int64)
    before[order] = np.arange(len(keys)) - np.repeat(starts, lengths)
    return before


def _whole(part: Part, live: Live, schema: TableSchema) -> pa.RecordBatch:
    if not part.kept and part.computed is None:
        return part.rows
    given = dict(zip(part.rows.schema.names, part.rows.columns, strict=True))
    found = live.take([part.name_of(name) for name in part.kept], part.keys)
    columns = {**given, **{name: found[part.name_of(name)] for name in part.kept}}
    if part.computed is not None:
        columns.update(part.computed.make(pa.table(live.take(part.computed.columns, part.keys))))
    arrays = [columns[name] for name in schema.nullable.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema.nullable)


def _columns(rows: pa.RecordBatch, flags: pa.BooleanArray | None, blobs: Sequence[str]) -> dict[str, pa.Array]:
    """A live row's columns, of rows that are written."""
    dead = pa.array(np.zeros(rows.num_rows, dtype=bool)) if flags is None else flags
    columns = {**dict(zip(rows.schema.names, rows.columns, strict=True)), TOMBSTONE: dead}
    for name in blobs:
        columns[bytes_of(name)], columns[name] = columns[name], shown_blobs(columns[name])
    return columns


# --------------------------------------------------------------------------------------------------------------- rules


@dataclass(frozen=True, slots=True)
class MustExist:
    """Every row's key, which is in the columns `key`, has a live row, or nothing is written."""

    key: tuple[str, ...]
    columns: tuple[str, ...] = ()
    one_by_one: bool = False

    def admits(self, part: Part, live: Live) -> Mask:
        """All rows; `InvalidInputError` names the keys that are not there."""
        alive = live.alive(part.keys)
        if not alive.all():
            absent = part.rows.filter(pa.array(~alive))
            shown = ", ".join(str(row) for row in absent.select(list(self.key)).slice(0, _SHOWN).to_pylist())
            more = ", …" if absent.num_rows > _SHOWN else ""
            raise InvalidInputError(
                f"{absent.num_rows} rows of this update have no row in the table: {shown}{more}; nothing was written. Pass "
                "insert=True to insert them"
            )
        return alive


@dataclass(frozen=True, slots=True)
class OnlyAbsent:
    """A row is written if its key has no live row; of rows of one key the first. Tombstones are written anyway."""

    columns: tuple[str, ...] = ()
    one_by_one: bool = False

    def admits(self, part: Part, live: Live) -> Mask:
        """The first row of each key that is not there."""
        first = np.asarray(~live.alive(part.keys) & (_occurrences(part.keys) == 0))
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
        self._named = [field for field in plain if text is None or field.name.lower() in text]  # these, or more
        given = [pa.field(EXCLUDED, pa.struct(self._named))]
        self._filter = RowFilter(source, pa.schema([*plain, *(given if self._named else [])]))
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
    return {TOMBSTONE: pa.array(np.zeros(rows, dtype=bool))}


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
        column = (
            part.computed.make(pa.table(live.take(part.computed.columns, part.keys)))[self.sequence]
            if part.computed is not None
            else part.rows.column(self.sequence)
        )
        given, _ = order_of(column)
        newest, valid = order_of(live.columns[self.sequence])
        late = _earlier_in_part(part.keys, given)
        if len(newest):
            at = live.at(part.keys)
            known = (at >= 0) if valid is None else (at >= 0) & valid[at]
            late |= known & (given < newest[at])
        return ~late


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
    """The one row of a write is written if the live row is `expected`, a whole row; None: if there is none."""

    expected: dict[str, Any] | None
    columns: tuple[str, ...]
    one_by_one: bool = False

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
