"""Reads of tables with many shards: what is kept per shard is counted as it comes and goes."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.process.cache import CACHE, Cache
from lance_memwal.read.fresh import fresh_index
from lance_memwal.sstable.read import SsTableReader, open_sstable
from lance_memwal.sstable.sidecar import PkSidecar
from lance_memwal.store.location import resolve

SCHEMA = pa.schema([pa.field("tenant", pa.int32(), False), pa.field("v", pa.int64())])


def make(place: Path, tenants: int) -> mw.Table:
    table = mw.create_table(str(place), SCHEMA, primary_key="tenant", sharding=mw.Identity("tenant"))
    with table.writer(fsync=False, compaction=None) as writer:
        writer.put([{"tenant": tenant, "v": tenant} for tenant in range(tenants)])
    return table


def readers_of(table: mw.Table) -> list[SsTableReader]:
    location, found = resolve(table.uri), []
    for shard in table.shards():
        manifest = mw.ShardManifestStore(table.uri, shard.shard_id).read_latest()
        assert manifest is not None
        found += [open_sstable(location, shard.shard_id, sstable) for sstable in manifest.sstables]
    return found


def lines_of_a_cold_count(place: Path, tenants: int) -> int:
    """How many lines of the index cache a first count of the rows executes."""
    table = make(place, tenants)
    CACHE.clear()
    lines = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal lines
        if not frame.f_code.co_filename.endswith("lance_memwal/read/fresh.py"):
            return None
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        assert table.count_rows() == tenants
    finally:
        sys.settrace(before)
    return lines


def test_the_work_per_shard_does_not_grow_with_their_number(tmp_path: Path) -> None:
    few, many = (lines_of_a_cold_count(tmp_path / str(number), number) for number in (8, 64))
    assert many <= few * 64 / 8 * 1.5


def test_indexes_that_are_replaced_or_dropped_do_not_count(tmp_path: Path) -> None:
    table = make(tmp_path / "t", 3)
    first, second, third = readers_of(table)
    size_bytes = fresh_index([first]).size_bytes
    cache = Cache(5 * size_bytes // 2)  # two, and what a list with hidden rows has more
    kept = fresh_index([second], cache)
    for _ in range(10):
        fresh_index([first], cache)
        fresh_index([first, first], cache)  # another list of the same shard takes its place
    assert fresh_index([second], cache) is kept
    fresh_index([third], cache)  # a third one is above the limit: the list of the first shard goes
    assert fresh_index([second], cache) is kept
    fresh_index([first], cache)
    fresh_index([third], cache)
    assert fresh_index([second], cache) is not kept


def test_a_read_does_not_wait_for_the_keys_of_another_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, other = make(tmp_path / "slow", 1), make(tmp_path / "other", 1)
    CACHE.clear()
    reached, released, all_entries = threading.Event(), threading.Event(), PkSidecar.all_entries

    def held(sidecar: PkSidecar) -> Any:
        if threading.current_thread().name == "slow":
            reached.set()
            assert released.wait(60)
        return all_entries(sidecar)

    monkeypatch.setattr(PkSidecar, "all_entries", held)
    found: list[int] = []
    first = threading.Thread(target=lambda: found.append(slow.to_arrow().num_rows), name="slow")
    first.start()
    assert reached.wait(60)
    second = threading.Thread(target=lambda: found.append(other.to_arrow().num_rows))
    second.start()
    second.join(20)
    is_held_up = second.is_alive()
    released.set()
    first.join()
    second.join()
    assert not is_held_up
    assert found == [1, 1]
