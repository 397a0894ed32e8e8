"""Merges: values, rows that the source has not, and keys that others change meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
import lance_memwal.spark as ms
from lance_memwal import crash_points
from lance_memwal.log.reading import list_positions
from lance_memwal.spark.options import Options
from lance_memwal.spark.pieces import write_pieces
from lance_memwal.spark.rows import WritePlan
from lance_memwal.spark.sink import commit_pieces
from lance_memwal.spark.types import struct_type
from lance_memwal.types import Transaction
from tests.kit.spark_tables import KEYED, keyed, rows_of


def put(table: mw.Table, *ids: int, value: str = "theirs") -> None:
    with table.writer() as writer:
        writer.put({"id": ids, "value": [value] * len(ids), "n": [0] * len(ids)})


# ------------------------------------------------------------------------------------------------- without Spark


def write_planned(table: mw.Table, snapshot: mw.Snapshot, *ids: int, version: int = 1, **options: str) -> None:
    """What a merge writes that was planned on `snapshot`."""
    parsed = Options.parse({"path": table.uri, "unchangedSince": str(snapshot), **options})
    plan = WritePlan.make(table, struct_type(KEYED), parsed)
    batch = pa.record_batch(
        [pa.array(ids), pa.array(["mine"] * len(ids)), pa.array([1] * len(ids), pa.int32())], schema=KEYED
    )
    commit_pieces(plan, [write_pieces(plan, "job", iter([batch]))], Transaction("merge", version))


def flushed(table: mw.Table) -> None:
    table.flush(force=True)


def compacted(table: mw.Table) -> None:
    table.flush(force=True)
    table.compact()


@pytest.mark.parametrize("then", [lambda table: None, flushed, compacted], ids=["in the log", "flushed", "compacted"])
def test_a_key_that_changed_since_the_snapshot_is_a_conflict_wherever_it_is_now(
    uri: str, then: Callable[[mw.Table], None]
) -> None:
    table = keyed(uri, 1)
    put(table, 1, 2, 3)
    snapshot = table.snapshot()
    write_planned(table, snapshot, 1, 9)
    put(table, 3, 4)
    then(table)
    write_planned(table, snapshot, 2, 8, version=2)
    for ids in ((3,), (4,), (1,)):
        with pytest.raises(mw.ChangedKeysError, match="planned on a new snapshot"):
            write_planned(table, snapshot, *ids, version=3)
    found = {key: row[0] for key, row in rows_of(table).items()}
    assert found == {1: "mine", 2: "mine", 3: "theirs", 4: "theirs", 8: "mine", 9: "mine"}
    write_planned(table, table.snapshot(), 3, version=3)
    assert rows_of(table)[3] == ("mine", 1)


def test_what_was_collected_or_written_in_bulk_counts_as_changed(uri: str) -> None:
    table = keyed(uri, 1)
    put(table, 1)
    snapshot = table.snapshot()
    write_planned(table, snapshot, 5, 6, maxEntryBytes="1")
    write_planned(table, snapshot, 1, version=2)
    with pytest.raises(mw.ChangedKeysError):
        write_planned(table, snapshot, 6, version=3)
    compacted(table)
    put(table, 7)
    compacted(table)
    table.gc(grace_seconds=0)
    with pytest.raises(mw.ChangedKeysError):
        write_planned(table, snapshot, 100, version=3)


@pytest.mark.parametrize("known", [False, True], ids=["a new sink", "a sink that knows an older tail"])
def test_a_bulk_write_that_was_announced_but_not_published_at_the_snapshot_is_a_conflict(
    uri: str, known: bool, request: pytest.FixtureRequest
) -> None:
    table = keyed(uri, 1)
    before, taken = table.snapshot(), []
    if known:
        write_planned(table, before, 1)

    def handler(point: str) -> None:
        if point == "once.before_commit":
            taken.append(table.snapshot())

    request.addfinalizer(lambda: crash_points.install(None))
    crash_points.install(handler)
    write_planned(table, before, 5, 6, version=2, maxEntryBytes="1")
    crash_points.install(None)
    planned = taken[-1]
    assert planned.shards[0].tip > planned.shards[0].cursor, "the mark is there, its rows do not count yet"
    with pytest.raises(mw.ChangedKeysError):
        write_planned(table, planned, 6, version=3)
    write_planned(table, planned, 7, version=3)
    table.gc(grace_seconds=0)
    assert planned.shards[0].tip not in list_positions(table.location, planned.shards[0].shard_id)
    with pytest.raises(mw.ChangedKeysError):  # nobody can tell any more what was at the tip
        write_planned(table, planned, 6, version=4)


def test_a_key_is_checked_in_the_shard_to_which_its_row_goes(uri: str) -> None:
    table = mw.create_table(uri, KEYED, primary_key="id", sharding=mw.Bucket("n", 8), allow_keys_across_shards=True)
    snapshot = table.snapshot()
    with table.writer() as writer:
        writer.put({"id": [1, 2], "value": ["theirs"] * 2, "n": [1, 0]})
    others = {table.sharding.shard_for(n, pa.int32()) for n in (0, 1)}
    assert len(others) == 2
    with pytest.raises(mw.ChangedKeysError):
        write_planned(table, snapshot, 1)
    write_planned(table, snapshot, 2)  # theirs lives in another shard, as the table allows it


def test_a_snapshot_of_a_table_that_was_here_before_is_refused(uri: str) -> None:
    table = keyed(uri, 1)
    put(table, 1, 2)
    snapshot = table.snapshot()
    table.drop(force=True)
    with pytest.raises(mw.TableReplacedError, match="take a new one"):
        write_planned(keyed(uri, 1), snapshot, 1)


# --------------------------------------------------------------------------------------------------------- in Spark


def test_a_merge_sets_columns_and_takes_rows_that_the_source_has_not(spark: Any, uri: str) -> None:
    table = keyed(uri, 2)
    with table.writer() as writer:
        writer.put({"id": [1, 2, 3, 4, 5], "value": list("abcde"), "n": [1, 2, 3, 4, 5]})
    source = spark.createDataFrame([(1, "A", 10), (2, "B", 20), (9, "I", 90)], "ID long, Value string, other int")
    merge = (
        ms.merge_into(spark, uri, source, on="Id")
        .when_matched_update("target.n > 1", set={"N": "target.n + source.other", "value": "lower(source.value)"})
        .when_matched_delete()
        .when_not_matched_insert()
        .when_not_matched_by_source_delete("target.n > 4")
        .when_not_matched_by_source_update("target.n = 3", set={"value": "'gone'"})
    )
    report = merge.execute(app_id="nightly", version=1)
    assert report.rows == 5
    expected = {2: ("b", 22), 3: ("gone", 3), 4: ("d", 4), 9: ("I", None)}
    assert rows_of(table) == expected
    assert merge.execute(app_id="nightly", version=1).rows == 0, "the same merge again"
    assert rows_of(table) == expected
    begun = ms.merge_into(spark, uri, source, on="id")
    for wrong in (
        lambda: begun.when_matched_update(set={"id": "1"}),
        lambda: begun.when_matched_update(set={"nope": "1"}),
        lambda: begun.when_matched_update(set={}),
        lambda: begun.when_not_matched_by_source_update(),
        lambda: begun.execute(),
    ):
        with pytest.raises(mw.InvalidInputError):
            wrong()


def test_keys_that_others_change_while_a_merge_runs_are_a_conflict(spark: Any, uri: str, tmp_path: Path) -> None:
    table, once = keyed(uri, 1), tmp_path / "once"
    put(table, 1, 2, 3)

    def meanwhile(batches: Any) -> Any:
        try:
            once.mkdir()
        except FileExistsError:
            pass
        else:
            put(mw.open_table(uri), 2, value="newer")
        yield from batches

    source = spark.createDataFrame([(1, 1), (2, 1)], "id long, n int").coalesce(1)
    slow = source.mapInArrow(meanwhile, source.schema)
    merge = ms.merge_into(spark, uri, slow, on="id").when_matched_update(set={"n": "target.n + source.n"})
    with pytest.raises(mw.ChangedKeysError):
        merge.execute(on_conflict="error")
    assert rows_of(table) == {1: ("theirs", 0), 2: ("newer", 0), 3: ("theirs", 0)}
    once.rmdir()
    assert merge.execute().rows == 2, "joined again"
    assert rows_of(table) == {1: ("theirs", 1), 2: ("newer", 1), 3: ("theirs", 0)}
