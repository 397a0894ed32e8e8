"""`mw.from_lancedb`: tables of LanceDB get a write path, and LanceDB goes on reading them."""

from __future__ import annotations

from pathlib import Path

import lancedb
import pyarrow as pa
import pytest

import lance_memwal as mw

DOCS = pa.table(
    {"id": [1, 2], "text": ["one", "two"]},
    pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())]),
)


def test_a_table_of_lancedb_takes_small_writes_and_lancedb_sees_them_when_compacted(tmp_path: Path) -> None:
    theirs = lancedb.connect(tmp_path).create_table("docs", DOCS)
    table = mw.from_lancedb(theirs, primary_key="id")
    with table.writer(fsync=False) as writer:
        writer.put([{"id": 2, "text": "zwei"}, {"id": 3, "text": "drei"}])
        assert table.get(2) == {"id": 2, "text": "zwei"}
    table.settle(timeout=20, idle_seconds=0)
    theirs.checkout_latest()
    assert theirs.to_arrow().sort_by("id").column("text").to_pylist() == ["one", "zwei", "drei"]


def test_a_table_that_has_a_write_path_is_opened(tmp_path: Path) -> None:
    theirs = lancedb.connect(tmp_path).create_table("docs", DOCS)
    mw.from_lancedb(theirs, primary_key="id", sharding=mw.Bucket("id", 2))
    again = mw.from_lancedb(lancedb.connect(tmp_path).open_table("docs"))
    assert again.primary_key == ["id"]
    assert again.sharding == mw.Bucket("id", 2)
    assert mw.from_lancedb(theirs, primary_key=["id"]).primary_key == ["id"]
    with pytest.raises(mw.InvalidInputError, match="already"):
        mw.from_lancedb(theirs, primary_key="text")
    with pytest.raises(mw.InvalidInputError, match="already"):
        mw.from_lancedb(theirs, sharding=mw.Manual())


def test_what_is_no_table_of_a_directory_is_refused() -> None:
    with pytest.raises(mw.InvalidInputError, match="not str"):
        mw.from_lancedb("docs")
