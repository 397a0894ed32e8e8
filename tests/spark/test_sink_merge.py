"""The sinks on a table that puts its rows in order."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from tests.kit.spark_tables import rows_of


def save(frame: Any, uri: str, **options: Any) -> None:
    frame.write.format("memwal").mode("append").options(**options).save(uri)


def test_late_rows_of_a_frame_change_nothing(spark: Any, uri: str) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.string()), ("ts", pa.int64())])
    table = mw.create_table(
        uri, schema, primary_key="id", sharding=mw.Bucket("id", 2), merge=mw.LastWrite(sequence="ts")
    )
    save(spark.range(0, 10).selectExpr("id", "'a' value", "10L ts"), uri)
    save(spark.range(0, 10).selectExpr("id", "'late' value", "id * 2 ts"), uri, txnAppId="load", txnVersion=1)
    save(spark.range(8, 12).selectExpr("id", "30L ts"), uri, operation="delete")
    save(spark.createDataFrame([(0, "b", 11, None), (1, None, 9, "d"), (11, "late", 29, "u")],
                               "id long, value string, ts long, _op string"), uri)  # fmt: skip
    expected = {i: ("a", 10) if i < 5 else ("late", i * 2) for i in range(8)}
    assert rows_of(table) == {**expected, 0: ("b", 11)}
    with pytest.raises(Exception, match="ts"):
        save(spark.range(3), uri, operation="delete")
