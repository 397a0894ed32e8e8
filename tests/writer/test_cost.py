"""What a put costs: requests, fsyncs, and time that does not grow with what is already there."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from lance_memwal import ShardWriter
from tests.harness.profile import scaled
from tests.kit.effort import cpu_seconds
from tests.kit.writers import BLOOM, KEYED, MANIFEST, SECONDS, WAL, key_field, open_writer, rows, watched


def test_a_durable_put_is_one_request(tmp_path: Path) -> None:
    """Lesson 39: reads of the manifest were paid again and again."""
    store, location = watched(tmp_path)
    with open_writer(location) as writer:
        writer.put(rows([1]))
        before = len(store.calls)
        for k in range(10):
            writer.put(rows([k]))
        assert [kind for kind, _ in store.calls[before:]] == ["put_new"] * 10


def test_looking_at_a_writer_writes_nothing(tmp_path: Path) -> None:
    """Lesson 40: a reader that updates a manifest races with the writer's claim."""
    store, location = watched(tmp_path)
    with open_writer(location) as writer:
        writer.put(rows([1]))
        before = sum(kind.startswith("put") for kind, _ in store.calls)
        writer.scan().to_table()
        writer.manifest()
        writer.check_fenced()
        writer.memtable_stats()
        writer.wal_stats()
        assert sum(kind.startswith("put") for kind, _ in store.calls) == before


def test_with_fsync_every_entry_and_every_generation_is_synced_before_it_counts(tmp_path: Path) -> None:
    """Lesson E1.8: a durable write that never reached the disk."""
    store, location = watched(tmp_path)
    with open_writer(location, fsync=True) as writer:
        writer.put(rows([1]))
        writer.force_seal_active()
        writer.wait_for_flush_drain(SECONDS)
        assert [sync for path, sync in store.synced if WAL in path] == [True]
        assert all(sync for path, sync in store.synced if MANIFEST in path)
        flushed = [i for i, (kind, _) in enumerate(store.calls) if kind == "sync_tree"]
        commit = max(i for i, (kind, path) in enumerate(store.calls) if kind == "put_new" and MANIFEST in path)
        assert flushed
        assert max(flushed) < commit, "the manifest lists what power loss could take back"


def test_without_fsync_nothing_is_synced(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    with open_writer(location, fsync=False) as writer:
        writer.put(rows([1]))
    assert not any(sync for path, sync in store.synced if WAL in path or MANIFEST in path)
    assert not [kind for kind, _ in store.calls if kind == "sync_tree"]


@pytest.mark.parametrize("schema", [KEYED, pa.schema([key_field()])], ids=["two columns", "the key alone"])
def test_a_generation_is_complete_before_the_manifest_lists_it(tmp_path: Path, schema: pa.Schema) -> None:
    """Lesson 20: a generation of a table with key columns only was published before its sidecar existed."""
    store, location = watched(tmp_path)
    with open_writer(location, schema) as writer:
        writer.put(pa.table({"id": [1, 2]}), missing="null")
        held = store.hold("put_new", MANIFEST)
        writer.force_seal_active()
        held.wait_reached()
        [directory] = [path for path in (tmp_path / "_mem_wal" / writer.shard_id).iterdir() if "_gen_1" in path.name]
        found = {
            path.relative_to(directory).as_posix().split("/")[0] for path in directory.rglob("*") if path.is_file()
        }
        assert {"_versions", "data", "_pk_index", "bloom_filter.bin"} <= found
        held.open()


def test_a_flushed_memtable_is_let_go(tmp_path: Path) -> None:
    """Lesson 15: memtables that were flushed long ago stayed in memory under load."""
    with open_writer(tmp_path, max_memtable_batches=2) as writer:
        before = pa.total_allocated_bytes()
        for k in range(20):
            writer.put(rows(range(10_000 * k, 10_000 * k + 10_000)))
        writer.wait_for_flush_drain(SECONDS)
        gc.collect()
        assert pa.total_allocated_bytes() - before < 500_000  # of about four million that went through
        assert writer._shard.commits.held_bytes == writer.memtable_stats().estimated_size == 0


def growth(writer: ShardWriter, puts: int, rows_per_put: int, put: Callable[[pa.RecordBatch], object]) -> float:
    """How much longer the last tenth of the puts takes than the second tenth, in processor time.

    The quick ones of each are compared: whatever else the machine does only makes puts slower.
    """
    batches = [rows(range(k * rows_per_put, (k + 1) * rows_per_put)) for k in range(20)]
    times = [cpu_seconds(lambda k=k: put(batches[k % 20]), clock=time.thread_time) for k in range(puts)]
    tenth = puts // 10
    return statistics.quantiles(times[-tenth:], n=10)[0] / statistics.quantiles(times[tenth : 2 * tenth], n=10)[0]


@pytest.mark.scaled
def test_the_cost_of_a_put_does_not_grow_with_the_rows_that_are_there(tmp_path: Path) -> None:
    rows_in_all = scaled(ci=200_000, prove=1_000_000)
    limits = {"max_memtable_rows": 1 << 40, "max_memtable_batches": 1 << 40, "max_memtable_size": 1 << 40}
    with open_writer(
        tmp_path,
        durable_write=False,
        max_wal_flush_interval_ms=None,
        max_wal_buffer_size=0,
        max_unflushed_memtable_bytes=1 << 40,
        **limits,
    ) as writer:
        assert growth(writer, rows_in_all // 100, 100, writer.put) < 2.5
        assert writer.memtable_stats().row_count == rows_in_all
        writer.abort()


def test_the_cost_of_a_put_does_not_grow_with_the_writes_that_are_pending(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    limits = {"max_memtable_rows": 1 << 40, "max_memtable_batches": 1 << 40}
    writer = open_writer(location, **limits)
    held = store.hold("put_new", WAL)
    assert growth(writer, 10_000, 1, writer.put_nowait) < 2.5
    held.open()
    writer.abort()


def test_a_frozen_memtable_frees_the_put_path_of_its_size(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    with open_writer(location, max_memtable_batches=2, max_unflushed_memtable_bytes=1 << 40) as writer:
        held = store.hold("put", BLOOM)
        ratio = growth(writer, 1000, 1, writer.put)  # five hundred frozen memtables, none of them flushed
        assert writer.memtable_stats().frozen_count > 400
        assert ratio < 4
        held.open()
        writer.abort()
