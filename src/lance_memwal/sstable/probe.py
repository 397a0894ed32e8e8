"""Which columns a table may have: those whose rows come back from every tier.

Owns `check_columns`, the only place that knows which types are supported (those of keys are in `lance_memwal.rows.key_encoding`).
Nothing is written down here about Lance: a small table with the same columns is made in a temporary directory of this
machine, and its rows go the way that all rows go, with the functions that they go with. Invariants:

1. Columns are accepted only if rows of every form (values, nulls inside them, empty, null) and a tombstone came back
   unchanged from the log, the memtable, an SSTable (scan, lookup, compaction) and the base table (committed by hand and
   by Lance's merge).
2. The store of the table is never touched.
3. The columns of one table are tried once per process. If all of them are plain (`is_plain`) they are not tried: that
   such columns work is tested with the library instead.
4. Without a temporary directory columns that must be tried are refused, never let through.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc

from lance_memwal.clock import SYSTEM_CLOCK
from lance_memwal.config import WriterConfig
from lance_memwal.errors import InvalidInputError, MemWalError, UnavailableError
from lance_memwal.lance.base import BaseTable, lance_errors
from lance_memwal.lance.commit import HandMade, InTwo, Ready, merge_rows
from lance_memwal.lance.prepared import Unheld
from lance_memwal.log.blob_targets import blob_target, with_blobs
from lance_memwal.log.entry import EntryEncoder, decode_entry
from lance_memwal.memtable.memtable import MemTable
from lance_memwal.rows.adapt import RowAdapter
from lance_memwal.rows.blobs import as_shown, as_stored, is_blob, shown_blobs
from lance_memwal.rows.fit import Fitter, tombstones
from lance_memwal.rows.key_encoding import is_key_mark, primary_key_columns
from lance_memwal.rows.keys import KeySet
from lance_memwal.rows.normal_form import blank, no_rows, normal, nulls
from lance_memwal.rows.schema import as_lance
from lance_memwal.sstable.fold import Folded, fold
from lance_memwal.sstable.read import SsTableReader
from lance_memwal.sstable.target import ShardTarget
from lance_memwal.store.location import Location, resolve
from lance_memwal.store.metering import Recorder
from lance_memwal.types import TOMBSTONE, TOMBSTONE_FIELD, SsTable

__all__ = ["check_columns", "check_table", "is_plain", "temporary_directory"]

_SHARD = "00000000-0000-4000-8000-000000000000"
_PLAIN_VERSIONS = frozenset({"2.0", "2.1", "2.2"})
_KEPT_ANSWERS = 1024
_FORMS = ("whole", "hollow", "empty", "null")
_BASE_ROWS = 3
_PURPOSE = "a trial of the columns"
_MEMORY_BYTES = 1 << 20
_CONTROL = pa.field("id", pa.int64())


def check_columns(schema: pa.Schema, *, storage_version: str | None = None, stable_row_ids: bool = False) -> None:
    """Return only if a table can have these columns; `InvalidInputError` names the one that it cannot have.

    `storage_version`: of the data files, None for the one that a new table gets.
    """
    known = storage_version is None or storage_version in _PLAIN_VERSIONS
    if not known or not all(map(is_plain, schema)):
        _tried(_Layout.of(schema, storage_version or _version_of_new_tables(), stable_row_ids))


def check_table(base: BaseTable) -> None:
    """Return only if rows can be written to `base`; `InvalidInputError` names the column that prevents it."""
    check_columns(
        base.schema, storage_version=base.data_storage_version, stable_row_ids=bool(base.dataset.has_stable_row_ids)
    )


def is_plain(column: pa.Field) -> bool:
    """Whether columns of this kind are known to work, whatever else the table has."""
    return not _marks(column) and _is_plain(column.type)


def _marks(column: pa.Field) -> list[str]:
    """The metadata that tells Lance or Arrow to treat the column otherwise than its type says."""
    found = [key for key in column.metadata or {} if key.startswith((b"lance", b"ARROW:"))]
    return [key.decode(errors="replace") for key in found if not is_key_mark(key)]


def _described(column: pa.Field) -> str:
    marks = _marks(column)
    return f"{column.type} ({', '.join(marks)})" if marks else str(column.type)


def _is_plain(kind: pa.DataType) -> bool:
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType) or types.is_dictionary(kind):
        return False
    if types.is_fixed_size_list(kind):  # vectors
        item = kind.field(0)
        return bool(item.nullable and types.is_floating(item.type))
    return bool(
        types.is_boolean(kind)
        or types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_date(kind)
        or types.is_time(kind)
        or types.is_timestamp(kind)
        or types.is_duration(kind)
        or types.is_decimal128(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
    )


@dataclass(frozen=True, slots=True)
class _Layout:
    """What decides whether columns work. (Arrow schemas are equal whatever their metadata: so the bytes of one.)"""

    schema: bytes
    storage_version: str
    stable_row_ids: bool

    @classmethod
    def of(cls, schema: pa.Schema, storage_version: str, stable_row_ids: bool) -> _Layout:
        """That of a table; its keys are numbers, since the types of keys are checked elsewhere."""
        key = primary_key_columns(schema)
        fields = [field.with_type(pa.int64()) if field.name in key else field for field in as_lance(schema)]
        return cls(pa.schema(fields).serialize().to_pybytes(), storage_version, stable_row_ids)

    @property
    def arrow(self) -> pa.Schema:
        return ipc.read_schema(pa.py_buffer(self.schema))

    def only(self, *names: str) -> _Layout:
        """The same with these columns alone."""
        schema = pa.schema([field for field in self.arrow if field.name in names])
        return replace(self, schema=schema.serialize().to_pybytes())


@lru_cache(maxsize=_KEPT_ANSWERS)
def _tried(layout: _Layout) -> None:
    """Return only if the rows of such a table come back; remembered only then."""
    failure = _failure(layout)
    if failure is None:
        return
    if _failure(_Layout.of(pa.schema([_CONTROL]), layout.storage_version, layout.stable_row_ids)) is not None:
        raise UnavailableError(f"the columns cannot be tried in a temporary directory (see TMPDIR): {failure}")
    schema = layout.arrow
    key = primary_key_columns(schema)
    if key and (why := _failure(layout.only(*key))) is not None:
        raise InvalidInputError(
            f"the key ({', '.join(map(repr, key))}) cannot be named so beside columns that Lance merges, as structs are; rename "
            f"it: {why}"
        )
    for field in schema:
        alone = None if is_plain(field) else _failure(layout.only(*key, field.name))
        if alone is not None:
            raise InvalidInputError(
                f"column {field.name!r} cannot be {_described(field)}: its rows do not come back from every tier "
                f"(files of version {layout.storage_version}): {alone}"
            )
    raise InvalidInputError(f"the columns {', '.join(schema.names)} do not work together: {failure}")


def _failure(layout: _Layout) -> str | None:
    """Why rows with these columns are not the same in every tier, or None."""
    with temporary_directory(_PURPOSE) as root:
        try:
            with lance_errors("storing rows"):
                _Probe(resolve(root, metrics=Recorder()), layout).run()
        except MemWalError as error:
            return str(error)
    return None


@lru_cache(maxsize=1)
def _version_of_new_tables() -> str:
    with temporary_directory(_PURPOSE) as root, lance_errors("asking Lance for its file version"):
        return str(lance.write_dataset(no_rows(pa.schema([_CONTROL])), root).data_storage_version)


@contextmanager
def temporary_directory(purpose: str) -> Iterator[str]:
    """A directory of this machine that goes afterwards; `UnavailableError` says what it was for if there is none."""
    try:
        made = tempfile.TemporaryDirectory(prefix="memwal-probe-", ignore_cleanup_errors=True)
    except OSError as error:
        raise UnavailableError(f"there is no temporary directory for {purpose} (see TMPDIR): {error}") from None
    with made as root:
        yield root


class _ChangedError(MemWalError):
    """Rows came back, but not as they were."""


class _Probe:
    """One small table, and the way of its rows. The shape of each tier is compared with the rows that were written."""

    def __init__(self, location: Location, layout: _Layout) -> None:
        self._location = location
        given = layout.arrow
        self._key = tuple(primary_key_columns(given))
        self._first = _rows(given, self._key, ["whole"] * _BASE_ROWS, 0)
        version: Any = layout.storage_version
        dataset = lance.write_dataset(
            self._first,
            location.dataset_uri,
            data_storage_version=version,
            enable_stable_row_ids=layout.stable_row_ids,
        )
        dataset.initialize_mem_wal()
        base = BaseTable.open(location)
        if base is None:
            raise AssertionError("the table was just made")
        self._base = base
        self._schema = base.columns
        self._target = ShardTarget(location, self._schema, base.data_storage_version)

    def run(self) -> None:
        """Return only if all tiers have the same rows."""
        _compare("a new table", self._stored(self._base), self._first)
        part = self._first.slice(1)  # whoever routes, copies or filters rows has Arrow gather them, often from a part
        _compare("a part of a batch", part.take(pa.array(range(len(part)))), self._first.slice(1).combine_chunks())
        batches = self._storable()
        live = pa.Table.from_batches([self._even(batch) for batch in batches])
        memtable = MemTable(self._schema, 1, 0, 0)
        for batch, flags in self._logged(batches):
            memtable.append(batch, flags)
        rows = memtable.capture()
        _compare("the log", rows.live(), self._shown(live))
        whole = pa.Table.from_batches(rows.stored())
        sstable = self._target.write_sstable(_SHARD, WriterConfig(fsync=False), SYSTEM_CLOCK, 1, whole)
        self._check_sstable(sstable, live)
        streamed = self._target.write_sstable(
            _SHARD, WriterConfig(fsync=False), SYSTEM_CLOCK, 2, iter(whole.to_batches())
        )
        self._check_sstable(streamed, live)
        folded = fold(self._location, [(_SHARD, sstable)], self._schema, _MEMORY_BYTES)
        _compare("an SSTable that is compacted", pa.Table.from_batches(folded.batches(self._base.schema)), live)
        self._check_base(folded, live)

    def _storable(self) -> list[pa.RecordBatch]:
        """A batch with one row of each form; without the forms that a put refuses for this table."""
        fitter, found = Fitter(self._schema), []
        for number, form in enumerate(_FORMS):
            rows = _rows(self._schema.columns, self._key, [form], _BASE_ROWS - 1 + number)
            for batch in rows.to_batches():
                fitted = fitter.fit(batch)
                try:
                    self._target.check(_SHARD, [fitted])
                except InvalidInputError:
                    if form == "whole":
                        raise
                else:
                    found.append(fitted)
        return found

    def _even(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(batch.columns, schema=self._schema.nullable)

    def _logged(self, batches: list[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, pa.BooleanArray | None]]:
        """The rows as they are after the log, and a tombstone of a row of the base table."""
        written = [batch.append_column(TOMBSTONE_FIELD, pa.array([False])) for batch in batches]
        if self._key:
            keys = self._first.slice(1, 1).select(self._key).combine_chunks().to_batches()[0]
            written.append(tombstones(keys, self._schema).append_column(TOMBSTONE_FIELD, pa.array([True])))
        target = blob_target(self._schema, None, _SHARD, 1, 1, 1)
        adapter, encoder = RowAdapter(self._schema), EntryEncoder(self._schema.wal, 1, 1, target)
        for batch in with_blobs(self._location, _SHARD, decode_entry(encoder.encode(written))).batches:
            yield adapter.adapt(batch)

    def _check_sstable(self, sstable: SsTable, live: pa.Table) -> None:
        reader = SsTableReader(self._location, _SHARD, sstable)
        offsets = np.arange(len(live))
        if self._key:
            found = reader.take(self._schema.shown, offsets, self._schema.columns.names)
            _compare("a lookup in an SSTable", found.drop_columns([TOMBSTONE]), self._shown(live))
        scanned, _ = reader.all_rows(self._schema)
        _compare("an SSTable", scanned.slice(0, len(live)).drop_columns([TOMBSTONE]), live)

    def _check_base(self, folded: Folded, live: pa.Table) -> None:
        def batches() -> Iterator[pa.RecordBatch]:
            return folded.batches(self._base.schema)

        base, first, files = self._base, self._first, Unheld(self._location.store)
        keys = KeySet(folded.keys) if self._key else None
        ready: Ready | None = None
        if base.takes_hand_commit:
            ready = HandMade(keys, batches, {_SHARD: 1}, SYSTEM_CLOCK, files, fsync=False)
        elif not self._key:
            ready = InTwo(batches, {_SHARD: 1}, files)
        base = base if ready is None else ready.commit(base)
        expected = pa.concat_tables([first.slice(0, 1) if self._key else first, _as(live, first.schema)])
        if self._key:
            if ready is not None:
                _compare("the base table", self._stored(base), expected)
            base = merge_rows(base, folded.deletes, batches, {_SHARD: 2})
        _compare("the base table", self._stored(base), expected)
        taken = base.dataset.take(list(range(base.dataset.count_rows())))
        _compare("a lookup in the base table", self._shown(taken), self._shown(expected))

    def _stored(self, base: BaseTable) -> pa.Table:
        """All rows of the base table, with the bytes of blobs."""
        found = base.dataset.scanner(blob_handling="all_binary").to_table()
        return self._with_blobs(found, lambda values: as_stored(values, self._kind_of_blobs))

    def _shown(self, rows: pa.Table) -> pa.Table:
        """Rows as readers see them, whether they hold the bytes of blobs or what Lance shows of them."""
        return self._with_blobs(
            rows,
            lambda values: as_shown(values, fresh=True) if pa.types.is_struct(values.type) else shown_blobs(values),
        )

    @property
    def _kind_of_blobs(self) -> pa.DataType:
        return self._schema.columns.field(self._schema.blobs[0]).type

    def _with_blobs(self, rows: pa.Table, change: Callable[[pa.Array], pa.Array]) -> pa.Table:
        for name in self._schema.blobs:
            at = rows.schema.get_field_index(name)
            rows = rows.set_column(at, name, pa.chunked_array(map(change, rows.column(name).chunks)))
        return rows


def _as(table: pa.Table, schema: pa.Schema) -> pa.Table:
    return pa.Table.from_arrays(table.columns, schema=schema)


def _compare(where: str, found: pa.Table, expected: pa.Table) -> None:
    def rows(table: pa.Table) -> list[str]:
        return sorted(repr(row) for row in table.to_pylist())

    if found.schema.names != expected.schema.names or rows(found) != rows(expected):
        raise _ChangedError(f"rows come back changed from {where}")


# ----------------------------------------------------------------------------------------------------------- the rows


def _rows(schema: pa.Schema, key: Sequence[str], forms: Sequence[str], start: int) -> pa.Table:
    """One row per form; keys differ by `start` and the number of the row."""
    columns = []
    for field in schema:
        if field.name in key:
            parts = [pa.array([start + i]) for i in range(len(forms))]
        else:
            parts = [_value(field, form, start + i) for i, form in enumerate(forms)]
        columns.append(pa.chunked_array(parts, field.type))
    return pa.Table.from_arrays(columns, schema=schema).combine_chunks()


def _value(field: pa.Field, form: str, number: int) -> pa.Array:
    if form == "null" and field.nullable:
        return nulls(1, field.type)
    return normal(_example(field.type, form, number))


def _example(kind: pa.DataType, form: str, number: int) -> pa.Array:
    """One value of this type, another one for another number where that is easy. Nulls are inside a "hollow" one where
    they may be, and nothing is inside an "empty" one."""
    types = pa.types
    if is_blob(pa.field("", kind)):
        return as_stored(_example(pa.large_binary(), form, number), kind)
    if isinstance(kind, pa.BaseExtensionType):
        # Not every value of the storage may be one of the type: an empty text is no JSON.
        return kind.wrap_array(_example(kind.storage_type, "whole", number))
    if types.is_struct(kind) and kind.num_fields:
        return pa.StructArray.from_arrays([_inside(field, form, number) for field in kind], fields=list(kind))
    if types.is_map(kind) and form != "empty":
        key, item = _example(kind.key_type, "whole", number), _inside(kind.item_field, form, number)
        return pa.MapArray.from_arrays([0, 1], key, item, type=kind)
    if types.is_fixed_size_list(kind):
        items = [_inside(kind.field(0), form, number)] * kind.list_size
        return pa.FixedSizeListArray.from_arrays(pa.concat_arrays(items), type=kind)
    if (types.is_list(kind) or types.is_large_list(kind)) and form != "empty":
        make: Any = pa.ListArray if types.is_list(kind) else pa.LargeListArray
        values = pa.concat_arrays([_inside(kind.field(0), each, number) for each in (form, "whole")])
        return make.from_arrays([0, 2], values, type=kind)
    if types.is_null(kind):
        return pa.nulls(1)
    if types.is_dictionary(kind):
        indices = pa.array([0], kind.index_type)
        return pa.DictionaryArray.from_arrays(indices, _example(kind.value_type, form, number), ordered=kind.ordered)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind):
        return pa.array(["" if form == "empty" else str(number)]).cast(kind)  # a text that is also JSON
    return pa.array([number]).cast(kind) if types.is_integer(kind) or types.is_floating(kind) else blank(kind)


def _inside(field: pa.Field, form: str, number: int) -> pa.Array:
    return nulls(1, field.type) if form == "hollow" and field.nullable else _example(field.type, form, number)
