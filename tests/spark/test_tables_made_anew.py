"""Tables that are dropped and made anew at one place, again and again, in one session: each has its own rows and no other's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lance_memwal as mw
import lance_memwal.spark as ms
from tests.kit.spark_once import finish
from tests.kit.spark_tables import ids_of, keyed

ROUNDS = 3


@pytest.mark.parametrize("fmt", ["memwal", "memwal_py"])
def test_every_way_in_and_out_knows_which_table_is_meant(spark: Any, uri: str, tmp_path: Path, fmt: str) -> None:
    for number in range(ROUNDS):
        table, first = keyed(uri, 2), number * 1000
        rows = spark.range(first, first + 10, 1, 2)
        once = {"txnAppId": "job", "txnVersion": "1", "missing": "null"}
        rows.write.format(fmt).mode("append").options(**once).save(uri)
        more = ms.write_batch(spark.range(first + 10, first + 20), uri, 1, app_id="other", missing="null")
        assert more.rows == 10, "the mark of the table before counts for that one"
        source = tmp_path / f"in-{number}"
        spark.range(first + 20, first + 30, 1, 1).write.parquet(str(source))
        stream = spark.readStream.schema("id long").parquet(str(source)).writeStream.format(fmt)
        stream = stream.options(missing="null", checkpointLocation=str(tmp_path / f"c-{number}"))
        finish(lambda: stream.trigger(availableNow=True).start(uri))  # noqa: B023
        expected = list(range(first, first + 30))
        assert ids_of(table) == expected
        read = spark.read.format(fmt).load(uri)
        assert sorted(row["id"] for row in read.select("id").collect()) == expected
        assert (read.count(), read.where(f"id = {first + 5}").count()) == (30, 1)
        if number % 2:
            table.flush(force=True)
            table.compact()
            assert spark.read.format(fmt).load(uri).count() == 30
        table.drop(force=True)
        with pytest.raises(Exception, match=r"no table|not found|Not found|does not exist"):
            spark.read.format(fmt).load(uri).count()


def test_a_feed_of_another_table_at_its_place_stops(spark: Any, uri: str, tmp_path: Path) -> None:
    table = keyed(uri, 1)
    seen: list[int] = []

    def run() -> None:
        feed = spark.readStream.format("memwal_changes").load(uri).writeStream
        each = feed.foreachBatch(lambda frame, _: seen.extend(row["id"] for row in frame.collect()))
        each = each.option("checkpointLocation", str(tmp_path / "c"))
        finish(lambda: each.trigger(availableNow=True).start())

    def put(*ids: int) -> None:
        with mw.open_table(uri).writer() as writer:
            writer.put({"id": ids}, missing="null")

    put(1, 2)
    run()
    put(3)
    run()
    assert sorted(seen) == [1, 2, 3]
    table.drop(force=True)
    keyed(uri, 1)
    for number in range(10, 20):
        put(number)
    with pytest.raises(Exception, match="made anew"):
        run()
    assert sorted(seen) == [1, 2, 3], "rows of the new table are not the rest of the old one"
