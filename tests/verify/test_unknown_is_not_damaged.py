"""What this version does not understand is reported as such, and repair never touches it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pyarrow.ipc as ipc
import pytest
from lance import blob_array, blob_field

import lance_memwal as mw
from lance_memwal.log.reading import list_positions
from lance_memwal.store import paths
from lance_memwal.store.location import resolve

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
SHARD = "aa48498d-ac91-59e2-8452-69f46010ace2"


def last_entry(table: mw.Table) -> Path:
    return Path(table.uri) / paths.wal_entry_path(SHARD, list_positions(resolve(table.uri), SHARD)[-1])


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
    table = int.from_bytes(data[8:12], "little")
    back = int.from_bytes(data[8 + table : 12 + table], "little", signed=True)
    slot = 8 + table - back + 4
    at = 8 + table + int.from_bytes(data[slot : slot + 2], "little")
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
    table = mw.create_table(
        str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=mw.Unsharded(), writer_defaults={"fsync": False}
    )
    writer = table.writer(compaction=None)
    writer.put({"id": [1], "v": ["a"]})
    writer.put({"id": [2], "v": ["b"]})
    writer.abort()
    path = last_entry(table)
    data = path.read_bytes()
    stream = data[: int.from_bytes(data[-28:-20], "little")]
    path.write_bytes(change(data if change is _newer_footer else stream))
    before = shard_files(table.uri)
    problems = table.verify().problems
    assert [problem.invariant for problem in problems] == ["V-12"]
    assert "not understood by this version" in problems[0].what
    assert table.repair(dry_run=False).actions == ()
    with pytest.raises(mw.UnsupportedFormatError):
        table.scan().to_table()
    refused = table.gc(grace_seconds=0).refused
    assert [problem.invariant for problem in refused[SHARD]] == ["V-12"]
    assert shard_files(table.uri) == before
