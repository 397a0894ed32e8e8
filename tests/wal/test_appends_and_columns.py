"""An append is of one version of the table: what another thread of the process learns meanwhile is not mixed into it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.write.once import OnceAppender

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
SHARD = mw.shard_id_for(mw.Unsharded())


@pytest.mark.parametrize("max_entry_bytes", [None, 10], ids=["an entry", "a generation"])
def test_columns_that_come_while_an_append_is_made_are_not_mixed_into_it(
    tmp_path: Path, max_entry_bytes: int | None
) -> None:
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", writer_defaults={"fsync": False})
    appender = OnceAppender(table.location, max_entry_bytes=max_entry_bytes)
    claim = appender.claim(SHARD)
    rows = [pa.record_batch({"id": [1], "v": ["a"]})]

    def meanwhile(_: int) -> None:
        if "n" not in table.schema.names:
            table.dataset.add_columns(pa.schema([pa.field("n", pa.int64())]))
            appender.refresh()  # as an append of another thread, to another shard, does it

    assert appender.append(claim, rows, guard=meanwhile).rows == 1
    assert "n" in appender.schema.columns.names
    assert appender.append(claim, [pa.record_batch({"id": [2], "v": ["b"], "n": [2]})]).rows == 1
    appender.flush_tail(claim)
    table.compact()
    assert table.scan().to_table().sort_by("id").to_pylist() == [
        {"id": 1, "v": "a", "n": None},
        {"id": 2, "v": "b", "n": 2},
    ]
