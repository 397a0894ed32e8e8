"""Everything that was written becomes base rows, or the report says what did not, and why."""

from __future__ import annotations

import threading
from pathlib import Path

import lance
import pytest

import lance_memwal as mw
from tests.kit.maintained import SETTINGS, flush, rows
from tests.kit.tables import outside

SHARD = mw.shard_id_for(mw.Unsharded())


def make(place: Path) -> mw.Table:
    return mw.create_table(str(place / "t"), rows(range(3)), primary_key="id", writer_defaults=SETTINGS)


def abandon(table: mw.Table, key: int) -> None:
    """Leave a row in the log of a shard that nobody owns."""
    writer = table.shard_writer()
    writer.put(rows([key]))
    writer.abort()


def base_rows(table: mw.Table) -> int:
    return int(lance.dataset(table.uri).count_rows())


# ------------------------------------------------------------------------------------------------------------- compact


def test_compact_says_which_rows_are_in_a_log_only(tmp_path: Path) -> None:
    table = make(tmp_path)
    assert table.compact().in_log_only == {}
    with table.shard_writer(**SETTINGS) as writer:
        writer.put(rows([10]))
        report = table.compact()
        assert list(report.in_log_only) == [SHARD]
        assert "compact(flush=True)" in report.in_log_only[SHARD]
        assert base_rows(table) == 3
    assert table.compact().in_log_only == {}
    assert base_rows(table) == 4


def test_compact_with_flush_folds_rows_of_live_writers_and_of_abandoned_logs(tmp_path: Path) -> None:
    table = make(tmp_path)
    with table.writer(compaction=None) as writer:
        writer.put(rows([10]))
        assert table.compact(flush=True).in_log_only == {}
        assert base_rows(table) == 4
        writer.put(rows([11]))  # it was asked, not fenced
    abandon(table, 12)
    report = table.compact(flush=True)
    assert "seconds old" in report.in_log_only[SHARD]
    assert base_rows(table) == 5
    table.flush(idle_seconds=0)
    assert table.compact(flush=True).in_log_only == {}
    assert base_rows(table) == 6


def test_a_takeover_alone_is_no_row_in_the_log(tmp_path: Path) -> None:
    table = make(tmp_path)
    for _ in range(2):
        table.shard_writer().close()  # the second one leaves a sentinel
    assert table.compact().in_log_only == {}


# -------------------------------------------------------------------------------------------------------------- settle


def test_settle_brings_everything_into_the_base(tmp_path: Path) -> None:
    table = make(tmp_path)
    with table.writer(compaction=None) as writer:
        for key in range(10, 15):
            writer.put(rows([key]))
            writer.flush()
        writer.put(rows([15]))
        report = table.settle(30)
        assert (report.converged, report.left, report.generations) == (True, {}, 6)
        assert base_rows(table) == 9
        writer.put(rows([16]))
    assert table.settle(30).converged
    assert table.settle(30).generations == 0
    assert base_rows(table) == 10


def test_settle_takes_over_a_log_once_it_is_idle_for_long_enough(tmp_path: Path) -> None:
    table = make(tmp_path)
    abandon(table, 10)
    short = table.settle(0.2, idle_seconds=3600)
    assert not short.converged
    assert "less than 3600" in short.left[SHARD]
    assert table.settle(30, idle_seconds=0.3).converged
    assert base_rows(table) == 4


def test_settle_does_not_fence_a_writer_of_another_process(tmp_path: Path) -> None:
    table = make(tmp_path)
    with outside() as other, table.shard_writer(**SETTINGS) as writer:
        writer.put(rows([10]))
        report = other.ask("settle", table.uri, 0.2)
        assert (report.converged, list(report.left)) == (False, [SHARD])
        writer.put(rows([11]))
        writer.check_fenced()
        flush(writer)
        assert other.ask("settle", table.uri, 30).converged
    assert base_rows(table) == 5


def test_settle_ends_beside_a_busy_writer(tmp_path: Path) -> None:
    table = make(tmp_path)
    done = threading.Event()
    with table.writer(compaction=None) as writer:

        def write() -> None:
            key = 100
            while not done.is_set():
                writer.put(rows([key]))
                key += 1

        busy = threading.Thread(target=write)
        busy.start()
        try:
            report = table.settle(1.0)
        finally:
            done.set()
            busy.join()
        assert report.seconds < 20
        assert report.converged or report.left
        assert report.rounds >= 1
    final = table.settle(30)
    assert final.converged
    assert base_rows(table) == table.count_rows()


def test_a_log_without_memtables_is_reported_not_taken_away(tmp_path: Path) -> None:
    table = make(tmp_path)
    with table.shard_writer(enable_memtable=False) as queue:
        queue.put(rows([10]))
        report = table.settle(0.2)
        assert not report.converged
        queue.put(rows([11]))
    assert not table.settle(0.1).converged
    assert table.settle(30, idle_seconds=0).converged
    assert base_rows(table) == 5


@pytest.mark.parametrize("timeout", ["soon", True])
def test_a_wrong_time_is_refused(tmp_path: Path, timeout: object) -> None:
    table = make(tmp_path)
    with pytest.raises(mw.InvalidInputError):
        table.settle(timeout)  # type: ignore[arg-type]


def test_settle_of_a_table_that_lost_its_index_says_so(tmp_path: Path) -> None:
    table = make(tmp_path)
    with table.shard_writer(**SETTINGS) as writer:
        writer.put(rows([10]))
        flush(writer)
    lance.write_dataset(rows(range(3)), table.uri, mode="overwrite")
    with pytest.raises(mw.InvalidInputError, match="no MemWAL index"):
        table.settle(1)
