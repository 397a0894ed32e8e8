"""One fault, and two, at the store calls of whole lives of a table: nothing is lost, doubled, invented or hidden.

A sample in every run; `make faults` is all of it, `make prove` more.
"""

import itertools
import random
from collections.abc import Iterator
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest

import lance_memwal as mw
from lance_memwal.errors import CorruptDataError, UnavailableError
from lance_memwal.log import wal
from lance_memwal.log.entry import EntryDecoder
from lance_memwal.process.cache import CACHE
from lance_memwal.sstable.sidecar import PkSidecar
from lance_memwal.store import memory, paths
from lance_memwal.store.port import ObjectStore
from lance_memwal.store.sequenced import put_or_find
from lance_memwal.table.groups import Checkpoints
from lance_memwal.testing import FaultKind
from tests.faults.workers import Workers
from tests.harness.profile import scaled
from tests.kit.table_faults import Planned, RichLife, Sweep, in_slice, pairs, record, singles
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
    """The same, of lives with blobs, an index, shards, a merge and many generations."""
    yield Sweep(Place(f"memory://{_PLACE}"), RichLife)
    memory.reset(_PLACE)


def test_lives_without_faults_are_refused_nothing_and_make_every_call_of_a_store(sweep: Sweep, rich: Sweep) -> None:
    verbs = {name for name in vars(ObjectStore) if not name.startswith("_")}
    made = [record(sweep), record(rich)]
    assert sweep.broken == rich.broken == []
    assert not sweep.refused
    assert not rich.refused
    assert {call.kind for calls in made for call in calls} == verbs
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


def test_an_entry_that_was_read_badly_once_is_not_taken_for_collected(sweep: Sweep) -> None:
    above = paths.wal_entry_path(mw.shard_id_for(mw.Unsharded()), 9)  # it says whether the large write at 8 counts
    for _ in range(12):  # how many entries a read of an earlier time needs depends on the clock, so indexes may shift
        calls = record(sweep)
        collected = max(call.index for call in calls if call.kind == "put_new" and "/memwal_floor/2" in call.path)
        for index in [call.index for call in calls[collected:] if call.kind == "get" and call.path == above]:
            sweep.live(Planned(({index: FaultKind.SHORT_READ},)))
        if sweep.refused["CorruptDataError"]:
            break
    assert sweep.met["short_read"]
    assert sweep.refused["CorruptDataError"]
    assert sweep.broken == [], shown(sweep)


def test_life_finds_a_write_that_was_acknowledged_and_never_made(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert any("no fault explains consume: CollectedError" in line for line in sweep.broken), shown(sweep)


@pytest.mark.parametrize("life", [CanonicalLife, RichLife], ids=["canonical", "rich"])
def test_lives_find_a_put_that_was_cut_into_pieces(
    sweep: Sweep, life: type[CanonicalLife], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = mw.TableWriter.put

    def pieces(self: mw.TableWriter, rows: Any, **options: Any) -> Any:
        if not isinstance(rows, list):
            return honest(self, rows, **options)
        return [honest(self, [row], **options) for row in rows][-1]

    monkeypatch.setattr(mw.TableWriter, "put", pieces)
    sweep.life = life
    entries = [call.index for call in record(sweep) if call.kind == "put_new" and "/wal/" in call.path]
    assert sweep.broken == [], "without a crash nobody can tell"
    for entry in entries[:8]:  # of the first put of several rows
        sweep.live(Planned(({entry: FaultKind.CRASH_BEFORE},)))
    assert any("I4: a scan after a crash shows a part of a write" in line for line in sweep.broken), shown(sweep)


def test_the_life_finds_the_wrong_object_told_to_be_torn(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = EntryDecoder.decode

    def decode(self: EntryDecoder, data: bytes, position: int, *, path: str) -> Any:
        return honest(self, data, position, path=path + ".other")

    entries = [call for call in record(sweep) if call.kind == "put_new" and "/wal/" in call.path]
    torn = Planned(({entries[2].index: FaultKind.TORN_OBJECT},))
    sweep.live(torn)
    assert sweep.broken == [], shown(sweep)
    assert sweep.refused["CorruptDataError"]
    monkeypatch.setattr(EntryDecoder, "decode", decode)
    sweep.live(torn)
    assert any("nothing damaged" in line for line in sweep.broken), shown(sweep)


def test_the_life_judges_what_lies_beside_a_torn_object(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    consumed = [call for call in record(sweep) if call.kind == "put_new" and "memwal_consumers" in call.path]
    torn = Planned(({consumed[-1].index: FaultKind.TORN_OBJECT},))
    sweep.live(torn)
    assert sweep.broken == [], shown(sweep)
    honest = mw.Table.lookup
    monkeypatch.setattr(mw.Table, "lookup", lambda self, keys: honest(self, keys[1:]))
    sweep.live(torn)
    assert any("I7: a lookup gives" in line for line in sweep.broken), shown(sweep)


@pytest.mark.parametrize(
    ("error", "at", "told"),
    [
        (UnavailableError("for no reason"), {}, "this process met no fault"),
        (UnavailableError("for no reason"), {25: FaultKind.CRASH_AFTER}, "this process met no fault"),
        (CorruptDataError("never", path="x"), {25: FaultKind.CRASH_AFTER}, "nothing damaged x"),
        (CorruptDataError("never", path="x"), {25: FaultKind.ERROR_AFTER}, "nothing damaged x"),
    ],
    ids=["without", "after-a-crash", "damage-after-a-crash", "damage-after-a-lost-answer"],
)
def test_the_life_finds_an_error_that_no_fault_explains(
    sweep: Sweep, error: Exception, at: dict[int, FaultKind], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest, raised = Checkpoints.list, list[Exception]()

    def checkpoints(self: Checkpoints) -> Any:
        if not raised:
            raised.append(error)
            raise error
        return honest(self)

    monkeypatch.setattr(Checkpoints, "list", checkpoints)
    sweep.live(Planned((at,)))
    assert any(told in line for line in sweep.broken), shown(sweep)


def test_the_rich_life_finds_a_bad_read_that_is_kept_for_ever(rich: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = record(rich)
    read = [call.index for call in calls if call.kind == "get" and call.path.endswith("/bloom_filter.bin")]

    def load_unchecked(self: PkSidecar) -> bytes:
        self._bloom = self._bloom or self._location.store.get(self._bloom_path)
        return self._bloom

    monkeypatch.setattr(PkSidecar, "_load_bloom", load_unchecked)
    for short in read:
        rich.live(Planned(({short: FaultKind.SHORT_READ},)))
        if rich.broken:
            break
    assert any("one bad read was told" in line for line in rich.broken), shown(rich)


def test_slices_have_every_single_fault_once(sweep: Sweep) -> None:
    every = list(singles(record(sweep)))
    parts = [[planned for planned in every if in_slice(planned, part, 7)] for part in range(1, 8)]
    assert sorted(map(str, itertools.chain(*parts))) == sorted(map(str, every))
    assert min(map(len, parts)) > len(every) / 10


def test_what_came_of_lives_in_another_process_is_counted_here(tmp_path: Path) -> None:
    sweep = Sweep(Place(str(tmp_path)))
    plans = [Planned(({25: FaultKind.CRASH_AFTER},)), Planned(({26: FaultKind.ERROR_BEFORE},))]
    with Workers([sweep.place], jobs=1) as workers:
        for lived in workers.live(CanonicalLife, plans):
            sweep.add(lived)
    assert (sweep.lives, sweep.met["1 faults"], sweep.unmet, sweep.broken) == (2, 2, 0, [])
    assert sweep.met["crash_after"] == sweep.met["error_before"] == 1
    assert list(tmp_path.iterdir()) == []
