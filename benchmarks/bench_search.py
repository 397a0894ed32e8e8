"""Indexed writes and searches, beside the peer's writer and planner.

Writes: 1,000 puts of 20 rows with 512 dimensions and 70 bytes of text into a fresh shard of a table of 1,000 rows with all
indexes, of which one is maintained; the figure is rows per second, closing included (that is where SSTable and mirrors are
made). Not durable, since that is the peer's set-up. Searches: a memtable of 50,000 rows, which the peer cannot search from
Python, beside brute force over the same vectors; a base table of a million vectors under an SSTable; and one of which every
row is indexed, beside LanceDB's search of a copy of the same files.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import lance
import lancedb
import numpy as np
import pyarrow as pa
from lance.mem_wal import LsmVectorSearchPlanner

import lance_memwal as mw
from benchmarks.harness import LANCEDB, Bench, Case, Sample, workplace
from benchmarks.rivals import peer_snapshot
from lance_memwal.memtable.index import exact_search

_SHARD = "aaaaaaaa-0000-4000-8000-000000000001"
_ONLY_SHARD = mw.shard_id_for(mw.Unsharded())
_KEY = {"lance-schema:unenforced-primary-key": "true"}
_DIM = 64
_TEXTS = [
    "The quick brown fox jumps over the lazy dog while the sun sets in west",
    "Machine learning models need large amounts of clean data to be useful.",
    "Object storage is cheap and durable, yet every single request is slow.",
    "A log structured merge tree turns many small writes into few big ones.",
    "Vectors of similar meaning lie close together in the embedding space.",
    "Fencing tokens keep a writer that was asleep from doing any real harm.",
    "Columnar files read only those columns that a query really asks about.",
    "Streaming pipelines deliver each and every event at least once or more",
]


def _schema(dim: int) -> pa.Schema:
    fields = [pa.field("id", pa.int64(), False, _KEY), pa.field("vector", pa.list_(pa.float32(), dim))]
    return pa.schema([*fields, pa.field("text", pa.string())])


def _rows(first: int, count: int, dim: int, seed: int) -> pa.RecordBatch:
    """Rows around a hundred centres."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(1).standard_normal((100, dim), dtype=np.float32)
    vectors = centres[rng.integers(100, size=count)] + 0.4 * rng.standard_normal((count, dim), dtype=np.float32)
    v = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), dim)
    text = pa.array([_TEXTS[i % len(_TEXTS)] for i in range(count)])
    return pa.record_batch([pa.array(np.arange(first, first + count)), v, text], schema=_schema(dim))


# ------------------------------------------------------------------------------------------------------------ writes


@cache
def _batches(puts: int) -> list[pa.RecordBatch]:
    return [_rows(1000 + i * 20, 20, 512, i) for i in range(puts)]


def _indexed_base(uri: str) -> lance.LanceDataset:
    dataset = lance.write_dataset(pa.Table.from_batches([_rows(0, 1000, 512, 99)]), uri)
    dataset.create_scalar_index("id", "BTREE", name="id_btree")
    dataset.create_scalar_index("text", "INVERTED", name="text_fts")
    dataset.create_index("vector", "IVF_PQ", name="vector_idx", num_partitions=16, num_sub_vectors=16)
    return dataset


def _timed_writes(open_writer: Callable[[], Any], batches: list[pa.RecordBatch]) -> Sample:
    start = time.perf_counter()
    writer = open_writer()
    for batch in batches:
        writer.put(batch)
    writer.close()
    return Sample(sum(batch.num_rows for batch in batches) / (time.perf_counter() - start))


def _write_case(name: str, index: str, rounds: int) -> Case:
    def ours(bench: Bench) -> Sample:
        uri = f"{bench.directory}/t"
        table = mw.enable(_indexed_base(uri), maintained_indexes=[index])
        batches = _batches(bench.scale(1000, 100))
        return _timed_writes(lambda: table.shard_writer(durable_write=False, fsync=False), batches)

    def peer(bench: Bench) -> Sample:
        uri = f"{bench.directory}/t"
        _indexed_base(uri).initialize_mem_wal(maintained_indexes=[index])
        dataset = lance.dataset(uri)
        batches = _batches(bench.scale(1000, 100))
        return _timed_writes(lambda: dataset.mem_wal_writer(_SHARD, durable_write=False), batches)

    return Case(name, ours, peer, 1.0, "rows/s", rounds=rounds)


# ---------------------------------------------------------------------------------------------------------- searches


@cache
def _memtable(quick: bool) -> tuple[mw.ShardWriter, np.ndarray]:
    """A writer with everything in its memtable and a graph over it, and the same vectors as a matrix."""
    rows = 5_000 if quick else 50_000
    table = mw.create_table(f"{workplace()}/memtable", _schema(128), primary_key="id")
    writer = mw.ShardWriter.open(
        table.dataset.uri,
        indexes=[mw.HnswIndex("vector")],
        fsync=False,
        shard_id=_ONLY_SHARD,
        max_memtable_rows=1_000_000,
    )
    batches = [_rows(first, 1000, 128, first) for first in range(0, rows, 1000)]
    for batch in batches:
        writer.put(batch)
    for index in writer.active_memtable_ref().indexes:
        index.catch_up()
    values = [batch.column("vector").flatten().to_numpy() for batch in batches]
    return writer, np.concatenate(values).reshape(-1, 128)


def _queries(count: int, dim: int) -> np.ndarray:
    batch = _rows(0, count, dim, 4711)
    return np.asarray(batch.column("vector").flatten().to_numpy()).reshape(count, dim)


def _sample(call: Callable[[np.ndarray], object], queries: np.ndarray) -> Sample:
    seconds = []
    for query in queries:
        start = time.perf_counter()
        call(query)
        seconds.append(time.perf_counter() - start)
    return Sample(float(np.median(seconds)) * 1e3, seconds)


def _search_memtable(bench: Bench) -> Sample:
    writer, _ = _memtable(bench.quick)
    return _sample(
        lambda q: writer.memtable_scanner().project(["id"]).nearest("vector", q, 10).to_table(), _queries(50, 128)
    )


def _brute_force(bench: Bench) -> Sample:
    _, matrix = _memtable(bench.quick)
    return _sample(lambda q: exact_search(matrix, q, 10), _queries(20, 128))


def _vectors(name: str, quick: bool) -> str:
    """A table of a million vectors with IVF_PQ."""
    uri, base_rows = f"{workplace()}/{name}.lance", _base_rows(quick)
    parts = (_rows(first, 50_000, _DIM, first) for first in range(0, base_rows, 50_000))
    dataset = lance.write_dataset(pa.RecordBatchReader.from_batches(_schema(_DIM), parts), uri)
    dataset.create_index("vector", "IVF_PQ", name="vector_idx", num_partitions=256, num_sub_vectors=16)
    return uri


def _base_rows(quick: bool) -> int:
    return 100_000 if quick else 1_000_000


@cache
def _indexed(quick: bool) -> tuple[mw.Table, Any]:
    """A table of which every row is in the index, and a copy for LanceDB, which searches those with a MemWAL in another way."""
    uri = _vectors("indexed", quick)
    shutil.copytree(uri, f"{workplace()}/plain.lance")
    return mw.enable(uri), lancedb.connect(workplace()).open_table("plain")


def _search_indexed(bench: Bench) -> Sample:
    table, _ = _indexed(bench.quick)
    return _sample(lambda q: table.search(vector=q, k=10, columns=["id"], nprobes=20), _queries(50, _DIM))


def _lancedb_search(bench: Bench) -> Sample:
    _, table = _indexed(bench.quick)
    return _sample(
        lambda q: table.search(q).nprobes(20).limit(10).select(["id", "_distance"]).to_arrow(), _queries(50, _DIM)
    )


@cache
def _large(quick: bool) -> tuple[mw.Table, LsmVectorSearchPlanner]:
    """A base table of a million vectors with IVF_PQ, and 20,000 flushed rows, of which half replace base rows."""
    base_rows, fresh_rows = _base_rows(quick), 5_000 if quick else 20_000
    uri = _vectors("large", quick)
    table = mw.enable(uri)
    with table.shard_writer(fsync=False) as writer:
        writer.put(_rows(base_rows - fresh_rows // 2, fresh_rows, _DIM, 5))
        writer.force_seal_active()
        writer.wait_for_flush_drain()
        manifest = writer.manifest()
    return table, LsmVectorSearchPlanner(lance.dataset(uri), [peer_snapshot(manifest)], "vector")


def _search_large(bench: Bench) -> Sample:
    table, _ = _large(bench.quick)
    return _sample(lambda q: table.search(vector=q, k=10, columns=["id"], nprobes=20), _queries(30, _DIM))


def _peer_search_large(bench: Bench) -> Sample:
    _, planner = _large(bench.quick)
    return _sample(
        lambda q: planner.plan_search(pa.array(q), k=10, nprobes=20, columns=["id"]).to_table(), _queries(30, _DIM)
    )


def cases() -> Iterator[Case]:
    """Writes with one index each, then searches."""
    yield _write_case("puts and close, BTree maintained", "id_btree", 5)
    yield _write_case("puts and close, text maintained", "text_fts", 5)
    yield _write_case("puts and close, vector maintained", "vector_idx", 3)
    yield Case(
        "vector search, 50k-row memtable, beside brute force", _search_memtable, _brute_force, 1.0, "ms", rounds=5
    )
    yield Case("LSM vector search, 1M base", _search_large, _peer_search_large, 1.0, "ms", rounds=5)
    others = {LANCEDB: _lancedb_search}
    yield Case("vector search, all indexed", _search_indexed, None, None, "ms", rounds=5, others=others)
