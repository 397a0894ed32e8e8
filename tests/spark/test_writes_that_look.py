"""Writes of Spark that depend on the rows that are there: partial rows, conditions, merges, and tables with a merge.

Every way in, the batch sink, the streaming sink and `write_batch`, does the same.
"""

import itertools
import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
import lance_memwal.spark as ms
from lance_memwal import crash_points
from lance_memwal.log.reading import list_positions
from lance_memwal.spark.options import UNCHANGED_SINCE, Options
from lance_memwal.spark.pieces import write_pieces
from lance_memwal.spark.rows import OP, WritePlan
from lance_memwal.spark.sink import commit_pieces
from lance_memwal.spark.types import struct_type
from lance_memwal.types import Transaction
from tests.kit.spark import KEYED, finish, keyed, rows_of

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("value", pa.string()), pa.field("ts", pa.int64(), nullable=False)]
)
WHOLE, PARTIAL = "id long, value string, ts long", "id long, ts long"
Save = Callable[..., None]


def make(uri: str, **options: Any) -> mw.Table:
    return mw.create_table(
        uri, SCHEMA, primary_key="id", sharding=mw.Bucket("id", 2), writer_defaults={"fsync": False}, **options
    )


def flush_and_compact(table: mw.Table) -> None:
    for shard in table.shards():
        table.shard_writer(shard.shard_id).close()
    table.compact()


def save_batch(frame: Any, uri: str, **options: Any) -> None:
    frame.write.format("memwal").mode("append").options(**options).save(uri)


@pytest.fixture(params=["batch", "write_batch", "stream"])
def save(request: pytest.FixtureRequest, spark: Any, tmp_path: Path) -> Save:
    """Writes a DataFrame in one of the ways that there are."""
    count = iter(range(1000))

    def by_write_batch(frame: Any, uri: str, **options: Any) -> None:
        ms.write_batch(frame, uri, next(count), app_id="test", **options)

    def by_stream(frame: Any, uri: str, **options: Any) -> None:
        number = next(count)
        source, checkpoint = str(tmp_path / f"in-{number}"), str(tmp_path / f"checkpoint-{number}")
        frame.coalesce(1).write.parquet(source)
        stream = spark.readStream.schema(frame.schema).parquet(source)
        writer = stream.writeStream.format("memwal").options(**options).option("checkpointLocation", checkpoint)
        finish(lambda: writer.trigger(availableNow=True).start(uri))

    ways = {"batch": save_batch, "write_batch": by_write_batch, "stream": by_stream}
    return ways[request.param]


def test_partial_rows_conditions_and_updates(spark: Any, uri: str, save: Save) -> None:
    table = make(uri)
    with table.writer() as writer:
        writer.put({"id": range(4), "value": ["a"] * 4, "ts": [10] * 4})
    expected: dict[int, Any] = dict.fromkeys(range(4), ("a", 10))

    save(spark.createDataFrame([(0, 11), (9, 1)], PARTIAL), uri, missing="keep")
    expected |= {0: ("a", 11), 9: (None, 1)}
    assert rows_of(table) == expected

    save(spark.createDataFrame([(0, "no", 0), (8, "new", 0)], WHOLE), uri, ifAbsent=True)
    expected |= {8: ("new", 0)}
    newer = spark.createDataFrame([(1, "late", 9), (2, "newer", 12), (7, "new", 1)], WHOLE)
    save(newer, uri, where="excluded.ts > ts")
    expected |= {2: ("newer", 12), 7: ("new", 1)}
    assert rows_of(table) == expected

    changes = spark.createDataFrame([(0, 20, "u"), (1, 21, "d")], f"{PARTIAL}, _op string")
    save(changes, uri, operation="update")
    del expected[1]
    expected[0] = ("a", 20)
    assert rows_of(table) == expected


def test_a_table_that_orders_its_rows(spark: Any, uri: str, save: Save) -> None:
    table = make(uri, merge=mw.LastWrite(sequence="ts"))
    save(spark.createDataFrame([(i, "a", 10) for i in range(8)] + [(0, "older", 5), (1, "b", 11)], WHOLE), uri)
    save(spark.createDataFrame([(i, "late", i * 2) for i in range(8)], WHOLE), uri)
    expected = {i: ("late", i * 2) if i >= 5 else ("a", 10) for i in range(8)} | {1: ("b", 11)}
    assert rows_of(table) == expected, "rows of one key in one batch are in order, too"
    save(spark.createDataFrame([(6, 30), (7, 13), (20, 30)], PARTIAL), uri, operation="delete")
    del expected[6]
    assert rows_of(table) == expected, "a late delete changes nothing"
    flush_and_compact(table)
    events = [(0, "b", 11, None), (1, None, 9, "d"), (6, "late", 29, "u"), (20, "late", 29, "u"), (7, "c", 14, "u")]
    save(spark.createDataFrame(events, f"{WHOLE}, _op string"), uri)
    expected |= {0: ("b", 11), 7: ("c", 14)}
    assert rows_of(table) == expected, "deletes are remembered after compaction"
    with pytest.raises(Exception, match="ts"):
        save(spark.range(3), uri, operation="delete")


def test_a_table_that_keeps_the_first_row(spark: Any, uri: str, save: Save) -> None:
    table = make(uri, merge=mw.FirstRow())
    save(spark.createDataFrame([(0, "a", 1), (1, "b", 5), (1, "first", 2)], WHOLE), uri, sequenceBy="ts")
    assert rows_of(table) == {0: ("a", 1), 1: ("first", 2)}, "the first in the order of the events"
    events = [(0, "no", 2, "u"), (1, None, 3, "d"), (1, "next", 4, "u"), (1, "no", 5, "u"), (2, "c", 1, "u")]
    save(spark.createDataFrame(events, f"{WHOLE}, _op string"), uri, sequenceBy="ts")
    assert rows_of(table) == {0: ("a", 1), 1: ("next", 4), 2: ("c", 1)}


def test_merges_keep_to_the_order_and_reports_count_what_was_kept_out(spark: Any, uri: str) -> None:
    table = make(uri, merge=mw.LastWrite(sequence="ts"))
    source = spark.createDataFrame([(0, "a", 10), (1, "a", 10), (2, "a", 10)], WHOLE)
    merge = ms.merge_into(spark, uri, source, on="id")
    assert merge.when_not_matched_insert().execute().rows == 3
    late = spark.createDataFrame([(0, "late", 9), (1, "newer", 11), (2, None, 12), (3, "b", 1)], WHOLE)
    merge = ms.merge_into(spark, uri, late, on="id").when_matched_delete("source.value is null")
    report = merge.when_matched_update().when_not_matched_insert().execute(app_id="m", version=1)
    assert (report.rows, report.rejected_rows) == (3, 1)
    assert rows_of(table) == {0: ("a", 10), 1: ("newer", 11), 3: ("b", 1)}
    again = ms.write_batch(spark.createDataFrame([(2, "late", 11)], WHOLE), uri, 1, app_id="x")
    assert (again.rows, again.rejected_rows) == (0, 1)
    report = ms.write_batch(source, uri, 2, app_id="x", ifAbsent=True)
    assert (report.rows, report.rejected_rows) == (0, 3), "2 was deleted at 12"


REFUSED: list[tuple[str, dict[str, str], str]] = [
    (WHOLE, {"operation": "delete", "ifAbsent": "true"}, "ifAbsent"),
    (WHOLE, {"operation": "update", "ifAbsent": "true"}, "ifAbsent"),
    (WHOLE, {"operation": "update", "missing": "null"}, "missing"),
    (WHOLE, {"where": "excluded.nope > 1"}, "nope"),
    (WHOLE, {"missing": "drop"}, "keep"),
    (PARTIAL, {}, "missing='keep'"),
    ("ts long", {"missing": "keep"}, "'id'"),
]


def test_what_cannot_be_is_refused_before_a_task_starts(spark: Any, uri: str) -> None:
    table = make(uri)
    for columns, options, reason in REFUSED:
        frame = spark.createDataFrame([], columns).schema
        with pytest.raises(mw.InvalidInputError, match=reason):
            WritePlan.make(table, frame, Options.parse({"path": uri, **options}))
    plain = mw.create_table(f"{uri}-plain", SCHEMA)
    with pytest.raises(mw.InvalidInputError, match="primary key"):
        WritePlan.make(
            plain,
            spark.createDataFrame([], WHOLE).schema,
            Options.parse({"path": plain.location.describe(), "ifAbsent": "true"}),
        )


def test_an_update_of_a_key_that_is_not_there_is_an_error(spark: Any, uri: str) -> None:
    table = make(uri)
    with pytest.raises(Exception, match="no row in the table"):
        save_batch(spark.createDataFrame([(55, 1)], PARTIAL), uri, operation="update")
    assert rows_of(table) == {}


def test_a_condition_of_a_delete_may_name_every_column(spark: Any, uri: str) -> None:
    table = make(uri)
    save_batch(spark.createDataFrame([(0, "a", 10), (1, "a", 10), (2, "b", 10)], WHOLE), uri)
    gone = spark.createDataFrame([(0, "a", 11), (1, "x", 9), (2, "b", 12)], WHOLE)
    save_batch(gone, uri, operation="delete", where="excluded.ts > ts and value = 'a'")
    assert rows_of(table) == {1: ("a", 10), 2: ("b", 10)}


# ------------------------------------------------------------------------------------- columns that a table never gets

FEED = "'u' AS _op, 's' AS _shard, 9L AS _position, now() AS _time, named_struct('app', 'a', 'version', 1L) AS _txn"
CHANGES = "'insert' AS _change_type, 9L AS _commit_version, now() AS _commit_timestamp"


def test_a_sequence_that_the_table_does_not_have_is_not_added(spark: Any, uri: str, save: Save) -> None:
    table = make(uri)
    rows = spark.sql("SELECT 1L AS id, 'a' AS value, 1L AS ts, 2 AS more, 9L AS _Position")
    save(rows, uri, sequenceBy="_position", mergeSchema=True)
    save(
        spark.sql("SELECT 1L AS id, 'b' AS value, 1L AS ts, 3 AS more, 4L AS seq"),
        uri,
        sequenceBy="SEQ",
        mergeSchema=True,
    )
    save(spark.sql("SELECT 1L AS id, 'c' AS value, 2L AS ts, 4 AS more"), uri, sequenceBy="TS", mergeSchema=True)
    assert mw.open_table(uri).schema.names == ["id", "value", "ts", "more"]
    assert rows_of(table) == {1: ("c", 2, 4)}


def test_a_column_of_the_change_feed_is_not_added(spark: Any, uri: str, save: Save) -> None:
    table = make(uri)
    names = spark.sql(f"SELECT {FEED}, {CHANGES}").columns
    for name in names[1:]:  # `_op` says what is deleted
        rows = spark.sql(f"SELECT 1L AS id, 'a' AS value, 1L AS ts, {name.upper()} FROM (SELECT {FEED}, {CHANGES})")
        with pytest.raises(Exception, match=f"(?i){name}.*change feed"):
            save(rows, uri, mergeSchema=True)
    assert mw.open_table(uri).schema.names == ["id", "value", "ts"]
    assert rows_of(table) == {}


@pytest.mark.parametrize("name", ["_position", "_commit_version"])
def test_feed_position_does_not_order_a_table_with_such_a_column(spark: Any, uri: str, save: Save, name: str) -> None:
    table = mw.create_table(uri, SCHEMA.append(pa.field(name, pa.int64())), primary_key="id")
    rows = spark.sql(f"SELECT 1L AS id, 'a' AS value, 1L AS ts, 9L AS {name}")
    with pytest.raises(Exception, match=f"{name}.*one shard of one source"):
        save(rows, uri, sequenceBy=name)
    assert rows_of(table) == {}
    save(rows, uri)
    assert rows_of(table) == {1: ("a", 1, 9)}


# ------------------------------------------------------------------------------------------------------ kinds of times

KINDS = {
    "TIMESTAMP": (pa.timestamp("us", tz="UTC"), pa.timestamp("ms", tz="Asia/Tokyo")),
    "TIMESTAMP_NTZ": (pa.timestamp("us"), pa.timestamp("s")),
    "DATE": (pa.date32(), pa.date64()),
}
PLACES: list[tuple[Callable[[pa.DataType], pa.DataType], str]] = [
    (lambda kind: kind, "{}"),
    (pa.list_, "array({})"),
    (lambda kind: pa.struct([("n", pa.int32()), ("at", kind)]), "named_struct('n', 1, 'at', {})"),
    (lambda kind: pa.map_(pa.string(), pa.list_(kind)), "map('k', array({}))"),
]


@pytest.fixture
def new_york(spark: Any) -> Iterator[None]:
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield
    spark.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.fixture
def times(uri: str) -> mw.Table:
    """A table with a column of every kind in every place: `DATE_2` is a date in a struct."""
    columns = {f"{kind}_{n}": place(KINDS[kind][n % 2]) for kind in KINDS for n, (place, _) in enumerate(PLACES)}
    return mw.create_table(
        uri, pa.schema([pa.field("id", pa.int64(), nullable=False), *columns.items()]), primary_key="id"
    )


def time_in(place: str, kind: str) -> str:
    return place.format(f"cast('2024-03-10' AS {kind})")


@pytest.mark.usefixtures("new_york")
def test_times_of_the_same_kind_are_written_and_others_refused(
    spark: Any, uri: str, save: Save, times: mw.Table
) -> None:
    same = ", ".join(f"{time_in(text, kind)} AS {kind}_{n}" for kind in KINDS for n, (_, text) in enumerate(PLACES))
    save(spark.sql(f"SELECT 1L AS id, {same}"), uri)
    read = spark.read.format("memwal").load(uri).drop("id").collect()
    assert read == spark.sql(f"SELECT {same}").collect()
    for n, (given, wanted) in enumerate(itertools.permutations(KINDS, 2)):
        frame = spark.sql(f"SELECT 2L AS id, {time_in(PLACES[n % 4][1], given)} AS {wanted}_{n % 4}")
        with pytest.raises(Exception, match=f"is a {given}, and the table holds a {wanted}.*cast it first"):
            save(frame, uri, missing="null")
    assert times.count_rows() == 1


def test_a_time_of_another_kind_is_refused_in_every_place(spark: Any, uri: str, times: mw.Table) -> None:
    options = Options.parse({"path": uri, "missing": "null"})
    for (given, wanted), (n, (_, text)) in itertools.product(itertools.permutations(KINDS, 2), enumerate(PLACES)):
        frame = spark.sql(f"SELECT 2L AS id, {time_in(text, given)} AS {wanted}_{n}")
        with pytest.raises(mw.InvalidInputError, match="cast it first"):
            WritePlan.make(times, frame.schema, options)


@pytest.mark.usefixtures("new_york")
def test_a_time_of_another_kind_does_not_matter_where_it_is_not_written(spark: Any, uri: str, save: Save) -> None:
    table = make(uri)
    save(spark.createDataFrame([(1, "a", 1), (2, "b", 1)], WHOLE), uri)
    table.dataset.add_columns(pa.schema([("at", pa.timestamp("us"))]))
    save(spark.sql("SELECT 1L AS id, current_timestamp() AS at"), uri, operation="delete")
    assert list(rows_of(table)) == [2]


BULK = {"max_entry_bytes": 1}  # appends of sinks become generations


def put(table: mw.Table, *ids: int, value: str = "theirs") -> None:
    with table.writer(max_entry_bytes=1 << 20) as writer:
        writer.put({"id": ids, "value": [value] * len(ids), "n": [0] * len(ids)})


# ------------------------------------------------------------------------------------------------- without Spark


def write_planned(table: mw.Table, snapshot: mw.Snapshot, *ids: int, version: int = 1, **options: str) -> None:
    """What a merge writes that was planned on `snapshot`."""
    parsed = Options.parse({"path": table.uri, UNCHANGED_SINCE: str(snapshot), **options})
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
def test_key_changed_since_the_snapshot_conflicts_in_any_tier(uri: str, then: Callable[[mw.Table], None]) -> None:
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
    table = keyed(uri, 1, writer_defaults=BULK)
    put(table, 1)
    snapshot = table.snapshot()
    write_planned(table, snapshot, 5, 6)
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
    table = keyed(uri, 1, writer_defaults=BULK)
    before, taken = table.snapshot(), []
    if known:
        write_planned(table, before, 1)

    def handler(point: str) -> None:
        if point == "once.before_commit":
            taken.append(table.snapshot())

    request.addfinalizer(lambda: crash_points.install(None))
    crash_points.install(handler)
    write_planned(table, before, 5, 6, version=2)
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


def test_a_merge_refuses_times_of_another_kind_than_the_table_holds(spark: Any, uri: str) -> None:
    schema = pa.schema([pa.field("id", pa.timestamp("us"), nullable=False), ("at", pa.timestamp("us", tz="UTC"))])
    table = mw.create_table(uri, schema, primary_key="id")
    key, at = "TIMESTAMP_NTZ'2024-03-10 12:00:00' AS id", "TIMESTAMP'2024-03-10 12:00:00' AS at"

    def merge(columns: str) -> Any:
        return ms.merge_into(spark, uri, spark.sql(f"SELECT {columns}, 1 AS other"), on="id")

    merge(f"{key}, {at}").when_matched_update().when_not_matched_insert().execute()
    for refused in (
        merge(f"{key}, current_date() AS AT").when_not_matched_insert(),
        merge(f"{key}, TIMESTAMP_NTZ'2024-03-10 12:00:00' AS at").when_matched_update(),
        merge("TIMESTAMP'2024-03-10 12:00:00' AS id").when_matched_delete(),
        merge(f"{key}, {at}").when_matched_update(set={"at": "target.id"}),
        merge(f"{key}, {at}").when_not_matched_by_source_update(set={"at": "current_date()"}),
    ):
        with pytest.raises(mw.InvalidInputError, match="cast it first"):
            refused.execute()
    merge(f"{key}, 'x' AS AT").when_matched_update(set={"at": "null"}).execute()  # the source's column is not read
    assert table.scan().to_table()["at"].to_pylist() == [None]


def test_a_row_that_a_merge_updates_keeps_the_key_of_the_table(spark: Any, uri: str) -> None:
    """Spark compares integers with doubles as doubles, so that it takes neighbours of this size for equal."""
    table, large = keyed(uri, 2), 2**53
    put(table, large, large + 1)
    source = spark.sql(f"SELECT cast({large} AS DOUBLE) AS id, 5 AS n").where("n = 5")
    merge = ms.merge_into(spark, uri, source, on="id").when_matched_update("target.id % 2 = 1")
    merge.execute()
    assert rows_of(table) == {large: ("theirs", 0), large + 1: ("theirs", 5)}


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


# Events that come in any order over batches leave the table that they leave in order, deletes included.

EVENTS = SCHEMA.append(pa.field(OP, pa.string()))
Event = dict[str, Any]


@pytest.fixture(params=["the table decides", "each write decides"])
def merge(request: pytest.FixtureRequest) -> mw.LastWrite | None:
    return mw.LastWrite(sequence="ts") if request.param == "the table decides" else None


def make_merging(uri: str, merge: mw.LastWrite | None) -> mw.Table:
    defaults = {"fsync": False}
    return mw.create_table(
        uri, SCHEMA, primary_key="id", sharding=mw.Bucket("id", 2), merge=merge, writer_defaults=defaults
    )


def events(chance: random.Random, count: int, keys: int) -> list[Event]:
    """Changes of some keys, one after the other; every third is a delete."""
    made = []
    for ts in range(count):
        op = "d" if chance.random() < 0.33 else "u"
        made.append({"id": chance.randrange(keys), "value": None if op == "d" else f"v{ts}", "ts": ts, OP: op})
    return made


def outcome(ordered: list[Event]) -> dict[int, tuple[Any, ...]]:
    newest = {event["id"]: event for event in ordered}
    return {key: (event["value"], event["ts"]) for key, event in newest.items() if event[OP] == "u"}


@pytest.mark.parametrize("seed", range(4))
def test_batches_in_any_order_with_flushes_and_compactions(uri: str, merge: mw.LastWrite | None, seed: int) -> None:
    chance = random.Random(seed)
    table, ordered = make_merging(uri, merge), events(chance, 90, 12)
    given = list(ordered)
    chance.shuffle(given)
    plan = WritePlan.make(table, struct_type(EVENTS), Options.parse({"path": uri, "sequenceBy": "TS"}))
    for number, start in enumerate(range(0, len(given), 9)):
        batch = pa.RecordBatch.from_pylist(given[start : start + 9], schema=EVENTS)
        commit_pieces(plan, [write_pieces(plan, "job", iter([batch]))], Transaction("cdc", number, "cdc"))
        if number % 3 == 1:
            table.flush(force=True)
        if number % 3 == 2:
            table.flush(force=True)
            table.compact()
    assert rows_of(table) == outcome(ordered)


def test_a_stream_of_disordered_events(spark: Any, uri: str, merge: mw.LastWrite | None, tmp_path: Path) -> None:
    chance = random.Random(7)
    table, ordered, source = make_merging(uri, merge), events(chance, 60, 10), tmp_path / "in"
    given = list(ordered)
    chance.shuffle(given)
    source.mkdir()
    stream = spark.readStream.schema(f"id long, value string, ts long, {OP} string").option("maxFilesPerTrigger", 1)
    writer = stream.json(str(source)).writeStream.format("memwal").option("sequenceBy", "ts")
    writer = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    for part in range(4):
        path = source / f"{part}.json"
        path.write_text("\n".join(json.dumps(event) for event in given[part * 15 : part * 15 + 15]))
        os.utime(path, (part, part))
        if part % 2:
            finish(lambda: writer.start(uri))
            table.flush(force=True)
            table.compact()
    assert rows_of(table) == outcome(ordered)
