"""Which row of a shard's SSTables is the newest of its key.

Owns `FreshIndex`, made once per list of SSTables and kept. Invariants:

1. Every key is listed once, with the newest generation that has it and the row's offset there.
2. `hidden` names, per SSTable, the rows that a newer SSTable of the same shard replaced (or a newer row of its own, where
   its deletion vector does not); no other row is hidden.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_memwal.rows.keys import as_numbers, concat_keys, first_of_each
from lance_memwal.sstable.read import SsTableCache, SsTableReader

__all__ = ["FreshIndex", "FreshIndexCache"]

_SMALL_LOOKUP = 1024


class FreshIndex:
    """Keys of the SSTables of one shard, newest first."""

    def __init__(self, readers: Sequence[SsTableReader]) -> None:
        """`readers` ascend by generation."""
        newest_first = list(reversed(readers))
        parts = [reader.entries() for reader in newest_first]
        owners = np.repeat(np.arange(len(parts)), [len(keys) for keys, _ in parts])
        offsets = np.concatenate([o for _, o in parts]) if parts else np.empty(0, dtype=np.int64)
        self.readers = newest_first
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
        return int(self.keys.nbytes * 2 + self.owners.nbytes + self.offsets.nbytes)

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


class FreshIndexCache:
    """Indexes of recently read lists of SSTables, one per shard, within a limit of bytes."""

    def __init__(self, sstables: SsTableCache, limit_bytes: int = 256 << 20) -> None:
        self.sstables = sstables
        self._limit_bytes = limit_bytes
        self._lock = threading.RLock()
        self._kept: OrderedDict[tuple[str, str], tuple[tuple[str, ...], FreshIndex]] = OrderedDict()
        self._held_bytes = 0  # counted as indexes come and go: there may be one per shard, of thousands

    def index(self, readers: Sequence[SsTableReader]) -> FreshIndex:
        """The index over `readers` of one shard, ascending by generation."""
        slot = (readers[0].location.key, readers[0].shard_id)
        names = tuple(reader.sstable.path for reader in readers)
        with self._lock:
            kept = self._kept.get(slot)
            if kept is not None and kept[0] == names:
                self._kept.move_to_end(slot)
                return kept[1]
        made = FreshIndex(readers)
        with self._lock:
            replaced = self._kept.pop(slot, None)
            self._kept[slot] = (names, made)
            self._held_bytes += made.size_bytes - (0 if replaced is None else replaced[1].size_bytes)
            while self._held_bytes > self._limit_bytes and len(self._kept) > 1:
                _, (_, oldest) = self._kept.popitem(last=False)
                self._held_bytes -= oldest.size_bytes
        return made
