"""Reads as of an earlier time: whatever happens later, a moment shows what it showed; a time is resolved exactly per
shard, whatever the clocks of writers and store say, or not at all.
"""

import itertools
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.store import paths
from lance_memwal.store.location import resolve
from lance_memwal.store.retry import RetryPolicy
from lance_memwal.table import newest_base
from lance_memwal.testing.faulty import FaultKind, FaultPlan, FaultScript
from tests.harness.profile import scaled

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
SHARD = mw.shard_id_for(mw.Unsharded())


@pytest.fixture
def table(tmp_path: Path) -> mw.Table:
    return mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", writer_defaults={"fsync": False})


def put(table: mw.Table, numbers: list[int], value: str, *, flush: bool = True) -> None:
    writer = table.shard_writer(SHARD)
    writer.put(pa.table({"id": numbers, "v": [value] * len(numbers)}, schema=SCHEMA))
    writer.close() if flush else writer.abort()


def delete(table: mw.Table, numbers: list[int]) -> None:
    writer = table.shard_writer(SHARD)
    writer.delete(numbers)
    writer.abort()


def rows(view: mw.Table | mw.TableView) -> dict[int, str]:
    found = view.scan().to_table()
    return dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))


def live(table: mw.Table) -> dict[int, str]:
    """Row 1 in the base table, 2 in an SSTable, 3 in the log; 9 was deleted."""
    put(table, [1, 9], "old")
    table.compact()
    put(table, [2], "old")
    put(table, [3], "old", flush=False)
    delete(table, [9])
    return rows(table)


def change_everything(table: mw.Table) -> None:
    put(table, [1, 2, 3, 4, 9], "new")
    table.compact()
    put(table, [5], "new", flush=False)


# ---------------------------------------------------------------------------------------------------------- snapshots


def test_a_snapshot_shows_then_what_the_table_has_become_since(table: mw.Table) -> None:
    before = live(table)
    snapshot = table.snapshot()
    change_everything(table)
    view = table.at(snapshot)
    assert before == {1: "old", 2: "old", 3: "old"} == rows(view)
    assert view.count_rows() == len(view) == 3
    assert view.get(1) == {"id": 1, "v": "old"}
    assert view.get(9) is None
    assert view.get(4) is None
    assert sorted(view.lookup([1, 3, 5, 9])["id"].to_pylist()) == [1, 3]
    assert view.count_rows("v = 'new'") == 0
    assert view.to_arrow().num_rows == 3
    assert view.head(2).num_rows == 2
    assert rows(table) == {1: "new", 2: "new", 3: "new", 4: "new", 5: "new", 9: "new"}


def test_a_snapshot_is_a_small_text_and_travels(table: mw.Table) -> None:
    live(table)
    snapshot = table.snapshot()
    text = str(snapshot)
    assert mw.Snapshot.parse(text) == snapshot == pickle.loads(pickle.dumps(snapshot))
    assert len(text) < 70
    assert text in repr(snapshot)
    change_everything(table)
    assert rows(mw.open_table(table.uri).at(text)) == rows(pickle.loads(pickle.dumps(table.at(snapshot))))
    assert table.snapshot() != snapshot


@pytest.mark.parametrize("text", ["memwal1:", "memwal1:-:", "memwal1:-:1:x", "memwal1:-:1:{0}.1.2.3:{0}.1.2.3"])
def test_a_text_that_was_cut_or_changed_is_refused(table: mw.Table, text: str) -> None:
    with pytest.raises(mw.InvalidInputError):
        mw.Snapshot.parse(text.format("A" * 22))


def test_a_snapshot_of_another_form_is_not_understood() -> None:
    with pytest.raises(mw.UnsupportedFormatError):
        mw.Snapshot.parse("memwal2:-:1")


def test_a_snapshot_of_another_table_is_refused(table: mw.Table, tmp_path: Path) -> None:
    other = mw.create_table(str(tmp_path / "other"), SCHEMA, primary_key="id")
    with pytest.raises(mw.TableReplacedError):
        table.at(other.snapshot())


def test_rows_that_are_not_durable_yet_are_not_in_a_snapshot(table: mw.Table) -> None:
    with table.shard_writer(SHARD, durable_write=False, max_wal_flush_interval_ms=None) as writer:
        writer.put(pa.table({"id": [7], "v": ["x"]}, schema=SCHEMA))
        assert rows(table) == {7: "x"}
        assert rows(table.at(table.snapshot())) == {}
    assert rows(table.at(table.snapshot())) == {7: "x"}


def test_a_base_version_is_exactly_what_plain_lance_shows(table: mw.Table) -> None:
    live(table)
    change_everything(table)
    for item in lance.dataset(table.uri).versions():
        version = int(item["version"])
        plain = lance.dataset(table.uri, version=version).to_table().sort_by("id")
        assert table.at(version).scan().to_table().sort_by("id") == plain
        assert table.at(str(version)).count_rows() == plain.num_rows
    with pytest.raises(mw.InvalidInputError, match="newest"):
        table.at(10_000)
    lance.dataset(table.uri).cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    with pytest.raises(mw.CollectedError):
        table.at(1)


def test_columns_are_those_of_then(table: mw.Table) -> None:
    live(table)
    snapshot = table.snapshot()
    lance.dataset(table.uri).add_columns(pa.field("n", pa.int64()))
    writer = table.shard_writer(SHARD)
    writer.put(pa.table({"id": [1], "v": ["new"], "n": pa.array([7], pa.int64())}))
    writer.close()
    assert table.at(snapshot).schema.names == ["id", "v"]
    assert rows(table.at(snapshot)) == {1: "old", 2: "old", 3: "old"}
    assert table.at(table.snapshot()).get(1) == {"id": 1, "v": "new", "n": 7}


# --------------------------------------------------------------------------------------------------------------- times


def test_a_time_shows_the_table_as_it_was(table: mw.Table) -> None:
    moments = []
    for step in (
        lambda: put(table, [1, 2], "a", flush=False),
        lambda: put(table, [2], "b"),
        lambda: delete(table, [1]),
        table.compact,
        lambda: put(table, [3], "c", flush=False),
        lambda: put(table, [1], "d"),
        table.compact,
    ):
        step()
        time.sleep(0.005)
        moments.append((datetime.now(UTC), rows(table)))
        time.sleep(0.005)
    for moment, then in moments:
        assert rows(table.at(moment)) == then
        assert rows(table.at(moment.isoformat())) == then
    first = moments[0][0] - timedelta(days=1)
    with pytest.raises(mw.CollectedError):
        table.at(first)
    assert rows(table.at(datetime.now(UTC) + timedelta(days=1))) == rows(table)


def test_a_time_before_a_shard_was_claimed_shows_none_of_its_rows(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=mw.Bucket("id", 4))
    time.sleep(0.005)
    empty = datetime.now(UTC)
    time.sleep(0.005)
    with table.writer(fsync=False) as writer:
        writer.put({"id": list(range(20)), "v": ["x"] * 20})
    table.compact()
    assert rows(table.at(empty)) == {}


def test_a_time_that_collection_passed_is_an_error(table: mw.Table) -> None:
    live(table)
    time.sleep(0.005)
    then = datetime.now(UTC)
    time.sleep(0.005)
    change_everything(table)
    put(table, [6], "new")
    table.compact()
    table.gc(grace_seconds=0)
    with pytest.raises(mw.CollectedError):
        table.at(then).count_rows()


@pytest.mark.parametrize("moment", [None, True, 1.5, "", datetime(2026, 1, 1), "2026-01-01T00:00", "2026-13-01"])
def test_what_names_no_moment_is_refused(table: mw.Table, moment: object) -> None:
    with pytest.raises(mw.InvalidInputError):
        table.at(moment)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["snapshot", "version"])
def test_what_is_out_of_reach_is_not_taken_for_removed(table: mw.Table, kind: str) -> None:
    """Each call to the store is lost once: the answer is right, or says that the store did not answer."""
    live(table)
    moment = table.snapshot() if kind == "snapshot" else newest_base(table).version
    then = rows(table.at(moment))
    change_everything(table)
    failed = 0
    for call in range(200):
        script = FaultScript(FaultPlan(at={call: FaultKind.ERROR_BEFORE}))
        try:
            location = resolve(table.uri, wrap=script.wrap, policy=RetryPolicy(max_attempts=1))
            assert rows(mw.open_table(location).at(moment)) == then
        except mw.UnavailableError:
            failed += 1
        if not script.injected:
            break
    assert not script.injected
    assert failed


# A time is resolved exactly per shard, whatever the clocks of writers and store say, or not at all.

_TICK_SECONDS = 0.02  # the times of files are those of the last tick of the system


def now() -> datetime:
    time.sleep(_TICK_SECONDS)
    moment = datetime.now(UTC)
    time.sleep(_TICK_SECONDS)
    return moment


def put_one(writer: mw.ShardWriter, number: int, value: str) -> None:
    writer.put(pa.table({"id": [number], "v": [value]}, schema=SCHEMA))


def shift(directory: Path, seconds: float) -> None:
    """As if the store's clock were off by so much."""
    for path in directory.iterdir():
        shifted = path.stat().st_mtime + seconds
        os.utime(path, (shifted, shifted))


@pytest.mark.parametrize(
    ("part", "seconds"), [("manifests", -3600), ("versions", -3600), ("both", -3600), ("both", -1)]
)
def test_a_store_whose_clock_is_behind_shows_no_later_row(table: mw.Table, part: str, seconds: float) -> None:
    moments = []
    for number in range(3):
        with table.shard_writer(SHARD) as writer:
            put_one(writer, number, "first")
            moments.append((now(), rows(table)))
            put_one(writer, 0, f"again {number}")
            moments.append((now(), rows(table)))
        table.compact()
    if part != "versions":
        shift(Path(table.uri) / paths.manifest_dir(SHARD), seconds)
    if part != "manifests":
        shift(Path(table.uri) / "_versions", seconds)
    for moment, then in moments:
        assert rows(table.at(moment)) == then


@pytest.mark.parametrize("seconds", [1, 3600])
def test_a_store_whose_clock_is_ahead_shows_the_same_rows_or_none(table: mw.Table, seconds: float) -> None:
    with table.shard_writer(SHARD) as writer:
        put_one(writer, 1, "a")
        moment, then = now(), rows(table)
        put_one(writer, 2, "b")
    table.compact()
    for directory in (paths.manifest_dir(SHARD), "_versions"):
        shift(Path(table.uri) / directory, seconds)
    with pytest.raises(mw.CollectedError):
        table.at(moment)
    assert rows(table.at(moment + timedelta(days=1))) == rows(table)
    assert then == {1: "a"}


def test_a_time_between_what_a_checkpoint_keeps_is_not_the_checkpoint(table: mw.Table) -> None:
    """The manifest and the first entry are kept, and the second entry, of the same manifest, is not."""
    writer = table.shard_writer(SHARD)
    put_one(writer, 1, "a")
    table.checkpoints.create("kept")
    put_one(writer, 2, "b")
    gone = now()
    put_one(writer, 3, "c")
    writer.close()
    for number in range(4):
        with table.shard_writer(SHARD) as writer:
            put_one(writer, 10 + number, "d")
        table.compact()
    table.gc(grace_seconds=0)
    assert rows(table.at("kept")) == {1: "a"}
    with pytest.raises(mw.CollectedError):
        table.at(gone)


def test_entries_of_the_peer_have_the_time_of_their_objects(table: mw.Table) -> None:
    dataset = lance.dataset(table.uri)
    with dataset.mem_wal_writer(SHARD) as peer:
        peer.put(pa.record_batch({"id": [1], "v": ["a"]}, schema=SCHEMA))
        moment = now()
        peer.put(pa.record_batch({"id": [2], "v": ["b"]}, schema=SCHEMA))
        assert rows(table.at(moment)) == {1: "a"}
        assert rows(table) == {1: "a", 2: "b"}


def test_a_version_is_old_from_when_another_took_its_place(table: mw.Table) -> None:
    with table.shard_writer(SHARD) as writer:
        put_one(writer, 1, "a")
    table.compact()
    shift(Path(table.uri) / "_versions", -30 * 86_400)
    snapshot = table.snapshot()
    with table.shard_writer(SHARD) as writer:
        put_one(writer, 1, "b")
    table.maintain()
    assert newest_base(table).version > snapshot.base_version
    assert rows(table.at(snapshot)) == {1: "a"}


def test_a_large_put_is_there_from_its_manifest_on(table: mw.Table) -> None:
    moments = []
    with table.shard_writer(SHARD, max_memtable_rows=10) as writer:
        for number in range(3):
            put_one(writer, number, "small")
            moments.append((now(), rows(table)))
            many = list(range(100 * number, 100 * number + 50))
            writer.put(pa.table({"id": many, "v": [f"large {number}"] * len(many)}, schema=SCHEMA))
            moments.append((now(), rows(table)))
    table.compact()
    assert len(moments[-1][1]) > 100
    for moment, then in moments:
        assert rows(table.at(moment)) == then


def test_a_version_that_clean_up_took_is_not_replaced_by_an_older_one_that_somebody_keeps(table: mw.Table) -> None:
    with table.writer(compaction=None) as writer:
        writer.put({"id": [1], "v": ["a"]})
    table.checkpoints.create("kept")
    now()
    table.dataset.add_columns(pa.field("extra", pa.int64()))
    then = now()
    assert "extra" in table.at(then).schema.names
    now()
    table.dataset.add_columns(pa.field("later", pa.int64()))
    table.maintain(versions=timedelta(0), grace_seconds=0)
    with pytest.raises(mw.CollectedError):
        table.at(then)
    assert "extra" not in table.at("kept").schema.names


def test_a_version_that_does_not_fit_is_not_replaced_by_one_on_the_other_side_of_a_gap(table: mw.Table) -> None:
    """The clock of the store is behind, so that the newest version of then is too new; the one before it is gone."""
    with table.writer(compaction=None) as writer:
        writer.put({"id": [1], "v": ["a"]})
    table.compact()
    table.checkpoints.create("kept")
    now()
    table.dataset.update({"v": "'b'"}, where="id = 1")  # plain Lance: no log has it
    moment, then = now(), rows(table)
    with table.writer(compaction=None) as writer:
        writer.put({"id": [2], "v": ["later"]})
    table.compact()
    for directory in (paths.manifest_dir(SHARD), "_versions"):
        shift(Path(table.uri) / directory, -3600)
    assert rows(table.at(moment)) == then == {1: "b"}
    table.dataset.cleanup_old_versions(older_than=timedelta(0), error_if_tagged_old_versions=False)
    with pytest.raises(mw.CollectedError, match="gone"):
        table.at(moment)


# Moments that are taken beside writers, compaction and collection: each has what was acknowledged before it, and
# stays so.

COUNTED = pa.schema([("id", pa.int64()), ("n", pa.int64())])
KEYS = 20


def counted_rows(view: mw.TableView) -> dict[int, int]:
    found = view.scan().to_table()
    return dict(zip(found["id"].to_pylist(), found["n"].to_pylist(), strict=True))


@contextmanager
def running(*loops: Callable[[], None]) -> Iterator[None]:
    """Runs every loop again and again until the end of the block, and raises what one of them raised."""
    stop = threading.Event()

    def again(loop: Callable[[], None]) -> None:
        while not stop.is_set():
            loop()

    with ThreadPoolExecutor(len(loops)) as pool:
        done = [pool.submit(again, loop) for loop in loops]
        try:
            yield
        finally:
            stop.set()
        for future in done:
            future.result()


@pytest.mark.scaled
@pytest.mark.parametrize("grace_seconds", [0, 3600])
def test_a_moment_has_what_was_acknowledged_and_keeps_it(tmp_path: Path, grace_seconds: float) -> None:
    uri = str(tmp_path / "t")
    table = mw.create_table(
        uri, COUNTED, primary_key="id", sharding=mw.Bucket("id", 2), writer_defaults={"fsync": False}
    )
    writer = table.writer(compaction=None, max_memtable_rows=200)
    acknowledged = dict.fromkeys(range(KEYS), 0)
    writer.put({"id": list(acknowledged), "n": list(acknowledged.values())})

    def write() -> None:
        for key in range(KEYS):
            writer.put({"id": [key], "n": [acknowledged[key] + 1]})
            acknowledged[key] += 1
        writer.flush()

    def keep_house() -> None:
        mw.open_table(uri).compact()
        mw.open_table(uri).gc(grace_seconds=grace_seconds)

    moments = []
    with running(write, keep_house):
        for number in range(scaled(ci=6, prove=100)):
            before = dict(acknowledged)
            checkpoint = table.checkpoints.create(f"c{number}")
            then = counted_rows(table.at(checkpoint.name))
            assert all(then[key] >= n for key, n in before.items())
            moments.append((checkpoint, then))
    writer.close()
    table.maintain(versions=timedelta(0), grace_seconds=0)
    for checkpoint, then in moments:
        assert counted_rows(table.at(checkpoint.name)) == counted_rows(table.at(checkpoint.snapshot)) == then
    for (a, before), (b, after) in itertools.pairwise(moments):
        changes = table.diff(a.name, b.name)
        assert dict(zip(changes["id"].to_pylist(), changes["n"].to_pylist(), strict=True)) == {
            key: n for key, n in after.items() if before[key] != n
        }
    assert table.verify().ok


# Moments on object stores: the same answers, and what they cost in requests.

SHARDS = 2
SERVICE_KEYS = list(range(40))


def put_keys(table: mw.Table, value: str) -> None:
    with table.writer(compaction=None) as writer:
        writer.put({"id": SERVICE_KEYS, "v": [value] * len(SERVICE_KEYS)})


def values(view: mw.TableView) -> set[str]:
    return set(view.scan().to_table()["v"].to_pylist())


@pytest.mark.xdist_group("services")
def test_moments_on_s3(s3_table: tuple[str, dict[str, str]]) -> None:
    uri, options = s3_table
    table = mw.create_table(uri, SCHEMA, primary_key="id", sharding=mw.Bucket("id", SHARDS), storage_options=options)
    put_keys(table, "first")
    metrics = table.location.metrics

    def calls() -> int:
        return sum(stats.count for stats in metrics.snapshot().values())

    before = calls()
    snapshot = table.snapshot()
    assert calls() - before <= 4 + 4 * SHARDS
    assert len(snapshot.shards) == SHARDS
    before = calls()
    assert values(table.at(snapshot)) == {"first"}
    assert calls() - before <= 10 + 12 * SHARDS
    table.checkpoints.create("kept", lifetime=timedelta(days=1))
    for value in ("second", "third"):
        put_keys(table, value)
    table.compact()
    assert values(table.at(datetime.now(UTC) + timedelta(seconds=2))) == {"third"}
    table.gc(grace_seconds=0)
    assert values(table.at("kept")) == values(table.at(snapshot)) == {"first"}
    assert {row["_op"] for row in table.diff("kept", table.snapshot()).to_pylist()} == {"update"}
    table.checkpoints.drop("kept")
    table.gc(grace_seconds=0)
    with pytest.raises(mw.CollectedError):
        table.at(snapshot)
