"""Collection removes what is proven dead, after the grace period, and nothing else; a writer that slept through it is fenced."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from gc_child import put_and_stop

import lance_memwal as mw
from lance_memwal import crash_points
from lance_memwal.log.entry import decode_entry
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.reading import list_positions
from lance_memwal.log.tailer import WalTailer
from lance_memwal.store import paths
from lance_memwal.store.location import resolve
from lance_memwal.store.port import ObjectStore
from lance_memwal.store.wrap import WrappedStore
from lance_memwal.table import newest_base
from lance_memwal.upkeep.gc import Collector
from lance_memwal.upkeep.reports import CollectedObject
from lance_memwal.upkeep.verify import ShardFindings
from lance_memwal.write.once import OnceAppender
from tests.harness.processes import start
from tests.harness.profile import scaled

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


def make(place: Path, key: str | None = "id") -> mw.Table:
    return mw.create_table(
        str(place), SCHEMA, primary_key=key, sharding=mw.Unsharded(), writer_defaults={"fsync": False}
    )


def shard_of(table: mw.Table) -> str:
    return table.shards()[0].shard_id


def fill(table: mw.Table, generations: int, takeovers: int = 1, rows: int = 3) -> None:
    for turn in range(takeovers):
        with table.writer(compaction=None) as writer:
            for number in range(generations):
                start = (turn * generations + number) * rows
                writer.put({"id": list(range(start, start + rows)), "v": [f"{turn}-{number}"] * rows})
                writer.flush()


def objects(table: mw.Table) -> set[str]:
    return {item.path for item in resolve(table.uri).store.list(paths.MEM_WAL_DIR)}


def age(table: mw.Table, seconds: float) -> None:
    """Let everything below the shards look that much older."""
    then = time.time() - seconds
    for path in objects(table):
        os.utime(Path(table.uri) / path, (then, then))


# ------------------------------------------------------------------------------------------------------- what goes


@pytest.mark.scaled
@pytest.mark.timeout(300)
@pytest.mark.parametrize("key", ["id", None])
def test_what_is_left_is_a_constant_and_one_sentinel_per_takeover(tmp_path: Path, key: str | None) -> None:
    generations, takeovers = scaled(ci=10, prove=50), 4
    table = make(tmp_path / "t", key)
    fill(table, generations, takeovers)
    rows = table.count_rows()
    assert len(objects(table)) > generations * takeovers * 5
    table.compact()
    report = table.gc(grace_seconds=0)
    sentinels = takeovers - 1
    assert len(objects(table)) <= 7 + sentinels, "one of them is the floor"
    assert report.objects_left == len(objects(table))
    assert table.count_rows() == rows == lance.dataset(table.uri).count_rows()
    assert table.verify().ok


def test_a_dry_run_names_what_a_real_one_removes_and_removes_nothing(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    fill(table, 6)
    table.compact()
    before = objects(table)
    planned = table.gc(dry_run=True, grace_seconds=0)
    assert objects(table) == before
    done = table.gc(grace_seconds=0)
    assert {item.path for item in planned.objects} == {item.path for item in done.objects} == before - objects(table)
    assert planned.size_bytes == done.size_bytes > 0
    assert done.count("entry") == 6  # the newest entry, which stays, is the mark that the writer left
    assert done.count("manifest") > 0


def test_nothing_goes_within_the_grace_period(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    fill(table, 6)
    table.compact()
    before = objects(table)
    assert table.gc().objects == ()
    assert objects(table) == before
    age(table, 3601)
    assert table.gc().count("sstable") > 0


def test_the_grace_period_begins_when_a_thing_becomes_unneeded_not_when_it_is_made(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    fill(table, 6)
    age(table, 7200)
    table.compact()  # the manifest that no longer lists the SSTables is new
    report = table.gc()
    assert report.count("sstable") == 0
    assert report.count("entry") > 0  # these were flushed two hours ago


def test_old_staging_goes_and_new_staging_stays(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    store = resolve(table.uri).store
    for name in ("old", "new"):
        store.put(f"{paths.STAGE_DIR}/{name}", b"rows")
    then = time.time() - 7200
    os.utime(Path(table.uri) / paths.STAGE_DIR / "old", (then, then))
    assert [item.path for item in table.gc(grace_seconds=0).objects] == [f"{paths.STAGE_DIR}/old"]
    assert store.list_names(paths.STAGE_DIR) == ["new"]


def test_a_failed_attempt_or_empty_directory_goes_once_its_generation_is_published(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    fill(table, 2)
    shard = Path(table.uri) / paths.shard_dir(shard_of(table))
    for name in ("deadbeef_gen_1", "deadbeef_gen_2/data", "deadbeef_gen_3"):
        (shard / name).mkdir(parents=True)
    store = resolve(table.uri).store
    for name in ("deadbabe_gen_2", "deadbabe_gen_3"):
        store.put(paths.bloom_path(shard_of(table), name), b"x")
    before = table.gc(grace_seconds=0, dry_run=True)
    report = table.gc(grace_seconds=0)
    assert before.objects == report.objects
    gone = {
        Path(item.path).relative_to(paths.shard_dir(shard_of(table))).parts[0]
        for item in report.objects
        if item.kind == "orphan"
    }
    assert gone == {"deadbabe_gen_2", "deadbeef_gen_1", "deadbeef_gen_2"}
    assert sorted(path.name for path in shard.glob("dead*")) == ["deadbabe_gen_3", "deadbeef_gen_3"]
    assert report.objects_left == len([path for path in shard.rglob("*") if path.is_file()])
    assert table.gc().count("orphan") == 0
    assert table.count_rows() == 6


# ------------------------------------------------------------------------------------------------------- what stays


def test_sentinels_and_the_newest_entry_stay(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    fill(table, 3, takeovers=3)
    table.compact()
    table.gc(grace_seconds=0)
    shard, location = shard_of(table), resolve(table.uri)
    positions = list_positions(location, shard)
    assert len(positions) == 3
    entries = [decode_entry(location.store.get(paths.wal_entry_path(shard, p)), p) for p in positions]
    assert [entry.is_sentinel for entry in entries] == [True, True, False]
    assert positions[-1] == 14  # nine puts, two sentinels, and a mark per close
    assert WalTailer(location, shard).next_position() == 15


def test_the_newest_entry_with_a_transaction_map_stays_below_entries_of_others(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    shard = "aa48498d-ac91-59e2-8452-69f46010ace2"
    with table.shard_writer(shard) as writer:
        writer.put({"id": [1], "v": ["a"]}, txn=("app", 3))
    peer: Any = lance.dataset(table.uri).mem_wal_writer(shard)
    for number in range(5):
        peer.put(pa.table({"id": [number], "v": ["peer"]}, schema=table.schema))
    peer.close()
    table.compact()
    table.gc(grace_seconds=0)
    assert table.transactions()[shard] == {"app": 3}
    with table.shard_writer(shard) as again:
        assert again.put({"id": [1], "v": ["b"]}, txn=("app", 3)).skipped


def test_uncompacted_generations_and_the_tail_stay(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    with table.writer(compaction=None) as writer:
        for number in range(4):
            writer.put({"id": [number], "v": ["x"]})
            writer.flush()
        writer.put({"id": [99], "v": ["tail"]})
        table.compact(max_generations=2)
        report = table.gc(grace_seconds=0)
        assert report.count("sstable") > 0
        assert sorted(row["id"] for row in mw.open_table(table.uri).scan().to_table().to_pylist()) == [0, 1, 2, 3, 99]
        writer.abort()
    assert sorted(table.scan().to_table()["id"].to_pylist()) == [0, 1, 2, 3, 99]


def test_an_index_that_lags_keeps_its_sstables_until_it_catches_up(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    fill(table, 2)
    table.compact()
    table.dataset.create_scalar_index("v", "BTREE")
    table.gc(grace_seconds=0)
    with table.writer(compaction=None) as writer:
        writer.put({"id": [500], "v": ["late"]})
    table.compact()
    report = table.gc(grace_seconds=0)
    assert (report.count("sstable"), report.waiting) == (0, 1)
    report = table.gc(grace_seconds=0, optimize_indices=True)
    assert report.count("sstable") > 0
    assert report.waiting == 0
    assert table.scan(filter="v = 'late'").count_rows() == 1


def test_a_shard_with_a_fault_is_refused_whole(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    fill(table, 5)
    table.compact(max_generations=2)
    shard = shard_of(table)
    last = list_positions(resolve(table.uri), shard)[-1]
    path = Path(table.uri) / paths.wal_entry_path(shard, last)
    path.write_bytes(path.read_bytes()[:-20])
    before = objects(table)
    report = table.gc(grace_seconds=0)
    assert list(report.refused) == [shard]
    assert objects(table) == before
    assert report.objects == ()


def test_a_table_that_lost_its_index_is_refused(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    fill(table, 3)
    lance.write_dataset(table.schema.empty_table(), table.uri, mode="overwrite")
    before = objects(table)
    with pytest.raises(mw.InvalidInputError, match="no MemWAL index"):
        table.gc(grace_seconds=0)
    assert objects(table) == before


class _Ordered(WrappedStore):
    """A store that writes down puts and deletes."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.calls: list[tuple[str, str]] = []

    def put(self, path: str, data: bytes, *, sync: bool = False) -> None:
        self.calls.append(("put", path))
        super().put(path, data, sync=sync)

    def delete(self, path: str) -> None:
        self.calls.append(("delete", path))
        super().delete(path)


def test_the_manifests_that_stay_have_no_gap_whatever_their_times_say(tmp_path: Path) -> None:
    """From the hint on, pylance looks for newer versions one after the other, and takes a gap for the end."""
    table = make(tmp_path / "t")
    fill(table, 4, takeovers=2)
    manifests = ShardManifestStore(table.uri, shard_of(table))
    versions = manifests.list_versions()
    now = time.time()
    for version in versions:
        seconds = 7200 if version != versions[2] else 0  # as after a copy of one object
        path = Path(table.uri) / paths.manifest_path(shard_of(table), version)
        os.utime(path, (now - seconds, now - seconds))
    table.gc(grace_seconds=3600)
    left = manifests.list_versions()
    assert left == versions[versions.index(left[0]) :], "a gap"
    assert left[0] == versions[2]
    age(table, 7200)
    table.gc(grace_seconds=3600)
    left = manifests.list_versions()
    assert left == versions[versions.index(left[0]) :]
    assert len(left) < len(versions) - 2


def test_the_hint_is_right_before_the_first_manifest_goes(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    fill(table, 6)
    shard = shard_of(table)
    hint = Path(table.uri) / paths.manifest_hint_path(shard)
    hint.write_text('{"version":1}')
    ordered: list[_Ordered] = []

    def wrap(store: ObjectStore) -> ObjectStore:
        ordered.append(_Ordered(store))
        return ordered[0]  # type: ignore[return-value]

    location = resolve(table.uri, wrap=wrap)
    Collector(location, lambda: newest_base(table)).run(grace_seconds=0)
    calls = ordered[0].calls
    gone = [
        i for i, (what, path) in enumerate(calls) if what == "delete" and path.startswith(paths.manifest_dir(shard))
    ]
    assert gone
    assert calls.index(("put", paths.manifest_hint_path(shard))) < gone[0]
    newest = ShardManifestStore(location, shard).list_versions()[-1]
    assert hint.read_text() == f'{{"version":{newest}}}'


# ------------------------------------------------------------------------------------------------------- who reads


def test_a_slow_reader_within_the_grace_period_sees_its_snapshot(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    fill(table, 8)
    scan = table.scan()
    expected = scan.count_rows()
    batches = scan.to_batches()
    first = next(batches)
    table.compact()
    table.gc()
    assert first.num_rows + sum(batch.num_rows for batch in batches) == expected
    assert table.scan().count_rows() == expected


def test_a_scan_that_begins_before_collection_and_reads_after_it_starts_again(tmp_path: Path) -> None:
    table = mw.open_table(make(tmp_path / "t").uri)
    fill(table, 4)
    scan = mw.open_table(table.uri).scan()
    table.compact()
    table.gc(grace_seconds=0)
    assert scan.to_table().num_rows == 12


def test_pylance_opens_writes_and_reads_a_collected_shard(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    shard = "aa48498d-ac91-59e2-8452-69f46010ace2"
    for turn in range(3):
        with table.shard_writer(shard, max_memtable_rows=4) as writer:
            for number in range(10):
                writer.put({"id": [number, 100 + turn], "v": [f"{turn}"] * 2})
    table.compact()
    assert table.gc(grace_seconds=0).count("entry") > 0
    peer: Any = lance.dataset(table.uri).mem_wal_writer(shard)
    peer.put(pa.table({"id": [0, 7777], "v": ["peer", "peer"]}, schema=table.schema))
    rows = {row["id"]: row["v"] for row in peer.lsm_scanner().to_table().to_pylist()}
    peer.close()
    assert (rows[0], rows[7777], rows[1], len(rows)) == ("peer", "peer", "2", 14)
    assert {row["id"]: row["v"] for row in table.scan().to_table().to_pylist()} == rows
    assert table.verify().ok


IDS = pa.schema([pa.field("id", pa.int64())])
SHARD = mw.shard_id_for(mw.Unsharded())


@pytest.fixture
def table(tmp_path: Path) -> mw.Table:
    return mw.create_table(str(tmp_path / "t"), IDS, sharding=mw.Unsharded())


def rows(number: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array([number], pa.int64())})


def ids(table: mw.Table) -> list[int]:
    return sorted(table.scan().to_table().column("id").to_pylist())


def flush_and_die(writer: mw.ShardWriter) -> None:
    """End a writer that leaves no mark, which would carry a whole map."""
    writer.force_seal_active()
    writer.wait_for_flush_drain(60)
    writer.abort()


def end_with_seal(table: mw.Table) -> None:
    """Flush a shared epoch: the seal is the newest entry, and the cursor has passed it."""
    appender = OnceAppender(table.uri)
    claim = appender.claim(SHARD)
    for number in (1, 2):
        appender.append(claim, [rows(number)])
        appender.flush_tail(claim)


def end_with_rows(table: mw.Table) -> None:
    """Flush an exclusive epoch without a mark: rows are the newest entry."""
    for number in (1, 2):
        writer = table.shard_writer(fsync=False)
        writer.put(rows(number))
        flush_and_die(writer)


def end_without_maps(table: mw.Table) -> None:
    """Flush an epoch of pylance, which writes no transaction maps."""
    peer = lance.dataset(table.uri).mem_wal_writer(SHARD)
    for number in (1, 2):
        peer.put(pa.Table.from_batches([rows(number)]))
    peer.close()


@pytest.mark.parametrize("end", [end_with_seal, end_with_rows, end_without_maps])
def test_newest_entry_of_flushed_log_stays(table: mw.Table, end: Callable[[mw.Table], None]) -> None:
    """`append R8` rests on it, in every kind of epoch."""
    end(table)
    before = list_positions(table.location, SHARD)
    (shard,) = table.shards()
    assert shard.wal_tail == 0, "the cursor has passed every entry"
    assert table.gc(grace_seconds=0).count("entry") > 0
    assert list_positions(table.location, SHARD)[-1] == before[-1]


def test_every_transaction_stays_known_when_all_that_may_go_is_gone(table: mw.Table) -> None:
    writer = table.shard_writer(fsync=False)
    for number in range(300):
        writer.put(rows(number), txn=(f"app{number}", 1))
    flush_and_die(writer)
    removed = table.gc(grace_seconds=0).objects
    assert sum(item.kind == "entry" for item in removed) == 256, "all below the whole map of the 257th entry"
    assert list_positions(table.location, SHARD) == list(range(257, 301))
    assert len(table.transactions()[SHARD]) == 300
    table.compact()
    table.gc(grace_seconds=0)
    with table.shard_writer(fsync=False) as writer:
        assert all(writer.put(rows(number), txn=(f"app{number}", 1)).skipped for number in range(300))
    assert ids(table) == list(range(300))


def test_entries_above_the_newest_whole_map_stay_although_they_are_flushed_and_carry_nothing(
    table: mw.Table, tmp_path: Path
) -> None:
    writer = table.shard_writer(fsync=False)
    for number in range(10):
        writer.put(rows(number))
    flush_and_die(writer)
    assert table.gc(grace_seconds=0).objects == ()
    writer = table.shard_writer(fsync=False)
    writer.put(rows(10))
    flush_and_die(writer)
    assert sum(item.kind == "entry" for item in table.gc(grace_seconds=0).objects) == 10
    tailer = WalTailer(str(tmp_path / "t"), SHARD)
    assert [entry.is_sentinel for n in (11, 12) if (entry := tailer.read_entry(n)) is not None] == [True, False]


def test_entries_that_are_not_flushed_stay_below_a_newer_whole_map(table: mw.Table) -> None:
    """A crash leaves them, and the sentinel of the next writer, above them, has a map: only the cursor protects them."""
    writer = table.shard_writer(fsync=False)
    writer.put(rows(0))
    writer.force_seal_active()
    writer.wait_for_flush_drain(60)
    for number in (1, 2, 3):
        writer.put(rows(number))
    writer.abort()
    writer = table.shard_writer(fsync=False)
    for dry_run in (True, False):  # what is proposed is right, and not only what a second look leaves of it
        found = table.gc(grace_seconds=0, dry_run=dry_run).objects
        assert sum(item.kind == "entry" for item in found) == 1
    writer.abort()
    with table.shard_writer(fsync=False):
        assert ids(table) == [0, 1, 2, 3]


def test_a_transaction_that_comes_late_into_an_emptied_slot_is_not_believed(tmp_path: Path) -> None:
    """Its process sleeps before its put, and dies right after it: nobody reads its rows, so nobody may skip them."""
    uri = str(tmp_path / "t")
    table = mw.create_table(uri, IDS, sharding=mw.Unsharded())
    sleeper, other = OnceAppender(uri), OnceAppender(uri)
    claim = sleeper.claim(SHARD)

    def late(point: str) -> None:
        if point == "once.before_put":
            crash_points.install(None)
            for number in (10, 11):
                other.append(claim, [rows(number)], txn=("other", number))
            other.flush_tail(claim)
            table.gc(grace_seconds=0)
            assert list_positions(table.location, SHARD) == [1, 4], "the slots between sentinel and seal are empty"
            crash_points.install(die)

    def die(point: str) -> None:
        if point == "once.after_put":
            raise TimeoutError

    crash_points.install(late)
    try:
        sleeper.append(claim, [rows(1)], txn=("app", 1))
    except TimeoutError:
        pass
    else:
        raise AssertionError("the sleeper did not die")
    finally:
        crash_points.install(None)
    assert list_positions(table.location, SHARD) == [1, 2, 4], "the late entry is there"
    assert ids(table) == [10, 11]
    assert not OnceAppender(uri).append(claim, [rows(1)], txn=("app", 1)).skipped
    assert OnceAppender(uri).append(claim, [rows(1)], txn=("app", 1)).skipped
    assert ids(table) == [1, 10, 11]


STALLED = "11111111-2222-4333-8444-555555555555"


def _wake_after_collection(place: Path, point: str) -> tuple[str, mw.Table]:
    """What a writer says that was stopped at `point` while everything else happened."""
    table = mw.create_table(
        str(place),
        pa.schema([("id", pa.int64()), ("v", pa.string())]),
        primary_key="id",
        sharding=mw.Manual(),
        allow_keys_across_shards=True,
    )
    child = start(put_and_stop, table.uri, STALLED, point)
    assert child.receive(20.0) == ("stopping",)
    child.wait_until_stopped(20.0)
    for value in ("first", "second"):
        with table.shard_writer(STALLED, fsync=False) as successor:
            successor.put({"id": [10], "v": [value]})
    table.compact()
    report = table.gc(grace_seconds=0)
    assert report.count("entry") >= 1
    assert not report.refused
    child.resume()
    message = child.receive(30.0)
    assert message is not None
    child.wait(30.0)
    return message[0], table


@pytest.mark.parametrize("point", ["wal.before_put", "flush.before_write", "flush.before_commit"])
def test_a_writer_that_slept_through_everything_is_fenced(tmp_path: Path, point: str) -> None:
    outcome, table = _wake_after_collection(tmp_path / "t", point)
    assert outcome == "fenced"
    assert {row["id"]: row["v"] for row in table.scan().to_table().to_pylist()} == {1: "acknowledged", 10: "second"}
    table.compact()
    assert sorted(lance.dataset(table.uri).to_table()["id"].to_pylist()) == [1, 10]
    assert table.verify().ok


def test_the_sentinels_are_what_stops_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the protection off (sentinels are collected like any entry) the sleeper acknowledges, and its row is lost."""

    def all_covered(self: Collector, shard: object, findings: ShardFindings) -> Iterator[CollectedObject]:
        for position in sorted(findings.entries)[:-1]:
            yield CollectedObject(paths.wal_entry_path(findings.shard_id, position), 0, "entry")

    monkeypatch.setattr(Collector, "_entries", all_covered)
    outcome, table = _wake_after_collection(tmp_path / "t", "wal.before_put")
    assert outcome == "acknowledged"
    assert table.get(2) is None
