"""Compaction that happens by itself, and the statistics that say what is due."""

from __future__ import annotations

import gc
import logging
import shutil
import threading
import time
from collections import Counter
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.clock import SYSTEM_CLOCK
from lance_memwal.compact.policy import CHECKS_PER_BASE_LOOK, DEFAULT_COMPACTION, Background, due_shards
from lance_memwal.lance.identity import TableWatch
from lance_memwal.store import paths
from tests.kit.far_stores import far
from tests.kit.writers import wait_for

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
EAGER = mw.CompactionPolicy(max_generations=3, check_interval_seconds=0.02)


def make(place: Path) -> mw.Table:
    return mw.create_table(
        str(place), SCHEMA, primary_key="id", sharding=mw.Unsharded(), writer_defaults={"fsync": False}
    )


def generations(writer: mw.TableWriter, count: int) -> None:
    for number in range(count):
        writer.put({"id": [number], "v": ["x" * 100]})
        writer.flush()


def compactors() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("memwal-compact")]


def test_a_writer_compacts_its_shards_in_the_background(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    with table.writer(compaction=EAGER) as writer:
        generations(writer, 4)
        wait_for(lambda: lance.dataset(table.uri).count_rows() >= 3)
        writer.put({"id": [50], "v": ["after"]})
        assert table.count_rows() == 5
    assert compactors() == []


def test_it_is_on_by_default_and_off_by_option(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    with table.writer() as writer:
        writer.put({"id": [1], "v": ["x"]})
        assert compactors() == ["memwal-compact-0"]
    with table.writer(compaction=None) as writer:
        writer.put({"id": [1], "v": ["x"]})
        assert compactors() == []
    assert DEFAULT_COMPACTION.max_generations > 1


def test_a_failing_compaction_is_logged_and_tried_again_and_writes_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = make(tmp_path / "t")
    with table.writer(compaction=EAGER) as writer, caplog.at_level(logging.WARNING, "lance_memwal.compact.policy"):
        writer.put({"id": [0], "v": ["x"]})
        writer.flush()
        shard = table.shards()[0].shard_id
        path = Path(table.uri) / paths.sstable_dir(shard, writer.shard_writers[shard].manifest().sstables[0].path)
        shutil.move(path / "data", path / "hidden")
        generations(writer, 3)
        wait_for(lambda: "background compaction failed" in caplog.text)
        writer.put({"id": [77], "v": ["goes on"]})
        shutil.move(path / "hidden", path / "data")
        wait_for(lambda: bool(table.details().compacted))
        assert table.get(77) is not None


def test_an_idle_writer_asks_its_store_next_to_nothing(tmp_path: Path) -> None:
    """It looked at every shard in each check: 12 requests a minute and shard."""
    store, location = far(tmp_path / "t")
    make(tmp_path / "t")
    table, checks = mw.open_table(location), Counter[str]()
    with table.writer(compaction=None) as writer:
        generations(writer, 2)
        [shard] = writer.owned_shards

    def shards() -> dict[str, int]:
        checks["made"] += 1
        return {shard: checks["published"]}

    watch, interval = TableWatch(table.base), 0.005
    background = Background(mw.CompactionPolicy(check_interval_seconds=interval), location, watch.look, shards)
    background.start()
    wait_for(lambda: checks["made"] >= 5)
    before, begun, started = store.calls.total(), checks["made"], time.monotonic()
    wait_for(lambda: checks["made"] >= begun + 60)
    idle, looks = store.calls.total() - before, (time.monotonic() - started) / (CHECKS_PER_BASE_LOOK * interval)
    assert idle <= looks + 2, "one request of ours for a look at the base table"
    checks["published"] += 1
    wait_for(lambda: store.calls.total() > before + idle + 2)
    background.join()
    per_minute = 60 / DEFAULT_COMPACTION.check_interval_seconds / CHECKS_PER_BASE_LOOK * 2
    assert per_minute <= 1, "and one by Lance"


def test_a_generation_is_compacted_at_its_age_although_nothing_else_happens(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    policy = mw.CompactionPolicy(max_age_seconds=0.5, check_interval_seconds=0.02)
    with table.writer(compaction=policy) as writer:
        generations(writer, 1)
        wait_for(lambda: bool(table.details().compacted))


def test_the_thread_of_a_dropped_writer_ends(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    writer = table.writer(compaction=EAGER)
    writer.put({"id": [1], "v": ["x"]})
    assert compactors() == ["memwal-compact-0"]
    del writer
    gc.collect()
    wait_for(lambda: compactors() == [])


@pytest.mark.parametrize(
    ("policy", "due"),
    [
        (mw.CompactionPolicy(), False),
        (mw.CompactionPolicy(max_generations=4), True),
        (mw.CompactionPolicy(max_generations=5), False),
        (mw.CompactionPolicy(max_bytes=300), True),
        (mw.CompactionPolicy(max_bytes=1 << 20), False),
        (mw.CompactionPolicy(max_age_seconds=0.001), True),
        (mw.CompactionPolicy(max_age_seconds=3600), False),
    ],
)
def test_count_bytes_and_age_make_a_shard_due(tmp_path: Path, policy: mw.CompactionPolicy, due: bool) -> None:
    table = make(tmp_path / "t")
    with table.writer(compaction=None) as writer:
        generations(writer, 4)
    time.sleep(0.002)
    found = due_shards(table.location, table.base, policy, SYSTEM_CLOCK)
    assert bool(found) is due
    table.compact()
    assert due_shards(table.location, table.base, policy, SYSTEM_CLOCK) == []


def test_a_policy_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(mw.InvalidInputError, match="max_generations"):
        mw.CompactionPolicy(max_generations=0)


def test_statistics_count_tiers_debt_and_garbage(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    writer = table.writer(compaction=None)
    generations(writer, 3)
    table.compact(max_generations=1)
    writer.put({"id": [9], "v": ["tail"]})
    stats = table.stats()
    assert (stats.base_rows, stats.base_fragments, len(stats.shards)) == (1, 1, 1)
    assert (stats.uncompacted_generations, stats.uncompacted_rows) == (2, 2)
    assert (stats.wal_lag_entries, stats.shards[0].wal_entries) == (1, 4)
    assert stats.wal_lag_bytes > 0
    assert stats.uncompacted_bytes > 0
    assert stats.shards[0].compacted_generation == 1
    assert stats.collectable_objects == 0  # all of it is within the grace period
    assert stats.compaction_due == ()
    on_disk = [p for p in (Path(table.uri) / "_mem_wal").rglob("*") if p.is_file()]
    assert (stats.objects, stats.size_bytes) == (len(on_disk), sum(p.stat().st_size for p in on_disk))
    writer.close()


@pytest.mark.parametrize(
    "name", ["max_generations", "max_bytes", "max_age_seconds", "check_interval_seconds", "memory_bytes"]
)
@pytest.mark.parametrize("value", ["x", None, 0, -1, float("nan"), [1]])
def test_a_policy_of_something_else_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(mw.InvalidInputError, match=name):
        mw.CompactionPolicy(**{name: value})  # type: ignore[arg-type]
