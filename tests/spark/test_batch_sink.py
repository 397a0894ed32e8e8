"""The batch sink: upserts, appends, deletes, once per transaction."""

from __future__ import annotations

from typing import Any

import pytest

import lance_memwal as mw
from lance_memwal.store.paths import STAGE_DIR
from tests.kit.spark_tables import append_only, ids_of, keyed, rows_of


def save(frame: Any, uri: str, **options: Any) -> None:
    frame.write.format("memwal").mode("append").options(**{"missing": "null", **options}).save(uri)


def test_upserts_and_deletes_reach_the_rows_of_their_keys(spark: Any, uri: str) -> None:
    table = keyed(uri)
    save(spark.range(0, 100, 1, 3).selectExpr("id", "string(id) value", "1 n"), uri)
    save(spark.range(50, 120).selectExpr("id", "'new' value"), uri, operation="upsert")
    save(spark.range(0, 10), uri, operation="delete")
    changes = [(10, "d", None), (11, "u", "kept"), (500, None, "also")]
    save(spark.createDataFrame(changes, "id long, _op string, value string"), uri)
    save(spark.createDataFrame([(12, True), (13, False)], "id long, _tombstone boolean"), uri)
    expected: dict[int, tuple[Any, ...]] = {i: (str(i), 1) for i in range(11, 50)}
    expected |= dict.fromkeys(range(50, 120), ("new", None)) | {
        11: ("kept", None),
        500: ("also", None),
        13: (None, None),
    }
    del expected[12]
    assert rows_of(table) == expected


def test_a_transaction_is_written_once_and_an_older_one_is_an_error(spark: Any, uri: str) -> None:
    table = append_only(uri)
    frame = spark.range(100).selectExpr("id", "'a' value")
    for _ in range(2):
        save(frame, uri, txnAppId="load", txnVersion=7)
    assert ids_of(table) == list(range(100))
    with pytest.raises(Exception, match="older"):
        save(frame, uri, txnAppId="load", txnVersion=6)
    assert set(table.transactions())
    assert all(seen == {"load": 7} for seen in table.transactions().values())


def test_what_is_too_much_for_a_message_is_staged_and_what_is_too_much_for_an_entry_is_a_generation(
    spark: Any, uri: str
) -> None:
    table = append_only(uri, 2)
    frame = spark.range(0, 5000, 1, 2).selectExpr("id", "repeat('x', 20) value")
    save(frame, uri, inlineBytes=1000, txnAppId="a", txnVersion=1)
    save(frame, uri, inlineBytes=1000, maxEntryBytes=2000, txnAppId="a", txnVersion=2)
    save(frame, uri, maxEntryBytes=2000, txnAppId="a", txnVersion=2)
    assert len(ids_of(table)) == 10_000
    assert {info.generations for info in table.shards()} == {(1, 2)}
    assert table.location.store.list(STAGE_DIR) == []
    assert table.verify().ok


def test_a_long_log_is_flushed_and_many_generations_are_folded(spark: Any, uri: str) -> None:
    table = keyed(uri, 1)
    for start in (0, 10, 20):
        save(spark.range(start, start + 10).selectExpr("id"), uri, flushBytes=1, compactGenerations=3, upkeep="commit")
    (info,) = table.shards()
    assert (info.wal_tail, info.generations) == (0, ())
    assert table.dataset.count_rows() == 30
    assert ids_of(table) == list(range(30))


def test_duplicate_keys_need_a_rule(spark: Any, uri: str) -> None:
    table = keyed(uri)
    frame = spark.createDataFrame(
        [(1, "old", 1), (1, "new", 3), (1, "mid", 2), (2, "only", 1)], "id long, value string, n int"
    )
    with pytest.raises(Exception, match="sequenceBy"):
        save(frame, uri)
    assert ids_of(table) == []
    save(frame, uri, sequenceBy="N")
    assert rows_of(table) == {1: ("new", 3), 2: ("only", 1)}
    save(frame.selectExpr("*", "n as newest"), uri, sequenceBy="Newest")
    assert rows_of(table) == {1: ("new", 3), 2: ("only", 1)}
    save(frame.coalesce(1), uri, duplicates="last")
    assert rows_of(table)[1] == ("mid", 2)


@pytest.mark.parametrize(
    ("sql", "options", "message"),
    [
        ("select 1L id, 'x' other", {}, "'other' is not in the table"),
        ("select 'v' value", {}, "'id' is missing"),
        ("select 1L id", {"operation": "append"}, "primary key"),
        ("select 1L id, 'd' _op, true _tombstone", {}, "both"),
        ("select 1L id", {"sequenceBy": "nothing"}, "sequenceBy"),
        ("select 1L id", {"txnAppId": "a"}, "txnVersion"),
        ("select 1L id, 'x' _op", {}, "nothing else"),
        ("select cast(null as long) id", {}, "'id' must not be null"),
        ("select 1L id, 'abc' n", {}, "'n'"),
    ],
)
def test_what_does_not_fit_the_table_is_refused_and_writes_nothing(
    spark: Any, uri: str, sql: str, options: dict[str, Any], message: str
) -> None:
    table = keyed(uri)
    with pytest.raises(Exception, match=message):
        save(spark.sql(sql), uri, **options)
    assert ids_of(table) == []


def test_a_column_that_the_frame_leaves_out_is_refused_unless_it_may_be_null(spark: Any, uri: str) -> None:
    table = keyed(uri)
    save(spark.sql("select 1L id, 'a' value, 7 n"), uri)
    for missing in ({}, {"missing": "error"}):
        write = spark.sql("select 1L id, 'b' value").write.format("memwal").mode("append").options(**missing)
        with pytest.raises(Exception, match=r"left out: 'n'.*missing='null'"):
            write.save(uri)
    save(spark.sql("select 1L id"), uri, missing="keep")
    assert table.get(1) == {"id": 1, "value": "a", "n": 7}
    spark.sql("select 1L id, 'd' _op").write.format("memwal").mode("append").save(uri)  # a delete needs its key alone
    assert table.get(1) is None
    save(spark.sql("select 1L id, 'b' value"), uri, missing="null")
    assert table.get(1) == {"id": 1, "value": "b", "n": None}


def test_a_sink_waits_for_a_writer_that_keeps_the_shard_and_fences_nobody(spark: Any, uri: str) -> None:
    table = keyed(uri, 1)
    with table.writer() as writer:
        writer.put({"id": [1]}, missing="null")
        with pytest.raises(Exception, match="ConflictError"):
            save(spark.range(2, 4), uri, ownerWaitSeconds="1")
        writer.put({"id": [9]}, missing="null")
    save(spark.range(2, 4), uri, ownerWaitSeconds="1")
    assert ids_of(table) == [1, 2, 3, 9]


def test_identity_and_unsharded_tables_take_rows_too(spark: Any, tmp_path: Any) -> None:
    from tests.kit.spark_tables import KEYED

    for name, sharding in (("a", mw.Unsharded()), ("b", mw.Identity("id"))):
        table = mw.create_table(str(tmp_path / name), KEYED, primary_key="id", sharding=sharding)
        save(spark.range(5), str(tmp_path / name))
        assert ids_of(table) == [0, 1, 2, 3, 4]
    manual = mw.create_table(
        str(tmp_path / "c"), KEYED, primary_key="id", sharding=mw.Manual(), allow_keys_across_shards=True
    )
    with pytest.raises(Exception, match="manual shards"):
        save(spark.range(5), str(tmp_path / "c"))
    assert ids_of(manual) == []
