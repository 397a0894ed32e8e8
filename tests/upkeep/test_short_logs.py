"""Logs of sinks stay short; `compact(flush=True)` moves every row into the base table or reports which rows stay."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.clock import SystemClock
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.identity import TableWatch
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.store.location import Location, resolve
from lance_memwal.store.metering import Recorder
from lance_memwal.types import ShardManifest
from lance_memwal.upkeep.short_logs import LogLength, LogLimits, ShortLogs
from lance_memwal.write.once import OnceAppender
from lance_memwal.write.table_appender import TableAppender
from tests.harness.profile import scaled
from tests.kit.maintained import SETTINGS, flush, rows
from tests.kit.tables import compact_everything, create, keyed, outside
from tests.kit.writers import wait_for

SCHEMA = keyed(pa.field("v", pa.int64()))
SHARD = mw.shard_id_for(mw.Unsharded())
NEVER = LogLimits(entries=0, size_bytes=0, age_seconds=0, generations=0, maintain_seconds=0)


class SteppedClock(SystemClock):
    """A monotonic time that a test moves on."""

    later = 0.0

    def monotonic(self) -> float:  # type: ignore[override]
        return time.monotonic() + self.later


@pytest.fixture
def table(tmp_path: Path) -> mw.Table:
    return create(str(tmp_path / "t"), SCHEMA, sharding=mw.Unsharded())


def short_logs(table: mw.Table, limits: LogLimits, clock: SystemClock | None = None) -> ShortLogs:
    watch = TableWatch(BaseTable.need(table.location))
    return ShortLogs(table.location, watch.look, table.maintain, limits=limits, clock=clock or SystemClock())


def append(sink: TableAppender, number: int) -> LogLength:
    sink.append(SHARD, [pa.record_batch({"id": [number], "v": [number]}, schema=SCHEMA)], txn=("stream", number))
    tail = sink.appender.known_tail(SHARD)
    return LogLength(1, 0) if tail is None else LogLength.of(tail)


def manifest(location: Location) -> ShardManifest:
    found = manifest_or_none(location)
    assert found is not None
    return found


def test_a_log_is_due_by_entries_by_bytes_and_by_age_and_else_it_is_not(table: mw.Table) -> None:
    clock = SteppedClock()
    by_entries = short_logs(table, LogLimits(entries=3, size_bytes=0, age_seconds=0))
    by_bytes = short_logs(table, LogLimits(entries=0, size_bytes=1000, age_seconds=0))
    by_age = short_logs(table, LogLimits(entries=0, size_bytes=0, age_seconds=60), clock)
    never = short_logs(table, NEVER, clock)
    for logs in (by_entries, by_bytes, by_age, never):
        assert logs.note({"a": LogLength(2, 10), "b": LogLength(1, 999)}) == []
        assert logs.due() == []
    clock.later = 61
    assert sorted(by_age.due()) == ["a", "b"]
    for logs in (by_entries, by_bytes, never):
        logs.note({"a": LogLength(3, 10), "b": LogLength(2, 1000)})
    assert (by_entries.due(), by_bytes.due(), never.due()) == (["a"], ["b"], [])
    assert by_entries.note({"a": LogLength(12, 10)}) == ["a"], "four times the limit does not wait for the background"


def test_the_background_flushes_beside_appends_and_nothing_is_lost(table: mw.Table) -> None:
    sink, logs = TableAppender(OnceAppender(table.location)), short_logs(table, LogLimits(entries=8))
    last = 40
    for number in range(last):
        logs.flush(logs.note({SHARD: append(sink, number)}))
        logs.start()
    wait_for(lambda: bool(manifest(table.location).sstables))
    logs.join()
    found = manifest(table.location)
    assert found.sstables
    assert found.writer_epoch == 1
    assert sorted(table.scan().to_table().column("id").to_pylist()) == list(range(last))
    assert table.verify().problems == []


def test_a_table_that_is_gone_ends_the_upkeep_and_raises_nothing(table: mw.Table) -> None:
    sink, logs = TableAppender(OnceAppender(table.location)), short_logs(table, LogLimits(entries=1))
    logs.note({SHARD: append(sink, 0)})
    uri = table.uri
    table.drop(force=True)
    create(uri, SCHEMA, sharding=mw.Unsharded())
    logs.run()
    assert manifest_or_none(resolve(uri)) is None


def test_failing_upkeep_is_logged_and_retried(table: mw.Table, caplog: pytest.LogCaptureFixture) -> None:
    clock, tried = SteppedClock(), []

    def maintain() -> None:
        tried.append(clock.later)
        raise OSError("of Lance itself")

    limits = LogLimits(entries=1, maintain_seconds=60)
    watch = TableWatch(BaseTable.need(table.location))
    logs = ShortLogs(table.location, watch.look, maintain, limits=limits, clock=clock)
    logs.note({SHARD: append(TableAppender(OnceAppender(table.location)), 0)})
    for later in (61.0, 62.0, 122.0):
        clock.later = later
        logs.run()
    assert tried == [61.0, 122.0]
    assert "maintenance beside a sink failed, it is tried again: of Lance itself" in caplog.text


def manifest_or_none(location: Location) -> ShardManifest | None:
    return ShardManifestStore(location, SHARD).read_latest()


def calls(recorder: Recorder) -> int:
    return sum(stats.count for stats in recorder.snapshot().values())


def costs(location: Location, appends: int, limits: LogLimits, clock: SteppedClock) -> Iterator[tuple[int, int, float]]:
    """Store calls of every append, those of a scan after it (now and then, else 0), and the seconds of both."""
    table = mw.open_table(location)
    watch = TableWatch(BaseTable.need(location))
    logs = ShortLogs(location, watch.look, lambda: table.maintain(grace_seconds=0), limits=limits, clock=clock)
    sink, recorder = TableAppender(OnceAppender(location)), location.metrics
    for number in range(appends):
        before, began = calls(recorder), time.perf_counter()
        length = append(sink, number)
        appended, scanned, seconds = calls(recorder) - before, 0, time.perf_counter() - began
        if number % (limits.entries // 2) == limits.entries // 4:
            before, began = calls(recorder), time.perf_counter()
            assert table.scan(columns=["id"]).to_table().num_rows == number + 1
            scanned, seconds = calls(recorder) - before, seconds + time.perf_counter() - began
        yield appended, scanned, seconds
        logs.note({SHARD: length})
        logs.run()
        clock.later += 1


@pytest.mark.scaled
def test_thousands_of_appends_later_writes_and_reads_cost_what_they_did(tmp_path: Path) -> None:
    appends, entries = scaled(ci=(72, 6), prove=(3000, 64))
    create(str(tmp_path / "t"), SCHEMA, sharding=mw.Unsharded())
    location = resolve(str(tmp_path / "t"), metrics=Recorder())
    limits = LogLimits(entries=entries, generations=4, maintain_seconds=entries * 6)
    found = list(costs(location, appends, limits, SteppedClock()))
    third = appends // 3
    early, late = found[:third], found[-third:]
    assert median(item[0] for item in late) <= median(item[0] for item in early) <= 4
    assert sum(item[0] for item in late) <= 1.1 * sum(item[0] for item in early)
    scans = [[scanned for _, scanned, _ in part if scanned] for part in (early, late)]
    assert max(scans[1]) <= 1.5 * max(scans[0])
    if appends >= 3000:
        assert median(item[2] for item in late) <= 1.5 * median(item[2] for item in early)
    newest = manifest(location)
    assert len(newest.sstables) <= limits.generations
    assert len(location.store.list_names(f"_mem_wal/{SHARD}/wal")) <= 12 * entries


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
    for _ in range(2):
        assert table.compact().in_log_only == {}
        table.shard_writer().close()  # the second one leaves a sentinel
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


def test_compact_with_flush_does_not_fence_another_process(tmp_path: Path) -> None:
    table = make(tmp_path)
    with outside() as other, table.shard_writer(**SETTINGS) as writer:
        writer.put(rows([10]))
        report = other.ask("compact", table.uri, flush=True)
        assert list(report.in_log_only) == [SHARD]
        writer.put(rows([11]))
        writer.check_fenced()
        flush(writer)
        assert other.ask("compact", table.uri, flush=True).in_log_only == {}
    assert base_rows(table) == 5


def test_compact_with_flush_reports_log_of_wal_only_writer(tmp_path: Path) -> None:
    table = make(tmp_path)
    with table.shard_writer(enable_memtable=False) as queue:
        queue.put(rows([10]))
        assert list(table.compact(flush=True).in_log_only) == [SHARD]
        queue.put(rows([11]))
    compact_everything(table, 30)
    assert base_rows(table) == 5


def test_compact_of_overwritten_table_names_lost_index(tmp_path: Path) -> None:
    table = make(tmp_path)
    with table.shard_writer(**SETTINGS) as writer:
        writer.put(rows([10]))
        flush(writer)
    lance.write_dataset(rows(range(3)), table.uri, mode="overwrite")
    with pytest.raises(mw.InvalidInputError, match="no MemWAL index"):
        table.compact(flush=True)
