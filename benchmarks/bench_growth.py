"""What a put, a get, a flush and a scan cost as a table grows: in rows, in generations, in shards.

One table per axis grows from size to size, on tmpfs, without fsync. Costs are those of a process that has read the
table before, but where a name says otherwise: of one shard or generation the second get is of one that was read, of
hundreds the fiftieth is not. Rows: all but the fresh ones are in the base table; a scan is told per row, and its put,
get and flush are of 20, 1 and 1,000 rows. Generations: 100 rows each above a base of 10,000; nothing is compacted, and a
scan is told per row. Goals count up to 64 generations; 500 is information. Shards: a put with a row for every shard, a flush of
all and a scan are told per shard; a get is of one row.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import lance
import numpy as np
import pyarrow as pa

import lance_memwal as mw
from benchmarks.growth import Growth, Measured, once, repeated
from benchmarks.harness import Bench

_SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.float32()), ("name", pa.string())])
_FAST = {"fsync": False, "stats_log_interval_ms": None, "max_memtable_age_ms": None}
_SLICE = 1_000_000
_GENERATION_ROWS, _GENERATIONS_BASE = 100, 10_000
_ROWS_PER_SHARD = 20
_FLUSHES = 3

Grown = Iterator[tuple[int, Sequence[Measured]]]


def cases() -> Iterator[Growth]:
    """The three axes."""
    million = 1_000_000
    yield Growth(
        "growth, rows", "rows", (1_000, 10_000, 100_000, million, 10 * million), (1_000, 10_000, 100_000), _rows
    )
    yield Growth("growth, generations", "generations", (1, 5, 16, 64, 500), (1, 5, 16), _generations)
    yield Growth("growth, shards", "shards", (1, 4, 16, 64, 256, 512), (1, 4, 16), _shards)


def _of(ids: Any) -> pa.Table:
    numbers = np.asarray(ids)
    names = pa.array(np.char.add("name ", (numbers % 1000).astype(str)))
    return pa.table([pa.array(numbers), pa.array((numbers % 997).astype(np.float32)), names], schema=_SCHEMA)


def _made(bench: Bench, sharding: Any, name: str = "table") -> mw.Table:
    return mw.create_table(
        f"{bench.directory}/{name}", _SCHEMA, primary_key="id", sharding=sharding, writer_defaults=_FAST
    )


def _load(table: mw.Table, first: int, end: int) -> None:
    """Base rows with these ids."""
    for start in range(first, end, _SLICE):
        rows = _of(np.arange(start, min(start + _SLICE, end)))
        lance.write_dataset(rows.cast(table.schema), table.uri, mode="append")


def _puts_of(writer: mw.TableWriter, new: Iterator[int], times: int) -> Measured:
    """Puts of 20 new rows each, which are made before."""
    made = iter([_of([next(new) for _ in range(20)]) for _ in range(times + 1)])
    return repeated("put of 20 rows", lambda: writer.put(next(made)), times)


def _flush_of(writer: mw.TableWriter, new: Iterator[int], rows: int, times: int, what: str) -> Measured:
    """Flushes of rows that were put just before; putting them does not count."""
    values = []
    for _ in range(times):
        writer.put(_of([next(new) for _ in range(rows)]))
        values.append(once(writer.flush, unit="ms"))
    return Measured(what, "ms", values)


def _rows(bench: Bench, sizes: Sequence[int]) -> Grown:
    """A base table that grows; whatever is fresh is compacted before it grows again."""
    table, loaded = _made(bench, mw.Unsharded()), 0
    for size in sizes:
        _load(table, loaded, size)
        loaded = size
        yield size, _at_rows(table, size)


def _at_rows(table: mw.Table, size: int) -> list[Measured]:
    new, keys = itertools.count(1 << 40), itertools.cycle(np.random.default_rng(3).integers(0, size, 1000).tolist())
    found = []
    with table.writer(compaction=None) as writer:
        writer.put(_of([-1]))
        found.append(_puts_of(writer, new, 50))
        found.append(repeated("get of a fresh row", lambda: table.get(-1), 50))
        found.append(repeated("get of a base row", lambda: table.get(next(keys)), 50))
        found.append(repeated("scan, per row", lambda: _read(table), 3, unit="ns", per=size))
        found.append(_flush_of(writer, new, 1_000, _FLUSHES, "flush of 1,000 rows"))
    table.compact()
    return found


def _read(table: mw.Table) -> int:
    """Every row, and nothing kept."""
    return sum(batch.num_rows for batch in table.scan().to_reader())


def _generations(bench: Bench, sizes: Sequence[int]) -> Grown:
    """A shard whose generations grow in number; the keys of each are its own."""
    table, new, firsts = _made(bench, mw.Unsharded()), itertools.count(1 << 40), list[int]()
    _load(table, 0, _GENERATIONS_BASE)
    measured = 0  # generations that the flushes made
    with table.writer(compaction=None) as writer:
        for size in sizes:
            while len(firsts) + measured < size:
                firsts.append(_GENERATIONS_BASE + len(firsts) * _GENERATION_ROWS)
                writer.put(_of(firsts[-1] + np.arange(_GENERATION_ROWS)))
                writer.flush()
            yield size, _at_generations(table, writer, firsts, new)
            measured += _FLUSHES


def _at_generations(table: mw.Table, writer: mw.TableWriter, firsts: list[int], new: Iterator[int]) -> list[Measured]:
    keys = itertools.cycle(np.random.default_rng(3).choice(firsts, 1000).tolist())
    missing = itertools.count(1 << 50)
    return [
        repeated("get of a flushed row, not read before", lambda: table.get(next(keys)), 50),
        repeated("get of no row", lambda: table.get(next(missing)), 50),
        repeated("scan, per row", lambda: _read(table), 5, unit="ns", per=table.count_rows()),
        repeated("get of a flushed row", lambda: table.get(next(keys)), 50),
        _puts_of(writer, new, 50),
        _flush_of(writer, new, _GENERATION_ROWS, _FLUSHES, "flush of 100 rows"),
    ]


def _shards(bench: Bench, sizes: Sequence[int]) -> Grown:
    """A table for each number of shards, since that does not change."""
    for size in sizes:
        table = _made(bench, mw.Unsharded() if size == 1 else mw.Bucket("id", size), f"table-{size}")
        yield size, _at_shards(table, size)


def _at_shards(table: mw.Table, size: int) -> list[Measured]:
    rows = _of(np.arange(size * _ROWS_PER_SHARD))
    keys = itertools.cycle(np.random.default_rng(3).permutation(len(rows)).tolist())
    one_per_shard = {mw.shard_id_for(table.sharding, key): key for key in range(len(rows))}
    with table.writer(compaction=None, max_open_shards=2 * size) as writer:
        found = [
            Measured("open and first put, per shard", "us", [once(lambda: writer.put(rows), per=size)]),
            repeated("put with rows of every shard, per shard", lambda: writer.put(rows), 5, per=size),
            Measured("first get of a shard", "us", [once(partial(table.get, key)) for key in one_per_shard.values()]),
            repeated("get of a fresh row", lambda: table.get(next(keys)), 50),
            repeated("scan, per shard", lambda: _read(table), 3, per=size),
        ]
        flushes = []
        for _ in range(2):
            writer.put(rows)
            flushes.append(once(writer.flush, per=size))
        found.append(Measured("flush of every shard, per shard", "us", flushes))
    return found
