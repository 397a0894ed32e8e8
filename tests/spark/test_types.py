"""Types, both ways: every value reaches the other side unchanged, or is refused by name; keys and blobs, too."""

import datetime
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyspark.sql.types as column_types
import pytest
from pyspark.sql import types as st

import lance_memwal as mw
import lance_memwal.spark as ms
from lance_memwal.spark.feed import ChangeFeed, feed_schema
from lance_memwal.spark.options import CHANGE_FEED, Options
from lance_memwal.spark.types import (
    arrow_schema_for,
    spark_arrow_schema,
    spark_type,
    struct_type,
    to_arrow_columns,
    to_spark_batch,
)
from lance_memwal.table import newest_base
from tests.kit.blobs import blob_table, check_blob, check_blobs
from tests.kit.key_values import OWN_KEYS
from tests.kit.spark import VALUES, Tasks, compact_by_tasks

NAMES = [str(kind) for kind, _, _ in VALUES]


@pytest.mark.parametrize(("kind", "expected", "value"), VALUES, ids=NAMES)
def test_table_type_has_a_spark_type_with_equal_values(kind: pa.DataType, expected: st.DataType, value: object) -> None:
    assert spark_type(kind) == expected
    schema = pa.schema([("c", kind)])
    array = pa.array([value, None], kind if not pa.types.is_dictionary(kind) else kind.value_type)
    batch = pa.record_batch([array.dictionary_encode() if pa.types.is_dictionary(kind) else array], ["c"])
    wanted = spark_arrow_schema(struct_type(schema))
    converted = to_spark_batch(batch, wanted)
    assert converted.schema == wanted
    plain = converted.column(0).to_pylist()
    assert plain == [value, None]


@pytest.mark.parametrize(("kind", "expected", "value"), VALUES, ids=NAMES)
def test_values_that_spark_sends_back_fit_the_table(kind: pa.DataType, expected: st.DataType, value: object) -> None:
    from lance_memwal.rows.fit import Fitter
    from lance_memwal.rows.schema import TableSchema

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    wanted = spark_arrow_schema(st.StructType([st.StructField("c", expected)]))
    sent = to_spark_batch(pa.record_batch([pa.array([value, None], kind)], ["c"]), wanted)
    table = TableSchema.from_arrow(pa.schema([("c", kind)]))
    fitted = Fitter(table).fit_flagged(to_arrow_columns(sent, table.columns))
    assert fitted.column(0).type == kind
    assert fitted.column(0).to_pylist() == [value, None]


@pytest.mark.parametrize("kind", [pa.decimal256(50, 2), pa.month_day_nano_interval()])
def test_a_table_type_that_spark_lacks_is_refused_by_name(kind: pa.DataType) -> None:
    with pytest.raises(mw.InvalidInputError, match=r"'odd'.*columns"):
        struct_type(pa.schema([("odd", kind)]))


@pytest.mark.parametrize("kind", [st.VariantType(), st.YearMonthIntervalType(), st.CalendarIntervalType()])
def test_a_spark_type_that_lance_lacks_is_refused_by_name(kind: st.DataType) -> None:
    with pytest.raises(mw.InvalidInputError, match="'odd'"):
        arrow_schema_for(st.StructType([st.StructField("odd", kind)]))


def test_nanoseconds_that_spark_would_lose_are_an_error() -> None:
    batch = pa.record_batch([pa.array([1], pa.timestamp("ns"))], ["t"])
    wanted = spark_arrow_schema(struct_type(batch.schema))
    with pytest.raises(mw.InvalidInputError, match="'t'"):
        to_spark_batch(batch, wanted)


def test_a_vector_of_the_wrong_length_is_refused_by_name() -> None:
    table = pa.schema([("v", pa.list_(pa.float32(), 3))])
    sent = pa.record_batch([pa.array([[1.0, 2.0]], pa.list_(pa.float32()))], ["v"])
    with pytest.raises(mw.InvalidInputError, match=r"'v'.*3"):
        to_arrow_columns(sent, table)


def test_a_new_table_can_be_made_from_the_schema_of_a_dataframe(uri: str) -> None:
    frame = st.StructType(
        [
            st.StructField("id", st.LongType(), nullable=False),
            st.StructField("at", st.TimestampType()),
            st.StructField("tags", st.ArrayType(st.StringType())),
            st.StructField("price", st.DecimalType(10, 2)),
        ]
    )
    table = mw.create_table(uri, arrow_schema_for(frame), primary_key="id")
    assert struct_type(table.schema).simpleString() == frame.simpleString()


# Tables whose keys are UUIDs, binaries of a fixed size, dates, timestamps and decimals: into the sink and out of the
# source.

ID = [uuid.UUID(int=n * 7919) for n in range(4)]
DAY = datetime.date(2026, 1, 31)
TIME = datetime.datetime(2026, 1, 31, 1, 2, 3, 4)
SCHEMA = pa.schema(
    [
        ("id", pa.uuid()),
        ("raw", pa.binary(2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("amount", pa.decimal128(10, 2)),
        ("doc", pa.json_()),
    ]
)


def test_spark_writes_deletes_and_reads_rows_by_such_keys(spark: Any, uri: str) -> None:
    key = ["id", "raw", "day", "at", "amount"]
    table = mw.create_table(uri, SCHEMA, primary_key=key, writer_defaults={"fsync": False})
    rows = [(str(i), b"ab", DAY, TIME, Decimal("-1.50"), f'{{"n": {n}}}') for n, i in enumerate(ID)]
    names = "id string, raw binary, day date, at timestamp, amount decimal(10,2), doc string"
    for _ in range(2):  # the second time every row replaces its like
        spark.createDataFrame(rows, names).write.format("memwal").mode("append").option("operation", "upsert").save(uri)
    assert table.count_rows() == len(ID)
    at = TIME.replace(tzinfo=datetime.UTC)
    assert table.get((ID[2], b"ab", DAY, at, Decimal("-1.5")))["doc"] is not None
    gone = spark.createDataFrame(rows[:1], names).drop("doc")
    gone.write.format("memwal").mode("append").option("operation", "delete").save(uri)
    for _ in range(2):
        found = {row["id"]: row for row in spark.read.format("memwal").load(uri).collect()}
        assert sorted(found) == [str(i) for i in ID[1:]]
        assert found[str(ID[3])]["amount"] == Decimal("-1.50")
        assert bytes(found[str(ID[3])]["raw"]) == b"ab"
        table.flush(force=True)
        table.compact()


@pytest.mark.parametrize(("kind", "values"), OWN_KEYS[::4], ids=[str(kind) for kind, _ in OWN_KEYS[::4]])
def test_distributed_compaction_compares_such_keys(tmp_path: Path, kind: pa.DataType, values: list[Any]) -> None:
    schema = pa.schema([("k", kind), ("part", pa.string()), ("v", pa.int64())])
    for key in (["k"], ["k", "part"]):
        uri = str(tmp_path / "-".join(key))
        table = mw.create_table(uri, schema, primary_key=key, writer_defaults={"fsync": False})
        for step in range(3):
            with table.shard_writer() as writer:
                writer.put([{"k": value, "part": "q", "v": 10 * step + i} for i, value in enumerate(values)])
                writer.delete([(values[step], "q") if len(key) > 1 else values[step]])
            if step != 1:
                compact_by_tasks(uri)
        assert sorted(lance.dataset(uri).to_table()["v"].to_pylist()) == [20, 21, 23]


# Blob columns in Spark: binary goes in, what Lance shows comes out; the feed and a compaction by tasks have them,
# too.

FRAME = column_types.StructType(
    [
        column_types.StructField("id", column_types.LongType(), False),
        column_types.StructField("image", column_types.BinaryType()),
        column_types.StructField("n", column_types.StringType()),
    ]
)
FIRST: dict[int, bytes | None] = {1: b"one", 2: b"two" * 1000}
THEN: dict[int, bytes | None] = {1: b"one", 2: b"2" * 3000, 3: None, 4: b""}


@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_binary_goes_in_and_what_lance_shows_comes_out(spark: Any, tmp_path: Path, version: str) -> None:
    table = blob_table(tmp_path, FIRST, version)
    written = [(key, None if THEN[key] is None else bytearray(THEN[key] or b""), str(key)) for key in (2, 3, 4)]
    frame = spark.createDataFrame(written, FRAME)
    frame.write.format("memwal").mode("append").option("operation", "upsert").save(table.uri)
    check_blobs(table, THEN)
    for _ in ("log", "SSTable", "base table"):
        rows = spark.read.format("memwal").load(table.uri).collect()
        sizes = {row["id"]: None if row["image"] is None else int(row["image"]["size"]) for row in rows}
        assert sizes == {1: 3, 2: 3000, 3: None, 4: 0}
        some = spark.read.format("memwal").option("filter", "image is null").load(table.uri).select("id").collect()
        assert [row["id"] for row in some] == [3]
        table.flush(force=True)
        compact_by_tasks(table.uri, Tasks(2))  # every task twice, as Spark may run it
        check_blobs(table, THEN)


@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_the_feed_shows_the_sizes_of_blobs(tmp_path: Path, version: str) -> None:
    table = blob_table(tmp_path, FIRST, version)
    with table.writer(compaction=None, fsync=False) as writer:
        writer.put([{"id": 2, "image": b"22", "n": "2"}, {"id": 3, "image": None, "n": "3"}])
        writer.delete([1])
    feed = ChangeFeed(
        Options.parse({"path": table.uri, CHANGE_FEED: "true"}), feed_schema(newest_base(table).columns.shown.columns)
    )
    start = {"shards": dict.fromkeys(feed.reportLatestOffset()["shards"], 1)}
    parts = feed.partitions(start, feed.reportLatestOffset())
    rows = [row for part in parts for batch in feed.read(part) for row in batch.to_pylist()]
    found = [(row["_op"], row["id"], row["image"] and int(row["image"]["size"])) for row in rows]
    assert found == [("u", 2, 2), ("u", 3, None), ("d", 1, None)]


def test_a_large_blob_goes_through_a_compaction_by_tasks(tmp_path: Path) -> None:
    large = bytes(range(256)) * (10 << 12)  # more than one part
    table = blob_table(tmp_path, FIRST)
    with table.writer(compaction=None, fsync=False) as writer:
        writer.put([{"id": 5, "image": large, "n": "5"}, {"id": 6, "image": b"small", "n": "6"}])
    assert compact_by_tasks(table.uri).rows_written == 2
    check_blob(table, 5, large)
    assert mw.open_table(table.uri).verify().ok


def test_vectors_and_texts_are_found_from_sql(spark: Any, tmp_path: Path) -> None:
    uri = str(tmp_path / "docs")
    meta = pa.struct([("a", pa.int32())])
    fields = [("title", pa.string()), ("v", pa.list_(pa.float32(), 2)), ("meta", meta)]
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), *fields])
    titles, vectors = ["red tea", "green tea", "salt"], [[0.0, 0.0], [1.0, 1.0], [5.0, 5.0]]
    with mw.create_table(uri, schema, primary_key="id").writer() as writer:
        writer.put({"id": [1, 2, 3], "title": titles, "v": vectors, "meta": [{"a": 7}] * 3})

    def rows(text: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in spark.sql(text).collect()]

    found = f"FROM memwal_search('{uri}', vector => array(1f, 1f), k => 2)"
    assert rows(f"SELECT id, meta.a, _distance {found} ORDER BY _distance") == [(2, 7, 0.0), (1, 7, 2.0)]
    texts = (
        f"memwal_search(table => '{uri}', text => 'tea', column => 'title', columns => 'id,title', filter => 'id < 2')"
    )
    (best,) = rows(f"SELECT * FROM {texts}")
    assert best[:2] == (1, "red tea")
    assert best[2] > 0
    nearest = ms.search(spark, uri, [1.0, 1.0], k=2)
    assert [tuple(row) for row in nearest.select("id", "meta", "_distance").collect()] == [
        (2, (7,), 0.0),
        (1, (7,), 2.0),
    ]
    (best,) = ms.search(spark, uri, text="tea", column="title", filter="id < 2").collect()
    assert (best["id"], best["meta"]["a"]) == (1, 7)
    with pytest.raises(mw.InvalidInputError):
        ms.search(spark, uri)
    with pytest.raises(Exception, match="must be a constant"):
        rows(f"SELECT * FROM VALUES ('{uri}') t(u), LATERAL memwal_search(t.u, text => 'tea', column => 'title')")
