"""Which row of a shard's SSTables is the newest of its key.

Owns `FreshIndex`, made once per list of SSTables and kept. Invariants:

1. Every key is listed once, with the newest generation that has it and the row's offset there.
2. `hidden` names, per SSTable, the rows that a newer SSTable of the same shard replaced (or a newer row of its own, where
   its deletion vector does not); no other row is hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_memwal.clock import in_order
from lance_memwal.process.cache import CACHE, Cache
from lance_memwal.rows.keys import as_numbers, concat_keys, first_of_each
from lance_memwal.sstable.read import SsTableReader

__all__ = ["FreshIndex", "fresh_index"]

_SMALL_LOOKUP = 1024
_OPEN_AT_ONCE = 4


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


def fresh_index(readers: Sequence[SsTableReader], cache: Cache = CACHE) -> FreshIndex:
    """The index over `readers` of one shard, ascending by generation; kept until the list changes."""
    slot = ("fresh keys", readers[0].location.key, readers[0].shard_id)
    return cache.fetch(slot, lambda: FreshIndex(readers), tuple(reader.sstable.path for reader in readers))
