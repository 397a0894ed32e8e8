"""Tasks with few rows hand them to the commit as they are: the same rows, digests and refusals as from tasks in Python."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as st

import lance_memwal as mw
from lance_memwal.spark.options import Options
from lance_memwal.spark.pieces import load_pieces, split_here, unsplit, write_pieces
from lance_memwal.spark.rows import WritePlan
from tests.kit.spark_tables import ids_of, keyed, rows_of

FRAME = st.StructType([st.StructField("id", st.LongType()), st.StructField("value", st.StringType())])
EXPRESSIONS = [
    "id",
    "concat('text ', id) text",
    "timestamp'2024-07-01 12:30:00.123456' + make_dt_interval(0, int(id)) moment",
    "timestamp_ntz'2024-07-01 12:30:00.5' local",
    "date'1969-12-31' day",
    "cast(id as decimal(20, 3)) / 8 price",
    "cast(concat('bytes ', id) as binary) raw",
    "array(id, null, id + 1) numbers",
    "named_struct('a', id, 'b', string(id)) pair",
    "map('key', id) named",
    "id % 2 = 0 even",
    "if(id % 3 = 0, null, float(id)) part",
]


def stream(*batches: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def rows(*keys: int | None) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(keys, pa.int64()), "value": [f"v{key}" for key in keys]})


def test_rows_that_came_unsplit_become_the_pieces_of_a_task(uri: str) -> None:
    table = keyed(uri, 8)
    plan = WritePlan.make(table, FRAME, Options.parse({"path": uri, "missing": "null"}))
    batches = [rows(*range(50)), rows(*range(50, 70))]
    by_task = write_pieces(plan, "0b", iter(batches))
    here = split_here(plan, unsplit("query", "run", stream(batches[0]), stream(batches[1])))
    assert (here.query_id, here.run_id, here.unsplit) == ("query", "run", ())
    assert [(p.shard_id, p.rows, p.digest) for p in here.pieces] == [
        (p.shard_id, p.rows, p.digest) for p in by_task.pieces
    ]
    for one, other in zip(here.pieces, by_task.pieces, strict=True):
        found, expected = (pa.Table.from_batches(load_pieces(table.location, [piece])) for piece in (one, other))
        assert found.equals(expected)
    assert split_here(plan, unsplit("query", "run")).pieces == ()
    assert split_here(plan, by_task) is by_task


def test_what_a_task_would_refuse_is_refused_at_the_commit(uri: str) -> None:
    plan = WritePlan.make(keyed(uri), FRAME, Options.parse({"path": uri, "missing": "null"}))
    refused = write_pieces(plan, "0b", iter([rows(1, None)])).refused
    with pytest.raises(mw.InvalidInputError) as raised:
        split_here(plan, unsplit(None, None, stream(rows(1, None))))
    assert str(raised.value) == str(refused)


def test_values_of_every_type_and_their_digests_are_those_of_python_tasks(spark: Any, uri: str) -> None:
    import lance_memwal.spark as ms

    frame = spark.range(0, 20, 1, 3).selectExpr(*EXPRESSIONS)
    tables = [mw.create_table(uri + name, ms.arrow_schema_for(frame.schema), primary_key="id") for name in "ab"]
    once = {"txnAppId": "load", "txnVersion": 1}
    for table, options in zip(tables, ({}, {"inlineBytes": "4m"}), strict=True):  # who says that wants Python's tasks
        frame.write.format("memwal").mode("append").options(**once, **options).save(table.uri)
    first, second = (table.scan().to_table().sort_by("id") for table in tables)
    assert first.num_rows == 20
    assert first.equals(second)
    frame.write.format("memwal").mode("append").options(**once, inlineBytes="4m").save(tables[0].uri)
    other = frame.where("id > 0")
    with pytest.raises(Exception, match="other rows"):
        other.write.format("memwal").mode("append").options(**once).save(tables[0].uri)
    assert tables[0].count_rows() == 20


def test_tasks_of_one_write_may_be_small_large_and_empty(spark: Any, uri: str) -> None:
    table = keyed(uri)
    wide = "if(id < 10, repeat('x', 100000), string(id)) value"
    spark.range(0, 40, 1, 4).where("id < 20 or id >= 30").selectExpr("id", wide, "1 n").write.format("memwal").mode(
        "append"
    ).save(uri)
    assert ids_of(table) == [*range(20), *range(30, 40)]
    assert all(len(value) == 100_000 for key, (value, _) in rows_of(table).items() if key < 10)
