"""Rows from storage made to fit the table as it is now: by field id, or by name where there are no ids.

Owns `RowAdapter`. Invariants:

1. A column is matched by its Lance field id if the stored schema carries ids, else by name; never by position. So are
   the fields inside it (`lance_memwal.rows.field_match`).
2. A column that the rows lack reads as null; a column that the table lacks is ignored; a null key is corruption.
3. A missing key column and a type that differs from the table's are not understood; nothing is cast.
4. Rows have the normal form (`lance_memwal.rows.normal_form`), whoever wrote them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_memwal.errors import CorruptDataError, InvalidInputError, UndecidedColumnsError, UnsupportedFormatError
from lance_memwal.rows.blobs import is_second_layout
from lance_memwal.rows.field_match import ColumnMatch, Fit
from lance_memwal.rows.keys import one_array
from lance_memwal.rows.normal_form import is_always_normal, normal, nulls
from lance_memwal.rows.past_columns import Written, undecided_text
from lance_memwal.rows.schema import TableSchema
from lance_memwal.types import TOMBSTONE, BaseMark


class RowAdapter:
    """Adapts batches of one table; remembers the plan of the last stored schema, since runs of entries share it."""

    __slots__ = (
        "_as_stored",
        "_base",
        "_columns",
        "_keeps_all",
        "_keys",
        "_plan",
        "_relaxed",
        "_schema",
        "_tombstone_at",
    )

    def __init__(self, schema: TableSchema, *, keeps_all: bool = False) -> None:
        """`keeps_all`: the rows replace the stored ones, so undecided columns raise `UndecidedColumnsError`, and are not read
        as null."""
        self._schema = schema
        self._keeps_all = keeps_all
        self._relaxed = schema.nullable
        self._columns: pa.Schema | None = None
        self._base: BaseMark | None = None  # whose columns these are
        self._plan: Sequence[tuple[int, Fit]] = ()
        self._as_stored = False  # whether every column is taken as it is
        self._keys = [(self._relaxed.get_field_index(name), name) for name in schema.primary_key]
        self._tombstone_at = -1

    def adapt(
        self, batch: pa.RecordBatch, base: BaseMark | None, *, position: int | None = None
    ) -> tuple[pa.RecordBatch, pa.Array | None]:
        """The batch with the table's columns, and its tombstone flags (None: every row lives).

        `base` is the base version that the batch was written against; None if it is not recorded.
        """
        is_known = self._columns is not None and base == self._base
        if not is_known or not batch.schema.equals(self._columns, check_metadata=True):
            self._plan = self._make_plan(batch.schema, base, position)
            self._as_stored = all(_is_as_stored(fit) for _, fit in self._plan)
            self._tombstone_at = self._find_tombstone(batch.schema, position)
            self._columns, self._base = batch.schema, base
        rows = batch.num_rows
        if self._as_stored:
            arrays = [batch.column(index) for index, _ in self._plan]
        else:
            arrays = [
                nulls(rows, fit.kind) if fit.absent else _normal(batch, at, fit, position) for at, fit in self._plan
            ]
        self._check_keys(arrays, position)
        flags = batch.column(self._tombstone_at) if self._tombstone_at >= 0 else None
        if flags is not None and flags.null_count:
            flags = flags.fill_null(False)
        dead = flags is not None and flags.true_count > 0
        return pa.RecordBatch.from_arrays(arrays, schema=self._relaxed), flags if dead else None

    def _check_keys(self, arrays: list[pa.Array], position: int | None) -> None:
        for index, name in self._keys:
            if arrays[index].null_count:
                raise CorruptDataError(f"key column {name!r} holds a null", position=position)

    @staticmethod
    def _find_tombstone(stored: pa.Schema, position: int | None) -> int:
        index: int = stored.get_field_index(TOMBSTONE)
        if index >= 0 and not pa.types.is_boolean(stored.field(index).type):
            raise UnsupportedFormatError(
                f"column {TOMBSTONE!r} is stored as {stored.field(index).type}", position=position
            )
        return index

    def _make_plan(self, stored: pa.Schema, base: BaseMark | None, position: int | None) -> list[tuple[int, Fit]]:
        match = ColumnMatch(stored, self._schema, Written(base), position=position)
        plan = [match.find(name) for name in self._relaxed.names]
        if self._keeps_all and match.undecided:
            raise UndecidedColumnsError(undecided_text(match.undecided), position=position)
        match.warn_undecided()
        for name, (_, fit) in zip(self._relaxed.names, plan, strict=True):
            if fit.absent and name in self._schema.primary_key:
                raise UnsupportedFormatError(f"key column {name!r} is missing", position=position)
        return plan


def _is_as_stored(fit: Fit) -> bool:
    """Whether values of this kind need no look: they are those of the table, in normal form."""
    return fit.is_same and not is_second_layout(fit.kind) and is_always_normal(fit.kind)


def _normal(batch: pa.RecordBatch, index: int, fit: Fit, position: int | None) -> pa.Array:
    try:
        return normal(fit.apply(batch.column(index)))
    except InvalidInputError as error:
        raise CorruptDataError(f"column {batch.schema.field(index).name!r}: {error}", position=position) from None


def in_columns_of(schema: TableSchema, stored: TableSchema, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows of a moment at which the table had the columns `stored`, all of which they have, in the columns `schema`."""
    adapter, columns = RowAdapter(schema), pa.schema(list(stored.with_ids)[:-1])
    for part in rows:
        yield adapter.adapt(pa.RecordBatch.from_arrays(part.columns, schema=columns), stored.base)[0]


def with_flags(batch: pa.RecordBatch, flags: pa.Array | None, memory: pa.Schema) -> pa.RecordBatch:
    """The adapted `batch` with its tombstone flags as the last column; `memory` is the schema of the result."""
    dead = live_flags(batch.num_rows) if flags is None else flags
    return pa.RecordBatch.from_arrays([*batch.columns, dead], schema=memory)


def live_flags(rows: int) -> pa.BooleanArray:
    """The flags of as many rows, of which none is a tombstone."""
    return pa.Array.from_buffers(pa.bool_(), rows, [None, pa.py_buffer(bytes((rows + 7) // 8))])


def tombstone_flags(rows: pa.Table | pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Per row, which has its flag: whether it is a tombstone. A null says no."""
    flags = one_array(rows.column(TOMBSTONE))
    return np.asarray((flags.fill_null(False) if flags.null_count else flags).to_numpy(zero_copy_only=False))
