"""What a put, a get, a flush and a scan cost does not grow with the table: requests, bytes and calls are counted, not seconds.

The curves themselves are made by `python -m benchmarks --group growth`. Here a curve that stops being flat fails: each piece of
work is done at several sizes of a table, and must take as many requests of each kind at the largest as at the smallest. What
is no request (Lance's files, looks at each of many shards or generations) shows in the number of functions that are called.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.manifest_codec import encode_manifest
from lance_memwal.process.cache import CACHE
from lance_memwal.store import paths
from lance_memwal.types import SsTable
from tests.harness.profile import scaled
from tests.kit.effort import calls_of
from tests.kit.tables import watched_table

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
SHARD = mw.shard_id_for(mw.Unsharded())
FRESH, MISSING = 1 << 40, 1 << 50
LISTED_BYTES = 96  # of a generation, in a manifest


def rows(first: int, count: int) -> pa.RecordBatch:
    ids = np.arange(first, first + count)
    return pa.record_batch([pa.array(ids), pa.array(ids)], schema=SCHEMA)


class Counted:
    """A table whose requests are counted: those of the engine, per kind, and their bytes."""

    def __init__(self, place: Path, sharding: Any, base_rows: int = 1_000) -> None:
        defaults = {"fsync": False}
        table = mw.create_table(str(place), SCHEMA, primary_key="id", sharding=sharding, writer_defaults=defaults)
        batch = pa.Table.from_batches([rows(0, base_rows)]).cast(table.schema)
        lance.write_dataset(batch, table.uri, mode="append")
        CACHE.clear()
        self._calls: Counter[str] = Counter()
        self.table = watched_table(str(place), lambda name, _path: self._calls.update([name]))
        self.writer = self.table.writer(compaction=None)
        self.next = FRESH

    def put(self, count: int = 20) -> int:
        first, self.next = self.next, self.next + count
        self.writer.put(rows(first, count))
        return first

    def flush(self) -> None:
        self.put()
        self.writer.flush()

    def cost(self, work: Callable[[], object], times: int = 8, before: int = 4) -> dict[str, float]:
        """Requests per call, by kind, of a process that has done it some times before."""
        for _ in range(before):
            work()
        self._calls.clear()
        for _ in range(times):
            work()
        return {kind: count / times for kind, count in sorted(self._calls.items())}

    def bytes_of(self, work: Callable[[], object]) -> int:
        before = sum(stats.size_bytes for stats in self.table.location.metrics.snapshot().values())
        work()
        return sum(stats.size_bytes for stats in self.table.location.metrics.snapshot().values()) - before

    def costs(self, flushed: int) -> dict[str, dict[str, float]]:
        """What everything costs now; `flushed` is a key of an SSTable."""
        fresh = self.put()
        get = self.table.get
        return {
            "put": self.cost(self.put),
            "get of a memtable": self.cost(lambda: get(fresh)),
            "get of an SSTable": self.cost(lambda: get(flushed)),
            "get of the base": self.cost(lambda: get(5)),
            "get of nothing": self.cost(lambda: get(MISSING)),
            "scan": self.cost(lambda: self.table.scan().to_table(), 2),
            "count": self.cost(self.table.count_rows, 2),
        }


def test_nothing_costs_more_requests_with_more_rows(tmp_path: Path) -> None:
    found = {}
    for size in (1_000, 300_000):
        counted = Counted(tmp_path / str(size), mw.Unsharded(), size)
        with counted.writer:
            first = counted.put()
            counted.writer.flush()
            found[size] = {**counted.costs(first), "flush": counted.cost(counted.flush, 2)}
    assert found[1_000] == found[300_000]


def typical_calls(work: Callable[[], object], times: int = 50) -> float:
    """The median of several: some of them are the first of their kind."""
    return statistics.median(calls_of(work) for _ in range(times))


@dataclass(frozen=True, slots=True)
class Costs:
    """What work costs at one number of generations: requests by kind, and calls."""

    requests: dict[str, dict[str, float]]
    cold_get: float
    warm_get: float
    scan: float


@pytest.fixture(scope="module")
def generation_costs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Costs]:
    """A shard that grows; the keys of its generations are their own."""
    counted, found, firsts = Counted(tmp_path_factory.mktemp("generations") / "t", mw.Unsharded()), {}, list[int]()
    with counted.writer:
        for size in (3, 16, 64):
            while len(firsts) < size:
                firsts.append(counted.put())
                counted.writer.flush()
            found[size] = costs_of_generations(counted, firsts)
    return found


def costs_of_generations(counted: Counted, firsts: list[int]) -> Costs:
    table, keys = counted.table, itertools.cycle(np.random.default_rng(3).permutation(firsts).tolist())
    requests = counted.costs(firsts[0])
    CACHE.clear()
    cold = typical_calls(lambda: table.get(next(keys)), min(50, len(firsts)))
    table.scan().to_table()
    warm = typical_calls(lambda: table.get(next(keys)))
    return Costs(requests, cold, warm, calls_of(lambda: list(table.scan().to_batches())))


def test_nothing_costs_more_requests_with_more_generations(generation_costs: dict[int, Costs]) -> None:
    for what, small in generation_costs[3].requests.items():
        large = generation_costs[64].requests[what]
        # A listing of many manifests is replaced by a look at the newest one and at its successor.
        assert sum(large.values()) <= sum(small.values()) + 2, (what, small, large)


def test_gets_of_other_keys_call_no_more_with_more_generations(generation_costs: dict[int, Costs]) -> None:
    few = generation_costs[3]
    for costs in generation_costs.values():
        assert costs.cold_get <= 2.5 * few.cold_get, "the first get of a generation"
        assert costs.warm_get <= 1.5 * few.warm_get, "of one that has read everything; a few manifests may be listed"
    assert generation_costs[64].warm_get <= few.warm_get + 20


def test_a_scan_calls_little_for_each_generation(generation_costs: dict[int, Costs]) -> None:
    assert generation_costs[64].scan <= generation_costs[3].scan + 61 * 25


def test_gets_call_no_more_with_more_open_shards(tmp_path: Path) -> None:
    calls = {}
    for shards in (1, 20, 80):
        counted = Counted(tmp_path / str(shards), mw.Bucket("id", shards))
        with counted.writer:
            first = counted.put(10 * shards)
            keys = range(first, first + 10 * shards)
            assert counted.table.lookup(list(keys)).num_rows == len(keys)
            asked = itertools.cycle(np.random.default_rng(3).permutation(keys).tolist())
            calls[shards] = typical_calls(lambda table=counted.table, asked=asked: table.get(next(asked)))
    assert calls[80] <= calls[20] + 5, calls
    assert calls[80] <= calls[1] + 60, calls


@pytest.mark.parametrize("what", ["put", "get of a memtable", "get of an SSTable", "get of the base", "get of nothing"])
def test_work_on_one_row_asks_one_shard(what: str, shard_costs: dict[int, dict[str, dict[str, float]]]) -> None:
    assert shard_costs[1][what] == shard_costs[4][what] == shard_costs[32][what]


@pytest.fixture(scope="module")
def shard_costs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, dict[str, float]]]:
    """What work on one row costs, by the number of shards that are open."""
    found = {}
    for shards in (1, 4, 32):
        counted = Counted(tmp_path_factory.mktemp("shards") / "t", mw.Bucket("id", shards))
        with counted.writer:
            first = counted.put(40 * shards)
            counted.writer.flush()
            counted.put(40 * shards)
            found[shards] = {**counted.costs(first), "put": counted.cost(lambda counted=counted: counted.put(1))}
    return found


@pytest.mark.scaled
def test_ten_thousand_generations_cost_a_put_nothing_and_a_flush_the_bytes_of_their_list(tmp_path: Path) -> None:
    """The generations are simulated: the manifest lists them, and nobody opens one."""
    costs, sizes, count = [], [], scaled(ci=2_000, prove=10_000)
    for many in (False, True):
        counted = Counted(tmp_path / str(many), mw.Unsharded())
        with counted.writer:
            counted.flush()
        if many:
            listed_so(counted, count)
        with counted.table.writer(compaction=None) as counted.writer:
            fresh = counted.put()
            gets = counted.cost(lambda counted=counted, fresh=fresh: counted.table.get(fresh))
            costs.append((counted.cost(counted.put), gets, counted.cost(counted.flush, 2, before=1)))
            sizes.append(counted.bytes_of(counted.flush))
    for few, listed in zip(*costs, strict=True):
        assert sum(listed.values()) <= sum(few.values()) + 1, (
            "a flush that takes longer may look at the table once more"
        )
    assert sizes[1] - sizes[0] <= 6 * LISTED_BYTES * count, "one manifest is written, and read a few times"


def listed_so(counted: Counted, count: int) -> None:
    """Let the shard list so many generations."""
    store = ShardManifestStore(counted.table.location, SHARD)
    newest = store.read_latest()
    assert newest is not None
    known = newest.sstables[0]
    made = [replace(known, generation=n, path=f"{n:08x}_gen_{n}") for n in range(2, count + 1)]
    many: tuple[SsTable, ...] = (known, *made)
    manifest = replace(newest, version=newest.version + 1, sstables=many, current_generation=count + 1)
    counted.table.location.store.put_new(paths.manifest_path(SHARD, manifest.version), encode_manifest(manifest))
