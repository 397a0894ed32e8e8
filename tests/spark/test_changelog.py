"""What changed between two moments, as a batch: with the pure Python source, by the names that Spark's CHANGES has."""

from __future__ import annotations

from typing import Any

import pytest

import lance_memwal as mw
from lance_memwal.errors import InvalidInputError
from lance_memwal.spark.data_source import ChangesSource
from tests.kit.spark_tables import append_only, keyed

EXTRA = ["_change_type", "_commit_version", "_commit_timestamp", "_shard"]


def put(table: mw.Table, ids: list[int], value: str) -> None:
    with table.writer() as writer:
        writer.put({"id": ids, "value": [value] * len(ids)}, missing="null")


def changes(table: mw.Table, **options: str) -> list[tuple[Any, ...]]:
    """Type, key and value of every change, shard after shard, without Spark between."""
    source = ChangesSource({"path": table.uri, **options})
    reader = source.reader(source.schema())
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [(row["_change_type"], row["id"], row["value"]) for batch in batches for row in batch.to_pylist()]


def test_changes_between_two_moments_have_the_rows_before_and_after(uri: str) -> None:
    table = keyed(uri, 1)
    with table.writer() as writer:
        writer.put({"id": [1, 2], "value": ["a", "b"]}, missing="null")
        table.checkpoint_create("first")
        writer.put({"id": [1, 3], "value": ["c", "d"]}, missing="null")
        writer.delete([2])
        end = str(table.snapshot())
        writer.put({"id": [9], "value": ["late"]}, missing="null")
    update = [("update_preimage", 1, "a"), ("update_postimage", 1, "c"), ("insert", 3, "d"), ("delete", 2, "b")]
    assert changes(table, changesFrom="first", changesTo=end) == update
    assert changes(table, changesFrom="first") == [*update, ("insert", 9, "late")]
    assert changes(table, changesFrom="earliest", changesTo="first") == [("insert", 1, "a"), ("insert", 2, "b")]
    assert changes(table, changesFrom=end, changesTo="first") == []


def test_a_plan_that_is_read_twice_gives_the_same_rows(uri: str) -> None:
    table = keyed(uri, 2)
    put(table, [1, 2, 3], "a")
    source = ChangesSource({"path": uri, "changesFrom": "earliest"})
    reader = source.reader(source.schema())
    put(table, [1, 2, 3], "b")
    for _ in range(2):
        batches = [batch for part in reader.partitions() for batch in reader.read(part)]
        assert sorted(key for batch in batches for key in batch.column("id").to_pylist()) == [1, 2, 3]


def test_every_row_of_a_table_without_a_key_is_an_insert(uri: str) -> None:
    table = append_only(uri, 1)
    put(table, [1, 1], "a")
    assert changes(table, changesFrom="earliest") == [("insert", 1, "a")] * 2


def test_what_is_no_range_is_refused(uri: str) -> None:
    keyed(uri, 1)
    with pytest.raises(InvalidInputError, match="'changesTo' needs 'changesFrom'"):
        ChangesSource({"path": uri, "changesTo": "now"})
    with pytest.raises(InvalidInputError, match="start must be 'earliest'"):
        changes(mw.open_table(uri), changesFrom="never")
    plain = ChangesSource({"path": uri})
    with pytest.raises(InvalidInputError, match="say with the option changesFrom"):
        plain.reader(plain.schema())
    ranged = ChangesSource({"path": uri, "changesFrom": "earliest"})
    with pytest.raises(InvalidInputError, match="are a batch"):
        ranged.streamReader(ranged.schema())


def test_spark_reads_them_without_the_face(spark: Any, uri: str) -> None:
    table = keyed(uri, 2)
    put(table, [1, 2], "a")
    with table.writer() as writer:
        writer.delete([2])
    frame = spark.read.format("memwal_changes").options(changesFrom="earliest", columns="id,value").load(uri)
    assert frame.columns == ["id", "value", *EXTRA]
    found = [(row[0], row[1]) for row in frame.orderBy("id", "_commit_version").select("_change_type", "id").collect()]
    assert found == [("insert", 1), ("insert", 2), ("delete", 2)]
