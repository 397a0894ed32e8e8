"""The plan of a query as the page draws it.

Owns `drawn` and `answered_by`. Invariant: numbers that nobody counted, or can tell apart, are None, never 0.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_memwal.read.merge import GENERATION
from lance_memwal.read.plan import ScanPlan, ShardPlan, Superseded, TierPlan, count_superseded
from lance_memwal.read.scan import Scan
from lance_memwal.read.tiers import Tiers
from lance_memwal.rows.sharding import Sharding
from lance_memwal.types import ROW_ADDRESS

__all__ = ["Answered", "Read", "answered_by", "drawn"]

MAX_COUNTED_ROWS: Final = 2_000_000
MAX_DRAWN: Final = 200


@dataclass(frozen=True, slots=True)
class Answered:
    """Where the rows of an answer came from: by shard and generation, and those of the base table by fragment.

    The shard is None where rows do not say in which one they are (manual shards).
    """

    generations: Counter[tuple[str | None, int]]
    fragments: Counter[int]

    def of(self, shard_id: str, generation: int, *, alone: bool) -> int | None:
        """Rows of a generation of a shard; `alone`: no other shard that was read has one of that number."""
        if None in {shard for shard, _ in self.generations}:
            return self.generations[None, generation] if alone else None
        return self.generations[shard_id, generation]


@dataclass(frozen=True, slots=True)
class Read:
    """What Lance read of the base table."""

    fragments: int
    size_bytes: int

    @classmethod
    def of(cls, told: Any) -> Read:
        """From the statistics of a scan."""
        return cls(int(told.all_counts.get("fragments_scanned", 0)), int(told.bytes_read))


def answered_by(rows: pa.Table, sharding: Sharding) -> Answered:
    """Where the rows of an answer came from; it has generations, row addresses, and what the sharding looks at."""
    addresses = np.asarray(rows[ROW_ADDRESS].drop_null().to_numpy()).astype(np.uint64)
    found: Counter[tuple[str | None, int]] = Counter()
    for batch in rows.filter(pc.greater(rows[GENERATION], 0)).to_batches():
        for shard_id, part in sharding.route(batch, None) if sharding.is_routed else [(None, batch)]:
            for generation, count in Counter(part.column(GENERATION).to_pylist()).items():
                found[shard_id, generation] += count
    return Answered(found, Counter((addresses >> np.uint64(32)).tolist()))


def drawn(
    scan: Scan, answered: Answered | None = None, limit: int | None = None, read: Read | None = None
) -> dict[str, Any]:
    """The plan of a scan; `answered` says where the rows that are shown came from, and `read` what was read, if known."""
    plan, counted = scan.plan(), _counted(scan.snapshot)
    numbers = Counter(tier.generation for shard in plan.shards for tier in shard.tiers)
    return {
        "columns": plan.columns,
        "filter": plan.filter,
        "order": plan.order,
        "limit": limit,
        "key": plan.primary_key,
        "shards": [_shard(shard, counted, answered, numbers) for shard in plan.shards[:MAX_DRAWN]],
        "shards_in_all": len(plan.shards),
        "pruned": plan.pruned_shards[:MAX_DRAWN],
        "pruned_in_all": len(plan.pruned_shards),
        "base": None if plan.base_version is None else _base(plan, counted, answered, read),
        "text": str(plan) if len(plan.shards) <= MAX_DRAWN else None,
    }


def _counted(snapshot: Tiers) -> Superseded | None:
    memory = sum(ref.num_rows for view in snapshot.shards for ref in view.memory)
    flushed = sum(sstable.physical_rows or 0 for view in snapshot.shards for sstable in view.sstables)
    return count_superseded(snapshot) if memory + flushed <= MAX_COUNTED_ROWS else None


def _shard(
    shard: ShardPlan, counted: Superseded | None, answered: Answered | None, numbers: Counter[int]
) -> dict[str, Any]:
    def told(tier: TierPlan) -> dict[str, Any]:
        source, alone = (shard.shard_id, tier.generation), numbers[tier.generation] == 1
        return {
            "tier": tier.tier,
            "generation": tier.generation,
            "rows": tier.rows,
            "path": tier.path,
            "indexes": tier.indexes,
            "superseded": None if counted is None else counted.generations.get(source),
            "tombstones": None if counted is None else counted.tombstones.get(source),
            "answered": None if answered is None else answered.of(*source, alone=alone),
        }

    return {
        "shard": shard.shard_id,
        "epoch": shard.epoch,
        "manifest": shard.manifest_version,
        "skipped": shard.skipped,
        "kept_for": dict(shard.kept_for),
        "tiers": [told(tier) for tier in shard.tiers],
    }


def _base(plan: ScanPlan, counted: Superseded | None, answered: Answered | None, read: Read | None) -> dict[str, Any]:
    hidden = None if counted is None else counted.fragments
    giving = set() if answered is None else set(answered.fragments)

    def was_read(fragment: int) -> bool | None:
        """Lance tells how many fragments it read, not which: those that gave rows, and all or no others, are known."""
        if fragment in giving or (read is not None and read.fragments >= len(plan.fragments)):
            return True
        return False if read is not None and read.fragments == len(giving) else None

    return {
        "version": plan.base_version,
        "rows": plan.base_rows,
        "superseded": None if counted is None else counted.base,
        "answered": None if answered is None else answered.fragments.total(),
        "fragments_in_all": len(plan.fragments),
        "fragments_read": None if read is None else read.fragments,
        "bytes_read": None if read is None else read.size_bytes,
        "fragments": [
            {
                "fragment": fragment.fragment,
                "rows": fragment.rows,
                "deleted": fragment.deleted,
                "superseded": None if hidden is None else hidden.get(fragment.fragment, 0),
                "answered": None if answered is None else answered.fragments[fragment.fragment],
                "read": was_read(fragment.fragment),
            }
            for fragment in plan.fragments[:MAX_DRAWN]
        ],
    }
