"""Which rows of the base table the fresh tiers hide, by row id.

Owns `superseded_rows`. Invariants:

1. What SSTables hide is found once per base version and list of SSTables, and kept; what memory hides is found anew for each
   snapshot, since it grows with every put.
2. A key in memory that an SSTable has too may be named twice.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lance_memwal.process.cache import CACHE
from lance_memwal.read.base_rows import ids_of_keys, version_of
from lance_memwal.read.merge import Merge
from lance_memwal.rows.keys import concat_keys

__all__ = ["SupersededRows", "superseded_rows"]

RowIds = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SupersededRows:
    """Ids of base rows, ascending: those that SSTables hide, and those that memory hides. `made_of` names the former."""

    by_sstables: RowIds
    by_memory: RowIds
    made_of: Hashable

    def hides(self, row_ids: RowIds) -> npt.NDArray[np.bool_]:
        """Per row id: whether the row is hidden."""
        return np.isin(row_ids, self.by_sstables) | np.isin(row_ids, self.by_memory)


@dataclass(frozen=True, slots=True)
class _Ids:
    row_ids: RowIds

    @property
    def size_bytes(self) -> int:
        return self.row_ids.nbytes


def superseded_rows(merge: Merge) -> SupersededRows:
    """The rows of the base table of this snapshot that a fresh tier replaced or deleted."""
    base = merge.snapshot.base
    shards = merge.shards if merge.snapshot.schema.primary_key else []
    names = tuple(tuple(reader.sstable.path for reader in shard.readers) for shard in shards)
    made_of = (*version_of(base), names)

    def by_sstables() -> _Ids:
        keys = [shard.index.keys for shard in shards if shard.index is not None]
        return _Ids(np.unique(ids_of_keys(base, concat_keys(keys))) if keys else np.empty(0, np.int64))

    kept = CACHE.fetch(("superseded", base.location.key), by_sstables, made_of)
    memory = [shard.memory_keys for shard in shards if shard.memory_keys is not None]
    by_memory = np.unique(ids_of_keys(base, concat_keys(memory))) if memory else np.empty(0, np.int64)
    return SupersededRows(kept.row_ids, by_memory, made_of)
