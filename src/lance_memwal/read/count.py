"""How many live rows a snapshot has, from manifests and keys: no row is read.

Owns `live_rows_of`. Invariants:

1. The number is that of the rows which a scan without filter, limit and offset gives.
2. The base table is not read where its manifest knows the number: where no fresh tier has a key, or the table has no primary
   key. Else its keys are passed over once per version and list of SSTables. From the second count with rows in memory on,
   the base table has an index of its keys in memory, where it fits (`lance_memwal.read.base_rows`). What an earlier read found
   is not looked for again (`lance_memwal.read.superseded_rows`).
3. Of an SSTable the keys are read, and which of its rows are tombstones; both once. The first count of a table with nothing in
   memory and without tombstones needs no more than the keys, and makes no index of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from lance_memwal.clock import in_order
from lance_memwal.lance.base import BaseTable
from lance_memwal.process.cache import CACHE, SMALL_BYTES, Slot
from lance_memwal.read.base_rows import count_of_keys, holds_keys, is_first_time, version_of
from lance_memwal.read.fresh import FreshIndex, ShardMerge, has_fresh_index, keys_alone, not_in
from lance_memwal.read.superseded_rows import known_superseded, superseded_rows
from lance_memwal.read.tiers import Tiers
from lance_memwal.rows.keys import KeySet, concat_keys
from lance_memwal.sstable.read import SsTableReader

_OPEN_AT_ONCE = 4


def live_rows_of(snapshot: Tiers) -> int:
    """The number of live rows."""
    shards = [ShardMerge(view, snapshot) for view in snapshot.shards]
    base = snapshot.base_table
    of_base = 0 if base is None else int(base.dataset.count_rows())
    in_memory = sum(int(live.sum()) for shard in shards for _, _, live in shard.live_memory())
    if not snapshot.schema.primary_key:
        return of_base + in_memory + sum(reader.stored.num_rows for shard in shards for reader in shard.readers)
    alone = _counted_alone(snapshot, shards)
    if alone is not None:
        return of_base + alone
    in_sstables = sum(_live_in_sstables(shard, snapshot) for shard in shards)
    hidden = _superseded(snapshot, shards) if of_base else 0
    return of_base - hidden + in_memory + in_sstables


def _counted_alone(snapshot: Tiers, shards: Sequence[ShardMerge]) -> int | None:
    """The rows that SSTables add to those of the base table, where their keys alone tell: nothing is in memory, and no row is a
    tombstone. Once per table; whoever counts again needs more, and the index of the keys is followed as SSTables come and go."""
    fresh = [shard for shard in shards if shard.readers]
    base, slot = snapshot.base_table, _counted_slot(snapshot)
    if (
        not fresh
        or any(shard.view.memory for shard in shards)
        or any(has_fresh_index(shard.readers) for shard in fresh)
    ):
        return None
    made_of = (
        None if base is None else version_of(base),
        tuple(reader.sstable.path for shard in fresh for reader in shard.readers),
    )
    known: int | None = CACHE.find(slot, made_of)
    if known is not None or CACHE.whatever(slot) is not None:
        return known
    for shard in fresh:
        if any(map(len, _tombstones(shard.readers, snapshot))):
            return None
    keys = [keys_alone(shard.readers) for shard in fresh]
    hidden = 0 if base is None else count_of_keys(base, KeySet(concat_keys(keys)))
    found = sum(map(len, keys)) - hidden
    CACHE.keep(slot, found, SMALL_BYTES, made_of)
    return found


def _counted_slot(snapshot: Tiers) -> Slot:
    return ("counted by keys", snapshot.location.key)


def _live_in_sstables(shard: ShardMerge, snapshot: Tiers) -> int:
    index = shard.index
    if index is None:
        return 0
    alive = np.ones(len(index.keys), dtype=bool)
    if shard.memory_keys is not None:
        entries = index.locate(shard.memory_keys)
        alive[entries[entries >= 0]] = False
    for owner, offsets in enumerate(_tombstones(shard.readers, snapshot)):
        if len(offsets):
            own = np.flatnonzero(index.owners == owner)
            alive[own[~not_in(index.offsets[own], offsets)]] = False
    return int(alive.sum())


def _tombstones(readers: Sequence[SsTableReader], snapshot: Tiers) -> Iterable[np.ndarray]:
    """Per SSTable the sorted offsets of its tombstones."""
    cold = [reader for reader in readers if not reader.knows_tombstones]
    list(in_order(lambda reader: reader.tombstones(snapshot.schema), cold, _OPEN_AT_ONCE, "memwal-open"))
    return (reader.tombstones(snapshot.schema) for reader in readers)


# ----------------------------------------------------------------------------------------------------- the base table


def _superseded(snapshot: Tiers, shards: Sequence[ShardMerge]) -> int:
    """How many rows of the base table a fresh tier replaced or deleted."""
    base = snapshot.base
    known, unseen = known_superseded(snapshot, shards)
    if known is not None and not unseen:
        return len(known.all)
    indexes = [shard.index for shard in shards if shard.index is not None]
    memory = [shard.memory_keys for shard in shards if shard.memory_keys is not None and len(shard.memory_keys)]
    if not memory:
        return _by_sstables(base, indexes)
    if not holds_keys(base) and is_first_time(base, "counted"):
        return count_of_keys(base, KeySet(concat_keys([*memory, *(index.keys for index in indexes)])))
    return len(superseded_rows(snapshot, shards).all)


def _by_sstables(base: BaseTable, indexes: Sequence[FreshIndex]) -> int:
    """How many rows of the base table SSTables hide; counted once."""
    if not indexes:
        return 0
    slot: Slot = ("superseded rows", base.location.key)
    made_of = (*version_of(base), tuple(index.names for index in indexes))
    found: int | None = CACHE.find(slot, made_of)
    if found is None:
        found = count_of_keys(base, KeySet(concat_keys([index.keys for index in indexes])))
        CACHE.keep(slot, found, SMALL_BYTES, made_of)
    return found
