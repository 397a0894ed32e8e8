"""Repair brings back what it can and keeps every byte; accepted loss is written down; what is unsupported is not touched."""

from __future__ import annotations

import json
import shutil
import struct
import zlib
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.ipc as ipc
import pytest
from lance import blob_array, blob_field

import lance_memwal as mw
from lance_memwal import crash_points
from lance_memwal.cli import main
from lance_memwal.log.entry import decode_entry
from lance_memwal.log.reading import list_positions
from lance_memwal.store import paths
from lance_memwal.store.location import resolve
from lance_memwal.write.once import OnceAppender
from tests.kit.tables import compact_everything

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
SHARD = "aa48498d-ac91-59e2-8452-69f46010ace2"


def make(place: Path) -> mw.Table:
    return mw.create_table(str(place), SCHEMA, primary_key="id", writer_defaults={"fsync": False})


def ids(table: mw.Table) -> list[int]:
    return sorted(table.scan().to_table()["id"].to_pylist())


def _tear_last(table: mw.Table, keep: int) -> tuple[Path, bytes]:
    last = list_positions(resolve(table.uri), SHARD)[-1]
    path = Path(table.uri) / paths.wal_entry_path(SHARD, last)
    torn = path.read_bytes()[:keep]
    path.write_bytes(torn)
    return path, torn


@pytest.mark.parametrize("keep", [0, 1, 100, 500])
def test_a_torn_last_entry_is_put_aside_and_the_shard_opens_again(tmp_path: Path, keep: int) -> None:
    table = make(tmp_path / "t")
    writer = table.writer(compaction=None)
    writer.put({"id": [1], "v": ["a"]}, txn=("app", 4))
    writer.put({"id": [2], "v": ["b"]})
    writer.abort()
    path, torn = _tear_last(table, keep)
    with pytest.raises(mw.CorruptDataError):
        table.writer().put({"id": [3], "v": ["c"]})
    assert path.read_bytes() == torn

    planned = table.repair()
    assert [action.done for action in planned.actions] == [False]
    assert path.read_bytes() == torn

    done = table.repair(dry_run=False)
    assert [action.done for action in done.actions] == [True]
    assert done.problems == []
    aside = list((Path(table.uri) / paths.shard_dir(SHARD) / "memwal_quarantine").iterdir())
    assert [item.read_bytes() for item in aside] == [torn]
    mark = decode_entry(path.read_bytes())
    assert (mark.batches, mark.is_sentinel) == ((), False)
    assert table.verify().ok
    assert ids(table) == [1]
    with table.writer() as again:
        assert again.put({"id": [9], "v": ["z"]}, txn=("app", 4)).skipped
        again.put({"id": [3], "v": ["c"]})
    assert ids(table) == [1, 3]
    assert table.gc(grace_seconds=0).refused == {}
    assert [item.read_bytes() for item in aside] == [torn]


@pytest.mark.parametrize("damaged", [-1, 1], ids=["torn end", "accepted loss"])
def test_pylance_opens_a_repaired_shard(table: mw.Table, damaged: int) -> None:
    put(table, 1, 2, 3)
    damage(table, list_positions(resolve(table.uri), SHARD)[damaged])
    table.repair(dry_run=False, accept_loss=damaged > 0)
    peer = lance.dataset(table.uri).mem_wal_writer(SHARD)
    assert sorted(peer.lsm_scanner().to_table()["id"].to_pylist()) == ([1, 3] if damaged > 0 else [1, 2])
    peer.close()


def test_the_index_of_an_overwritten_base_comes_back_with_the_rows_of_the_shards(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    with table.writer(compaction=None) as writer:
        writer.put({"id": [1, 2], "v": ["old", "old"]})
        writer.flush()
        table.compact()
        writer.put({"id": [3], "v": ["sstable"]})
        writer.flush()
        writer.put({"id": [4], "v": ["tail"]})
        writer.abort()
    lance.write_dataset(
        pa.table({"id": [1, 50], "v": ["new", "new"]}, schema=table.schema), table.uri, mode="overwrite"
    )
    with pytest.raises(mw.InvalidInputError):
        mw.open_table(table.uri)
    broken = mw.open_table(table.uri, for_repair=True)
    assert not broken.verify().ok
    assert [action.done for action in broken.repair().actions] == [False]
    report = broken.repair(dry_run=False)
    assert [action.done for action in report.actions] == [True]
    assert report.problems == []
    again = mw.open_table(table.uri)
    rows = {row["id"]: row["v"] for row in again.scan().to_table().to_pylist()}
    assert rows == {1: "new", 50: "new", 3: "sstable", 4: "tail"}  # what was compacted before does not come back
    assert again.sharding == mw.Unsharded()
    again.flush(idle_seconds=0)
    again.compact()
    assert sorted(lance.dataset(table.uri).to_table()["id"].to_pylist()) == [1, 3, 4, 50]


def test_an_overwrite_with_other_columns_is_refused_with_the_reason(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    with table.writer() as writer:
        writer.put({"id": [1], "v": ["a"]})
    other = pa.schema([table.schema.field("id"), pa.field("v", pa.int64())])
    lance.write_dataset(other.empty_table(), table.uri, mode="overwrite")
    report = mw.open_table(table.uri, for_repair=True).repair(dry_run=False)
    assert [action.done for action in report.actions] == [False]
    assert "another type" in report.actions[0].what
    assert report.problems


def test_repair_of_a_sound_table_does_nothing(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    with table.writer() as writer:
        writer.put({"id": [1], "v": ["a"]})
    version = table.dataset.version
    report = table.repair(dry_run=False)
    assert (report.actions, report.problems) == ((), [])
    assert table.dataset.version == version


@pytest.fixture
def table(tmp_path: Path) -> mw.Table:
    return make(tmp_path / "t")


def put(table: mw.Table, *numbers: int) -> None:
    """Each number as an entry of its own, in no SSTable; the writer is gone then."""
    writer = table.writer(compaction=None)
    for number in numbers:
        writer.put({"id": [number], "v": ["x"]}, txn=("app", number))
    writer.abort()


def damage(table: mw.Table, position: int) -> bytes:
    path = Path(table.uri) / paths.wal_entry_path(SHARD, position)
    torn = path.read_bytes()[:200]
    path.write_bytes(torn)
    return torn


def test_without_a_word_nothing_is_given_up_and_a_dry_run_changes_nothing(table: mw.Table) -> None:
    put(table, 1, 2, 3)
    torn = damage(table, 2)
    report = table.repair(dry_run=False)
    assert report.actions == ()
    assert [(problem.invariant, problem.position) for problem in report.problems] == [("V-3", 2)]
    planned = table.repair(accept_loss=True)
    assert [action.done for action in planned.actions] == [False]
    assert "entry 2 is damaged, and rows that only this entry holds are lost" in planned.actions[0].what
    assert (Path(table.uri) / paths.wal_entry_path(SHARD, 2)).read_bytes() == torn
    with pytest.raises(mw.CorruptDataError):
        ids(table)


@pytest.mark.parametrize("by_command", [False, True])
def test_the_rest_opens_and_what_is_lost_is_written_down(
    table: mw.Table, capsys: pytest.CaptureFixture[str], by_command: bool
) -> None:
    put(table, 1, 2, 3)
    torn = damage(table, 2)
    if by_command:
        assert main(["repair", table.uri, "--accept-loss", "--apply", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["problems"] == []
        assert "rows that only this entry holds are lost" in told["actions"][0]["what"]
    else:
        done = table.repair(dry_run=False, accept_loss=True)
        assert [action.done for action in done.actions] == [True]
        assert done.problems == []
    assert table.verify().ok
    assert ids(table) == [1, 3]
    aside = Path(table.uri) / paths.shard_dir(SHARD) / "memwal_quarantine"
    (record,) = aside.glob("*.json")
    told = json.loads(record.read_text())
    assert (told["position"], told["size_bytes"], told["rows_are_in_sstables"]) == (2, len(torn), False)
    assert record.with_suffix("").read_bytes() == torn
    with table.writer() as writer:
        assert writer.put({"id": [1], "v": ["y"]}, txn=("app", 3)).skipped
        writer.put({"id": [4], "v": ["x"]})
    compact_everything(table)
    assert sorted(lance.dataset(table.uri).to_table()["id"].to_pylist()) == [1, 3, 4]
    assert table.gc(grace_seconds=0).refused == {}
    assert record.with_suffix("").read_bytes() == torn


def test_entries_of_later_epochs_stay_and_none_becomes_stale(table: mw.Table) -> None:
    put(table, 1, 2)
    put(table, 3, 4)
    put(table, 5, 6)
    damage(table, 2)
    table.repair(dry_run=False, accept_loss=True)
    mark = decode_entry((Path(table.uri) / paths.wal_entry_path(SHARD, 2)).read_bytes())
    assert (mark.batches, mark.writer_epoch, mark.is_sentinel) == ((), 2, False)
    assert ids(table) == [1, 3, 4, 5, 6]
    with table.writer(compaction=None):
        pass
    assert ids(table) == [1, 3, 4, 5, 6]


def test_a_damaged_sentinel_and_a_torn_end_are_given_up_together(table: mw.Table) -> None:
    put(table, 1)
    put(table, 2, 3)
    damage(table, 2)
    damage(table, list_positions(resolve(table.uri), SHARD)[-1])
    done = table.repair(dry_run=False, accept_loss=True)
    assert [action.done for action in done.actions] == [True, True]
    assert ids(table) == [1, 2]
    assert table.verify().ok


def test_a_generation_that_would_be_skipped_is_left_to_people(table: mw.Table) -> None:
    def stop(point: str) -> None:
        if point == "flush.before_commit":
            raise OSError("the flush never ends")

    writer = table.shard_writer(stats_log_interval_ms=None)
    writer.put({"id": [1], "v": ["x"]})
    crash_points.install(stop)
    try:
        writer.force_seal_active()
        writer.put({"id": [2], "v": ["x"]})
        writer.abort()
    finally:
        crash_points.install(None)
    torn = damage(table, 1)
    done = table.repair(dry_run=False, accept_loss=True)
    assert [action.done for action in done.actions] == [False]
    assert "cannot follow without it" in done.actions[0].what
    assert (Path(table.uri) / paths.wal_entry_path(SHARD, 1)).read_bytes() == torn


def last_entry(tailed: mw.Table) -> Path:
    return Path(tailed.uri) / paths.wal_entry_path(SHARD, list_positions(resolve(tailed.uri), SHARD)[-1])


def shard_files(uri: str) -> dict[str, bytes]:
    top = Path(uri) / paths.shard_dir(SHARD)
    return {str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()}


@pytest.fixture
def blob_table(tmp_path: Path) -> mw.Table:
    """A table of pylance with a Blob-v2 column and an acknowledged entry of pylance in its log."""
    key = pa.field("id", pa.int64(), False, {b"lance-schema:unenforced-primary-key": b"true"})
    schema = pa.schema([key, blob_field("b")])
    uri = str(tmp_path / "t")
    first = pa.table([pa.array([1]), blob_array([b"base"])], schema=schema)
    lance.write_dataset(first, uri, data_storage_version="2.2").initialize_mem_wal(unsharded=True)
    writer = lance.dataset(uri).mem_wal_writer(SHARD)
    writer.put(pa.table([pa.array([2, 3]), blob_array([b"x" * 1000, None])], schema=schema))
    copy = str(tmp_path / "copy")  # as it is while the writer lives: its close would flush the entry away
    shutil.copytree(uri, copy)
    writer.close()
    return mw.open_table(copy)


def test_a_blob_entry_that_does_not_say_where_its_blobs_are_is_not_touched(blob_table: mw.Table) -> None:
    path = last_entry(blob_table)
    assert blob_table.verify().ok
    path.write_bytes(path.read_bytes().replace(b"mem_wal_target_data_file", b"mem_wal_target_datafiles"))
    before = shard_files(blob_table.uri)
    found = blob_table.verify().problems
    assert [(problem.invariant, problem.position) for problem in found] == [("V-12", 1)]
    assert "not understood by this version" in found[0].what
    report = blob_table.repair(dry_run=False)
    assert (report.actions, [problem.invariant for problem in report.problems]) == ((), ["V-12"])
    assert shard_files(blob_table.uri) == before
    with pytest.raises(mw.UnsupportedFormatError) as caught:
        blob_table.scan().to_table()
    assert caught.value.position == 1


def _stream(schema: pa.Schema, batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _other_metadata_version(data: bytes) -> bytes:
    """The version is a number of two bytes in the flatbuffer of the first message."""
    tailed = int.from_bytes(data[8:12], "little")
    back = int.from_bytes(data[8 + tailed : 12 + tailed], "little", signed=True)
    slot = 8 + tailed - back + 4
    at = 8 + tailed + int.from_bytes(data[slot : slot + 2], "little")
    return data[:at] + (9).to_bytes(2, "little") + data[at + 2 :]


def _without_epoch(data: bytes) -> bytes:
    with ipc.open_stream(data) as reader:
        batch = reader.read_next_batch()
    return _stream(batch.schema.remove_metadata(), batch)


def _newer_footer(data: bytes) -> bytes:
    return data[:-9] + b"?MWALEND2"


def _other_column_type(data: bytes) -> bytes:
    """Of a type that an older Lance class refuses: what Blob v2 is to a reader of today."""
    with ipc.open_stream(data) as reader:
        batch, schema = reader.read_next_batch(), reader.schema
    named = {"ARROW:extension:name": "lance.blob.v2", "ARROW:extension:metadata": ""}
    changed = schema.set(1, pa.field("v", pa.string(), metadata=named))
    return _stream(changed, pa.RecordBatch.from_arrays(batch.columns, schema=changed))


@pytest.mark.parametrize("change", [_other_metadata_version, _without_epoch, _newer_footer, _other_column_type])
def test_an_entry_that_is_whole_but_unknown_stays_as_it_is(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    tailed = mw.create_table(
        str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=mw.Unsharded(), writer_defaults={"fsync": False}
    )
    writer = tailed.writer(compaction=None)
    writer.put({"id": [1], "v": ["a"]})
    writer.put({"id": [2], "v": ["b"]})
    writer.abort()
    path = last_entry(tailed)
    data = path.read_bytes()
    stream = data[: int.from_bytes(data[-28:-20], "little")]
    path.write_bytes(change(data if change is _newer_footer else stream))
    before = shard_files(tailed.uri)
    problems = tailed.verify().problems
    assert [problem.invariant for problem in problems] == ["V-12"]
    assert "not understood by this version" in problems[0].what
    assert tailed.repair(dry_run=False).actions == ()
    with pytest.raises(mw.UnsupportedFormatError):
        tailed.scan().to_table()
    refused = tailed.gc(grace_seconds=0).refused
    assert [problem.invariant for problem in refused[SHARD]] == ["V-12"]
    assert shard_files(tailed.uri) == before


@pytest.fixture
def tailed(tmp_path: Path) -> mw.Table:
    """A table with a published generation and a tail of two entries."""
    tailed = mw.create_table(
        str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=mw.Unsharded(), writer_defaults={"fsync": False}
    )
    writer = tailed.writer(compaction=None)
    for number in (1, 2, 3):
        writer.put({"id": [number], "v": ["a"]})
        if number == 1:
            writer.flush()
    writer.abort()
    return tailed


def rewrite(
    path: Path,
    *,
    column: pa.Field | None = None,
    metadata: dict[str, str] | None = None,
    footer: dict[str, Any] | None = None,
) -> None:
    """The entry as a newer version would have written it, checksums and all."""
    data = path.read_bytes()
    stream_length, extension_length, _ = struct.unpack_from("<QII", data, len(data) - 28)
    extension = data[stream_length : stream_length + extension_length]
    with ipc.open_stream(data[:stream_length]) as reader:
        batch, schema = reader.read_next_batch(), reader.schema
    if column is not None:
        at = len(schema) - 1
        batch = batch.add_column(at, column, pa.array([7] * batch.num_rows, column.type))
        schema = schema.insert(at, column)
    schema = schema.with_metadata({**(schema.metadata or {}), **{k.encode(): v for k, v in (metadata or {}).items()}})
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
    stream = bytes(sink.getvalue())
    if footer is not None:
        extension = json.dumps({**json.loads(extension or b"{}"), **footer}).encode()
    fixed = struct.pack("<QII", len(stream), len(extension), zlib.crc32(stream))
    path.write_bytes(stream + extension + fixed + struct.pack("<I", zlib.crc32(extension + fixed)) + b"MWALEND1")


def newer_manifest(tailed: mw.Table) -> None:
    store = mw.ShardManifestStore(tailed.uri, SHARD)
    path = Path(tailed.uri) / paths.manifest_path(SHARD, store.list_versions()[-1])
    path.write_bytes(path.read_bytes() + b"\xa2\x1f\x03abc")


WITH_ID = pa.field("later", pa.int64(), metadata={"lance:field_id": "900"})
CHANGES: dict[str, Callable[[mw.Table], None]] = {
    "a system column": lambda tailed: rewrite(last_entry(tailed), column=pa.field("__wal_row_id", pa.int64())),
    "a column that the table never had": lambda tailed: rewrite(last_entry(tailed), column=WITH_ID),
    "metadata": lambda tailed: rewrite(last_entry(tailed), metadata={"newer": "thing"}),
    "a footer key": lambda tailed: rewrite(last_entry(tailed), footer={"newer": [1, 2]}),
    "a manifest field": newer_manifest,
}
WRITERS: dict[str, Callable[[mw.Table], object]] = {
    "shard writer": lambda tailed: tailed.shard_writer(),
    "log writer": lambda tailed: tailed.shard_writer(enable_memtable=False),
    "appender": lambda tailed: mw.WalAppender.open(tailed.uri, SHARD),
    "once appender": lambda tailed: OnceAppender(tailed.uri).claim(SHARD),
    "tail flush": lambda tailed: tailed.flush(idle_seconds=0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_it_is_read_with_a_warning_and_not_written(tailed: mw.Table, change: str) -> None:
    CHANGES[change](tailed)
    shard = Path(tailed.uri) / paths.shard_dir(SHARD)
    before = {path: path.read_bytes() for path in shard.rglob("*") if path.is_file()}
    with pytest.warns(UserWarning, match="does not understand"):
        assert sorted(tailed.scan().to_table()["id"].to_pylist()) == [1, 2, 3]
    for name, write in WRITERS.items():
        with pytest.raises(mw.UnsupportedFormatError, match="can be read, but not written"):
            write(tailed)
        assert {path: path.read_bytes() for path in shard.rglob("*") if path.is_file()} == before, name
    problems = tailed.verify().problems
    assert [problem.invariant for problem in problems] == ["V-12"]
    assert "not understood by this version" in problems[0].what
    assert tailed.repair(dry_run=False).actions == ()
    assert list(tailed.gc(grace_seconds=0).refused) == [SHARD]
    assert {path: path.read_bytes() for path in shard.rglob("*") if path.is_file()} == before


def test_the_compactor_trims_such_a_shard_and_keeps_what_it_does_not_know(tailed: mw.Table) -> None:
    newer_manifest(tailed)
    assert tailed.compact().generations == 1
    manifest = mw.ShardManifestStore(tailed.uri, SHARD).read_latest()
    assert manifest is not None
    assert (manifest.sstables, manifest.unknown) == ((), b"\xa2\x1f\x03abc")


@pytest.mark.parametrize("in_files", [True, False])
def test_a_column_that_was_dropped_is_known(tmp_path: Path, in_files: bool) -> None:
    wide = SCHEMA.append(pa.field("old", pa.int64()))
    tailed = mw.create_table(str(tmp_path / "t"), wide, primary_key="id", sharding=mw.Unsharded())
    with tailed.writer(compaction=None) as writer:
        if in_files:
            writer.put({"id": [1], "v": ["a"], "old": [1]})
            writer.flush()
            tailed.compact()
        writer.put({"id": [2], "v": ["b"], "old": [2]})
        writer.abort()
    lance.dataset(tailed.uri).drop_columns(["old"])
    again = mw.open_table(tailed.uri)
    assert 2 in again.scan().to_table()["id"].to_pylist()
    with again.shard_writer() as shard:
        shard.put({"id": [3], "v": ["c"]})
    assert again.verify().ok


def test_a_column_that_the_table_had_and_forgot_is_not_unknown_once_its_entries_are_flushed(tmp_path: Path) -> None:
    """Clean-up removes the versions that had it: nothing says any more that there was such a column."""
    tailed = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", writer_defaults={"fsync": False})
    tailed.dataset.add_columns(pa.field("more", pa.int64()))
    with tailed.writer(compaction=None) as writer:
        writer.put([{"id": 1, "v": "a", "more": 5}])
    tailed.dataset.drop_columns(["more"])
    tailed.maintain(versions=timedelta(0), grace_seconds=0)
    assert tailed.verify().problems == []
    assert tailed.gc(grace_seconds=0).refused == {}
    assert tailed.scan().to_table().to_pylist() == [{"id": 1, "v": "a"}]
