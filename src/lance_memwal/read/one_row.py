"""One key through all tiers: its live row as a dict, without a table that is made for one row.

Owns `find_row` and `live_writers`. Invariants:

1. It answers as `lance_memwal.read.lookup.lookup_rows` does for that key: within a shard the newest tier that has the key
   decides, also by a tombstone; the base table is asked only if no shard has it.
2. A key in several shards (see `allow_keys_across_shards`) is found in the first of them that has it alive.
3. Writers are left out only if no row of the key can be in their shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lance_memwal.errors import InvalidInputError
from lance_memwal.lance.base import BaseTable
from lance_memwal.memtable import live
from lance_memwal.read.asked_key import AskedKey
from lance_memwal.read.base_rows import BaseLookup
from lance_memwal.read.fresh import ShardMerge, fresh_index, kept_index
from lance_memwal.read.lookup import memory_row
from lance_memwal.read.tiers import ShardView, Tiers
from lance_memwal.rows.projection import column_at, roots_of
from lance_memwal.sstable.read import open_sstable
from lance_memwal.sstable.several import find_newest

__all__ = ["find_row", "live_writers"]

_FEW_WRITERS = 16  # to ask them all costs less than to find out which of them to ask


def live_writers(base: BaseTable, key: AskedKey) -> Sequence[live.LiveShard]:
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


def find_row(snapshot: Tiers, base_lookup: BaseLookup, key: AskedKey, columns: Sequence[str]) -> dict[str, Any] | None:
    """The live row of the key, `columns` or fields of it; None if there is none."""
    is_fresh = False
    for view in snapshot.shards:
        found, row = _of_shard(view, snapshot, key, columns)
        if row is not None:
            return row
        is_fresh = is_fresh or found
    if is_fresh:
        return None
    base = snapshot.base_table
    if base is None or base.dataset.count_rows() == 0:
        key.refuse_misfit()
        return None
    rows = base_lookup.find_one(base, key, roots_of(columns) or base.primary_key)
    return None if rows is None else {name: column_at(name, rows)[0].as_py() for name in columns}


def _of_shard(
    view: ShardView, snapshot: Tiers, key: AskedKey, columns: Sequence[str]
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
