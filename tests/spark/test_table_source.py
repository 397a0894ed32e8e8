"""The table source: merged, fresh; of the pure Python source one snapshot per load, of the JVM face one per query."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.spark.data_source import MemWalSource
from tests.kit.spark_tables import append_only, keyed
from tests.kit.spark_values import VALUES


def load(spark: Any, uri: str, source: str = "memwal", **options: Any) -> Any:
    return spark.read.format(source).options(**options).load(uri)


def as_dict(frame: Any) -> dict[int, tuple[Any, ...]]:
    rows = frame.collect()
    found = {row["id"]: tuple(row)[1:] for row in rows}
    assert len(found) == len(rows), "a key is there twice"
    return found


def mixed_table(uri: str, seed: int) -> tuple[mw.Table, dict[int, tuple[Any, ...]]]:
    """Base rows, SSTables and log tails in several shards, made by random upserts and deletes; and what is right."""
    rng = random.Random(seed)
    table, model = keyed(uri, 3), {}
    for step in range(6):
        writer = table.writer()
        ids = rng.sample(range(300), 120)
        writer.put({"id": ids, "value": [f"{step}-{i}" for i in ids], "n": [step] * len(ids)}, missing="null")
        model |= {i: (f"{step}-{i}", step) for i in ids}
        gone = rng.sample(range(300), 40)
        writer.delete(gone)
        for i in gone:
            model.pop(i, None)
        if step < 5:
            writer.close()
        else:
            writer.abort()
        if step in (1, 3):
            table.compact()
    return table, model


@pytest.mark.parametrize("source", ["memwal", "memwal_py"])
def test_the_source_equals_a_dict_after_random_upserts_and_deletes(spark: Any, uri: str, source: str) -> None:
    table, model = mixed_table(uri, 1)
    assert {len(info.generations) > 0 and info.wal_tail > 0 for info in table.shards()} == {True}
    assert table.dataset.count_rows() > 0
    assert as_dict(load(spark, uri, source)) == model
    assert load(spark, uri, source).count() == len(model)
    old = {i: row for i, row in model.items() if row[1] == 2}
    assert as_dict(load(spark, uri, source, filter="n = 2")) == old  # newer rows that do not match hide older ones
    assert as_dict(load(spark, uri, source).where("n = 2")) == old
    narrow = load(spark, uri, source, columns="n,id", filter="id >= 100")
    assert narrow.columns == ["n", "id"]
    assert {row["id"]: row["n"] for row in narrow.collect()} == {i: row[1] for i, row in model.items() if i >= 100}


def test_one_load_is_one_snapshot_over_all_its_actions_and_flushed_leaves_the_log_out(spark: Any, uri: str) -> None:
    table = keyed(uri)
    with table.writer() as writer:
        writer.put({"id": list(range(50)), "n": [0] * 50}, missing="null")
    before = load(spark, uri, "memwal_py")
    other = table.writer()
    other.put({"id": list(range(40, 60)), "n": [1] * 20}, missing="null")
    assert before.count() == 50
    assert before.where("n = 1").count() == 0
    assert load(spark, uri).count() == 60
    assert load(spark, uri, consistency="flushed").count() == 50
    other.close()
    table.compact()
    assert before.where("n = 0").count() == 50
    assert load(spark, uri).where("n = 1").count() == 20


def test_a_frame_used_twice_with_different_filters_is_right(spark: Any, uri: str) -> None:
    table = keyed(uri)
    with table.writer() as writer:
        writer.put({"id": list(range(1000)), "n": [i % 10 for i in range(1000)]}, missing="null")
    frame = load(spark, uri)
    assert frame.where("n = 5").count() == 100
    assert frame.count() == 1000
    assert frame.where("n = 5").union(frame.where("n = 6")).count() == 200
    joined = frame.where("n = 5").alias("a").join(frame.alias("b"), "id")
    assert joined.count() == 100


def test_a_snapshot_that_collection_passed_says_load_again(spark: Any, uri: str) -> None:
    table = keyed(uri, 1)
    with table.writer() as writer:
        writer.put({"id": [1, 2]}, missing="null")
    frame = load(spark, uri, "memwal_py")
    with table.writer() as writer:
        writer.put({"id": [3]}, missing="null")
    table.compact()
    table.gc(grace_seconds=0)
    with pytest.raises(Exception, match="load again"):
        frame.collect()
    assert load(spark, uri).count() == 3


def test_an_append_only_table_shows_every_row_once_in_all_tiers(spark: Any, uri: str) -> None:
    table = append_only(uri)
    for step in range(3):
        writer = table.writer()
        writer.put({"id": list(range(20)), "value": [str(step)] * 20}, missing="null")
        if step == 2:
            writer.abort()
        else:
            writer.close()
        if step == 0:
            table.compact()
    counts = load(spark, uri).groupBy("value").count().collect()
    assert {row["value"]: row["count"] for row in counts} == {"0": 20, "1": 20, "2": 20}


def test_sql_views_are_read_and_inserted_into(spark: Any, uri: str) -> None:
    table = keyed(uri)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW view_of_table USING memwal OPTIONS (path '{uri}')")
    spark.sql("INSERT INTO view_of_table VALUES (1, 'one', 1), (2, 'two', 2)")
    spark.sql("INSERT INTO view_of_table VALUES (2, 'zwei', 2)")
    assert table.get(2) == {"id": 2, "value": "zwei", "n": 2}
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW view_of_table USING memwal OPTIONS (path '{uri}')")
    rows = spark.sql("SELECT id, value FROM view_of_table ORDER BY id").collect()
    assert [tuple(row) for row in rows] == [(1, "one"), (2, "zwei")]


def test_every_type_that_lance_holds_goes_through_spark_and_back(spark: Any, tmp_path: Any) -> None:
    kinds = [kind for kind, _, _ in VALUES if not pa.types.is_dictionary(kind)]
    values = [value for kind, _, value in VALUES if not pa.types.is_dictionary(kind)]
    fields = [pa.field("id", pa.int64(), nullable=False), *(pa.field(f"c{i}", k) for i, k in enumerate(kinds))]
    columns = [pa.array([1, 2]), *(pa.array([v, None], k) for v, k in zip(values, kinds, strict=True))]
    uris = [str(tmp_path / name) for name in ("from", "to")]
    for place in uris:
        mw.create_table(place, pa.schema(fields), primary_key="id", sharding=mw.Unsharded())
    with mw.open_table(uris[0]).writer() as writer:
        writer.put(pa.table(columns, schema=pa.schema(fields)))
    load(spark, uris[0]).write.format("memwal").mode("append").save(uris[1])
    first, second = (mw.open_table(place).scan().to_table().sort_by("id") for place in uris)
    assert second.equals(first)


def test_what_cannot_be_read_is_said_before_a_task_starts(spark: Any, uri: str, tmp_path: Any) -> None:
    keyed(uri)
    with pytest.raises(Exception, match="'nothing' is not in the table"):
        load(spark, uri, columns="nothing").count()
    with pytest.raises(Exception, match="no table"):
        load(spark, str(tmp_path / "elsewhere")).count()
    with pytest.raises(Exception, match="did you mean 'filter'"):
        load(spark, uri, filtre="n = 1").count()
    with pytest.raises(Exception, match=r"filter|nope"):
        load(spark, uri, filter="nope = 1").count()


def test_spark_still_mixes_up_pushed_filters_so_that_this_source_must_not_push_any(spark: Any) -> None:
    """A canary: when it fails, Spark is fixed, and push-down can be thought about."""
    from pushing_source import PushingSource

    from lance_memwal.spark.source import TableReader

    spark.dataSource.register(PushingSource)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = spark.read.format("pushing_canary").load()
        assert frame.where("cat = 5").count() == 100
        assert frame.count() == 100  # 1000 would be right
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert "pushFilters" not in vars(TableReader)


def test_few_fresh_rows_take_no_task_of_their_own(uri: str) -> None:
    table = keyed(uri, 4)
    with table.writer(compaction=None) as writer:
        writer.put({"id": list(range(100)), "n": [0] * 100}, missing="null")
    table.compact()
    late = table.writer(compaction=None)
    late.put({"id": list(range(90, 120)), "n": [1] * 30}, missing="null")
    try:
        for rows_per_partition, parts in ((1000, 1), (100, 2)):
            source = MemWalSource({"path": uri, "rowsPerPartition": str(rows_per_partition)})
            reader = source.reader(source.schema())
            found = reader.partitions()
            assert len(found) == parts
            rows = [row for part in found for batch in reader.read(part) for row in batch.to_pylist()]
            assert sorted((row["id"], row["n"]) for row in rows) == [(i, int(i >= 90)) for i in range(120)]
    finally:
        late.close()
