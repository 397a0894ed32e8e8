"""Kills at each named point, at random, of recovery, of large puts, of closes and of resolved writes: nothing
acknowledged is lost, nothing strange appears.
"""

import re
import sys
import uuid
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal
import lance_memwal as mw
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.tailer import WalTailer
from lance_memwal.shard_writer import ShardWriter
from tests.harness.crash import run_crashes, run_takeovers
from tests.harness.deaths import DEADLINE_SECONDS, KILLED
from tests.harness.kill_points import (
    BULK_POINTS,
    FLUSH_POINTS,
    KEYED_FLUSH_POINTS,
    OPEN_POINTS,
    POINTS,
    PUT_POINTS,
    kill_at,
)
from tests.harness.oracle import Oracle
from tests.harness.processes import Child, start
from tests.harness.profile import scaled
from tests.harness.shard_audit import KINDS, ShardAudit, TableKind
from tests.harness.shard_crash import KEYS, ShardLife, all_rows, live, live_until_killed

SETTINGS = {"fsync": False, "max_memtable_rows": 6}


REACHED = [(point, kind, 1) for point in (*OPEN_POINTS, *PUT_POINTS, *FLUSH_POINTS) for kind in KINDS]
REACHED += [(point, kind, 2) for point in KEYED_FLUSH_POINTS for kind in KINDS if kind != "append"]


@pytest.mark.parametrize(("point", "kind", "time"), REACHED)
def test_a_kill_at_this_point_breaks_no_promise(point: str, kind: str, time: int, tmp_path: Path) -> None:
    uri, shard_id, oracle = str(tmp_path / "table"), str(uuid.uuid4()), Oracle()
    table = TableKind(kind)
    table.create(uri)
    first = ShardLife(
        uri, shard_id, kind, seed=1, first_number=1, writes=20, settings=SETTINGS | {"max_memtable_rows": 40}
    )
    assert live_until_killed(first, oracle), "the first life leaves rows in the log and is killed at its end"

    at_point = ShardLife(
        uri,
        shard_id,
        kind,
        seed=2,
        first_number=100,
        writes=40,
        settings=SETTINGS,
        kill_at=(point, time),
        ending="close",
    )
    assert live_until_killed(at_point, oracle), f"{point} was not reached"
    assert ShardAudit(uri, shard_id).run() == []

    with ShardWriter.open(uri, shard_id=shard_id, fsync=False) as writer:
        assert oracle.check(table.rows_of(all_rows(writer, table, uri))) == []
    assert ShardAudit(uri, shard_id).run() == []


ROWS = 30
KILLS = 5


def _said_by(child: Child) -> list[tuple[Any, ...]]:
    said: list[tuple[Any, ...]] = []
    while True:
        try:
            message = child.receive(DEADLINE_SECONDS)
        except EOFError:
            assert "opened" not in {tag for tag, *_ in said}
            return said
        assert message is not None, "nothing was heard of it"
        said.append(message)


@pytest.mark.parametrize("point", [*OPEN_POINTS, "flush.before_write", "flush.before_commit", "flush.after_commit"])
def test_a_recovery_that_was_killed_five_times_shows_the_same_rows(point: str, tmp_path: Path) -> None:
    uri, shard_id, table = str(tmp_path / "table"), str(uuid.uuid4()), TableKind("append")
    table.create(uri)
    # Many generations in the log and none of them published, so that every recovery has to flush.
    log_only = ShardWriter.open(uri, shard_id=shard_id, fsync=False, enable_memtable=False, max_memtable_rows=2)
    for number in range(1, ROWS + 1):
        log_only.put(table.batch_of([number], number))
    log_only.abort()

    for attempt in range(KILLS):
        at = (point, 1 if point in OPEN_POINTS[:2] else 2)
        life = ShardLife(uri, shard_id, "append", attempt, 1_000, writes=0, settings={"fsync": False}, kill_at=at)
        child = start(live, life)
        assert _said_by(child)[-1] == ("dies", point), "the recovery was over before"
        assert child.wait(DEADLINE_SECONDS) == KILLED
        assert ShardAudit(uri, shard_id).run() == []

    with ShardWriter.open(uri, shard_id=shard_id, fsync=False) as writer:
        assert sorted(writer.scan().to_table()["id"].to_pylist()) == list(range(1, ROWS + 1))
        assert writer.epoch == KILLS + 2
    manifest = ShardManifestStore(uri, shard_id).read_latest()
    assert manifest is not None
    assert sum(sstable.physical_rows or 0 for sstable in manifest.sstables) == ROWS
    entries = [WalTailer(uri, shard_id).read_entry(p) for p in range(1, manifest.replay_after_wal_entry_position + 1)]
    assert sum(entry.num_rows for entry in entries if entry is not None) == ROWS, "replayed rows were appended again"


LARGE_ROWS = KEYS - 4
SMALL_ENTRIES = {"fsync": False, "max_entry_bytes": 600}


def put_small_and_large(uri: str, shard_id: str, kind: str, point: str, pipe: Connection) -> None:
    """Acknowledge a small put, then die while a transaction publishes a large one."""
    writer = ShardWriter.open(uri, shard_id=shard_id, **SMALL_ENTRIES)
    table = TableKind(kind)
    writer.put(table.batch_of(range(4), 1))
    pipe.send("small")
    kill_at(point)
    writer.put(_large(table), txn=("job", 7))
    pipe.send("large")


def _large(table: TableKind) -> pa.RecordBatch:
    return table.batch_of(range(4, 4 + LARGE_ROWS), 2)


def _numbers(writer: ShardWriter, table: TableKind, uri: str) -> list[int]:
    return sorted(row.number for row in table.rows_of(all_rows(writer, table, uri)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("point", BULK_POINTS)
def test_a_large_put_that_is_killed_is_there_whole_or_not_at_all(point: str, kind: str, tmp_path: Path) -> None:
    uri, shard_id, table = str(tmp_path / "table"), str(uuid.uuid4()), TableKind(kind)
    table.create(uri)
    child = start(put_small_and_large, uri, shard_id, kind, point)
    assert child.receive(DEADLINE_SECONDS) == "small"
    assert child.wait(DEADLINE_SECONDS) == KILLED
    small, both = [1] * 4, [1] * 4 + [2] * LARGE_ROWS
    with ShardWriter.open(uri, shard_id=shard_id, **SMALL_ENTRIES) as writer:
        landed = point == "bulk.after_commit"
        assert _numbers(writer, table, uri) == (both if landed else small)
        assert writer.put(_large(table), txn=("job", 7)).skipped is landed
        assert _numbers(writer, table, uri) == both
    assert ShardAudit(uri, shard_id).run() == []


def put_and_close(uri: str, shard_id: str, kind: str, settings: dict[str, Any], point: str, pipe: Connection) -> None:
    writer = ShardWriter.open(uri, shard_id=shard_id, fsync=False, **settings)
    for number in (1, 2, 3):
        writer.put(TableKind(kind).batch_of([number], number))
    pipe.send("closing")
    kill_at(point)
    writer.close()
    pipe.send("closed")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("point", ["wal.before_put", "wal.after_put", *FLUSH_POINTS])
def test_a_kill_inside_close_loses_nothing_that_was_acknowledged(point: str, kind: str, tmp_path: Path) -> None:
    """The close writes what waits: the log of a non-durable writer, and the memtable that nothing sealed before."""
    uri, shard_id, table = str(tmp_path / "table"), str(uuid.uuid4()), TableKind(kind)
    table.create(uri)
    waits = {"durable_write": False, "max_wal_flush_interval_ms": None, "max_wal_buffer_size": 0}
    child = start(put_and_close, uri, shard_id, kind, waits if point.startswith("wal.") else {}, point)
    assert child.receive(DEADLINE_SECONDS) == "closing"
    assert child.wait(DEADLINE_SECONDS) == KILLED
    assert ShardAudit(uri, shard_id).run() == []
    with ShardWriter.open(uri, shard_id=shard_id, fsync=False) as writer:
        assert _numbers(writer, table, uri) == ([] if point == "wal.before_put" else [1, 2, 3])
    assert ShardAudit(uri, shard_id).run() == []


BEFORE = {"id": 1, "a": 1, "b": "kept"}
AFTER = {"id": 1, "a": 2, "b": "kept"}


def update_once(uri: str, point: str, pipe: Connection) -> None:
    writer = mw.open_table(uri).writer(fsync=False)
    writer.put([{"id": 2, "a": 0, "b": "other"}])
    pipe.send("ready")
    kill_at(point)
    writer.update({"id": [1], "a": [2]}, txn=("job", 1))
    pipe.send("done")


@pytest.mark.parametrize("point", ["resolve.before_insert", "wal.before_put", "wal.after_put", "put.before_ack"])
def test_an_update_that_is_killed_is_there_whole_or_not_at_all(point: str, tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = mw.create_table(uri, pa.Table.from_pylist([BEFORE]), primary_key="id")
    child = start(update_once, uri, point)
    assert child.receive(DEADLINE_SECONDS) == "ready"
    assert child.wait(DEADLINE_SECONDS) == KILLED
    landed = point in ("wal.after_put", "put.before_ack")
    assert table.get(1) == (AFTER if landed else BEFORE)
    with table.writer(fsync=False) as writer:
        assert writer.update({"id": [1], "a": [2]}, txn=("job", 1)).skipped is landed
        assert writer.get(1) == AFTER
        assert writer.compare_and_set(1, AFTER, None, txn=("job", 2))
        assert writer.get(1) is None


RUNS = 4
# Whoever lives for a while comes here, wherever others are killed.
EVERYDAY = {*OPEN_POINTS, *PUT_POINTS, *FLUSH_POINTS, "compact.chosen"}


@pytest.mark.scaled
@pytest.mark.parametrize("run", range(RUNS))
def test_killed_writer_loses_no_acknowledged_row(run: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    kills = scaled(ci=15, prove=640)
    report = run_crashes(str(tmp_path), kills, seed=run * 100_000, only="shard")
    with capfd.disabled():
        print(f"\n{report}", file=sys.stderr)
    assert report.kills >= kills
    assert report.opens >= kills // 2
    assert report.writes > 5 * kills
    assert len(report.killed_at) >= 4


@pytest.mark.scaled
@pytest.mark.timeout(scaled(ci=120, prove=0))
@pytest.mark.parametrize("quarter", range(4))
def test_killed_table_processes_break_no_promise(
    quarter: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Every shape of table, two of them in each: partial updates, merges, blobs, searches, feeds, upkeep, columns."""
    kills = scaled(ci=16, prove=600)
    seed = quarter * scaled(ci=2, prove=100_000)
    report = run_crashes(str(tmp_path), kills, seed, only="table", lives=scaled(ci=11, prove=16))
    with capfd.disabled():
        print(f"\n{report}", file=sys.stderr)
    assert report.kills >= kills
    assert report.tables >= 2
    assert scaled(ci=EVERYDAY, prove=set(POINTS)) <= report.reached, report.missed()


@pytest.mark.scaled
@pytest.mark.timeout(scaled(ci=120, prove=0))
@pytest.mark.parametrize(("seed", "shares"), [(5, False), (15, True)], ids=["alone", "shared"])
def test_stopped_processes_break_no_promise(
    seed: int, shares: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    takeovers = scaled(ci=3, prove=500)
    report = run_takeovers(str(tmp_path), takeovers, seed + scaled(ci=0, prove=seed * 10_000))
    with capfd.disabled():
        print(f"\n{report}", file=sys.stderr)
    assert report.takeovers >= takeovers
    assert shares <= any(kind.startswith("shared") for kind in report.kinds)


# Every named point of the engine is one at which processes are killed and stopped, or is left out by name.

# No process of the harness comes there: it has no Spark, and damages nothing that would be repaired.
ELSEWHERE = {"spark.after_shard", "repair.after_quarantine", "repair.before_index"}
# What is collected, of which a life has none: it remembers deletes for longer than it lives, stages nothing, and no earlier
# version wrote it.
NEVER_COLLECTED = {"deletes", "rollup", "owner", "staging"}


def test_every_point_is_in_the_list_of_the_harness_or_left_out_by_name() -> None:
    source = "\n".join(path.read_text() for path in Path(lance_memwal.__file__).parent.rglob("*.py"))
    reached = set(re.findall(r'\breach\("([a-z_.]+)"\)', source))
    collected = set(re.findall(r'CollectedObject\([^\n]*"([a-z]+)"\)', source)) | {"sstable"}
    reached |= {f"gc.before_{kind}" for kind in collected - NEVER_COLLECTED}
    assert {"gc.before_entry", "gc.before_orphan", "wal.before_put"} <= reached
    assert reached - ELSEWHERE == set(POINTS)
