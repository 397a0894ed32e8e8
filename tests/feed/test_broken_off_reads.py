"""Reads that are broken off at any request go on where they were: no change is left out, none comes twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from lance_memwal.feed import before
from lance_memwal.feed.changes import ChangeFeed, Request
from lance_memwal.feed.consumers import Consumer
from lance_memwal.lance.base import BaseTable, NewestBase
from lance_memwal.store.location import resolve
from lance_memwal.store.port import ObjectStore
from lance_memwal.store.wrap import WrappedStore
from lance_memwal.testing.clocks import SkippingClock
from tests.kit.feeds import ops_of
from tests.kit.tables import create, keyed

SCHEMA = keyed(pa.field("v", pa.int64()))
SIGNS = timedelta(milliseconds=1)  # so that a consumer says with every batch that it is there
_T = TypeVar("_T")


class Interrupted(WrappedStore):
    """Interrupts its caller once, before or after one call."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.calls = 0
        self.at: int | None = None
        self.after = False

    def around(self, kind: str, call: Callable[..., _T], path: str, *rest: Any, **options: Any) -> _T:
        is_now, self.calls = self.calls == self.at, self.calls + 1
        if is_now and not self.after:
            raise KeyboardInterrupt
        found = call(path, *rest, **options)
        if is_now:
            raise KeyboardInterrupt
        return found


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Rows in a base table, and changes above them in several entries."""
    path = str(tmp_path_factory.mktemp("feed") / "t")
    table = create(path, pa.table({"id": [1, 2], "v": [0, 0]}, SCHEMA))
    with table.writer() as writer:
        for v in range(1, 4):
            writer.put({"id": [1, 10 + v], "v": [v, v]})
    return path


Follow = Callable[[NewestBase, SkippingClock], ChangeFeed | Consumer]


def lived(uri: str, follow: Follow, at: int | None, after: bool) -> tuple[list[Any], int]:
    """What is handed out by a reader that is interrupted once, at request `at` after it was opened; and its requests."""
    stores: list[Interrupted] = []

    def wrap(inner: ObjectStore) -> ObjectStore:
        stores.append(Interrupted(inner))
        return stores[0]

    clock = SkippingClock()
    base = BaseTable.open(resolve(uri, clock=clock, wrap=wrap))
    assert base is not None
    reader = follow(NewestBase(base), clock)
    stores[0].calls, stores[0].at, stores[0].after = 0, at, after
    found = list(_handed_out(reader))
    return found, stores[0].calls


def _handed_out(reader: ChangeFeed | Consumer) -> Iterator[Any]:
    for _ in range(2):
        try:
            for batch in reader:
                yield from ops_of([batch], "id", "v")
                if isinstance(reader, Consumer):
                    _commit(reader)
        except KeyboardInterrupt:
            continue
        return


def _commit(reader: Consumer) -> None:
    try:
        reader.commit()
    except KeyboardInterrupt:
        reader.commit()


def plain(newest: NewestBase, clock: SkippingClock) -> ChangeFeed:
    return ChangeFeed(newest, Request(), "earliest", "now", clock=clock)


def with_rows_before(newest: NewestBase, clock: SkippingClock) -> ChangeFeed:
    return ChangeFeed(newest, Request(before=True), "earliest", "now", clock=clock)


def whole_table(newest: NewestBase, clock: SkippingClock) -> ChangeFeed:
    return ChangeFeed(newest, Request(), "snapshot", "now", clock=clock)


def consumer(newest: NewestBase, clock: SkippingClock) -> Consumer:
    name = clock.uuid4()
    return Consumer(newest, name, Request(), start="earliest", until="now", max_age=SIGNS, clock=clock)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("follow", [plain, with_rows_before, whole_table, consumer])
def test_a_reader_that_is_interrupted_goes_on_where_it_was(
    uri: str, follow: Follow, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(before, "_RENEW_SECONDS", 0.0)  # a new snapshot whenever one may be taken
    monkeypatch.setattr("lance_memwal.feed.shard_changes._CHUNK_ENTRIES", 1)
    whole, calls = lived(uri, follow, None, after)
    assert len(whole) >= 5
    for at in range(calls):
        assert lived(uri, follow, at, after)[0] == whole, f"interrupted at request {at}"
