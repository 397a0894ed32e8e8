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

from lance_memwal.rows.adapt import live_flags
from lance_memwal.rows.blobs import bytes_of, shown_blobs
from lance_memwal.rows.fit import at_most
from lance_memwal.rows.keys import row_numbers
from lance_memwal.rows.row_codes import occurrences
from lance_memwal.rows.schema import TableSchema
from lance_memwal.types import TOMBSTONE

Mask: TypeAlias = npt.NDArray[np.bool_]
Numbers: TypeAlias = npt.NDArray[np.int64]
_Written: TypeAlias = tuple[pa.RecordBatch, pa.BooleanArray | None]  # rows, and which of them are tombstones


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

    @property
    def kept_names(self) -> Sequence[str]:
        """What live rows call the columns that are kept."""
        return [bytes_of(name) if name in self.blobs else name for name in self.kept] if self.blobs else self.kept

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
    """The newest rows of the keys of a write: columns by name, `_tombstone` among them, and per key its row, or -1.

    `in_order`: every key has a live row, and these are in the order of the keys.
    """

    __slots__ = ("_alive", "_at", "columns", "in_order")

    def __init__(self, columns: dict[str, pa.Array], at: Numbers, *, in_order: bool = False) -> None:
        """`in_order`: the rows are in the order of the keys, one for each."""
        self.columns = columns
        self._at = at
        self._alive: Mask = at >= 0
        flags = columns[TOMBSTONE]
        self.in_order = in_order and not flags.true_count
        if flags.true_count:
            self._alive &= ~flags.to_numpy(zero_copy_only=False)[at]

    def __len__(self) -> int:
        return len(self._at)

    def alive(self, keys: Numbers) -> Mask:
        """Per key number: whether it has a row that is no tombstone."""
        return self._alive[keys]

    def count_alive(self, keys: Mask) -> int:
        """How many of these keys have a row that is no tombstone."""
        return int(np.count_nonzero(self._alive & keys))

    def at(self, keys: Numbers) -> Numbers:
        """Per key number its row, even if it is a tombstone; -1 if there is none."""
        return self._at[keys]

    def take(self, names: Sequence[str], keys: Numbers) -> dict[str, pa.Array]:
        """Columns of the live rows of these keys, null where none is."""
        if self.in_order and len(keys) == len(self._at) and (keys[1:] > keys[:-1]).all():
            return {name: self.columns[name] for name in names}
        at, alive = self._at[keys], self._alive[keys]
        places = row_numbers(at) if alive.all() else pa.array(at, mask=~alive)
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

    def admits(self, part: Part, live: Live) -> Mask | None:
        """Per row: whether it is written; None: all are."""


def resolve(
    parts: Sequence[Part],
    live: Live,
    rules: Sequence[Rule],
    schema: TableSchema,
    check: Callable[[pa.RecordBatch], None],
) -> Resolved:
    """What becomes of `parts`, which follow each other; `check` refuses whole rows that must not be."""
    written: list[_Written] = []
    rejected: list[pa.RecordBatch] = []
    first, met = live, np.zeros(len(live), dtype=bool)
    steps_of_parts = [list(_steps(part, rules)) for part in parts]
    steps_left = sum(map(len, steps_of_parts))
    for steps in steps_of_parts:
        of_part: list[_Written] = []
        for part in steps:
            steps_left -= 1
            for rule in rules:
                admitted = rule.admits(part, live)
                if admitted is not None and not admitted.all():
                    rejected.append(part.rows.select(list(schema.primary_key)).filter(pa.array(~admitted)))
                    part = part.filter(admitted)
            if not len(part.keys):
                continue
            rows = _whole(part, live, schema)
            if (part.kept or part.computed is not None) and part.flags is None:
                check(rows)
            met[part.keys] = True
            of_part.append((rows, part.flags))
            if steps_left:
                live = live.below(part.keys, _columns(rows, part.flags, schema.blobs))
        written += _joined(of_part, schema)
    return Resolved([rows for rows, _ in written], [flags for _, flags in written], rejected, first.count_alive(met))


def _joined(steps: list[_Written], schema: TableSchema) -> list[_Written]:
    """The steps of one part as one batch: `batch_positions` count batches as the caller gave them."""
    if len(steps) < 2:
        return steps
    rows = at_most(1, [rows for rows, _ in steps], schema.nullable)
    if len(rows) > 1:  # too much for one array
        return steps
    flags = pa.concat_arrays([live_flags(step.num_rows) if dead is None else dead for step, dead in steps])
    return [(rows[0], flags if flags.true_count else None)]


def _steps(part: Part, rules: Sequence[Rule]) -> Iterator[Part]:
    """`part`, cut so that each key occurs once in a step, where the rules need that: keys [a, b, a] give [a, b], [a]."""
    if len(rules) < 2 and not any(rule.one_by_one for rule in rules):
        yield part
        return
    before = occurrences(part.keys)
    for number in range(int(before.max()) + 1):
        yield part.filter(before == number)


def _whole(part: Part, live: Live, schema: TableSchema) -> pa.RecordBatch:
    if not part.kept and part.computed is None:
        return part.rows
    columns = dict(zip(part.rows.schema.names, part.rows.columns, strict=True))
    found = live.take(part.kept_names, part.keys)
    columns.update(zip(part.kept, map(found.__getitem__, part.kept_names), strict=True))
    if part.computed is not None:
        columns.update(part.computed.make(pa.table(live.take(part.computed.columns, part.keys))))
    arrays = [columns[name] for name in schema.nullable.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema.nullable)


def _columns(rows: pa.RecordBatch, flags: pa.BooleanArray | None, blobs: Sequence[str]) -> dict[str, pa.Array]:
    """A live row's columns, of rows that are written."""
    dead = live_flags(rows.num_rows) if flags is None else flags
    columns = {**dict(zip(rows.schema.names, rows.columns, strict=True)), TOMBSTONE: dead}
    for name in blobs:
        columns[bytes_of(name)], columns[name] = columns[name], shown_blobs(columns[name])
    return columns
