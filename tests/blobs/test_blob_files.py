"""What `get_blob` returns is a file: it reads ranges, and says when it cannot."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from tests.kit.blobs import IMAGE, blob_rows, blob_table

LARGE = os.urandom(3 << 20)


@pytest.fixture(params=["memtable", "tail", "SSTable", "base table"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """One large blob, in each of the tiers."""
    table = blob_table(tmp_path, {1: b"old"})
    writer = table.writer(compaction=None, fsync=False)
    writer.put(blob_rows({1: LARGE}))
    if request.param == "tail":
        writer.abort()
    if request.param in ("SSTable", "base table"):
        writer.flush()
    if request.param == "base table":
        table.compact()
    found = table.get_blob(1, "image")
    yield found
    found.close()
    writer.abort()


def test_a_range_is_read_wherever_the_blob_is(file: Any) -> None:
    assert [file.readable(), file.seekable(), file.writable()] == [True, True, False]
    assert file.size() == len(LARGE)
    assert file.read(10) == LARGE[:10]
    assert file.tell() == 10
    assert file.seek(5, io.SEEK_CUR) == 15
    assert file.read(1 << 20) == LARGE[15 : 15 + (1 << 20)]
    assert file.seek(-7, io.SEEK_END) == len(LARGE) - 7
    assert file.read() == LARGE[-7:]
    assert file.read() == b""
    assert file.seek(len(LARGE) + 100) == len(LARGE) + 100
    assert file.read(1) == b""
    file.seek(0)
    target = bytearray(4)
    assert file.readinto(target) == 4
    assert bytes(target) == LARGE[:4]
    with pytest.raises(ValueError, match="before its first"):
        file.seek(-1)


def test_a_closed_file_reads_nothing(file: Any) -> None:
    with file as opened:
        assert opened.read(2) == LARGE[:2]
    assert file.closed
    assert "closed" in repr(file)
    for use in (file.read, file.tell, lambda: file.seek(0)):
        with pytest.raises(ValueError, match="closed"):
            use()


def test_a_file_can_be_given_to_others(file: Any) -> None:
    reader = io.BufferedReader(file)
    assert reader.read(100) == LARGE[:100]
    assert reader.peek(1)[:1] == LARGE[100:101]


def test_a_file_of_a_memtable_outlives_the_memtable(tmp_path: Path) -> None:
    table = blob_table(tmp_path, {1: b"old"})
    with table.writer(compaction=None, fsync=False) as writer:
        writer.put(blob_rows({1: LARGE}))
        found = writer.get_blob(1, "image")
    assert found is not None
    assert found.read() == LARGE


def test_a_file_whose_row_was_collected_says_so(tmp_path: Path) -> None:
    table = blob_table(tmp_path, {1: b"old"})
    with table.writer(compaction=None, fsync=False) as writer:
        writer.put(blob_rows({1: LARGE}))
    found = table.get_blob(1, "image")
    table.compact()
    table.gc(grace_seconds=0)
    with pytest.raises(mw.CollectedError, match="again"):
        found.read()
    assert table.get_blob(1, "image").read() == LARGE


def test_a_file_of_a_base_version_that_was_cleaned_up_says_so(tmp_path: Path) -> None:
    from datetime import timedelta

    table = blob_table(tmp_path, {1: LARGE, 2: b"x"})
    found = table.get_blob(1, "image")
    table.dataset.delete("id = 1")
    dataset = lance.dataset(table.uri)
    dataset.optimize.compact_files()
    lance.dataset(table.uri).cleanup_old_versions(timedelta(0))
    with pytest.raises(mw.CollectedError, match="again"):
        found.read()
    assert table.get_blob(1, "image") is None


def test_only_blob_columns_have_files(tmp_path: Path) -> None:
    table = blob_table(tmp_path, {1: b"old"})
    with pytest.raises(mw.InvalidInputError, match=r"'n' is not a blob column.*image"):
        table.get_blob(1, "n")
    with pytest.raises(mw.InvalidInputError, match="'id'"):
        table.get_blob(None, "image")


def test_a_composite_key_finds_its_blob(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("a", pa.string(), False), pa.field("b", pa.int32(), False), IMAGE])
    table = mw.create_table(str(tmp_path / "t"), schema, primary_key=["a", "b"], sharding=mw.Bucket("b", 3))
    with table.writer(compaction=None, fsync=False) as writer:
        writer.put([{"a": "x", "b": i, "image": b"%d" % i} for i in range(9)])
        for _ in range(3):
            assert [table.get_blob(("x", i), "image").read() for i in range(9)] == [b"%d" % i for i in range(9)]
            assert table.get_blob({"a": "y", "b": 1}, "image") is None
            if _:
                table.compact()
            writer.flush()
