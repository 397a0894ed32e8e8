"""A table that was replaced at the same URI: its writers stop and write nothing, and entries of them count for nothing."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import crash_points
from lance_memwal.log.entry import EntryEncoder, encode_sentinel
from lance_memwal.rows.schema import TableSchema
from lance_memwal.store import paths
from lance_memwal.store.location import resolve
from lance_memwal.store.memory import reset
from lance_memwal.testing.clocks import SkippingClock
from lance_memwal.types import EntryFooter, EntryTransaction, SeenTransaction, Transaction
from lance_memwal.write.once import OnceAppender
from tests.harness.points import run_once_at
from tests.kit.identity import REPLACED, SCHEMA, in_another_process, make, make_anew, remove, row, shown

A_MINUTE = 61.0


def _files(uri: str) -> dict[str, int]:
    return {
        os.path.join(where, name): os.stat(os.path.join(where, name)).st_mtime_ns
        for where, _, names in os.walk(uri)
        for name in names
    }


def _batch(number: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(row(number), schema=SCHEMA)


Kind = tuple[Callable[[int], Any], Callable[[], Any]]
SHARD = mw.shard_id_for(mw.Unsharded())


def _shard_writer(table: mw.Table, clock: SkippingClock, **options: Any) -> Kind:
    writer = mw.ShardWriter.open(table.uri, clock=clock, shard_id=SHARD, **options)
    return (lambda number: writer.put(row(number))), writer.abort


def _wal_only_writer(table: mw.Table, clock: SkippingClock) -> Kind:
    return _shard_writer(table, clock, enable_memtable=False)


def _wal_appender(table: mw.Table, clock: SkippingClock) -> Kind:
    appender = mw.WalAppender.open(table.uri, SHARD, clock=clock, fsync=False)
    return (lambda number: appender.append(_batch(number))), lambda: None


def _once_appender(table: mw.Table, clock: SkippingClock, **options: Any) -> Kind:
    appender = OnceAppender(table.uri, clock=clock, **options)
    claim = appender.claim(SHARD)
    return (lambda number: appender.append(claim, [_batch(number)], txn=("app", number))), lambda: None


def _once_appender_of_generations(table: mw.Table, clock: SkippingClock) -> Kind:
    return _once_appender(table, clock, max_entry_bytes=1)


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
def test_flush_by_claim_finds_another_table_first(tmp_path: Path, replace: Callable[[str], None]) -> None:
    uri = str(tmp_path / "t")
    make(uri)
    appender = OnceAppender(uri)
    claim = appender.claim(SHARD)
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


@pytest.mark.parametrize("point", ["flush.before_write", "flush.before_commit", "bulk.before_commit"])
def test_a_flush_or_bulk_write_that_is_under_way_is_not_committed(tmp_path: Path, point: str) -> None:
    uri = str(tmp_path / "t")
    writer = make(uri).shard_writer(max_entry_bytes=1000)
    writer.put(row(1))
    reached = run_once_at(point, lambda: make_anew(uri))
    with pytest.raises(mw.TableReplacedError):
        writer.put(row(2, "x" * 2000)) if point == "bulk.before_commit" else writer.close()
    writer.abort()
    assert reached
    assert mw.open_table(uri).shards() == []


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


def test_no_shard_of_another_table_is_opened_or_claimed(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = make(uri)
    writer = table.writer(compaction=None)  # its shard is not open yet
    make_anew(uri)
    with pytest.raises(mw.TableReplacedError):
        writer.put(row(1))
    writer.close()
    table = mw.open_table(uri)
    assert table.shards() == []
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


def test_background_compaction_ends_with_its_table(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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
    claim = OnceAppender(uri).claim(SHARD)
    make_anew(uri)
    fresh = OnceAppender(uri)
    assert fresh.claim(SHARD).epoch == claim.epoch
    with pytest.raises(mw.TableReplacedError, match="claim it again"):
        fresh.append(claim, [_batch(1)], txn=("app", 1))


@pytest.mark.repro("writer-07")
def test_another_process_makes_the_table_anew_under_a_live_writer(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    clock = SkippingClock()
    old = mw.ShardWriter.open(make(uri).uri, clock=clock, shard_id=SHARD)
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
    writer = mw.ShardWriter.open(make(uri).uri, clock=clock, shard_id=SHARD)
    writer.put(row(1))
    remove(uri)
    clock.sleep(A_MINUTE)
    with pytest.raises(mw.TableReplacedError):
        writer.put(row(2))
    assert writer.stats().put_count == 1
    assert writer.memtable_scanner().to_table()["id"].to_pylist() == [1]
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
    writer = mw.ShardWriter.open(make(uri).uri, clock=clock, shard_id=SHARD)
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


OTHER = "0badc0de"
SEEN = {"app": SeenTransaction(99, 1)}


class _StoppedClock(SkippingClock):
    """No time passes for whoever has it."""

    def monotonic(self) -> float:
        return 0.0


def _foreign_rows(epoch: int) -> bytes:
    batch = pa.RecordBatch.from_pylist([{"id": 666, "v": "other"}], schema=SCHEMA)
    flagged = batch.append_column(pa.field("_tombstone", pa.bool_(), False), pa.array([False]))
    footer = EntryFooter(table=OTHER, written_ms=1, txns=(EntryTransaction(Transaction("late", 5), 0, 1),), seen=SEEN)
    return EntryEncoder(TableSchema.from_arrow(SCHEMA).wal, epoch, 1).encode([flagged], footer)


def _foreign_sentinel(epoch: int) -> bytes:
    return encode_sentinel(epoch, EntryFooter(table=OTHER, written_ms=1, seen=SEEN))


def _leave(uri: str, position: int, data: bytes) -> None:
    path = Path(uri) / paths.wal_entry_path(SHARD, position)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


FOREIGN = [lambda: _foreign_rows(1), lambda: _foreign_rows(50), lambda: _foreign_sentinel(50)]


@pytest.mark.parametrize("above", [1, 2, 5])
@pytest.mark.parametrize("entry", FOREIGN)
def test_the_log_goes_on_as_if_they_were_not_there(tmp_path: Path, entry: Callable[[], bytes], above: int) -> None:
    """Right above our last entry, and above a hole; with rows or a sentinel, of our epoch and of a higher one."""
    uri = str(tmp_path / "t")
    table = make(uri)
    writer = table.shard_writer()
    writer.put(row(1))  # position 1
    _leave(uri, 1 + above, entry())
    reader = mw.open_table(uri)
    for number in range(2, 9):  # over the foreign position
        writer.put(row(number))
        assert shown(table) == list(range(1, number + 1))
    writer.abort()
    assert shown(reader) == list(range(1, 9))
    assert reader.verify().problems == []
    with table.shard_writer() as taker:
        assert taker.epoch == 2
        taker.put(row(9))
    assert shown(reader) == list(range(1, 10))
    table.compact()
    assert table.gc(grace_seconds=0).refused == {}
    assert shown(reader) == list(range(1, 10))
    assert reader.verify().problems == []


@pytest.mark.parametrize("above", [1, 2, 5])
@pytest.mark.parametrize("entry", FOREIGN)
def test_a_takeover_and_every_way_to_read_pass_them(tmp_path: Path, entry: Callable[[], bytes], above: int) -> None:
    uri = str(tmp_path / "t")
    table = make(uri)
    first = table.shard_writer()
    first.put(row(1), txn=("app", 1))
    _leave(uri, 1 + above, entry())
    assert shown(mw.open_table(uri)) == [1]
    assert table.transactions() == {SHARD: {"app": 1}}
    assert mw.WalTailer(uri, SHARD).next_position() == 2
    tailer = mw.WalTailer(uri, SHARD)
    following = tailer.read_entry(2)
    assert following is None if above > 1 else following is not None and following.batches == ()
    second = table.shard_writer()
    assert (first.epoch, second.epoch) == (1, 2)
    with pytest.raises(mw.FencedError):
        first.put(row(2))
    second.put(row(3), txn=("app", 2))
    second.put(row(4), txn=("late", 1))
    first.abort()
    second.abort()
    assert shown(mw.open_table(uri)) == [1, 3, 4]
    assert table.flush(idle_seconds=0).rows == 3
    assert shown(mw.open_table(uri)) == [1, 3, 4]


@pytest.mark.parametrize("above", [1, 3])
@pytest.mark.parametrize("entry", FOREIGN)
def test_appenders_pass_them(tmp_path: Path, entry: Callable[[], bytes], above: int) -> None:
    uri = str(tmp_path / "t")
    make(uri)
    batch = pa.RecordBatch.from_pylist(row(1), schema=SCHEMA)
    appender = mw.WalAppender.open(uri, SHARD, fsync=False)
    appender.append(batch)
    _leave(uri, 1 + above, entry())
    for number in range(2, 6):
        appender.append(pa.RecordBatch.from_pylist(row(number), schema=SCHEMA))
    once = OnceAppender(uri)
    claim = once.claim(SHARD)
    for number in range(6, 9):
        once.append(claim, [pa.RecordBatch.from_pylist(row(number), schema=SCHEMA)], txn=("late", number))
    assert shown(mw.open_table(uri)) == list(range(1, 9))
    once.flush_tail(claim)
    assert shown(mw.open_table(uri)) == list(range(1, 9))
    assert mw.open_table(uri).verify().problems == []


def test_the_first_entry_of_a_table_passes_them_too(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = make(uri)
    _leave(uri, 1, _foreign_rows(50))
    with table.shard_writer() as writer:
        writer.put(row(1))
    assert shown(mw.open_table(uri)) == [1]


def test_a_hole_below_an_entry_of_ours_is_damage_still(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    writer = make(uri).shard_writer()
    for number in (1, 2, 3):
        writer.put(row(number))
    writer.abort()
    _leave(uri, 5, _foreign_rows(9))
    resolve(uri).store.delete(paths.wal_entry_path(SHARD, 2))
    with pytest.raises(mw.CorruptDataError):
        shown(mw.open_table(uri))
    assert [problem.invariant for problem in mw.open_table(uri).verify().problems] == ["V-4"]


@pytest.mark.repro("writer-06")
def test_a_put_that_the_old_writer_got_in_before_it_noticed_is_not_in_the_new_table(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    old = mw.ShardWriter.open(make(uri).uri, clock=_StoppedClock(), shard_id=SHARD)
    for number in range(4):
        old.put(row(number))
    make_anew(uri)
    new = mw.open_table(uri).shard_writer()
    new.put(row(100))
    old.put(row(4))  # its clock stands still, so that it need not look: position 5 of the new log, above a hole
    for number in range(101, 108):
        new.put(row(number))
    new.abort()
    old.abort()
    assert shown(mw.open_table(uri)) == list(range(100, 108))
    mw.open_table(uri).shard_writer().close()
    assert shown(mw.open_table(uri)) == list(range(100, 108))
    assert mw.open_table(uri).verify().problems == []


def test_an_old_writer_that_meets_an_entry_of_the_new_table_notices_at_once(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    old = make(uri).shard_writer()
    make_anew(uri)
    new = mw.open_table(uri).shard_writer()
    new.put(row(100))
    with pytest.raises(mw.TableReplacedError):
        old.put(row(1))  # position 1 is taken
    old.abort()
    new.close()


def test_a_tailer_of_the_old_table_says_that_its_table_is_gone(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    make(uri).shard_writer().put(row(1))
    tailer = mw.WalTailer(uri, SHARD)
    assert tailer.read_entry(1) is not None
    make_anew(uri)
    mw.open_table(uri).shard_writer().put(row(100))
    with pytest.raises(mw.TableReplacedError):
        tailer.read_entry(1)


@pytest.mark.parametrize("flushed", [True, False])
def test_adopted_shards_keep_their_rows(tmp_path: Path, flushed: bool) -> None:
    uri = str(tmp_path / "t")
    table = make(uri)
    before = table.details().writer_config_defaults["memwal.table_id"]
    writer = table.shard_writer()
    writer.put(row(1))
    if flushed:
        writer.close()
    writer.abort()
    lance.dataset(uri).drop_index("__lance_mem_wal")
    again = mw.enable(uri, sharding=mw.Unsharded(), adopt_shards=True)
    assert again.details().writer_config_defaults["memwal.table_id"] != before
    assert shown(again) == [1]
    with again.shard_writer() as writer:
        writer.put(row(2))
    assert shown(again) == [1, 2]


def test_a_table_of_pylance_keeps_its_rows_when_a_restore_took_its_id(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    dataset = lance.write_dataset(pa.table({"id": [0], "v": ["a"]}, schema=SCHEMA), uri)
    dataset.initialize_mem_wal(unsharded=True)
    before = lance.dataset(uri).version
    writer = mw.open_table(uri).shard_writer()
    writer.put(row(1))
    writer.abort()
    lance.dataset(uri, version=before).restore()
    assert shown(mw.open_table(uri)) == [0, 1]
    with mw.open_table(uri).shard_writer() as writer:
        writer.put(row(2))
    assert shown(mw.open_table(uri)) == [0, 1, 2]


def test_entries_without_a_tag_count(tmp_path: Path) -> None:
    """Those of pylance, and of older releases."""
    uri = str(tmp_path / "t")
    table = make(uri)
    with table.shard_writer() as writer:
        writer.put(row(1))
    peer = lance.dataset(uri).mem_wal_writer(SHARD)
    peer.put(pa.table({"id": [2], "v": ["peer"]}, schema=SCHEMA))
    assert shown(table) == [1, 2]
    with table.shard_writer() as writer:
        writer.put(row(3))
    assert shown(table) == [1, 2, 3]
