"""Entries that a writer of an earlier table left in the log of the table that is there now: they count for nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.log.entry import EntryEncoder, encode_sentinel
from lance_memwal.rows.schema import TableSchema
from lance_memwal.store import paths
from lance_memwal.store.location import resolve
from lance_memwal.testing.clocks import SkippingClock
from lance_memwal.types import EntryFooter, EntryTransaction, SeenTransaction, Transaction
from lance_memwal.write.once import OnceAppender
from tests.kit.identity import SCHEMA, make, make_anew, row, shown

SHARD = mw.shard_id_for(mw.Unsharded())
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


KINDS = [lambda: _foreign_rows(1), lambda: _foreign_rows(50), lambda: _foreign_sentinel(50)]


@pytest.mark.parametrize("above", [1, 2, 5])
@pytest.mark.parametrize("entry", KINDS)
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
@pytest.mark.parametrize("entry", KINDS)
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
@pytest.mark.parametrize("entry", KINDS)
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
