"""Tables, statements, streams, values, compactions and killed drivers that the Spark tests share."""

import datetime
import decimal
import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from pyspark.sql import types as st

import lance_memwal as mw
from lance_memwal.compact.reports import CompactionReport
from lance_memwal.lance.base import BaseTable
from lance_memwal.spark.distributed import distributed_compactor
from lance_memwal.spark.feed import ChangeFeed, feed_schema
from lance_memwal.spark.options import CHANGE_FEED, Options
from lance_memwal.spark.stages import Job
from lance_memwal.store.location import resolve

Outcome = Any
CATALOG = "io.memwal.spark.MemWalCatalog"

EXPECTED_SQL: dict[str, Outcome] = {
    "CREATE TABLE": [["id", "bucket(id,2)", "last-write:at"], ["string", "what"], ["about", ""]],
    "SHOW TABLES": [["t"]],
    "INSERT INTO": [[1, "ice", 1], [2, "tea", 2], [3, "salt", 3]],
    "CREATE TABLE AS SELECT": [[2, "tea", 2], [3, "salt", 3]],
    "saveAsTable": [[3], [2]],
    "writeTo": [[2, "tea", 2], [3, "salt", 3], [9, "new", 9]],
    "UPDATE": [[1, "ICE", 1], [2, "tea", 2], [3, "salt", 3]],
    "DELETE": [[1, "ICE", 1], [3, "salt", 3]],
    "MERGE INTO": [[1, "ICE", 1], [7, "oil", 7]],
    "refused": [[1, "ICE", 1], [7, "oil", 7]],
    "count": [[1]],
    "INSERT OVERWRITE": [[7, "oil", 7]],
    "ALTER TABLE ADD COLUMN": [[1, None], [7, None]],
    "ALTER TABLE RENAME COLUMN": ["id", "name", "n", "price"],
    "ALTER TABLE DROP COLUMN": ["id", "n", "price"],
    "mergeSchema": ["id", "n", "price", "note"],
    "history": [[True, True]],
    "VERSION AS OF": [[1], [2], [3]],
    "TIMESTAMP AS OF": [[True]],
    "CHANGES": [["delete", 2], ["delete", 3], ["insert", 7], ["update_postimage", 1], ["update_preimage", 1]],
    "memwal_search": [[7]],
    "CALL": [["checkpoint_drop"], ["compact"], ["flush"], ["gc"], ["maintain"], ["verify"]],
    "TRUNCATE": [],
    "DROP TABLE": [["c"], ["k"], ["s"], ["t"]],
}


class Statements:
    """Runs them in order in one session; each answers with rows."""

    def __init__(self, spark: Any, warehouse: str) -> None:
        self._spark = spark
        spark.conf.set("spark.sql.catalog.store", CATALOG)
        spark.conf.set("spark.sql.catalog.store.warehouse", warehouse)
        self._warehouse = warehouse

    def outcomes(self) -> dict[str, Outcome]:
        """What every statement gave; the words of an error if one did."""
        steps: dict[str, Callable[[], Outcome]] = {
            "CREATE TABLE": self._create,
            "SHOW TABLES": lambda: self._rows("SHOW TABLES IN store", "tableName"),
            "INSERT INTO": lambda: self._after(
                "INSERT INTO store.t VALUES (1, 'ice', 1), (2, 'tea', 2), (3, 'salt', 3)"
            ),
            "CREATE TABLE AS SELECT": self._create_as,
            "saveAsTable": self._save_as,
            "writeTo": self._write_to,
            "UPDATE": self._update,
            "DELETE": lambda: self._after("DELETE FROM store.t WHERE n = 2"),
            "MERGE INTO": self._merge,
            "refused": self._refused,
            "count": lambda: self._rows("SELECT count(*) FROM store.t WHERE n > 1"),
            "INSERT OVERWRITE": lambda: self._after("INSERT OVERWRITE store.c SELECT * FROM store.t WHERE id = 7", "c"),
            "ALTER TABLE ADD COLUMN": self._add_column,
            "ALTER TABLE RENAME COLUMN": lambda: self._altered("RENAME COLUMN item TO name"),
            "ALTER TABLE DROP COLUMN": lambda: self._altered("DROP COLUMN name"),
            "mergeSchema": self._merge_schema,
            "history": lambda: self._rows("SELECT count(*) > 3, max(timestamp) <= now() FROM store.t.history"),
            "VERSION AS OF": lambda: self._rows("SELECT id FROM store.t VERSION AS OF 'before' ORDER BY id"),
            "TIMESTAMP AS OF": lambda: self._rows("SELECT count(*) >= 2 FROM store.t TIMESTAMP AS OF now()"),
            "CHANGES": self._changes,
            "memwal_search": self._search,
            "CALL": self._call,
            "TRUNCATE": lambda: self._after("TRUNCATE TABLE store.t"),
            "DROP TABLE": self._drop,
        }
        return {name: _outcome(step) for name, step in steps.items()}

    def _rows(self, text: str, *columns: str) -> list[list[Any]]:
        frame = self._spark.sql(text)
        return [list(row) for row in (frame.select(*columns) if columns else frame).collect()]

    def _after(self, text: str, table: str = "t") -> list[list[Any]]:
        self._rows(text)
        return self._rows(f"SELECT * FROM store.{table} ORDER BY id")

    def _create(self) -> Outcome:
        self._rows(
            "CREATE TABLE store.t (id BIGINT NOT NULL PRIMARY KEY, item STRING COMMENT 'what', n INT) "
            "COMMENT 'about' PARTITIONED BY (bucket(2, id))"
        )
        self._rows("CREATE TABLE store.m (id BIGINT NOT NULL, at INT NOT NULL) "
                   "TBLPROPERTIES ('primary_key' = 'id', 'sharding' = 'bucket(id, 2)', 'merge' = 'last-write:at')")  # fmt: skip
        properties = dict(self._rows("SHOW TBLPROPERTIES store.m"))
        self._rows("DROP TABLE store.m")
        comments = [row[-2:] for row in self._rows("DESCRIBE TABLE EXTENDED store.t") if row[0] in ("item", "Comment")]
        return [[properties[name] for name in ("primary_key", "sharding", "merge")], *comments]

    def _create_as(self) -> Outcome:
        return self._after(
            "CREATE TABLE store.c TBLPROPERTIES ('primary_key' = 'id') AS SELECT * FROM store.t WHERE n > 1", "c"
        )

    def _save_as(self) -> Outcome:
        self._spark.table("store.t").write.saveAsTable("store.s")
        self._spark.table("store.t").write.option("primaryKey", "id").saveAsTable("store.k")
        self._spark.table("store.k").where("n < 3").write.mode("overwrite").saveAsTable("store.k")
        return self._rows("SELECT count(*) FROM store.s UNION ALL SELECT count(*) FROM store.k")

    def _write_to(self) -> Outcome:
        self._spark.sql("SELECT 9 AS n, 9L AS id, 'new' AS item").writeTo("store.c").append()
        return self._rows("SELECT * FROM store.c ORDER BY id")

    def _update(self) -> Outcome:
        self._rows("CALL store.checkpoint(table => 't', name => 'before')")
        return self._after("UPDATE store.t SET item = upper(item) WHERE id = 1")

    def _merge(self) -> Outcome:
        return self._after(
            "MERGE INTO store.t t USING (SELECT 3L AS id UNION ALL SELECT 7L) s ON t.id = s.id "
            "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id, item, n) VALUES (s.id, 'oil', 7)"
        )

    def _refused(self) -> Outcome:
        """Statements that are refused: those that are not, and the rows of the table."""
        source = "(SELECT 7L AS id, 'new' AS item, 0 AS n) s ON t.item = s.item"
        return [
            *self._not_refused(
                "UPDATE store.t SET id = 7 WHERE id = 1",
                f"MERGE INTO store.t t USING {source} WHEN NOT MATCHED THEN INSERT *",
                f"MERGE INTO store.t t USING {source} WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT *",
                "CREATE OR REPLACE TABLE store.t AS SELECT id FROM store.t",
                "CREATE OR REPLACE TABLE store.t AS SELECT 1 / (n - n) AS id, item, n FROM store.t",
                "CREATE TABLE store.other (id INT) USING parquet",
                "CREATE TABLE store.other USING parquet AS SELECT 1 AS id",
                "CREATE TABLE store.other (id INT, s STRING COLLATE UTF8_LCASE)",
                "CREATE TABLE store.other (id INT DEFAULT 5)",
                "ALTER TABLE store.t ADD COLUMN d INT DEFAULT 5",
                "ALTER TABLE store.t ADD COLUMN s STRING COLLATE UTF8_LCASE",
            ),
            *self._rows("SELECT * FROM store.t ORDER BY id"),
        ]

    def _not_refused(self, *statements: str) -> list[str]:
        return [text for text in statements if not _is_error(_outcome(partial(self._rows, text)))]

    def _changes(self) -> Outcome:
        between = "store.t CHANGES FROM VERSION 'before' TO VERSION 'merged'"
        return self._rows(f"SELECT _change_type, id FROM {between} ORDER BY 1, 2")

    def _add_column(self) -> Outcome:
        self._rows("CALL store.checkpoint('t', 'merged')")
        self._rows("ALTER TABLE store.t ADD COLUMN price DOUBLE")
        return self._rows("SELECT id, price FROM store.t ORDER BY id")

    def _altered(self, change: str) -> Outcome:
        self._rows(f"ALTER TABLE store.t {change}")
        return self._spark.table("store.t").columns

    def _merge_schema(self) -> Outcome:
        wider = self._spark.sql("SELECT 7L AS id, 7 AS n, 1.5D AS price, 'hi' AS note")
        place = f"{self._warehouse}/t.lance"
        wider.write.format("memwal").mode("append").option("mergeSchema", "true").save(place)
        return self._spark.table("store.t").columns

    def _search(self) -> Outcome:
        found = f"memwal_search('{self._warehouse}/t.lance', text => 'hi', column => 'note', columns => 'id', k => 3)"
        return self._rows(f"SELECT id FROM {found}")

    def _call(self) -> Outcome:
        done = []
        for name in ("flush", "compact", "gc", "verify", "maintain"):
            self._rows(f"CALL store.{name}(table => 't')")
            done.append([name])
        return sorted([*done, ["checkpoint_drop"]] if self._rows("CALL store.checkpoint_drop('t', 'merged')") else done)

    def _drop(self) -> Outcome:
        before = self._rows("SHOW TABLES IN store", "tableName")
        for (name,) in before:
            self._rows(f"DROP TABLE store.{name}")
        return sorted(before) if self._rows("SHOW TABLES IN store") == [] else "tables are left"


def _is_error(outcome: Outcome) -> bool:
    return isinstance(outcome, str)


def _outcome(step: Callable[[], Outcome]) -> Outcome:
    try:
        return step()
    except Exception as error:  # a test compares what came with what is expected
        return f"{type(error).__name__}: {str(error)[:400]}"


KEYED = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.string()), ("n", pa.int32())])
PLAIN = pa.schema([("id", pa.int64()), ("value", pa.string())])


def keyed(uri: str, buckets: int = 4, **options: Any) -> mw.Table:
    return mw.create_table(uri, KEYED, primary_key="id", sharding=mw.Bucket("id", buckets), **options)


def append_only(uri: str, buckets: int = 4, **options: Any) -> mw.Table:
    return mw.create_table(uri, PLAIN, sharding=mw.Bucket("id", buckets), **options)


def ids_of(table: mw.Table) -> list[int]:
    return sorted(table.scan(columns=["id"]).to_table().column("id").to_pylist())


def rows_of(table: mw.Table) -> dict[int, tuple[Any, ...]]:
    rows = table.scan().to_table().to_pylist()
    found = {row["id"]: tuple(row.values())[1:] for row in rows}
    assert len(found) == len(rows), "a key is there twice"
    return found


def entries_with_rows(table: mw.Table) -> int:
    """How many entries of the logs hold rows: what claims a shard, or ends a generation, holds none."""
    tailers = [mw.WalTailer(table.location, info.shard_id) for info in table.shards()]
    read = [tailer.read_entry(at) for tailer in tailers for at in range(1, tailer.next_position())]
    return sum(entry is not None and entry.num_rows > 0 for entry in read)


def feed_of(table: mw.Table, start: str = "earliest", **options: str) -> ChangeFeed:
    """The stream reader of a query that starts from `start`."""
    parsed = Options.parse({"path": table.uri, CHANGE_FEED: "true", "startingPosition": start, **options})
    return ChangeFeed(parsed, feed_schema(table.schema, parsed.columns))


def replay_first_batch(spark: Any, table: mw.Table, copy: mw.Table, checkpoint: Path, start: str) -> None:
    """Copy rows 0 to 19, put rows 10 to 29, and run the query again after it lost the commit of its first micro-batch."""
    with table.writer() as writer:
        writer.put({"id": list(range(20))}, missing="null")
    stream = spark.readStream.format("memwal").option("startingPosition", start).load(table.uri)
    query = stream.select("id", "value", "n").writeStream.format("memwal")
    query = query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    finish(lambda: query.start(copy.uri))
    forget_last_commit(checkpoint)
    with table.writer() as writer:
        writer.put({"id": list(range(10, 30))}, missing="null")
    finish(lambda: query.start(copy.uri))


DAY = datetime.datetime(2024, 2, 29, 12, 30, 1, 123456)
VALUES: list[tuple[pa.DataType, st.DataType, object]] = [
    (pa.bool_(), st.BooleanType(), True),
    (pa.int8(), st.ByteType(), -128),
    (pa.int16(), st.ShortType(), -32768),
    (pa.int32(), st.IntegerType(), -(2**31)),
    (pa.int64(), st.LongType(), -(2**63)),
    (pa.uint8(), st.ShortType(), 255),
    (pa.uint16(), st.IntegerType(), 65535),
    (pa.uint32(), st.LongType(), 2**32 - 1),
    (pa.uint64(), st.DecimalType(20, 0), 2**64 - 1),
    (pa.float16(), st.FloatType(), 0.5),
    (pa.float32(), st.FloatType(), 0.25),
    (pa.float64(), st.DoubleType(), 0.1),
    (pa.string(), st.StringType(), "é"),
    (pa.large_string(), st.StringType(), "é"),
    (pa.binary(), st.BinaryType(), b"\x00\xff"),
    (pa.large_binary(), st.BinaryType(), b"\x00\xff"),
    (pa.binary(3), st.BinaryType(), b"abc"),
    (pa.date32(), st.DateType(), DAY.date()),
    (pa.timestamp("us", tz="UTC"), st.TimestampType(), DAY.replace(tzinfo=datetime.UTC)),
    (pa.timestamp("ms", tz="UTC"), st.TimestampType(), DAY.replace(microsecond=123000, tzinfo=datetime.UTC)),
    (pa.timestamp("us"), st.TimestampNTZType(), DAY),
    (pa.time64("us"), st.TimeType(), DAY.time()),
    (pa.duration("ms"), st.DayTimeIntervalType(), datetime.timedelta(days=1, milliseconds=5)),
    (pa.decimal128(38, 10), st.DecimalType(38, 10), decimal.Decimal("1234567890.0123456789")),
    (pa.list_(pa.int32()), st.ArrayType(st.IntegerType()), [1, None, 3]),
    (pa.list_(pa.float32(), 2), st.ArrayType(st.FloatType()), [0.5, 1.5]),
    (pa.list_(pa.float16(), 2), st.ArrayType(st.FloatType()), [0.5, 1.5]),
    (pa.struct([("a", pa.uint8())]), st.StructType([st.StructField("a", st.ShortType())]), {"a": 200}),
    (pa.map_(pa.string(), pa.int32()), st.MapType(st.StringType(), st.IntegerType()), [("k", 1)]),
    (pa.dictionary(pa.int32(), pa.string()), st.StringType(), "word"),
]


ROWS_PER_FILE = 40


def make_input(directory: Path, files: int) -> list[int]:
    """One file per micro-batch; returns every id."""
    directory.mkdir(parents=True)
    for number in range(files):
        ids = range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)
        text = "\n".join(json.dumps({"id": i, "value": str(i)}) for i in ids)
        (directory / f"{number:05d}.json").write_text(text)
    return list(range(files * ROWS_PER_FILE))


def start(spark: Any, source: Path, uri: str, checkpoint: Path, *, fmt: str = "memwal", **options: Any) -> Any:
    stream = spark.readStream.schema("id long, value string").option("maxFilesPerTrigger", 1).json(str(source))
    writer = stream.repartition(2).writeStream.format(fmt).options(**options)
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start(uri)


def run_until_done(spark: Any, source: Path, uri: str, checkpoint: Path, **options: Any) -> int:
    """Run the query, again after each failure, until it ends by itself; returns the number of failures."""
    for failures in range(200):
        query = start(spark, source, uri, checkpoint, **options)
        try:
            assert query.awaitTermination(600)
        except Exception:
            continue
        return failures
    raise AssertionError("the query never ended")


def finish(start_query: Callable[[], Any]) -> Any:
    """The query, ended; begun again where a busy machine was slower than Spark waits for a Python process."""
    for _ in range(8):
        try:
            query = start_query()
            assert query.awaitTermination(600)
        except Exception as error:
            if "failed to connect back" not in str(error):
                raise
            continue
        return query
    raise AssertionError("Spark could not start its Python process")


def forget_last_commit(checkpoint: Path) -> None:
    """Let the checkpoint forget that its last micro-batch was committed, so that Spark replays it."""
    commits = [path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()]
    last = max(commits, key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


def judge(table: mw.Table, expected: list[int]) -> tuple[int, int]:
    counts = Counter(table.scan(columns=["id"]).to_table().column("id").to_pylist())
    assert set(counts) <= set(expected), "rows that nobody wrote"
    return len(set(expected) - set(counts)), sum(count - 1 for count in counts.values())


# Several writers of one table whose drivers are killed: what they are given, and what must be there in the end.

BACKFILL = 1_000_000
STREAM_ROWS = 20
JOB_ROWS = 20


def make_places(root: Path) -> None:
    for name in ("in-a", "in-b", "jobs", "tasks", "speculated"):
        (root / name).mkdir(parents=True)


def give_streams(root: Path, number: int) -> None:
    """One more micro-batch for each of the two streams."""
    for name, first in (("a", 0), ("b", 500_000)):
        ids = range(first + number * STREAM_ROWS, first + (number + 1) * STREAM_ROWS)
        text = "\n".join(json.dumps({"id": i, "value": "stream", "n": i}) for i in ids)
        hidden = root / f"in-{name}" / f".{number}"
        hidden.write_text(text)
        hidden.rename(root / f"in-{name}" / f"{number:05d}.json")


def committed(root: Path, name: str) -> int:
    """How many micro-batches of a stream are done."""
    place = root / f"checkpoint-{name}" / "commits"
    return sum(1 for path in place.glob("[0-9]*")) if place.is_dir() else 0


def job_ids(root: str | Path) -> list[int]:
    return sorted(int(path.name) for path in Path(root, "jobs").iterdir())


def merged_ids(job: int) -> list[int]:
    """The rows of a part of the backfill that the merge after it changes, and one that it adds."""
    first = BACKFILL + job * JOB_ROWS
    return [first, first + 1, first + 2, 2 * BACKFILL + job]


def expected_rows(root: Path, micro_batches: int) -> dict[int, tuple[str, int]]:
    count = micro_batches * STREAM_ROWS
    jobs = len(job_ids(root))
    streamed = [*range(count), *range(500_000, 500_000 + count)]
    filled = range(BACKFILL, BACKFILL + jobs * JOB_ROWS)
    merged = [i for job in range(max(0, jobs - 1)) for i in merged_ids(job)]
    return (
        {i: ("stream", i) for i in streamed} | {i: ("backfill", i) for i in filled} | {i: ("merge", i) for i in merged}
    )


def lost_and_doubled(table: mw.Table, expected: dict[int, tuple[str, int]]) -> tuple[int, int]:
    """Rows that are missing or wrong, and rows of streams and of the backfill that were put more than once.

    The feed has every put: a row that was written twice is in it twice, whatever the table shows.
    """
    found = rows_of(table)
    assert set(found) <= set(expected), "rows that nobody wrote"
    lost = sum(found.get(key) != row for key, row in expected.items())
    puts: Counter[int] = Counter()
    for batch in table.changes(until="now", columns=["id", "value"]):
        once = [row["id"] for row in batch.to_pylist() if row["value"] != "merge"]
        puts.update(once)
    return lost, sum(count - 1 for count in puts.values())


# One of the two hosts of the test cluster is slow: tasks find out whether they are there.

SLOW_HOST = "127.0.0.2"


def on_slow_host() -> bool:
    """Whether the executor above this process belongs to the slow host."""
    number = "self"
    for _ in range(4):
        status = Path(f"/proc/{number}/status").read_text()
        number = next(line.split()[1] for line in status.splitlines() if line.startswith("PPid:"))
        if f"--hostname\0{SLOW_HOST}" in Path(f"/proc/{number}/cmdline").read_text():
            return True
    return False


# JVMs that live for seconds: no second compiler, one collector thread, no file of counters.

LIGHT_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"


# Tables with a history beside a model of them, and the distributed compactor with tasks that run in line.

KINDS = ("number", "text", "composite", "append")
SHARDS = 3
KEYS = 80


def schema_of(kind: str) -> pa.Schema:
    key = pa.string() if kind == "text" else pa.int64()
    columns = [pa.field("id", key), pa.field("v", pa.int64()), pa.field("note", pa.string())]
    if kind == "composite":
        columns.insert(1, pa.field("region", pa.string()))
    return pa.schema(columns)


class Story:
    def __init__(self, place: Path, kind: str, seed: int = 0, **options: Any) -> None:
        self.uri = str(place)
        self.kind = kind
        self.has_key = kind != "append"
        self._draw = random.Random(seed)
        self._step = 0
        self.rows: dict[Any, dict[str, Any]] = {}
        self.appended: list[dict[str, Any]] = []
        key = {"composite": ["id", "region"], "append": None}.get(kind, "id")
        options.setdefault("sharding", mw.Bucket("id", SHARDS))
        options.setdefault("writer_defaults", {"fsync": False})
        self.table = mw.create_table(self.uri, schema_of(kind), primary_key=key, **options)

    # ------------------------------------------------------------------------------------------------------- writing

    def _key(self, number: int) -> dict[str, Any]:
        if self.kind == "composite":
            return {"id": number, "region": f"r{number % 4}"}
        return {"id": f"key-{number}" if self.kind == "text" else number}

    def _rows(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        self._step += 1
        return [{**self._key(n), "v": self._step, "note": f"{n}/{self._step}"} for n in numbers]

    def _remember(self, rows: Sequence[dict[str, Any]]) -> None:
        self.appended += rows
        self.rows |= {repr(self._identity(row)): row for row in rows}

    def _identity(self, row: dict[str, Any]) -> Any:
        return (row["id"], row.get("region"))

    def base(self, numbers: Sequence[int] = range(KEYS), rows_per_file: int = 16) -> None:
        """Rows that are in the base table by Lance alone."""
        rows = self._rows(numbers)
        data = pa.Table.from_pylist(rows, schema=lance.dataset(self.uri).schema)
        lance.write_dataset(data, self.uri, mode="append", max_rows_per_file=rows_per_file)
        self._remember(rows)

    def base_deletes(self, numbers: Sequence[int]) -> None:
        """Deletion vectors that are there before a compaction."""
        wanted = {repr(self._identity(self._key(n))) for n in numbers}
        for key in wanted:
            self.rows.pop(key, None)
        self.appended = [row for row in self.appended if repr(self._identity(row)) not in wanted]
        names = ", ".join(repr(self._key(n)["id"]) for n in numbers)
        lance.dataset(self.uri).delete(f"id IN ({names})")

    def put(self, writer: mw.TableWriter, numbers: Sequence[int]) -> None:
        rows = self._rows(numbers)
        writer.put(rows)
        self._remember(rows)

    def delete(self, writer: mw.TableWriter, numbers: Sequence[int]) -> None:
        keys = [self._key(n) for n in numbers]
        writer.delete(pa.Table.from_pylist(keys))
        for key in keys:
            self.rows.pop(repr(self._identity(key)), None)

    def generations(self, count: int, rows: int = 12) -> None:
        """That many generations per shard, with upserts of old and new keys and with deletes."""
        with self.table.writer(compaction=None) as writer:
            for _ in range(count):
                self.put(writer, self._draw.sample(range(KEYS + 20), rows))
                if self.has_key:
                    self.delete(writer, self._draw.sample(range(KEYS + 20), rows // 3))
                writer.flush()

    # ------------------------------------------------------------------------------------------------------ comparing

    @property
    def expected(self) -> Counter[str]:
        return Counter(map(repr, self.rows.values() if self.has_key else self.appended))

    def shown(self) -> Counter[str]:
        return as_rows(mw.open_table(self.uri).scan().to_table())

    def plain(self) -> Counter[str]:
        return as_rows(lance.dataset(self.uri).to_table())

    def check(self) -> None:
        """Merged reads and plain Lance show the model, and every invariant holds."""
        assert self.shown() == self.expected
        assert self.plain() == self.expected
        assert mw.open_table(self.uri).verify().problems == []
        lance.dataset(self.uri).validate()
        assert staged(self.uri) == []

    def twin(self, place: Path) -> mw.Table:
        """The same table, bytes and all, somewhere else."""
        shutil.copytree(self.uri, place)
        return mw.open_table(str(place))


def as_rows(table: pa.Table) -> Counter[str]:
    return Counter(map(repr, table.to_pylist()))


def staged(uri: str) -> list[str]:
    place = Path(uri, "memwal_stage")
    return sorted(path.name for path in place.rglob("*") if path.is_file()) if place.exists() else []


class Tasks:
    """Runs tasks in line, each `attempts` times, and remembers them."""

    def __init__(self, attempts: int = 1) -> None:
        self._attempts = attempts
        self.calls: list[list[str]] = []

    def __call__(self, arguments: Sequence[str], work: Callable[[str], str]) -> list[str]:
        self.calls.append(list(arguments))
        return [[work(argument) for _ in range(self._attempts)][-1] for argument in arguments]


def compact_by_tasks(
    uri: str, tasks: Tasks | None = None, *, memory_bytes: int = 1 << 20, fsync: bool = False, **options: Any
) -> CompactionReport:
    """What `lance_memwal.spark.compact(mode="distributed")` does, without Spark between driver and tasks."""
    location = resolve(uri)
    job = Job(uri, memory_bytes, fsync)
    compactor = distributed_compactor(job, tasks or Tasks(), location, lambda: BaseTable.need(location))
    return compactor.run(**options)
