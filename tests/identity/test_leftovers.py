"""Shards that an earlier table left behind are not given to a new one unasked."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import lance_memwal as mw
from tests.kit.identity import make, row, shown


def _remove_base(uri: str) -> None:
    for part in Path(uri).iterdir():
        if part.name != "_mem_wal":
            shutil.rmtree(part)


@pytest.mark.parametrize("flushed", [True, False])
def test_a_table_is_not_created_over_shards_that_hold_rows(tmp_path: Path, flushed: bool) -> None:
    uri = str(tmp_path / "t")
    writer = make(uri).writer(compaction=None)
    writer.put(row(1))
    if flushed:
        writer.flush()
    writer.abort()
    _remove_base(uri)
    with pytest.raises(mw.InvalidInputError, match="remove its _mem_wal"):
        make(uri, 7)
    assert [part.name for part in Path(uri).iterdir()] == ["_mem_wal"]
    shutil.rmtree(Path(uri) / "_mem_wal")
    assert shown(make(uri, 7)) == [7]


def test_shards_without_rows_are_no_leftovers_and_miss_nothing(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = make(uri)
    with table.writer(compaction=None) as writer:
        writer.put(row(1))
    table.compact()
    _remove_base(uri)
    anew = make(uri, 7)
    assert shown(anew) == [7]
    with anew.writer(compaction=None) as writer:
        writer.put(row(8))
    anew.compact()
    assert shown(anew) == [7, 8]
    assert anew.verify().problems == []
