"""A log without a memtable in front ends a generation where small dictionaries are full, so that it can be flushed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.write.once import OnceAppender

SHARD = "11111111-2222-4333-8444-555555555555"
SMALL = pa.dictionary(pa.int8(), pa.string())
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("kind", SMALL)])
Append = Callable[[pa.RecordBatch], object]


def words(start: int, count: int = 100) -> pa.RecordBatch:
    """Rows with a word of their own each."""
    names = pa.array([f"word {k}" for k in range(start, start + count)], SMALL)
    return pa.record_batch([pa.array(range(start, start + count)), names], schema=SCHEMA)


def make(root: Path) -> mw.Table:
    options = {"writer_defaults": {"fsync": False}, "allow_keys_across_shards": True}
    return mw.create_table(str(root), SCHEMA, primary_key="id", sharding=mw.Manual(), **options)


def wal_only(root: Path) -> Append:
    return mw.ShardWriter.open(str(root), shard_id=SHARD, enable_memtable=False).put


def appender(root: Path) -> Append:
    return mw.WalAppender.open(str(root), SHARD, fsync=False).append


def once(root: Path) -> Append:
    opened = OnceAppender(str(root))
    claim = opened.claim(SHARD)
    return lambda batch: opened.append(claim, [batch])


WAYS = pytest.mark.parametrize("way", [wal_only, appender, once], ids=["WAL-only", "appender", "once"])


@WAYS
def test_a_tail_with_more_words_than_one_dictionary_counts_can_be_flushed(
    tmp_path: Path, way: Callable[[Path], Append]
) -> None:
    """Half of it is written by one owner of the log and half by the next, which counts what it finds."""
    table = make(tmp_path)
    for starts in ((0, 100), (200, 250)):
        append = way(tmp_path)
        for start in starts:
            append(words(start, 50))
            append(words(start, 50))
    table.flush(force=True)
    table.compact()
    read = {row["id"]: row["kind"] for row in lance.dataset(str(tmp_path)).to_table().to_pylist()}
    assert read == {k: f"word {k}" for start in (0, 100, 200, 250) for k in range(start, start + 50)}


@WAYS
def test_words_that_come_again_do_not_end_a_generation(tmp_path: Path, way: Callable[[Path], Append]) -> None:
    make(tmp_path)
    for _ in range(2):
        append = way(tmp_path)
        for start in (0, 60, 0, 60):
            append(words(start, 60))
    tailer = mw.WalTailer(str(tmp_path), SHARD)
    entries = [tailer.read_entry(position) for position in range(1, tailer.next_position())]
    assert {entry.generation for entry in entries if entry is not None and entry.batches} == {1}


@pytest.mark.parametrize("way", [appender, once], ids=["appender", "once"])
def test_rows_that_one_file_cannot_hold_are_refused(tmp_path: Path, way: Callable[[Path], Append]) -> None:
    make(tmp_path)
    if way is once:
        opened = OnceAppender(str(tmp_path))
        claim = opened.claim(SHARD)
        with pytest.raises(mw.InvalidInputError, match=r"column 'kind'.*split it"):
            opened.append(claim, [words(0), words(100)])
        return
    with pytest.raises(mw.InvalidInputError, match=r"column 'kind'.*split it"):
        mw.WalAppender.open(str(tmp_path), SHARD, fsync=False).append([words(0), words(100)])


@pytest.mark.parametrize("way", [appender, once], ids=["appender", "once"])
def test_null_structs_are_refused_where_files_cannot_store_them(tmp_path: Path, way: Callable[[Path], Append]) -> None:
    key = pa.field("id", pa.int64(), nullable=False, metadata={"lance-schema:unenforced-primary-key": "true"})
    schema = pa.schema(
        [
            key,
            pa.field("s", pa.struct([("a", pa.int32())])),
        ]
    )
    lance.write_dataset(schema.empty_table(), tmp_path, data_storage_version="2.0")
    table = mw.enable(str(tmp_path), sharding=mw.Manual(), allow_keys_across_shards=True)
    append = way(tmp_path)
    with pytest.raises(mw.InvalidInputError, match="column 's' holds a null struct"):
        append(pa.record_batch([pa.array([1]), pa.array([None], schema.field("s").type)], schema=schema))
    append(pa.record_batch([pa.array([1]), pa.array([{"a": 5}], schema.field("s").type)], schema=schema))
    append(pa.record_batch([pa.array([2]), pa.array([True])], names=["id", "_tombstone"]))
    table.flush(force=True)
    table.compact()
    assert lance.dataset(tmp_path).to_table().to_pylist() == [{"id": 1, "s": {"a": 5}}]
