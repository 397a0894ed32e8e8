"""The memtable: an append log, captures that never change, the newest row of a key with and without arrays, resident bytes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lance_memwal as mw
from lance_memwal.memtable import memtable as module
from lance_memwal.memtable.key_index import KeyIndex, key_values
from lance_memwal.memtable.memtable import ByteMeter, MemTable, aligned, unpinned
from lance_memwal.rows.schema import TableSchema

PK = {b"lance-schema:unenforced-primary-key": b"true"}
COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False, metadata=PK), pa.field("v", pa.string())])
KEYED = TableSchema.from_arrow(COLUMNS)
UNKEYED = TableSchema.from_arrow(pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.string())]))


def batch(ids: Sequence[int], value: str = "a") -> pa.RecordBatch:
    return pa.record_batch([pa.array(ids, pa.int64()), pa.array([value] * len(ids))], schema=COLUMNS)


def flags(*dead: bool) -> pa.BooleanArray:
    return pa.array(list(dead))


def filled(batches: Sequence[pa.RecordBatch], schema: TableSchema = KEYED) -> MemTable:
    table = MemTable(schema, 1, 0, 0)
    for item in batches:
        table.append(item, None)
    return table


def test_batches_are_appended_in_order_and_counted() -> None:
    table = MemTable(KEYED, 7, 100, 41)
    assert (table.num_rows, table.num_batches, table.size_bytes, table.end_batch) == (0, 0, 0, 100)
    table.append(batch([1, 2]), None)
    table.append(batch([3]), flags(True))
    assert (table.num_rows, table.num_batches, table.end_batch) == (3, 2, 102)
    assert (table.generation, table.first_batch, table.covered_position) == (7, 100, 41)
    rows = table.capture().table()
    assert rows.schema.equals(KEYED.memory)
    assert rows.to_pylist() == [
        {"id": 1, "v": "a", "_tombstone": False},
        {"id": 2, "v": "a", "_tombstone": False},
        {"id": 3, "v": "a", "_tombstone": True},
    ]


def test_a_capture_is_the_first_batches_for_ever() -> None:
    table = filled([batch([1], "a"), batch([1, 2], "b")])
    first, both = table.capture(1), table.capture()
    table.append(batch([1, 2, 3], "c"), None)
    assert first.live().to_pylist() == [{"id": 1, "v": "a"}]
    assert both.live().to_pylist() == [{"id": 1, "v": "b"}, {"id": 2, "v": "b"}]
    assert [row["v"] for row in table.capture().live().to_pylist()] == ["c", "c", "c"]
    assert first.live().to_pylist() == [{"id": 1, "v": "a"}]
    assert (first.num_rows, both.num_rows, first.generation) == (1, 3, 1)


def test_an_empty_capture_answers_everything() -> None:
    ref = filled([batch([1])]).capture(0)
    assert ref.batches == []
    assert ref.table().num_rows == ref.live().num_rows == ref.newest().num_rows == 0
    assert ref.find([1]).tolist() == [-1]
    assert ref.newest_mask().tolist() == []
    assert ref.schema.equals(COLUMNS)
    assert repr(ref) == "InMemoryMemTableRef(generation=1, num_rows=0)"


def test_tombstones_are_newest_rows_that_do_not_live() -> None:
    table = filled([batch([1, 2])])
    table.append(batch([1]), flags(True))
    ref = table.capture()
    assert ref.live().column("id").to_pylist() == [2]
    assert [(r["id"], r["_tombstone"]) for r in ref.newest().to_pylist()] == [(2, False), (1, True)]
    assert ref.find([1, 2, 3]).tolist() == [2, 1, -1]


def test_every_row_of_a_table_without_a_key_counts() -> None:
    ref = filled([batch([1, 1]), batch([1])], UNKEYED).capture()
    assert ref.newest_mask().tolist() == [True, True, True]
    assert ref.live().num_rows == 3


def test_a_put_pays_nothing_for_the_key_index() -> None:
    table = filled([batch(range(1000))])
    assert table.index_bytes == 0
    table.capture().newest_mask()
    assert table.index_bytes > 1000 * 50


def test_truncate_forgets_what_no_capture_holds() -> None:
    table = filled([batch([1]), batch([2])])
    before = table.capture(1)
    before.newest_mask()
    table.truncate(1)
    assert (table.num_batches, table.num_rows, table.size_bytes) == (1, 1, filled([batch([1])]).size_bytes)
    table.append(batch([3]), None)
    assert table.capture().live().column("id").to_pylist() == [1, 3]
    assert before.live().column("id").to_pylist() == [1]


def test_combined_rows_replace_the_batches_that_they_were_made_of() -> None:
    """Memory must not hold every row twice once somebody has read."""
    table = MemTable(KEYED, 1, 0, 0)
    before = pa.total_allocated_bytes()
    for k in range(50):
        table.append(
            pa.record_batch([pa.array(range(k * 1000, k * 1000 + 1000)), pa.array(["x" * 20] * 1000)], schema=COLUMNS),
            None,
        )
    appended = pa.total_allocated_bytes() - before
    assert table.capture().table().num_rows == 50_000
    assert pa.total_allocated_bytes() - before < 1.5 * appended


def test_chunks_stay_few_while_readers_and_writers_take_turns() -> None:
    table = MemTable(KEYED, 1, 0, 0)
    for k in range(500):
        table.append(batch([k]), None)
        assert table.capture().table().num_rows == k + 1
    assert table.capture().table().column("id").num_chunks <= 12
    assert table.capture().table().column("id").to_pylist() == list(range(500))


def test_rows_that_no_single_array_can_hold_stay_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow's 32-bit offsets end at 2 GiB; here the limit is made small."""
    monkeypatch.setattr(module, "_CHUNK_BYTES", 20_000)
    table = MemTable(KEYED, 1, 0, 0)
    for k in range(30):
        table.append(batch(range(k * 100, k * 100 + 100), "value"), None)
        if k % 7 == 3:
            table.capture().newest_mask()
    rows = table.capture().table()
    assert rows.column("id").num_chunks > 2
    assert rows.column("id").to_pylist() == list(range(3000))
    assert table.capture().find([0, 1500, 2999]).tolist() == [0, 1500, 2999]
    assert table.capture().newest_mask().all()


def test_a_batch_larger_than_a_chunk_is_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK_BYTES", 100)
    table = filled([batch(range(50)), batch(range(50, 100)), batch(range(100, 150))])
    assert table.capture().table().column("id").to_pylist() == list(range(150))


def test_bytes_of_indexes_reach_the_meter_and_leave_it() -> None:
    meter = ByteMeter()
    table = MemTable(KEYED, 1, 0, 0, meter)
    table.append(batch(range(100)), None)
    assert meter.total == 0
    table.capture().newest_mask()
    assert meter.total == table.index_bytes > 0
    table.append(batch(range(100, 5000)), None)
    table.capture().newest_mask()
    assert meter.total == table.index_bytes
    table.detach()
    assert meter.total == 0
    table.append(batch(range(5000, 9000)), None)
    table.capture().newest_mask()
    assert meter.total == 0, "a memtable that is not the writer's any more still counts"


def test_size_counts_buffers_and_the_objects_around_them() -> None:
    one = filled([batch([1])])
    assert one.size_bytes > 500  # an Arrow batch of one row is much more than its twenty bytes
    many = filled([batch(range(10_000))])
    assert many.size_bytes == pytest.approx(batch(range(10_000)).get_total_buffer_size(), rel=0.02)


def test_a_small_slice_of_large_buffers_is_copied_out() -> None:
    parent = batch(range(100_000))
    own, size = unpinned(parent.slice(500, 10))
    assert own.equals(parent.slice(500, 10))
    assert size == own.get_total_buffer_size() < 1000
    half, half_size = unpinned(parent.slice(0, 50_000))
    assert half_size == parent.get_total_buffer_size()
    assert half.column(0).buffers()[1].address == parent.column(0).buffers()[1].address
    small = batch(range(100)).slice(0, 1)
    assert unpinned(small)[0] is small


def test_buffers_that_native_readers_refuse_are_copied() -> None:
    data = pa.array([1, 2, 3], pa.decimal128(10, 2))
    raw = data.buffers()[1].to_pybytes()
    shifted = pa.py_buffer(b"\0" * 8 + raw).slice(8)
    crooked = pa.Array.from_buffers(data.type, 3, [None, shifted])
    odd = crooked.buffers()[1].address % 16 != 0
    if not odd:  # wherever the allocator put it, one of the two is crooked
        crooked = pa.Array.from_buffers(data.type, 3, [None, pa.py_buffer(b"\0" * 16 + raw).slice(16)])
    fixed = aligned(pa.record_batch({"d": crooked}))
    assert fixed.column(0).equals(data)
    assert fixed.column(0).buffers()[1].address % 16 == 0
    straight = pa.record_batch({"d": data})
    assert aligned(straight) is straight


def test_readers_of_different_captures_agree_while_rows_are_appended() -> None:
    table = MemTable(KEYED, 1, 0, 0)
    stop = threading.Event()
    failures: list[str] = []

    def read() -> None:
        while not stop.is_set():
            ref = table.capture(table.num_batches)
            live = ref.live().to_pylist()
            if len(live) != len({row["id"] for row in live}):
                failures.append("a key twice")
            newest = {row["id"]: row["v"] for row in live}
            found = ref.find(list(newest))
            rows = ref.table().column("v").to_pylist()
            if any(rows[row] != newest[key] for key, row in zip(newest, found.tolist(), strict=True)):
                failures.append("find and live disagree")

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for k in range(300):
        table.append(batch([k % 7, k % 11, k], str(k)), None)
    stop.set()
    for reader in readers:
        reader.join()
    assert failures == []


KEY_TYPES: dict[str, tuple[list[pa.DataType], st.SearchStrategy[Any]]] = {
    "int64": ([pa.int64()], st.tuples(st.integers(-3, 3))),
    "uint64": ([pa.uint64()], st.tuples(st.integers(2**64 - 4, 2**64 - 1))),
    "bool": ([pa.bool_()], st.tuples(st.booleans())),
    "string": ([pa.string()], st.tuples(st.text(max_size=2))),
    "binary": ([pa.large_binary()], st.tuples(st.binary(max_size=2))),
    "pair": ([pa.string(), pa.int8()], st.tuples(st.text(max_size=1), st.integers(-2, 2))),
}


@pytest.mark.parametrize("kind", KEY_TYPES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_captures_agree_with_a_dict_for_every_key_type(kind: str, data: st.DataObject) -> None:
    types, keys = KEY_TYPES[kind]
    fields = [
        pa.field(
            f"k{i}",
            t,
            nullable=False,
            metadata={**PK, b"lance-schema:unenforced-primary-key:position": str(i + 1).encode()},
        )
        for i, t in enumerate(types)
    ]
    schema = TableSchema.from_arrow(pa.schema([*fields, pa.field("n", pa.int64())]))
    table = MemTable(schema, 1, 0, 0)
    writes = data.draw(
        st.lists(st.lists(st.tuples(keys, st.booleans()), min_size=1, max_size=4), min_size=1, max_size=8)
    )
    looks = data.draw(st.sets(st.integers(1, len(writes))))
    number, models, model = 0, [{}], {}
    for i, write in enumerate(writes, 1):
        numbers = list(range(number, number + len(write)))
        number += len(write)
        columns = [pa.array([key[c] for key, _ in write], t) for c, t in enumerate(types)]
        table.append(
            pa.RecordBatch.from_arrays([*columns, pa.array(numbers)], schema=schema.nullable),
            flags(*(dead for _, dead in write)),
        )
        model = dict(model)
        for (key, dead), n in zip(write, numbers, strict=True):
            model[key] = (n, dead)
        models.append(model)
        if i in looks:
            table.capture().newest_mask()
    for count, expected in enumerate(models):
        ref = table.capture(count)
        live = {tuple(row[f"k{c}"] for c in range(len(types))): row["n"] for row in ref.live().to_pylist()}
        assert live == {key: n for key, (n, dead) in expected.items() if not dead}
        names = list(expected) + [key for key in model if key not in expected]
        values = [key if len(types) > 1 else key[0] for key in names]
        assert ref.find(values).tolist() == [expected[key][0] if key in expected else -1 for key in names]
        assert int(ref.newest_mask().sum()) == len(expected)


def test_keys_are_hashable_scalars_or_tuples() -> None:
    assert key_values([pa.array([1, 2], pa.uint8())]) == [1, 2]
    assert key_values([pa.array(["a"]), pa.array([b"b"])]) == [("a", b"b")]
    assert all(type(key) is int for key in key_values([pa.array(np.arange(3))]))


class BrokenIndex:
    """An index that cannot take a row."""

    size_bytes = 10

    def insert(self, rows: pa.RecordBatch, start: int) -> None:
        raise ValueError("no")


def test_an_index_that_fails_is_dropped_and_costs_no_row() -> None:
    table = MemTable(KEYED, 1, 0, 0, None, [BrokenIndex()])  # type: ignore[list-item]
    table.append(batch([1]), None)
    table.index_rows()
    assert table.indexes == ()
    table.append(batch([2]), None)
    table.index_rows()
    assert table.capture().live().column("id").to_pylist() == [1, 2]
    assert table.capture().indexes == ()


SHARD = "7a2f3c64-55a1-4d0e-9c44-0f6b2f9d1c10"


def rows(ids: list[int], v: str) -> pa.RecordBatch:
    return pa.record_batch({"id": ids, "v": [v] * len(ids)}, schema=COLUMNS)


def made(path: Path) -> str:
    lance.write_dataset(COLUMNS.empty_table(), path).initialize_mem_wal()
    return str(path)


def test_one_key_is_found_where_many_are_for_every_capture() -> None:
    index, keys = KeyIndex(), np.random.default_rng(3).integers(0, 20, 200)
    for start in range(0, 200, 40):
        index.extend([pa.array(keys[start : start + 40])])
    for captured in range(201):
        many = index.find(list(range(21)), captured)
        assert [index.find_one(key, captured) for key in range(21)] == many.tolist()


def test_a_get_of_a_shard_writer_sees_the_newest_row_in_every_tier(tmp_path: Path) -> None:
    with mw.ShardWriter.open(made(tmp_path / "t"), shard_id=SHARD, fsync=False) as writer:
        writer.put(rows([1, 2, 3], "flushed"))
        writer.force_seal_active()
        writer.wait_for_flush_drain()
        writer.put(rows([2, 3], "kept"))
        writer.delete([3])
        assert writer.get(1) == {"id": 1, "v": "flushed"}
        assert writer.get(2) == {"id": 2, "v": "kept"}
        assert writer.get(2, ["v"]) == {"v": "kept"}
        assert writer.get(3) is None
        assert writer.get(4) is None
        for k in range(50):
            writer.put(rows([100 + k, 0], str(k)))
            assert writer.get(0) == {"id": 0, "v": str(k)}
            assert writer.get(100 + k // 2) is not None
