"""Which columns of a table stored rows have: the one rule for generations, entries and memtables.

Entry points: `ColumnPast.settle` for the field ids of a generation, `ColumnPast.own` for the ids in one stored column.
Most ids mean the field of the table with the same id. The exceptions:

Positional ids. Lance 12 and older numbers the fields of a generation by position.

1. Generations of lance-memwal, entries, and generations whose ids are not 0..n in column order are matched by field id.
2. If both readings give each column of the table the same stored column, there is nothing to decide.
3. Else a generation is read by name if every stored name is in the table, in the same order. If a kept base version shows
   the stored ids with the stored names, both readings are possible: `UnsupportedFormatError`.
4. If a stored name is not in the table (it was dropped or renamed), the kept base versions that have all stored names in
   the same order decide: one reading is used, several are an `UnsupportedFormatError`. If there is none, ids decide.

Reused ids. Lance gives the id of a dropped field to the next new field if no data file holds that id (RFC 0036).

5. A kept version without the id, between that of the rows and that of the table, means another field. A name that changes
   from one version to the next is a rename, unless that version overwrites the table. A restored version has the fields of the
   version that it restores; the versions in between do not count.
6. Where versions are missing, equal names mean the same field. If the names differ, the rows are undecided.
7. Rows without a recorded version: equal names mean the same field. Else the newest kept version with the stored name counts as
   their version. If there is none, the newest versions in a row decide.

Base versions are read only if names differ, or if the base table shows that Lance may have given the id twice.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from lance_memwal.clock import in_order
from lance_memwal.errors import MemWalError, UnsupportedFormatError
from lance_memwal.lance.damage import version_names
from lance_memwal.lance.manifest import LanceField, parse_lance_manifest
from lance_memwal.lance.transaction import transaction_of
from lance_memwal.process.cache import CACHE
from lance_memwal.process.lazy import lazy
from lance_memwal.rows.past_columns import NO_FIELD, NamedField, Past, Undecided, Written
from lance_memwal.rows.schema import named_ids, with_field_ids, with_other_ids
from lance_memwal.store.location import Location
from lance_memwal.types import BaseMark

RULINGS_KEY = "memwal.reused_ids"  # among the writer settings of a table: what `repair` decided
_FIELD_BYTES = 256  # of one field in the cache
_AT_ONCE = 16
Fields = tuple[NamedField, ...]


def named_fields(fields: Sequence[LanceField]) -> Fields:
    """The fields of a manifest with their paths."""
    by_id: dict[int, NamedField] = {}
    for field in fields:
        parent = by_id.get(field.parent_id)
        name = field.name if parent is None or parent.kind == "struct" else ""
        path = (name,) if parent is None else (*parent.path, name)
        by_id[field.id] = NamedField(field.id, path, field.logical_type)
    return tuple(by_id.values())


class Ruling(NamedTuple):
    """A decision of `repair`: whether a field of the table is the one that rows of versions up to `through` call `name`."""

    id: int
    name: str
    through: int
    is_same: bool


def rulings_of(text: str | None) -> tuple[Ruling, ...]:
    """The stored decisions; text that is not such a list decides nothing."""
    try:
        found = tuple(Ruling(*item) for item in json.loads(text or "[]"))
    except (ValueError, TypeError, RecursionError):
        return ()
    kinds = (int, str, int, bool)
    return found if all(tuple(map(type, ruling)) == kinds for ruling in found) else ()


class HeldIds(NamedTuple):
    """The oldest fragment of a base version, and the largest field id that its first data file holds.

    Lance gives no field id a second time while a data file holds it or a larger one.
    """

    fragment: int = 0
    largest: int = -1

    def prove(self, number: int, base: BaseMark) -> bool:
        """Whether Lance gave an id once since the base version of some rows: a fragment that is older than they are holds it."""
        return number <= self.largest and (base.fragments is None or self.fragment < base.fragments)


class ColumnPast:
    """The columns of one base version, and of the other versions that are kept. Threads may share it."""

    def __init__(
        self,
        location: Location,
        table_id: str | None,
        mark: BaseMark,
        fields: Fields,
        held: Callable[[], HeldIds],
        rulings: tuple[Ruling, ...] = (),
    ) -> None:
        """`held` returns what this version shows of ids that Lance cannot have given twice."""
        self.mark = mark
        self.version = mark.version
        self._location = location
        self._table_id = table_id
        self._fields = fields
        self._by_id = {field.id: field for field in fields}
        self._find_held = held
        self.rulings = rulings
        self._answers: dict[tuple[int, str, BaseMark | None], bool | None] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        held = partial(HeldIds, *self._held)
        return ColumnPast, (self._location, self._table_id, self.mark, self._fields, held, self.rulings)

    # ------------------------------------------------------------------------------------------- positional field ids

    def settle(self, stored: pa.Schema, written: Written) -> pa.Schema:
        """The stored columns with the field ids that the table had for them."""
        if written.positional is None:
            return stored
        ids = self._ids_of_positional(written.positional, written)
        return stored if ids is None else with_field_ids(stored, ids)

    def _ids_of_positional(self, stored: Fields, written: Written) -> Mapping[int, int] | None:
        """The table's id of each stored one, for a generation whose ids are 0..n; None if the stored ids are right."""
        if _is_same_either_way(stored, self._fields) or not written.is_foreign():
            return None
        own = tuple(field.id for field in stored)
        by_name = _match_names(stored, self._fields)
        readings = {ids for kept in self._kept().values() if (ids := _match_names(stored, kept.fields)) is not None}
        if by_name is not None:
            is_unclear = own in readings
        else:
            is_unclear = len(readings) > 1
            by_name = min(readings, default=None)
        if is_unclear:
            raise UnsupportedFormatError(
                "the columns of a generation are not certain: its field ids may be those of the table, or positions as Lance "
                "12 and older write them, and base versions show both; read it with the version that wrote it",
                path=written.path,
            )
        return None if by_name is None else dict(zip(own, by_name, strict=True))

    # ----------------------------------------------------------------------------------------------- reused field ids

    def own(self, column: pa.Field, written: Written) -> tuple[pa.Field, Undecided]:
        """A stored column without the ids that meant other fields, and those of them that are undecided."""
        others, undecided = {}, []
        for number, name in named_ids(column):
            field = self._by_id.get(number)
            is_same = field is None or self._is_same(field, name, written.base)
            if not is_same:
                others[number] = NO_FIELD
            if is_same is None:
                undecided.append((number, name))
        return (with_other_ids(column, others) if others else column), tuple(undecided)

    def reads_like(self, other: Past) -> bool:
        """Whether both versions read all rows alike if their columns are equal: no field was dropped and added again."""
        if self.mark == other.mark:
            return True
        if self.mark < other.mark:
            return other.reads_like(self)
        return self.rulings == other.rulings and all(self._is_same(f, f.name, other.mark) for f in self._fields)

    @lazy
    def _held(self) -> HeldIds:
        return self._find_held()

    def _is_same(self, field: NamedField, name: str, base: BaseMark | None) -> bool | None:
        """Whether a field of the table is the one that rows of a version call `name`; None if that is undecided."""
        if name == field.name and (
            base is None or abs(self.version - base.version) < 2 or self._held.prove(field.id, base)
        ):
            return True  # to drop a field and to add another one takes two versions
        slot = field.id, name, base
        if slot not in self._answers:
            self._answers[slot] = self._decide(field, name, None if base is None else base.version)
        return self._answers[slot]

    def _decide(self, field: NamedField, name: str, version: int | None) -> bool | None:
        answer = self._trace(field.id, name, version)
        if answer is not None:
            return answer
        rulings = [r for r in self.rulings if (r.id, r.name) == (field.id, name) and (version or 0) <= r.through]
        return rulings[-1].is_same if rulings else None

    def _trace(self, number: int, name: str, version: int | None) -> bool | None:
        """Follow an id from the table back to the rows, through the kept versions that lead to both."""
        kept = self._kept(*sorted((version or 0, self.version)))
        names = {v: _name_of(number, found.fields) for v, found in kept.items()}
        if version is None:
            version = max((v for v, known in names.items() if known == name), default=None)
        if version is None:
            return self._trace_newest(names)
        names[version] = name
        order = sorted(names)
        answer: bool | None = True
        older, newer = sorted((version, self.version))
        while older != newer:
            made_by = kept.get(newer)
            origin = None if made_by is None else made_by.restores
            if origin is not None and origin < newer:
                before = origin
                if before not in names:
                    kept |= self._kept(before, older)
                    names = {v: _name_of(number, found.fields) for v, found in kept.items()} | names
                    names[before] = names[newer]  # a restored version has the same columns
                    order = sorted(names)
            else:
                before = order[bisect_left(order, newer) - 1]
                is_next = made_by is not None and made_by.is_next and before == newer - 1
                if names[before] is None or names[newer] is None:
                    answer = False
                elif names[before] != names[newer] and not is_next:
                    answer = answer and None
            older, newer = sorted((older, before))
        return answer

    def _trace_newest(self, names: Mapping[int, str | None]) -> bool | None:
        """False if one of the newest versions, without a missing one among them, lacks the id."""
        version = self.version
        while names.get(version) is not None:
            version -= 1
        return False if version in names else None

    # ------------------------------------------------------------------------------------------------- other versions

    @lazy
    def _paths(self) -> dict[int, str]:
        return version_names(self._location)

    def _kept(self, low: int = 0, high: int | None = None) -> dict[int, _Version]:
        """The kept base versions in a range, this one included."""
        versions = [v for v in {*self._paths, self.version} if low <= v and (high is None or v <= high)]
        found = in_order(self._read, versions, self._location.at_once(_AT_ONCE), "memwal-columns")
        return {version: known for version, known in zip(versions, found, strict=True) if known is not None}

    def _read(self, version: int) -> _Version | None:
        """One version; None if it was cleaned up, or cannot be read."""
        slot = ("columns", self._location.key, self._table_id, version)
        found: _Version | None = None if self._table_id is None else CACHE.find(slot)
        if found is None and version in self._paths:
            with suppress(MemWalError):
                found = self._parse(self._location.store.get(self._paths[version]))
                CACHE.keep(slot, found, _FIELD_BYTES * len(found.fields))
        return _Version(self._fields) if found is None and version == self.version else found

    def _parse(self, data: bytes) -> _Version:
        manifest = parse_lance_manifest(data)
        transaction, fields = transaction_of(self._location, manifest), named_fields(manifest.fields)
        if transaction is None:
            return _Version(fields)
        return _Version(fields, transaction.restores, not transaction.overwrites)


class _Version(NamedTuple):
    """A base version: its fields, the version that it restores, and whether it is known to change the one before."""

    fields: Fields
    restores: int | None = None
    is_next: bool = False


def _name_of(number: int, fields: Fields) -> str | None:
    return next((field.name for field in fields if field.id == number), None)


def _is_same_either_way(stored: Fields, table: Fields) -> bool:
    """Whether every column of the table is the same stored one by id and by name."""
    by_id = {field.id: field for field in stored}
    by_path = {field.path: field for field in stored}
    return all(by_id.get(field.id) is by_path.get(field.path) for field in table)


def _match_names(stored: Fields, table: Fields) -> tuple[int, ...] | None:
    """The table's id of each stored field by path, if all paths are in the table, with the same types and in the same order."""
    rest = iter(table)
    found = []
    for field in stored:
        match = next((other for other in rest if other[1:] == field[1:]), None)
        if match is None:
            return None
        found.append(match.id)
    return tuple(found)
