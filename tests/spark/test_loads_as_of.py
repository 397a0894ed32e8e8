"""Loads as of then: the option `asOf`."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any

import pytest

import lance_memwal as mw
from lance_memwal.spark.options import Options
from tests.harness.profile import scaled
from tests.kit.busy_life import BusyLife, make_table
from tests.kit.spark_tables import keyed


def put(table: mw.Table, value: str, *, flush: bool = True) -> None:
    writer = table.writer(compaction=None)
    writer.put({"id": [1, 2, 3, 4], "value": [value] * 4}, missing="null")
    writer.close() if flush else writer.abort()


def values(spark: Any, uri: str, moment: object) -> set[str]:
    loaded = spark.read.format("memwal").option("asOf", str(moment)).load(uri)
    return {row["value"] for row in loaded.collect()}


def test_a_load_as_of_a_moment_shows_what_was_there_then(spark: Any, uri: str) -> None:
    table = keyed(uri, 2)
    put(table, "first")
    table.compact()
    version = table.base.version
    put(table, "second", flush=False)
    then, snapshot = datetime.now(UTC), table.snapshot()
    table.checkpoint_create("before")
    time.sleep(0.01)
    for number in range(3):
        put(table, f"later {number}")
        table.compact()
    assert values(spark, uri, version) == {"first"}
    assert values(spark, uri, snapshot) == values(spark, uri, then.isoformat()) == {"second"}
    table.gc(grace_seconds=0)
    assert values(spark, uri, "before") == {"second"}
    with pytest.raises(Exception, match="no checkpoint 'other'"):
        values(spark, uri, "other")


@pytest.mark.scaled
def test_a_load_equals_what_was_recorded_at_moments_of_a_busy_life(spark: Any, uri: str) -> None:
    table = make_table(uri, "plain")
    life, moments = BusyLife(table, "plain", 5), []
    try:
        for number in range(scaled(ci=2, prove=50)):
            steps = [life.step() for _ in range(10)]
            moments.append(life.moment(number, ", ".join(steps)))
    finally:
        life.close()
    for moment in moments:
        loaded = spark.read.format("memwal").option("asOf", moment.name or str(moment.snapshot)).load(uri)
        found = sorted(((row["id"], row["words"]) for row in loaded.select("id", "words").collect()), key=itemgetter(0))
        assert found == [(row["id"], row["words"]) for row in moment.said["rows"]], moment.step


def test_as_of_is_for_reads_of_the_whole_table() -> None:
    with pytest.raises(mw.InvalidInputError, match="asOf"):
        Options.parse({"path": "t", "asOf": "x", "consistency": "flushed"})
    assert Options.parse({"path": "t", "asof": "x"}).as_of == "x"
