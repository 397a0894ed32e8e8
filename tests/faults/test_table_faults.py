"""One fault, and two, at the store calls of whole lives of a table: nothing is lost, doubled, invented or hidden.

A sample in every run; `make faults` is all of it, `make prove` more.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partialmethod
from typing import Any

import pytest

import lance_memwal as mw
from lance_memwal.errors import UnavailableError
from lance_memwal.log import wal
from lance_memwal.process.cache import CACHE
from lance_memwal.store import memory
from lance_memwal.store.own import put_or_find
from lance_memwal.store.port import ObjectStore
from lance_memwal.testing import FaultKind, FaultPlan, FaultScript
from tests.harness.profile import scaled
from tests.kit.rich_life import RichLife
from tests.kit.table_faults import Planned, Sweep, pairs, record, singles
from tests.kit.table_life import CanonicalLife, Place

_PLACE = "table-faults"
# Of the lives, so many meet what is planned for them: time moves calls, and of a handful chance may move many.
ONE_MET, TWO_MET = scaled(ci=0.5, prove=0.9), scaled(ci=0.5, prove=0.8)


@pytest.fixture
def sweep() -> Iterator[Sweep]:
    """Lives on a local store whose syncs cost nothing."""
    yield Sweep(Place(f"memory://{_PLACE}"))
    memory.reset(_PLACE)


def shown(sweep: Sweep) -> str:
    return "\n".join(line[:800] for line in sweep.broken[:3])


@pytest.fixture
def rich() -> Iterator[Sweep]:
    """The same, of lives with blobs, an index, shards, a merge and roll-ups."""
    yield Sweep(Place(f"memory://{_PLACE}"), RichLife)
    memory.reset(_PLACE)


def test_lives_without_faults_are_refused_nothing_and_make_every_call_that_a_store_has(
    sweep: Sweep, rich: Sweep
) -> None:
    verbs = {name for name in vars(ObjectStore) if not name.startswith("_")}
    made = [record(sweep), record(rich)]
    assert sweep.broken == rich.broken == []
    assert not sweep.refused
    assert not rich.refused
    assert {call.kind for calls in made for call in calls} == verbs
    assert any(call.kind == "get_range" and "/memwal_rollups/" in call.path for call in made[1])
    assert sum(len(list(singles(calls))) for calls in made) > 10_000


@pytest.mark.scaled
@pytest.mark.parametrize(("life", "few"), [(CanonicalLife, 10), (RichLife, 3)], ids=["canonical", "rich"])
def test_no_single_fault_breaks_a_table(sweep: Sweep, life: type[CanonicalLife], few: int) -> None:
    sweep.life = life
    every = list(singles(record(sweep)))
    count = scaled(ci=few, prove=len(every))
    for planned in random.Random(count).sample(every, count):
        sweep.live(planned)
    assert sweep.broken == [], shown(sweep)
    assert sweep.met["1 faults"] >= ONE_MET * count


@dataclass(frozen=True, slots=True)
class Ranges(FaultPlan):
    """Whatever reads a part of an object meets this."""

    kind: FaultKind = FaultKind.SHORT_READ

    def fault(self, index: int, call: str) -> FaultKind | None:
        return self.kind if call == "get_range" else None


@pytest.mark.parametrize("kind", [FaultKind.SHORT_READ, FaultKind.BIT_FLIP], ids=lambda kind: str(kind.value))
def test_damaged_range_reads_of_roll_ups_are_noticed_and_not_seen(rich: Sweep, kind: FaultKind) -> None:
    script = FaultScript(Ranges(kind=kind))
    life = RichLife(rich.place, "ranges", [script])
    assert life.run() == []
    assert script.injected
    assert not life.oracle.refused


@pytest.mark.scaled
@pytest.mark.parametrize(
    "life", [CanonicalLife, pytest.param(RichLife, marks=pytest.mark.prove)], ids=["canonical", "rich"]
)
def test_no_two_faults_break_a_table(sweep: Sweep, life: type[CanonicalLife]) -> None:
    sweep.life = life
    count = scaled(ci=5, prove=4_000)
    for planned in pairs(sweep, record(sweep), count, seed=5):
        sweep.live(planned)
    assert sweep.broken == [], shown(sweep)
    assert sweep.met["2 faults"] >= TWO_MET * count


@pytest.mark.scaled
@pytest.mark.xdist_group("s3")
def test_no_fault_breaks_a_table_on_s3(s3_table: tuple[str, dict[str, str]]) -> None:
    sweep = Sweep(Place(*s3_table))
    every = list(singles(record(sweep)))
    wanted = scaled(ci=1, prove=800)
    for planned in random.Random(7).sample(every, scaled(ci=6, prove=800)):
        if sweep.met["1 faults"] < wanted:
            sweep.live(planned)
    assert sweep.broken == [], shown(sweep)
    assert sweep.met["1 faults"] >= ONE_MET * wanted


def test_the_life_finds_a_write_that_was_acknowledged_and_never_made(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put(store: Any, path: str, data: bytes, **options: Any) -> bytes | None:
        try:
            return put_or_find(store, path, data, **options)
        except UnavailableError:
            return None

    entries = [call for call in record(sweep) if call.kind == "put_new" and "/wal/" in call.path]
    monkeypatch.setattr(wal, "put_or_find", put)
    at = entries[1].index  # and a crash, before a flush makes it good
    sweep.live(Planned(({at: FaultKind.ERROR_BEFORE, at + 1: FaultKind.CRASH_BEFORE},)))
    assert sweep.met["2 faults"] == 1
    assert any("I1" in line or "I7" in line for line in sweep.broken), shown(sweep)


def test_the_rich_life_finds_a_search_that_forgets_fresh_rows(rich: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mw.Table, "search", partialmethod(mw.Table.search, consistency="flushed"))
    record(rich)
    assert any("a search for" in line for line in rich.broken), shown(rich)


def test_the_life_finds_a_consumer_that_is_not_waited_for(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    from lance_memwal.upkeep.consumer_records import ConsumerFloors

    CACHE.clear()
    monkeypatch.setattr(ConsumerFloors, "needs", lambda *_: False)
    record(sweep)
    assert sweep.refused["CollectedError"] or sweep.broken, "collection passed a consumer, and nobody noticed"
