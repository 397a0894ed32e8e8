"""A writer of a table that was removed, overwritten, restored or made anew at the same place stops, and writes nothing."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import crash_points
from lance_memwal.store.memory import reset
from lance_memwal.testing.clocks import SkippingClock
from lance_memwal.write.once import OnceAppender
from tests.harness.points import run_once_at
from tests.kit.identity import REPLACED, SCHEMA, in_another_process, make, make_anew, remove, row, shown

A_MINUTE = 61.0


@pytest.fixture(autouse=True)
def _no_hook_stays() -> Iterator[None]:
    yield
    crash_points.install(None)


def _files(uri: str) -> dict[str, int]:
    return {
        os.path.join(where, name): os.stat(os.path.join(where, name)).st_mtime_ns
        for where, _, names in os.walk(uri)
        for name in names
    }


def _batch(number: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(row(number), schema=SCHEMA)


def _shard_writer(table: mw.Table, clock: SkippingClock) -> tuple[Callable[[int], Any], Callable[[], Any]]:
    writer = mw.ShardWriter.open(table.uri, clock=clock, shard_id=mw.shard_id_for(mw.Unsharded()))
    return (lambda number: writer.put(row(number))), writer.abort


def _wal_only_writer(table: mw.Table, clock: SkippingClock) -> tuple[Callable[[int], Any], Callable[[], Any]]:
    shard_id = mw.shard_id_for(mw.Unsharded())
    writer = mw.ShardWriter.open(table.uri, clock=clock, shard_id=shard_id, enable_memtable=False)
    return (lambda number: writer.put(row(number))), writer.abort


def _wal_appender(table: mw.Table, clock: SkippingClock) -> tuple[Callable[[int], Any], Callable[[], Any]]:
    appender = mw.WalAppender.open(table.uri, mw.shard_id_for(mw.Unsharded()), clock=clock, fsync=False)
    return (lambda number: appender.append(_batch(number))), lambda: None


def _once_appender(table: mw.Table, clock: SkippingClock) -> tuple[Callable[[int], Any], Callable[[], Any]]:
    appender = OnceAppender(table.uri, clock=clock)
    claim = appender.claim(mw.shard_id_for(mw.Unsharded()))
    return (lambda number: appender.append(claim, [_batch(number)], txn=("app", number))), lambda: None


def _once_appender_of_generations(table: mw.Table, clock: SkippingClock) -> tuple[Callable[[int], Any], Any]:
    appender = OnceAppender(table.uri, clock=clock, max_entry_bytes=1)
    claim = appender.claim(mw.shard_id_for(mw.Unsharded()))
    return (lambda number: appender.append(claim, [_batch(number)])), lambda: None


KINDS = [_shard_writer, _wal_only_writer, _wal_appender, _once_appender, _once_appender_of_generations]


@pytest.mark.repro("writer-16", "writer-17")
@pytest.mark.parametrize("replace", REPLACED)
@pytest.mark.parametrize("kind", KINDS)
def test_a_writer_stops_within_a_minute_and_leaves_nothing_behind(
    tmp_path: Path, kind: Callable[..., Any], replace: Callable[[str], None]
) -> None:
    uri = str(tmp_path / "t")
    clock = SkippingClock()
    write, stop = kind(make(uri), clock)
    write(1)
    replace(uri)
    before = _files(uri)
    clock.sleep(A_MINUTE)
    for _ in range(2):
        with pytest.raises(mw.TableReplacedError, match="open it again"):
            write(2)
    stop()
    assert _files(uri) == before
    assert os.path.exists(uri) == (replace is not remove)


def _make_anew_and_write(uri: str) -> None:
    make_anew(uri)
    writer = mw.open_table(uri).shard_writer()
    writer.put(row(5))
    writer.abort()


@pytest.mark.parametrize("replace", [*REPLACED, _make_anew_and_write])
def test_a_flush_by_claim_finds_another_table_before_it_reads_or_seals(
    tmp_path: Path, replace: Callable[[str], None]
) -> None:
    uri = str(tmp_path / "t")
    make(uri)
    appender = OnceAppender(uri)
    claim = appender.claim(mw.shard_id_for(mw.Unsharded()))
    appender.append(claim, [_batch(1)])
    replace(uri)
    before = _files(uri)
    for _ in range(2):
        with pytest.raises(mw.TableReplacedError, match="open it again"):
            appender.flush_tail(claim)
    assert _files(uri) == before


@pytest.mark.repro("writer-06", "writer-17")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["local", "memory"])
def test_an_entry_of_a_removed_table_is_refused_at_once(tmp_path: Path, kind: Callable[..., Any], place: str) -> None:
    uri = str(tmp_path / "t") if place == "local" else f"memory://identity/{kind.__name__}"
    table = make(uri)
    write, stop = kind(table, SkippingClock())
    write(1)
    if place == "local":
        remove(uri)
    else:
        reset("identity")
    with pytest.raises(mw.TableReplacedError, match="was removed"):
        write(2)
    stop()
    assert list(tmp_path.iterdir()) == []
    if place == "memory":
        assert make(uri).count_rows() == 0


@pytest.mark.parametrize("replace", REPLACED)
def test_nothing_is_flushed_into_another_table(tmp_path: Path, replace: Callable[[str], None]) -> None:
    uri = str(tmp_path / "t")
    writer = make(uri).shard_writer()
    writer.put(row(1))
    replace(uri)
    before = _files(uri)
    with pytest.raises(mw.TableReplacedError):
        writer.close()
    assert _files(uri) == before


@pytest.mark.parametrize("point", ["flush.before_write", "flush.before_commit"])
def test_a_flush_that_is_under_way_is_not_committed(tmp_path: Path, point: str) -> None:
    uri = str(tmp_path / "t")
    writer = make(uri).shard_writer()
    writer.put(row(1))
    reached = run_once_at(point, lambda: make_anew(uri))
    with pytest.raises(mw.TableReplacedError):
        writer.close()
    assert reached
    assert mw.open_table(uri).shards() == []


def test_a_large_put_is_not_published_into_another_table(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    writer = make(uri).shard_writer(max_entry_bytes=1000)
    writer.put(row(1))
    reached = run_once_at("bulk.before_commit", lambda: make_anew(uri))
    with pytest.raises(mw.TableReplacedError):
        writer.put(row(2, "x" * 2000))
    writer.abort()
    assert reached
    assert shown(mw.open_table(uri)) == []


@pytest.mark.parametrize("replace", REPLACED)
def test_a_table_writer_stops_with_its_shards(tmp_path: Path, replace: Callable[[str], None]) -> None:
    uri = str(tmp_path / "t")
    writer = make(uri).writer(compaction=None)
    writer.put(row(1))
    replace(uri)
    with pytest.raises(mw.TableReplacedError):
        writer.flush()
    for write in (lambda: writer.put(row(2)), lambda: writer.delete([1]), lambda: writer.put_nowait(row(3))):
        with pytest.raises(mw.TableReplacedError):
            write()
    with pytest.raises(mw.TableReplacedError):
        writer.close()


def test_a_table_writer_opens_no_shard_of_another_table(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    writer = make(uri).writer(compaction=None)  # its shard is not open yet
    make_anew(uri)
    with pytest.raises(mw.TableReplacedError):
        writer.put(row(1))
    writer.close()
    assert mw.open_table(uri).shards() == []


def test_a_claim_of_a_table_that_was_made_anew_meanwhile_fails(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = make(uri)
    run_once_at("open.after_claim", lambda: make_anew(uri))
    with pytest.raises(mw.TableReplacedError):
        table.shard_writer()


@pytest.mark.parametrize("point", ["compact.chosen", "compact.after_fragments", "compact.before_trim"])
def test_a_compaction_does_not_touch_another_table(tmp_path: Path, point: str) -> None:
    uri = str(tmp_path / "t")
    table = make(uri)
    with table.shard_writer() as writer:
        writer.put(row(1))

    def meanwhile() -> None:
        make_anew(uri)
        with mw.open_table(uri).shard_writer() as other:  # the same shard and generation, in the new table
            other.put(row(100))

    def in_another_thread() -> None:  # on top of a call of the same thread, close() would not wait for the flush
        thread = threading.Thread(target=meanwhile)
        thread.start()
        thread.join()

    reached = run_once_at(point, in_another_thread)
    with pytest.raises(mw.TableReplacedError):
        table.compact()
    crash_points.install(None)
    assert reached
    assert shown(mw.open_table(uri)) == [100]
    assert mw.open_table(uri).shards()[0].generations == (1,)
    assert mw.open_table(uri).compact().generations == 1
    assert shown(mw.open_table(uri)) == [100]


def test_the_background_compaction_of_a_writer_ends_with_its_table(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    uri = str(tmp_path / "t")
    policy = mw.CompactionPolicy(max_generations=1, check_interval_seconds=0.02)
    writer = make(uri).writer(compaction=policy)
    writer.put(row(1))
    make_anew(uri)
    writer.abort()  # joins the thread, whatever it met
    assert shown(mw.open_table(uri)) == []


def test_an_old_writer_in_this_process_is_not_read_as_one_of_the_new_table(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    kept = make(uri)
    old = kept.shard_writer()
    old.put(row(1))
    make_anew(uri)
    new = mw.open_table(uri).shard_writer()
    assert old.epoch == new.epoch
    new.put(row(100))
    for table in (kept, mw.open_table(uri)):
        assert shown(table) == [100]
        assert table.get(1) is None
        assert table.lookup([1, 100]).num_rows == 1
    assert shown_with(kept, old) == [100]
    new.abort()
    assert shown(kept) == [100]
    old.abort()


def shown_with(table: mw.Table, writer: mw.ShardWriter) -> list[int]:
    scan = table.scan(in_memory=writer.in_memory_memtable_refs())
    return sorted(scan.to_table()["id"].to_pylist())


def test_a_claim_that_travelled_is_worth_nothing_in_another_table(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    make(uri)
    shard_id = mw.shard_id_for(mw.Unsharded())
    claim = OnceAppender(uri).claim(shard_id)
    make_anew(uri)
    fresh = OnceAppender(uri)
    assert fresh.claim(shard_id).epoch == claim.epoch
    with pytest.raises(mw.TableReplacedError, match="claim it again"):
        fresh.append(claim, [_batch(1)], txn=("app", 1))


@pytest.mark.repro("writer-07")
def test_another_process_makes_the_table_anew_under_a_live_writer(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    clock = SkippingClock()
    old = mw.ShardWriter.open(make(uri).uri, clock=clock, shard_id=mw.shard_id_for(mw.Unsharded()))
    for number in range(5):
        old.put(row(number))
    remove(uri)
    in_another_process(f"""
        import sys; sys.path[:0] = {[str(Path(__file__).parents[1])]!r}
        from tests.kit.identity import make, row
        writer = make({uri!r}).writer()
        writer.put(row(100))
        writer.abort()
    """)
    clock.sleep(A_MINUTE)
    with pytest.raises(mw.TableReplacedError):
        old.put(row(7))
    with pytest.raises(mw.TableReplacedError):
        old.close()
    probe = f"""
        import lance_memwal as mw
        table = mw.open_table({uri!r})
        table.writer().put([{{"id": 200, "v": "x"}}])
        print(sorted(table.scan().to_table()["id"].to_pylist()), table.verify().problems)
    """
    assert in_another_process(probe).split("\n")[0] == "[100, 200] []"


def test_a_stopped_writer_is_aborted_quietly_and_still_answers_for_what_it_had(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    clock = SkippingClock()
    writer = mw.ShardWriter.open(make(uri).uri, clock=clock, shard_id=mw.shard_id_for(mw.Unsharded()))
    writer.put(row(1))
    remove(uri)
    clock.sleep(A_MINUTE)
    with pytest.raises(mw.TableReplacedError):
        writer.put(row(2))
    assert writer.stats().put_count == 1
    assert writer.scan().to_table()["id"].to_pylist() == [1]
    writer.abort()


def test_a_log_whose_directory_alone_is_gone_poisons_its_writer(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    writer = make(uri).shard_writer()
    writer.put(row(1))
    remove(os.path.join(uri, "_mem_wal", writer.shard_id, "wal"))
    with pytest.raises(mw.WriterPoisonedError):
        writer.put(row(2))
    writer.abort()
    assert not os.path.exists(os.path.join(uri, "_mem_wal", writer.shard_id, "wal"))


def test_a_base_that_cannot_be_looked_at_stops_no_put(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    clock = SkippingClock()
    writer = mw.ShardWriter.open(make(uri).uri, clock=clock, shard_id=mw.shard_id_for(mw.Unsharded()))
    writer.put(row(1))
    versions = os.path.join(uri, "_versions")
    newest = sorted(os.listdir(versions))[0]
    os.rename(os.path.join(versions, newest), os.path.join(uri, "aside"))
    with open(os.path.join(versions, newest), "wb") as file:
        file.write(b"torn")
    clock.sleep(A_MINUTE)
    writer.put(row(2))
    with pytest.raises(mw.MemWalError):
        writer.check_fenced()
    os.rename(os.path.join(uri, "aside"), os.path.join(versions, newest))
    clock.sleep(A_MINUTE)
    writer.put(row(3))
    writer.close()
    assert shown(mw.open_table(uri)) == [1, 2, 3]
