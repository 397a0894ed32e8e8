"""What the log costs compared with the raw work: encode a batch and create an object; read an object and decode it.

The raw side encodes the same rows as an Arrow IPC stream and creates one object per batch in the same kind of store,
with nothing around it: no epoch, no footer, no protocol. The plain way opens a stream writer per object; the leanest
way writes the schema message once and joins it with each batch's message, as the appender does too. All sides work
without fsync: on tmpfs it would measure nothing, and on a disk it would hide everything else.

`WalTailer.read_entry` is compared with the least work that gives the same rows: get each object and decode it as an Arrow
IPC stream, without checksum, footer and checks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pyarrow.ipc as ipc

from benchmarks import rivals
from benchmarks.harness import LIMIT, Bench, Case, Sample, timed
from lance_memwal import WalAppender, WalTailer
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
        *(_read_case(rows) for rows in (20, 1_000)),
    ]


def _read_case(rows: int) -> Case:
    limit = {LIMIT: partial(read_raw, rows)}
    return Case(f"read_entry, {rows:,} rows", partial(read_entries, rows), None, None, "entries/s", others=limit)


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


def _read(bench: Bench, rows: int, reader_of: Callable[[WalTailer], Callable[[int], pa.Table | None]]) -> Sample:
    """Entries per second that a reader decodes; the log has been written by a writer in WAL-only mode."""
    count, place = bench.scale(1_000, 200), rivals.Place(f"{bench.directory}/table")
    with rivals.ours(place, enable_memtable=False) as put:
        for batch in rivals.batches("narrow", rows, count):
            put(batch)
    tailer = WalTailer(place.uri, rivals.SHARD)
    end = tailer.next_position()
    read, found = reader_of(tailer), 0

    def call(position: int) -> None:
        nonlocal found
        table = read(position)
        found += 0 if table is None else table.num_rows

    seconds = timed(partial(call, position) for position in range(1, end))
    assert found == rows * count
    return Sample((end - 1) / sum(seconds), seconds)


def read_entries(rows: int, bench: Bench) -> Sample:
    """Through `WalTailer.read_entry`."""

    def reader_of(tailer: WalTailer) -> Callable[[int], pa.Table | None]:
        def read(position: int) -> pa.Table | None:
            entry = tailer.read_entry(position)
            return None if entry is None or not entry.batches else pa.Table.from_batches(entry.batches)

        return read

    return _read(bench, rows, reader_of)


def read_raw(rows: int, bench: Bench) -> Sample:
    """Get and decode, by hand."""

    def reader_of(tailer: WalTailer) -> Callable[[int], pa.Table | None]:
        store = tailer.location.store_once
        return lambda position: ipc.open_stream(store.get(wal_entry_path(rivals.SHARD, position))).read_all()

    return _read(bench, rows, reader_of)


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
