"""What a scan says about itself, as a value."""

from __future__ import annotations

from pathlib import Path

import lance_memwal as mw
from lance_memwal.read.plan import count_superseded
from tests.kit.pages import lived_in


def test_a_plan_has_what_explain_says(tmp_path: Path) -> None:
    with lived_in(tmp_path / "t", sharding=mw.Bucket("id", 2)) as table:
        scan = table.scan(["city"], "id = 7", 5, order_by=["-id"])
        plan = scan.plan()
        assert str(plan) == scan.explain()
        assert (plan.columns, plan.filter, plan.order, plan.limit) == (("city",), "id = 7", "-id", 5)
        assert (len(plan.shards), len(plan.pruned_shards)) == (1, 1)
        (shard,) = plan.shards
        assert [tier.tier for tier in shard.tiers] == ["memtable", "sstable", "sstable"][-len(shard.tiers) :]
        assert sum(fragment.rows - fragment.deleted for fragment in plan.fragments) == plan.base_rows == 10


def test_rows_of_a_writer_elsewhere_are_told_as_its_log(tmp_path: Path) -> None:
    with lived_in(tmp_path / "t") as table:
        (shard,) = table.scan(consistency="flushed").plan().shards
        assert [tier.tier for tier in shard.tiers] == ["sstable", "sstable"]
        assert [tier.rows for tier in shard.tiers] == [10, 15]


def test_superseded_and_live_rows_are_all_rows(tmp_path: Path) -> None:
    with lived_in(tmp_path / "t", sharding=mw.Bucket("id", 3)) as table:
        scan = table.scan()
        counted, plan = count_superseded(scan.snapshot), scan.plan()
        physical = sum(tier.rows or 0 for shard in plan.shards for tier in shard.tiers) + plan.base_rows
        hidden = sum(counted.generations.values()) + counted.base + sum(counted.tombstones.values())
        assert physical - hidden == table.count_rows() == 30
        assert counted.fragments is not None
        assert sum(counted.fragments.values()) == counted.base == 5
