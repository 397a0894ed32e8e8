"""Many shards in one process: opened, flushed and closed side by side, by a bounded number of threads."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.process.room import Room
from tests.harness.profile import scaled
from tests.kit.effort import cpu_seconds
from tests.kit.far_stores import FarStore, far
from tests.kit.writers import BLOOM, KEYED, MANIFEST, SECONDS, in_thread, open_writer, rows, wait_for

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])


def table_of(place: Path, shards: int) -> tuple[FarStore, mw.Table]:
    """A table whose store counts as remote."""
    store, location = far(place)
    mw.create_table(str(place), SCHEMA, primary_key="id", sharding=mw.Bucket("id", shards))
    return store, mw.open_table(location)


def rows_of_all(table: mw.Table, shards: int) -> pa.Table:
    """One row for every shard."""
    ids = pa.record_batch({"id": pa.array(range(60 * shards), pa.int64()), "v": ["x"] * (60 * shards)}, SCHEMA)
    return pa.Table.from_batches([part.slice(0, 1) for _, part in mw.route(ids, table.sharding)])


def test_shards_are_opened_side_by_side(tmp_path: Path) -> None:
    store, table = table_of(tmp_path, 6)
    with table.writer(fsync=False, compaction=None) as writer:
        met = store.meet("put_new", MANIFEST, 3)
        writer.put(rows_of_all(table, 6))
        assert not met.broken, "a claim waited until the one before was done"
        assert len(writer.shard_writers) == 6


def test_shards_are_flushed_and_closed_side_by_side(tmp_path: Path) -> None:
    store, table = table_of(tmp_path, 6)
    writer = table.writer(fsync=False, compaction=None)
    writer.put(rows_of_all(table, 6))
    met = store.meet("put", BLOOM, 3)
    marked = store.meet("put_new", "/wal/", 3)
    writer.close()
    assert not met.broken, "a flush waited until the one before was done"
    assert not marked.broken, "a shard was closed after the one before"
    assert mw.open_table(str(tmp_path)).scan(consistency="flushed").count_rows() == 6


def test_a_writer_that_is_closed_while_shards_are_opened_leaves_none_open(tmp_path: Path) -> None:
    """Whoever opens a shard then is done before `close` returns: a claim that came later would fence the next writer."""
    store, table = table_of(tmp_path, 4)
    writer = table.writer(fsync=False, compaction=None)
    met = store.meet("put_new", MANIFEST, 2)  # the claim of the put, and the test
    put = in_thread(lambda: writer.put(rows_of_all(table, 4).slice(0, 1)))
    wait_for(lambda: met.n_waiting == 1)
    closing = in_thread(writer.close)
    with pytest.raises(AssertionError):
        closing.result(0.1)
    met.wait(SECONDS)
    closing.result()
    with pytest.raises(mw.ClosedError):
        put.result()
    with table.writer(fsync=False, compaction=None) as following:
        following.put(rows_of_all(table, 4))
    assert {shard.epoch for shard in table.shards()} <= {1, 2}


def test_generations_of_one_shard_are_prepared_side_by_side_and_committed_in_order(tmp_path: Path) -> None:
    store, location = far(tmp_path)
    with open_writer(location, KEYED) as writer:
        with writer._shard.flusher._turn.taken(SECONDS):  # the flusher comes when all three are frozen
            for k in range(3):
                writer.put(rows([k]))
                writer.force_seal_active()
            met = store.meet("put", BLOOM, 3)
        writer.wait_for_flush_drain(SECONDS)
        assert not met.broken
        assert [item.generation for item in writer.manifest().sstables] == [1, 2, 3]
        assert writer.manifest().version == 4, "a version for each: whoever reads sees them come in order"


def test_what_is_prepared_after_a_generation_that_fails_goes_and_nothing_is_lost(tmp_path: Path) -> None:
    store, location = far(tmp_path)
    writer = open_writer(location, KEYED)
    with writer._shard.flusher._turn.taken(SECONDS):
        for k in range(3):
            writer.put(rows([k]))
            writer.force_seal_active()
        failing = store.fail("put", "_gen_1/" + BLOOM, 1)
    writer.wait_for_flush_drain(SECONDS)
    writer.close()
    assert failing.times == 0
    assert len(list(tmp_path.glob("_mem_wal/*/*_gen_*"))) == 3
    assert sorted(writer.manifest().sstables, key=lambda s: s.generation)[-1].generation == 3


def test_writers_of_many_shards_share_a_few_threads(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path), SCHEMA, primary_key="id", sharding=mw.Bucket("id", 40))
    before = threading.active_count()
    with table.writer(fsync=False) as writer:
        writer.put(rows_of_all(table, 40))
        assert threading.active_count() - before <= 12
        writer.flush()
        assert threading.active_count() - before <= 16


@pytest.mark.scaled
def test_hundreds_of_shards_are_opened_closed_and_aborted_in_seconds(tmp_path: Path) -> None:
    """The goals are for 512 shards on a quiet machine; processor time is what other work does not change much."""
    shards = scaled(ci=64, prove=512)
    share = shards / 512
    table = mw.create_table(str(tmp_path), SCHEMA, primary_key="id", sharding=mw.Bucket("id", shards))
    data = rows_of_all(table, shards)
    aborted = table.writer(fsync=False, compaction=None, max_open_shards=shards)
    assert cpu_seconds(lambda: aborted.put(data)) <= 0.5 + 2.0 * share
    assert cpu_seconds(aborted.abort) <= 0.3
    writer = table.writer(fsync=False, compaction=None, max_open_shards=shards)
    writer.put(data)
    assert cpu_seconds(writer.close) <= 0.5 + 6.0 * share
    assert table.scan(consistency="flushed").count_rows() == shards


def test_work_that_needs_more_than_the_room_is_done_alone() -> None:
    room = Room(100)
    inside = threading.Semaphore(0)
    leave = threading.Event()

    def work(size_bytes: int) -> None:
        with room.taken(size_bytes):
            inside.release()
            assert leave.wait(SECONDS)

    first = in_thread(lambda: work(60))
    assert inside.acquire(timeout=SECONDS)
    second = in_thread(lambda: work(40))
    assert inside.acquire(timeout=SECONDS)
    large = in_thread(lambda: work(500))
    assert not inside.acquire(timeout=0.05)
    assert room.taken_bytes == 100
    leave.set()
    for running in (first, second, large):
        running.result()
    assert room.taken_bytes == 0
