"""A driver of its own for tests that kill it: runs the stream of `once_kit` (or the feed) until it is done."""

import sys
from pathlib import Path

import lance_memwal.spark as ms


def main(kind: str, master: str, source: str, uri: str, checkpoint: str) -> None:
    conf = {"spark.sql.shuffle.partitions": 2, "spark.log.level": "OFF"}
    spark = ms.session(master, **conf)
    if kind == "sink":
        from tests.kit.spark import start

        query = start(spark, Path(source), uri, Path(checkpoint))
    else:
        options = {"maxEntriesPerTrigger": 8, "startingPosition": "earliest"}
        feed = spark.readStream.format("memwal").options(**options).load(source)
        copied = feed.selectExpr("id", "_shard shard", "_position position")
        query = (
            copied.writeStream.format("memwal")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start(uri)
        )
    query.awaitTermination()
    Path(checkpoint, "done").touch()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
