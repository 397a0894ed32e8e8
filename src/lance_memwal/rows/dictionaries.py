"""Dictionary columns whose indices have few bits: how many values rows that belong together may have.

Owns `SmallDictionaries`, `take_rows` and `array_of`. Arrow cannot join arrays, and Lance cannot read a file, whose
dictionaries hold more values together than the index type of the column can count; so a generation never does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_memwal.errors import InvalidInputError

Place: TypeAlias = tuple[int, ...]
"""A column, and the way to the dictionary inside it: the numbers of the children."""

_FEW_BITS = 16


def array_of(values: Any, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Python values as an array of this type: before its version 25 Arrow made no dictionary of large texts from them."""
    try:
        return pa.array(values, kind)
    except pa.ArrowNotImplementedError:
        if not pa.types.is_dictionary(kind):
            raise
        return pa.array(values, kind.value_type).dictionary_encode().cast(kind)


def with_wide_indices(field: pa.Field) -> pa.Field:
    """The column of a new table: pandas categoricals have 8-bit indices, which count 127 values, so they become 32-bit ones."""
    kind, types = field.type, pa.types
    if types.is_dictionary(kind) and kind.index_type.bit_width <= _FEW_BITS:
        return field.with_type(pa.dictionary(pa.int32(), kind.value_type, ordered=kind.ordered))
    if types.is_struct(kind):
        return field.with_type(pa.struct(list(map(with_wide_indices, kind))))
    if types.is_list(kind) or types.is_large_list(kind):
        item = with_wide_indices(kind.value_field)
        return field.with_type(pa.list_(item) if types.is_list(kind) else pa.large_list(item))
    if types.is_map(kind):
        key, item = with_wide_indices(kind.key_field), with_wide_indices(kind.item_field)
        return field.with_type(pa.map_(key, item, keys_sorted=kind.keys_sorted))
    return field


def dictionaries(columns: pa.Schema) -> Iterator[tuple[Place, pa.DictionaryType]]:
    """Every dictionary type in `columns`."""
    for number, column in enumerate(columns):
        for way, kind in _inside(column.type):
            yield (number, *way), kind


def _inside(kind: pa.DataType) -> Iterator[tuple[Place, pa.DictionaryType]]:
    if pa.types.is_dictionary(kind):
        yield (), kind
    elif pa.types.is_map(kind):
        for child, inner in enumerate((kind.key_type, kind.item_type)):
            yield from (((child, *way), found) for way, found in _inside(inner))
    elif not isinstance(kind, pa.BaseExtensionType):
        for child in range(kind.num_fields):
            yield from (((child, *way), found) for way, found in _inside(kind.field(child).type))


def dictionary_at(batch: pa.RecordBatch, place: Place) -> pa.Array:
    """The values of a dictionary of `batch`."""
    array = batch.column(place[0])
    for child in place[1:]:
        if pa.types.is_map(array.type):
            array = array.items if child else array.keys
        elif pa.types.is_struct(array.type):
            array = array.field(child)
        else:
            array = array.values
    return array.dictionary


def small_dictionaries(columns: pa.Schema) -> dict[Place, int]:
    """Per dictionary with small indices: the number of values that it can hold."""
    found = {}
    for place, kind in dictionaries(columns):
        index = kind.index_type
        if index.bit_width <= _FEW_BITS:
            found[place] = (1 << index.bit_width - pa.types.is_signed_integer(index)) - 1
    return found


def check_dictionaries(batches: Sequence[pa.RecordBatch], limits: Mapping[Place, int]) -> None:
    """Return only if `batches` can be together; `InvalidInputError` names the column. One batch always can."""
    place = SmallDictionaries(limits).too_small_for(batches) if limits and len(batches) > 1 else None
    if place is not None:
        column = batches[0].schema.field(place[0])
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

    def __init__(self, limits: Mapping[Place, int]) -> None:
        """`limits`: as `small_dictionaries` gives them."""
        self._limits = limits
        self._values: dict[Place, set[Any]] = {place: set() for place in limits}
        self._newest: dict[Place, pa.Array] = {}

    @property
    def limits(self) -> Mapping[Place, int]:
        """Per dictionary the number of values that it can hold."""
        return self._limits

    def add(self, batch: pa.RecordBatch) -> None:
        """Take in the dictionaries of `batch`."""
        for place, values in self._values.items():
            dictionary, newest = dictionary_at(batch, place), self._newest.get(place)
            if newest is None or not dictionary.equals(newest):
                values.update(dictionary.to_pylist())
                self._newest[place] = dictionary

    def too_small_for(self, batches: Sequence[pa.RecordBatch]) -> Place | None:
        """The place of a dictionary that could not hold the values of `batches` too; None if all can."""
        for place, limit in self._limits.items():
            held, newest, added = self._values[place], self._newest.get(place), set[Any]()
            for batch in batches:
                dictionary = dictionary_at(batch, place)
                if newest is None or not dictionary.equals(newest):
                    added.update(dictionary.to_pylist())
                    newest = dictionary
            if len(added) > limit - len(held) and len(held | added) > limit:
                return place
        return None
