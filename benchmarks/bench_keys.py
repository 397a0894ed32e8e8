"""What a key costs by its type: strings, binaries and composite keys beside int64, in one run.

Every case is one piece of work on two tables that differ in nothing but the type of their key: the "peer" is our own table
with int64 keys. The tables have 1M base rows, four SSTables and a memtable of a process that writes; a third of the fresh
rows replace rows of the base table. "Cold" begins with nothing in memory, as a new process does.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

import lance_memwal as mw
from benchmarks.harness import Bench, Case, Sample, base_directory
from lance_memwal.process.cache import CACHE

KINDS = ("string", "binary", "composite")
_GOAL = 3.0
_SSTABLES = 4
_ROUNDS = 7
_REPEATS = 6


def keys_of(kind: str, numbers: np.ndarray) -> dict[str, pa.Array]:
    """The key columns of these rows: other numbers, other keys."""
    if kind == "int64":
        return {"id": pa.array(numbers)}
    if kind == "string":
        return {"id": pa.array([f"customer-{number:010d}" for number in numbers.tolist()])}
    if kind == "binary":
        mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        cells = np.stack([mixed.byteswap(), numbers.astype(np.uint64)], axis=1)
        return {
            "id": pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(cells), [None, pa.py_buffer(cells)]).cast(
                "binary"
            )
        }
    tenants = np.char.add("tenant-", (numbers % 97).astype(str))
    return {"tenant": pa.array(tenants), "id": pa.array(numbers)}


def rows_of(kind: str, numbers: np.ndarray) -> pa.Table:
    """Rows with these keys."""
    values = {"value": pa.array(numbers.astype(np.float64)), "name": pa.array(numbers % 1000).cast("string")}
    return pa.table(keys_of(kind, numbers) | values)


def make(kind: str, uri: str, base: np.ndarray) -> mw.Table:
    """A table whose base has these rows."""
    schema = rows_of(kind, np.arange(1)).schema
    key = ["tenant", "id"] if kind == "composite" else "id"
    table = mw.create_table(uri, schema, primary_key=key, sharding=mw.Unsharded(), writer_defaults={"fsync": False})
    if len(base):
        lance.write_dataset(rows_of(kind, base).cast(table.schema), uri, mode="append")
    return table


@dataclass(frozen=True, slots=True)
class _State:
    table: mw.Table
    writer: mw.ShardWriter
    base_rows: int
    fresh: np.ndarray


def _place() -> str:
    place = tempfile.mkdtemp(prefix="memwal-bench-keys-", dir=base_directory())
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return place


@cache
def _state(kind: str, quick: bool) -> _State:
    base_rows, fresh_rows = (100_000, 10_000) if quick else (1_000_000, 50_000)
    table = make(kind, f"{_place()}/{kind}", np.arange(base_rows) * 2)
    fresh = np.random.default_rng(7).choice(base_rows * 3, fresh_rows, replace=False)
    writer = table.shard_writer(fsync=False)
    for number, part in enumerate(np.array_split(fresh, _SSTABLES + 1)):
        writer.put(rows_of(kind, part).cast(table.schema))
        if number < _SSTABLES:
            writer.force_seal_active()
            writer.wait_for_flush_drain()
    return _State(table, writer, base_rows, fresh)


def _timed(work: Callable[[], Any]) -> Sample:
    start = time.perf_counter()
    work()
    return Sample((time.perf_counter() - start) * 1e3)


def _read(kind: str, read: Callable[[mw.Table], Any], cold: bool, bench: Bench) -> Sample:
    table = _state(kind, bench.quick).table
    if cold:
        CACHE.clear()
        table = mw.open_table(table.uri)
    else:
        read(table)
    return _timed(lambda: read(table))


def _looked_up(kind: str, where: str, count: int, bench: Bench) -> list[Any]:
    state, rng = _state(kind, bench.quick), np.random.default_rng(11)
    if where == "fresh":
        numbers = rng.choice(state.fresh, count, replace=False)
    elif where == "base":
        numbers = np.setdiff1d(np.arange(state.base_rows) * 2, state.fresh)[:: max(1, state.base_rows // (2 * count))][
            :count
        ]
    else:
        numbers = state.base_rows * 4 + np.arange(count)
    columns = [column.to_pylist() for column in keys_of(kind, numbers).values()]
    return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))


def _get(kind: str, where: str, bench: Bench) -> Sample:
    table, keys = _state(kind, bench.quick).table, _looked_up(kind, where, 50, bench)
    table.get(keys[0])
    seconds = []
    for key in keys:
        start = time.perf_counter()
        table.get(key)
        seconds.append(time.perf_counter() - start)
    return Sample(float(np.median(seconds)) * 1e3, seconds)


def _lookup(kind: str, count: int, bench: Bench) -> Sample:
    table = _state(kind, bench.quick).table
    keys = _looked_up(kind, "fresh", count // 2, bench) + _looked_up(kind, "base", count // 2, bench)
    table.lookup(keys)
    return _timed(lambda: table.lookup(keys))


@cache
def _generations(kind: str, rows: int, base_rows: int, count: int) -> Path:
    """A table with `count` generations of `rows` rows; two thirds of them replace rows of the base."""
    place = Path(_place()) / "table"
    table = make(kind, str(place), np.arange(base_rows))
    rng = np.random.default_rng(5)
    with table.writer(compaction=None, max_memtable_rows=1 << 30) as writer:
        for _ in range(count):
            numbers = rng.choice(max(rows, base_rows * 3 // 2), rows, replace=False)
            writer.put(rows_of(kind, numbers).cast(table.schema))
            writer.flush()
    return place


def _compact(kind: str, bench: Bench) -> Sample:
    place = Path(bench.directory) / "table"
    shutil.copytree(_generations(kind, bench.scale(10_000, 1000), bench.scale(500_000, 50_000), 20), place)
    table = mw.open_table(str(place))
    return _timed(table.compact)


def _count_rewritten(kind: str, bench: Bench) -> Sample:
    """1M keys, each written six times over, counted by a process that knows nothing yet."""
    place = _generations(kind, bench.scale(1_000_000, 100_000), 0, _REPEATS)
    CACHE.clear()
    table = mw.open_table(str(place))
    return _timed(table.count_rows)


@cache
def _written_elsewhere(entries: int) -> mw.Table:
    """A table whose log has so many entries of one row, by a writer of another process."""
    uri = f"{_place()}/elsewhere"
    make("int64", uri, np.arange(10))
    child = multiprocessing.get_context("spawn").Process(target=_write_and_die, args=(uri, entries))
    child.start()
    child.join()
    return mw.open_table(uri)


def _write_and_die(uri: str, entries: int) -> None:
    table = mw.open_table(uri)
    writer = table.shard_writer(fsync=False)
    rows = rows_of("int64", np.arange(entries)).cast(table.schema)
    for number in range(entries):
        writer.put(rows.slice(number, 1))
    os._exit(0)  # what is in the log stays there


def _get_elsewhere(anew: bool, bench: Bench) -> Sample:
    table = _written_elsewhere(bench.scale(3000, 300))
    table.get(5)
    if anew:
        CACHE.clear()
    return _timed(lambda: table.get(7))


def _against_int64(name: str, turn: Callable[..., Sample], kind: str, rounds: int = _ROUNDS) -> Case:
    return Case(f"keys, {kind}: {name}", partial(turn, kind), partial(turn, "int64"), _GOAL, "ms", rounds=rounds)


def _scan(table: mw.Table) -> Any:
    return table.scan().to_table()


def _count(table: mw.Table) -> Any:
    return table.count_rows()


def cases() -> Iterator[Case]:
    """Every piece of work, for every type of key; and a fresh read beside a writer of another process."""
    anew, followed = partial(_get_elsewhere, True), partial(_get_elsewhere, False)
    yield Case("get, tail of 3,000 entries, followed and anew", followed, anew, 0.05, "ms", rounds=_ROUNDS)
    for kind in KINDS:
        for name, read in (("scan", _scan), ("count", _count)):
            yield _against_int64(name, lambda k, b, read=read: _read(k, read, False, b), kind)
            yield _against_int64(f"{name}, cold", lambda k, b, read=read: _read(k, read, True, b), kind)
        for where in ("fresh", "base", "missing"):
            yield _against_int64(f"get, {where}", lambda k, b, where=where: _get(k, where, b), kind)
        for count in (100, 10_000):
            yield _against_int64(f"lookup of {count:,}", lambda k, b, count=count: _lookup(k, count, b), kind)
        yield _against_int64("compact 20 generations", _compact, kind, rounds=5)
        yield _against_int64("count of keys written six times", _count_rewritten, kind, rounds=3)
