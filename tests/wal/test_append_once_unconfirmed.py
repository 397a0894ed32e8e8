"""What an appender read of a log while the manifest moved on counts for nothing, also later."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

import lance_memwal as mw
from lance_memwal.store import paths
from lance_memwal.store.location import Location, resolve
from lance_memwal.store.wrap import WrappedStore
from lance_memwal.write.claim import ShardClaim
from lance_memwal.write.once import OnceAppender

SHARD = mw.shard_id_for(mw.Unsharded())


class SleepError(Exception):
    """A process that sleeps right before a put, and dies once the put is on its way."""


class _Hooked(WrappedStore):
    """Calls `hook(kind, path, data)` before every call."""

    def __init__(self, inner: Any, hook: Callable[..., None]) -> None:
        super().__init__(inner)
        self._hook = hook

    def around(self, kind: str, call: Callable[..., Any], path: str, *rest: Any, **options: Any) -> Any:
        self._hook(kind, path, *rest)
        return call(path, *rest, **options)


def _hooked(uri: str, hook: Callable[..., None]) -> Location:
    location = resolve(uri)
    store: Any = _Hooked(location.store, hook)
    return replace(location, store=store, store_once=store)


def _row(number: int) -> list[pa.RecordBatch]:
    return [pa.record_batch({"id": pa.array([number], pa.int64())})]


def _late_entry(uri: str, claim: ShardClaim, number: int) -> tuple[str, bytes]:
    """The put of an appender that read the log as it is now: it is on its way."""
    sent: list[tuple[str, bytes]] = []

    def sleep(kind: str, path: str, *rest: Any) -> None:
        if kind == "put_new":
            sent.append((path, bytes(rest[0])))
            raise SleepError

    with contextlib.suppress(SleepError):
        OnceAppender(_hooked(uri, sleep)).append(claim, _row(number), txn=("app", number))
    return sent[0]


def test_a_late_put_that_was_read_under_an_old_manifest_is_not_believed(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    mw.create_table(uri, pa.schema([pa.field("id", pa.int64())]), sharding=mw.Unsharded())
    others = OnceAppender(uri)
    claim = others.claim(SHARD)
    others.append(claim, _row(1), txn=("app", 1))
    path, data = _late_entry(uri, claim, 2)
    armed: list[bool] = []

    def move_on(kind: str, where: str, *_: Any) -> None:
        """Between the reading of the manifest and that of the log: flush, collect, and the late put lands."""
        if armed and kind == "list_names" and where == paths.wal_dir(SHARD):
            armed.clear()
            others.append(claim, _row(9), txn=("other", 9))
            assert others.flush_tail(claim) == 1
            store = resolve(uri).store
            store.delete(path)  # collection, in the middle of its work
            store.put_new(path, data)

    repeat = OnceAppender(_hooked(uri, move_on))
    repeat.catch_up(claim)
    others.append(claim, _row(8), txn=("other", 8))  # so that the repeat meets an entry, and reads
    armed.append(True)
    result = repeat.append(claim, _row(2), txn=("app", 2))
    assert not result.skipped
    assert sorted(mw.open_table(uri).scan().to_table().column("id").to_pylist()) == [1, 2, 8, 9]
