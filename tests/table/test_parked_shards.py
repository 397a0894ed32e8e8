"""Many shards in one process: opened, parked, flushed and closed by a bounded number of threads, in bounded memory."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.manifest_codec import encode_manifest
from lance_memwal.memtable import live
from lance_memwal.process.room import Room
from lance_memwal.shard_writer import core_of
from lance_memwal.store import paths
from lance_memwal.types import ShardManifest
from lance_memwal.upkeep.tails import flush_live
from lance_memwal.write import life
from tests.harness.points import run_once_at
from tests.harness.profile import scaled
from tests.kit.effort import cpu_seconds
from tests.kit.far_stores import FarStore, far
from tests.kit.tables import watched_table
from tests.kit.writers import BLOOM, KEYED, MANIFEST, SECONDS, in_thread, in_threads, open_writer, rows, wait_for

SCHEMA = pa.schema(
    [pa.field("tenant", pa.int32(), False), pa.field("id", pa.int64(), False), pa.field("v", pa.int64())]
)
KEY = ["tenant", "id"]


def make(root: Path) -> mw.Table:
    return mw.create_table(str(root / "t"), SCHEMA, primary_key=KEY, sharding=mw.Identity("tenant"))


def row(tenant: int, k: int, v: int) -> dict[str, Any]:
    return {"tenant": tenant, "id": k, "v": v}


def found(table: mw.Table, **options: Any) -> dict[tuple[int, int], int]:
    return {(r["tenant"], r["id"]): r["v"] for r in table.scan(**options).to_table().to_pylist()}


def epochs(table: mw.Table) -> set[int]:
    return {shard.epoch for shard in table.shards()}


@pytest.mark.parametrize("durable", [True, False])
def test_reads_see_every_write_whether_its_shard_is_open_or_parked(tmp_path: Path, durable: bool) -> None:
    rng = random.Random(durable)
    table = make(tmp_path)
    model: dict[tuple[int, int], int] = {}
    with table.writer(fsync=False, max_open_shards=2, max_memtable_rows=20, durable_write=durable) as writer:
        for step in range(scaled(ci=120, prove=3_000)):
            tenant, k = rng.randrange(8), rng.randrange(6)
            if rng.random() < 0.2:
                writer.delete([(tenant, k)])
                model.pop((tenant, k), None)
            else:
                writer.put([row(tenant, k, step), row((tenant + 1) % 8, k, step)])
                model[tenant, k] = model[(tenant + 1) % 8, k] = step
            assert len(writer.shard_writers) <= 2
            live = writer.get((tenant, k))
            assert (None if live is None else live["v"]) == model.get((tenant, k))
            if step % 10 == 0:
                assert found(table) == model
        assert epochs(table) == {1}, "a parked shard is taken up without a claim"
        assert sum(stats.put_count for stats in writer.stats().values()) > 8
    assert found(table, consistency="flushed") == model
    assert table.verify().ok


def test_a_shard_that_is_taken_up_again_leaves_no_sentinel_and_loses_no_position(tmp_path: Path) -> None:
    table = make(tmp_path)
    with table.writer(fsync=False, max_open_shards=1) as writer:
        for v in range(6):
            writer.put([row(1, 0, v)])
            writer.put([row(2, 0, v)])
        for shard in table.shards():
            entries = [mw.WalTailer(table.uri, shard.shard_id).read_entry(p) for p in range(1, 7)]
            assert [entry is not None and entry.batches[0].column("v").to_pylist() for entry in entries] == [
                [v] for v in range(6)
            ]


def test_a_transaction_is_known_after_its_shard_was_parked(tmp_path: Path) -> None:
    table = make(tmp_path)
    with table.writer(fsync=False, max_open_shards=1) as writer:
        for version in (1, 2, 3):
            for tenant in (1, 2, 3):
                results = writer.put([row(tenant, 0, version)], txn=("loader", version))
                assert [r.skipped for r in results.shards.values()] == [False]
        for tenant in (1, 2, 3):
            results = writer.put([row(tenant, 0, -1)], txn=("loader", 3))
            assert [r.skipped for r in results.shards.values()] == [True]
    assert found(table) == {(tenant, 0): 3 for tenant in (1, 2, 3)}


def test_a_parked_shard_that_somebody_claimed_is_lost(tmp_path: Path) -> None:
    table = make(tmp_path)
    writer = table.writer(fsync=False, max_open_shards=1)
    writer.put([row(1, 0, 1)])
    (first,) = writer.shard_writers
    writer.put([row(2, 0, 1)])
    with table.shard_writer(first, fsync=False) as other:
        other.put([row(1, 0, 2)])
        for _ in range(2):
            with pytest.raises(mw.FencedError):
                writer.put([row(1, 0, 3)])
        writer.put([row(2, 0, 2)])
    with pytest.raises(mw.FencedError):
        writer.close()
    assert found(table) == {(1, 0): 2, (2, 0): 2}


def test_a_long_tail_is_flushed_before_its_shard_is_parked(tmp_path: Path) -> None:
    table = make(tmp_path)
    with table.writer(fsync=False, max_open_shards=1) as writer:
        for k in range(70):
            writer.put([row(1, k, k)])
        writer.put([row(2, 0, 0)])
        assert sorted(shard.wal_tail for shard in table.shards()) == [0, 1]
        writer.flush()
        assert [shard.wal_tail for shard in table.shards()] == [0, 0]
        assert len(found(table, consistency="flushed")) == 71


@pytest.mark.parametrize("step", ["force_seal_active", "wait_for_flush_drain"])
def test_shard_parked_during_a_flush_is_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    table = make(tmp_path)
    real, overtaken = getattr(mw.ShardWriter, step), []

    def overtake(shard: mw.ShardWriter, *args: Any) -> None:
        if not overtaken:
            overtaken.append(shard)
            other = threading.Thread(
                target=writer.put, args=([row(2, 0, 0)],)
            )  # takes the place of what is being flushed
            other.start()
            other.join()
            assert core_of(shard).health.is_parked
        real(shard, *args)

    with table.writer(fsync=False, max_open_shards=1, compaction=None) as writer:
        writer.put([row(1, 0, 0)])
        monkeypatch.setattr("lance_memwal.shard_writer.is_on_top", lambda: False)  # `overtake` is no signal handler
        monkeypatch.setattr(mw.ShardWriter, step, overtake)
        writer.flush()
        assert overtaken
        assert found(table, consistency="flushed")[1, 0] == 0
        writer.put([row(1, 1, 1)])
        writer.flush()
        assert len(found(table, consistency="flushed")) == 3


def test_memtable_frozen_during_parking_keeps_shard_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its flush outlived the writer, and took what came later under the same epoch for its own."""
    monkeypatch.setattr(life, "JOIN_SECONDS", 0.1)
    table, drained, at_commit, goes_on = make(tmp_path), life.drain, threading.Event(), threading.Event()

    def frozen_since(*given: Any) -> None:
        drained(*given)
        if not at_commit.is_set():
            core_of(first).seal()
            assert at_commit.wait(SECONDS)

    commit = ShardManifestStore.commit_update

    def slow(*given: Any, **options: Any) -> Any:
        at_commit.set()
        assert goes_on.wait(SECONDS)
        return commit(*given, **options)

    with table.writer(fsync=False, max_open_shards=1, compaction=None) as writer:
        writer.put([row(1, 0, 0)])
        [first] = writer.shard_writers.values()
        monkeypatch.setattr(life, "drain", frozen_since)
        monkeypatch.setattr(ShardManifestStore, "commit_update", slow)
        writer.put([row(2, 0, 0)])
        writer.put([row(1, 0, 1)])
        goes_on.set()
        assert writer.get((1, 0)) == row(1, 0, 1)
    assert found(mw.open_table(table.uri)) == {(1, 0): 1, (2, 0): 0}
    assert table.verify().ok


def test_threads_write_many_shards_through_few_places(tmp_path: Path) -> None:
    table = make(tmp_path)

    def write(thread: int) -> None:
        for k in range(scaled(ci=25, prove=500)):
            writer.put([row((thread + k) % 7, thread * 1000 + k, k)])
            writer.put_nowait([row((thread + 2 * k) % 7, thread * 1000 + k + 500, k)]).wait()

    with table.writer(fsync=False, max_open_shards=3) as writer:
        in_threads(write, range(4))
    assert len(found(table, consistency="flushed")) == 4 * 2 * scaled(ci=25, prove=500)


def test_a_flush_beside_threads_that_park_its_shards_flushes_what_was_written_before(tmp_path: Path) -> None:
    table = make(tmp_path)
    done = threading.Event()

    def write() -> None:
        for k in range(100_000):
            if done.is_set():
                return
            writer.put([row(2 + k % 5, k, k)])

    with table.writer(fsync=False, max_open_shards=2) as writer:
        thread = in_thread(write)
        try:
            for k in range(scaled(ci=15, prove=300)):
                writer.put([row(0, k, k), row(1, k, k)])
                writer.flush(timeout=60)
                flushed = found(table, consistency="flushed")
                assert (0, k) in flushed
                assert (1, k) in flushed
        finally:
            done.set()
            thread.result(4 * SECONDS)


@pytest.mark.repro("writer-19")
@pytest.mark.scaled
def test_many_tenants_take_few_threads_and_files(tmp_path: Path) -> None:
    tenants = scaled(ci=200, prove=10_000)
    table = make(tmp_path)
    rows = pa.table({"tenant": pa.array(range(tenants), pa.int32()), "id": [0] * tenants, "v": [0] * tenants})
    before = threading.active_count(), len(os.listdir("/proc/self/fd"))
    writer = table.writer(fsync=False, max_open_shards=32)
    results = []
    assert cpu_seconds(lambda: results.append(writer.put(rows.cast(SCHEMA)))) < tenants * 0.1
    assert len(results[0].shards) == tenants
    assert len(writer.shard_writers) <= 32
    assert threading.active_count() - before[0] <= 11
    assert len(os.listdir("/proc/self/fd")) - before[1] < 200
    assert writer.get((tenants - 1, 0)) == row(tenants - 1, 0, 0)
    writer.abort()
    assert table.count_rows() == tenants


@pytest.mark.parametrize("limit", [0, -1, "many", 1.5])
def test_a_limit_that_is_none_is_refused(tmp_path: Path, limit: Any) -> None:
    with pytest.raises(mw.InvalidInputError, match="max_open_shards"):
        make(tmp_path).writer(max_open_shards=limit)


@pytest.mark.parametrize("change", ["add", "rename"])
def test_a_column_that_others_change_stops_no_shard_of_a_writer_that_does_not_know_it(
    tmp_path: Path, change: str
) -> None:
    table = make(tmp_path)
    with table.writer(fsync=False, max_open_shards=1) as writer:
        writer.put([row(1, 1, 1)])
        writer.put([row(2, 2, 2)])  # the first shard is parked
        if change == "add":
            table.dataset.add_columns(pa.schema([pa.field("n", pa.int64())]))
        else:
            table.dataset.alter_columns({"path": "v", "name": "w"})
        for tenant in (2, 1, 3, 2):
            writer.put([row(tenant, 9, tenant)])
        writer.put([{"tenant": 1, "id": 8}], missing="null")
        writer.put_nowait([{"tenant": 4, "id": 8, "v": None}]).wait()
    name = "v" if change == "add" else "w"
    rows = {(r["tenant"], r["id"]): r[name] for r in table.scan().to_table().to_pylist()}
    assert rows == {(1, 1): 1, (2, 2): 2, (1, 9): 1, (2, 9): 2, (3, 9): 3, (1, 8): None, (4, 8): None}


def test_an_open_shard_takes_writes_while_another_one_is_being_opened(tmp_path: Path) -> None:
    table = make(tmp_path)
    known: set[str] = set()
    opening, go_on = threading.Event(), threading.Event()

    def seen(name: str, path: str) -> None:
        if known and name == "put_new" and not any(shard_id in path for shard_id in known):
            opening.set()
            assert go_on.wait(30)

    with watched_table(table.uri, seen).writer(fsync=False, compaction=None) as writer:
        writer.put([row(1, 0, 0)])
        known.update(writer.shard_writers)
        with ThreadPoolExecutor(1) as another:
            late = another.submit(writer.put, [row(2, 0, 0)])
            assert opening.wait(30)
            writer.put([row(1, 0, 1)])
            assert not late.done()
            go_on.set()
            late.result(30)
    assert found(table) == {(1, 0): 1, (2, 0): 0}


def parked_of(writer: mw.TableWriter) -> set[str]:
    return set(writer.stats()) - set(writer.shard_writers)


@pytest.mark.parametrize("upkeep", ["flush", "compact", "maintain"])
def test_upkeep_of_the_same_process_does_not_fence_parked_shards(tmp_path: Path, upkeep: str) -> None:
    table = make(tmp_path)
    with table.writer(fsync=False, max_open_shards=1, max_memtable_age_ms=None, compaction=None) as writer:
        for tenant in range(3):
            writer.put([row(tenant, 1, 1)])
        assert len(parked_of(writer)) == 2
        if upkeep == "flush":
            assert len(table.flush(idle_seconds=0).skipped) == 3
        elif upkeep == "compact":
            assert table.compact(flush=True).in_log_only == {}
        else:
            table.maintain()
        for tenant in range(3):
            writer.put([row(tenant, 1, 2)])
    assert epochs(table) == {1}
    assert found(table) == {(tenant, 1): 2 for tenant in range(3)}


def test_upkeep_of_the_same_process_spares_parked_shards_of_a_writer_that_closes(tmp_path: Path) -> None:
    table = make(tmp_path)
    writer = table.writer(fsync=False, max_open_shards=1, max_memtable_age_ms=None, compaction=None)
    for tenant in range(3):
        writer.put([row(tenant, 1, 1)])

    def upkeep() -> None:
        with ThreadPoolExecutor(1) as another:
            assert another.submit(table.flush, idle_seconds=0).result(30).generations == 0

    reached = run_once_at("close.before_mark", upkeep)  # of the one that was open; the others are still parked
    writer.close()
    assert reached
    assert epochs(table) == {1}
    assert len(found(table, consistency="flushed")) == 3


def test_interrupted_parking_keeps_shard_of_its_epoch_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make(tmp_path)
    writer = table.writer(fsync=False, max_open_shards=1, max_memtable_age_ms=None, compaction=None)
    writer.put([row(0, 1, 1)])
    (shard_id,) = writer.shard_writers

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(life, "Parked", interrupt)
        with pytest.raises(KeyboardInterrupt):
            writer.put([row(1, 1, 1)])
    assert live.is_owned(table.location.key, shard_id, 1)
    other = table.shard_writer(shard_id, fsync=False)
    other.put([row(0, 2, 2)])
    other.abort()
    assert table.flush(shards=[shard_id], idle_seconds=0).generations == 1
    writer.abort()


@pytest.mark.parametrize("end", ["close", "abort"])
def test_a_writer_that_ended_has_nothing_to_publish_and_its_shards_may_be_claimed(tmp_path: Path, end: str) -> None:
    table = make(tmp_path)
    writer = table.writer(fsync=False, max_open_shards=1, max_memtable_age_ms=None, compaction=None)
    for tenant in range(3):
        writer.put([row(tenant, 1, 1)])
    getattr(writer, end)()
    assert flush_live(table.location, 5.0) == {}
    assert sum(stats.put_count for stats in writer.stats().values()) == 3
    assert table.flush(idle_seconds=0).generations == (3 if end == "abort" else 0)


def test_parked_shard_is_flushed_within_the_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, waited = make(tmp_path), []
    honest = mw.ShardWriter.wait_for_flush_drain

    def drain(shard: mw.ShardWriter, timeout: float | None = None) -> None:
        waited.append(timeout)
        honest(shard, timeout)

    with table.writer(fsync=False, max_open_shards=1, max_memtable_age_ms=None, compaction=None) as writer:
        for tenant in range(3):
            writer.put([row(tenant, 1, 1)])
        monkeypatch.setattr("lance_memwal.shard_writer.is_on_top", lambda: False)  # `drain` is no signal handler
        monkeypatch.setattr(mw.ShardWriter, "wait_for_flush_drain", drain)
        assert flush_live(table.location, 7.0) == {}
    assert set(waited) == {7.0}


def test_lost_parked_shard_is_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = make(tmp_path)
    options: dict[str, Any] = {"max_open_shards": 1, "max_memtable_age_ms": 100}
    writer = table.writer(fsync=False, compaction=None, **options)
    writer.put([row(1, 0, 1)])
    (lost,) = writer.shard_writers
    other = table.shard_writer(lost, fsync=False, max_memtable_age_ms=None)
    other.put([row(1, 0, 2)])

    def told() -> int:
        return sum("not flushed" in record.getMessage() and lost in record.getMessage() for record in caplog.records)

    writer.put([row(2, 0, 0)])  # the first one is parked, as far as this writer knows
    wait_for(lambda: told() > 0)
    for round_ in range(3):  # others are flushed at their age, by whoever looks after all
        writer.put([row(2, 0, round_)])
        writer.put([row(3, 0, round_)])
        wait_for(lambda: found(table, consistency="flushed").get((2, 0)) == round_)  # noqa: B023
    assert told() == 1
    assert epochs(table) == {1, 2}
    for end in (lambda: writer.put([row(1, 0, 3)]), writer.flush, writer.close):
        with pytest.raises(mw.FencedError):
            end()
    other.abort()
    assert found(table)[1, 0] == 2


ID_SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])


def table_of(place: Path, shards: int) -> tuple[FarStore, mw.Table]:
    """A table whose store counts as remote."""
    store, location = far(place)
    mw.create_table(str(place), ID_SCHEMA, primary_key="id", sharding=mw.Bucket("id", shards))
    return store, mw.open_table(location)


def rows_of_all(table: mw.Table, shards: int) -> pa.Table:
    """One row for every shard."""
    ids = pa.record_batch({"id": pa.array(range(60 * shards), pa.int64()), "v": ["x"] * (60 * shards)}, ID_SCHEMA)
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
    table = mw.create_table(str(tmp_path), ID_SCHEMA, primary_key="id", sharding=mw.Bucket("id", 40))
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
    table = mw.create_table(str(tmp_path), ID_SCHEMA, primary_key="id", sharding=mw.Bucket("id", shards))
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


MIB = 1 << 20


def resident_bytes() -> int:
    """Pages of this process in memory that no file backs."""
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith("RssAnon")).split()[1]) << 10


def with_manifests(table: mw.Table, shards: int) -> None:
    """Give the table so many shards that were claimed and never written to."""
    tenants = pa.record_batch({"tenant": pa.array(range(shards), pa.int32())})
    for shard_id, _ in mw.route(tenants, table.sharding):
        manifest = ShardManifest(version=1, shard_id=shard_id, shard_spec_id=1, writer_epoch=1)
        table.location.store.put_new(paths.manifest_path(shard_id, 1), encode_manifest(manifest))


@pytest.mark.scaled
def test_thousands_of_shards_are_listed_counted_and_read_in_bounded_memory(tmp_path: Path) -> None:
    shards = scaled(ci=400, prove=10_000)
    limit_bytes = 24 * MIB + 8_000 * shards
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key=["tenant", "id"], sharding=mw.Identity("tenant"))
    with_manifests(table, shards)
    with table.writer(fsync=False, compaction=None) as writer:
        writer.put([{"tenant": tenant, "id": 1, "v": tenant} for tenant in range(3)])
    before = resident_bytes()

    def grown(call: Callable[[], object], expected: object) -> None:
        assert call() == expected
        assert resident_bytes() - before <= limit_bytes

    grown(lambda: len(table.shards()), shards)
    grown(table.count_rows, 3)
    grown(lambda: table.scan().to_table().num_rows, 3)
    grown(lambda: table.get((2, 1)), {"tenant": 2, "id": 1, "v": 2})
    grown(lambda: table.get((shards - 1, 1)), None)
