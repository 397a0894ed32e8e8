"""Other Arrow layouts of the same values: list views, views of strings and bytes, runs, dictionaries.

Entry points: `value_type` is the type of the values, `plain` rewrites an array in layouts that Arrow can cast.

Invariants:

1. `plain` keeps every value and every null, also of slices, and at any depth inside structs, lists and maps.
2. A dictionary stays one where the wanted type is a dictionary. An array without other layouts is returned as it is.

Arrow casts some layouts itself, but its cast of a list view gives arrays that are not valid.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_MAX_BYTES = (1 << 31) - 1  # that 32-bit offsets can count


def value_type(kind: pa.DataType) -> pa.DataType:
    """The type of the values: that of a dictionary or of runs, else `kind` itself."""
    while pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        kind = kind.value_type
    return kind


def is_list_view(kind: pa.DataType) -> bool:
    """Whether the values are lists that may lie in any order, or overlap."""
    return bool(pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind))


def plain(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """The same values in layouts that Arrow casts to `wanted`, which must hold values of that kind."""
    kind, types = array.type, pa.types
    if kind == wanted or not _has_other_layouts(kind):
        return array
    if isinstance(kind, pa.BaseExtensionType):
        return plain(array.storage, wanted)
    if types.is_run_end_encoded(kind):
        return plain(array.values, wanted).take(pa.array(_runs(array)))
    if types.is_dictionary(kind):
        values = plain(array.dictionary, value_type(wanted))
        if types.is_dictionary(wanted):
            return pa.DictionaryArray.from_arrays(array.indices, values, ordered=kind.ordered)
        return values.take(array.indices)
    if types.is_string_view(kind):
        return array.cast(pa.string() if array.nbytes <= _MAX_BYTES else pa.large_string())
    if types.is_binary_view(kind):
        return array.cast(pa.binary() if array.nbytes <= _MAX_BYTES else pa.large_binary())
    return _with_plain_children(_as_list(array) if is_list_view(kind) else array, _stored(wanted))


def _stored(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else value_type(kind)


def _has_other_layouts(kind: pa.DataType) -> bool:
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return isinstance(kind, pa.JsonType) and kind.storage_type != pa.string()
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind) or is_list_view(kind):
        return True
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return True
    return any(_has_other_layouts(kind.field(i).type) for i in range(kind.num_fields))


def _runs(array: pa.RunEndEncodedArray) -> npt.NDArray[np.int64]:
    """Per row its run: runs that end at 2 and 5 give [0, 0, 1, 1, 1]."""
    first, count = array.offset, len(array)
    ends = np.clip(array.run_ends.to_numpy().astype(np.int64), first, first + count)
    return np.repeat(np.arange(len(ends)), np.diff(ends, prepend=first))


def _as_list(array: pa.Array) -> pa.LargeListArray:
    """The lists one after the other."""
    missing = array.is_null().to_numpy(zero_copy_only=False)
    lengths = np.where(missing, 0, np.asarray(array.sizes))
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))
    kind = pa.large_list(array.type.value_field)
    return pa.LargeListArray.from_arrays(offsets, array.flatten(), type=kind, mask=pa.array(missing))


def _with_plain_children(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """`array`, whose children have plain layouts too."""
    kind, types = array.type, pa.types
    if types.is_struct(kind):
        children = [plain(array.field(i), wanted.field(field.name).type) for i, field in enumerate(kind)]
        fields = [field.with_type(child.type) for field, child in zip(kind, children, strict=True)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null())
    if types.is_map(kind):
        pairs = [plain(array.keys, wanted.key_type), plain(array.items, wanted.item_type)]
        fields = [kind.key_field.with_type(pairs[0].type), kind.item_field.with_type(pairs[1].type)]
        child = pa.StructArray.from_arrays(pairs, fields=fields)
        return _rebuilt(array, pa.map_(*fields, keys_sorted=kind.keys_sorted), child)
    child = plain(array.values, wanted.value_type)
    item = kind.value_field.with_type(child.type)
    if types.is_fixed_size_list(kind):
        return _rebuilt(array, pa.list_(item, kind.list_size), child)
    return _rebuilt(array, (pa.large_list if types.is_large_list(kind) else pa.list_)(item), child)


def _rebuilt(array: pa.Array, kind: pa.DataType, child: pa.Array) -> pa.Array:
    own = array.buffers()[: 1 if pa.types.is_fixed_size_list(kind) else 2]
    return pa.Array.from_buffers(kind, len(array), own, array.null_count, array.offset, [child])
