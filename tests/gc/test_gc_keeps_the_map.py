"""Collection keeps the newest whole transaction map and everything above it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

import lance_memwal as mw
from lance_memwal import crash_points
from lance_memwal.log.reading import list_positions
from lance_memwal.log.tailer import WalTailer
from lance_memwal.write.once import OnceAppender

SCHEMA = pa.schema([pa.field("id", pa.int64())])
SHARD = mw.shard_id_for(mw.Unsharded())


def rows(number: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array([number], pa.int64())})


def ids(table: mw.Table) -> list[int]:
    return sorted(table.scan().to_table().column("id").to_pylist())


def flush_and_die(writer: mw.ShardWriter) -> None:
    """End a writer that leaves no mark, which would carry a whole map."""
    writer.publish(60)
    writer.abort()


def test_every_transaction_stays_known_when_all_that_may_go_is_gone(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, sharding=mw.Unsharded())
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


def test_entries_above_the_newest_whole_map_stay_although_they_are_flushed_and_carry_nothing(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, sharding=mw.Unsharded())
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


def test_entries_that_are_not_flushed_stay_below_a_newer_whole_map(tmp_path: Path) -> None:
    """A crash leaves them, and the sentinel of the next writer, above them, has a map: only the cursor protects them."""
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, sharding=mw.Unsharded())
    writer = table.shard_writer(fsync=False)
    writer.put(rows(0))
    writer.publish(60)
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
    table = mw.create_table(uri, SCHEMA, sharding=mw.Unsharded())
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
