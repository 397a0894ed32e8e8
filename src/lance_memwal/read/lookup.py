"""Point lookups: the newest live row of each key, tier by tier, newest first; and short ways for one key.

Owns `lookup_rows`, `LookupKeys`, `get_from_memory`, `find_row`, which makes no table for one row, and `live_writers`.
Invariants:

1. A key that a tier of a shard has, even as a tombstone, is decided there; older tiers are not asked for it.
2. A key that memory decides costs no look at SSTables or the base table.
3. A tier is asked once for all keys that are left, and for each of them once.
4. A lookup finds what a scan shows: keys are compared within a shard, and between any shard and the base table. Where
   a key lives in two shards (see `allow_keys_across_shards`), `lookup_rows` finds both rows, and `find_row` the first one.
5. A memtable of this process answers alone only if its writer is one of this table, its epoch is that of the newest
   manifest and its generation is not flushed yet; then nothing on storage can be newer. Else it is `UNDECIDED`, and all
   tiers are asked. `find_row` leaves writers out only if no row of the key can be in their shards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_memwal.errors import InvalidInputError
from lance_memwal.lance.base import BaseTable
from lance_memwal.memtable import live
from lance_memwal.memtable.key_index import key_values
from lance_memwal.memtable.live import LiveShard
from lance_memwal.memtable.memtable import InMemoryMemTableRef
from lance_memwal.read.fresh import ShardMerge, fresh_index, kept_index
from lance_memwal.read.tiers import ShardView, Tiers
from lance_memwal.rows.adapt import live_flags, tombstone_flags
from lance_memwal.rows.ingest import key_batch
from lance_memwal.rows.keys import first_of_each, key_array
from lance_memwal.rows.lookup_key import LookupKey
from lance_memwal.rows.normal_form import no_rows
from lance_memwal.rows.projection import checked_paths, column_at, field_at, roots_of, value_at
from lance_memwal.rows.schema import TableSchema
from lance_memwal.rows.sharding import shards_of_keys
from lance_memwal.sstable.read import open_sstable
from lance_memwal.sstable.several import find_newest
from lance_memwal.types import TOMBSTONE, TOMBSTONE_FIELD, ShardManifest


def lookup_rows(
    snapshot: Tiers,
    keys: pa.RecordBatch,
    columns: Sequence[str],
    *,
    with_tombstones: bool = False,
) -> pa.Table:
    """The live rows of `keys` (the key columns, in key order), `columns` only; missing keys give no row.

    `with_tombstones`: also one row for every key that a tombstone of a fresh tier hides; `_tombstone`, which comes last
    then, says which.
    """
    table = snapshot.schema.nullable if with_tombstones else snapshot.schema.columns
    columns = checked_paths(columns, table)
    shown = [field_at(path, table) for path in columns]
    roots = roots_of(columns) or snapshot.schema.primary_key
    found = _found(snapshot, keys, roots, with_tombstones=with_tombstones)
    if roots == columns:
        return found
    if with_tombstones:
        columns, shown = (*columns, TOMBSTONE), [*shown, TOMBSTONE_FIELD]
    if not columns:
        return found.select([])
    return pa.Table.from_arrays([column_at(path, found) for path in columns], schema=pa.schema(shown))


def _found(
    snapshot: Tiers,
    keys: pa.RecordBatch,
    columns: tuple[str, ...],
    *,
    with_tombstones: bool,
) -> pa.Table:
    """The rows with these columns of the table; `_tombstone` behind them if tombstones are wanted."""
    table = snapshot.schema.nullable if with_tombstones else snapshot.schema.columns
    schema = pa.schema([table.field(name) for name in columns])
    if keys.num_rows > 1:
        keys = _each_once(keys)
    nowhere = np.ones(keys.num_rows, dtype=bool)
    parts: list[pa.Table] = []
    for view in snapshot.shards:
        merge = ShardMerge(view, snapshot)
        left = np.arange(keys.num_rows)
        if view.memory:
            left = _from_memory(merge, keys, left, columns, parts)
        if len(left) and view.sstables:
            left = _from_sstables(merge, snapshot, keys, left, columns, parts)
        if len(left) < keys.num_rows:
            open_here = np.zeros(keys.num_rows, dtype=bool)
            open_here[left] = True
            nowhere &= open_here
    if not with_tombstones:
        parts = list(map(_living, parts))
    if nowhere.any() and snapshot.base_table is not None:
        wanted = keys if nowhere.all() else keys.filter(pa.array(nowhere))
        rows = snapshot.base_lookup.find(snapshot.base, wanted, columns).select(list(columns))
        parts.append(_flagged_live(rows) if with_tombstones else rows)
    return _union(parts, schema.append(TOMBSTONE_FIELD) if with_tombstones else schema)


def _each_once(keys: pa.RecordBatch) -> pa.RecordBatch:
    """`keys` without repetitions."""
    first = first_of_each(key_array(keys.columns))
    return keys if len(first) == keys.num_rows else keys.take(pa.array(first))


def _from_memory(
    merge: ShardMerge, keys: pa.RecordBatch, left: npt.NDArray[np.int64], columns: Sequence[str], parts: list[pa.Table]
) -> npt.NDArray[np.int64]:
    """Answer what memory knows, newest generation first; returns the keys that are still open."""
    values = key_values([column.take(pa.array(left)) for column in keys.columns])
    open_keys = np.ones(len(left), dtype=bool)
    for ref in reversed(merge.view.memory):
        found = ref.find(values)
        hits = open_keys & (found >= 0)
        if hits.any():
            rows = ref.table().select([*columns, TOMBSTONE]).take(pa.array(found[hits]))
            parts.append(rows)
            open_keys &= ~hits
    return left[open_keys]


def _from_sstables(
    merge: ShardMerge,
    snapshot: Tiers,
    keys: pa.RecordBatch,
    left: npt.NDArray[np.int64],
    columns: Sequence[str],
    parts: list[pa.Table],
) -> npt.NDArray[np.int64]:
    """Answer what the shard's SSTables know; returns the keys that are still open."""
    if not snapshot.schema.primary_key:
        return left
    some = keys if len(left) == keys.num_rows else keys.take(pa.array(left))
    index = fresh_index(merge.readers, keys=len(left))
    if index is None:
        still = np.ones(len(left), dtype=bool)
        for reader, rows, offsets in find_newest(merge.readers, some.columns):
            reader.keep_if_small(snapshot.schema)
            parts.append(reader.take(snapshot.schema, offsets, columns))
            still[rows] = False
        return left[still]
    entries = index.locate(key_array(some.columns))
    known = entries[entries >= 0]
    for owner in np.unique(index.owners[known]).tolist():
        offsets = index.offsets[known[index.owners[known] == owner]]
        reader = merge.readers[owner]
        reader.keep_if_small(snapshot.schema)
        parts.append(reader.take(snapshot.schema, offsets, columns))
    return left[entries < 0]


def _living(rows: pa.Table) -> pa.Table:
    flags = tombstone_flags(rows)
    live = rows.drop_columns([TOMBSTONE])
    return live.filter(pa.array(~flags)) if flags.any() else live


def _flagged_live(rows: pa.Table) -> pa.Table:
    return rows.append_column(TOMBSTONE_FIELD, live_flags(rows.num_rows))


def _union(parts: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
    """Rows of several tiers under one schema; tiers differ in nullability only."""
    some = [pa.Table.from_arrays(part.columns, schema=schema) for part in parts if part.num_rows]
    if not some:
        return no_rows(schema)
    return some[0] if len(some) == 1 else pa.concat_tables(some)


class LookupKeys:
    """The keys of one read, as the caller gave them. They are typed once, by the first schema that they are read with.

    `base` is the base version that the caller has just read, for one capture; None: the capture reads it.
    """

    __slots__ = ("_given", "_is_one", "_typed", "base")

    def __init__(self, given: Any, *, is_one: bool = False) -> None:
        self._given = given
        self._is_one = is_one
        self._typed: LookupKey | pa.RecordBatch | None = None
        self.base: BaseTable | None = None

    def key(self, schema: TableSchema) -> LookupKey:
        """The one key."""
        if not isinstance(self._typed, LookupKey):
            self._typed = LookupKey(self._given, schema)
        return self._typed

    def columns(self, schema: TableSchema) -> pa.RecordBatch:
        """The key columns; `InvalidInputError` if these are no keys of the table."""
        if self._is_one:
            return self.key(schema).columns
        if not isinstance(self._typed, pa.RecordBatch):
            self._typed = key_batch(self._given, schema)
        return self._typed

    def shards(self, base: BaseTable, listed: Collection[str]) -> Collection[str] | None:
        """Those of the listed shards that can hold one of the keys; None: any of them."""
        base.need_details()
        if self._is_one:
            return self.key(base.columns).shards(base.sharding, base.primary_key, listed)
        return shards_of_keys(base.sharding, base.primary_key, self.columns(base.columns).column, listed)


# ------------------------------------------------------------------------------------------------- one key, from memory


class Undecided:
    """The answer of a memory that does not know."""


UNDECIDED: Final = Undecided()


def get_from_memory(
    shards: Iterable[LiveShard],
    table_id: str | None,
    schema: TableSchema,
    held: Any,
    columns: Sequence[str] | None,
    newest_manifest: Callable[[str], ShardManifest | None],
) -> dict[str, Any] | Undecided | None:
    """The row of a key, None if it was deleted, or `UNDECIDED` if no memtable of `shards` has it.

    `held` is the key as memtables hold it; None if that cannot be told.
    """
    if held is None:
        return UNDECIDED
    for shard in shards:
        memtables = shard.capture()
        if memtables is None or not memtables.is_of(table_id):
            continue
        for ref in reversed(memtables.ascending):
            row = ref.find_one(held)
            if row < 0:
                continue
            manifest = newest_manifest(shard.shard_id)
            if manifest is None or manifest.writer_epoch != memtables.epoch:
                return UNDECIDED
            if ref.generation < manifest.current_generation or not schema.is_like(ref.memtable.schema):
                return UNDECIDED
            return memory_row(ref, row, columns)
    return UNDECIDED


def memory_row(ref: InMemoryMemTableRef, row: int, columns: Sequence[str] | None) -> dict[str, Any] | None:
    """One row of a memtable, `columns` or all of them; None if it is a tombstone."""
    arrays, at = ref.locate(row)
    if arrays[TOMBSTONE][at].as_py():
        return None
    names = ref.schema.names if columns is None else columns
    return {name: value_at(name, arrays, at) for name in names}


# ------------------------------------------------------------------------------------------------------------ one row


_FEW_WRITERS = 16  # to ask them all costs less than to find out which of them to ask


def live_writers(base: BaseTable, key: LookupKey) -> Sequence[live.LiveShard]:
    """The writers of this process that may hold the key."""
    place = base.location.key
    if live.count_of(place) > _FEW_WRITERS and key.held is not None:
        try:
            possible = key.shards(base.sharding, base.primary_key, live.ids_of(place))
        except InvalidInputError:  # whoever reads further says what is wrong with it
            possible = None
        if possible is not None:
            return [writer for shard_id in possible if (writer := live.find(place, shard_id)) is not None]
    return live.all_of(place)


def find_row(snapshot: Tiers, key: LookupKey, columns: Sequence[str]) -> dict[str, Any] | None:
    """The live row of the key, `columns` or fields of it; None if there is none."""
    if key.held is None:  # memtables need the key as a plain value
        rows = lookup_rows(snapshot, key.columns, columns)
        return rows.to_pylist()[0] if rows.num_rows else None
    is_fresh = False
    for view in snapshot.shards:
        is_decided, row = _of_shard(view, snapshot, key, columns)
        if row is not None:
            return row
        is_fresh = is_fresh or is_decided
    if is_fresh:
        return None
    base = snapshot.base_table
    if base is None or base.dataset.count_rows() == 0:
        key.refuse_misfit()
        return None
    found = snapshot.base_lookup.find_one(base, key, roots_of(columns) or base.primary_key)
    return None if found is None else {name: column_at(name, found)[0].as_py() for name in columns}


def _of_shard(
    view: ShardView, snapshot: Tiers, key: LookupKey, columns: Sequence[str]
) -> tuple[bool, dict[str, Any] | None]:
    """Whether the shard has the key, and its row, None if that is a tombstone."""
    for ref in reversed(view.memory):
        at = ref.find_one(key.held)
        if at >= 0:
            return True, memory_row(ref, at, columns)
    if not view.sstables:
        return False, None
    index = kept_index(view, snapshot)
    if index is None:
        readers = ShardMerge(view, snapshot).readers
        index = fresh_index(readers, keys=1)
        if index is None:
            for reader, _, offsets in find_newest(readers, key.columns.columns):
                reader.keep_if_small(snapshot.schema)
                return True, reader.row_at(snapshot.schema, int(offsets[0]), columns)
            return False, None
    entry = index.locate_one(key)
    if entry < 0:
        return False, None
    reader = open_sstable(snapshot.location, view.shard_id, view.sstables[int(index.owners[entry])])
    reader.keep_if_small(snapshot.schema)
    return True, reader.row_at(snapshot.schema, int(index.offsets[entry]), columns)
