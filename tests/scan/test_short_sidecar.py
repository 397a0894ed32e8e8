"""An SSTable whose sidecar and deletion vector lack its last rows.

pylance's writer publishes such a generation when a flush overtakes the update of its key index: the data file holds every
row, the sidecar only those that were indexed by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.sstable import sidecar, write

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])


def short(columns: Sequence[pa.Array]) -> sidecar.SortedKeys:
    """What an index knows that has taken in the first two rows."""
    known = sidecar.sort_keys([column.slice(0, 2) for column in columns])
    return sidecar.SortedKeys(known.values, known.stored, known.order, np.empty(0, np.int64))


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> mw.Table:
    """Generation 1 with a short sidecar (rows 1, 2, 3, and a newer 1), generation 2 that replaces 2 and deletes 3."""
    made = mw.create_table(str(tmp_path / "table"), SCHEMA, primary_key="id", sharding=mw.Unsharded())
    with made.writer(compaction=None, fsync=False) as writer:
        for key, value in ((1, "old"), (2, "old"), (3, "old"), (1, "new")):
            writer.put({"id": [key], "v": [value]})
        with monkeypatch.context() as patch:
            patch.setattr(write, "sort_keys", short)
            writer.flush()
        writer.put({"id": [2], "v": ["newer"]})
        writer.delete([3])
        writer.flush()
    return made


def test_every_read_gives_the_newest_row_of_every_key(table: mw.Table) -> None:
    assert sorted((row["id"], row["v"]) for row in table.scan().to_table().to_pylist()) == [(1, "new"), (2, "newer")]
    assert table.count_rows() == 2
    assert table.get(1) == {"id": 1, "v": "new"}
    assert table.get(3) is None
    assert sorted(table.lookup([1, 2, 3])["v"].to_pylist()) == ["new", "newer"]
    assert table.scan(filter="v = 'old'").to_table().num_rows == 0


def test_compaction_gives_the_newest_row_of_every_key(table: mw.Table) -> None:
    table.compact()
    assert sorted((row["id"], row["v"]) for row in table.dataset.to_table().to_pylist()) == [(1, "new"), (2, "newer")]


def test_verify_says_what_the_sidecar_lacks(table: mw.Table) -> None:
    assert any("sidecar" in str(problem) for problem in table.verify().problems)
