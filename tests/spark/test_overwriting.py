"""Replacing all rows, output modes, and new columns: the same through the JVM face and through the pure Python source."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import lance_memwal as mw
from tests.kit.spark_tables import KEYED, append_only, entries_with_rows, ids_of, keyed, rows_of

SOURCES = ["memwal", "memwal_py"]


def frame(spark: Any, *ids: int) -> Any:
    return spark.createDataFrame([(i, f"v{i}", i) for i in ids], "id long, value string, n int")


@pytest.mark.parametrize("source", SOURCES)
def test_an_overwrite_leaves_the_new_rows_only_in_all_tiers(spark: Any, uri: str, source: str) -> None:
    table = keyed(uri, 2)
    with table.writer() as writer:
        writer.put({"id": list(range(10))}, missing="null")
    table.compact()
    frame(spark, 20, 21).write.format(source).mode("append").save(uri)
    frame(spark, 3, 21, 30).write.format(source).mode("overwrite").save(uri)
    assert rows_of(table) == {3: ("v3", 3), 21: ("v21", 21), 30: ("v30", 30)}
    table.flush(force=True)
    table.compact()
    assert ids_of(table) == [3, 21, 30]
    assert table.dataset.count_rows() == 3
    with pytest.raises(Exception, match="leave out 'sequenceBy'"):
        frame(spark, 1).write.format(source).mode("overwrite").option("sequenceBy", "n").save(uri)
    assert ids_of(table) == [3, 21, 30]


def test_a_repeated_overwrite_of_one_version_writes_nothing(spark: Any, uri: str) -> None:
    table = keyed(uri, 2)
    for _ in range(2):
        writer = frame(spark, *range(8)).write.format("memwal").mode("overwrite").option("txnAppId", "job")
        writer.option("txnVersion", 1).save(uri)
    assert ids_of(table) == list(range(8))
    assert entries_with_rows(table) == 2


def test_an_append_only_table_is_overwritten_only_while_it_is_empty(spark: Any, uri: str) -> None:
    table = append_only(uri, 2)
    rows = spark.range(3).selectExpr("id", "'x' as value")
    rows.write.format("memwal").mode("overwrite").save(uri)
    with pytest.raises(Exception, match="without a primary key is not overwritten"):
        rows.write.format("memwal").mode("overwrite").save(uri)
    assert ids_of(table) == [0, 1, 2]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        pytest.param("update", {7: 2, 8: 1, 9: 5}, marks=pytest.mark.face),
        ("complete", {7: 2, 8: 1}),
    ],
)
def test_output_modes_of_a_stream(spark: Any, tmp_path: Path, mode: str, expected: dict[int, int]) -> None:
    table = keyed(str(tmp_path / "counts"), 2)
    with table.writer() as writer:
        writer.put({"id": [9], "n": [5]}, missing="null")
    given = tmp_path / "in"
    for number, ids in enumerate([(7, 8), (7,)]):
        (given / str(number)).mkdir(parents=True)
        (given / str(number) / "rows.json").write_text("".join(f'{{"id": {i}}}\n' for i in ids))
    stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(f"{given}/*")
    counts = stream.groupBy("id").count().selectExpr("id", "cast(null as string) as value", "cast(count as int) as n")
    writer = counts.writeStream.format("memwal").outputMode(mode).option("checkpointLocation", str(tmp_path / "cp"))
    query = writer.trigger(availableNow=True).start(table.uri)
    assert query.awaitTermination(60)
    assert {key: row[1] for key, row in rows_of(table).items()} == expected


@pytest.mark.parametrize("source", SOURCES)
def test_merge_schema_adds_the_columns_that_a_frame_has_more(spark: Any, uri: str, source: str) -> None:
    table = keyed(uri, 2)
    wider = frame(spark, 1, 2).selectExpr("*", "n * 1.5D as price")
    with pytest.raises(Exception, match="price"):
        wider.write.format(source).mode("append").save(uri)
    wider.write.format(source).mode("append").option("mergeSchema", "true").save(uri)
    wider.write.format(source).mode("append").option("mergeSchema", "true").save(uri)
    assert table.get(2) == {"id": 2, "value": "v2", "n": 2, "price": 3.0}


def test_a_table_that_was_made_anew_at_its_place_is_written_as_a_new_one(spark: Any, tmp_path: Path) -> None:
    uri = str(tmp_path / "again")
    for number in range(3):
        table = mw.create_table(uri, KEYED, primary_key="id")
        frame(spark, number).write.format("memwal").mode("append").save(uri)
        assert ids_of(table) == [number]
        shutil.rmtree(uri)
