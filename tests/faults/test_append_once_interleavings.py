"""Appenders that share an epoch, in random interleavings of their store calls: sleepers, crashes and retries included.

Two processes try the same transactions, others append without one; some have rows that are too large for an entry. Meanwhile
the tail is flushed, the log is collected without any grace, and the shard is claimed anew. Whatever the order: what was
acknowledged is there exactly once, what crashed and was not tried again at most once, and a repeat is skipped.
"""

from __future__ import annotations

import contextlib
import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.lance.base import BaseTable
from lance_memwal.store.location import Location, resolve
from lance_memwal.store.port import ObjectStore
from lance_memwal.store.wrap import WrappedStore
from lance_memwal.testing.clocks import SkippingClock
from lance_memwal.types import Transaction
from lance_memwal.upkeep.gc import Collector
from lance_memwal.write.claim import ShardClaim
from lance_memwal.write.once import AppendResult, OnceAppender
from tests.harness.profile import scaled
from tests.kit.interleaving import Scheduler

SHARD = mw.shard_id_for(mw.Unsharded())
LARGE = 1 << 20


class CrashError(BaseException):
    """A process that ends in the middle of a store call."""


class _Crashing(WrappedStore):
    """A store whose caller dies at one call, right before or right after it takes effect."""

    def __init__(self, inner: ObjectStore, at: int, *, before: bool) -> None:
        super().__init__(inner)
        self._left = at
        self._before = before

    def around(self, kind: str, call: Callable[..., Any], path: str, *rest: Any, **options: Any) -> Any:
        self._left -= 1
        if self._left == 0 and self._before:
            raise CrashError
        result = call(path, *rest, **options)
        if self._left == 0:
            raise CrashError
        return result


class _Job:
    """Somebody who wants rows in the shard, in one process after the other."""

    def __init__(self, world: World, places: list[Location]) -> None:
        """The last of `places` is where it begins; after a crash it goes on from the others."""
        self._world = world
        self._places = places
        self._claim = world.claim
        self._once: OnceAppender | None = None
        self.must_claim = False

    def append(self, rows: pa.RecordBatch, txn: Transaction | None) -> AppendResult:
        if self._once is None:
            self._once = _appender(self._places[-1])
        if self.must_claim:
            self._claim = self._world.newer_claim(self._claim, self._once)
            self.must_claim = False
        return self._once.append(self._claim, [rows], txn=txn)

    def start_anew(self) -> None:
        self._once = None
        del self._places[1:]


@dataclass
class World:
    """What happened, from outside."""

    uri: str
    claim: ShardClaim
    draw: random.Random
    acknowledged: set[int] = field(default_factory=set)
    uncertain: set[int] = field(default_factory=set)
    skipped: int = 0
    crashes: int = 0
    fenced: int = 0
    published: int = 0

    def newer_claim(self, stale: ShardClaim, once: OnceAppender) -> ShardClaim:
        """A claim that somebody told us of, or one of our own."""
        if self.claim.epoch <= stale.epoch:
            self.claim = max(self.claim, once.claim(SHARD), key=lambda claim: claim.epoch)
        return self.claim

    def appender(self, app: str | None, numbers: range) -> Callable[[Location], None]:
        """Appends a row each; after a crash another process goes on, with the same transaction where there is one."""
        crash_at = self.draw.choice((None, 5, 9, 13, 17, 21, 25, 33))
        before = self.draw.random() < 0.5
        large = {number: self.draw.random() < 0.25 for number in numbers}

        def work(location: Location) -> None:
            places = [location] if crash_at is None else [location, _crashing(location, crash_at, before=before)]
            job = _Job(self, places)
            for number in numbers:
                txn = None if app is None else Transaction(app, number, "query")
                value = "x" * LARGE if large[number] else ""
                rows = pa.record_batch({"id": pa.array([number], pa.int64()), "value": [value]})
                while not (done := self._try(job, rows, txn)) and txn is not None:
                    pass
                (self.acknowledged if done else self.uncertain).add(number)

        return work

    def _try(self, job: _Job, rows: pa.RecordBatch, txn: Transaction | None) -> bool:
        try:
            self.skipped += job.append(rows, txn).skipped
        except CrashError:
            self.crashes += 1
            job.start_anew()
            return False
        except mw.FencedError:
            self.fenced += 1
            job.must_claim = True
            return False
        return True

    def flusher(self, location: Location) -> None:
        """Publishes what is in the tail, while others append."""
        once = _appender(location)
        for _ in range(3):
            try:
                self.published += once.flush_tail(self.claim)
            except mw.FencedError:
                return

    def collector(self, location: Location) -> None:
        """Collects whatever may go, without grace."""
        for _ in range(2):
            Collector(location, lambda: _base(self.uri), SkippingClock()).run(grace_seconds=0)

    def taker(self, location: Location) -> None:
        """Claims the shard, and leaves it."""
        with contextlib.suppress(mw.FencedError):
            _appender(location).claim(SHARD)

    def verdict(self) -> list[str]:
        table = mw.open_table(self.uri)
        found = table.scan(columns=["id"]).to_table().column("id").to_pylist()
        counts = Counter(found)
        broken = [f"row {number} is gone" for number in sorted(self.acknowledged) if not counts[number]]
        broken += [f"row {number} is there {count} times" for number, count in counts.items() if count > 1]
        broken += [f"row {number} was never issued" for number in counts.keys() - self.acknowledged - self.uncertain]
        broken += [f"{problem}" for problem in table.verify().problems]
        last = OnceAppender(self.uri)
        again = last.append(last.claim(SHARD), [pa.record_batch({"id": [0]})], txn=Transaction("app", 4, "query"))
        return broken if again.skipped else [*broken, "a repeat was written"]


def _base(uri: str) -> BaseTable:
    base = BaseTable.open(resolve(uri))
    assert base is not None
    return base


def _appender(location: Location) -> OnceAppender:
    return OnceAppender(location, max_entry_bytes=LARGE // 2, clock=SkippingClock())


def _crashing(location: Location, at: int, *, before: bool) -> Location:
    store: Any = _Crashing(location.store, at, before=before)
    return replace(location, store=store, store_once=store)


def interleave(template: Path, place: Path, seed: int) -> tuple[World, Scheduler]:
    shutil.copytree(template, place)
    draw, uri = random.Random(seed), str(place)
    first = OnceAppender(uri)
    claims = [first.claim(SHARD) for _ in range(draw.choice((1, 2)))]
    world = World(uri, claims[-1], draw)
    scheduler = Scheduler(uri, seed)
    others: list[Callable[[Location], None]] = [world.flusher, world.collector, world.taker]
    draw.shuffle(others)
    clients = [
        world.appender("app", range(1, 5)),
        world.appender("app", range(1, 5)),
        world.appender(None, range(11, 13)),
    ]
    scheduler.run(clients + others[: draw.choice((1, 2, 2, 3))])
    return world, scheduler


def judge(template: Path, place: Path, seed: int) -> list[str]:
    world, scheduler = interleave(template, place, seed)
    broken = [f"a client failed: {error!r}" for error in scheduler.failures]
    broken += world.verdict()
    shutil.rmtree(place)
    return [f"seed {seed}: {what}" for what in broken]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("interleavings") / "template"
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("value", pa.string())])
    mw.create_table(str(place), schema, sharding=mw.Unsharded(), writer_defaults={"fsync": False})
    return place


@pytest.mark.scaled
def test_no_order_of_store_calls_loses_or_doubles_an_acknowledged_row(template: Path, tmp_path: Path) -> None:
    count = scaled(ci=25, prove=2_000)
    broken = [what for seed in range(count) for what in judge(template, tmp_path / "table", seed)]
    assert not broken, "\n".join(broken[:5])
