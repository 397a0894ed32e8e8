"""The form in which rows are kept, in memory and on storage: one that Arrow, Lance and the peer take.

Owns `normal`, `loose`, `nulls`, `no_rows` and `blank`. Arrow lets the same rows be written in ways that not everybody
reads. Invariants of what `normal` returns; the values are those that it was given:

1. Below a null nothing is null in a field that must not be null. The value there means nothing, but it is a valid one:
   of a dictionary it is one that its dictionary holds.
2. No dictionary holds a null: a null is in the indices. (Arrow cannot join dictionaries that hold one.)
3. What was made anew on the way was validated fully.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_memwal.errors import InvalidInputError

_Mask: TypeAlias = npt.NDArray[np.bool_]


def nulls(count: int, kind: pa.DataType) -> pa.Array:
    """`count` nulls in normal form."""
    return normal(pa.nulls(count, loose(kind)), kind)


def no_rows(schema: pa.Schema) -> pa.Table:
    """A table without rows. (Arrow's own way does not know extension types inside others.)"""
    return pa.Table.from_arrays([pa.nulls(0, loose(field.type)) for field in schema], schema=schema)


def normal(array: pa.Array, kind: pa.DataType | None = None) -> pa.Array:
    """The same values in normal form, `array` itself where it has it; `InvalidInputError` names a field that must not be
    null and is. `kind`, the type of the result, may be stricter than that of `array` about nulls."""
    kind = array.type if kind is None else kind
    if is_always_normal(kind) or (array.type == kind and _has_no_null_inside(array)):
        return array
    made = _Column(array, kind).normal(None, nullable=True)
    made.validate(full=True)
    return made


def is_always_normal(kind: pa.DataType) -> bool:
    """Whether every array of this type has the normal form."""
    while isinstance(kind, pa.BaseExtensionType):  # such a type may have no hash
        kind = kind.storage_type
    return _is_always_normal(kind)


@lru_cache(maxsize=1024)
def _is_always_normal(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return False
    if pa.types.is_map(kind):  # its entries and its keys are never null
        return kind.item_field.nullable and is_always_normal(kind.key_type) and is_always_normal(kind.item_type)
    if not (pa.types.is_struct(kind) or _is_list(kind) or pa.types.is_fixed_size_list(kind)):
        return True
    inner = [kind.field(i) for i in range(kind.num_fields)]
    return all(field.nullable and is_always_normal(field.type) for field in inner)


def loose(kind: pa.DataType) -> pa.DataType:
    """The same type, in which every field may be null: Arrow fills others with values that are not always valid."""
    if is_always_normal(kind) or isinstance(kind, pa.BaseExtensionType):
        return kind
    if pa.types.is_struct(kind):
        return pa.struct([_loose(field) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, _loose(kind.item_field), keys_sorted=kind.keys_sorted)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_loose(kind.field(0)), kind.list_size)
    if _is_list(kind):
        return (pa.large_list if pa.types.is_large_list(kind) else pa.list_)(_loose(kind.field(0)))
    return kind


def _loose(field: pa.Field) -> pa.Field:
    return field.with_type(loose(field.type)).with_nullable(True)


def blank(kind: pa.DataType) -> pa.Array:
    """One value of this type that is not null: zero, an empty text, an empty list."""
    if isinstance(kind, pa.BaseExtensionType):
        return kind.wrap_array(blank(kind.storage_type))
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(
            pa.array([0], kind.index_type), blank(kind.value_type), ordered=kind.ordered
        )
    if pa.types.is_struct(kind) and kind.num_fields:
        return pa.StructArray.from_arrays([blank(field.type) for field in kind], fields=list(kind))
    if pa.types.is_fixed_size_list(kind):
        values = blank(kind.value_type).take(pa.array(np.zeros(kind.list_size, np.int64)))
        return pa.FixedSizeListArray.from_arrays(values, type=kind)
    if _is_list(kind):
        return _list_type(kind).from_arrays([0, 0], nulls(0, kind.value_type), type=kind)
    if pa.types.is_map(kind):
        return pa.MapArray.from_arrays([0, 0], nulls(0, kind.key_type), nulls(0, kind.item_type), type=kind)
    return pa.array([None], pa.struct([pa.field("", kind, nullable=False)])).field(0)


def _has_no_null_inside(array: pa.Array) -> bool:
    """Whether nothing inside `array` is null where that would matter: told by counts, no value is looked at."""
    kind = array.type
    if is_always_normal(kind):
        return True
    if isinstance(kind, pa.BaseExtensionType):
        return _has_no_null_inside(array.storage)
    if pa.types.is_dictionary(kind):
        return not array.dictionary.null_count
    if pa.types.is_map(kind):
        parts = [(kind.key_field, array.keys), (kind.item_field, array.items)]
    elif pa.types.is_struct(kind):
        parts = [(field, array.field(i)) for i, field in enumerate(kind)]
    else:
        parts = [(kind.field(0), array.values)]
    return all((field.nullable or not part.null_count) and _has_no_null_inside(part) for field, part in parts)


class _Column:
    """One array on its way to the normal form, as one of type `kind`."""

    def __init__(self, array: pa.Array, kind: pa.DataType) -> None:
        self._array = array
        self._kind = kind

    def normal(self, hidden: _Mask | None, *, nullable: bool, name: str = "") -> pa.Array:
        """The array in normal form; `hidden` are the rows below a null (None: no row is), in which anything may be."""
        kind = self._kind
        if isinstance(kind, pa.BaseExtensionType):
            storage = _Column(self._array.storage, kind.storage_type)
            return kind.wrap_array(storage.normal(hidden, nullable=nullable, name=name))
        if pa.types.is_dictionary(kind):
            self._array = _without_null_values(self._array)
        missing = self._missing
        if not nullable:
            visible = missing if hidden is None else missing & ~hidden
            if visible.any():
                raise InvalidInputError(f"field {name!r} must not be null")
        elif is_always_normal(kind):
            return self._array
        mask = pa.array(missing) if nullable and missing.any() else None
        return self._filled(missing if hidden is None else missing | hidden, mask)

    @property
    def _missing(self) -> _Mask:
        own = self._array.indices if pa.types.is_dictionary(self._kind) else self._array
        return np.asarray(own.is_null().to_numpy(zero_copy_only=False))

    def _filled(self, dead: _Mask, mask: pa.Array | None) -> pa.Array:
        """The array with harmless values in the `dead` rows, and nulls where `mask` says so (None: nowhere)."""
        array, kind = self._array, self._kind
        if pa.types.is_dictionary(kind):
            return array if mask is not None or not dead.any() else _with_first_value(array)
        if pa.types.is_struct(kind) and kind.num_fields:
            children = [
                _Column(array.field(i), field.type).normal(dead, nullable=field.nullable, name=field.name)
                for i, field in enumerate(kind)
            ]
            return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
        if pa.types.is_fixed_size_list(kind):
            size, item = kind.list_size, kind.field(0)
            values = array.values.slice(array.offset * size, len(array) * size)
            inner = _Column(values, item.type).normal(np.repeat(dead, size), nullable=item.nullable, name=item.name)
            return pa.FixedSizeListArray.from_arrays(inner, type=kind, mask=mask)
        if _is_list(kind) or pa.types.is_map(kind):
            return self._filled_list(dead, mask)
        return array if mask is not None or not dead.any() else _with_blanks(array, dead)

    def _filled_list(self, dead: _Mask, mask: pa.Array | None) -> pa.Array:
        """Lists that are empty in the dead rows; what they held there is left out."""
        kind = self._kind
        array = self._array.take(pa.array(np.arange(len(dead)), mask=dead))  # also: no offset, no unused values
        lengths = np.where(dead, 0, pc.fill_null(_lengths(array), 0).to_numpy(zero_copy_only=False))
        ends = np.concatenate([[0], np.cumsum(lengths)])
        if pa.types.is_map(kind):
            key, item = kind.key_field, kind.item_field
            keys = _Column(array.keys, key.type).normal(None, nullable=False, name=key.name)
            items = _Column(array.items, item.type).normal(None, nullable=item.nullable, name=item.name)
            return pa.MapArray.from_arrays(pa.array(ends, pa.int32()), keys, items, type=kind, mask=mask)
        item = kind.field(0)
        values = _Column(array.flatten(), item.type).normal(None, nullable=item.nullable, name=item.name)
        offsets = pa.array(ends, pa.int64() if pa.types.is_large_list(kind) else pa.int32())
        return _list_type(kind).from_arrays(offsets, values, type=kind, mask=mask)


def _list_type(kind: pa.DataType) -> Any:
    return pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray


def _lengths(array: pa.Array) -> pa.Array:
    return (
        pc.subtract(array.offsets[1:], array.offsets[:-1])
        if pa.types.is_map(array.type)
        else pc.list_value_length(array)
    )


def _without_null_values(array: pa.DictionaryArray) -> pa.DictionaryArray:
    """Values [z, null], indices [1, 0, null] become values [z], indices [null, 0, null]."""
    values = array.dictionary
    if not values.null_count:
        return array
    stays = values.is_valid().to_numpy(zero_copy_only=False)
    moved = pa.array(np.cumsum(stays) - 1, mask=~stays)
    return pa.DictionaryArray.from_arrays(
        moved.take(array.indices).cast(array.type.index_type), values.drop_null(), ordered=array.type.ordered
    )


def _with_first_value(array: pa.DictionaryArray) -> pa.DictionaryArray:
    """Nulls replaced by a value that the dictionary holds, so that it does not grow past what its indices can count."""
    kind = array.type
    values = array.dictionary if len(array.dictionary) else blank(kind.value_type)
    return pa.DictionaryArray.from_arrays(pc.fill_null(array.indices, 0), values, ordered=kind.ordered)


def _with_blanks(array: pa.Array, rows: _Mask) -> pa.Array:
    at = np.where(rows, len(array), np.arange(len(array)))
    return pa.concat_arrays([array, blank(array.type)]).take(pa.array(at))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))
