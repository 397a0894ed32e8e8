"""What the log costs beside the raw work: encode a batch, create an object.

The raw side encodes the same rows as an Arrow IPC stream and creates one object per batch in the same kind of store,
with nothing around it: no epoch, no footer, no protocol. The plain way opens a stream writer per object; the leanest
way writes the schema message once and joins it with each batch's message, as the appender does too. All sides work
without fsync: on tmpfs it would measure nothing, and on a disk it would hide everything else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pyarrow.ipc as ipc

from benchmarks.harness import Bench, Case, Sample, timed
from lance_memwal import WalAppender
from lance_memwal.store.location import resolve
from lance_memwal.store.paths import wal_entry_path

SHARD = "7a2f3c64-55a1-4d0e-9c44-0f6b2f9d1c10"
ROWS = 20
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


def cases() -> list[Case]:
    """The cases of this module."""
    return [
        Case("wal append, 20 rows, beside raw stream", append, raw, goal=1.5, unit="us", rounds=9),
        Case("wal append, 20 rows, beside raw message", append, raw_message, goal=1.5, unit="us", rounds=9),
    ]


def batches(count: int) -> list[pa.RecordBatch]:
    """`count` different batches of an id, a number and a short text."""
    made = []
    for number in range(count):
        ids = range(number * ROWS, (number + 1) * ROWS)
        columns = {
            "id": pa.array(ids, pa.int64()),
            "value": pa.array([float(i) for i in ids], pa.float64()),
            "name": pa.array([f"event number {i}" for i in ids]),
        }
        made.append(pa.RecordBatch.from_pydict(columns))
    return made


def append(bench: Bench) -> Sample:
    """Entries through the appender."""
    writer = WalAppender.open(f"{bench.directory}/table", SHARD, fsync=False)
    rows = batches(bench.scale(2_000, 500))
    return _sample(timed(partial(writer.append, [batch]) for batch in rows))


def raw(bench: Bench) -> Sample:
    """Encode with a stream writer and create, by hand."""
    return _put_all(bench, _stream_bytes)


def raw_message(bench: Bench) -> Sample:
    """Encode as little as possible and create, by hand."""
    prefix = _schema(batches(1)[0]).serialize().to_pybytes()
    return _put_all(bench, lambda batch: b"".join((prefix, batch.serialize(), END_OF_STREAM)))


def _put_all(bench: Bench, encode: Callable[[pa.RecordBatch], bytes]) -> Sample:
    store = resolve(f"{bench.directory}/table").store_once
    rows = batches(bench.scale(2_000, 500))
    schema, live = _schema(rows[0]), pa.array([False] * ROWS)

    def put(position: int, batch: pa.RecordBatch) -> None:
        entry = pa.RecordBatch.from_arrays([*batch.columns, live], schema=schema)
        store.put_new(wal_entry_path(SHARD, position), encode(entry))

    return _sample(timed(partial(put, position, batch) for position, batch in enumerate(rows, 1)))


def _schema(batch: pa.RecordBatch) -> pa.Schema:
    field = pa.field("_tombstone", pa.bool_(), nullable=False)
    return batch.schema.append(field).with_metadata({"writer_epoch": "1", "generation": "1"})


def _stream_bytes(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def _sample(seconds: list[float]) -> Sample:
    return Sample(sum(seconds) / len(seconds) * 1e6, seconds)
