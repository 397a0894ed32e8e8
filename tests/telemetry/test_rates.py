"""Rates from two looks at a table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import lance_memwal as mw
from lance_memwal.upkeep.rates import rates_between
from tests.kit.engine_tables import ROWS, SCHEMA


def later(stats: mw.TableStats, earlier: mw.TableStats, seconds: float) -> mw.TableStats:
    return replace(stats, seen_seconds=earlier.seen_seconds + seconds)


def test_rates_count_what_came_between_two_looks(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id")
    with table.writer(fsync=False, compaction=None) as writer:
        writer.put(ROWS.slice(0, 1))
        before = table.stats(live_rows=False, collectable=False)
        for number in range(1, 11):
            writer.put(ROWS.slice(number, 1))
        during = table.stats(live_rows=False, collectable=False)
    table.compact()
    after = table.stats(live_rows=False, collectable=False)
    first = rates_between(before, later(during, before, 2.0))
    assert first.entries == 5.0
    assert first.size_bytes == (during.shards[0].wal_bytes - before.shards[0].wal_bytes) / 2
    assert (first.flushes, first.compacted, first.takeovers) == (0.0, 0.0, 0)
    second = rates_between(during, later(after, during, 4.0))
    assert (second.flushes, second.compacted) == (0.25, 0.25)
    assert second.base_rows == 11 / 4
    assert second.base_versions >= 1
    assert second.requests > 0


def test_collection_between_two_looks_takes_nothing_from_the_rates(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id")
    with table.writer(fsync=False) as writer:
        for number in range(20):
            writer.put(ROWS.slice(number, 1))
    table.compact()
    before = table.stats()
    table.gc(grace_seconds=0)
    with table.writer(fsync=False) as writer:
        writer.put(ROWS.slice(30, 1))
        after = table.stats()
    assert after.shards[0].wal_first > before.shards[0].wal_first
    rates = rates_between(before, later(after, before, 1.0))
    assert rates.entries >= 1
    assert 0 < rates.size_bytes < after.shards[0].wal_bytes * rates.entries
    assert rates.takeovers == 1


def test_a_shard_that_is_new_or_began_anew_has_no_rate_yet(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id")
    before = table.stats()
    with table.writer(fsync=False) as writer:
        writer.put(ROWS)
        after = table.stats()
    assert rates_between(before, later(after, before, 1.0)).entries == 0.0
    assert len(rates_between(before, later(after, before, 1.0)).shards) == 1
    anew = replace(after, shards=(replace(after.shards[0], wal_tip=0, wal_entries=0, epoch=1),))
    assert rates_between(after, later(anew, after, 1.0)).entries == 0.0


def test_one_look_is_no_rate(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id")
    stats = table.stats()
    with pytest.raises(mw.InvalidInputError, match="two observations"):
        rates_between(stats, stats)


def test_what_collection_would_delete_is_left_out_if_it_is_not_asked_for(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id")
    assert table.stats(collectable=False).collectable_bytes is None
    assert table.stats().collectable_bytes == 0
