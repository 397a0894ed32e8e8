"""Rows that nobody adds to become an SSTable at the age limit of memtables: logs of live writers are never old."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

import lance_memwal as mw
from lance_memwal.clock import SYSTEM_CLOCK
from tests.kit.maintained import wait_until

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])
SETTINGS = {"fsync": False, "stats_log_interval_ms": None}


def make(place: Path, sharding: mw.Unsharded | mw.Bucket | None = None) -> mw.Table:
    return mw.create_table(
        str(place / "t"), SCHEMA, primary_key="id", sharding=sharding or mw.Unsharded(), writer_defaults=SETTINGS
    )


def generations(table: mw.Table) -> list[int]:
    return [generation for shard in table.shards() for generation in shard.generations]


def test_rows_are_flushed_at_their_age_without_another_write(tmp_path: Path) -> None:
    table = make(tmp_path)
    with table.writer(compaction=None, max_memtable_age_ms=150) as writer:
        writer.put({"id": [1], "v": ["a"]})
        assert generations(table) == []
        assert wait_until(lambda: generations(table) == [1], 20)
        writer.put({"id": [2], "v": ["b"]})
        assert wait_until(lambda: generations(table) == [1, 2], 20)
        assert table.count_rows() == 2
        assert table.stats().wal_lag_entries == 0


def test_the_first_row_counts_whatever_comes_after_it(tmp_path: Path) -> None:
    table = make(tmp_path)
    started = SYSTEM_CLOCK.monotonic()
    with table.writer(compaction=None, max_memtable_age_ms=200) as writer:
        number = 0
        while not generations(table):
            writer.put({"id": [number], "v": ["a"]})
            number += 1
            SYSTEM_CLOCK.sleep(0.01)
            assert SYSTEM_CLOCK.monotonic() < started + 20
        assert number > 3
        assert table.count_rows() == number


def test_without_an_age_limit_rows_stay_in_memory(tmp_path: Path) -> None:
    table = make(tmp_path)
    with table.writer(compaction=None, max_memtable_age_ms=None) as writer:
        writer.put({"id": [1], "v": ["a"]})
        (shard,) = writer.shard_writers.values()
        assert not wait_until(lambda: bool(generations(table)), 0.4)
        assert shard.memtable_stats().row_count == 1


def test_replayed_rows_have_an_age_too(tmp_path: Path) -> None:
    table = make(tmp_path)
    writer = table.writer(compaction=None)
    writer.put({"id": [1, 2], "v": ["a", "b"]})
    writer.abort()
    with table.shard_writer(max_memtable_age_ms=100) as again:
        assert again.memtable_stats().row_count == 2
        assert wait_until(lambda: generations(table) == [1], 20)
    assert table.count_rows() == 2


def test_a_parked_shard_is_flushed_at_the_same_age(tmp_path: Path) -> None:
    """Else maintenance would find a log without a live writer, claim it, and fence the writer that parked it."""
    table = make(tmp_path, mw.Bucket("id", 8))
    with table.writer(compaction=None, max_open_shards=2, max_memtable_age_ms=300) as writer:
        for number in range(32):
            writer.put({"id": [number], "v": ["a"]})
        assert len(writer.shard_writers) <= 2
        used = {shard.shard_id for shard in table.shards()}
        assert len(used) > 3
        assert wait_until(lambda: table.stats().wal_lag_entries == 0, 20)
        assert {shard.shard_id for shard in table.shards() if shard.generations} == used
        for number in range(32):  # none of them was fenced
            writer.put({"id": [number], "v": ["b"]})
    assert table.count_rows("v = 'b'") == 32


def test_the_limit_is_a_default_of_the_table(tmp_path: Path) -> None:
    table = mw.create_table(
        str(tmp_path / "t"), SCHEMA, primary_key="id", writer_defaults={**SETTINGS, "max_memtable_age_ms": 77}
    )
    assert table.details().writer_config_defaults["max_memtable_age_ms"] == "77"
    with table.shard_writer() as writer:
        assert writer.config.max_memtable_age_ms == 77
