"""The life of a shard writer beside that of pylance's own, tuned for its best; puts alone are in `bench_puts`.

Both sides write without fsync (the peer never does), on tmpfs, into tables of their own. Durable: the peer with
`durable_write=True, max_wal_buffer_size=1`, so that it never waits for its timer. Not durable: the peer with its
defaults. Rows are an int64 key, a float32 and a short string.

Some cases compare us with ourselves, and say so in their names: the column `peer` is then the other way of ours.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import lance
import numpy as np
import pyarrow as pa

from benchmarks.harness import Bench, Case, Sample
from lance_memwal import LastWrite, ShardWriter, create_table

SHARD = "7a2f3c64-55a1-4d0e-9c44-0f6b2f9d1c10"
ROWS = 20
_KEY = {"lance-schema:unenforced-primary-key": "true"}
_ID = pa.field("id", pa.int64(), nullable=False, metadata=_KEY)
NARROW = pa.schema([_ID, ("value", pa.float32()), ("name", pa.string())])
_DURABLE = {"durable_write": True, "max_wal_buffer_size": 1}
_PLENTY: dict[str, Any] = {
    "max_memtable_rows": 2_000_000,
    "max_memtable_batches": 200_000,
    "max_memtable_size": 1 << 40,
}
_MIB = 1024 * 1024

Put = Callable[[Any], object]


def cases() -> list[Case]:
    """The cases of this module."""
    return [
        Case("buffered put, 20 rows, with close", partial(buffered, ours), partial(buffered, peer), 3.0, "puts/s"),
        Case("close with 50,000 rows in memory", partial(flush, ours), partial(flush, peer), 1.0, "ms", 9),
        Case("open with 1,500 entries to replay", partial(replay, ours), partial(replay, peer), 1.0, "ms", 9),
        Case(
            "memory of 100,000 rows",
            partial(memory, ours),
            partial(memory, peer),
            None,
            "MiB",
            rounds=3,
            isolated=True,
        ),
        Case(
            "durable put at 1,000,000 rows, beside 1,000 rows",
            partial(growth, ahead=49_000),
            partial(growth, ahead=0),
            1.25,
            "us",
            rounds=3,
        ),
        Case("update of 20 rows with keys in memory, beside a put", update, partial(ordered, None), 0.4, "calls/s"),
        Case(
            "put in order with LastWrite, beside none",
            partial(ordered, LastWrite("sequence")),
            partial(ordered, None),
            0.83,
            "calls/s",
        ),
        Case(
            "durable put on a disk with fsync, beside none",
            partial(on_disk, True),
            partial(on_disk, False),
            None,
            "us",
            3,
        ),
    ]


# ------------------------------------------------------------------------------------------------- the two writers


def ours(uri: str, **settings: Any) -> ShardWriter:
    """Our writer."""
    return ShardWriter.open(uri, shard_id=SHARD, fsync=False, **settings)


def peer(uri: str, *, durable_write: bool = True, **settings: Any) -> Any:
    """pylance's writer at its best for durable puts, at its defaults for others."""
    tuned = _DURABLE if durable_write else {"durable_write": False}
    return lance.dataset(uri).mem_wal_writer(SHARD, **(tuned | settings))


Open = Callable[..., Any]


def _table(bench: Bench, schema: pa.Schema) -> str:
    uri = f"{bench.directory}/table"
    lance.write_dataset(schema.empty_table(), uri).initialize_mem_wal()
    return uri


@cache
def _batches(schema: pa.Schema, count: int, rows: int = ROWS) -> list[pa.RecordBatch]:
    """`count` batches of `rows` new rows each, in random key order."""
    rng = np.random.default_rng(7)
    ids = rng.permutation(count * rows)
    names = np.array([f"name {i % 1000}" for i in range(count * rows)])
    columns = {
        "id": pa.array(ids),
        "value": pa.array(rng.random(count * rows, np.float32)),
        "name": pa.array(names),
    }
    whole = pa.table({name: columns[name] for name in schema.names}, schema=schema)
    # Copies, so that no batch holds on to the buffers of all.
    return [pa.record_batch(whole.slice(i * rows, rows).to_pydict(), schema=schema) for i in range(count)]


def _timed_puts(put: Put, batches: Sequence[pa.RecordBatch], seconds: list[float]) -> None:
    clock = time.perf_counter
    for batch in batches:
        start = clock()
        put(batch)
        seconds.append(clock() - start)


# ---------------------------------------------------------------------------------------------------------- turns


def buffered(open_writer: Open, bench: Bench) -> Sample:
    """Puts per second until everything is flushed and closed."""
    batches = _batches(NARROW, bench.scale(5_000, 800))
    writer = open_writer(_table(bench, NARROW), durable_write=False)
    latencies: list[float] = []
    start = time.perf_counter()
    _timed_puts(writer.put, batches, latencies)
    writer.close()
    return Sample(len(batches) / (time.perf_counter() - start), latencies)


def flush(open_writer: Open, bench: Bench) -> Sample:
    """Close a writer whose rows are all in its memtable and in its log."""
    writer = open_writer(_table(bench, NARROW))
    for batch in _batches(NARROW, bench.scale(50, 10), 1_000):
        writer.put(batch)
    start = time.perf_counter()
    writer.close()
    return Sample((time.perf_counter() - start) * 1e3)


def replay(open_writer: Open, bench: Bench) -> Sample:
    """Open a shard whose last writer vanished."""
    uri = _table(bench, NARROW)
    writer = open_writer(uri)
    for batch in _batches(NARROW, bench.scale(1_500, 300)):
        writer.put(batch)
    if isinstance(writer, ShardWriter):
        writer.abort()
    del writer
    start = time.perf_counter()
    again = open_writer(uri)
    seconds = time.perf_counter() - start
    again.close()
    return Sample(seconds * 1e3)


def memory(open_writer: Open, bench: Bench) -> Sample:
    """How much the process grows by rows that are in a memtable (and in the log)."""
    count = bench.scale(5_000, 1_000)
    writer = open_writer(_table(bench, NARROW), max_memtable_rows=1_000_000)
    batches = (pa.record_batch(batch.to_pydict(), schema=NARROW) for batch in _batches(NARROW, count))
    writer.put(next(batches))
    before = _resident_bytes()
    for batch in batches:
        writer.put(batch)
    grown = _resident_bytes() - before
    writer.close()
    return Sample(grown / _MIB)


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def growth(bench: Bench, *, ahead: int) -> Sample:
    """What a put costs when `ahead` puts of 20 rows (and 50 to warm up) are in the memtable already."""
    writer = ours(_table(bench, NARROW), **_PLENTY)
    some = _batches(NARROW, 1_000)
    for i in range(bench.scale(ahead, ahead // 10) + 50):
        writer.put(some[i % 1_000])
    latencies: list[float] = []
    _timed_puts(writer.put, some, latencies)
    writer.abort()
    return Sample(sum(latencies) / len(latencies) * 1e6, latencies)


_ORDERED = NARROW.append(pa.field("sequence", pa.int64()))
_KEYS = 10_000


def _of_keys(ids: np.ndarray[Any, Any], sequence: int) -> pa.RecordBatch:
    """Whole rows of these keys."""
    names = [f"name {i % 1000}" for i in ids.tolist()]
    columns = [ids, np.ones(len(ids), np.float32), names, np.full(len(ids), sequence)]
    return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=_ORDERED)


@contextmanager
def _written_table(bench: Bench, merge: LastWrite | None = None) -> Iterator[Any]:
    """The writer of a table with `_KEYS` rows, all in memory."""
    uri = f"{bench.directory}/table"
    made = create_table(uri, _ORDERED, primary_key="id", merge=merge, writer_defaults={"fsync": False})
    with made.writer(compaction=None, **_PLENTY) as writer:
        writer.put(_of_keys(np.arange(_KEYS), 0))
        yield writer


def _keys(bench: Bench) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(7)
    return [rng.choice(_KEYS, ROWS, replace=False) for _ in range(bench.scale(3_000, 400))]


def ordered(merge: LastWrite | None, bench: Bench) -> Sample:
    """Puts of whole rows that replace others; none is late."""
    batches = [_of_keys(ids, number + 1) for number, ids in enumerate(_keys(bench))]
    return _timed_calls(bench, batches, "put", merge)


def update(bench: Bench) -> Sample:
    """Updates of one column of rows that are in memory."""
    value = pa.array(np.full(ROWS, 2, np.float32))
    batches = [pa.record_batch({"id": pa.array(ids), "value": value}) for ids in _keys(bench)]
    return _timed_calls(bench, batches, "update")


def _timed_calls(bench: Bench, batches: list[pa.RecordBatch], verb: str, merge: LastWrite | None = None) -> Sample:
    latencies: list[float] = []
    with _written_table(bench, merge) as writer:
        start = time.perf_counter()
        _timed_puts(getattr(writer, verb), batches, latencies)
        seconds = time.perf_counter() - start
    return Sample(len(batches) / seconds, latencies)


def on_disk(fsync: bool, bench: Bench) -> Sample:
    """A durable put on the disk that holds temporary files."""
    with _disk_directory() as directory:
        uri = _table(Bench(directory), NARROW)
        with ShardWriter.open(uri, shard_id=SHARD, fsync=fsync) as writer:
            latencies: list[float] = []
            _timed_puts(writer.put, _batches(NARROW, bench.scale(300, 50)), latencies)
    return Sample(sum(latencies) / len(latencies) * 1e6, latencies)


@contextmanager
def _disk_directory() -> Iterator[str]:
    directory = tempfile.mkdtemp(prefix="memwal-bench-disk-")
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
