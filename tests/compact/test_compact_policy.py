"""Compaction that starts by itself, tails of idle shards, and generations that wait for every maintained index."""

from __future__ import annotations

import gc
import logging
import shutil
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.file import LanceFileWriter

import lance_memwal as mw
from lance_memwal.clock import SYSTEM_CLOCK
from lance_memwal.compact.policy import CHECKS_PER_BASE_LOOK, DEFAULT_COMPACTION, Background, due_shards
from lance_memwal.errors import CorruptDataError, ObjectNotFoundError
from lance_memwal.lance.deletions import encode_deletions
from lance_memwal.lance.identity import TableWatch
from lance_memwal.rows.schema import TableSchema
from lance_memwal.sstable.catch_up import CatchUp
from lance_memwal.sstable.fold import Generation
from lance_memwal.sstable.read import SsTableReader
from lance_memwal.sstable.stored_rows import DataFile
from lance_memwal.store import paths
from lance_memwal.table import newest_base
from lance_memwal.types import SsTable
from tests.kit.far_stores import far
from tests.kit.maintained import DIM, SETTINGS, flush, rows, table_with_indexes
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


def test_failing_compaction_is_logged_and_retried(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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
        [shard] = set(writer.stats())

    def shards() -> dict[str, int]:
        checks["made"] += 1
        return {shard: checks["published"]}

    watch, interval = TableWatch(newest_base(table)), 0.005
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
    found = due_shards(table.location, newest_base(table), policy, SYSTEM_CLOCK)
    assert bool(found) is due
    table.compact()
    assert due_shards(table.location, newest_base(table), policy, SYSTEM_CLOCK) == []


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


SHARD = "aa48498d-ac91-59e2-8452-69f46010ace2"


@pytest.fixture
def table(tmp_path: Path) -> mw.Table:
    return make(tmp_path / "t")


def crash(table: mw.Table, *ids: int) -> None:
    writer = table.writer(compaction=None)
    writer.put({"id": list(ids), "v": ["x"] * len(ids)})
    writer.abort()


def test_a_crashed_writer_s_tail_becomes_a_generation(table: mw.Table) -> None:
    crash(table, 1, 2, 3)
    report = table.flush(idle_seconds=0)
    assert (report.rows, report.generations, report.skipped) == (3, 1, {})
    info = table.shards()[0]
    assert (info.generations, info.wal_tail) == ((1,), 1)  # the mark by which it left its epoch to sinks
    assert sorted(table.scan(consistency="flushed").to_table()["id"].to_pylist()) == [1, 2, 3]


def test_a_tail_of_a_log_only_writer_becomes_generations_as_numbered(table: mw.Table) -> None:
    writer = table.shard_writer(enable_memtable=False, max_memtable_rows=2)
    for number in range(5):
        writer.put({"id": [number], "v": ["x"]})
    writer.close()
    report = table.flush(idle_seconds=0)
    assert (report.rows, report.shards[0].generations) == (5, (1, 2, 3))
    table.compact()
    assert table.dataset.count_rows() == 5


def test_only_old_and_named_shards_are_flushed_and_unknown_ones_are_refused(table: mw.Table) -> None:
    crash(table, 1)
    report = table.flush()
    assert list(report.skipped) == [SHARD]
    assert "seconds old" in report.skipped[SHARD]
    assert table.shards()[0].epoch == 1
    with pytest.raises(mw.InvalidInputError, match="no shard"):
        table.flush(shards=["00000000-0000-4000-8000-000000000000"])
    assert table.flush(shards=[SHARD], idle_seconds=0).rows == 1


def test_a_writer_of_this_process_is_not_fenced_unless_forced(table: mw.Table) -> None:
    with table.writer(compaction=None) as writer:
        writer.put({"id": [1], "v": ["x"]})
        report = table.flush(idle_seconds=0)
        assert "writer of this process" in report.skipped[SHARD]
        writer.put({"id": [2], "v": ["y"]})
        assert table.flush(force=True).rows == 2
        with pytest.raises(mw.FencedError):
            writer.put({"id": [3], "v": ["z"]})
        writer.abort()


def test_a_shard_without_rows_in_its_tail_is_not_claimed(table: mw.Table) -> None:
    with table.writer(compaction=None) as writer:
        writer.put({"id": [1], "v": ["x"]})
    for _ in range(2):
        table.shard_writer(SHARD).abort()  # leaves a sentinel
    epoch = table.shards()[0].epoch
    assert table.flush(idle_seconds=0, force=True).shards == ()
    assert table.shards()[0].epoch == epoch


ALL = ["n_btree", "t_fts", "v_ann"]


def compacted(place: Path, maintained: Any = "all", generations: int = 2) -> mw.Table:
    """A table with generations of ten rows that are in the base table and not in its indexes."""
    table = table_with_indexes(place, maintained)
    with table.shard_writer(mw.shard_id_for(mw.Unsharded()), **SETTINGS) as writer:
        for number in range(generations):
            writer.put(rows(range(200 + 10 * number, 210 + 10 * number)))
            flush(writer)
    table.compact()
    return table


def listed(table: mw.Table) -> list[int]:
    return [generation for shard in table.shards() for generation in shard.generations]


@pytest.mark.parametrize(
    ("maintained", "waits"),
    [("all", ALL), (["t_fts"], ["t_fts"]), (None, []), (["n_btree", "v_ann"], ["n_btree", "v_ann"])],
)
def test_generations_wait_for_maintained_indexes_only(tmp_path: Path, maintained: Any, waits: list[str]) -> None:
    table = compacted(tmp_path, maintained)
    assert table.stats().waiting_for_indexes == dict.fromkeys(waits, 2)
    assert listed(table) == ([1, 2] if waits else [])
    report = table.gc(grace_seconds=0)
    assert report.waiting == (2 if waits else 0)
    assert (report.count("sstable") == 0) is bool(waits)
    lance.dataset(table.uri).optimize.optimize_indices()
    assert table.compact().waiting_for_indexes == {}
    assert listed(table) == []
    table.gc(grace_seconds=0)
    assert table.count_rows() == 120


def test_one_index_that_lags_keeps_what_the_others_have(tmp_path: Path) -> None:
    table = compacted(tmp_path)
    lance.dataset(table.uri).optimize.optimize_indices(index_names=["n_btree", "t_fts"])
    report = table.compact()
    assert report.waiting_for_indexes == {"v_ann": 2}
    assert "2 kept until index v_ann has their rows" in table.scan().explain()
    assert "t_fts" not in table.scan().explain()
    lance.dataset(table.uri).drop_index("v_ann")  # what is gone holds nothing back
    assert table.compact().waiting_for_indexes == {}
    assert listed(table) == []


def test_the_rule_is_the_smallest_of_the_marks(tmp_path: Path) -> None:
    marks = CatchUp({"a": 7, "b": 3}, {"i": {"a": 5, "b": 9}, "j": {"a": 6}})
    assert (marks.through("a"), marks.through("b"), marks.through("c")) == (5, 0, 0)
    assert CatchUp({"a": 7}, {}).through("a") == 7


def test_kept_generations_are_not_read_twice_and_hide_no_newer_base_row(tmp_path: Path) -> None:
    table = compacted(tmp_path)
    assert listed(table) == [1, 2]
    lance.dataset(table.uri).update({"t": "'changed by lance'", "n": "77"}, where="id = 205")
    lance.dataset(table.uri).delete("id = 206")
    for reader in (table, mw.open_table(table.uri)):
        assert reader.count_rows() == 119
        found = reader.get(205)
        assert found is not None
        assert (found["t"], found["n"]) == ("changed by lance", 77)
        assert reader.get(206) is None
        assert reader.lookup([205, 206, 207])["id"].to_pylist() in ([205, 207], [207, 205])
        assert reader.scan(filter="n = 77").to_table()["id"].to_pylist() == [205]
        assert reader.search(text="changed", k=5)["id"].to_pylist() == [205]
        assert reader.search(text="number205", k=5).num_rows == 0
        assert reader.search(vector=np.eye(DIM)[0] * 206, k=2)["id"].to_pylist() in ([205, 207], [207, 205])
    with table.shard_writer(mw.shard_id_for(mw.Unsharded()), **SETTINGS) as writer:
        writer.put(rows([206]))
        flush(writer)
    table.compact()
    assert table.count_rows() == lance.dataset(table.uri).count_rows() == 120
    assert table.verify().ok


def test_append_only_rows_that_wait_for_an_index_count_once(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    lance.write_dataset(rows(range(50)), uri).create_scalar_index("n", "BTREE", name="n_btree")
    table = mw.enable(uri, writer_defaults={"fsync": False})
    for _ in range(3):
        with table.writer(compaction=None) as writer:
            writer.put(rows(range(10)))
        table.compact()
    assert listed(table) == [1, 2, 3]
    assert table.count_rows() == lance.dataset(uri).count_rows() == 80
    assert mw.open_table(uri).scan(filter="n = 1").count_rows() == 5 + 3
    table.gc(grace_seconds=0, optimize_indices=True)
    assert listed(table) == []
    assert table.count_rows() == 80


def test_deletes_alone_wait_for_the_indexes_and_are_let_go(tmp_path: Path) -> None:
    table = table_with_indexes(tmp_path)
    with table.shard_writer(mw.shard_id_for(mw.Unsharded()), **SETTINGS) as writer:
        writer.delete([1, 2, 3])
        flush(writer)
    assert table.compact().waiting_for_indexes == dict.fromkeys(ALL, 1)
    lance.dataset(table.uri).optimize.optimize_indices()
    assert table.compact().waiting_for_indexes == {}
    assert (listed(table), table.count_rows()) == ([], 97)


@pytest.mark.parametrize("stable", [True, False], ids=["stable row ids", "addresses"])
def test_tables_of_either_kind_of_row_id_catch_up(tmp_path: Path, stable: bool) -> None:
    uri = str(tmp_path / "t")
    lance.write_dataset(rows(range(50)), uri, enable_stable_row_ids=stable).create_scalar_index(
        "n", "BTREE", name="n_btree"
    )
    table = mw.enable(uri, primary_key="id", writer_defaults={"fsync": False})
    with table.writer(compaction=None) as writer:
        writer.put(rows(range(40, 60)))
    assert table.compact().waiting_for_indexes == {"n_btree": 1}
    table.gc(grace_seconds=0, optimize_indices=True)
    assert (listed(table), table.count_rows(), table.stats().waiting_for_indexes) == ([], 60, {})


def test_verify_looks_at_generations_that_are_kept_for_an_index(tmp_path: Path) -> None:
    table = compacted(tmp_path)
    shard = table.shards()[0].shard_id
    (first, *_) = sorted((Path(table.uri) / "_mem_wal" / shard).glob("*_gen_1"))
    shutil.rmtree(first)
    report = table.verify()
    assert [problem.invariant for problem in report.problems] == ["V-8"]
    assert "Table.maintain" in report.problems[0].remedy
    assert table.count_rows() == 120  # our own reads do not need it
    table.maintain()
    assert table.verify().ok
    assert (table.count_rows(), table.stats().waiting_for_indexes) == (120, {})


class Made:
    """One generation with keys 0 to 9, of which 3 and 4 were put twice and 5 was deleted."""

    def __init__(self, place: Path, schema: pa.Schema = SCHEMA) -> None:
        self.table = mw.create_table(str(place), schema, primary_key="id", sharding=mw.Unsharded())
        with self.table.writer(compaction=None, fsync=False) as writer:
            writer.put({"id": range(10), "v": ["a"] * 10})
            writer.put({"id": [3, 4], "v": ["b"] * 2})
            writer.delete([5])
        self.shard_id = self.table.shards()[0].shard_id
        manifest = mw.ShardManifestStore(str(place), self.shard_id).read_latest()
        assert manifest is not None
        self.sstable: SsTable = manifest.sstables[0]
        self.directory = place / paths.sstable_dir(self.shard_id, self.sstable.path)

    @property
    def schema(self) -> TableSchema:
        return newest_base(self.table).columns

    def reader(self) -> SsTableReader:
        return SsTableReader(self.table.location, self.shard_id, self.sstable)

    def file(self) -> DataFile | None:
        return self.reader().stored.data_file

    def rows(self) -> list[tuple[int, str, bool]]:
        generation = Generation(self.reader(), self.schema, keep=True)
        generation.load()
        batches = [batch for batch, _ in generation.chosen(None)]
        table = pa.Table.from_batches(batches)
        flags = generation.flags.tolist()
        return sorted(zip(table["id"].to_pylist(), table["v"].to_pylist(), flags, strict=True))


EXPECTED = sorted(
    [(k, "a", False) for k in (0, 1, 2, 6, 7, 8, 9)] + [(3, "b", False), (4, "b", False), (5, None, True)]
)


@pytest.mark.parametrize("batch_rows", [1, 2, 5, 13, 1000])
def test_replaced_rows_are_left_out_in_batches_of_any_size(tmp_path: Path, batch_rows: int) -> None:
    made = Made(tmp_path / "t")
    file = made.file()
    assert file is not None
    assert file.physical_rows == 13
    parts = list(made.reader().batches(made.schema, ["id"], None, batch_rows))
    found = pa.Table.from_batches([batch for batch, _ in parts])
    assert sorted(found["id"].to_pylist()) == list(range(10))
    assert found.schema.names == ["id", "_tombstone"]
    offsets = np.concatenate([offsets for _, offsets in parts]).tolist()
    assert offsets == [0, 1, 2, *range(6, 13)]
    assert max(batch.num_rows for batch, _ in parts) <= batch_rows


def test_the_newest_version_counts_and_rows_are_the_same_by_both_ways(tmp_path: Path) -> None:
    made = Made(tmp_path / "t")
    assert made.file() is not None
    assert made.rows() == EXPECTED
    lance.dataset(made.directory).delete("id = 9")
    assert made.rows() == EXPECTED[:-1]


def test_a_version_whose_name_is_not_known_is_left_to_lance(tmp_path: Path) -> None:
    made = Made(tmp_path / "t")
    (manifest,) = (made.directory / "_versions").glob("*.manifest")
    manifest.rename(manifest.with_name("1.manifest"))  # as datasets named them that were created long ago
    assert made.file() is None
    assert made.rows() == EXPECTED


def test_a_dictionary_column_is_left_to_lance(tmp_path: Path) -> None:
    kind = pa.dictionary(pa.int32(), pa.string())
    made = Made(tmp_path / "t", pa.schema([("id", pa.int64()), ("v", kind)]))
    assert made.file() is None
    assert made.rows() == EXPECTED


def test_two_fragments_are_left_to_lance(tmp_path: Path) -> None:
    made = Made(tmp_path / "t")
    more = pa.table({"id": [50], "v": ["c"], "_tombstone": [False]}, schema=lance.dataset(made.directory).schema)
    lance.write_dataset(more, made.directory, mode="append")
    assert made.file() is None
    assert made.rows() == sorted([*EXPECTED, (50, "c", False)])


@pytest.mark.parametrize("offsets", [[3], [3, 4, 5, 6], [3, 13]])
def test_a_deletion_vector_that_contradicts_the_manifest_is_corrupt(tmp_path: Path, offsets: list[int]) -> None:
    made = Made(tmp_path / "t")
    (vector,) = (made.directory / "_deletions").glob("*.bin")
    vector.write_bytes(encode_deletions(np.array(offsets)))
    with pytest.raises(CorruptDataError) as caught:
        made.rows()
    assert caught.value.path is not None
    assert caught.value.path.endswith(".bin")


def test_a_data_file_with_another_number_of_rows_is_corrupt(tmp_path: Path) -> None:
    made = Made(tmp_path / "t")
    (path,) = (made.directory / "data").iterdir()
    rows = lance.dataset(made.directory).to_table()
    with LanceFileWriter(str(path), rows.schema) as writer:
        writer.write_batch(rows)
    with pytest.raises(CorruptDataError, match="10 rows where 13 are listed"):
        made.rows()


@pytest.mark.parametrize("part", ["_versions", "data", "_deletions"])
def test_a_generation_of_which_a_part_was_collected_is_gone(tmp_path: Path, part: str) -> None:
    made = Made(tmp_path / "t")
    for path in (made.directory / part).iterdir():
        path.unlink()
    with pytest.raises(ObjectNotFoundError):
        made.rows()
