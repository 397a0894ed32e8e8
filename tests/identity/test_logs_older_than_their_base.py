"""A log that is older than the base table (a backup that was copied in parts) takes no writes: they would be hidden.

Its next generation has a number that the base table calls compacted, so that readers would skip the SSTable.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.write.once import OnceAppender

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])


def put_and_compact(table: mw.Table, *keys: int) -> None:
    for key in keys:
        with table.writer(compaction=None) as writer:
            writer.put([{"id": key, "v": "x"}])
    table.compact()


@pytest.fixture(params=["older", "none"])
def restored(tmp_path: Path, request: pytest.FixtureRequest) -> mw.Table:
    """A copy whose log is that of an earlier moment than its base table, or is not there."""
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", writer_defaults={"fsync": False})
    put_and_compact(table, 1, 2)
    if request.param == "older":
        shutil.copytree(tmp_path / "t" / "_mem_wal", tmp_path / "c" / "_mem_wal")
    put_and_compact(table, 3, 4)
    shutil.copytree(tmp_path / "t", tmp_path / "c", ignore=shutil.ignore_patterns("_mem_wal"), dirs_exist_ok=True)
    return mw.open_table(str(tmp_path / "c"))


def test_a_writer_is_refused_and_reads_go_on(restored: mw.Table) -> None:
    assert restored.count_rows() == 4
    with restored.writer() as writer, pytest.raises(mw.TableReplacedError, match="older state than the base table"):
        writer.put([{"id": 5, "v": "lost"}])
    with pytest.raises(mw.TableReplacedError):
        restored.shard_writer()
    assert restored.count_rows() == 4


def test_a_sink_is_refused(restored: mw.Table) -> None:
    (shard,) = restored.details().compacted
    with pytest.raises(mw.TableReplacedError):
        OnceAppender(restored.uri).claim(shard)
