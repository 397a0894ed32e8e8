"""What a read loads where: the driver keys, a base task keys, a shard task its own tails and nothing else."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.feed.snapshots import snapshot_of
from lance_memwal.lance.base import BaseTable, NewestBase
from lance_memwal.read.outline import Hiding, outline
from lance_memwal.read.reader import Reader
from lance_memwal.rows.key_pack import PackedKeys
from lance_memwal.spark.data_source import MemWalSource
from lance_memwal.spark.source import TableReader
from lance_memwal.store.location import resolve
from lance_memwal.upkeep.pins import is_pinned

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
    schema = MemWalSource({"path": uri, "pushed": pushed, **options}).schema()
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
