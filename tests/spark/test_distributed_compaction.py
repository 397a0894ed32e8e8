"""Distributed compaction is single-process compaction, row for row, whatever else happens to the table meanwhile."""

import random
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
import lance_memwal.spark as ms
from lance_memwal import crash_points
from lance_memwal.errors import InvalidInputError
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.marks import COUNTER_SHARD, recorded
from lance_memwal.log.shards import newest_manifests
from lance_memwal.process.cache import CACHE
from lance_memwal.spark.distributed import is_big
from lance_memwal.spark.stages import Job, Look, Superseded, delete_superseded
from lance_memwal.store.location import resolve
from tests.harness.points import run_once_at
from tests.harness.profile import scaled
from tests.kit.spark import KEYS, KINDS, Story, Tasks, as_rows, compact_by_tasks, schema_of, staged


def marks(uri: str) -> dict[str, int]:
    return recorded(BaseTable.need(resolve(uri)))


def test_stage_b_deletes_the_rows_whose_keys_sidecars_list_and_reads_these_once(tmp_path: Path) -> None:
    story = Story(tmp_path / "t", "number")
    story.base(range(64), rows_per_file=16)
    with story.table.writer(compaction=None) as writer:
        for numbers in ([3, 17], [40, 41, 200]):
            story.put(writer, numbers)
            writer.flush()
        story.delete(writer, [62])
    CACHE.clear()
    location = resolve(story.uri)
    members = [(manifest.shard_id, sstable) for manifest in newest_manifests(location) for sstable in manifest.sstables]
    job, look = Job(story.uri, 1 << 20, False), Look(BaseTable.need(location).version, tuple(members))

    def deleted(fragment: int) -> int:
        answer = Superseded.decode(delete_superseded(job, look, str(fragment)))
        return answer.deletion.num_deleted_rows if answer.deletion else 0

    assert deleted(0) == 1
    for sidecar in Path(story.uri).rglob("_pk_index"):
        shutil.rmtree(sidecar)
    assert [deleted(fragment) for fragment in (1, 2, 3)] == [1, 2, 1]


# ---------------------------------------------------------------------------------------------------- the same result


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_rows_and_marks_are_those_of_one_process(tmp_path: Path, kind: str, seed: int) -> None:
    story = Story(tmp_path / "a", kind, seed)
    story.base()
    story.base_deletes([3, 17, 18])
    story.generations(3)
    other = story.twin(tmp_path / "b")
    single, report = other.compact(), compact_by_tasks(story.uri)
    assert as_rows(lance.dataset(other.uri).to_table()) == story.plain()
    story.check()
    assert marks(story.uri) == marks(other.uri)
    assert (report.rows_written, report.rows_deleted) == (single.rows_written, single.rows_deleted)
    assert report.shards == single.shards
    assert report.commits == 1
    story.generations(2)
    compact_by_tasks(story.uri, Tasks(attempts=2))
    story.check()


@pytest.mark.parametrize("kind", ["number", "text"])
def test_an_index_of_the_key_finds_every_row_afterwards(tmp_path: Path, kind: str) -> None:
    story = Story(tmp_path / "t", kind)
    story.base()
    lance.dataset(story.uri).create_scalar_index("id", "BTREE")
    story.base_deletes([5])
    story.generations(2, rows=40)
    compact_by_tasks(story.uri)
    story.check()
    dataset = lance.dataset(story.uri)
    for number in range(KEYS + 20):
        wanted = story._key(number)
        found = dataset.to_table(filter=f"id = {wanted['id']!r}").to_pylist()
        expected = story.rows.get(repr(story._identity(wanted)))
        assert found == ([] if expected is None else [expected])
    dataset.optimize.optimize_indices()
    story.check()


def test_fragments_of_which_no_row_is_left_go(tmp_path: Path) -> None:
    story = Story(tmp_path / "t", "number")
    story.base(range(64), rows_per_file=16)
    with story.table.writer(compaction=None) as writer:
        story.delete(writer, range(16))
        story.put(writer, range(16, 32))
        story.delete(writer, [40])
    tasks = Tasks()
    compact_by_tasks(story.uri, tasks)
    story.check()
    assert [len(call) for call in tasks.calls] == [3, 4]
    fragments = {f.fragment_id: f.num_deletions for f in lance.dataset(story.uri).get_fragments()}
    assert fragments.keys().isdisjoint({0, 1})
    assert (fragments[2], fragments[3]) == (1, 0)


def test_deletes_alone_and_an_empty_base_table(tmp_path: Path) -> None:
    story = Story(tmp_path / "t", "number")
    with story.table.writer(compaction=None) as writer:
        story.put(writer, range(10))
    compact_by_tasks(story.uri)
    story.check()
    with story.table.writer(compaction=None) as writer:
        story.delete(writer, range(0, 10, 2))
    assert compact_by_tasks(story.uri).rows_deleted == 5
    story.check()
    assert compact_by_tasks(story.uri).commits == 0


def test_a_table_that_does_not_fit_the_memory_is_compacted_in_several_commits(tmp_path: Path) -> None:
    story = Story(tmp_path / "t", "number")
    story.base()
    story.generations(3)
    report = compact_by_tasks(story.uri, memory_bytes=1)
    assert report.commits > 3
    story.check()


def test_a_bounded_run_leaves_the_rest_for_the_next_one(tmp_path: Path) -> None:
    story = Story(tmp_path / "t", "number")
    story.generations(3)
    assert compact_by_tasks(story.uri, max_generations=1).generations == 3
    assert story.shown() == story.expected
    assert set(marks(story.uri).values()) == {1}
    compact_by_tasks(story.uri)
    story.check()


def test_files_are_made_durable_where_the_table_wants_it(tmp_path: Path) -> None:
    story = Story(tmp_path / "t", "number", writer_defaults={"fsync": True})
    story.base()
    story.generations(1)
    compact_by_tasks(story.uri, fsync=True)
    story.check()


def test_a_key_that_two_manual_shards_hold_is_one_row(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = mw.create_table(
        uri, schema_of("number"), primary_key="id", sharding=mw.Manual(), allow_keys_across_shards=True
    )
    for shard, numbers in (
        ("00000000-0000-4000-8000-000000000001", [1, 2]),
        ("00000000-0000-4000-8000-000000000002", [2, 3]),
    ):
        with table.shard_writer(shard) as writer:
            writer.put([{"id": n, "v": int(shard[-1]), "note": ""} for n in numbers])
    tasks = Tasks()
    compact_by_tasks(uri, tasks)
    assert [len(call) for call in tasks.calls] == [1]
    rows = lance.dataset(uri).to_table().to_pylist()
    assert sorted((row["id"], row["v"]) for row in rows) == [(1, 1), (2, 2), (3, 2)]


# ------------------------------------------------------------------------------------------------------------ crashes


class CrashError(Exception):
    pass


def crash() -> None:
    raise CrashError


POINTS = [
    "compact.chosen",
    "compact.after_fragments",
    "compact.before_manifest",
    "compact.after_commit",
    "compact.before_trim",
]


@pytest.mark.parametrize("kind", ["number", "append"])
@pytest.mark.parametrize("point", POINTS)
def test_a_crash_anywhere_loses_and_repeats_nothing(tmp_path: Path, kind: str, point: str) -> None:
    story = Story(tmp_path / "t", kind)
    story.base()
    story.generations(2)
    happened = run_once_at(point, crash)
    with pytest.raises(CrashError):
        compact_by_tasks(story.uri)
    assert happened
    assert story.shown() == story.expected
    crash_points.install(None)
    report = compact_by_tasks(story.uri)
    story.check()
    done = POINTS.index(point) >= POINTS.index("compact.after_commit")
    assert (report.commits, report.rows_written) == (0, 0) if done else report.commits == 1


def test_after_a_crash_one_process_may_finish(tmp_path: Path) -> None:
    story = Story(tmp_path / "t", "number")
    story.base()
    story.generations(2)
    run_once_at("compact.before_manifest", crash)
    with pytest.raises(CrashError):
        compact_by_tasks(story.uri)
    crash_points.install(None)
    story.table.compact()
    story.check()


# ---------------------------------------------------------------------------------------------------------- conflicts


@pytest.mark.parametrize("kind", ["number", "append"])
@pytest.mark.parametrize("by_tasks", [False, True])
@pytest.mark.parametrize("first_does", [1, 3])
@pytest.mark.parametrize("point", ["compact.chosen", "compact.after_fragments", "compact.before_manifest"])
def test_overtaken_compaction_restarts(tmp_path: Path, kind: str, by_tasks: bool, first_does: int, point: str) -> None:
    story = Story(tmp_path / "t", kind)
    story.base()
    story.generations(3)

    def overtake() -> None:
        if by_tasks:
            compact_by_tasks(story.uri, max_generations=first_does)
        else:
            mw.open_table(story.uri).compact(max_generations=first_does)

    assert run_once_at(point, overtake) is not None
    assert compact_by_tasks(story.uri).conflicts == 1
    story.check()


@pytest.mark.parametrize(
    ("indexed", "point"),
    [
        (True, "compact.after_fragments"),
        (True, "compact.before_manifest"),
        (False, "compact.after_fragments"),
        (False, "compact.before_manifest"),
    ],
)
def test_one_process_that_tasks_overtook_starts_over(tmp_path: Path, indexed: bool, point: str) -> None:
    story = Story(tmp_path / "t", "number")
    story.base()
    if indexed:  # then one process asks the index for the rows that go
        lance.dataset(story.uri).create_scalar_index("id", "BTREE")
    story.generations(3)
    happened = run_once_at(point, lambda: compact_by_tasks(story.uri, max_generations=2))
    assert story.table.compact().conflicts == 1
    assert happened
    story.check()


def test_a_merge_that_only_inserted_is_a_conflict_too(tmp_path: Path) -> None:
    """Lance would let an `Update` follow it, and every key of it would be there twice."""
    story = Story(tmp_path / "t", "number")
    story.base(range(10))
    lance.dataset(story.uri).create_scalar_index("id", "BTREE")
    with story.table.writer(compaction=None) as writer:
        story.put(writer, range(20, 30))
    run_once_at("compact.before_manifest", lambda: mw.open_table(story.uri).compact())
    assert compact_by_tasks(story.uri).conflicts == 1
    story.check()


def _few_changes(story: Story) -> None:
    story.base_deletes([21, 22])
    story.base([200, 201])


@pytest.mark.parametrize(
    ("change", "again"),
    [
        (_few_changes, []),  # the driver itself looks at the two changed fragments
        (lambda story: story.base(range(200, 220), rows_per_file=1), [list(range(4, 24))]),
    ],
    ids=["few", "many"],
)
def test_after_changes_of_the_base_only_changed_fragments_are_looked_at_again(
    tmp_path: Path, change: Callable[[Story], None], again: list[list[int]]
) -> None:
    story = Story(tmp_path / "t", "number")
    story.base(range(64), rows_per_file=16)
    with story.table.writer(compaction=None) as writer:
        story.put(writer, [1, 20, 40, 100])
    run_once_at("compact.before_manifest", lambda: change(story))
    tasks = Tasks()
    assert compact_by_tasks(story.uri, tasks).conflicts == 1
    assert [list(map(int, call)) for call in tasks.calls[1:]] == [[0, 1, 2, 3], *again]
    story.check()


def test_an_index_and_a_column_that_appear_meanwhile_are_kept(tmp_path: Path) -> None:
    story = Story(tmp_path / "t", "number")
    story.base()
    story.generations(2)
    run_once_at("compact.before_manifest", lambda: lance.dataset(story.uri).create_scalar_index("id", "BTREE"))
    assert compact_by_tasks(story.uri).conflicts == 1
    story.check()
    story.generations(1)
    run_once_at("compact.before_manifest", lambda: lance.dataset(story.uri).add_columns(pa.field("more", pa.int32())))
    tasks = Tasks()
    assert compact_by_tasks(story.uri, tasks).conflicts == 1
    assert len([call for call in tasks.calls if "members" in call[0]]) == 2  # rows get the columns of the base
    assert [index.name for index in lance.dataset(story.uri).describe_indices()].count("id_idx") == 1
    shown = lance.dataset(story.uri).to_table()
    assert shown.column("more").null_count == shown.num_rows
    assert as_rows(shown.drop_columns(["more"])) == story.expected


@pytest.mark.parametrize(("generations", "point"), [(2, "compact.chosen"), (1, "compact.after_fragments")])
def test_generations_that_were_collected_make_the_run_start_over(tmp_path: Path, generations: int, point: str) -> None:
    story = Story(tmp_path / "t", "number")
    story.base()
    story.generations(generations)

    def overtake() -> None:
        other = mw.open_table(story.uri)
        other.compact()
        assert other.gc(grace_seconds=0).count("sstable") > 0
        CACHE.clear()

    run_once_at(point, overtake)
    assert compact_by_tasks(story.uri).conflicts == 1
    story.check()


def test_writers_go_on_meanwhile_and_nothing_of_theirs_is_lost(tmp_path: Path) -> None:
    story = Story(tmp_path / "t", "number")
    story.base()
    with story.table.writer(compaction=None) as writer:
        story.put(writer, range(40))
        writer.flush()

        def write() -> None:
            story.put(writer, [1, 2, 90])
            story.delete(writer, [30])
            writer.flush()

        def go_on(point: str) -> None:
            if point in ("compact.after_fragments", "compact.before_manifest", "compact.before_trim"):
                thread = threading.Thread(target=write)  # a writer of the same thread would be on top of the compaction
                thread.start()
                thread.join()

        crash_points.install(go_on)
        compact_by_tasks(story.uri)
        crash_points.install(None)
        assert story.shown() == story.expected
        assert story.plain() != story.expected
    compact_by_tasks(story.uri)
    story.check()


@pytest.mark.scaled
def test_compactions_of_both_kinds_beside_a_busy_writer_show_the_model_in_the_end(tmp_path: Path) -> None:
    story = Story(tmp_path / "t", "number", seed=11)
    story.base()
    wrote = threading.Event()
    ways = [compact_by_tasks, lambda uri: mw.open_table(uri).compact()]

    def keep_compacting(compact: Callable[[str], object]) -> int:
        runs = 0
        while not wrote.is_set():
            compact(story.uri)
            runs += 1
        return runs

    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(keep_compacting, compact) for compact in ways]
        try:
            with story.table.writer(compaction=None) as writer:
                for step in range(scaled(ci=8, prove=200)):
                    story.put(writer, random.Random(step).sample(range(KEYS + 20), 12))
                    story.delete(writer, random.Random(-step).sample(range(KEYS + 20), 4))
                    writer.flush()
        finally:
            wrote.set()
        assert all(future.result() for future in running)
    assert story.shown() == story.expected
    compact_by_tasks(story.uri)
    story.check()


# -------------------------------------------------------------------------------------------------------------- Spark


@pytest.mark.parametrize("kind", KINDS)
def test_spark_compacts_by_tasks(spark: Any, tmp_path: Path, kind: str) -> None:
    story = Story(tmp_path / "t", kind)
    story.base()
    story.base_deletes([7])
    story.generations(2)
    report = ms.compact(spark, story.uri, mode="distributed")
    assert (report.commits, report.generations) == (1, 6)
    story.check()
    assert ms.compact(spark, story.uri, mode="distributed").generations == 0


def test_the_size_of_the_table_chooses_the_way(spark: Any, tmp_path: Path) -> None:
    ways: list[str] = []
    crash_points.install(ways.append)  # only the distributed way reaches points in this process
    for limit, by_tasks in ((1 << 40, False), (1, True)):
        story = Story(tmp_path / str(limit), "number")
        story.generations(1)
        ms.compact(spark, story.uri, distributed_bytes=limit)
        assert ("compact.before_manifest" in ways) is by_tasks
        story.check()


@pytest.mark.parametrize("kind", ["number", "append"])
def test_a_base_table_counts_where_its_keys_must_be_read(tmp_path: Path, kind: str) -> None:
    story = Story(tmp_path / "t", kind)
    story.base()
    location = resolve(story.uri)
    assert is_big(location, BaseTable.need(location), 1000) is story.has_key
    lance.dataset(story.uri).create_scalar_index("id", "BTREE")
    assert not is_big(location, BaseTable.need(location), 1)
    story.generations(1)
    assert is_big(location, BaseTable.need(location), 100)
    compact_by_tasks(story.uri)
    assert not is_big(location, BaseTable.need(location), 1)


def test_a_mode_that_is_none_and_a_base_that_takes_no_such_commit_are_refused(spark: Any, tmp_path: Path) -> None:
    story = Story(tmp_path / "t", "number")
    with pytest.raises(InvalidInputError, match="single"):
        ms.compact(spark, story.uri, mode="all")  # type: ignore[arg-type]
    uri = str(tmp_path / "stable")
    data = pa.table(
        {"id": pa.array([1, 2], pa.int64())}, schema=pa.schema([pa.field("id", pa.int64(), nullable=False)])
    )
    lance.write_dataset(data, uri, enable_stable_row_ids=True)
    table = mw.enable(uri, sharding=mw.Bucket("id", 2))
    with table.writer(compaction=None) as writer:
        writer.put({"id": [3]}, missing="null")
    with pytest.raises(InvalidInputError, match="mode='single'"):
        ms.compact(spark, uri, mode="distributed")
    ms.compact(spark, uri, distributed_bytes=1)
    assert sorted(lance.dataset(uri).to_table()["id"].to_pylist()) == [1, 2, 3]
    assert staged(uri) == []
    assert COUNTER_SHARD not in marks(uri)
