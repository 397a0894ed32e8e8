"""Reads of a table with 1M base rows and 50k fresh rows, beside the peer's scanner and planners.

Each state (memtable, SSTables, many SSTables) is built once per run, a table of its own for each side, and stays open:
what is measured is the read. The peer is asked through its snapshot-based API, which looks at no manifest; ours looks
at storage for every read. The limit of a scan is one of the base rows alone, by plain Lance. A row in the memtable can be
asked for through three doors: the table, the writer of its shard, the writer of the table.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import lance
import numpy as np
import pyarrow as pa
from lance.mem_wal import LsmPointLookupPlanner, LsmScanner, ShardSnapshot

import lance_memwal as mw
from benchmarks.harness import LIMIT, Bench, Case, Sample, base_directory
from benchmarks.rivals import peer_snapshot

_SHARD = "aaaaaaaa-0000-4000-8000-000000000001"
_SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), False, {"lance-schema:unenforced-primary-key": "true"}),
        pa.field("value", pa.float32()),
        pa.field("name", pa.string()),
    ]
)


def _rows(ids: np.ndarray, tag: str) -> pa.Table:
    names = pa.array([f"{tag}{i % 1000}" for i in ids.tolist()])
    return pa.table([pa.array(ids), pa.array((ids % 997).astype(np.float32)), names], schema=_SCHEMA)


@dataclass(frozen=True, slots=True)
class Tables:
    """One state, built for both sides."""

    ours: mw.Table
    our_writer: mw.ShardWriter | None
    peer: lance.LanceDataset
    peer_writer: Any
    peer_snapshot: ShardSnapshot
    base_rows: int
    fresh: np.ndarray


def _base(directory: str, name: str, rows: int) -> str:
    uri = f"{directory}/{name}"
    lance.write_dataset(_rows(np.arange(rows) * 2, "base"), uri)
    return uri


@cache
def _tables(state: str, quick: bool) -> Tables:
    directory = tempfile.mkdtemp(prefix="memwal-bench-read-", dir=base_directory())
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    base_rows, fresh_rows = (100_000, 10_000) if quick else (1_000_000, 50_000)
    ours_uri, peer_uri = _base(directory, "ours", base_rows), _base(directory, "peer", base_rows)
    ours = mw.enable(ours_uri)
    lance.dataset(peer_uri).initialize_mem_wal()
    # every other fresh key replaces a base row, the others are new
    fresh = np.random.default_rng(7).choice(base_rows * 2, fresh_rows, replace=False)
    tables = {"memtable": 0, "sstables": 3, "many": 100}[state]
    step = -(-fresh_rows // max(tables, 1))
    parts = [fresh[i : i + step] for i in range(0, fresh_rows, step)]
    our_writer = ours.shard_writer(fsync=False, max_memtable_age_ms=None)  # a long run would flush what is to be fresh
    peer_dataset = lance.dataset(peer_uri)
    peer_writer = peer_dataset.mem_wal_writer(_SHARD, max_memtable_rows=1_000_000)
    for part in parts:
        our_writer.put(_rows(part, "fresh"))
        if tables:
            our_writer.force_seal_active()
            our_writer.wait_for_flush_drain()
            peer_writer.put(_rows(part, "fresh"))
            peer_writer.close()
            peer_writer = lance.dataset(peer_uri).mem_wal_writer(_SHARD, max_memtable_rows=1_000_000)
        else:
            peer_writer.put(_rows(part, "fresh"))
    latest = mw.ShardManifestStore(peer_uri, _SHARD).read_latest()
    assert latest is not None
    return Tables(ours, our_writer, lance.dataset(peer_uri), peer_writer, peer_snapshot(latest), base_rows, fresh)


def _peer_scanner(tables: Tables, state: str) -> LsmScanner:
    if state == "memtable":
        return cast(LsmScanner, tables.peer_writer.lsm_scanner())
    return LsmScanner.from_snapshots(tables.peer, [tables.peer_snapshot])


def _once(call: Callable[[], Any]) -> Sample:
    start = time.perf_counter()
    call()
    return Sample((time.perf_counter() - start) * 1e3)


def _scan_case(name: str, state: str, sql: str | None, goal: float, *, full_only: bool = False) -> Case:
    def ours(bench: Bench) -> Sample:
        tables = _tables(state, bench.quick)
        return _once(lambda: tables.ours.scan(filter=sql).to_table())

    def peer(bench: Bench) -> Sample:
        tables = _tables(state, bench.quick)
        scanner = _peer_scanner(tables, state)
        return _once(lambda: (scanner if sql is None else scanner.filter(sql)).to_table())

    def limit(bench: Bench) -> Sample:
        dataset = _tables(state, bench.quick).ours.dataset
        return _once(lambda: dataset.to_table(filter=sql))

    return Case(name, ours, peer, 1 / goal, "ms", rounds=9, others={LIMIT: limit}, full_only=full_only)


def _keys(tables: Tables, where: str, count: int) -> list[int]:
    rng = np.random.default_rng(11)
    if where == "fresh":
        return [int(k) for k in rng.choice(tables.fresh, count)]
    if where == "base":
        fresh = set(tables.fresh.tolist())
        return [k for k in (rng.permutation(tables.base_rows)[: count * 3] * 2).tolist() if k not in fresh][:count]
    return [int(k) for k in tables.base_rows * 4 + np.arange(count)]


Get = Callable[[int], Any]


def _table_get(tables: Tables) -> Get:
    return tables.ours.get


def _shard_writer_get(tables: Tables) -> Get:
    assert tables.our_writer is not None
    return tables.our_writer.get


def _get_case(name: str, state: str, where: str, goal: float, door: Callable[[Tables], Get] = _table_get) -> Case:
    def ours(bench: Bench) -> Sample:
        tables = _tables(state, bench.quick)
        keys = _keys(tables, where, 50)
        seconds = _each(door(tables), keys)
        return Sample(float(np.median(seconds)) * 1e3, seconds)

    def peer(bench: Bench) -> Sample:
        tables = _tables(state, bench.quick)
        keys = _keys(tables, where, 20)
        seconds = _each(_peer_get(tables, state), keys)
        return Sample(float(np.median(seconds)) * 1e3, seconds)

    return Case(name, ours, peer, 1 / goal, "ms", rounds=5)


def _peer_get(tables: Tables, state: str) -> Callable[[int], Any]:
    if state == "memtable":  # its planner never sees a memtable: the scanner's routed key filter is the only way
        return lambda key: tables.peer_writer.lsm_scanner().filter(f"id = {key}").to_table()
    planner = LsmPointLookupPlanner(tables.peer, [tables.peer_snapshot])
    return lambda key: planner.plan_lookup(pa.array([key], pa.int64())).to_table()


def _each(call: Callable[[int], Any], keys: list[int]) -> list[float]:
    seconds = []
    for key in keys:
        start = time.perf_counter()
        call(key)
        seconds.append(time.perf_counter() - start)
    return seconds


@cache
def _table_writer(quick: bool) -> tuple[mw.TableWriter, np.ndarray]:
    """A writer of a table like that of the memtable, whose fresh rows it has put itself, and their keys."""
    tables = _tables("memtable", quick)
    table = mw.enable(_base(f"{tables.ours.uri}-of-a-table-writer", "ours", tables.base_rows))
    writer = table.writer(compaction=None, fsync=False)
    writer.put(_rows(tables.fresh, "fresh"))
    return writer, tables.fresh


def _table_writer_get(bench: Bench) -> Sample:
    writer, fresh = _table_writer(bench.quick)
    keys = [int(key) for key in np.random.default_rng(11).choice(fresh, 50)]
    seconds = _each(writer.get, keys)
    return Sample(float(np.median(seconds)) * 1e3, seconds)


def _lookup_many(bench: Bench) -> Sample:
    tables = _tables("sstables", bench.quick)
    keys = _keys(tables, "fresh", 50) + _keys(tables, "base", 50)
    return _once(lambda: tables.ours.lookup(keys))


def _lookup_one_each(bench: Bench) -> Sample:
    tables = _tables("sstables", bench.quick)
    keys = _keys(tables, "fresh", 50) + _keys(tables, "base", 50)
    get = _peer_get(tables, "sstables")
    return _once(lambda: [get(key) for key in keys])


def cases() -> Iterator[Case]:
    """Reads of every state; the goal is a ratio of times, so 0.5 means twice as fast."""
    yield _scan_case("scan, memtable", "memtable", None, 2)
    yield _scan_case("scan, 3 SSTables", "sstables", None, 3)
    yield _scan_case("scan, filtered, 3 SSTables", "sstables", "value > 990", 1)
    yield _scan_case("scan, 100 SSTables", "many", None, 5, full_only=True)
    yield _get_case("get, from memtable", "memtable", "fresh", 5)
    yield _get_case("get, from memtable, ShardWriter", "memtable", "fresh", 5, _shard_writer_get)
    of_peer = _get_case("", "memtable", "fresh", 5).peer
    yield Case("get, from memtable, TableWriter", _table_writer_get, of_peer, 1 / 5, "ms", rounds=5)
    yield _get_case("get, from SSTable", "sstables", "fresh", 5)
    yield _get_case("get, from base", "sstables", "base", 3)
    yield _get_case("get, miss", "sstables", "miss", 5)
    yield _get_case("get, 100 SSTables", "many", "fresh", 5)
    yield Case("lookup of 100 keys", _lookup_many, _lookup_one_each, 1 / 20, "ms", rounds=5)
