"""One call keeps a table healthy, is finished by the next one if it was killed, and changes nothing that a read shows."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.__main__ import main
from lance_memwal.lance.manifest import DeletionFile, Fragment
from lance_memwal.lance.optimize import crowded, index_parts
from lance_memwal.store import paths
from lance_memwal.table import newest_base
from lance_memwal.upkeep.pins import pinned_versions
from tests.harness.profile import scaled
from tests.kit.golden_tables import POSITIONAL_VERSIONS, pylance_table
from tests.kit.maintained import SETTINGS, flush, index_all, rows, table_with_indexes, wait_until
from tests.kit.writers import in_thread

SHARD = mw.shard_id_for(mw.Unsharded())
NOW = timedelta(0)


def fill(table: mw.Table, generations: int, first: int = 1_000) -> None:
    """Generations of ten rows each, compacted one by one: as many base files."""
    with table.shard_writer(SHARD, **SETTINGS) as writer:
        for number in range(generations):
            writer.put(rows(range(first + 10 * number, first + 10 * number + 10)))
            flush(writer)
            table.compact()


def age_log(table: mw.Table, seconds: float) -> None:
    """As if nothing, no entry and no manifest, had come for so long."""
    then = time.time() - seconds
    for path in (Path(table.uri) / paths.MEM_WAL_DIR).rglob("*"):
        os.utime(path, (then, then))


def ids(table: mw.Table) -> list[int]:
    return sorted(int(row) for row in table.scan(columns=["id"]).to_table()["id"].to_pylist())


# ----------------------------------------------------------------------------------------------------------- one call


def test_one_call_leaves_one_file_one_part_per_index_and_no_garbage(tmp_path: Path) -> None:
    table = table_with_indexes(tmp_path)
    fill(table, 9)
    lance.dataset(table.uri).optimize.optimize_indices(num_indices_to_merge=0)
    fill(table, 9, first=3_000)
    before = ids(table)
    steps: list[tuple[str, int, int]] = []
    report = table.maintain(versions=NOW, grace_seconds=0, progress=lambda *told: steps.append(told))
    assert ids(table) == before
    assert ids(mw.open_table(table.uri)) == before
    stats = table.stats()
    assert (stats.base_fragments, stats.uncompacted_generations, stats.waiting_for_indexes) == (1, 0, {})
    assert index_parts(newest_base(table)) == {"n_btree": 1, "t_fts": 1, "v_ann": 1}
    assert report.indexes == ("n_btree", "t_fts", "v_ann")
    assert (report.files_removed, report.files_added) == (19, 1)
    assert report.versions_removed > 20
    assert len(lance.dataset(table.uri).versions()) == 1
    assert report.garbage.count("sstable") > 0
    assert report.postponed == {}
    assert [told for told in steps if told[0] == "maintenance steps"] == [
        ("maintenance steps", n, 6) for n in range(1, 7)
    ]
    assert table.verify().ok
    lance.dataset(table.uri).validate()
    for number in (1_005, 3_055, 50):
        assert table.search(text=f"number{number}", k=1)["id"].to_pylist() == [number]


def test_a_second_call_has_nothing_to_do_and_commits_nothing(tmp_path: Path) -> None:
    table = table_with_indexes(tmp_path)
    fill(table, 9)
    table.maintain(versions=NOW, grace_seconds=0)
    version, objects = newest_base(table).version, table.stats().objects
    report = table.maintain(versions=NOW, grace_seconds=0)
    assert (newest_base(table).version, table.stats().objects) == (version, objects)
    assert (report.indexes, report.files_removed, report.versions_removed) == ((), 0, 0)
    assert report.compaction.generations == report.flushed.generations == len(report.garbage.objects) == 0


@pytest.mark.parametrize("flushed", [True, False])
def test_maintain_moves_rows_of_a_live_writer_without_fencing_it(tmp_path: Path, flushed: bool) -> None:
    table = table_with_indexes(tmp_path)
    with table.shard_writer(SHARD, **SETTINGS) as writer:
        writer.put(rows([5_000]))
        if flushed:
            flush(writer)
        else:
            age_log(table, 100_000)
        report = table.maintain()
        assert report.compaction.generations == 1
        assert report.flushed.skipped == report.compaction.in_log_only == {}
        assert table.stats().waiting_for_indexes == {}
        assert lance.dataset(table.uri).count_rows() == 101
        writer.put(rows([5_001]))
    assert table.count_rows() == 102


def test_deferred_indexes_keep_what_they_need(tmp_path: Path) -> None:
    table = table_with_indexes(tmp_path)
    fill(table, 9)
    waiting = table.stats().waiting_for_indexes
    report = table.maintain(indexes="defer", versions=None, grace_seconds=0)
    assert report.indexes == ()
    assert report.compaction.waiting_for_indexes == table.stats().waiting_for_indexes == waiting != {}
    assert report.versions_removed == 0
    before = ids(table)
    table.maintain(base_files=False)
    assert table.stats().waiting_for_indexes == {}
    assert table.stats().base_fragments >= 2
    assert ids(table) == before


def test_tables_without_indexes_and_append_only_ones_are_maintained(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), rows(range(10)), writer_defaults=SETTINGS)
    for _ in range(9):
        with table.writer(compaction=None) as writer:
            writer.put(rows(range(10)))
        table.compact()
    report = table.maintain(versions=NOW, grace_seconds=0)
    assert (report.files_removed, report.files_added, report.indexes) == (10, 1, ())
    assert table.count_rows() == 100


# -------------------------------------------------------------------------------------------------- logs left behind


def test_only_logs_older_than_twice_the_age_of_a_memtable_are_claimed(tmp_path: Path) -> None:
    table = mw.create_table(
        str(tmp_path / "t"),
        rows(range(3)),
        primary_key="id",
        writer_defaults={**SETTINGS, "max_memtable_age_ms": 60_000},
    )
    writer = table.shard_writer()
    writer.put(rows([10, 11]))
    writer.abort()
    for seconds, flushed in [(0, 0), (110, 0), (130, 2)]:
        age_log(table, seconds)
        report = table.maintain()
        assert report.flushed.rows == flushed
        assert list(report.flushed.skipped) == ([] if flushed else [writer.shard_id])
        assert lance.dataset(table.uri).count_rows() == 3 + flushed


# ----------------------------------------------------------------------------------------------------------- versions


def test_tagged_and_young_versions_stay(tmp_path: Path) -> None:
    table = table_with_indexes(tmp_path)
    fill(table, 3)
    dataset = lance.dataset(table.uri)
    tagged = [int(item["version"]) for item in dataset.versions()][2]
    dataset.tags.create("keep", tagged)
    rows_then = lance.dataset(table.uri, version=tagged).count_rows()
    assert pinned_versions(newest_base(table)) == {tagged, newest_base(table).version}
    assert table.maintain(versions=timedelta(hours=1)).versions_removed == 0
    report = table.maintain(versions=NOW)
    assert report.versions_removed > 0
    left = [int(item["version"]) for item in lance.dataset(table.uri).versions()]
    assert left == [tagged, newest_base(table).version]
    assert lance.dataset(table.uri, version=tagged).to_table().num_rows == rows_then


def test_files_of_a_compaction_under_way_are_not_taken_for_old_ones(tmp_path: Path) -> None:
    table = table_with_indexes(tmp_path)
    fill(table, 2)
    ahead = [
        Path(table.uri) / name for name in ("data/ahead.lance", "_deletions/0-1-2.bin", "_transactions/9-ahead.txn")
    ]
    for path in ahead:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"of a version that is still to come")
    table.maintain(versions=NOW, grace_seconds=0)
    assert all(path.exists() for path in ahead)


# --------------------------------------------------------------------------------------------------- beside others


@pytest.mark.parametrize("stable", [True, False], ids=["stable row ids", "addresses"])
def test_maintenance_beside_writers_compactors_and_itself_loses_nothing(tmp_path: Path, stable: bool) -> None:
    uri = str(tmp_path / "t")
    dataset = lance.write_dataset(rows(range(100)), uri, enable_stable_row_ids=stable)
    dataset.create_scalar_index("n", "BTREE", name="n_btree")
    table = mw.enable(uri, primary_key="id", writer_defaults={**SETTINGS, "max_memtable_rows": 30})
    done = threading.Event()

    def repeat(work: Callable[[], Any]) -> None:
        while not done.is_set():
            work()

    works: list[Callable[[], Any]] = [
        lambda: mw.open_table(uri).maintain(versions=timedelta(seconds=5), grace_seconds=5),
        lambda: mw.open_table(uri).maintain(indexes="defer", versions=None),
        lambda: mw.open_table(uri).compact(),
    ]
    threads = [in_thread(partial(repeat, work)) for work in works]
    with table.writer(compaction=None) as writer:
        for number in range(30):
            writer.put(rows(range(90 + 10 * number, 110 + 10 * number)))
            if number % 10 == 9:
                assert ids(table) == list(range(110 + 10 * number))
    done.set()
    for thread in threads:
        thread.result(60)
    table.maintain(versions=NOW, grace_seconds=0)
    assert ids(table) == list(range(400))
    assert lance.dataset(uri).count_rows() == 400
    assert table.scan(filter="n = 3").count_rows() == 40
    assert table.verify().ok


def test_indexes_know_rows_by_ids_that_stay_by_their_newest_values_alone(tmp_path: Path) -> None:
    """An index of several parts would find such a row by what it was before, too (seen with pylance 14.0.2)."""
    uri = str(tmp_path / "t")
    dataset = lance.write_dataset(rows(range(100)), uri, enable_stable_row_ids=True)
    index_all(dataset)
    dataset.create_scalar_index("x", "BITMAP", name="x_bitmap")
    table = mw.enable(uri, primary_key="id", writer_defaults=SETTINGS)
    for number in range(1, 4):
        with table.writer(compaction=None) as writer:
            other = rows(range(1_000 * number, 1_000 * number + 20))
            writer.put(other.set_column(0, other.schema.field(0), pa.array(range(20))))
        table.maintain(versions=NOW, grace_seconds=0)
        plain = lance.dataset(uri)
        for base in range(0, 1_000 * number, 1_000):
            assert plain.to_table(filter=f"x = {(base + 7) / 4}").num_rows == 0
            assert table.scan(filter=f"x = {(base + 7) / 4}").count_rows() == 0
            assert plain.to_table(full_text_query={"columns": ["t"], "query": f"number{base + 7}"}).num_rows == 0
            assert table.search(text=f"number{base + 7}", column="t").num_rows == 0
        assert table.search(text=f"number{1_000 * number + 7}", column="t")["id"].to_pylist() == [7]
        assert table.stats().waiting_for_indexes == {}
        assert table.maintain(versions=None).indexes == ()


def test_the_background_of_a_writer_brings_indexes_up_to_date(tmp_path: Path) -> None:
    table = table_with_indexes(tmp_path)
    policy = mw.CompactionPolicy(max_generations=1, max_waiting_generations=2, check_interval_seconds=0.05)
    with table.writer(compaction=policy, **SETTINGS) as writer:
        for number in range(4):
            writer.put(rows([7_000 + number]))
            writer.flush()

        def is_caught_up() -> bool:
            return sum(len(shard.generations) for shard in table.shards()) < 2

        assert wait_until(is_caught_up, 30)
        assert max(table.details().index_catchup.get("v_ann", {}).values(), default=0) >= 2
    assert table.count_rows() == 104


# ------------------------------------------------------------------------------------------------------ what is chosen


def _fragment(number: int, rows: int, deleted: int = 0) -> Fragment:
    return Fragment(number, (), DeletionFile(0, 1, 1, deleted) if deleted else None, rows)


def test_small_files_of_a_size_are_rewritten_and_big_ones_are_left() -> None:
    def chosen(*sizes: int) -> list[int]:
        return sorted(crowded([_fragment(number, size) for number, size in enumerate(sizes)]))

    assert chosen() == chosen(10) == chosen(*[10] * 7) == []
    assert chosen(*[10] * 8) == list(range(8))
    assert chosen(2_000, *[100] * 8) == list(range(1, 9))
    assert chosen(1_500, *[100] * 8) == list(range(9))
    assert chosen(2 << 20, *[100] * 8) == list(range(1, 9))
    assert sorted(crowded([_fragment(0, 1_000, 99), _fragment(1, 1_000, 100), _fragment(2, 2 << 20, 1 << 20)])) == [
        1,
        2,
    ]


def test_a_row_is_rewritten_a_logarithm_of_times() -> None:
    fragments, written, number = [_fragment(0, 1_000)], 0, 1
    for _ in range(2_000):
        fragments.append(_fragment(number, 10))
        number += 1
        worth = crowded(fragments)
        if worth:
            total = sum(f.physical_rows for f in fragments if f.id in worth)
            written += total
            fragments = [f for f in fragments if f.id not in worth] + [_fragment(number, total)]
            number += 1
    assert len(fragments) < 24
    assert written < 8 * 20_000


@pytest.mark.parametrize(
    "wrong",
    [
        {"indexes": "never"},
        {"base_files": 1},
        {"versions": 3},
        {"versions": timedelta(-1)},
        {"grace_seconds": -1},
        {"progress": 3},
    ],
)
def test_wrong_options_are_refused_before_anything_is_done(tmp_path: Path, wrong: Any) -> None:
    table = table_with_indexes(tmp_path)
    version = newest_base(table).version
    with pytest.raises(mw.InvalidInputError):
        table.maintain(**wrong)
    assert newest_base(table).version == version


CHILD = """
import sys
from datetime import timedelta
import lance_memwal as mw
table = mw.open_table(sys.argv[1])
print("ready", flush=True)
while True:
    table.maintain(versions=timedelta(0), grace_seconds=0)
"""


@pytest.mark.scaled
def test_a_killed_maintenance_loses_nothing(tmp_path: Path) -> None:
    table, number = table_with_indexes(tmp_path), 1_000
    expected = set(range(100))
    chance = random.Random(7)
    for _ in range(scaled(ci=2, prove=60)):
        with table.shard_writer(SHARD, **SETTINGS) as writer:
            for _ in range(scaled(ci=4, prove=10)):
                writer.put(rows(range(number, number + 5)))
                writer.delete([number])
                flush(writer)
                expected |= set(range(number + 1, number + 5))
                number += 5
        child = subprocess.Popen([sys.executable, "-c", CHILD, table.uri], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(chance.uniform(0, 0.6))  # the moment is what is tried
        child.kill()
        child.wait()
        child.stdout.close()
        assert set(table.scan(columns=["id"]).to_table()["id"].to_pylist()) == expected
        assert table.verify().ok
        table.compact()  # one file per round and more
    report = table.maintain()
    assert report.postponed == {}
    assert table.stats().waiting_for_indexes == {}
    assert lance.dataset(table.uri).count_rows() == len(expected)
    assert table.search(text=f"number{number - 1}", k=1)["id"].to_pylist() == [number - 1]
    lance.dataset(table.uri).validate()


def stored_bytes(table: mw.Table, shard: str, generation: int) -> int:
    """The bytes of all files of one generation."""
    (directory,) = (Path(table.uri) / "_mem_wal" / shard).glob(f"*_gen_{generation}")
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())


def check(table: mw.Table) -> int:
    """All sizes of the table's SSTables are those of their files; returns their sum."""
    stats, infos = table.stats(), {info.shard_id: info for info in table.shards()}
    for shard in stats.shards:
        stored = [one for one in shard.generations if one.tier in ("sstable", "compacted")]
        sizes = {one.generation: stored_bytes(table, shard.shard_id, one.generation) for one in stored}
        assert {one.generation: one.size_bytes for one in stored} == sizes
        assert shard.sstable_bytes == infos[shard.shard_id].bytes == sum(sizes.values())
        assert shard.uncompacted_bytes == sum(sizes[one.generation] for one in stored if one.tier == "sstable")
    return sum(shard.sstable_bytes for shard in stats.shards)


def test_sizes_of_small_sstables_are_those_of_their_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
    table = mw.create_table(str(tmp_path / "t"), schema, primary_key="id", writer_defaults={"fsync": False})
    writer = table.writer(compaction=None)
    for first in (0, 1, 2):
        writer.put([{"id": first, "v": 1}])
        writer.flush()
    writer.put([{"id": 9, "v": 9}])
    small = check(table)
    memory = table.stats().shards[0].generations
    assert [one.in_memory_bytes is not None for one in memory] == [True] * 4
    assert small > 10 * sum(one.in_memory_bytes or 0 for one in memory[:3])
    assert memory[3].size_bytes is None

    shard, metrics = table.shards()[0].shard_id, table.location.metrics
    metrics.reset()
    table.shards()
    assert metrics.snapshot()["list"].count == 1
    sizes = [stored_bytes(table, shard, generation) for generation in (1, 2, 3)]
    report = table.compact(max_generations=2)
    assert report.size_bytes == sum(sizes[:2])
    assert table.stats().uncompacted_bytes == sizes[2]
    check(table)
    assert main(["stats", table.uri, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["shards"][0]["uncompacted_bytes"] == sizes[2]
    writer.close()


@pytest.mark.parametrize("version", [POSITIONAL_VERSIONS[-1], "14.0.2"])
def test_sizes_of_generations_of_pylance_are_those_of_their_files(tmp_path: Path, version: str) -> None:
    table = mw.open_table(pylance_table(version, "gap", tmp_path))
    assert check(table) > 0
