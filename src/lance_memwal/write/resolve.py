"""What a write becomes, given the live rows: whole rows, tombstones, and what was kept out.

Owns `resolve`, a pure function, and what it works on: `Part`, `Live` and the port `Rule`. Invariants:

1. Rows of one key count in their order: each sees what became of those before it.
2. What comes out are whole rows of the table: columns that were left out have what the live row has, null where there is
   none.
3. A rule admits a row or keeps it out; a rule that cannot be asked raises, and nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_memwal.rows.blobs import bytes_of, shown_blobs
from lance_memwal.rows.schema import TableSchema
from lance_memwal.types import TOMBSTONE

__all__ = [
    "Computed",
    "Live",
    "Mask",
    "Numbers",
    "Part",
    "Resolved",
    "Rule",
    "occurrences",
    "resolve",
]

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

    @property
    def rejected_keys(self) -> pa.Table | None:
        """The keys that were kept out; None if there are none."""
        if not self.rejected:
            return None
        schema = self.rejected[0].schema  # batches differ in what they say of nulls
        return pa.Table.from_batches([pa.RecordBatch.from_arrays(b.columns, schema=schema) for b in self.rejected])


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
    before = occurrences(part.keys)
    for number in range(int(before.max()) + 1):
        yield part.filter(before == number)


def occurrences(keys: Numbers) -> Numbers:
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
