"""Text search of a million base rows and 20,000 fresh ones, beside plain Lance's search of the same base rows alone.

Half of the fresh rows replace base rows. Queries have one to three words, as common as they are in the rows. In addition to plain
Lance's work, our search finds fresh rows and leaves superseded rows out. The second case is the first search of a process, with
empty caches. The third case searches after each put. In the fourth case, no row is fresh: all rows are in the index, and
LanceDB searches a copy of the same files.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from typing import Any

import lance
import lancedb
import numpy as np
import pyarrow as pa

import lance_memwal as mw
from benchmarks.harness import LANCEDB, Bench, Case, Sample, workplace
from benchmarks.texts import SCHEMA, Texts
from lance_memwal.process.cache import CACHE

_OPTIONS: dict[str, Any] = {"stem": False, "remove_stop_words": False}


@cache
def _tables(quick: bool) -> tuple[mw.Table, lance.LanceDataset, Texts]:
    """The table, and a plain one with its base rows."""
    base_rows, fresh_rows, words = (100_000, 2_000, 20_000) if quick else (1_000_000, 20_000, 100_000)
    make = Texts(words)
    found = []
    for name in ("ours", "plain"):
        parts = (make.rows(first, 50_000, first).to_batches()[0] for first in range(0, base_rows, 50_000))
        dataset = lance.write_dataset(pa.RecordBatchReader.from_batches(SCHEMA, parts), f"{workplace()}/{name}.lance")
        dataset.create_scalar_index("t", "INVERTED", **_OPTIONS)
        found.append(dataset)
    table = mw.enable(found[0].uri, primary_key="id")
    with table.shard_writer(fsync=False) as writer:
        writer.put(make.rows(base_rows - fresh_rows // 2, fresh_rows, 5))
        writer.force_seal_active()
        writer.wait_for_flush_drain()
    return table, found[1], make


def _sample(call: Callable[[str], object], queries: list[str]) -> Sample:
    seconds = []
    for query in queries:
        start = time.perf_counter()
        call(query)
        seconds.append(time.perf_counter() - start)
    return Sample(float(np.median(seconds)) * 1e3, seconds)


def _ours(bench: Bench) -> Sample:
    table, _, make = _tables(bench.quick)
    return _sample(lambda query: table.search(text=query, k=10, columns=["id"]), make.queries(200, 99))


def _first(bench: Bench) -> Sample:
    table, _, make = _tables(bench.quick)
    CACHE.clear()
    return _sample(lambda query: table.search(text=query, k=10, columns=["id"]), make.queries(1, 99))


_puts = count(50_000_000)


def _after_puts(bench: Bench) -> Sample:
    table, _, make = _tables(bench.quick)
    with table.shard_writer(fsync=False) as writer:
        seconds = []
        for query in make.queries(100, 99):
            writer.put(make.rows(next(_puts), 1, 7))
            start = time.perf_counter()
            table.search(text=query, k=10, columns=["id"])
            seconds.append(time.perf_counter() - start)
    return Sample(float(np.median(seconds)) * 1e3, seconds)


def _plain(bench: Bench) -> Sample:
    _, dataset, make = _tables(bench.quick)
    return _sample(
        lambda query: dataset.scanner(full_text_query=query, columns=["id", "_score"], limit=10).to_table(),
        make.queries(200, 99),
    )


@cache
def _indexed(quick: bool) -> tuple[mw.Table, Any]:
    """The plain table as LanceDB's, and a copy of it as one of ours: LanceDB searches tables with a MemWAL in another way."""
    copy = shutil.copytree(_tables(quick)[1].uri, f"{workplace()}/indexed.lance")
    return mw.enable(copy, primary_key="id"), lancedb.connect(workplace()).open_table("plain")


def _ours_indexed(bench: Bench) -> Sample:
    table, _ = _indexed(bench.quick)
    return _sample(
        lambda query: table.search(text=query, k=10, columns=["id"]), _tables(bench.quick)[2].queries(200, 99)
    )


def _lancedb_indexed(bench: Bench) -> Sample:
    _, table = _indexed(bench.quick)
    queries = _tables(bench.quick)[2].queries(200, 99)
    return _sample(
        lambda query: table.search(query, query_type="fts").limit(10).select(["id", "_score"]).to_arrow(), queries
    )


def cases() -> Iterator[Case]:
    """Warm, cold, and beside a writer."""
    yield Case("text search, 1M base and 20k fresh", _ours, _plain, 3.0, "ms", rounds=5)
    yield Case("text search, 1M base and 20k fresh, first of a process", _first, None, None, "ms", rounds=5)
    yield Case("text search, 1M base and 20k fresh, after each put", _after_puts, _plain, None, "ms", rounds=5)
    others = {LANCEDB: _lancedb_indexed}
    yield Case("text search, all indexed", _ours_indexed, _plain, None, "ms", rounds=5, others=others)
