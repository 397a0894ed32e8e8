"""A read sees one moment, whatever happens while it is being captured, and wherever its snapshot is opened again.

A scan is interrupted before each of its requests, and something moves data down a tier in between: a flush, a
compaction, a trim, a collection, a takeover.
"""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.feed.time_travel import tiers_of
from lance_memwal.lance.base import NewestBase
from lance_memwal.log.manifest_codec import encode_manifest
from lance_memwal.process.cache import CACHE
from lance_memwal.read.reader import Reader
from lance_memwal.read.scan import Scan
from lance_memwal.read.snapshot import Snapshot
from lance_memwal.store import paths
from lance_memwal.store.location import resolve
from lance_memwal.table import newest_base
from tests.harness.profile import scaled
from tests.kit.tables import (
    compact_all,
    create,
    files_below,
    ids_of,
    keyed,
    manifest_of,
    outside,
    rows_of,
    sstable_path,
    trim_shard,
    upsert_base,
    watched_table,
)

SHARD = mw.shard_id_for(mw.Unsharded())
ROWS = [{"id": i, "v": tier, "s": "x"} for tier in range(4) for i in range(tier * 10, tier * 10 + 4)]


def _build(uri: str, *, key: str | None = "id") -> mw.TableWriter:
    """Four rows each in the base table, in a compacted SSTable that is still listed, in an SSTable and in memory."""
    table = create(uri, keyed(), primary_key=key)
    lance.write_dataset(pa.Table.from_pylist(ROWS[:4], schema=table.schema), uri, mode="append")
    writer = table.writer(compaction=None)
    writer.put(ROWS[4:8])
    writer.flush()
    compact_all(uri, trim=False)
    writer.put(ROWS[8:12])
    writer.flush()
    writer.put(ROWS[12:])
    return writer


Action = Callable[[mw.Table, mw.TableWriter | None], None]


def _flush(table: mw.Table, writer: mw.TableWriter | None) -> None:
    if writer is not None:
        writer.flush()
    else:
        table.shard_writer(SHARD).close()


def _flush_and_compact(table: mw.Table, writer: mw.TableWriter | None) -> None:
    _flush(table, writer)
    compact_all(table.uri, trim=False)


def _flush_compact_and_trim(table: mw.Table, writer: mw.TableWriter | None) -> None:
    _flush_and_compact(table, writer)
    trim_shard(table.uri, SHARD)


def _flush_compact_and_collect(table: mw.Table, writer: mw.TableWriter | None) -> None:
    """Compaction and collection by the table itself, without a grace period: SSTables and log entries are gone at once."""
    _flush(table, writer)
    table.compact()
    table.gc(grace_seconds=0)


def _take_over(table: mw.Table, writer: mw.TableWriter | None) -> None:
    """Another writer claims the shard and flushes what it replayed."""
    table.shard_writer(SHARD).close()


ACTIONS: dict[str, Action] = {
    "a flush": _flush,
    "a flush and a compaction": _flush_and_compact,
    "a flush, a compaction and a trim": _flush_compact_and_trim,
    "a flush, a compaction and a collection": _flush_compact_and_collect,
    "a takeover": _take_over,
}
READS: dict[str, Callable[[mw.Table], list[dict[str, Any]]]] = {
    "scan": lambda table: rows_of(table.scan()),
    "lookup": lambda table: rows_of(table.lookup([row["id"] for row in ROWS])),
    "count": lambda table: ROWS if table.count_rows() == len(ROWS) else [],
}


def _interrupted(uri: str, writer: mw.TableWriter | None, read: str, action: Action, at: int) -> list[dict[str, Any]]:
    """What `read` finds if the action happens before its request number `at`."""
    calls = 0

    def seen(name: str, path: str) -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            with ThreadPoolExecutor(1) as another:  # a call on top of another one in the same thread must not wait
                another.submit(action, mw.open_table(uri), writer).result()

    table = watched_table(uri, seen)
    table.details()
    calls = 0
    return READS[read](table)


def _requests(uri: str, read: str) -> int:
    """How many requests an undisturbed read makes."""
    calls: list[str] = []
    table = watched_table(uri, lambda name, path: calls.append(name))
    table.details()
    calls.clear()
    assert READS[read](table) == ROWS
    return len(calls)


@pytest.mark.scaled
@pytest.mark.timeout(scaled(ci=600, prove=0))
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("live", [True, False], ids=["memtables", "log tail"])
def test_no_row_is_missed_or_doubled_if_data_moves_between_two_requests(
    tmp_path: Path, action: str, live: bool
) -> None:
    reads = [("id", "scan"), (None, "scan"), ("id", "lookup"), ("id", "count"), (None, "count")]
    for key, read in reads[: scaled(ci=2, prove=5)]:
        requests = _requests_of(tmp_path / f"{read}-{key}", key, read, live=live)
        for at in range(1, requests + 1):
            CACHE.clear()
            uri = str(tmp_path / f"{read}-{key}-{at}")
            writer = _opened(uri, key, live=live)
            found = _interrupted(uri, writer, read, ACTIONS[action], at)
            assert found == ROWS, f"{read} of a table with key {key}, interrupted before request {at}"
            if writer is not None:
                writer.abort()
            assert rows_of(mw.open_table(uri).scan()) == ROWS
            shutil.rmtree(uri)


def _opened(uri: str, key: str | None, *, live: bool) -> mw.TableWriter | None:
    writer = _build(uri, key=key)
    if live:
        return writer
    writer.abort()
    return None


def _requests_of(place: Path, key: str | None, read: str, *, live: bool) -> int:
    writer = _opened(str(place), key, live=live)
    try:
        return _requests(str(place), read)
    finally:
        if writer is not None:
            writer.abort()


def test_a_read_asks_the_newest_tier_first(tmp_path: Path) -> None:
    """Manifests before the log's tail, both before the base version: the order in which nothing can be missed."""
    uri = str(tmp_path / "t")
    _build(uri).abort()
    asked: list[str] = []
    table = watched_table(uri, lambda name, path: asked.append(f"{name} {path}"))
    table.details()
    asked.clear()
    upsert_base(uri, pa.Table.from_pylist([ROWS[0]], schema=keyed()))  # a new version, which the read must meet last
    table.scan()

    def first(part: str) -> int:
        return next(i for i, call in enumerate(asked) if part in call)

    def last(part: str) -> int:
        return max(i for i, call in enumerate(asked) if part in call)

    manifests, log = paths.manifest_dir(SHARD), paths.wal_dir(SHARD)
    assert first(f"get {manifests}") < first(f"list_names {log}") < first(f"get {log}")
    assert last(f"get {log}") < last(f"list_names {manifests}")  # the cursor is looked at again
    assert any("_versions/" in call for call in asked)
    newest = f"_versions/{(1 << 64) - 1 - lance.dataset(uri).version}.manifest"
    assert last(newest) > last(f"list_names {manifests}")


def test_reading_writes_nothing(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    _build(uri).abort()
    before, epoch = files_below(uri), manifest_of(uri, SHARD).writer_epoch
    asked: set[str] = set()
    table = watched_table(uri, lambda name, path: asked.add(name))
    assert rows_of(table.scan()) == ROWS
    assert table.get(30) == ROWS[12]
    assert table.lookup([1, 11, 21, 31]).num_rows == 4
    assert table.count_rows("v > 1") == 8
    assert table.scan(consistency="flushed").explain()
    assert table.shards()
    assert table.transactions() == {SHARD: {}}
    assert asked <= {"get", "get_range", "get_tail", "head", "list", "list_names"}
    assert files_below(uri) == before
    assert manifest_of(uri, SHARD).writer_epoch == epoch


# ----------------------------------------------------------------------------------------------- what vanished meanwhile


@pytest.fixture
def _no_rows_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    CACHE.clear()
    monkeypatch.setattr("lance_memwal.read.merge.keeps_rows", lambda _: False)


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "opened before"])
@pytest.mark.usefixtures("_no_rows_kept")
def test_an_sstable_that_vanishes_before_the_first_batch_restarts_the_read(tmp_path: Path, warm: bool) -> None:
    uri = str(tmp_path / "t")
    with _build(uri) as writer:
        table = mw.open_table(uri)
        if warm:
            assert rows_of(table.scan()) == ROWS
        scans = [table.scan() for _ in range(3)]
        writer.flush()
        table.compact()
        table.gc(grace_seconds=0)
        assert rows_of(scans[0]) == ROWS
        assert scans[1].count_rows() == len(ROWS)
        assert "SSTable" not in scans[0].explain()
        assert sorted(scans[2].to_pandas()["id"]) == [row["id"] for row in ROWS]
        assert rows_of(table.lookup([row["id"] for row in ROWS])) == ROWS


def test_a_cached_sstable_needs_no_restart(tmp_path: Path) -> None:
    """A generation never changes: what was read of it stays right, also when the collector has removed it."""
    uri = str(tmp_path / "t")
    CACHE.clear()
    with _build(uri) as writer:
        table = mw.open_table(uri)
        assert rows_of(table.scan()) == ROWS
        scan = table.scan()
        writer.flush()
        table.compact()
        table.gc(grace_seconds=0)
        assert rows_of(scan) == ROWS


@pytest.mark.usefixtures("_no_rows_kept")
def test_an_sstable_that_vanishes_later_is_a_collected_error(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = create(uri)
    with table.writer(compaction=None) as writer:
        for generation in range(3):  # large rows: of a small file nothing is left to be read once it is open
            large = [os.urandom(500_000).hex() for _ in range(4)]
            writer.put([{"id": generation * 10 + i, "v": generation, "s": text} for i, text in enumerate(large)])
            writer.flush()
        stream = table.scan().to_batches()
        first = next(stream)
        assert first.num_rows == 4
        table.compact()
        table.gc(grace_seconds=0)
        with pytest.raises(mw.CollectedError, match="scan again"):
            list(stream)
        assert table.count_rows() == 12


@pytest.mark.usefixtures("_no_rows_kept")
def test_a_scan_holds_no_descriptor_per_sstable(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"))
    with table.writer(compaction=None) as writer:
        for generation in range(12):
            writer.put([{"id": generation, "v": generation, "s": os.urandom(200_000).hex()}])
            writer.flush()
    stream = mw.open_table(table.uri).scan().to_batches()
    next(stream)
    held = [os.readlink(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd") if _is_open(number)]
    assert sum("_gen_" in path for path in held) <= 4
    assert sum(batch.num_rows for batch in stream) == 11


def _is_open(number: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{number}")


@pytest.mark.usefixtures("_no_rows_kept")
def test_an_sstable_that_is_needed_and_gone_is_corruption_and_not_an_empty_answer(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = create(uri)
    with table.writer(compaction=None) as writer:
        writer.put([{"id": 1, "v": 1, "s": "x"}])
    shutil.rmtree(sstable_path(uri, SHARD, manifest_of(uri, SHARD).sstables[0]))
    for read in (lambda: table.scan().to_table(), lambda: table.get(1), lambda: table.lookup([1]), table.count_rows):
        with pytest.raises(mw.CorruptDataError, match="not there"):
            read()


@pytest.mark.usefixtures("_no_rows_kept")
def test_a_compacted_sstable_that_is_gone_is_not_missed(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    with create(uri).writer(compaction=None) as writer:
        writer.put([{"id": 1, "v": 1, "s": "x"}])
    compact_all(uri, trim=False)
    shutil.rmtree(sstable_path(uri, SHARD, manifest_of(uri, SHARD).sstables[0]))
    assert ids_of(mw.open_table(uri).scan()) == [1]
    assert mw.open_table(uri).get(1, ["v"]) == {"v": 1}


# ------------------------------------------------------------------------------------------------------- the log's tail


def _tail_of(uri: str, entries: int) -> mw.Table:
    table = create(uri)
    writer = table.writer(compaction=None)
    for i in range(entries):
        writer.put([{"id": i, "v": i, "s": "x"}])
    writer.abort()
    return table


def _entry(uri: str, position: int) -> str:
    return os.path.join(uri, paths.wal_entry_path(SHARD, position))


@pytest.mark.parametrize("position", [1, 2, 4])
def test_a_hole_in_the_log_is_corruption_and_never_the_tip(tmp_path: Path, position: int) -> None:
    table = _tail_of(str(tmp_path / "t"), 5)
    os.remove(_entry(table.uri, position))
    for read in (lambda: table.scan().to_table(), lambda: table.get(0), lambda: table.lookup([4]), table.count_rows):
        with pytest.raises(mw.CorruptDataError) as raised:
            read()
        assert raised.value.position == position
    assert table.count_rows(consistency="flushed") == 0


def test_a_hole_is_looked_at_twice_before_it_counts(tmp_path: Path) -> None:
    """The entry is back before the second look: nothing was wrong."""
    uri = str(tmp_path / "t")
    _tail_of(uri, 3)
    hidden = tmp_path / "hidden"
    os.rename(_entry(uri, 2), hidden)
    looks: list[str] = []

    def seen(name: str, path: str) -> None:
        if name == "get" and path == paths.wal_entry_path(SHARD, 2):
            looks.append(path)
            if len(looks) == 2:
                os.rename(hidden, _entry(uri, 2))

    assert ids_of(watched_table(uri, seen).scan()) == [0, 1, 2]
    assert len(looks) == 2


def test_a_damaged_entry_is_named_and_not_the_end_of_the_log(tmp_path: Path) -> None:
    table = _tail_of(str(tmp_path / "t"), 4)
    path = _entry(table.uri, 3)
    data = bytearray(Path(path).read_bytes())
    data[len(data) // 2] ^= 4
    Path(path).write_bytes(data)
    with pytest.raises(mw.CorruptDataError) as raised:
        table.scan().to_table()
    assert raised.value.position == 3


def test_collection_behind_the_cursor_during_a_read_is_no_hole(tmp_path: Path) -> None:
    """The entries vanish between the manifest and the log: the read starts over from the manifest that covers them."""
    uri = str(tmp_path / "t")
    _tail_of(uri, 5)
    done: list[str] = []

    def seen(name: str, path: str) -> None:
        if name == "get" and path == paths.wal_entry_path(SHARD, 3) and not done:
            done.append(path)
            table = mw.open_table(uri)
            table.shard_writer(SHARD).close()
            table.compact()
            table.gc(grace_seconds=0)

    assert ids_of(watched_table(uri, seen).scan()) == [0, 1, 2, 3, 4]
    assert done


# ----------------------------------------------------------------------------------------------------- writers nearby


def test_a_writer_that_was_superseded_by_another_process_is_not_believed(tmp_path: Path) -> None:
    """Its memory holds a row that the log never got."""
    uri = str(tmp_path / "t")
    table = _tail_of(uri, 1)
    slow = {"durable_write": False, "max_wal_flush_interval_ms": None, "max_wal_buffer_size": 0}
    writer = table.writer(compaction=None, **slow)
    writer.put([{"id": 1, "v": 1, "s": "only in memory"}])
    assert ids_of(table.scan()) == [0, 1]
    captured = writer.shard_writers[SHARD].in_memory_memtable_refs()
    with outside() as other:
        assert other.ask("shard_writer", uri, SHARD) == 3
        assert ids_of(table.scan()) == [0]
        assert ids_of(table.scan(in_memory=captured)) == [0]
        assert table.get(1) is None
        assert ids_of(table.lookup([0, 1])) == [0]
        assert ids_of(other.ask("scan", uri)) == [0]
    writer.abort()


@pytest.mark.parametrize("key", ["id", None])
def test_a_cursor_that_lags_behind_its_generations_doubles_nothing(tmp_path: Path, key: str | None) -> None:
    """pylance writes such manifests: the entries of a flushed generation lie above the cursor."""
    uri = str(tmp_path / "t")
    table = create(uri, keyed(), primary_key=key)
    with table.writer(compaction=None) as writer:
        writer.put([{"id": 1, "v": 1, "s": "x"}])
        writer.put([{"id": 2, "v": 1, "s": "x"}])
    newest = manifest_of(uri, SHARD)
    lagging = replace(newest, version=newest.version + 1, replay_after_wal_entry_position=0)
    path = os.path.join(uri, paths.manifest_path(SHARD, lagging.version))
    Path(path).write_bytes(encode_manifest(lagging))
    assert manifest_of(uri, SHARD).replay_after_wal_entry_position == 0
    assert ids_of(table.scan()) == [1, 2]
    assert table.count_rows() == 2
    with table.writer(compaction=None) as writer:
        writer.put([{"id": 3, "v": 1, "s": "x"}])
        assert ids_of(table.scan()) == [1, 2, 3]


def test_a_writer_without_memtables_is_read_through_its_log(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"))
    with table.shard_writer(enable_memtable=False) as writer:
        for i in range(3):
            writer.put([{"id": i, "v": i, "s": "x"}])
            assert ids_of(table.scan()) == list(range(i + 1))
            assert table.get(i, ["v"]) == {"v": i}
        assert "WAL tail" in table.scan().explain()


def test_the_newest_of_several_writers_in_this_process_is_used(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"))
    writers = []
    for i in range(4):
        writer = table.shard_writer()
        writer.put([{"id": i, "v": i, "s": "x"}, {"id": 100, "v": i, "s": "x"}])
        writers.append(writer)
        assert ids_of(table.scan()) == [*range(i + 1), 100]
        assert table.get(100, ["v"]) == {"v": i}
        assert "memtable" in table.scan().explain()
    for writer in writers:
        writer.abort()


# A snapshot that travels: pinned here, sent as bytes, rebuilt elsewhere with the same rows, or with an error that
# says why.

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


@pytest.fixture
def table(tmp_path: Path) -> mw.Table:
    """Row 1 in the base table, 2 in an SSTable, 3 in the log alone."""
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", writer_defaults={"fsync": False})
    put(table, 1)
    table.compact()
    put(table, 2)
    put(table, 3, flush=False)
    return table


def put(table: mw.Table, number: int, value: str = "old", *, flush: bool = True) -> None:
    writer = table.shard_writer(SHARD)
    writer.put(pa.table({"id": [number], "v": [value]}, schema=SCHEMA))
    writer.close() if flush else writer.abort()


def pinned(table: mw.Table, consistency: str = "fresh") -> bytes:
    return pickle.dumps(Reader(NewestBase(newest_base(table))).snapshot(consistency=consistency))  # type: ignore[arg-type]


def rows(data: bytes, table: mw.Table) -> dict[int, str]:
    snapshot: Snapshot = pickle.loads(data)
    found = Scan(lambda: tiers_of(resolve(table.uri), snapshot)).to_table()
    return dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))


def test_a_pin_that_was_sent_as_bytes_shows_what_was_there_whatever_comes_later(table: mw.Table) -> None:
    fresh, flushed = pinned(table), pinned(table, "flushed")
    assert rows(fresh, table) == {1: "old", 2: "old", 3: "old"}
    for number in (1, 2, 3, 4):
        put(table, number, "new")
    table.compact()
    assert rows(fresh, table) == {1: "old", 2: "old", 3: "old"}
    assert rows(flushed, table) == {1: "old", 2: "old"}
    assert rows(pinned(table), table) == {1: "new", 2: "new", 3: "new", 4: "new"}


def test_a_pin_holds_no_row(table: mw.Table) -> None:
    before = len(pinned(table))
    writer = table.shard_writer(SHARD)
    writer.put(pa.table({"id": range(10_000), "v": ["x" * 100] * 10_000}, schema=SCHEMA))
    writer.abort()
    assert len(pinned(table)) < before + 200


def test_a_pin_of_what_was_collected_says_so(table: mw.Table) -> None:
    data = pinned(table)
    put(table, 4)
    table.compact()
    table.gc(grace_seconds=0)
    with pytest.raises(mw.CollectedError, match="again"):
        rows(data, table)
