"""Writes of Spark that depend on the rows that are there: partial rows, conditions, and tables with a merge.

Every way in, the batch sink, the streaming sink and `write_batch`, does the same.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
import lance_memwal.spark as ms
from lance_memwal.spark.options import Options
from lance_memwal.spark.rows import WritePlan
from tests.kit.spark_once import finish
from tests.kit.spark_tables import rows_of

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
