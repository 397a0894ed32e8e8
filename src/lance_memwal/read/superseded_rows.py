"""Which rows of the base table the fresh tiers hide, by row id.

Owns `SupersededRows`, how they are found, and what is kept of them. Invariants:

1. What SSTables hide is found once per base version and list of SSTables, and kept.
2. What memory hides is kept with how much of each memtable was looked at: rows are only ever appended to one, so the next look
   is at the new ones. Once one of these memtables is flushed, all are looked at anew.
3. A key in memory that an SSTable has too may be named twice.
4. What is kept is a number of eight bytes per row that is hidden, and no row.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from lance.dataset import serialize_row_addrs

from lance_memwal.lance.base import BaseTable
from lance_memwal.process.cache import CACHE, SMALL_BYTES, Slot
from lance_memwal.read.base_rows import holds_keys, ids_of_keys, row_ids_of, version_of
from lance_memwal.read.fresh import ShardMerge
from lance_memwal.read.tiers import Tiers
from lance_memwal.rows.keys import KeySet, concat_keys, key_array

RowIds = npt.NDArray[np.int64]
_NONE = np.empty(0, np.int64)
_MAX_UNBLOCKED = 256


@dataclass(frozen=True, slots=True)
class SupersededRows:
    """Ids of base rows, ascending: those that SSTables hide, and those that memory hides. `made_of` names the former."""

    by_sstables: RowIds
    by_memory: RowIds
    made_of: Hashable

    def hides(self, row_ids: RowIds) -> npt.NDArray[np.bool_]:
        """Per row id: whether the row is hidden."""
        if not len(row_ids) or not (row_ids[1:] > row_ids[:-1]).all():
            return np.isin(row_ids, self.by_sstables) | np.isin(row_ids, self.by_memory)
        hidden = np.zeros(len(row_ids), dtype=bool)
        for some in (self.by_sstables, self.by_memory):
            first, end = np.searchsorted(some, [row_ids[0], row_ids[-1] + 1])
            at = np.searchsorted(row_ids, some[first:end])
            hidden[at[row_ids[at] == some[first:end]]] = True
        return hidden

    @property
    def all(self) -> RowIds:
        """Every id once, ascending."""
        return np.union1d(self.by_sstables, self.by_memory) if len(self.by_memory) else self.by_sstables


@dataclass(frozen=True, slots=True)
class _Ids:
    row_ids: RowIds

    @property
    def size_bytes(self) -> int:
        return self.row_ids.nbytes


@dataclass(frozen=True, slots=True)
class _Looked:
    """How many rows of which memtables were looked at, and what these hide."""

    rows: Mapping[object, int]
    row_ids: RowIds

    @property
    def size_bytes(self) -> int:
        return self.row_ids.nbytes + SMALL_BYTES * (1 + len(self.rows))


_NOTHING = _Looked({}, _NONE)


def superseded_rows(snapshot: Tiers, shards: Sequence[ShardMerge]) -> SupersededRows:
    """The rows of the base table of a snapshot that one of its `shards` replaced or deleted."""
    base = snapshot.base
    shards = shards if snapshot.schema.primary_key else []
    made_of = _made_of(base, shards)

    def by_sstables() -> _Ids:
        keys = [shard.index.keys for shard in shards if shard.index is not None]
        return _Ids(np.unique(ids_of_keys(base, concat_keys(keys))) if keys else _NONE)

    kept = CACHE.fetch(_slot(base), by_sstables, made_of)
    return SupersededRows(kept.row_ids, _by_memory(snapshot, shards), made_of)


def known_superseded(
    snapshot: Tiers, shards: Sequence[ShardMerge]
) -> tuple[SupersededRows, Sequence[pa.Array]] | tuple[None, None]:
    """As much of the same as is known without a pass over the base table, and the keys in memory that may hide more rows.

    Nothing, if it is not known what SSTables hide.
    """
    base, made_of = snapshot.base, _made_of(snapshot.base, shards)
    kept: _Ids | None = CACHE.find(_slot(base), made_of)
    if kept is None:
        return None, None
    looked = _looked_at(base, shards)
    unseen = _unseen(snapshot, shards, looked)
    if unseen and holds_keys(base):
        return superseded_rows(snapshot, shards), ()
    return SupersededRows(kept.row_ids, looked.row_ids, made_of), unseen


def _made_of(base: BaseTable, shards: Sequence[ShardMerge]) -> Hashable:
    return *version_of(base), tuple(tuple(reader.sstable.path for reader in shard.readers) for shard in shards)


def _slot(base: BaseTable) -> Slot:
    return "superseded", base.location.key


# -------------------------------------------------------------------------------------------------------- for Lance


@dataclass(frozen=True, slots=True)
class _Blocklist:
    by_memory: RowIds
    data: bytes

    @property
    def size_bytes(self) -> int:
        return self.by_memory.nbytes + len(self.data) + SMALL_BYTES


def blocklist(base: BaseTable, rows: SupersededRows) -> tuple[bytes | None, RowIds]:
    """Superseded rows as Lance takes them, and at most `_MAX_UNBLOCKED` that are not among them.

    Encoding costs 0.2 us per row. The list is therefore not rebuilt for each row that memory supersedes.
    """
    if not len(rows.by_sstables) and not len(rows.by_memory):
        return None, _NONE
    slot = ("blocklist", base.location.key)
    known: _Blocklist | None = CACHE.find(slot, rows.made_of)
    if known is not None and known.by_memory is rows.by_memory:
        return known.data, _NONE
    if known is not None:
        new = np.setdiff1d(rows.by_memory, known.by_memory, assume_unique=True)
        if len(new) <= _MAX_UNBLOCKED and len(new) + len(known.by_memory) == len(rows.by_memory):
            return known.data, new
    made = _Blocklist(rows.by_memory, serialize_row_addrs(rows.all.tolist()))
    CACHE.keep(slot, made, made.size_bytes, rows.made_of)
    return made.data, _NONE


# -------------------------------------------------------------------------------------------------------- by memory


def _memory_slot(base: BaseTable) -> Slot:
    return "superseded by memory", base.location.key


def _by_memory(snapshot: Tiers, shards: Sequence[ShardMerge]) -> RowIds:
    base = snapshot.base
    looked = _looked_at(base, shards)
    unseen = _unseen(snapshot, shards, looked)
    if not unseen:
        return looked.row_ids
    found = np.union1d(looked.row_ids, ids_of_keys(base, concat_keys(unseen)))
    _keep_looked(base, shards, found)
    return found


def _keep_looked(base: BaseTable, shards: Sequence[ShardMerge], row_ids: RowIds) -> None:
    looked = _Looked(_rows_in_memory(shards), row_ids)
    CACHE.keep(_memory_slot(base), looked, looked.size_bytes, version_of(base))


def _looked_at(base: BaseTable, shards: Sequence[ShardMerge]) -> _Looked:
    """What is known of a part of what is in memory."""
    known: _Looked | None = CACHE.find(_memory_slot(base), version_of(base))
    now = _rows_in_memory(shards)
    return known if known is not None and all(now.get(m, -1) >= n for m, n in known.rows.items()) else _NOTHING


def _rows_in_memory(shards: Sequence[ShardMerge]) -> dict[object, int]:
    return {ref.memtable.mark: ref.num_rows for shard in shards for ref in shard.view.memory}


def _unseen(snapshot: Tiers, shards: Sequence[ShardMerge], looked: _Looked) -> list[pa.Array]:
    """The keys in memory that were not looked at, some of them perhaps twice."""
    names = list(snapshot.schema.primary_key)
    found = []
    for ref in (ref for shard in shards for ref in shard.view.memory):
        start = looked.rows.get(ref.memtable.mark, 0)
        if start < ref.num_rows:
            found.append(key_array(ref.table().select(names).slice(start).columns))
    return found


# ---------------------------------------------------------------------------------------------------------- learning


class Learning:
    """What a pass over all keys of the base table finds beside what is `known`, so that it is known, too, from then on."""

    def __init__(self, snapshot: Tiers, shards: Sequence[ShardMerge], known: SupersededRows | None = None) -> None:
        self._base = snapshot.base
        self._shards = shards
        self._known = known
        self._rows: list[pa.RecordBatch] = []

    def add(self, rows: pa.RecordBatch) -> None:
        """Take in hidden rows: their key columns, and their ids."""
        self._rows.append(rows)

    def finish(self) -> None:
        """Keep what was found: every hidden row was taken in."""
        row_ids = np.concatenate([_NONE, *map(row_ids_of, self._rows)])
        if self._known is not None:
            _keep_looked(self._base, self._shards, np.union1d(self._known.by_memory, row_ids))
            return
        by_memory, by_both = self._in_memory(len(row_ids))
        _keep_looked(self._base, self._shards, np.sort(row_ids[by_memory]))
        kept = _Ids(np.sort(row_ids[~by_memory | by_both]))
        CACHE.keep(_slot(self._base), kept, kept.size_bytes, _made_of(self._base, self._shards))

    def _in_memory(self, count: int) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Per row that was taken in: whether its key is in memory, and whether an SSTable has it as well."""
        by_memory, by_both = np.zeros(count, bool), np.zeros(count, bool)
        memory = [shard.memory_keys for shard in self._shards if shard.memory_keys is not None]
        if count and memory:
            keys = key_array(pa.Table.from_batches(self._rows).select(list(self._base.primary_key)).columns)
            by_memory = KeySet(concat_keys(memory)).contains(keys)
            some = keys.filter(pa.array(by_memory))
            for index in (shard.index for shard in self._shards if shard.index is not None):
                by_both[by_memory] |= index.locate(some) >= 0
        return by_memory, by_both
