"""Puts of every size and shape: ours, pylance at its best and as it is by default, plain Lance, LanceDB, and the limit.

Durable puts on tmpfs, into one shard of an empty table, without fsync on any side. A turn ends with its batches or
with its time, whichever comes first, so that a slow side does not make the run long. Further on: puts that reach many
shards, and puts on a disk.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pyarrow as pa

import lance_memwal as mw
from benchmarks import rivals
from benchmarks.goals import MEMTABLE, ONE_THREAD
from benchmarks.harness import APPEND, DEFAULTS, LANCEDB, LIMIT, MERGE, Bench, Case, Sample
from benchmarks.rivals import Place, Put, Rival
from lance_memwal.store.location import resolve
from lance_memwal.store.paths import wal_entry_path

_SIZES = (1, 20, 1_000, 100_000)
_WIDEST = 20_000  # rows of 1,024 dimensions: 80 MB
_SHARDS = (1, 16, 256)
_SHARDED_ROWS = 1_000
_SECONDS, _QUICK_SECONDS = 0.3, 0.1
_ROUNDS = 5
_FURTHER: Mapping[str, Rival] = {
    LIMIT: rivals.limit,
    DEFAULTS: rivals.peer_defaults,
    APPEND: rivals.append,
    MERGE: rivals.merge,
    LANCEDB: rivals.lancedb_add,
}


def cases() -> Iterator[Case]:
    """Sizes, shapes, threads; buffered; shards; disks."""
    for shape in rivals.SHAPES:
        for rows in _SIZES:
            yield _put_case(shape, _WIDEST if (shape, rows) == (rivals.SHAPES[-1], _SIZES[-1]) else rows, 1)
    for shape, rows in (*(("narrow", rows) for rows in _SIZES), ("128-dimension", 20), ("1,024-dimension", 20)):
        yield _put_case(shape, rows, 8)
    yield Case(
        "put: 20 narrow rows, buffered",
        _turn(partial(rivals.ours, durable_write=False), "narrow", 20),
        _turn(partial(rivals.peer, durable_write=False, max_wal_buffer_size=None), "narrow", 20),
        None,
        "puts/s",
        _ROUNDS,
        others={LIMIT: _turn(rivals.limit_buffered, "narrow", 20)},
    )
    for rows, threads in ((20, 1), (20, 8), (1_000, 1)):
        yield _wal_only_case(rows, threads)
    for shards in _SHARDS:
        sides = [partial(_sharded, way, shards) for way in (_ours_sharded, _peer_sharded, _limit_sharded)]
        name = f"put: {_SHARDED_ROWS:,} narrow rows, {shards} shard{'' if shards == 1 else 's'}"
        yield Case(name, sides[0], sides[1], None, "puts/s", _ROUNDS, others={LIMIT: sides[2]})
    for rows in (1, 20):
        yield _disk_case(rows, rivals.ours, rivals.peer, rivals.limit, "disk without fsync")
        yield _disk_case(rows, rivals.ours_synced, None, rivals.limit_synced, "disk with fsync")


def _called(shape: str, rows: int) -> str:
    return f"put: {rows:,} {shape} row{'' if rows == 1 else 's'}"


def _put_case(shape: str, rows: int, threads: int) -> Case:
    """Everybody for narrow rows and one thread, else the three that matter; many threads beside one of ours."""
    further = _FURTHER if (shape, threads) == ("narrow", 1) else {LIMIT: rivals.limit}
    others = {name: _turn(rival, shape, rows, threads) for name, rival in further.items()}
    if threads > 1:
        others[ONE_THREAD] = _turn(rivals.ours, shape, rows)
    name = f"{_called(shape, rows)}, {threads} thread{'' if threads == 1 else 's'}"
    ours, peer = _turn(rivals.ours, shape, rows, threads), _turn(rivals.peer, shape, rows, threads)
    shown = shape == "narrow" or (rows == 20 and threads == 1)
    return Case(name, ours, peer, None, "puts/s", _ROUNDS, others=others, full_only=not shown)


def _wal_only_case(rows: int, threads: int) -> Case:
    """Ours without memtables, compared with ours as it is by default. pylance has no such mode in Python."""
    name = f"{_called('narrow', rows)}, {threads} thread{'' if threads == 1 else 's'}, WAL-only"
    sides = (partial(rivals.ours, enable_memtable=False), rivals.ours, rivals.limit)
    ours, memtable, limit = (_turn(side, "narrow", rows, threads) for side in sides)
    return Case(name, ours, None, None, "puts/s", _ROUNDS, others={MEMTABLE: memtable, LIMIT: limit})


def _turn(rival: Rival, shape: str, rows: int, threads: int = 1) -> Any:
    return partial(_put_turn, rival, shape, rows, threads)


def _put_turn(rival: Rival, shape: str, rows: int, threads: int, bench: Bench) -> Sample:
    return _puts(rival, f"{bench.directory}/table", shape, rows, threads, bench)


def _puts(rival: Rival, uri: str, shape: str, rows: int, threads: int, bench: Bench) -> Sample:
    rows = bench.scale(rows, min(rows, 10_000))
    some = rivals.batches(shape, rows, _count_of(shape, rows, threads))
    seconds = _QUICK_SECONDS if bench.quick else _SECONDS
    return rivals.putting(rival, Place(uri, shape), some, threads=threads, seconds=seconds)


_BYTES_PER_ROW = {"narrow": 40, "text": 400, "128-dimension": 550, "1,024-dimension": 4_200}


def _count_of(shape: str, rows: int, threads: int) -> int:
    """How many batches: enough for a turn, one more to begin with, and not more than a machine has room for."""
    return max(threads, 3, min(3_000, 60_000_000 // (rows * _BYTES_PER_ROW[shape]))) + 1


# -------------------------------------------------------------------------------------------------------------- shards


def _sharded(way: Any, shards: int, bench: Bench) -> Sample:
    """Puts whose rows belong to all shards, in turn."""
    some = rivals.batches("narrow", _SHARDED_ROWS, bench.scale(60, 10))
    seconds = _QUICK_SECONDS if bench.quick else 2 * _SECONDS
    return rivals.putting(partial(way, shards), Place(f"{bench.directory}/table"), some, seconds=seconds)


def _sharding(shards: int) -> Any:
    return mw.Unsharded() if shards == 1 else mw.Bucket("id", shards)


@contextmanager
def _ours_sharded(shards: int, place: Place) -> Iterator[Put]:
    """Our writer, which routes; all shards are open."""
    schema = rivals.schema_of("narrow")
    fast = {"fsync": False, "stats_log_interval_ms": None}
    table = mw.create_table(place.uri, schema, sharding=_sharding(shards), writer_defaults=fast)
    writer = table.writer(compaction=None, max_open_shards=2 * shards)
    writer.put(_of_every_shard(shards))
    try:
        yield writer.put
    finally:
        writer.abort()


def _of_every_shard(shards: int) -> pa.RecordBatch:
    """Enough rows to open every shard, with keys of no other batch."""
    rows = rivals.batches("narrow", 20 * shards, 1)[0]
    return pa.RecordBatch.from_arrays([pa.array(range(-len(rows), 0)), *rows.columns[1:]], schema=rows.schema)


@contextmanager
def _peer_sharded(shards: int, place: Place) -> Iterator[Put]:
    """A writer of pylance per shard, at its best, and somebody who hands the rows out."""
    dataset, sharding = rivals.new_table(place), _sharding(shards)
    writers: dict[str, Any] = {}
    with ExitStack() as all_writers:
        for shard, _ in mw.route(_of_every_shard(shards), sharding):
            writer = dataset.mem_wal_writer(shard, durable_write=True, max_wal_buffer_size=1)
            all_writers.callback(writer.close)
            writers[shard] = writer

        def put(batch: pa.RecordBatch) -> None:
            for shard, rows in mw.route(batch, sharding):
                writers[shard].put(rows)

        yield put


@contextmanager
def _limit_sharded(shards: int, place: Place) -> Iterator[Put]:
    """Route, encode, and one create-only put per shard."""
    store, sharding, positions = resolve(place.uri).store_once, _sharding(shards), itertools.count(1)
    encode = rivals.entry_encoder("narrow")

    def put(batch: pa.RecordBatch) -> None:
        position = next(positions)
        for shard, rows in mw.route(batch, sharding):
            store.put_new(wal_entry_path(shard, position), encode(rows))

    yield put


# --------------------------------------------------------------------------------------------------------------- disks


def _disk_case(rows: int, ours: Rival, peer: Rival | None, limit: Rival, where: str) -> Case:
    sides = {rival: partial(_on_disk, rival, rows) for rival in (ours, peer, limit) if rival}
    name = f"{_called('narrow', rows)}, {where}"
    theirs = sides[peer] if peer else None
    return Case(name, sides[ours], theirs, None, "puts/s", _ROUNDS, others={LIMIT: sides[limit]})


def _on_disk(rival: Rival, rows: int, bench: Bench) -> Sample:
    """Puts in the directory for temporary files."""
    directory = tempfile.mkdtemp(prefix="memwal-bench-disk-")
    try:
        return _puts(rival, f"{directory}/table", "narrow", rows, 1, bench)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
