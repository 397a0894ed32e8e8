"""Names of columns and times in filters mean in this format what they mean in Spark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
import lance_memwal.spark as ms
from tests.kit.spark_tables import keyed, rows_of

ZONE, CASE = "spark.sql.session.timeZone", "spark.sql.caseSensitive"


@pytest.fixture
def settings(spark: Any) -> Iterator[Any]:
    """The settings of the session, as they were when the test ends."""
    yield spark.conf
    spark.conf.set(ZONE, "UTC")
    spark.conf.set(CASE, "false")


@pytest.mark.face  # which alone sees the zone of the session
def test_a_filter_means_what_the_same_condition_of_spark_means(spark: Any, uri: str, settings: Any) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("At", pa.timestamp("us", tz="UTC"))])
    table = mw.create_table(uri, schema, primary_key="id")
    hours = [dt.datetime(2026, 1, 31, hour, tzinfo=dt.UTC) for hour in range(24)]
    with table.writer() as writer:
        writer.put({"id": range(24), "At": hours})
    settings.set(ZONE, "Asia/Tokyo")
    text = "at >= timestamp '2026-01-31 12:00:00' and ID < 20"
    read = spark.read.format("memwal")
    wanted = sorted(row["id"] for row in read.load(uri).where(text).collect())
    assert wanted == list(range(3, 20))
    assert sorted(row["id"] for row in read.option("filter", text).load(uri).collect()) == wanted
    plain = spark.read.format("memwal_py").option("filter", text)
    with pytest.raises(Exception, match="option 'timeZone'"):
        plain.load(uri).count()
    assert plain.option("timeZone", "Asia/Tokyo").option("columns", "AT,id").load(uri).columns == ["At", "id"]
    with pytest.raises(Exception, match="divides"):
        spark.read.format("memwal").option("filter", "id / 2 = 1").load(uri).count()
    settings.set(CASE, "true")
    with pytest.raises(Exception, match="caseSensitive"):
        spark.read.format("memwal").option("filter", "ID = 1").load(uri).count()


def test_columns_of_a_dataframe_match_whatever_their_case(spark: Any, uri: str, settings: Any) -> None:
    table = keyed(uri, 2)
    frame = spark.createDataFrame([(1, "a", 1, "u"), (2, "b", 2, "u")], "ID long, Value string, N int, _OP string")
    frame.write.format("memwal").mode("append").save(uri)
    ms.write_batch(frame.selectExpr("id + 10 as Id", "value VALUE", "n"), uri, 1, app_id="job")
    assert rows_of(table) == {1: ("a", 1), 2: ("b", 2), 11: ("a", 1), 12: ("b", 2)}
    frame.selectExpr("id", "value", "n", "5 as New").write.format("memwal").mode("append").option(
        "mergeSchema", True
    ).save(uri)
    assert mw.open_table(uri).schema.names == ["id", "value", "n", "New"]
    twice = frame.selectExpr("ID as id", "value", "1 as n", "2 as N")
    with pytest.raises(mw.InvalidInputError, match="'n' and 'N'"):
        ms.write_batch(twice, uri, 2, app_id="job")
    settings.set(CASE, "true")
    with pytest.raises(mw.InvalidInputError, match="'id' is missing"):
        ms.write_batch(frame, uri, 3, app_id="job")
