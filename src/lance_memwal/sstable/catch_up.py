"""How long an SSTable is needed after its rows are in the base table: until every maintained index covers them.

Owns `CatchUp`, the one answer to "may this generation be forgotten?". A reader that asks an index of the base table alone
(LanceDB, pylance) finds rows of a compacted generation in its SSTable until the index has them. Lance records per index
and shard how far that is (`index_catchup`), with every commit that brings an index up to date. Invariants:

1. A generation is needed by nobody once the base table records it as compacted and every maintained index records that
   it caught up. An index that records nothing for a shard has caught up with nothing of it.
2. Maintained are the listed indexes, or with "all" those that we mirror; an index that is not in the table any more, or
   that nobody maintains, holds nothing back.
3. It says nothing about our own reads: they skip what is compacted, whether it is still listed or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.marks import recorded
from lance_memwal.sstable.maintained import maintained_names
from lance_memwal.types import ShardManifest


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Per shard the generations that one base version records as compacted, and those that each index has."""

    compacted: Mapping[str, int]
    indexes: Mapping[str, Mapping[str, int]]

    @classmethod
    def of(cls, base: BaseTable) -> CatchUp:
        """What a base version records."""
        details = base.details
        if details is None:
            return cls({}, {})
        return cls(recorded(base), {name: details.index_catchup.get(name, {}) for name in maintained_names(base)})

    def through(self, shard_id: str) -> int:
        """The generation up to which nobody needs the SSTables of a shard."""
        reached = (progress.get(shard_id, 0) for progress in self.indexes.values())
        return min((self.compacted.get(shard_id, 0), *reached))

    def lagging(self, manifest: ShardManifest) -> dict[str, int]:
        """How many listed generations of a shard are kept for each index; indexes that need none are left out."""
        listed = manifest.up_to(self.compacted.get(manifest.shard_id, 0))
        counts = {
            name: sum(sstable.generation > progress.get(manifest.shard_id, 0) for sstable in listed)
            for name, progress in self.indexes.items()
        }
        return {name: count for name, count in counts.items() if count}

    def waiting(self, manifests: Iterable[ShardManifest]) -> dict[str, int]:
        """How many listed generations of all shards are kept for each index, by name."""
        total: dict[str, int] = {}
        for manifest in manifests:
            for name, count in self.lagging(manifest).items():
                total[name] = total.get(name, 0) + count
        return dict(sorted(total.items()))
