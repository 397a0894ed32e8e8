"""Entries that this version does not understand: they are read with a warning, and their shard is not written.

Owns `KnownColumns`, `warn_unknown` and `refuse_unknown`. A newer version may add columns, footer keys or metadata whose
meaning we cannot guess: rows can be shown, but a writer that claims and flushes the shard would drop them. The same holds for
undecided columns (RFC 0036). Invariants:

1. A column is known if the table has it, or had it: by field id, or by name in an entry without ids. The history is that
   of the retained versions of the base table: Lance gives ids in order, so an id up to the largest one was a column.
2. The history is read only if a column asks for it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from lance_memwal.errors import MemWalError, UndecidedColumnsError, UnsupportedFormatError
from lance_memwal.lance.damage import version_names
from lance_memwal.lance.manifest import LanceField, parse_lance_manifest
from lance_memwal.log.entry import unknown_metadata
from lance_memwal.process.lazy import lazy
from lance_memwal.rows.blobs import has_references, is_second_layout
from lance_memwal.rows.past_columns import Undecided, Written, undecided_text
from lance_memwal.rows.schema import TableSchema, id_of
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.types import TOMBSTONE, BaseMark, WalEntry


class KnownColumns:
    """Which columns of entries a table has or had. Not thread-safe; remembers the last schema that it looked at."""

    def __init__(self, location: Location, schema: TableSchema | None) -> None:
        """`schema` is None where no table says which columns there are: then none is unknown."""
        self._location = location
        self._schema = schema
        self._last: object = None
        self._found: tuple[str, ...] = ()
        self._blobs: list[str] = []  # columns that may hold references
        self._written: tuple[pa.Schema | None, BaseMark | None] = (None, None)
        self._undecided: dict[str, Undecided] = {}

    def unknown_in(self, entry: WalEntry) -> tuple[str, ...]:
        """What we do not understand of an entry that could be decoded, in words."""
        if entry.schema is not self._last or entry.schema is None:
            self._found = self._of_schema(entry)
            self._blobs = [field.name for field in entry.schema or () if is_second_layout(field.type)]
            self._last = entry.schema
        footer = () if entry.footer is None else entry.footer.unknown
        if not footer and not self._blobs:
            return self._found
        return (*self._found, *(f"footer key {name!r}" for name in footer), *_references(entry, self._blobs))

    def undecided_in(self, entry: WalEntry) -> dict[str, Undecided]:
        """The columns of the table that may be others than those of the entry."""
        schema, stored = self._schema, entry.schema
        if schema is None or schema.past is None or schema.field_ids is None or stored is None:
            return {}
        if stored is not self._written[0] or entry.base != self._written[1]:
            written = Written(entry.base)
            columns = {id_of(column): column for column in stored}
            ids = zip(schema.columns.names, schema.field_ids, strict=True)
            found = {name: schema.past.own(columns[i.id], written)[1] for name, i in ids if i.id in columns}
            self._written = stored, entry.base
            self._undecided = {name: undecided for name, undecided in found.items() if undecided}
        return self._undecided

    def _of_schema(self, entry: WalEntry) -> tuple[str, ...]:
        if entry.schema is None:
            return ()
        found = [f"metadata {name!r}" for name in unknown_metadata(entry.schema)]
        if self._schema is None:
            return tuple(found)
        ids = {field.name: id_of(field) for field in entry.schema if field.name != TOMBSTONE}
        names = set(self._schema.columns.names)
        if not any(number is not None for number in ids.values()) or self._schema.field_ids is None:
            unknown = [name for name in ids if name not in names and name not in self._history.names]
        else:
            present = {field.id for field in self._schema.field_ids}
            unknown = [n for n, i in ids.items() if i is None or (i not in present and i not in self._history.ids)]
        return (*found, *(f"column {name!r}" for name in unknown))

    @lazy
    def _history(self) -> _History:
        return _read_history(self._location)


def _references(entry: WalEntry, blobs: Sequence[str]) -> Iterator[str]:
    """The columns of `blobs` that hold references: Lance follows them, and we would have to keep them."""
    for name in blobs:
        if any(has_references(batch.column(name)) for batch in entry.batches):
            yield f"a reference in column {name!r}"


@dataclass(frozen=True, slots=True)
class _History:
    ids: range
    names: frozenset[str]


def _read_history(location: Location) -> _History:
    """The ids and names of the columns of all retained versions; an id is given once, so all below the largest count."""
    fields: list[LanceField] = []
    for path in version_names(location).values():
        try:
            manifest = parse_lance_manifest(location.store.get(path), path=path)
        except MemWalError:
            continue  # cleaned up meanwhile, or of no use here
        fields += manifest.fields
    top = {field.name for field in fields if field.parent_id == -1}
    return _History(range(max((field.id for field in fields), default=-1) + 1), frozenset(top))


def refuse_unknown(shard_id: str, entry: WalEntry, known: KnownColumns) -> None:
    """Raise `UnsupportedFormatError` if an entry that a writer would have to flush has anything unknown or undecided."""
    if unknown := known.unknown_in(entry):
        raise UnsupportedFormatError(
            f"shard {shard_id} can be read, but not written: an entry of its log is not understood by this version "
            f"({', '.join(unknown)}); write it with the version that made it, or a newer one",
            path=paths.wal_entry_path(shard_id, entry.position),
            position=entry.position,
        )
    if undecided := known.undecided_in(entry):
        raise UndecidedColumnsError(
            f"shard {shard_id} can be read, but not written: {undecided_text(undecided)}", position=entry.position
        )


def warn_unknown(shard_id: str, unknown: tuple[str, ...]) -> None:
    """Warn of what a read leaves out; Python shows a text once, so this is once per shard and process."""
    if unknown:
        text = f"shard {shard_id} holds what this version does not understand and does not show: {', '.join(unknown)}"
        warnings.warn(text, UserWarning, stacklevel=2)
