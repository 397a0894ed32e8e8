"""The tiers of a shard above the base table: which of their rows is the newest of its key.

Owns `FreshIndex`, made once per list of SSTables and kept, and `ShardMerge`. Invariants:

1. Every key is listed once, with the newest generation that has it and the row's offset there.
2. `hidden` names, per SSTable, the rows that a newer SSTable of the same shard replaced (or a newer row of its own, where
   its deletion vector does not); no other row is hidden.
3. Memory hides what SSTables have, whatever is in it; a tombstone hides like any other row, and is not live.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_memwal.clock import in_order
from lance_memwal.memtable.memtable import InMemoryMemTableRef
from lance_memwal.process.cache import CACHE, Cache
from lance_memwal.process.lazy import lazy
from lance_memwal.read.memory import winners
from lance_memwal.read.tiers import ShardView, Tiers
from lance_memwal.rows.adapt import tombstone_flags
from lance_memwal.rows.keys import as_numbers, concat_keys, first_of_each, key_array
from lance_memwal.sstable.read import SsTableReader, open_sstable

__all__ = ["FreshIndex", "ShardMerge", "fresh_index", "live_rows", "not_in"]

_SMALL_LOOKUP = 1024
_OPEN_AT_ONCE = 4
_FEW_KEYS = 64
_FEW_SSTABLES = 4
_MANY_ROWS = 1 << 20


class FreshIndex:
    """Keys of the SSTables of one shard, newest first."""

    def __init__(self, readers: Sequence[SsTableReader]) -> None:
        """`readers` ascend by generation."""
        newest_first = list(reversed(readers))
        at_once = 1 if sum(not reader.has_entries for reader in readers) < 2 else _OPEN_AT_ONCE
        parts = list(in_order(lambda reader: reader.entries(), newest_first, at_once, "memwal-open"))
        owners = np.repeat(np.arange(len(parts)), [len(keys) for keys, _ in parts])
        offsets = np.concatenate([o for _, o in parts]) if parts else np.empty(0, dtype=np.int64)
        keys = concat_keys([k for k, _ in parts])
        first = first_of_each(keys)
        self.keys = keys.take(pa.array(first))
        self._numbers = as_numbers(self.keys)
        self.owners = owners[first]
        self.offsets = offsets[first]
        beaten = np.ones(len(owners), dtype=bool)
        beaten[first] = False
        self.hidden = (
            [offsets[beaten & (owners == i)] for i in range(len(parts))] if beaten.any() else [_NONE] * len(parts)
        )
        for i, reader in enumerate(newest_first):
            if len(reader.stale):
                self.hidden[i] = np.concatenate([self.hidden[i], reader.stale])
        self._positions: dict[Any, int] | None = None

    @property
    def size_bytes(self) -> int:
        """Resident bytes."""
        hidden = sum(offsets.nbytes for offsets in self.hidden)
        return int(self.keys.nbytes * 2 + self.owners.nbytes + self.offsets.nbytes + hidden)

    def locate(self, keys: pa.Array) -> npt.NDArray[np.int64]:
        """Per key its entry, or -1; an entry has an owner (a reader) and an offset there."""
        numbers = as_numbers(keys)
        if self._numbers is not None and numbers is not None:
            at = np.searchsorted(self._numbers, numbers)
            at[at == len(self._numbers)] = 0
            return np.where(self._numbers[at] == numbers, at, -1) if len(self._numbers) else np.full(len(keys), -1)
        if len(keys) <= _SMALL_LOOKUP:
            if self._positions is None:
                self._positions = {key: i for i, key in enumerate(self.keys.to_pylist())}
            return np.array([self._positions.get(key, -1) for key in keys.to_pylist()], dtype=np.int64)
        found = pc.index_in(keys, value_set=self.keys)
        return np.asarray(found.fill_null(-1).to_numpy(zero_copy_only=False)).astype(np.int64)


_NONE = np.empty(0, dtype=np.int64)


def fresh_index(
    readers: Sequence[SsTableReader], cache: Cache = CACHE, *, keys: int | None = None
) -> FreshIndex | None:
    """The index over `readers` of one shard, ascending by generation; kept until the list changes.

    None if it is not there and a lookup of so many `keys` costs less without it.
    """
    slot = ("fresh keys", readers[0].location.key, readers[0].shard_id)
    names = tuple(reader.sstable.path for reader in readers)
    found: FreshIndex | None = cache.find(slot, names)
    if found is not None or (keys is not None and _costs_less_without(readers, keys)):
        return found
    return cache.fetch(slot, lambda: FreshIndex(readers), names)


def _costs_less_without(readers: Sequence[SsTableReader], keys: int) -> bool:
    """Whether few keys are looked for, now and so far, in SSTables most of which are cold.

    To have all keys of an SSTable in memory costs two files, whole. To ask its filter costs one read, and some keys pass it.
    """
    cold = [reader for reader in readers if not reader.has_entries]
    if 2 * len(cold) <= len(readers) or max(reader.asked_keys for reader in cold) + keys > _FEW_KEYS:
        return False
    return len(cold) > _FEW_SSTABLES or sum(reader.sstable.physical_rows or 0 for reader in cold) > _MANY_ROWS


class ShardMerge:
    """The fresh tiers of one shard: winners in memory, hidden rows per SSTable."""

    def __init__(self, view: ShardView, snapshot: Tiers) -> None:
        self.view = view
        self._snapshot = snapshot
        self.readers = [open_sstable(snapshot.location, view.shard_id, s) for s in view.sstables]

    @property
    def _keyed(self) -> bool:
        return bool(self._snapshot.schema.primary_key)

    @cached_property
    def memory(self) -> list[tuple[InMemoryMemTableRef, npt.NDArray[np.bool_]]]:
        """Per memtable the mask of rows that nothing in memory hides, tombstones included."""
        return winners(self.view.memory)

    @cached_property
    def memory_keys(self) -> pa.Array | None:
        """Every key in memory, tombstones included; None without a primary key or without rows."""
        if not self._keyed or not self.memory:
            return None
        names = list(self._snapshot.schema.primary_key)
        parts = []
        for ref, mask in self.memory:
            keys = ref.table().select(names)
            parts.append(key_array((keys if mask.all() else keys.filter(pa.array(mask))).columns))
        return concat_keys(parts)

    @lazy
    def index(self) -> FreshIndex | None:
        """The newest row per key over the SSTables; None without any, or without a primary key."""
        return fresh_index(self.readers) if self._keyed and self.readers else None

    def live_memory(self) -> Iterator[tuple[InMemoryMemTableRef, pa.Table, npt.NDArray[np.bool_]]]:
        """Per memtable its rows and the mask of those that nothing in memory hides and that are no tombstones."""
        for ref, mask in self.memory:
            table = ref.table()
            yield ref, table, mask & ~tombstone_flags(table)

    def sstables(self) -> Iterator[tuple[SsTableReader, npt.NDArray[np.int64]]]:
        """The SSTables, ascending, each with the offsets of the rows that a newer one or memory hides, sorted."""
        if self.readers:
            yield from zip(self.readers, map(np.sort, self._hidden()), strict=True)

    def _hidden(self) -> list[npt.NDArray[np.int64]]:
        index = self.index
        if index is None:
            return [_NONE] * len(self.readers)
        hidden = list(reversed(index.hidden))
        if self.memory_keys is not None:
            entries = index.locate(self.memory_keys)
            entries = entries[entries >= 0]
            owners, offsets = index.owners[entries], index.offsets[entries]
            last = len(self.readers) - 1
            hidden = [
                np.concatenate([known, offsets[owners == last - i]]) if len(entries) else known
                for i, known in enumerate(hidden)
            ]
        return hidden

    def all_keys(self) -> list[pa.Array]:
        """Every key of the fresh tiers, tombstones included, some twice."""
        found = [] if self.memory_keys is None else [self.memory_keys]
        return found if self.index is None else [*found, self.index.keys]


def live_rows(
    rows: pa.Table | pa.RecordBatch, offsets: npt.NDArray[np.int64], hidden: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Per row of an SSTable, at these offsets: whether it is neither hidden (sorted offsets) nor a tombstone."""
    return not_in(offsets, hidden) & ~tombstone_flags(rows)


def not_in(offsets: npt.NDArray[np.int64], hidden: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Per offset: whether it is not among the sorted `hidden` ones."""
    if not len(hidden):
        return np.ones(len(offsets), dtype=bool)
    at = np.searchsorted(hidden, offsets)
    at[at == len(hidden)] = 0
    return np.asarray(hidden[at] != offsets)
