"""Tables that the Spark tests use."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import lance_memwal as mw

KEYED = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.string()), ("n", pa.int32())])
PLAIN = pa.schema([("id", pa.int64()), ("value", pa.string())])


def keyed(uri: str, buckets: int = 4, **options: Any) -> mw.Table:
    return mw.create_table(uri, KEYED, primary_key="id", sharding=mw.Bucket("id", buckets), **options)


def append_only(uri: str, buckets: int = 4, **options: Any) -> mw.Table:
    return mw.create_table(uri, PLAIN, sharding=mw.Bucket("id", buckets), **options)


def ids_of(table: mw.Table) -> list[int]:
    return sorted(table.scan(columns=["id"]).to_table().column("id").to_pylist())


def rows_of(table: mw.Table) -> dict[int, tuple[Any, ...]]:
    rows = table.scan().to_table().to_pylist()
    found = {row["id"]: tuple(row.values())[1:] for row in rows}
    assert len(found) == len(rows), "a key is there twice"
    return found


def entries_with_rows(table: mw.Table) -> int:
    """How many entries of the logs hold rows: what claims a shard, or ends a generation, holds none."""
    tailers = [mw.WalTailer(table.location, info.shard_id) for info in table.shards()]
    read = [tailer.read_entry(at) for tailer in tailers for at in range(1, tailer.next_position())]
    return sum(entry is not None and entry.num_rows > 0 for entry in read)
