"""A snapshot that travels: pinned here, sent as bytes, rebuilt elsewhere with the same rows, or with an error that says why."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.feed.snapshots import tiers_of
from lance_memwal.lance.base import NewestBase
from lance_memwal.read.reader import Reader
from lance_memwal.read.scan import Scan
from lance_memwal.read.snapshot import Snapshot
from lance_memwal.store.location import resolve

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
SHARD = mw.shard_id_for(mw.Unsharded())


@pytest.fixture
def table(tmp_path: Path) -> mw.Table:
    """Row 1 in the base table, 2 in an SSTable, 3 in the log alone."""
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", writer_defaults={"fsync": False})
    put(table, 1)
    table.compact()
    put(table, 2)
    put(table, 3, flush=False)
    return table


def put(table: mw.Table, number: int, value: str = "old", *, flush: bool = True) -> None:
    writer = table.shard_writer(SHARD)
    writer.put(pa.table({"id": [number], "v": [value]}, schema=SCHEMA))
    writer.close() if flush else writer.abort()


def pinned(table: mw.Table, consistency: str = "fresh") -> bytes:
    return pickle.dumps(Reader(NewestBase(table.base)).snapshot(consistency=consistency))  # type: ignore[arg-type]


def rows(data: bytes, table: mw.Table) -> dict[int, str]:
    snapshot: Snapshot = pickle.loads(data)
    found = Scan(lambda: tiers_of(resolve(table.uri), snapshot)).to_table()
    return dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))


def test_a_pin_that_was_sent_as_bytes_shows_what_was_there_whatever_comes_later(table: mw.Table) -> None:
    fresh, flushed = pinned(table), pinned(table, "flushed")
    assert rows(fresh, table) == {1: "old", 2: "old", 3: "old"}
    for number in (1, 2, 3, 4):
        put(table, number, "new")
    table.compact()
    assert rows(fresh, table) == {1: "old", 2: "old", 3: "old"}
    assert rows(flushed, table) == {1: "old", 2: "old"}
    assert rows(pinned(table), table) == {1: "new", 2: "new", 3: "new", 4: "new"}


def test_a_pin_holds_no_row(table: mw.Table) -> None:
    before = len(pinned(table))
    writer = table.shard_writer(SHARD)
    writer.put(pa.table({"id": range(10_000), "v": ["x" * 100] * 10_000}, schema=SCHEMA))
    writer.abort()
    assert len(pinned(table)) < before + 200


def test_a_pin_of_what_was_collected_says_so(table: mw.Table) -> None:
    data = pinned(table)
    put(table, 4)
    table.compact()
    table.gc(grace_seconds=0)
    with pytest.raises(mw.CollectedError, match="again"):
        rows(data, table)
