"""Dictionary columns whose indices have few bits: how many values rows that belong together may have.

Owns `SmallDictionaries` and `take_rows`. Arrow cannot join arrays, and Lance cannot read a file, whose dictionaries hold
more values together than the index type of the column can count; so a generation never does.

Called by: the schema, the memtable, the writer, searches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memwal.errors import InvalidInputError

__all__ = ["SmallDictionaries", "check_dictionaries", "small_dictionaries", "take_rows"]

_FEW_BITS = 16


def small_dictionaries(columns: pa.Schema) -> dict[int, int]:
    """Per column (by its place) that has a dictionary with small indices: the number of values that it can hold."""
    found = {}
    for place, column in enumerate(columns):
        if pa.types.is_dictionary(column.type) and column.type.index_type.bit_width <= _FEW_BITS:
            index = column.type.index_type
            found[place] = (1 << index.bit_width - pa.types.is_signed_integer(index)) - 1
    return found


def check_dictionaries(batches: Sequence[pa.RecordBatch], limits: Mapping[int, int]) -> None:
    """Return only if `batches` can be together; `InvalidInputError` names the column. One batch always can."""
    place = SmallDictionaries(limits).too_small_for(batches) if limits and len(batches) > 1 else None
    if place is not None:
        column = batches[0].schema.field(place)
        raise InvalidInputError(
            f"column {column.name!r}: the batches of one write have more values than {column.type} can count; split it"
        )


def take_rows(table: pa.Table, rows: npt.NDArray[np.int64]) -> pa.Table:
    """These rows of `table`, in this order, also where its chunks cannot be joined."""
    try:
        return table.take(pa.array(rows))
    except pa.ArrowInvalid:
        return pa.concat_tables([table.slice(row, 1) for row in rows.tolist()])


class SmallDictionaries:
    """The values that the dictionaries of some rows hold together."""

    __slots__ = ("_limits", "_newest", "_values")

    def __init__(self, limits: Mapping[int, int]) -> None:
        """`limits`: as `small_dictionaries` gives them."""
        self._limits = limits
        self._values: dict[int, set[Any]] = {place: set() for place in limits}
        self._newest: dict[int, pa.Array] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Take in the dictionaries of `batch`."""
        for place, values in self._values.items():
            dictionary, newest = batch.column(place).dictionary, self._newest.get(place)
            if newest is None or not dictionary.equals(newest):
                values.update(dictionary.to_pylist())
                self._newest[place] = dictionary

    def too_small_for(self, batches: Sequence[pa.RecordBatch]) -> int | None:
        """The place of a column that could not hold the values of `batches` too; None if all can."""
        for place, limit in self._limits.items():
            held, newest, added = self._values[place], self._newest.get(place), set[Any]()
            for batch in batches:
                dictionary = batch.column(place).dictionary
                if newest is None or not dictionary.equals(newest):
                    added.update(dictionary.to_pylist())
                    newest = dictionary
            if len(added) > limit - len(held) and len(held | added) > limit:
                return place
        return None
