"""Roll-ups are made beside flushes: nobody who flushes or closes waits for one, and what ended makes none."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import lance
import pytest

import lance_memwal as mw
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.identity import TableWatch
from lance_memwal.upkeep.short_logs import LogLength, LogLimits, ShortLogs
from lance_memwal.write.joining import Sink
from lance_memwal.write.once import OnceAppender
from tests.harness.points import run_once_at
from tests.kit.roll_ups import ranges, roll_ups
from tests.kit.writers import KEYED, SECONDS, WatchedStore, in_thread, rows, wait_for, watched

NEEDED = 32  # generations, before a shard gets any
CLOSE_SECONDS = 10.0  # a close that waits for what is held takes longer


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table one generation short of roll-ups."""
    place = tmp_path_factory.mktemp("nearly") / "t"
    table = mw.create_table(str(place), KEYED, sharding=mw.Unsharded(), writer_defaults={"fsync": False})
    with table.writer(compaction=None) as writer:
        flush_all(writer, 0, NEEDED - 1)
    return place


@pytest.fixture
def held(template: Path, tmp_path: Path) -> Iterator[tuple[WatchedStore, mw.Table]]:
    """That table, on a store under control; whatever a test holds is let go in the end."""
    shutil.copytree(template, tmp_path / "t")
    store, location = watched(tmp_path / "t")
    yield store, mw.open_table(location)
    for rule in store.rules:
        rule.open()


@pytest.fixture
def table(held: tuple[WatchedStore, mw.Table]) -> mw.Table:
    return held[1]


def flush_all(writer: mw.TableWriter, first: int, count: int) -> None:
    for number in range(first, first + count):
        writer.put(rows([number]))
        writer.flush()


@pytest.mark.parametrize(("kind", "part"), [("put_new", "memwal_rollups"), ("get", "bloom_filter")])
def test_neither_a_flush_nor_a_close_waits_for_a_roll_up(
    held: tuple[WatchedStore, mw.Table], kind: str, part: str
) -> None:
    store, table = held
    rule = store.hold(kind, part)
    writer = table.writer(compaction=None)
    flush_all(writer, NEEDED - 1, 1)
    rule.wait_reached()
    in_thread(lambda: flush_all(writer, NEEDED, 8)).result(SECONDS / 2)  # the next block is complete, too
    in_thread(writer.close).result(CLOSE_SECONDS)
    assert mw.open_table(table.uri).scan(consistency="flushed").count_rows() == NEEDED + 8


def test_a_roll_up_that_is_being_made_at_a_close_is_not_put(held: tuple[WatchedStore, mw.Table]) -> None:
    store, table = held
    rule = store.hold("get", "bloom_filter", times=1)
    with table.writer(compaction=None) as writer:
        flush_all(writer, NEEDED - 1, 1)
        rule.wait_reached()
    rule.open()
    store.wait_for("get", "bloom_filter")
    with table.writer(compaction=None) as writer:  # whose roll-ups come after what is left of the other's
        flush_all(writer, NEEDED, 8)
        wait_for(lambda: len(roll_ups(table.uri)) == 5)
    assert store.count("put_new", "memwal_rollups") == 5


def test_a_roll_up_that_fails_costs_no_flush_and_the_next_block_makes_it_good(
    held: tuple[WatchedStore, mw.Table],
) -> None:
    store, table = held
    rule = store.fail("put_new", "memwal_rollups", times=1)
    with table.writer(compaction=None) as writer:
        flush_all(writer, NEEDED - 1, 1)
        rule.wait_reached()
        flush_all(writer, NEEDED, 8)
        wait_for(lambda: ranges(table.uri) == {"1-8", "9-16", "17-24", "25-32", "33-40"})


def test_logs_that_sinks_flush_are_rolled_up(table: mw.Table) -> None:
    limits = LogLimits(entries=0, size_bytes=0, age_seconds=0, generations=0, maintain_seconds=0)
    logs = ShortLogs(table.location, TableWatch(BaseTable.need(table.location)).look, table.maintain, limits=limits)
    sink, shard_id = Sink(OnceAppender(table.location)), mw.shard_id_for(mw.Unsharded())
    logs.start()
    try:
        for number in range(NEEDED - 1, NEEDED + 7):
            sink.append(shard_id, [rows([number])], txn=("stream", number))
            logs.note({shard_id: LogLength(1, 0)})
            assert logs.flush([shard_id]) == 1
        wait_for(lambda: len(roll_ups(table.uri)) == 4)
    finally:
        logs.join()
    assert table.count_rows() == NEEDED + 7


def test_maintain_rolls_up_what_came_after_its_compaction(table: mw.Table) -> None:
    def write() -> None:
        with table.writer(compaction=None) as writer:
            flush_all(writer, 0, NEEDED + 1)

    def watch(what: str, done: int, _total: int) -> None:
        if (what, done) == ("maintenance steps", 2):  # it has compacted
            in_thread(write).result()
            for path in roll_ups(table.uri):
                path.unlink()

    report = table.maintain(progress=watch)
    assert report.roll_ups == 1
    assert ranges(table.uri) == {f"{NEEDED}-{2 * NEEDED}"}
    assert report.compaction.generations == NEEDED - 1
    assert table.maintain().roll_ups == 0, "everything is compacted"


def test_collection_removes_what_is_torn(table: mw.Table) -> None:
    with table.writer(compaction=None) as writer:
        flush_all(writer, NEEDED - 1, 1)
        wait_for(lambda: len(roll_ups(table.uri)) == 4)
        for path in roll_ups(table.uri)[:2]:
            path.write_bytes(b"torn")
    assert table.gc(grace_seconds=0, dry_run=True).count("torn") == 2
    assert table.gc(grace_seconds=3600).count("torn") == 0, "not within the grace period"
    assert table.gc(grace_seconds=0).count("torn") == 2
    assert len(roll_ups(table.uri)) == 2
    assert table.count_rows() == NEEDED


def test_repair_removes_a_roll_up_that_is_no_true_copy_and_it_is_made_again(table: mw.Table) -> None:
    with table.writer(compaction=None) as writer:
        flush_all(writer, NEEDED - 1, 1)
        wait_for(lambda: len(roll_ups(table.uri)) == 4)
        damaged = roll_ups(table.uri)[0]
        whole = damaged.read_bytes()
        damaged.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
        planned = table.repair().actions
        assert [(action.where.endswith(damaged.name), action.done) for action in planned] == [(True, False)]
        assert damaged.exists(), "a dry run removes nothing"
        assert [action.done for action in table.repair(dry_run=False).actions] == [True]
        assert not damaged.exists()
        flush_all(writer, NEEDED, 8)
        wait_for(lambda: len(roll_ups(table.uri)) == 5)
        assert damaged.read_bytes() == whole
    assert table.verify().problems == []
    assert table.scan().to_table().sort_by("id")["id"].to_pylist() == list(range(NEEDED + 8))


def test_repair_keeps_the_whole_copy_of_a_generation_whose_file_is_damaged(table: mw.Table) -> None:
    marker = "a text to be found"
    with table.writer(compaction=None) as writer:
        writer.put(rows([NEEDED], marker))
        writer.flush()
        wait_for(lambda: len(roll_ups(table.uri)) == 4)
    (path,) = Path(table.uri).glob(f"_mem_wal/*/*_gen_{NEEDED}/data/*.lance")
    whole = path.read_bytes()
    path.write_bytes(whole.replace(marker.encode(), marker.upper().encode()))
    assert path.read_bytes() != whole
    kept = roll_ups(table.uri)
    (problem,) = table.verify().problems
    assert (problem.invariant, problem.what) == ("V-14", f"the roll-up has other rows than generation {NEEDED}")
    assert "compare both" in problem.remedy
    assert table.repair(dry_run=False).actions == ()
    assert roll_ups(table.uri) == kept


def test_a_roll_up_brings_no_directory_of_a_removed_table_back(table: mw.Table) -> None:
    gone = threading.Event()

    def remove() -> None:
        shutil.rmtree(table.uri)
        gone.set()

    run_once_at("rollup.before_put", remove)
    writer = table.writer(compaction=None)
    flush_all(writer, NEEDED - 1, 1)
    assert gone.wait(SECONDS)
    writer.abort()  # waits for what is under way
    assert not Path(table.uri).exists()


def test_a_table_that_was_replaced_gets_no_roll_up_of_the_one_before(
    held: tuple[WatchedStore, mw.Table], caplog: pytest.LogCaptureFixture
) -> None:
    store, table = held
    rule = store.hold("get", "bloom_filter", times=1)
    writer = table.writer(compaction=None)
    flush_all(writer, NEEDED - 1, 1)
    rule.wait_reached()
    lance.write_dataset(rows([1]), table.uri, mode="overwrite")
    rule.open()
    wait_for(lambda: "not rolled up" in caplog.text or store.count("put_new", "memwal_rollups") > 0)
    writer.abort()
    assert roll_ups(table.uri) == []
