"""A kill while a large put is published, inside a close, and between the files of a generation."""

from __future__ import annotations

import uuid
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lance_memwal.shard_writer import ShardWriter
from tests.harness.crash_child import KEYS, ShardLife, all_rows
from tests.harness.crash_tables import KINDS, TableKind
from tests.harness.deaths import DEADLINE_SECONDS, KILLED
from tests.harness.kill_points import BULK_POINTS, FLUSH_POINTS, KEYED_FLUSH_POINTS, kill_at
from tests.harness.oracle import Oracle
from tests.harness.processes import start
from tests.harness.shard_audit import ShardAudit
from tests.harness.shard_crash import live_until_killed

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
    """Three puts, then die inside the close."""
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


@pytest.mark.parametrize("kind", ["integer", "composite"])
@pytest.mark.parametrize("point", KEYED_FLUSH_POINTS)
def test_a_generation_without_its_sidecar_is_never_published(point: str, kind: str, tmp_path: Path) -> None:
    uri, shard_id, oracle = str(tmp_path / "table"), str(uuid.uuid4()), Oracle()
    table = TableKind(kind)
    table.create(uri)
    life = ShardLife(
        uri,
        shard_id,
        kind,
        seed=3,
        first_number=1,
        writes=40,
        settings={"fsync": False, "max_memtable_rows": 6},
        kill_at=(point, 2),
        ending="close",
    )
    assert live_until_killed(life, oracle), f"{point} was not reached"
    assert ShardAudit(uri, shard_id).run() == []
    with ShardWriter.open(uri, shard_id=shard_id, fsync=False) as writer:
        assert oracle.check(table.rows_of(all_rows(writer, table, uri))) == []
    assert ShardAudit(uri, shard_id).run() == []
