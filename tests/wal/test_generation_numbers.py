"""Entries are numbered so that every replay takes them: no number falls, none is skipped, no generation grows too large."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import lance
import pyarrow as pa
import pyarrow.ipc as ipc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lance_memwal as mw
from lance_memwal import WalAppender
from lance_memwal.config import WriterConfig
from lance_memwal.log.tail import LogRun
from lance_memwal.write.once import OnceAppender
from tests.kit.logs import SHARD, entry_bytes, flushed, lance_table, manifests_at, place, put_entry, read_all, rows
from tests.kit.writers import enabled_table


def numbers(uri: str) -> list[int | None]:
    return [entry.generation for entry in read_all(uri) if entry.batches]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"max_memtable_rows": 5}, [1, 1, 2, 2, 3, 3]),
        ({"max_memtable_rows": 1}, [1, 2, 3, 4, 5, 6]),
        ({"max_memtable_batches": 3}, [1, 1, 1, 2, 2, 2]),
        ({"max_memtable_size": 1}, [1, 2, 3, 4, 5, 6]),
        ({}, [1, 1, 1, 1, 1, 1]),
    ],
    ids=str,
)
def test_number_rises_before_memtable_limits(limits: dict[str, int], expected: list[int], tmp_path: Path) -> None:
    uri = lance_table(tmp_path, **limits)
    writer = WalAppender.open(uri, SHARD, fsync=False)
    for number in range(6):
        writer.append(rows(2 * number, 2 * number + 1))
    assert numbers(uri) == expected


def test_one_entry_that_is_larger_than_the_limits_is_a_generation_of_its_own(tmp_path: Path) -> None:
    uri = lance_table(tmp_path, max_memtable_rows=3)
    writer = WalAppender.open(uri, SHARD, fsync=False)
    for count in (1, 10, 1, 1, 10):
        writer.append(rows(*range(count)))
    assert numbers(uri) == [1, 2, 3, 3, 4]


def test_numbering_goes_on_where_the_predecessor_stopped(tmp_path: Path) -> None:
    uri = lance_table(tmp_path, max_memtable_rows=4)
    for _ in range(3):
        writer = WalAppender.open(uri, SHARD, fsync=False)
        writer.append(rows(1, 2, 3))
    assert numbers(uri) == [1, 2, 3]
    WalAppender.open(uri, SHARD, fsync=False).append(rows(4))
    assert numbers(uri) == [1, 2, 3, 3]


def test_numbering_starts_above_what_is_flushed(tmp_path: Path) -> None:
    uri = lance_table(tmp_path, max_memtable_rows=4)
    writer = WalAppender.open(uri, SHARD, fsync=False)
    writer.append(rows(1, 2, 3))
    flushed(place(tmp_path), 1)
    WalAppender.open(uri, SHARD, fsync=False).append(rows(4))
    assert numbers(uri) == [1, 2]


def test_flushed_entries_above_a_lagging_cursor_do_not_count(tmp_path: Path) -> None:
    """Another implementation may publish a generation and leave the cursor behind."""
    location = place(tmp_path)
    uri = lance_table(tmp_path, max_memtable_rows=4)
    writer = WalAppender.open(uri, SHARD, fsync=False)
    for number in range(4):
        writer.append(rows(number))
    flushed(location, 2)
    WalAppender.open(uri, SHARD, fsync=False).append(rows(9))
    assert numbers(uri) == [1, 1, 1, 1, 2]


def _without_number(data: bytes) -> bytes:
    """The rows as a writer stores them that numbers nothing and knows no footer."""
    with ipc.open_stream(data) as reader:
        batch, schema = reader.read_next_batch(), reader.schema.with_metadata({"writer_epoch": "1"})
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
    return bytes(sink.getvalue())


def test_entries_without_a_number_belong_to_the_run_that_they_follow(tmp_path: Path) -> None:
    location = place(tmp_path)
    uri = lance_table(tmp_path, max_memtable_rows=4)
    manifests_at(location).claim_epoch()
    put_entry(location, 1, _without_number(entry_bytes(1, 1, 2, 3)))
    assert numbers(uri) == [None]
    WalAppender.open(uri, SHARD, fsync=False).append(rows(4, 5))
    assert numbers(uri) == [None, 2]


@settings(deadline=None)
@given(
    entries=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4), st.integers(1, 100)), max_size=60),
    rows_limit=st.integers(1, 20),
    batches_limit=st.integers(1, 8),
    bytes_limit=st.integers(1, 400),
)
def test_numbers_never_fall_never_skip_and_no_run_passes_its_limits_in_several_entries(
    entries: list[tuple[int, int, int]], rows_limit: int, batches_limit: int, bytes_limit: int
) -> None:
    limits = WriterConfig(
        max_memtable_rows=rows_limit, max_memtable_batches=batches_limit, max_memtable_size=bytes_limit
    )
    run = LogRun(3)
    given_numbers = [run.add(*entry, limits) for entry in entries]
    assert given_numbers[:1] in ([], [3])
    assert all(after - before in (0, 1) for before, after in pairwise(given_numbers))
    for number in set(given_numbers):
        members = [entry for entry, found in zip(entries, given_numbers, strict=True) if found == number]
        if len(members) > 1:
            assert sum(rows for rows, _, _ in members) <= rows_limit
            assert sum(batches for _, batches, _ in members) <= batches_limit
            assert sum(size for _, _, size in members[:-1]) < bytes_limit


SMALL = pa.dictionary(pa.int8(), pa.string())
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("kind", SMALL)])
Append = Callable[[pa.RecordBatch], object]


def words(start: int, count: int = 100) -> pa.RecordBatch:
    """Rows with a word of their own each."""
    names = pa.array([f"word {k}" for k in range(start, start + count)], SMALL)
    return pa.record_batch([pa.array(range(start, start + count)), names], schema=SCHEMA)


def make(root: Path) -> mw.Table:
    return enabled_table(root, SCHEMA, primary_key="id", writer_defaults={"fsync": False})


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
def test_tail_with_more_words_than_a_dictionary_is_flushed(tmp_path: Path, way: Callable[[Path], Append]) -> None:
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
    schema = pa.schema([key, pa.field("s", pa.struct([("a", pa.int32())]))])
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
