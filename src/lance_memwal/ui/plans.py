"""The plan of a query as the page draws it.

Owns `drawn`. Invariant: numbers that nobody counted are None, never 0. Where two shards have a generation of the same
number, rows of the answer do not say which of them they came from, and neither do we.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lance_memwal.read.merge import GENERATION
from lance_memwal.read.plan import ScanPlan, ShardPlan, Superseded, count_superseded
from lance_memwal.read.scan import Scan
from lance_memwal.read.tiers import Tiers
from lance_memwal.types import ROW_ADDRESS

__all__ = ["Answered", "answered_by", "drawn"]

MAX_COUNTED_ROWS: Final = 2_000_000
MAX_DRAWN: Final = 200

Answered = tuple[Counter[int], Counter[int]]
"""Rows of an answer by generation (0: the base table), and those of the base table by fragment."""


def answered_by(rows: pa.Table) -> Answered:
    """Where the rows of an answer came from; it has a column of generations and one of row addresses."""
    generations = np.asarray(rows[GENERATION].to_numpy()) if rows.num_rows else np.empty(0, np.uint64)
    addresses = np.asarray(rows[ROW_ADDRESS].drop_null().to_numpy()).astype(np.uint64)
    return Counter(generations.tolist()), Counter((addresses >> np.uint64(32)).tolist())


def drawn(scan: Scan, answered: Answered | None = None) -> dict[str, Any]:
    """The plan of a scan; `answered` says where the rows that are shown came from, if that is known."""
    plan, counted = scan.plan(), _counted(scan.snapshot)
    generations, fragments = answered or (None, None)
    alone = Counter(tier.generation for shard in plan.shards for tier in shard.tiers)
    from_generation = None if generations is None else {g: generations[g] for g in alone if alone[g] == 1}
    base_answered = None if generations is None else generations[0]
    return {
        "columns": plan.columns,
        "filter": plan.filter,
        "order": plan.order,
        "limit": plan.limit,
        "key": plan.primary_key,
        "shards": [_shard(shard, counted, from_generation) for shard in plan.shards[:MAX_DRAWN]],
        "shards_in_all": len(plan.shards),
        "pruned": plan.pruned_shards[:MAX_DRAWN],
        "pruned_in_all": len(plan.pruned_shards),
        "base": None if plan.base_version is None else _base(plan, counted, base_answered, fragments),
        "text": str(plan) if len(plan.shards) <= MAX_DRAWN else None,
    }


def _counted(snapshot: Tiers) -> Superseded | None:
    memory = sum(ref.num_rows for view in snapshot.shards for ref in view.memory)
    flushed = sum(sstable.physical_rows or 0 for view in snapshot.shards for sstable in view.sstables)
    return count_superseded(snapshot) if memory + flushed <= MAX_COUNTED_ROWS else None


def _shard(shard: ShardPlan, counted: Superseded | None, answered: Mapping[int, int] | None) -> dict[str, Any]:
    return {
        "shard": shard.shard_id,
        "epoch": shard.epoch,
        "manifest": shard.manifest_version,
        "skipped": shard.skipped,
        "kept_for": dict(shard.kept_for),
        "tiers": [
            {
                "tier": tier.tier,
                "generation": tier.generation,
                "rows": tier.rows,
                "path": tier.path,
                "indexes": tier.indexes,
                "superseded": None if counted is None else counted.generations.get((shard.shard_id, tier.generation)),
                "tombstones": None if counted is None else counted.tombstones.get((shard.shard_id, tier.generation)),
                "answered": None if answered is None else answered.get(tier.generation),
            }
            for tier in shard.tiers
        ],
    }


def _base(
    plan: ScanPlan, counted: Superseded | None, answered: int | None, by_fragment: Mapping[int, int] | None
) -> dict[str, Any]:
    hidden = None if counted is None else counted.fragments
    return {
        "version": plan.base_version,
        "rows": plan.base_rows,
        "superseded": None if counted is None else counted.base,
        "answered": answered,
        "fragments_in_all": len(plan.fragments),
        "fragments": [
            {
                "fragment": fragment.fragment,
                "rows": fragment.rows,
                "deleted": fragment.deleted,
                "superseded": None if hidden is None else hidden.get(fragment.fragment, 0),
                "answered": None if by_fragment is None else by_fragment.get(fragment.fragment, 0),
            }
            for fragment in plan.fragments[:MAX_DRAWN]
        ],
    }
