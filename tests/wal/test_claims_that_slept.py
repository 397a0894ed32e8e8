"""A sink that sleeps in the middle of a claim, an append or a flush makes the shard forget nothing, and finds no damage."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.store import paths
from lance_memwal.store.location import Location, resolve
from lance_memwal.store.wrap import WrappedStore
from lance_memwal.testing.clocks import SkippingClock
from lance_memwal.write.claim import ShardClaim
from lance_memwal.write.once import OnceAppender

SHARD = mw.shard_id_for(mw.Unsharded())
ROWS = [pa.record_batch({"id": pa.array(range(200), pa.int64())})]
ONE_ROW = [pa.record_batch({"id": pa.array([1], pa.int64())})]


class _Once(WrappedStore):
    """Runs `action` right before the call of this kind on `path` that follows `skip` others."""

    def __init__(self, inner: Any, kind: str, path: str, action: Callable[[], object], skip: int) -> None:
        super().__init__(inner)
        self._kind, self._path = kind, path
        self._actions: list[Callable[[], object]] = [action, *([lambda: None] * skip)]

    def around(self, kind: str, call: Callable[..., Any], path: str, *rest: Any, **options: Any) -> Any:
        if self._actions and (kind, path) == (self._kind, self._path):
            self._actions.pop()()
        return call(path, *rest, **options)


def _before(uri: str, kind: str, path: str, action: Callable[[], object], skip: int = 0) -> Location:
    location = resolve(uri)
    store: Any = _Once(location.store, kind, path, action, skip)
    return replace(location, store=store, store_once=store)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    place = str(tmp_path / "t")
    mw.create_table(place, pa.schema([pa.field("id", pa.int64())]), sharding=mw.Unsharded())
    return place


def _appender(place: str | Location) -> OnceAppender:
    return OnceAppender(place, max_entry_bytes=500, clock=SkippingClock())


def test_a_sentinel_that_comes_late_leaves_no_large_append_out(uri: str) -> None:
    others = _appender(uri)
    others.claim(SHARD)
    claims: list[ShardClaim] = []

    def meanwhile() -> None:
        """Between the claim of the sleeper and its look at the log: it is fenced, and a large append is published."""
        claims.append(others.claim(SHARD))
        others.append(claims[0], ROWS, txn=("app", 1))

    wal = paths.wal_dir(SHARD)
    sleeper = _appender(_before(uri, "make_directory", wal, meanwhile))
    with pytest.raises(mw.FencedError):
        sleeper.claim(SHARD)
    again = _appender(uri).append(claims[0], ROWS, txn=("app", 1))
    assert again.skipped
    assert mw.open_table(uri).count_rows() == 200


def test_a_claim_brings_no_directory_of_a_removed_table_back(uri: str) -> None:
    sleeper = _appender(_before(uri, "make_directory", paths.wal_dir(SHARD), lambda: shutil.rmtree(uri)))
    with pytest.raises(mw.TableReplacedError):
        sleeper.claim(SHARD)
    assert not Path(uri).exists()


def test_an_entry_that_is_collected_while_it_is_met_is_nobodys_error(uri: str) -> None:
    others = _appender(uri)
    claim = others.claim(SHARD)
    others.append(claim, ONE_ROW, txn=("other", 1))
    position = others.catch_up(claim).last_position + 1
    path = paths.wal_entry_path(SHARD, position)

    def flush_and_collect() -> None:
        others.flush_tail(claim)
        resolve(uri).store.delete(path)

    sleeper = _appender(_before(uri, "get", path, flush_and_collect))
    sleeper.catch_up(claim)
    others.append(claim, ONE_ROW, txn=("other", 2))
    assert not sleeper.append(claim, ONE_ROW, txn=("app", 1)).skipped
    assert mw.open_table(uri).count_rows() == 3


def test_a_tail_that_was_flushed_and_collected_during_a_flush_is_not_damaged(uri: str) -> None:
    others = _appender(uri)
    claim = others.claim(SHARD)
    path = paths.wal_entry_path(SHARD, others.append(claim, ONE_ROW, txn=("other", 1)).position)

    def flush_and_collect() -> None:
        others.flush_tail(claim)
        others.append(claim, ONE_ROW, txn=("other", 2))
        resolve(uri).store.delete(path)

    sleeper = _appender(_before(uri, "get", path, flush_and_collect, skip=1))
    assert sleeper.flush_tail(claim) == 0
    assert mw.open_table(uri).count_rows() == 2
