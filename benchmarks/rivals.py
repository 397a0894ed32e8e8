"""Rows of several shapes, and everybody who can store them: ours, pylance's MemWAL, plain Lance, LanceDB, and the bare
work.

Owns the sides of put benchmarks. A rival is a function that makes its table and gives what stores one batch; its
context ends it. The limit of a durable put is the least that gives the same guarantee: the rows as an Arrow message,
and one create-only put. With fsync it is a file and its directory, synced by hand. That of a buffered put is a list
under a lock, behind the checks without which a row could not be stored later.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import lance
import lancedb
import numpy as np
import pyarrow as pa
from lance.mem_wal import ShardSnapshot

import lance_memwal as mw
from benchmarks.harness import Sample
from lance_memwal.store.location import resolve
from lance_memwal.store.paths import wal_entry_path

SHARD = "7a2f3c64-55a1-4d0e-9c44-0f6b2f9d1c10"
SHAPES = ("narrow", "text", "128-dimension", "1,024-dimension")
_KEY = {"lance-schema:unenforced-primary-key": "true"}
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_WORDS = np.array(["river", "stone", "light", "paper", "cloud", "bread", "glass", "green", "seven", "table"])
_ROOM: dict[str, int] = {  # nothing is flushed while puts are measured
    "max_memtable_rows": 2_000_000,
    "max_memtable_size": 4 << 30,
    "max_unflushed_memtable_bytes": 8 << 30,
}

Put = Callable[[pa.RecordBatch], object]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a table goes, and how its rows look."""

    uri: str
    shape: str = "narrow"
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def storage(self) -> dict[str, str] | None:
        """The storage options, None for local paths."""
        return dict(self.options) or None


Rival = Callable[[Place], AbstractContextManager[Put]]


# ---------------------------------------------------------------------------------------------------------------- rows


def _dimensions(shape: str) -> int:
    return int(shape.partition("-")[0].replace(",", ""))


def schema_of(shape: str) -> pa.Schema:
    """An int64 key, and what the shape says."""
    key = pa.field("id", pa.int64(), nullable=False, metadata=_KEY)
    if shape == "narrow":
        return pa.schema([key, ("value", pa.float32()), ("name", pa.string())])
    if shape == "text":
        return pa.schema([key, ("title", pa.string()), ("text", pa.string())])
    return pa.schema([key, ("vector", pa.list_(pa.float32(), _dimensions(shape))), ("name", pa.string())])


@cache
def batches(shape: str, rows: int, count: int) -> list[pa.RecordBatch]:
    """`count` batches of `rows` rows with keys of their own, in random order; each has buffers of its own."""
    rng = np.random.default_rng(7)
    ids = rng.permutation(count * rows)
    return [_batch(shape, ids[start : start + rows], rng) for start in range(0, count * rows, rows)]


def _batch(shape: str, ids: np.ndarray[Any, Any], rng: np.random.Generator) -> pa.RecordBatch:
    names = pa.array(np.char.add("name ", (ids % 1000).astype(str)))
    columns: list[Any] = [pa.array(ids.copy()), pa.array(rng.random(len(ids), np.float32)), names]
    if shape == "text":
        columns[1:] = [names, _texts(len(ids), rng)]
    elif shape != "narrow":
        size = _dimensions(shape)
        columns[1] = pa.FixedSizeListArray.from_arrays(pa.array(rng.random(len(ids) * size, np.float32)), size)
    return pa.RecordBatch.from_arrays(columns, schema=schema_of(shape))


def _texts(rows: int, rng: np.random.Generator) -> pa.Array:
    """Texts of fifty words."""
    lines = [" ".join(rng.choice(_WORDS, 50)) for _ in range(min(rows, 200))]
    return pa.array([lines[i % len(lines)] for i in range(rows)])


# -------------------------------------------------------------------------------------------------------------- rivals


def plain_table(place: Place) -> lance.LanceDataset:
    """An empty table."""
    return lance.write_dataset(schema_of(place.shape).empty_table(), place.uri, storage_options=place.storage)


def new_table(place: Place) -> lance.LanceDataset:
    """An empty table with a MemWAL index."""
    dataset = plain_table(place)
    dataset.initialize_mem_wal()
    return dataset


@contextmanager
def ours(place: Place, **settings: Any) -> Iterator[Put]:
    """Our shard writer; it does not sync, since none of the others does."""
    new_table(place)
    opened = {"fsync": False, "shard_id": SHARD, **_ROOM, **settings}
    writer = mw.ShardWriter.open(place.uri, storage_options=place.storage, **opened)
    try:
        yield writer.put
    finally:
        writer.abort()


def ours_synced(place: Place) -> AbstractContextManager[Put]:
    """Our shard writer as it is by default: a put that returned survives power loss."""
    return ours(place, fsync=True)


@contextmanager
def peer(place: Place, **settings: Any) -> Iterator[Put]:
    """pylance's writer at its best for durable puts: it never waits for its timer."""
    tuned = {"durable_write": True, "max_wal_buffer_size": 1, **_ROOM} | settings
    writer = new_table(place).mem_wal_writer(SHARD, **tuned)
    try:
        yield writer.put
    finally:
        writer.close()


@contextmanager
def peer_defaults(place: Place) -> Iterator[Put]:
    """pylance's writer as it is by default: its log is written every 100 ms."""
    writer = new_table(place).mem_wal_writer(SHARD)
    try:
        yield writer.put
    finally:
        writer.close()


@contextmanager
def append(place: Place) -> Iterator[Put]:
    """One commit of Lance per put."""
    plain_table(place)
    yield lambda batch: lance.write_dataset(
        pa.Table.from_batches([batch]), place.uri, mode="append", storage_options=place.storage
    )


@contextmanager
def merge(place: Place) -> Iterator[Put]:
    """One `merge_insert` of Lance per put: what a keyed put is without a MemWAL."""
    dataset = plain_table(place)
    yield (
        lambda batch: (
            dataset.merge_insert("id")
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute(pa.Table.from_batches([batch]))
        )
    )


@contextmanager
def lancedb_add(place: Place) -> Iterator[Put]:
    """One `add` of LanceDB per put, which knows no key."""
    folder, _, name = place.uri.rpartition("/")
    database = lancedb.connect(folder, storage_options=place.storage)
    yield database.create_table(name, schema=schema_of(place.shape)).add


def entry_encoder(shape: str) -> Callable[[pa.RecordBatch], bytes]:
    """The least that a batch is on storage: the schema, which is made once, the rows, and the end."""
    schema = schema_of(shape).append(pa.field("_tombstone", pa.bool_(), nullable=False))
    prefix = schema.serialize().to_pybytes()

    def encode(batch: pa.RecordBatch) -> bytes:
        live = pa.array(np.zeros(len(batch), np.bool_))
        message = pa.RecordBatch.from_arrays([*batch.columns, live], schema=schema).serialize()
        return b"".join((prefix, message, _END_OF_STREAM))

    return encode


@contextmanager
def limit(place: Place) -> Iterator[Put]:
    """Encode, and one create-only put."""
    store, encode, positions = (
        resolve(place.uri, place.storage).store_once,
        entry_encoder(place.shape),
        itertools.count(1),
    )
    store.put_new(wal_entry_path(SHARD, next(positions)), b"the connection and the directory are there")
    yield lambda batch: store.put_new(wal_entry_path(SHARD, next(positions)), encode(batch))


@contextmanager
def limit_synced(place: Place) -> Iterator[Put]:
    """Encode, create a file, write it, sync it and its directory."""
    os.makedirs(place.uri)
    encode, positions, directory = entry_encoder(place.shape), itertools.count(1), os.open(place.uri, os.O_RDONLY)

    def put(batch: pa.RecordBatch) -> None:
        file = os.open(f"{place.uri}/{next(positions)}", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        os.write(file, encode(batch))
        os.fsync(file)
        os.close(file)
        os.fsync(directory)

    try:
        yield put
    finally:
        os.close(directory)


@contextmanager
def limit_buffered(place: Place) -> Iterator[Put]:
    """The checks of a put (open, columns, no null where none may be, a size), and a list under a lock."""
    schema, lock, rows, size = schema_of(place.shape), threading.Lock(), list[pa.RecordBatch](), 0
    needed = [number for number, column in enumerate(schema) if not column.nullable]

    def put(batch: pa.RecordBatch) -> None:
        nonlocal size
        if not batch.schema.equals(schema) or any(batch.column(number).null_count for number in needed):
            raise ValueError("not a row of this table")
        with lock:
            rows.append(batch)
            size += batch.nbytes

    yield put


# ---------------------------------------------------------------------------------------------------------- measuring


def putting(rival: Rival, place: Place, some: Sequence[pa.RecordBatch], *, threads: int = 1, seconds: float) -> Sample:
    """Puts per second of all threads together, until the batches are used up or the time is; the first one does not count."""
    with rival(place) as put:
        put(some[0])
        latencies: list[list[float]] = [[] for _ in range(threads)]
        workers = [
            threading.Thread(target=_put_for, args=(put, some[1 + number :: threads], seconds, latencies[number]))
            for number in range(threads)
        ]
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        taken = time.perf_counter() - start
    flat = [second for each in latencies for second in each]
    if not flat:
        raise RuntimeError("no put came to an end")
    return Sample(len(flat) / taken, flat)


def _put_for(put: Put, some: Sequence[pa.RecordBatch], seconds: float, latencies: list[float]) -> None:
    clock = time.perf_counter
    end = clock() + seconds
    for batch in some:
        start = clock()
        if start > end:
            break
        put(batch)
        latencies.append(clock() - start)


def peer_snapshot(manifest: mw.ShardManifest) -> ShardSnapshot:
    """What a manifest lists, as pylance's readers want to be told."""
    snapshot = ShardSnapshot(manifest.shard_id).with_current_generation(manifest.current_generation)
    for sstable in manifest.sstables:
        snapshot = snapshot.with_sstable(sstable.generation, sstable.path)
    return snapshot
