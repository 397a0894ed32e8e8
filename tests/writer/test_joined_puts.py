"""Small puts that share an entry are one batch of it: order, tombstones, transactions and positions stay those of the puts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lance_memwal import ShardWriter
from tests.kit.writers import KEYED, open_writer, row_entries, rows, scanned


def shared(writer: ShardWriter, *writes: Any) -> list[Any]:
    """Writes of one entry: rows to put, or keys to delete; their results."""
    nowait = {True: writer.delete_nowait, False: writer.put_nowait}
    acks = [nowait[isinstance(write, list)](write, drain=False) for write in writes]
    acks[-1].wait()
    return [ack.result for ack in acks]


def logged(root: Path) -> list[list[tuple[int, str | None, bool]]]:
    """Per batch of the only entry with rows: what it holds."""
    (entry,) = row_entries(root)
    return [
        list(zip(*(b.column(name).to_pylist() for name in ("id", "v", "_tombstone")), strict=True))
        for b in entry.batches
    ]


def test_small_puts_of_one_entry_are_one_batch_and_each_has_its_position(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        done = shared(writer, *(rows([k, k + 10], f"put {k}") for k in range(4)))
        assert [result.batch_positions for result in done] == [range(k, k + 1) for k in range(4)]
        assert [result.written for result in done] == [2] * 4
        assert logged(tmp_path) == [[(i, f"put {k}", False) for k in range(4) for i in (k, k + 10)]]
        assert writer.memtable_stats().batch_count == 4
        writer.abort()
    with open_writer(tmp_path) as writer:
        assert scanned(writer) == {i: f"put {k}" for k in range(4) for i in (k, k + 10)}


def test_deletes_between_puts_keep_their_place(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        shared(writer, rows([1, 2], "a"), [1], rows([1], "b"), [2, 3])
        expected = [
            (1, "a", False),
            (2, "a", False),
            (1, None, True),
            (1, "b", False),
            (2, None, True),
            (3, None, True),
        ]
        assert logged(tmp_path) == [expected]
        writer.abort()
    with open_writer(tmp_path) as writer:
        assert scanned(writer) == {1: "b"}


def test_a_large_put_between_small_ones_keeps_its_place(tmp_path: Path) -> None:
    large = rows([1, *range(100, 4_000)], "x" * 64)
    assert large.get_total_buffer_size() > 64 * 1024
    with open_writer(tmp_path) as writer:
        shared(writer, rows([1, 2], "first"), rows([2], "second"), large, rows([3], "third"), rows([1], "last"))
        assert [len(batch) for batch in logged(tmp_path)] == [3, 3_901, 2]
        writer.abort()
    with open_writer(tmp_path) as writer:
        found = scanned(writer)
        assert (found[1], found[2], found[3], found[100]) == ("last", "second", "third", "x" * 64)


def test_puts_that_say_different_things_of_nulls_share_an_entry_as_they_are(tmp_path: Path) -> None:
    fields = [KEYED.field("id").with_nullable(True), KEYED.field("v").with_nullable(False)]
    other = pa.RecordBatch.from_arrays(rows([2], "b").columns, schema=pa.schema(fields))
    with open_writer(tmp_path) as writer:
        shared(writer, rows([1], "a"), other, rows([3], "c"))
        assert [row for batch in logged(tmp_path) for row in batch] == [
            (1, "a", False),
            (2, "b", False),
            (3, "c", False),
        ]
        writer.abort()
    with open_writer(tmp_path) as writer:
        assert scanned(writer) == {1: "a", 2: "b", 3: "c"}


def test_batches_of_one_put_stay_apart(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        given = pa.Table.from_batches([rows([1, 2], "a"), rows([3], "b")])
        assert writer.put(given).batch_positions == range(2)
        assert [len(batch) for batch in logged(tmp_path)] == [2, 1]


@pytest.mark.parametrize("limit", [60_000, 200_000])
def test_an_entry_of_many_small_puts_stays_within_its_limit(tmp_path: Path, limit: int) -> None:
    with open_writer(tmp_path, max_entry_bytes=limit, durable_write=False) as writer:
        for k in range(400):
            writer.put(rows([k], "x" * 500))
        writer.put_nowait(rows([1_000])).wait()
        found = row_entries(tmp_path)
        assert len(found) > 1
        assert max(entry.size_bytes for entry in found) <= limit
        assert sum(entry.num_rows for entry in found) == 401


def test_columns_that_share_a_buffer_are_counted_each(tmp_path: Path) -> None:
    names = [f"c{i}" for i in range(60)]
    schema = pa.schema([KEYED.field("id"), *((name, pa.string()) for name in names)])
    text = pa.array(["x" * 2_000])
    with open_writer(tmp_path, schema, max_entry_bytes=1_000_000, durable_write=False) as writer:
        for k in range(30):
            writer.put(pa.RecordBatch.from_arrays([pa.array([k]), *[text] * 60], schema=schema))
        ids = pa.RecordBatch.from_arrays([pa.array([99]), *[text] * 60], schema=schema)
        writer.put_nowait(ids).wait()
        assert max(entry.size_bytes for entry in row_entries(tmp_path)) <= 1_000_000 + 20_000
