"""Rows that lie at any address are written: Arrow IPC aligns to 8 bytes, native readers ask 16 of decimals."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.write.once import OnceAppender

POINT = pa.struct([("price", pa.decimal128(20, 3))])
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("d", pa.decimal128(20, 3)),
        pa.field("wide", pa.decimal256(50, 5)),
        pa.field("list", pa.list_(pa.decimal128(9, 2))),
        pa.field("p", POINT),
    ]
)
SHARD = mw.shard_id_for(mw.Unsharded())


def shifted(count: int, start: int = 0) -> pa.RecordBatch:
    """`count` rows as they come out of an IPC stream that begins 8 bytes beside an address that suits decimals."""
    numbers = range(start, start + count)
    values = [Decimal(number) / 4 for number in numbers]
    given = pa.record_batch(
        [list(numbers), values, values, [[value] for value in values], [{"price": value} for value in values]],
        schema=SCHEMA,
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as stream:
        stream.write_batch(given)
    data = sink.getvalue()
    room = pa.allocate_buffer(data.size + 8)
    held = memoryview(room)
    held[8:] = memoryview(data)
    moved = pa.ipc.open_stream(pa.BufferReader(room.slice(8))).read_next_batch()
    if any(buffer is not None and buffer.address % 16 for buffer in moved.column(1).buffers()):
        return moved
    return pa.ipc.open_stream(pa.BufferReader(data)).read_next_batch()


def flush_of_a_claim(uri: str, batch: pa.RecordBatch) -> None:
    once = OnceAppender(uri)
    claim = once.claim(SHARD)
    once.append(claim, [batch])
    assert once.flush_tail(claim) == 1


def large_append(uri: str, batch: pa.RecordBatch) -> None:
    once = OnceAppender(uri, max_entry_bytes=1)
    assert once.append(once.claim(SHARD), [batch]).generation == 1


def flush_of_a_tail(uri: str, batch: pa.RecordBatch) -> None:
    with_tail = mw.open_table(uri).shard_writer(fsync=False)
    with_tail.put(batch)
    with_tail.abort()
    assert mw.open_table(uri).flush(idle_seconds=0).generations == 1


def large_put(uri: str, batch: pa.RecordBatch) -> None:
    with mw.open_table(uri).shard_writer(fsync=False, max_entry_bytes=1) as writer:
        writer.put(batch)


def put(uri: str, batch: pa.RecordBatch) -> None:
    with mw.open_table(uri).shard_writer(fsync=False) as writer:
        writer.put(batch)


@pytest.mark.parametrize("count", [1, 2, 3, 4])  # the layout of an entry depends on it
@pytest.mark.parametrize("write", [flush_of_a_claim, flush_of_a_tail, large_append, large_put, put])
def test_decimals_at_any_address_are_flushed(
    write: Callable[[str, pa.RecordBatch], None], count: int, tmp_path: Path
) -> None:
    uri = str(tmp_path / "t")
    table = mw.create_table(uri, SCHEMA, primary_key="id", sharding=mw.Unsharded(), writer_defaults={"fsync": False})
    batch = shifted(count)
    write(uri, batch)
    assert table.scan(consistency="flushed").to_table().to_pylist() == batch.to_pylist()
    table.compact()
    assert table.scan().to_table().to_pylist() == batch.to_pylist()


def test_a_table_is_made_of_decimals_at_any_address(tmp_path: Path) -> None:
    batch = shifted(3)
    table = mw.create_table(str(tmp_path / "t"), batch, primary_key="id", sharding=mw.Unsharded())
    assert table.scan().to_table().to_pylist() == batch.to_pylist()
