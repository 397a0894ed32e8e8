"""A session in which the JVM face is switched off."""

import sys
from pathlib import Path

import lance_memwal.spark as ms
from tests.kit.spark import keyed


def main(root: str) -> None:
    spark = ms.session("local[2]", **{"spark.memwal.face": "off", "spark.driver.memory": "1g"})
    uri = f"{root}/table"
    keyed(uri, 2)
    spark.range(100).write.format("memwal").mode("append").option("missing", "null").save(uri)
    deletes = spark.range(10).write.format("memwal").mode("append").option("operation", "delete")
    deletes.save(uri)
    frame = spark.read.format("memwal").load(uri)
    counts = [frame.count(), len(frame.collect()), frame.where("id = 11").count()]
    Path(root, "result").write_text(" ".join(map(str, [ms.face(spark), *counts])))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
