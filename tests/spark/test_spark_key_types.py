"""Tables whose keys are UUIDs, binaries of a fixed size, dates, timestamps and decimals: into the sink and out of the source."""

from __future__ import annotations

import datetime
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from tests.kit.key_values import OWN_KEYS
from tests.kit.spark_compaction import compact_by_tasks

ID = [uuid.UUID(int=n * 7919) for n in range(4)]
DAY = datetime.date(2026, 1, 31)
TIME = datetime.datetime(2026, 1, 31, 1, 2, 3, 4)
SCHEMA = pa.schema(
    [
        ("id", pa.uuid()),
        ("raw", pa.binary(2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("amount", pa.decimal128(10, 2)),
        ("doc", pa.json_()),
    ]
)


def test_spark_writes_deletes_and_reads_rows_by_such_keys(spark: Any, uri: str) -> None:
    key = ["id", "raw", "day", "at", "amount"]
    table = mw.create_table(uri, SCHEMA, primary_key=key, writer_defaults={"fsync": False})
    rows = [(str(i), b"ab", DAY, TIME, Decimal("-1.50"), f'{{"n": {n}}}') for n, i in enumerate(ID)]
    names = "id string, raw binary, day date, at timestamp, amount decimal(10,2), doc string"
    for _ in range(2):  # the second time every row replaces its like
        spark.createDataFrame(rows, names).write.format("memwal").mode("append").option("operation", "upsert").save(uri)
    assert table.count_rows() == len(ID)
    at = TIME.replace(tzinfo=datetime.UTC)
    assert table.get((ID[2], b"ab", DAY, at, Decimal("-1.5")))["doc"] is not None
    gone = spark.createDataFrame(rows[:1], names).drop("doc")
    gone.write.format("memwal").mode("append").option("operation", "delete").save(uri)
    for _ in range(2):
        found = {row["id"]: row for row in spark.read.format("memwal").load(uri).collect()}
        assert sorted(found) == [str(i) for i in ID[1:]]
        assert found[str(ID[3])]["amount"] == Decimal("-1.50")
        assert bytes(found[str(ID[3])]["raw"]) == b"ab"
        table.flush(force=True)
        table.compact()


@pytest.mark.parametrize(("kind", "values"), OWN_KEYS[::4], ids=[str(kind) for kind, _ in OWN_KEYS[::4]])
def test_distributed_compaction_compares_such_keys(tmp_path: Path, kind: pa.DataType, values: list[Any]) -> None:
    schema = pa.schema([("k", kind), ("part", pa.string()), ("v", pa.int64())])
    for key in (["k"], ["k", "part"]):
        uri = str(tmp_path / "-".join(key))
        table = mw.create_table(uri, schema, primary_key=key, writer_defaults={"fsync": False})
        for step in range(3):
            with table.shard_writer() as writer:
                writer.put([{"k": value, "part": "q", "v": 10 * step + i} for i, value in enumerate(values)])
                writer.delete([(values[step], "q") if len(key) > 1 else values[step]])
            if step != 1:
                compact_by_tasks(uri)
        assert sorted(lance.dataset(uri).to_table()["v"].to_pylist()) == [20, 21, 23]
