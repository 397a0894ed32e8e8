"""The batch sink: upserts, appends, deletes, once per transaction; its options, its calls, and the rows that its tasks
hand over.
"""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as st

import lance_memwal as mw
from lance_memwal.errors import InvalidInputError
from lance_memwal.spark.calls import only_call
from lance_memwal.spark.executor_mode import balanced
from lance_memwal.spark.options import Options
from lance_memwal.spark.pieces import (
    Piece,
    all_staged,
    by_shard,
    inline_share,
    load_pieces,
    split_here,
    unsplit,
    unstage,
    write_pieces,
)
from lance_memwal.spark.rows import WritePlan
from lance_memwal.spark.sink import commit_pieces
from lance_memwal.store.paths import STAGE_DIR
from lance_memwal.types import Transaction
from tests.kit.spark import KEYED, PLAIN, append_only, entries_with_rows, ids_of, keyed, rows_of


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


def test_rows_too_large_for_a_message_are_staged_and_for_an_entry_are_a_generation(spark: Any, uri: str) -> None:
    table = append_only(uri, 2, writer_defaults={"max_entry_bytes": 2000})
    staged = spark.range(0, 5000, 1, 2).selectExpr("id", "repeat('x', 2000) value")  # 5 MB per task
    save(staged, uri, txnAppId="a", txnVersion=1)
    for _ in range(2):
        save(staged.selectExpr("id", "'in messages' value"), uri, txnAppId="a", txnVersion=2)
    assert len(ids_of(table)) == 10_000
    assert {info.generations for info in table.shards()} == {(1, 2)}
    assert table.location.store.list(STAGE_DIR) == []
    assert table.verify().ok


def test_a_log_that_is_too_long_is_flushed_before_the_commit_returns(spark: Any, uri: str) -> None:
    table = keyed(uri, 1, writer_defaults={"max_memtable_size": 1})
    for start, generations in ((0, (1,)), (10, (1,)), (20, (1, 2, 3))):
        save(spark.range(start, start + 10).selectExpr("id"), uri)
        # The first flush publishes a manifest, so the second commit does not know the length; the third one does.
        assert table.shards()[0].generations == generations
    save(spark.range(30, 40).selectExpr("id"), uri, maintenance="off")
    (info,) = table.shards()
    assert (info.wal_tail, info.generations) == (1, (1, 2, 3))
    assert ids_of(table) == list(range(40))


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
def test_rows_that_do_not_fit_are_refused(
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


def test_identity_and_unsharded_tables_take_rows_too(spark: Any, tmp_path: Any) -> None:
    from tests.kit.spark import KEYED

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


# Replacing all rows, output modes, and new columns: the same through the JVM face and through the pure Python source.

SOURCES = ["memwal", "memwal_py"]


def frame(spark: Any, *ids: int) -> Any:
    return spark.createDataFrame([(i, f"v{i}", i) for i in ids], "id long, value string, n int")


@pytest.mark.parametrize("source", SOURCES)
def test_an_overwrite_leaves_the_new_rows_only_in_all_tiers(spark: Any, uri: str, source: str) -> None:
    table = keyed(uri, 2)
    with table.writer() as writer:
        writer.put({"id": list(range(10))}, missing="null")
    table.compact()
    frame(spark, 20, 21).write.format(source).mode("append").save(uri)
    frame(spark, 3, 21, 30).write.format(source).mode("overwrite").save(uri)
    assert rows_of(table) == {3: ("v3", 3), 21: ("v21", 21), 30: ("v30", 30)}
    table.flush(force=True)
    table.compact()
    assert ids_of(table) == [3, 21, 30]
    assert table.dataset.count_rows() == 3
    with pytest.raises(Exception, match="leave out 'sequenceBy'"):
        frame(spark, 1).write.format(source).mode("overwrite").option("sequenceBy", "n").save(uri)
    assert ids_of(table) == [3, 21, 30]


def test_a_repeated_overwrite_of_one_version_writes_nothing(spark: Any, uri: str) -> None:
    table = keyed(uri, 2)
    for _ in range(2):
        writer = frame(spark, *range(8)).write.format("memwal").mode("overwrite").option("txnAppId", "job")
        writer.option("txnVersion", 1).save(uri)
    assert ids_of(table) == list(range(8))
    assert entries_with_rows(table) == 2


def test_an_append_only_table_is_overwritten_only_while_it_is_empty(spark: Any, uri: str) -> None:
    table = append_only(uri, 2)
    rows = spark.range(3).selectExpr("id", "'x' as value")
    rows.write.format("memwal").mode("overwrite").save(uri)
    with pytest.raises(Exception, match="without a primary key is not overwritten"):
        rows.write.format("memwal").mode("overwrite").save(uri)
    assert ids_of(table) == [0, 1, 2]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        pytest.param("update", {7: 2, 8: 1, 9: 5}, marks=pytest.mark.face),
        ("complete", {7: 2, 8: 1}),
    ],
)
def test_output_modes_of_a_stream(spark: Any, tmp_path: Path, mode: str, expected: dict[int, int]) -> None:
    table = keyed(str(tmp_path / "counts"), 2)
    with table.writer() as writer:
        writer.put({"id": [9], "n": [5]}, missing="null")
    given = tmp_path / "in"
    for number, ids in enumerate([(7, 8), (7,)]):
        (given / str(number)).mkdir(parents=True)
        (given / str(number) / "rows.json").write_text("".join(f'{{"id": {i}}}\n' for i in ids))
    stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(f"{given}/*")
    counts = stream.groupBy("id").count().selectExpr("id", "cast(null as string) as value", "cast(count as int) as n")
    writer = counts.writeStream.format("memwal").outputMode(mode).option("checkpointLocation", str(tmp_path / "cp"))
    query = writer.trigger(availableNow=True).start(table.uri)
    assert query.awaitTermination(60)
    assert {key: row[1] for key, row in rows_of(table).items()} == expected


@pytest.mark.parametrize("source", SOURCES)
def test_merge_schema_adds_the_columns_that_a_frame_has_more(spark: Any, uri: str, source: str) -> None:
    table = keyed(uri, 2)
    wider = frame(spark, 1, 2).selectExpr("*", "n * 1.5D as price")
    with pytest.raises(Exception, match="price"):
        wider.write.format(source).mode("append").save(uri)
    wider.write.format(source).mode("append").option("mergeSchema", "true").save(uri)
    wider.write.format(source).mode("append").option("mergeSchema", "true").save(uri)
    assert table.get(2) == {"id": 2, "value": "v2", "n": 2, "price": 3.0}


def test_a_table_that_was_made_anew_at_its_place_is_written_as_a_new_one(spark: Any, tmp_path: Path) -> None:
    uri = str(tmp_path / "again")
    for number in range(3):
        table = mw.create_table(uri, KEYED, primary_key="id")
        frame(spark, number).write.format("memwal").mode("append").save(uri)
        assert ids_of(table) == [number]
        shutil.rmtree(uri)


# A micro-batch has one call of `write_batch` per table, unless its calls have names.


def call(run: str, batch: int, table: str = "t", *, fails: bool = False) -> None:
    with only_call(run, batch, table):
        assert not fails


def test_a_second_call_for_one_table_is_refused_until_the_next_micro_batch() -> None:
    call("a", 7)
    call("a", 7, "other table")
    call("b", 7)
    with pytest.raises(InvalidInputError, match=r"micro-batch 7.*give each call its own app_id"):
        call("a", 7)
    call("a", 8)
    with pytest.raises(InvalidInputError, match="micro-batch 8"):
        call("a", 8)


def test_a_call_that_failed_may_be_made_again_and_one_that_runs_keeps_others_out() -> None:
    with pytest.raises(AssertionError):
        call("c", 1, fails=True)
    with only_call("c", 1, "t"), ThreadPoolExecutor(1) as threads, pytest.raises(InvalidInputError):
        threads.submit(call, "c", 1).result()


def test_runs_that_are_long_over_are_forgotten() -> None:
    call("first", 1)
    for number in range(256):
        call(f"run {number}", 1)
    call("first", 1)


# Rows on their way to the commit: how much of them travels in messages, and where the rest lies.

JOB = "0b"
FRAME = st.StructType([st.StructField("id", st.LongType()), st.StructField("value", st.StringType())])


def rows(start: int, number: int) -> pa.RecordBatch:
    return pa.record_batch(
        {"id": pa.array(range(start, start + number), pa.int64()), "value": ["x" * 50] * number}, schema=PLAIN
    )


def test_messages_are_bounded_in_sum_however_many_tasks_there_are() -> None:
    shares = [inline_share(number) for number in range(100_000)]
    assert sum(shares) <= 128 << 20
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 1 << 20, "few tasks stage nothing that is small"


def test_large_rows_are_one_staged_object_per_task_with_every_shard(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lance_memwal.spark.pieces.TASK_MESSAGE_BYTES", 1024)
    table = append_only(uri, 8)
    plan = WritePlan.make(table, FRAME, Options.parse({"path": uri}))
    message = write_pieces(plan, JOB, iter([rows(0, 500), rows(500, 500)]))
    small = write_pieces(plan, JOB, iter([rows(1000, 1)]))
    assert [piece.data for piece in message.pieces] == [None] * 8
    assert [piece.path for piece in small.pieces] == [None]
    store = table.location.store
    assert len(store.list(STAGE_DIR)) == 1
    pieces = by_shard([message, None, small])
    staged = all_staged(table.location, JOB, pieces)
    assert len(store.list(STAGE_DIR)) == 2
    assert all(piece.data is None for found in staged.values() for piece in found)
    for given in (pieces, staged):
        batches = [batch for found in given.values() for batch in load_pieces(table.location, found)]
        ids = [key for batch in batches for key in batch.column("id").to_pylist()]
        assert sorted(ids) == list(range(1001))
    unstage(table.location, [piece for found in staged.values() for piece in found])
    assert store.list(STAGE_DIR) == []
    assert mw.open_table(uri).count_rows() == 0, "nothing became visible"


def test_groups_of_shards_have_about_the_same_size() -> None:
    sizes = {f"s{number}": 100 if number else 1000 for number in range(11)}
    pieces = {
        shard_id: [Piece(shard_id, 1, size // 2), Piece(shard_id, 1, size // 2)] for shard_id, size in sizes.items()
    }
    groups = balanced(pieces, 2)
    assert sorted(sum(sizes[shard_id] for shard_id in group) for group in groups) == [1000, 1000]
    assert sorted(shard_id for group in groups for shard_id in group) == sorted(sizes)
    assert len(balanced(pieces, 100)) == 11


def test_rows_that_were_routed_for_a_table_before_are_refused_by_the_one_after_it(uri: str) -> None:
    options = Options.parse({"path": uri, "maintenance": "off"})
    before = append_only(uri, 4)
    message = write_pieces(WritePlan.make(before, FRAME, options), JOB, iter([rows(0, 100)]))
    before.drop()
    table = append_only(uri, 3)
    plan = WritePlan.make(table, FRAME, options)
    with pytest.raises(mw.InvalidInputError, match="rows belong to shard"):
        commit_pieces(plan, [message], Transaction("query", 1))
    commit_pieces(plan, [write_pieces(plan, JOB, iter([rows(0, 100)]))], Transaction("query", 2))
    assert table.count_rows() == 100


def test_defaults_and_values_are_parsed_whatever_the_case() -> None:
    options = Options.parse({"path": "/t", "OPERATION": "delete", "maxbytespertrigger": "8m", "columns": "a, b"})
    assert (options.operation, options.max_bytes_per_trigger, options.columns) == ("delete", 8 << 20, ("a", "b"))
    assert options.consistency == "fresh"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "URI"),
        ({"operatoin": "upsert"}, "did you mean 'operation'"),
        ({"operation": "replace"}, "upsert, append, update, delete"),
        ({"consistency": "newest"}, "fresh, flushed"),
        ({"maxBytesPerTrigger": "4 metres"}, "bytes"),
        ({"maintenence": "off"}, "did you mean 'maintenance'"),
        ({"maintenance": "commit"}, "background, off"),
        ({"unchangedSince": "x"}, "unknown option 'unchangedSince'"),
        ({"txnVersion": "-1"}, "number"),
        ({"txnVersion": "1"}, "txnAppId"),
        ({"failOnDataLoss": "yes"}, "true or false"),
        ({"maxRowsPerTrigger": "0"}, ">= 1"),
        ({"columns": " , "}, "column names"),
        ({"sequenceBy": "n", "duplicates": "last"}, "exclude"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_reason(given: dict[str, str], message: str) -> None:
    with pytest.raises(mw.InvalidInputError, match=message):
        Options.parse({"path": "/t"} | given if given else {})


def test_credentials_reach_the_store_and_no_repr() -> None:
    options = Options.parse({"path": "s3://b/t", "storage.aws_secret_access_key": "hidden"})
    assert options.storage_options == {"aws_secret_access_key": "hidden"}
    assert "hidden" not in repr(options)


# Tasks with few rows hand them to the commit as they are: the same rows and refusals as from tasks in Python.

EXPRESSIONS = [
    "id",
    "concat('text ', id) text",
    "timestamp'2024-07-01 12:30:00.123456' + make_dt_interval(0, int(id)) moment",
    "timestamp_ntz'2024-07-01 12:30:00.5' local",
    "date'1969-12-31' day",
    "cast(id as decimal(20, 3)) / 8 price",
    "cast(concat('bytes ', id) as binary) raw",
    "array(id, null, id + 1) numbers",
    "named_struct('a', id, 'b', string(id)) pair",
    "map('key', id) named",
    "id % 2 = 0 even",
    "if(id % 3 = 0, null, float(id)) part",
]


def stream(*batches: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def keyed_rows(*keys: int | None) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(keys, pa.int64()), "value": [f"v{key}" for key in keys]})


def test_rows_that_came_unsplit_become_the_pieces_of_a_task(uri: str) -> None:
    table = keyed(uri, 8)
    plan = WritePlan.make(table, FRAME, Options.parse({"path": uri, "missing": "null"}))
    batches = [keyed_rows(*range(50)), keyed_rows(*range(50, 70))]
    by_task = write_pieces(plan, "0b", iter(batches))
    here = split_here(plan, unsplit("query", "run", stream(batches[0]), stream(batches[1])))
    assert (here.query_id, here.run_id, here.unsplit) == ("query", "run", ())
    assert [(p.shard_id, p.rows) for p in here.pieces] == [(p.shard_id, p.rows) for p in by_task.pieces]
    for one, other in zip(here.pieces, by_task.pieces, strict=True):
        found, expected = (pa.Table.from_batches(load_pieces(table.location, [piece])) for piece in (one, other))
        assert found.equals(expected)
    assert split_here(plan, unsplit("query", "run")).pieces == ()
    assert split_here(plan, by_task) is by_task


def test_what_a_task_would_refuse_is_refused_at_the_commit(uri: str) -> None:
    plan = WritePlan.make(keyed(uri), FRAME, Options.parse({"path": uri, "missing": "null"}))
    refused = write_pieces(plan, "0b", iter([keyed_rows(1, None)])).refused
    with pytest.raises(mw.InvalidInputError) as raised:
        split_here(plan, unsplit(None, None, stream(keyed_rows(1, None))))
    assert str(raised.value) == str(refused)


def test_values_of_every_type_are_those_of_python_tasks(spark: Any, uri: str) -> None:
    import lance_memwal.spark as ms

    frame = spark.range(0, 20, 1, 3).selectExpr(*EXPRESSIONS)
    tables = [mw.create_table(uri + name, ms.arrow_schema_for(frame.schema), primary_key="id") for name in "ab"]
    once = {"txnAppId": "load", "txnVersion": 1}
    for table, source in zip(tables, ("memwal", "memwal_py"), strict=True):
        frame.write.format(source).mode("append").options(**once).save(table.uri)
    first, second = (table.scan().to_table().sort_by("id") for table in tables)
    assert first.num_rows == 20
    assert first.equals(second)
    frame.write.format("memwal_py").mode("append").options(**once).save(tables[0].uri)
    assert tables[0].count_rows() == 20


def test_tasks_of_one_write_may_be_small_large_and_empty(spark: Any, uri: str) -> None:
    table = keyed(uri)
    wide = "if(id < 10, repeat('x', 100000), string(id)) value"
    spark.range(0, 40, 1, 4).where("id < 20 or id >= 30").selectExpr("id", wide, "1 n").write.format("memwal").mode(
        "append"
    ).save(uri)
    assert ids_of(table) == [*range(20), *range(30, 40)]
    assert all(len(value) == 100_000 for key, (value, _) in rows_of(table).items() if key < 10)
