"""A stream of upserts into a bucket-sharded table, read back fresh from Python and from Spark SQL while it runs.

Run: `python examples/spark_stream.py` (needs `lance-memwal[spark]`; a Java runtime comes with it).
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa

import lance_memwal as mw
import lance_memwal.spark as ms

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.int64())])


def main() -> None:
    """Stream, look at the table meanwhile, stop."""
    with tempfile.TemporaryDirectory() as directory:
        uri = str(Path(directory) / "table")
        table = mw.create_table(uri, SCHEMA, primary_key="id", sharding=mw.Bucket("id", 4))
        spark = ms.session("local[2]", **{"spark.log.level": "ERROR"})
        rows = spark.readStream.format("rate").option("rowsPerSecond", 200).load()
        query = (
            rows.selectExpr("value", "value % 1000 id", "value as newest")
            .writeStream.format("memwal")
            .option("sequenceBy", "newest")
            .option("checkpointLocation", str(Path(directory) / "checkpoint"))
            .trigger(processingTime="1 second")
            .start(uri)
        )
        for _ in range(3):
            query.awaitTermination(1)
            fresh = spark.read.format("memwal").load(uri).selectExpr("count(*)", "max(value)").first()
            print(f"python: {table.count_rows()} rows   spark: {fresh[0]} rows, newest {fresh[1]}")
        query.stop()
        spark.stop()


if __name__ == "__main__":
    main()
