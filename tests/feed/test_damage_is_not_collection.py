"""An entry that is there and damaged is told of as damage, below the cursor, too: nobody is sent away to load again."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.store import paths

_SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.int64())])
_SHARD = mw.shard_id_for(mw.Unsharded())


def rows(*keys: int) -> list[dict[str, int]]:
    return [{"id": key, "value": key} for key in keys]


def cut(table: Path, position: int) -> None:
    entry = table / paths.wal_entry_path(_SHARD, position)
    entry.write_bytes(entry.read_bytes()[:-40])


def test_a_checkpoint_whose_entry_is_damaged_was_not_collected(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), _SCHEMA, primary_key="id")
    with table.writer(compaction=None) as writer:
        writer.put(rows(1))
        table.checkpoint_create("then")
        writer.flush()
        cut(tmp_path / "t", 1)
        with pytest.raises(mw.CorruptDataError, match="damaged"):
            table.at("then").scan().to_table()
