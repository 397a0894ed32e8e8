"""A session of plain PySpark that imports nothing of memwal: Spark finds the format by itself."""

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession


def main(root: str) -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.log.level", "OFF").config("spark.sql.shuffle.partitions", 2).getOrCreate()
    uri = f"{root}/table"
    spark.range(100).write.format("memwal").mode("append").option("missing", "null").save(uri)
    view = f"CREATE OR REPLACE TEMPORARY VIEW v USING memwal OPTIONS (path '{uri}')"
    spark.sql(view)
    spark.sql("INSERT INTO v SELECT 1000L, 'sql', 7")
    spark.sql(view)
    read = spark.read.format("memwal").load(uri)
    feed = spark.readStream.format("memwal_changes").load(uri)
    copy = feed.selectExpr("id", "_op value").writeStream.format("memwal").option("checkpointLocation", f"{root}/c")
    copy.trigger(availableNow=True).start(f"{root}/copy").awaitTermination()
    result = {
        "read": read.count(),
        "sql": [list(row) for row in spark.sql("SELECT value, n FROM v WHERE id = 1000").collect()],
        "copied": spark.read.format("memwal").load(f"{root}/copy").where("value = 'u'").count(),
        "imported": sorted(
            name
            for name in sys.modules
            if name.partition(".")[0] in ("lance_memwal", "pyspark_memwal", "pyspark_memwal_changes")
        ),
    }
    Path(root, "result.json").write_text(json.dumps(result))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
