"""Sinks join each other's epochs, append from memory, take turns with writers, and are killed (RFC 0017, RFC 0023)."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import threading
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import crash_points
from lance_memwal.errors import ConflictError, FencedError, UnavailableError
from lance_memwal.lance.base import BaseTable, NewestBase
from lance_memwal.log.entry import decode_entry
from lance_memwal.log.epochs import EpochKind, look_at_epoch
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.reading import list_positions
from lance_memwal.read.reader import Reader
from lance_memwal.shard_writer import park
from lance_memwal.store import paths
from lance_memwal.store.location import resolve
from lance_memwal.store.metering import Recorder
from lance_memwal.table import newest_base
from lance_memwal.testing.clocks import SkippingClock
from lance_memwal.types import EntryFooter, EntryTransaction, ShardManifest, Transaction, WalEntry
from lance_memwal.write.append_turns import AppendTurns
from lance_memwal.write.changes import Terms
from lance_memwal.write.once import OnceAppender
from lance_memwal.write.table_appender import ShardAppend, TableAppender, TakeoverPolicy
from tests.harness.processes import Child, start
from tests.harness.profile import scaled
from tests.kit.far_stores import far
from tests.kit.writers import hide_writers, in_thread, in_threads
from tests.wal.sink_children import SHARD, append_ids, keep_tidy, take_over, write_ids

SCHEMA = pa.schema([pa.field("id", pa.int64())])
KEYED = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int64())])


@pytest.fixture
def table(tmp_path: Path) -> mw.Table:
    return mw.create_table(str(tmp_path / "t"), SCHEMA, sharding=mw.Unsharded(), writer_defaults={"fsync": False})


def rows(*numbers: int) -> list[pa.RecordBatch]:
    return [pa.record_batch({"id": pa.array(numbers, pa.int64())})]


def sink(table: mw.Table, wait: float = 20.0, silent: float = 60.0, **options: Any) -> TableAppender:
    return TableAppender(OnceAppender(table.uri, **options), policy=TakeoverPolicy(wait, silent))


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
    return look_at_epoch(table.location, manifest(table), tag=newest_base(table).tag).kind


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


def exclusive_elsewhere(table: mw.Table) -> mw.ShardWriter:
    """An exclusive writer that this process treats as one of another process."""
    writer = table.shard_writer()
    hide_writers(table)
    return writer


def test_append_waits_for_a_writer_of_another_process_until_it_closes(table: mw.Table) -> None:
    waiting = sink(table)
    waiting.append(SHARD, rows(1))
    writer = exclusive_elsewhere(table)
    writer.put(rows(2))
    done = threading.Event()

    def append() -> None:
        waiting.append(SHARD, rows(3))
        done.set()

    thread = in_thread(append)
    assert not done.wait(0.3)
    writer.put(rows(4))
    writer.close()
    thread.result(20)
    assert done.is_set()
    assert manifest(table).writer_epoch == 2
    assert ids(table) == [1, 2, 3, 4]


def test_append_that_waits_in_vain_for_a_writer_wrote_nothing(table: mw.Table) -> None:
    with exclusive_elsewhere(table) as writer:
        writer.put(rows(1))
        with pytest.raises(ConflictError, match=r"close that writer.*shared=True"):
            sink(table, 0.2, 60.0).append(SHARD, rows(2))
        writer.put(rows(3))
    sink(table, 0.2, 60.0).append(SHARD, rows(4))
    assert ids(table) == [1, 3, 4]


@pytest.mark.parametrize("idle_seconds", [0.0, 60.0])
def test_append_beside_an_exclusive_writer_of_this_process_goes_through_it(
    table: mw.Table, idle_seconds: float
) -> None:
    with table.shard_writer() as writer:
        writer.put(rows(1))
        done = sink(table, 1.0, idle_seconds).append(SHARD, rows(2), txn=("app", 1))
        assert (done.rows, done.skipped) == (1, False)
        assert sink(table, 1.0, idle_seconds).append(SHARD, rows(2), txn=("app", 1)).skipped
        writer.put(rows(3))
        assert manifest(table).writer_epoch == writer.epoch == 1
    assert ids(table) == [1, 2, 3]


def test_a_sink_that_waits_for_seconds_says_once_for_whom(table: mw.Table, caplog: pytest.LogCaptureFixture) -> None:
    clock = SkippingClock()
    appender = OnceAppender(table.uri, clock=clock)
    with exclusive_elsewhere(table) as writer:
        writer.put(rows(1))
        with pytest.raises(ConflictError):
            TableAppender(appender, policy=TakeoverPolicy(4.0, 1e9), clock=clock).append(SHARD, rows(2))
        assert caplog.messages == []
        with pytest.raises(ConflictError):
            TableAppender(appender, policy=TakeoverPolicy(30.0, 1e9), clock=clock).append(SHARD, rows(2))
    (told,) = caplog.messages
    assert "has been idle for 1e+09 seconds" in told
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


def test_silence_is_counted_from_the_newest_entry_and_manifest(table: mw.Table) -> None:
    writer = table.shard_writer()
    writer.put(rows(1))
    writer.abort()
    clock = SkippingClock()
    patient = TableAppender(OnceAppender(table.uri, clock=clock), policy=TakeoverPolicy(600, 60), clock=clock)
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
        assert park(writer) is not None
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
        assert set(writer.stats()) == {SHARD}
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


def living(table: mw.Table) -> TableAppender:
    """A sink that has appended row 0, and knows its log."""
    sink = TableAppender(OnceAppender(table.location))
    sink.append(SHARD, rows(0), txn=("stream", 0))
    return sink


@pytest.mark.parametrize(
    ("claims", "requests"),
    [(0, {"put_new": 1, "list_names": 1, "head": 1}), (65, {"put_new": 1, "get": 1, "head": 2})],
    ids=["few manifests", "more than 64 manifests are not listed"],
)
def test_undisturbed_append_makes_few_requests(table: mw.Table, claims: int, requests: dict[str, int]) -> None:
    manifests = ShardManifestStore(table.location, SHARD, fsync=False)
    for _ in range(claims):
        manifests.claim_epoch()
    recorder = Recorder()
    sink = TableAppender(OnceAppender(resolve(table.uri, metrics=recorder)), policy=TakeoverPolicy(idle_seconds=0))
    sink.append(SHARD, rows(0), txn=("stream", 0))
    recorder.reset()
    list(sink.append_all([SHARD], lambda _: ShardAppend(rows(1), Transaction("stream", 1))))
    assert {kind: stats.count for kind, stats in recorder.snapshot().items()} == requests
    assert ids(table) == [0, 1]


def test_what_others_appended_is_met_and_a_repeat_of_it_is_skipped(table: mw.Table) -> None:
    sink, other = living(table), TableAppender(OnceAppender(table.location))
    other.append(SHARD, rows(1), txn=("stream", 1))
    assert sink.append(SHARD, rows(1), txn=("stream", 1)).skipped
    other.append(SHARD, rows(2), txn=("other", 1))
    assert sink.append(SHARD, rows(3), txn=("stream", 3)).rows == 1
    assert ids(table) == [0, 1, 2, 3]


@pytest.mark.parametrize("repeats", [True, False])
def test_a_slot_that_collection_emptied_is_not_taken_for_the_tip(table: mw.Table, repeats: bool) -> None:
    sink, other = living(table), TableAppender(OnceAppender(table.location))
    for number in (1, 2, 3):
        other.append(SHARD, rows(number), txn=("stream", number))
    assert other.flush(SHARD) == 1
    other.append(SHARD, rows(4), txn=("stream", 4))
    assert other.flush(SHARD) == 1
    assert any(item.kind == "entry" for item in table.gc(grace_seconds=0).objects)
    number = 4 if repeats else 5
    sink.append(SHARD, rows(number), txn=("stream", number))
    assert ids(table) == ([0, 1, 2, 3, 4] if repeats else [0, 1, 2, 3, 4, 5])
    assert table.verify().problems == []


def test_a_writer_that_came_and_went_is_noticed(table: mw.Table) -> None:
    sink = living(table)
    with table.shard_writer() as writer:
        writer.put(rows(1))
    assert sink.append(SHARD, rows(2), txn=("stream", 2)).rows == 1
    with table.shard_writer() as writer:
        writer.put(rows(3))
    table.gc(grace_seconds=0)
    assert sink.append(SHARD, rows(2), txn=("stream", 2)).skipped
    assert ids(table) == [0, 1, 2, 3]


def test_conditions_are_decided_by_what_others_wrote_since(tmp_path: Path) -> None:
    keyed = mw.create_table(str(tmp_path / "k"), KEYED, primary_key="id", sharding=mw.Unsharded())
    look_up = Reader(NewestBase(BaseTable.need(keyed.location))).stored_rows
    sink, other = (
        TableAppender(OnceAppender(keyed.location, look_up=look_up)),
        TableAppender(OnceAppender(keyed.location)),
    )
    versions = {n: [pa.record_batch({"id": [1], "n": [n]}, schema=KEYED)] for n in (1, 5, 9)}
    sink.append(SHARD, versions[1])
    other.append(SHARD, versions[9])
    assert sink.append(SHARD, versions[5], terms=Terms(where="excluded.n > n")).rejected_rows == 1
    assert keyed.scan().to_table().to_pylist() == [{"id": 1, "n": 9}]


OWN, A, B = "memwal:own", "memwal:a", "memwal:b"
_SECONDS = 5.0


def entry(writer: str) -> EntryFooter:
    return EntryFooter(txns=(EntryTransaction(Transaction("app", 1)), EntryTransaction(Transaction(writer, 1))))


def turns_after(*writers: str, clock: SkippingClock | None = None) -> AppendTurns:
    turns = AppendTurns(OWN, clock or SkippingClock())
    turns.note_create(1.0)
    for writer in writers:
        turns.note_entry(entry(writer))
    return turns


def test_writer_without_entry_appends_at_once() -> None:
    assert turns_after().seconds_left(2) == 0
    assert turns_after(A, B, A).seconds_left(2) == 0


def test_writer_with_newest_entry_waits_for_the_others() -> None:
    assert turns_after(A, B, OWN).rank(4) == 2
    assert turns_after(OWN, A, B).rank(4) == 0
    assert turns_after(A, OWN, B).rank(4) == 1
    assert 15.9 < turns_after(A, B, OWN).seconds_left(4) <= 16
    assert 3.9 < turns_after(OWN).seconds_left(16) <= 4, "a wait for newcomers alone has no slack"


def test_unused_turn_is_lost() -> None:
    turns = turns_after(A, B, OWN)
    turns.note_entry(entry(B))
    assert turns.rank(5) == 0, "A missed its turn"
    turns = turns_after(A, OWN, B)
    turns.note_entry(entry(B))
    assert turns.rank(5) == 0, "this writer missed its turn, too: it appends at once"


def test_wait_ends_without_any_entry() -> None:
    clock = SkippingClock()
    turns = turns_after(A, B, OWN, clock=clock)
    clock.sleep(16.0)
    assert turns.seconds_left(4) == 0


def test_writers_wait_for_newcomers_before_every_sixteenth_position() -> None:
    alone = turns_after(OWN)
    assert [position for position in range(1, 40) if alone.seconds_left(position)] == [16, 32]
    assert turns_after(A).seconds_left(16) == 0, "this writer is the newcomer"


def test_seals_do_not_count_as_turns() -> None:
    turns = turns_after(A, OWN)
    turns.note_entry(EntryFooter(seal=1))
    assert turns.rank(4) == 1


def test_threads_that_share_a_sink_need_no_transaction(table: mw.Table) -> None:
    """Each drew its own number before its turn: the later number could come first, and the earlier one was refused."""
    sink = TableAppender(OnceAppender(table.location))

    def append(first: int) -> None:
        for number in range(first, first + 10):
            sink.append(SHARD, rows(number))

    in_threads(append, range(0, 80, 10))
    assert table.count_rows() == 80


def append_until(stop: str, uri: str, name: int, pipe: Connection) -> None:
    """Put one row after the other into a store that is 10 ms away, once the file `stop`.go is there."""
    _, location = far(uri, delay_seconds=0.01)
    with mw.open_table(location).writer(shared=True, compaction=None) as writer:
        writer.put(rows(name << 32))
        pipe.send("ready")
        while not os.path.exists(f"{stop}.go"):
            time.sleep(0.005)
        puts = 0
        while not os.path.exists(stop):
            puts += 1
            writer.put(rows((name << 32) + puts))
        pipe.send(puts)


@pytest.mark.parametrize("processes", [2, 4])
def test_busy_processes_append_equally_often(table: mw.Table, tmp_path: Path, processes: int) -> None:
    """Before turns, the winner of one entry won the next one, too: of four processes two made one put each. With turns that
    were too short, one of two made 7 % of the puts, or none."""
    stop = str(tmp_path / "stop")
    children: list[Child] = [start(append_until, stop, table.uri, name) for name in range(1, processes + 1)]
    assert [child.receive(60) for child in children] == ["ready"] * processes
    Path(f"{stop}.go").touch()
    time.sleep(_SECONDS)
    Path(stop).touch()
    puts = [child.receive(60) for child in children]
    assert table.count_rows() == sum(puts) + processes
    assert min(puts) >= sum(puts) / processes / 2, puts


@pytest.mark.scaled
@pytest.mark.timeout(scaled(ci=60, prove=400))
def test_processes_beside_each_other_lose_and_double_nothing(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.string())])
    uri, stop = str(tmp_path / "t"), str(tmp_path / "stop")
    table = mw.create_table(uri, schema, sharding=mw.Unsharded(), writer_defaults={"fsync": False})
    draw, names = random.Random(7), itertools.count(1)

    def begin(kind: str) -> Child:
        if kind == "tidy":
            return start(keep_tidy, uri, stop)
        name = next(names)
        return start(append_ids if kind == "sink" else write_ids, uri, str(tmp_path / f"acks-{name}"), name, stop)

    kinds = ["sink"] * 4 + ["writer", "tidy"]
    children = [begin(kind) for kind in kinds]
    end = time.monotonic() + scaled(ci=6.0, prove=120.0)
    while time.monotonic() < end:
        time.sleep(0.7)
        victim = draw.randrange(len(children))
        children[victim].kill()
        children[victim] = begin(kinds[victim])
    (tmp_path / "stop").touch()
    for kind, child in zip(kinds, children, strict=True):
        assert child.receive(90) == ("done", []), f"a {kind} that lives failed"
    acked = Counter(int(line) for path in tmp_path.glob("acks-*") for line in path.read_text().split("\n")[:-1])
    found = Counter(table.scan(columns=["id"]).to_table().column("id").to_pylist())
    assert len(acked) > 20
    assert acked.keys() - found.keys() == set(), "lost"
    assert [number for number, times in found.items() if times > 1] == [], "doubled"
    assert table.verify().problems == []
    shards = {info.shard_id: info for info in table.shards()}
    assert shards[SHARD].epoch > 1, "a writer was there"
