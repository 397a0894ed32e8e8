"""Sinks join each other's epochs and take turns with writers (RFC 0017)."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import crash_points
from lance_memwal.errors import ConflictError, FencedError, UnavailableError
from lance_memwal.log.entry import decode_entry
from lance_memwal.log.epochs import EpochKind, look_at_epoch
from lance_memwal.log.reading import list_positions
from lance_memwal.store import paths
from lance_memwal.testing.clocks import SkippingClock
from lance_memwal.types import ShardManifest, WalEntry
from lance_memwal.write.joining import Patience, Sink
from lance_memwal.write.once import OnceAppender
from tests.harness.processes import start
from tests.wal.sink_children import take_over

SCHEMA = pa.schema([pa.field("id", pa.int64())])
SHARD = mw.shard_id_for(mw.Unsharded())


@pytest.fixture
def table(tmp_path: Path) -> mw.Table:
    return mw.create_table(str(tmp_path / "t"), SCHEMA, sharding=mw.Unsharded(), writer_defaults={"fsync": False})


def rows(*numbers: int) -> list[pa.RecordBatch]:
    return [pa.record_batch({"id": pa.array(numbers, pa.int64())})]


def sink(table: mw.Table, wait: float = 20.0, silent: float = 60.0, **options: Any) -> Sink:
    return Sink(OnceAppender(table.uri, **options), patience=Patience(wait, silent))


def ids(table: mw.Table) -> list[int]:
    return sorted(table.scan().to_table().column("id").to_pylist())


def manifest(table: mw.Table) -> ShardManifest:
    found = OnceAppender(table.uri).manifests(SHARD).read_latest()
    assert found is not None
    return found


def entries(table: mw.Table) -> list[WalEntry]:
    location = table.location
    return [
        decode_entry(location.store.get(paths.wal_entry_path(SHARD, p)), p) for p in list_positions(location, SHARD)
    ]


def kind(table: mw.Table) -> EpochKind:
    return look_at_epoch(table.location, manifest(table), tag=table.base.tag).kind


def test_sinks_share_one_epoch_and_every_entry_says_so(table: mw.Table) -> None:
    first, second = sink(table), sink(table)
    for number, who in enumerate((first, second, first, second)):
        who.append(SHARD, rows(number))
    assert first.flush(SHARD) == 1
    second.append(SHARD, rows(4), txn=("app", 1))
    assert first.append(SHARD, rows(5), txn=("app", 1)).skipped
    assert manifest(table).writer_epoch == 1
    assert all(entry.footer is not None and entry.footer.joint for entry in entries(table))
    assert [entry.is_sentinel for entry in entries(table)] == [True, *[False] * 6]
    assert ids(table) == [0, 1, 2, 3, 4]


def test_a_large_append_fences_nobody(table: mw.Table) -> None:
    small, large = sink(table), sink(table, max_entry_bytes=1024)
    small.append(SHARD, rows(1))
    large.append(SHARD, rows(*range(100, 1100)))
    small.append(SHARD, rows(2))
    assert manifest(table).writer_epoch == 1
    assert len(ids(table)) == 1002


def test_a_writer_that_closed_leaves_its_epoch_to_sinks(table: mw.Table) -> None:
    with table.shard_writer() as writer:
        writer.put(rows(1))
        assert kind(table) is EpochKind.EXCLUSIVE
    assert kind(table) is EpochKind.JOINT
    sink(table).append(SHARD, rows(2))
    assert manifest(table).writer_epoch == 1
    assert ids(table) == [1, 2]


def test_a_sink_waits_for_a_writer_and_goes_on_when_it_closes(table: mw.Table) -> None:
    waiting = sink(table)
    waiting.append(SHARD, rows(1))
    writer = table.shard_writer()
    writer.put(rows(2))
    done = threading.Event()

    def append() -> None:
        waiting.append(SHARD, rows(3))
        done.set()

    thread = threading.Thread(target=append)
    thread.start()
    assert not done.wait(0.3)
    writer.put(rows(4))
    writer.close()
    thread.join(20)
    assert done.is_set()
    assert manifest(table).writer_epoch == 2
    assert ids(table) == [1, 2, 3, 4]


def test_a_sink_that_waited_too_long_says_what_to_do_and_wrote_nothing(table: mw.Table) -> None:
    with table.shard_writer() as writer:
        writer.put(rows(1))
        with pytest.raises(ConflictError, match="close that writer, share it"):
            sink(table, wait=0.2).append(SHARD, rows(2))
        writer.put(rows(3))
    assert ids(table) == [1, 3]


def test_a_sink_that_waits_for_seconds_says_once_for_whom(table: mw.Table, caplog: pytest.LogCaptureFixture) -> None:
    clock = SkippingClock()
    appender = OnceAppender(table.uri, clock=clock)
    with table.shard_writer() as writer:
        writer.put(rows(1))
        with pytest.raises(ConflictError):
            Sink(appender, patience=Patience(4.0, 1e9), clock=clock).append(SHARD, rows(2))
        assert caplog.messages == []
        with pytest.raises(ConflictError):
            Sink(appender, patience=Patience(30.0, 1e9), clock=clock).append(SHARD, rows(2))
    (told,) = caplog.messages
    assert "or was silent for 1e+09 seconds" in told
    assert SHARD in told


def test_an_owner_that_is_silent_is_taken_over_and_fenced(table: mw.Table) -> None:
    writer = table.shard_writer()
    writer.put(rows(1))
    child = start(take_over, table.uri, 2)
    assert child.receive(30) == "taken"
    with pytest.raises(FencedError):
        writer.put(rows(3))
    writer.abort()
    assert kind(table) is EpochKind.JOINT
    assert ids(table) == [1, 2]


def test_an_owner_in_the_same_process_lives_however_silent_it_is(table: mw.Table) -> None:
    writer = table.shard_writer()
    writer.put(rows(1))
    with pytest.raises(ConflictError, match="of this process"):
        sink(table, silent=0.0).append(SHARD, rows(2))
    writer.put(rows(3))
    writer.close()
    sink(table, silent=0.0).append(SHARD, rows(4))
    assert ids(table) == [1, 3, 4]


def test_silence_is_counted_from_the_newest_entry_and_manifest(table: mw.Table) -> None:
    writer = table.shard_writer()
    writer.put(rows(1))
    writer.abort()
    clock = SkippingClock()
    patient = Sink(OnceAppender(table.uri, clock=clock), patience=Patience(600, 60), clock=clock)
    began = clock.monotonic()
    patient.append(SHARD, rows(2))
    assert 55 < clock.monotonic() - began < 65
    assert ids(table) == [1, 2]


def test_a_claim_without_an_entry_of_its_own_is_exclusive(table: mw.Table) -> None:
    joint = sink(table)
    joint.append(SHARD, rows(1))
    joint.appender.manifests(SHARD).claim_epoch()  # its owner has not placed its sentinel yet
    assert kind(table) is EpochKind.EXCLUSIVE
    with pytest.raises(ConflictError):
        sink(table, wait=0.1).append(SHARD, rows(2))


@pytest.mark.parametrize("how", ["abort", "log only", "poisoned", "parked"])
def test_a_writer_that_did_not_publish_everything_leaves_no_mark(table: mw.Table, how: str) -> None:
    writer = table.shard_writer(enable_memtable=how != "log only", max_entry_bytes=2048)
    writer.put(rows(1))
    if how == "abort":
        writer.abort()
    elif how == "parked":
        assert writer.park() is not None
    elif how == "log only":
        writer.close()
    else:
        _fail_a_bulk(writer)
    assert kind(table) is EpochKind.EXCLUSIVE


def _fail_a_bulk(writer: mw.ShardWriter) -> None:
    """Let the outcome of a commit be unknown."""

    def fail(point: str) -> None:
        if point == "bulk.after_commit":
            raise UnavailableError("cut off", ambiguous=True)

    crash_points.install(fail)
    try:
        with pytest.raises(mw.MemWalError):
            writer.put(rows(*range(10, 1010)))
        crash_points.install(None)
        with pytest.raises(mw.MemWalError):
            writer.close()
    finally:
        crash_points.install(None)


def test_a_flush_of_the_table_seals_a_joint_shard_and_fences_nobody(table: mw.Table) -> None:
    writing = sink(table)
    writing.append(SHARD, rows(1))
    report = table.flush()
    assert [(shard.generations, shard.rows) for shard in report.shards] == [((1,), 1)]
    writing.append(SHARD, rows(2))
    assert manifest(table).writer_epoch == 1
    assert ids(table) == [1, 2]


def test_a_shared_writer_takes_a_joint_shard_at_once(table: mw.Table) -> None:
    sink(table).append(SHARD, rows(1))
    with table.writer(shared=True) as writer:
        writer.put(rows(2))
        assert writer.owned_shards == {SHARD}
    sink(table).append(SHARD, rows(3))
    assert ids(table) == [1, 2, 3]


# ------------------------------------------------------------------------------------------------------------ the peer


def _peer(table: mw.Table) -> Any:
    return lance.dataset(table.uri).mem_wal_writer(SHARD)


def test_the_peer_claims_a_joint_epoch_and_a_sink_goes_on_once_it_is_closed(table: mw.Table) -> None:
    writing = sink(table, wait=0.3)
    writing.append(SHARD, rows(1))
    assert writing.flush(SHARD) == 1
    writing.append(SHARD, rows(2))
    peer = _peer(table)
    peer.put(pa.table({"id": pa.array([3], pa.int64())}))
    assert kind(table) is EpochKind.FOREIGN
    with pytest.raises(ConflictError):
        writing.append(SHARD, rows(4))
    peer.close()
    assert writing.append(SHARD, rows(4)).rows == 1
    assert kind(table) is EpochKind.JOINT
    assert ids(table) == [1, 2, 3, 4]


def test_the_peer_opens_what_a_closed_writer_and_sinks_left(table: mw.Table) -> None:
    with table.shard_writer() as writer:
        writer.put(rows(1))
    writing = sink(table)
    writing.append(SHARD, rows(2), txn=("app", 1))
    peer = _peer(table)
    peer.put(pa.table({"id": pa.array([3], pa.int64())}))
    peer.close()
    assert sink(table).append(SHARD, rows(9), txn=("app", 1)).skipped
    assert ids(table) == [1, 2, 3]


@pytest.mark.parametrize("claims", [False, True], ids=["the same epoch", "an older epoch"])
def test_a_table_that_was_copied_back_under_a_sink_is_read_again(table: mw.Table, tmp_path: Path, claims: bool) -> None:
    sinks = [sink(table), sink(table)]
    sinks[0].append(SHARD, rows(1))
    shutil.copytree(table.uri, tmp_path / "copy")
    if claims:
        with table.shard_writer() as writer:
            writer.put(rows(2))
    for number in (3, 4, 5):
        for each in sinks:
            each.append(SHARD, rows(number))
    shutil.rmtree(table.uri)
    shutil.copytree(tmp_path / "copy", table.uri)
    for each in sinks:
        each.append(SHARD, rows(6))
    assert ids(mw.open_table(table.uri)) == [1, 6, 6], "no entry is missing between them"
    assert not mw.open_table(table.uri).verify().problems
