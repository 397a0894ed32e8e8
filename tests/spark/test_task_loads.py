"""What a read of Spark loads where, and what it keeps; tables that are made anew and others that write between."""

import json
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
import lance_memwal.spark as ms
from lance_memwal.feed.time_travel import snapshot_of
from lance_memwal.lance.base import BaseTable, NewestBase
from lance_memwal.read.outline import Hiding, outline
from lance_memwal.read.reader import Reader
from lance_memwal.rows.keys import PackedKeys
from lance_memwal.spark.data_source import MemWalSource
from lance_memwal.spark.options import PUSHED
from lance_memwal.spark.source import TableReader
from lance_memwal.store.location import resolve
from lance_memwal.upkeep.pins import is_pinned
from tests.harness.profile import scaled
from tests.kit.spark import finish, ids_of, keyed
from tests.kit.turns import Play

SHARDS, ROWS, WIDE = 4, 2000, "x" * 400
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string()), ("n", pa.int32())])
FAST = {"fsync": False}


def wide_table(uri: str, *, key: str | None = "id") -> mw.Table:
    """Base rows, and a tail of wide rows in each of four shards that replaces half of them."""
    schema = SCHEMA if key else pa.schema([field.with_nullable(True) for field in SCHEMA])
    table = mw.create_table(uri, schema, primary_key=key, sharding=mw.Bucket("id", SHARDS), writer_defaults=FAST)
    with table.writer(compaction=None) as writer:
        writer.put({"id": list(range(ROWS)), "text": ["base"] * ROWS, "n": [0] * ROWS})
    table.compact()
    late = table.writer(compaction=None)
    for start in range(ROWS // 2, ROWS + ROWS // 2, 250):
        late.put({"id": list(range(start, start + 250)), "text": [WIDE] * 250, "n": [1] * 250})
    late.abort()
    return table


def gets(uri: str) -> tuple[int, int]:
    """How many objects were read so far, and their bytes."""
    seen = resolve(uri).metrics.snapshot()
    kinds = [seen[kind] for kind in ("get", "get_range", "get_tail") if kind in seen]
    return sum(kind.count for kind in kinds), sum(kind.size_bytes for kind in kinds)


def bytes_of(uri: str, work: Callable[[], Any]) -> tuple[Any, int]:
    before = gets(uri)[1]
    found = work()
    return found, gets(uri)[1] - before


def planned(uri: str, **options: str) -> TableReader:
    source = MemWalSource({"path": uri, **options})
    reader = source.reader(source.schema())
    assert isinstance(reader, TableReader)
    return reader


def in_a_task(reader: TableReader, partition: Any) -> list[dict[str, Any]]:
    """The rows of a partition, read with what Spark sends to a task."""
    sent, part = pickle.loads(pickle.dumps((reader, partition)))
    return [row for batch in sent.read(part) for row in batch.to_pylist()]


def test_a_base_task_reads_no_entry_and_a_shard_task_only_those_of_its_own_shards(uri: str) -> None:
    wide_table(uri)
    tails = ROWS * len(WIDE)
    reader, driver_bytes = bytes_of(uri, lambda: planned(uri, rowsPerPartition="500"))
    parts = reader.partitions()
    base_parts = [part for part in parts if part.value.fragments]
    shard_parts = [part for part in parts if part.value.shards and not part.value.fragments]
    assert len(base_parts) == 1
    assert len(shard_parts) >= SHARDS - 1
    assert driver_bytes < 1.5 * tails  # once, to know the keys
    read = [bytes_of(uri, lambda part=part: in_a_task(reader, part)) for part in parts]
    loaded = {id(part): size for part, (_, size) in zip(parts, read, strict=True)}
    own = {id(part): tails * len(part.value.shards) / SHARDS for part in parts}
    assert all(loaded[id(part)] <= 1.5 * own[id(part)] + 20_000 for part in parts)
    rows = sorted((row["id"], row["n"]) for found, _ in read for row in found)
    assert rows == [(i, int(i >= ROWS // 2)) for i in range(ROWS + ROWS // 2)]


def test_what_goes_to_all_tasks_holds_keys_and_no_rows(uri: str) -> None:
    wide_table(uri)
    reader = planned(uri, rowsPerPartition="500")
    keys = reader.parts.hiding.packed
    assert keys is not None
    assert keys.count == ROWS
    assert len(pickle.dumps(reader)) < 8_000
    assert all(len(pickle.dumps(part)) < 2_000 for part in reader.partitions())


def test_an_append_only_table_is_planned_without_reading_an_entry_and_counted_to_the_row(uri: str) -> None:
    wide_table(uri, key=None)
    reader, size = bytes_of(uri, lambda: planned(uri, rowsPerPartition="500"))
    assert size < 50_000
    assert reader.parts.hiding == Hiding()
    assert not reader.outline.exact
    rows = [row for part in reader.partitions() for row in in_a_task(reader, part)]
    assert len(rows) == 2 * ROWS
    base = BaseTable.need(resolve(uri))
    counted = outline(resolve(uri), Reader(NewestBase(base)).snapshot(), is_pinned, counts=True)
    assert (counted.exact, counted.rows) == (True, 2 * ROWS)


KEYS: dict[str, tuple[list[pa.Field], Callable[[int], dict[str, Any]]]] = {
    "id": ([pa.field("id", pa.int64(), nullable=False)], lambda i: {"id": i - 20}),
    "text": ([pa.field("id", pa.string(), nullable=False)], lambda i: {"id": f"key-{i}"}),
    "two": (
        [pa.field("id", pa.int32(), nullable=False), pa.field("b", pa.string(), nullable=False)],
        lambda i: {"id": i // 7, "b": str(i % 7)},
    ),
}


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("most_key_bytes", [0, 200, 1 << 20])
def test_keys_that_do_not_fit_the_plan_hide_the_same_rows(uri: str, kind: str, most_key_bytes: int) -> None:
    fields, key = KEYS[kind]
    names = [field.name for field in fields]
    schema = pa.schema([*fields, ("n", pa.int64())])
    table = mw.create_table(uri, schema, primary_key=names, sharding=mw.Bucket("id", 3), writer_defaults=FAST)
    rng, fresh = random.Random(7), set()
    for step in range(5):
        writer = table.writer(compaction=None)
        chosen = rng.sample(range(120), 40)
        writer.put([key(i) | {"n": step} for i in chosen])
        gone = rng.sample(range(120), 10)
        writer.delete([tuple(key(i).values()) if len(names) > 1 else key(i)["id"] for i in gone])
        fresh |= {*chosen, *gone}
        writer.abort() if step == 4 else writer.close()
        if step == 1:
            table.compact()
            fresh = set()
    base = BaseTable.need(resolve(uri))
    found = outline(base.location, snapshot_of(base, str(table.snapshot())), is_pinned, most_key_bytes=most_key_bytes)
    if most_key_bytes == 0:
        assert found.hiding.packed is None
        assert found.hiding.sstables
        assert found.hiding.tails
    if most_key_bytes > 1000:
        assert not found.hiding.sstables
        assert not found.hiding.tails
    keys = found.hiding.keys(base, is_pinned)
    assert keys is not None
    everything = pa.Table.from_pylist([key(i) for i in range(120)], schema=pa.schema(fields))
    assert [i for i, hit in enumerate(keys.of_rows(everything, names)) if hit] == sorted(fresh)


@pytest.mark.parametrize(
    "given",
    [
        pa.array([], pa.int64()),
        pa.array([5], pa.int64()),
        pa.array([3, 1, 2, 3], pa.int32()),
        pa.array([-(2**63), 2**63 - 1, 0], pa.int64()),
        pa.array([2**64 - 1, 0, 7], pa.uint64()),
        pa.array([-128, 127], pa.int8()),
        pa.array(["a", "b", "a", ""]),
        pa.array([b"\0", b"", b"\0"], pa.large_binary()),
        pa.array([True, False, True]),
    ],
)
def test_packed_keys_are_the_keys_each_once(given: pa.Array) -> None:
    packed = pickle.loads(pickle.dumps(PackedKeys.of(given)))
    found: Sequence[Any] = packed.unpack().to_pylist()
    assert packed.unpack().type == given.type
    assert sorted(found) == sorted(set(given.to_pylist()))
    assert packed.count == len(found)


def counted(uri: str, **options: str) -> int | None:
    """What the planner answers to a `count()` that the JVM face pushed down."""
    pushed = json.dumps({"filters": [], "count": True})
    schema = MemWalSource({"path": uri, PUSHED: pushed, **options}).schema()
    answer: dict[str, Any] = json.loads(schema.fields[0].metadata["memwal"])
    found: int | None = answer["count"]
    return found


def test_a_count_that_one_task_would_make_is_made_by_the_planner(uri: str) -> None:
    table = wide_table(uri)
    with table.writer(compaction=None) as writer:
        writer.delete([1, 2, ROWS + 1])
    assert counted(uri) == ROWS + ROWS // 2 - 3 == table.scan().count_rows()
    assert counted(uri, rowsPerPartition="500") is None
    assert counted(uri, filter="n = 1") is None
    table.flush(force=True)
    assert counted(uri) == ROWS + ROWS // 2 - 3
    table.compact()
    assert counted(uri, rowsPerPartition="500") == ROWS + ROWS // 2 - 3  # metadata tell


def test_the_planner_counts_an_append_only_table_to_the_row(uri: str) -> None:
    wide_table(uri, key=None)
    assert counted(uri, rowsPerPartition="500") == 2 * ROWS


# What a worker process holds while it runs a task: 312 MB of logs were 735 MB in each of them.

TASK_MEMORY_SHARDS, PUTS, PUT_ROWS, ROW_BYTES = 8, 78, 4000, 1000
_MIB = 1 << 20
_TASK = """
import json, pickle, sys
import lance_memwal.spark.source

def peak():  # of this program: what the system counts for a process begins with its parent
    (line,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024

reader, part = pickle.loads(open(sys.argv[1], "rb").read())
before, rows = peak(), 0
for batch in reader.read(part):
    rows += batch.num_rows
print(json.dumps({"rows": rows, "grown": peak() - before}))
"""


def in_a_worker(tmp_path: Path, reader: Any, part: Any) -> dict[str, int]:
    """What a process of its own that runs one task reads, and how far its memory grows."""
    sent = tmp_path / "task"
    sent.write_bytes(pickle.dumps((reader, part)))
    done = subprocess.run([sys.executable, "-c", _TASK, str(sent)], capture_output=True, text=True, check=True)
    found: dict[str, int] = json.loads(done.stdout)
    return found


@pytest.mark.prove
def test_a_worker_holds_keys_of_all_logs_and_rows_of_its_own(tmp_path: Path, uri: str) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
    sharding, fast = mw.Bucket("id", TASK_MEMORY_SHARDS), {"fsync": False, "max_memtable_size": 1 << 30}
    base = {"id": list(range(100_000)), "text": ["base"] * 100_000}
    table = mw.create_table(
        uri, pa.table(base, schema=schema), primary_key="id", sharding=sharding, writer_defaults=fast
    )
    late, fresh = table.writer(compaction=None), PUTS * PUT_ROWS
    for start in range(50_000, 50_000 + fresh, PUT_ROWS):
        late.put({"id": list(range(start, start + PUT_ROWS)), "text": ["x" * ROW_BYTES] * PUT_ROWS})
    late.abort()
    logs = fresh * ROW_BYTES
    assert logs > 300 * 10**6
    source = MemWalSource({"path": uri})
    reader: Any = source.reader(source.schema())
    found = [(part.value, in_a_worker(tmp_path, reader, part)) for part in reader.partitions()]
    assert sum(seen["rows"] for _, seen in found) == 50_000 + fresh
    grown = [(len(part.fragments), len(part.shards), seen["grown"] // _MIB) for part, seen in found]
    print(f"{logs // _MIB} MiB of logs; fragments, shards and MiB of each task: {grown}")
    for part, seen in found:
        own = logs * len(part.shards) / TASK_MEMORY_SHARDS
        assert seen["grown"] < 2.5 * own + 128 * _MIB
        assert len(part.shards) <= 2  # 64 MiB are reached


# Tables that are dropped and made anew at one place, again and again, in one session: each has its own rows and no
# other's.

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
    with pytest.raises(Exception, match="was re-created"):
        run()
    assert sorted(seen) == [1, 2, 3], "rows of the new table are not the rest of the old one"


# Spark takes turns with writers, appenders and pylance at one table, and a dict says what it must hold.

OPTIONS = {"keep": {"missing": "keep"}, "absent": {"ifAbsent": True}, "newer": {"where": "excluded.a > a"}}
TYPES = {"id": "long", "a": "long", "b": "string", "ts": "long", "_tombstone": "boolean"}


def spark_turn(spark: Any, play: Play) -> None:
    """Write a frame or two in one of the ways; each key once, since only a sequence would say which row is later."""
    for _ in range(play.draw.randrange(1, 3)):
        kind = play.draw.choice(["whole", "keep", "absent", "newer"])
        terms, given, condition = play.terms(kind)
        rows = list({row["id"]: row for row in given}.values())
        if not rows:
            continue
        play.model.apply(rows, condition)
        schema = ", ".join(f"{name} {TYPES[name]}" for name in rows[0])
        frame = spark.createDataFrame([tuple(row.values()) for row in rows], schema)
        options = OPTIONS.get(kind, {}) if terms.need_a_look else {}
        if play.draw.random() < 0.5:
            frame.write.format("memwal").mode("append").options(**options).save(play.uri)
        else:
            ms.write_batch(frame, play.uri, 0, app_id=f"turn {len(play.steps)}", **options)
        play.check(f"spark {kind}")


@pytest.mark.scaled
@pytest.mark.parametrize("seed", range(scaled(ci=1, prove=40)))
def test_spark_takes_turns_with_other_writers(spark: Any, tmp_path: Path, seed: int) -> None:
    turn = partial(spark_turn, spark)
    Play(tmp_path / "t", seed, [turn] * 5).run(scaled(ci=4, prove=12))
