"""A shard that holds what this version does not understand is read with a warning and not written: nobody is fenced for it."""

from __future__ import annotations

import json
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

import lance_memwal as mw
from lance_memwal.log.reading import list_positions
from lance_memwal.store import paths
from lance_memwal.store.location import resolve
from lance_memwal.write.once import OnceAppender

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
SHARD = "aa48498d-ac91-59e2-8452-69f46010ace2"


@pytest.fixture
def table(tmp_path: Path) -> mw.Table:
    """A table with a published generation and a tail of two entries."""
    table = mw.create_table(
        str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=mw.Unsharded(), writer_defaults={"fsync": False}
    )
    writer = table.writer(compaction=None)
    for number in (1, 2, 3):
        writer.put({"id": [number], "v": ["a"]})
        if number == 1:
            writer.flush()
    writer.abort()
    return table


def last_entry(table: mw.Table) -> Path:
    return Path(table.uri) / paths.wal_entry_path(SHARD, list_positions(resolve(table.uri), SHARD)[-1])


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


def newer_manifest(table: mw.Table) -> None:
    store = mw.ShardManifestStore(table.uri, SHARD)
    path = Path(table.uri) / paths.manifest_path(SHARD, store.list_versions()[-1])
    path.write_bytes(path.read_bytes() + b"\xa2\x1f\x03abc")


WITH_ID = pa.field("later", pa.int64(), metadata={"lance:field_id": "900"})
CHANGES: dict[str, Callable[[mw.Table], None]] = {
    "a system column": lambda table: rewrite(last_entry(table), column=pa.field("__wal_row_id", pa.int64())),
    "a column that the table never had": lambda table: rewrite(last_entry(table), column=WITH_ID),
    "metadata": lambda table: rewrite(last_entry(table), metadata={"newer": "thing"}),
    "a footer key": lambda table: rewrite(last_entry(table), footer={"newer": [1, 2]}),
    "a manifest field": newer_manifest,
}
WRITERS: dict[str, Callable[[mw.Table], object]] = {
    "shard writer": lambda table: table.shard_writer(),
    "log writer": lambda table: table.shard_writer(enable_memtable=False),
    "appender": lambda table: mw.WalAppender.open(table.uri, SHARD),
    "once appender": lambda table: OnceAppender(table.uri).claim(SHARD),
    "tail flush": lambda table: table.flush(idle_seconds=0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_it_is_read_with_a_warning_and_not_written(table: mw.Table, change: str) -> None:
    CHANGES[change](table)
    shard = Path(table.uri) / paths.shard_dir(SHARD)
    before = {path: path.read_bytes() for path in shard.rglob("*") if path.is_file()}
    with pytest.warns(UserWarning, match="does not understand"):
        assert sorted(table.scan().to_table()["id"].to_pylist()) == [1, 2, 3]
    for name, write in WRITERS.items():
        with pytest.raises(mw.UnsupportedFormatError, match="can be read, but not written"):
            write(table)
        assert {path: path.read_bytes() for path in shard.rglob("*") if path.is_file()} == before, name
    problems = table.verify().problems
    assert [problem.invariant for problem in problems] == ["V-12"]
    assert "not understood by this version" in problems[0].what
    assert table.repair(dry_run=False).actions == ()
    assert list(table.gc(grace_seconds=0).refused) == [SHARD]
    assert {path: path.read_bytes() for path in shard.rglob("*") if path.is_file()} == before


def test_the_compactor_trims_such_a_shard_and_keeps_what_it_does_not_know(table: mw.Table) -> None:
    newer_manifest(table)
    assert table.compact().generations == 1
    manifest = mw.ShardManifestStore(table.uri, SHARD).read_latest()
    assert manifest is not None
    assert (manifest.sstables, manifest.unknown) == ((), b"\xa2\x1f\x03abc")


@pytest.mark.parametrize("in_files", [True, False])
def test_a_column_that_was_dropped_is_known(tmp_path: Path, in_files: bool) -> None:
    wide = SCHEMA.append(pa.field("old", pa.int64()))
    table = mw.create_table(str(tmp_path / "t"), wide, primary_key="id", sharding=mw.Unsharded())
    with table.writer(compaction=None) as writer:
        if in_files:
            writer.put({"id": [1], "v": ["a"], "old": [1]})
            writer.flush()
            table.compact()
        writer.put({"id": [2], "v": ["b"], "old": [2]})
        writer.abort()
    lance.dataset(table.uri).drop_columns(["old"])
    again = mw.open_table(table.uri)
    assert 2 in again.scan().to_table()["id"].to_pylist()
    with again.shard_writer() as shard:
        shard.put({"id": [3], "v": ["c"]})
    assert again.verify().ok


def test_a_column_that_the_table_had_and_forgot_is_not_unknown_once_its_entries_are_flushed(tmp_path: Path) -> None:
    """Clean-up removes the versions that had it: nothing says any more that there was such a column."""
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", writer_defaults={"fsync": False})
    table.dataset.add_columns(pa.field("more", pa.int64()))
    with table.writer(compaction=None) as writer:
        writer.put([{"id": 1, "v": "a", "more": 5}])
    table.dataset.drop_columns(["more"])
    table.maintain(versions=timedelta(0), grace_seconds=0)
    assert table.verify().problems == []
    assert table.gc(grace_seconds=0).refused == {}
    assert table.scan().to_table().to_pylist() == [{"id": 1, "v": "a"}]
