"""Stored values of one column made to fit the table as it is now, fields inside it included: by field id.

Owns `ColumnMatch`, `Fit` and `fit_of`, the one rule by which stored columns become today's. Invariants:

1. A column is matched by its Lance field id if the stored schema carries ids, else by name; so are the fields of a
   struct, at any depth; never by position. A field that the values lack is null, one that the table lacks is left out.
   `TableSchema.past` decides what the ids of a stored schema mean. A field for which it cannot decide is null.
2. Nothing is cast: another type is not understood, unless the id says that it is another field, which was dropped. (JSON
   in Lance's bytes is the same type in another form.)
3. What fits already is returned as it is.

Worked example: stored struct<x 3, y 4>, the table has struct<z 4, w 5>: y is read as z, w is null, x is left out.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lance_memwal.errors import UnsupportedFormatError
from lance_memwal.rows.blobs import is_second_layout, same_blobs
from lance_memwal.rows.json_values import decoded, is_json_bytes
from lance_memwal.rows.normal_form import nulls
from lance_memwal.rows.past_columns import NO_FIELD, NOT_RECORDED, Undecided, Written, undecided_text
from lance_memwal.rows.schema import FieldId, TableSchema, id_of


@dataclass(frozen=True, slots=True)
class Fit:
    """How stored values become values of type `kind`.

    `parts` are the fields of a struct (or what is inside a list or map), each with its place among the stored ones; empty
    if the values fit as they are. `absent`: there are none. `from_json`: they are JSON in Lance's bytes.
    """

    kind: pa.DataType
    parts: tuple[tuple[int, Fit], ...] = ()
    absent: bool = False
    from_json: bool = False

    @property
    def is_same(self) -> bool:
        """Whether the values are taken as they are."""
        return not self.parts and not self.absent and not self.from_json

    def chunks(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """`apply`, for values in several pieces."""
        if self.is_same and not is_second_layout(self.kind):
            return values
        return pa.chunked_array(map(self.apply, values.chunks), self.kind)

    def apply(self, values: pa.Array) -> pa.Array:
        """The values as the table has them; without a copy where they fit."""
        if self.absent:
            return nulls(len(values), self.kind)
        if self.from_json:
            return decoded(values)
        if not self.parts:
            return same_blobs(values, self.kind) if is_second_layout(self.kind) else values
        if pa.types.is_struct(self.kind):
            children = [fit.apply(values.field(at) if at >= 0 else values) for at, fit in self.parts]
            mask = values.is_null() if values.null_count else None
            return pa.StructArray.from_arrays(children, fields=list(self.kind), mask=mask)
        if pa.types.is_map(self.kind):
            (_, key), (_, item) = self.parts
            inner = [key.apply(values.keys), item.apply(values.items)]
            child = pa.StructArray.from_arrays(inner, fields=[self.kind.key_field, self.kind.item_field])
        else:
            child = self.parts[0][1].apply(values.values)
        own = values.buffers()[: 1 if pa.types.is_fixed_size_list(self.kind) else 2]
        return pa.Array.from_buffers(self.kind, len(values), own, values.null_count, values.offset, [child])


class ColumnMatch:
    """Which stored columns are those of a table, and how their values fit; made once per stored schema.

    The ids of stored columns are in their metadata; `written` says what is recorded of them. `where` (a path or position)
    is what errors name. `undecided` are the columns, of those that `find` was called for, that may be other columns.
    """

    __slots__ = ("_by_id", "_columns", "_known", "_schema", "_where", "_written", "undecided")

    def __init__(self, stored: pa.Schema, schema: TableSchema, written: Written = NOT_RECORDED, **where: Any) -> None:
        if schema.past is not None:
            stored = schema.past.settle(stored, written)
        self._columns = stored
        self._schema = schema
        self._written = written
        self._where = where
        self.undecided: dict[str, Undecided] = {}
        self._by_id = {number: i for i, field in enumerate(stored) if (number := id_of(field)) is not None}
        self._known: dict[str, tuple[int, Fit]] = {}

    def find(self, name: str) -> tuple[int, Fit]:
        """The place of a table's column among the stored ones, and how its values fit; -1 and absent if it is not there.

        `UnsupportedFormatError` if it is stored as another type.
        """
        known = self._known.get(name)
        if known is None:
            ids = self._schema.ids_of(name)
            by_name: int = self._columns.get_field_index(name)
            at = self._by_id.get(ids.id, -1) if self._by_id and ids is not None else by_name
            stored = self._own(name, self._columns.field(at)) if at >= 0 else None
            fit = fit_of(stored, self._schema.nullable.field(name), ids, **self._where)
            known = self._known[name] = (-1 if fit.absent else at, fit)
        return known

    def _own(self, name: str, stored: pa.Field) -> pa.Field | None:
        """The stored column without the fields that are others of the table today; None if it is another one itself."""
        past = self._schema.past
        if past is None:
            return stored
        own, undecided = past.own(stored, self._written)
        if undecided:
            self.undecided[name] = undecided
        return None if id_of(own) == NO_FIELD else own

    def warn_undecided(self) -> None:
        """Warn of columns that are read as null; Python shows the same text once per process."""
        if self.undecided:
            warnings.warn(f"read as null: {undecided_text(self.undecided)}", UserWarning, stacklevel=3)


def fit_of(stored: pa.Field | None, wanted: pa.Field, ids: FieldId | None, **where: Any) -> Fit:
    """How a stored field (None: there is none) becomes the table's `wanted`, whose ids are `ids`.

    The ids of `stored` are in its metadata, and in that of the fields inside it. `UnsupportedFormatError`, with `where`
    (a path or position), if it is of another type.
    """
    return _fit(stored, wanted, ids, wanted.name, where)


def _fit(stored: pa.Field | None, wanted: pa.Field, ids: FieldId | None, name: str, where: Mapping[str, Any]) -> Fit:
    kind = wanted.type
    if stored is not None and isinstance(kind, pa.JsonType) and is_json_bytes(stored):
        return Fit(kind, from_json=True)
    by_id = stored is not None and ids is not None and id_of(stored) is not None
    if stored is None or (by_id and _is_another_column(stored.type, kind)):
        return Fit(kind, absent=True)
    if pa.types.is_struct(kind) and pa.types.is_struct(stored.type):
        return _fit_struct(stored, wanted, ids, name, where)
    inside = _inside(stored.type, kind)
    if inside:
        below = _children(ids, kind)
        parts = tuple(
            (i, _fit_inside(s, w, below[i] if below else None, name, where)) for i, (s, w) in enumerate(inside)
        )
        same = stored.type == kind and all(part.is_same for _, part in parts)
        return Fit(kind) if same else Fit(kind, parts)
    if stored.type != kind and not (is_second_layout(stored.type) and is_second_layout(kind)):
        raise UnsupportedFormatError(f"column {name!r} is stored as {stored.type}, the table has {kind}", **where)
    return Fit(kind)


def _fit_inside(
    stored: pa.Field | None, wanted: pa.Field, ids: FieldId | None, name: str, where: Mapping[str, Any]
) -> Fit:
    """`_fit` for a field inside another, which may have to be there (the keys of a map: Arrow ends a process that lacks them)."""
    path = f"{name}.{wanted.name}"
    fit = _fit(stored, wanted, ids, path, where)
    if fit.absent and not wanted.nullable:
        raise UnsupportedFormatError(f"rows lack {path!r}, which must not be null", **where)
    return fit


def _fit_struct(stored: pa.Field, wanted: pa.Field, ids: FieldId | None, name: str, where: Mapping[str, Any]) -> Fit:
    kind, below = wanted.type, _children(ids, wanted.type)
    by_id = {id_of(stored.type.field(i)): i for i in range(stored.type.num_fields)}
    has_ids = bool(below) and any(number is not None for number in by_id)
    parts = []
    for i, field in enumerate(kind):
        at = by_id.get(below[i].id, -1) if has_ids else stored.type.get_field_index(field.name)
        part = _fit_inside(stored.type.field(at) if at >= 0 else None, field, below[i] if below else None, name, where)
        parts.append((at, part))
    same = stored.type == kind and all(part.is_same and at == i for i, (at, part) in enumerate(parts))
    return Fit(kind) if same or not parts else Fit(kind, tuple(parts))


def _inside(stored: pa.DataType, wanted: pa.DataType) -> list[tuple[pa.Field, pa.Field]]:
    """What is inside two lists or maps of the same make; nothing if they are not."""
    types = pa.types
    if types.is_map(stored) and types.is_map(wanted):
        return [(stored.key_field, wanted.key_field), (stored.item_field, wanted.item_field)]
    plain = (types.is_list(stored) and types.is_list(wanted)) or (
        types.is_large_list(stored) and types.is_large_list(wanted)
    )
    fixed = types.is_fixed_size_list(stored) and types.is_fixed_size_list(wanted)
    if plain or (fixed and stored.list_size == wanted.list_size):
        return [(stored.field(0), wanted.field(0))]
    return []


def _children(ids: FieldId | None, kind: pa.DataType) -> Sequence[FieldId]:
    """The ids of the fields of a struct, of the element of a list, of the key and item of a map; Lance gives some none."""
    if ids is None or not ids.children:
        return ()
    return ids.children[0].children if pa.types.is_map(kind) else ids.children


def _is_another_column(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a stored column with the id of a table's column is another one all the same, which was dropped.

    Lance gives a column that is cast a new id, but while no data file knows a dropped column, the next one that is added
    gets its id. What may be another form of the same values (dictionaries, large offsets, nested types, of which a child may
    have been dropped) is not told apart this way.
    """
    return _family(stored) != _family(wanted)


def _family(kind: pa.DataType) -> pa.DataType | str:
    if isinstance(kind, pa.BaseExtensionType):
        return _family(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _family(kind.value_type)
    if pa.types.is_nested(kind):
        return "nested"
    if pa.types.is_large_string(kind) or pa.types.is_string(kind):
        return "text"
    return "bytes" if pa.types.is_large_binary(kind) or pa.types.is_binary(kind) else kind
