"""Tables as streams leave them: a cold get over 16 and 64 generations, what it opens, and the ingest of a large file.

Cold is a process that knows nothing of the table (files may be in the page cache). The peer is given its snapshot,
and so needs no manifest; its planner is made anew, as a new process would. Opened objects are counted by the system,
Lance's own among them: files of the table that the call opens, each once. The ingest reads a Parquet file and stores
its rows under their key, which LanceDB's `add` does not look at.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from ctypes import CDLL, get_errno
from functools import cache, partial
from pathlib import Path
from struct import Struct
from typing import Any

import lance
import lancedb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from lance.mem_wal import LsmPointLookupPlanner, ShardSnapshot

import lance_memwal as mw
from benchmarks.harness import LANCEDB, LIMIT, Bench, Case, Sample, workplace
from benchmarks.rivals import peer_snapshot
from lance_memwal.process.cache import CACHE

_GENERATIONS = (16, 64)
_ROWS = 100
_KEYS = 8
_INGEST_ROWS, _FEW_INGEST_ROWS = 1_000_000, 100_000
_BATCH_ROWS = 100_000
_KEY = {"lance-schema:unenforced-primary-key": "true"}
_SCHEMA = pa.schema([pa.field("id", pa.int64(), False, _KEY), ("value", pa.float64()), ("name", pa.string())])
_IN_OPEN, _EVENT = 0x20, Struct("iIII")


def cases() -> Iterator[Case]:
    """Cold gets, and the ingest."""
    for count in _GENERATIONS:
        name, ours, peer = f"cold get, {count} generations", partial(_cold_get, count), partial(_peer_cold_get, count)
        yield Case(name, ours, peer, None, "ms", rounds=7)
        yield Case(f"{name}, objects opened", partial(_opened, count), None, None, "objects", rounds=3)
    others = {LANCEDB: _lancedb_ingest, LIMIT: _plain_ingest}
    yield Case("ingest, 1M keyed rows of Parquet", _ingest, None, None, "ms", rounds=5, others=others)


def _rows(ids: np.ndarray[Any, Any]) -> pa.Table:
    names = pa.array(np.char.add("row number ", ids.astype(str)))
    return pa.table([pa.array(ids), pa.array(ids.astype(np.float64)), names], schema=_SCHEMA)


# ----------------------------------------------------------------------------------------------------------- cold gets


@cache
def _streamed(count: int) -> tuple[str, ShardSnapshot]:
    """A table with so many small generations, each with keys from everywhere, and what the peer must know of it."""
    uri, keys = f"{workplace()}/streamed-{count}", np.random.default_rng(5).permutation(count * _ROWS)
    lance.write_dataset(_rows(np.arange(10_000) + 10_000_000), uri)
    table = mw.enable(uri)
    with table.shard_writer(fsync=False) as writer:
        for number in range(count):
            writer.put(_rows(np.sort(keys[number * _ROWS : (number + 1) * _ROWS])))
            writer.force_seal_active()
            writer.wait_for_flush_drain()
        manifest = writer.manifest()
    return uri, peer_snapshot(manifest)


def _keys(count: int) -> list[int]:
    return [int(key) for key in np.random.default_rng(11).choice(count * _ROWS, _KEYS, replace=False)]


def _each(call: Callable[[int], Any], keys: list[int]) -> Sample:
    seconds = []
    for key in keys:
        start = time.perf_counter()
        call(key)
        seconds.append(time.perf_counter() - start)
    return Sample(float(np.median(seconds)) * 1e3, seconds)


def _found_cold(uri: str, key: int) -> None:
    CACHE.clear()
    assert mw.open_table(uri).get(key) is not None


def _cold_get(count: int, _: Bench) -> Sample:
    uri = _streamed(count)[0]
    return _each(lambda key: _found_cold(uri, key), _keys(count))


def _peer_cold_get(count: int, _: Bench) -> Sample:
    uri, snapshot = _streamed(count)

    def get(key: int) -> None:
        planner = LsmPointLookupPlanner(lance.dataset(uri), [snapshot])
        assert planner.plan_lookup(pa.array([key], pa.int64())).to_table().num_rows == 1

    return _each(get, _keys(count)[: _KEYS // 2])


def _opened(count: int, _: Bench) -> Sample:
    uri = _streamed(count)[0]
    counts = [len(_files_opened(Path(uri), partial(_found_cold, uri, key))) for key in _keys(count)]
    return Sample(float(np.median(counts)))


def _files_opened(root: Path, call: Callable[[], object]) -> set[str]:
    """The files below `root` that the call opens, as the system tells it (inotify)."""
    libc = CDLL(None, use_errno=True)
    watch = libc.inotify_init1(os.O_NONBLOCK)
    if watch < 0:
        raise OSError(get_errno(), "inotify is not to be had")
    try:
        places = {}
        for directory in (root, *(path for path in root.rglob("*") if path.is_dir())):
            number = libc.inotify_add_watch(watch, os.fsencode(directory), _IN_OPEN)
            if number < 0:
                raise OSError(get_errno(), "too many directories to watch")
            places[number] = directory
        call()
        return set(_opened_names(watch, places))
    finally:
        os.close(watch)


def _opened_names(watch: int, places: dict[int, Path]) -> Iterator[str]:
    while True:
        try:
            data = os.read(watch, 1 << 20)
        except BlockingIOError:
            return
        at = 0
        while at < len(data):
            number, kind, _, length = _EVENT.unpack_from(data, at)
            name = data[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0").decode()
            at += _EVENT.size + length
            if name and (places[number] / name).is_file() and kind & _IN_OPEN:
                yield str(places[number] / name)


# -------------------------------------------------------------------------------------------------------------- ingest


@cache
def _file(quick: bool) -> str:
    """A Parquet file, its keys in random order."""
    rows, path = (_FEW_INGEST_ROWS if quick else _INGEST_ROWS), f"{workplace()}/rows.parquet"
    pq.write_table(_rows(np.random.default_rng(3).permutation(rows)), path)
    return path


def _batches(bench: Bench) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(_SCHEMA, pq.ParquetFile(_file(bench.quick)).iter_batches(_BATCH_ROWS))


def _timed(work: Callable[[], object]) -> Sample:
    start = time.perf_counter()
    work()
    return Sample((time.perf_counter() - start) * 1e3)


def _ingest(bench: Bench) -> Sample:
    """Read, put and close: all rows are flushed."""
    table = mw.create_table(f"{bench.directory}/table", _SCHEMA, writer_defaults={"fsync": False})

    def work() -> None:
        with table.writer(compaction=None) as writer:
            for batch in _batches(bench):
                writer.put(batch)

    return _timed(work)


def _lancedb_ingest(bench: Bench) -> Sample:
    """Read and add."""
    table = lancedb.connect(bench.directory).create_table("table", schema=_SCHEMA)
    return _timed(lambda: table.add(_batches(bench)))


def _plain_ingest(bench: Bench) -> Sample:
    """Read and write with plain Lance."""
    return _timed(lambda: lance.write_dataset(_batches(bench), f"{bench.directory}/table"))
