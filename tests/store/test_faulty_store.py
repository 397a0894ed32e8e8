"""The faulty store does to a scenario exactly what its plan says."""

from __future__ import annotations

from pathlib import Path

import pytest

from lance_memwal.errors import InvalidInputError, ObjectExistsError, ObjectNotFoundError, UnavailableError
from lance_memwal.store.local import LocalStore
from lance_memwal.store.port import ObjectStore, PutResult
from lance_memwal.testing import FaultKind, FaultPlan, FaultScript, FaultyStore, SimulatedCrash
from lance_memwal.testing.clocks import SkippingClock


def faulty(root: Path, kind: FaultKind, at: int = 0, **plan: int) -> tuple[FaultyStore, LocalStore]:
    real = LocalStore(root)
    return FaultyStore(real, FaultPlan(at={at: kind}, **plan)), real


def test_error_before_has_no_effect_and_error_after_has_it(tmp_path: Path) -> None:
    store, real = faulty(tmp_path / "before", FaultKind.ERROR_BEFORE)
    with pytest.raises(UnavailableError) as lost:
        store.put_new("a", b"1")
    assert lost.value.ambiguous
    assert real.list("") == []
    store, real = faulty(tmp_path / "after", FaultKind.ERROR_AFTER)
    with pytest.raises(UnavailableError) as lost:
        store.put_new("a", b"1")
    assert lost.value.ambiguous
    assert real.get("a") == b"1"


def test_the_answer_that_error_after_loses_may_be_a_conflict(tmp_path: Path) -> None:
    store, real = faulty(tmp_path, FaultKind.ERROR_AFTER)
    real.put_new("a", b"theirs")
    with pytest.raises(UnavailableError):
        store.put_new("a", b"ours")
    assert real.get("a") == b"theirs"


def test_conflicts_come_without_and_after_the_effect(tmp_path: Path) -> None:
    store, real = faulty(tmp_path / "without", FaultKind.CONFLICT_WITHOUT_EFFECT)
    with pytest.raises(ObjectExistsError):
        store.put_new("a", b"1")
    assert real.list("") == []
    store, real = faulty(tmp_path / "after", FaultKind.CONFLICT_AFTER_EFFECT)
    with pytest.raises(ObjectExistsError):
        store.put_new("a", b"1")
    assert real.get("a") == b"1"


def test_a_late_effect_happens_on_the_call_that_was_planned(tmp_path: Path) -> None:
    store, real = faulty(tmp_path, FaultKind.LATE_EFFECT, late_after_calls=2)
    with pytest.raises(UnavailableError):
        store.put_new("a", b"late")
    with pytest.raises(ObjectNotFoundError):
        store.get("a")
    assert real.list("") == []
    assert store.get("a") == b"late"


def test_a_late_effect_that_lost_the_race_changes_nothing(tmp_path: Path) -> None:
    store, _ = faulty(tmp_path, FaultKind.LATE_EFFECT, late_after_calls=2)
    with pytest.raises(UnavailableError):
        store.put_new("a", b"late")
    assert store.put_new("a", b"prompt") is PutResult.CREATED
    store.script.settle()
    assert store.get("a") == b"prompt"


def test_settle_lets_late_effects_happen_now(tmp_path: Path) -> None:
    store, real = faulty(tmp_path, FaultKind.LATE_EFFECT, at=1, late_after_calls=100)
    store.put_new("a", b"1")
    with pytest.raises(UnavailableError):
        store.delete("a")
    assert real.get("a") == b"1"
    store.script.settle()
    assert real.list("") == []


def test_a_duplicate_put_is_applied_twice(tmp_path: Path) -> None:
    inner = FaultyStore(LocalStore(tmp_path))
    store = FaultyStore(inner, FaultPlan(at={0: FaultKind.DUPLICATE}))
    assert store.put_new("a", b"1") is PutResult.CREATED
    assert [call.kind for call in inner.script.calls] == ["put_new", "put_new"]


def test_throttling_is_certain_to_have_no_effect(tmp_path: Path) -> None:
    store, real = faulty(tmp_path, FaultKind.THROTTLE)
    with pytest.raises(UnavailableError) as refused:
        store.put("a", b"1")
    assert refused.value.retryable
    assert not refused.value.ambiguous
    assert real.list("") == []


def test_a_delay_waits_on_the_clock_and_then_succeeds(tmp_path: Path) -> None:
    clock = SkippingClock()
    store = FaultyStore(LocalStore(tmp_path), FaultPlan(at={0: FaultKind.DELAY}, delay_seconds=9), clock)
    assert store.put_new("a", b"1") is PutResult.CREATED
    assert clock.slept == [9]


def test_reads_come_back_short_or_with_one_bit_wrong(tmp_path: Path) -> None:
    data = bytes(100)
    real = LocalStore(tmp_path)
    real.put_new("a", data)
    assert FaultyStore(real, FaultPlan(at={0: FaultKind.SHORT_READ})).get("a") == data[:50]
    for read in ("get", "get_tail"):
        store = FaultyStore(real, FaultPlan(at={0: FaultKind.BIT_FLIP}, seed=7))
        seen = store.get("a") if read == "get" else store.get_tail("a", 100)
        assert sum(byte.bit_count() for byte in seen) == 1
        assert len(seen) == 100
    assert real.get("a") == data


def test_a_torn_object_holds_the_first_half(tmp_path: Path) -> None:
    store, real = faulty(tmp_path, FaultKind.TORN_OBJECT)
    with pytest.raises(UnavailableError):
        store.put_new("a", b"12345678")
    assert real.get("a") == b"1234"


def test_a_lost_delete_reports_success(tmp_path: Path) -> None:
    store, real = faulty(tmp_path, FaultKind.LOST_DELETE)
    real.put_new("a", b"1")
    store.delete("a")
    assert real.get("a") == b"1"


def test_lists_miss_a_name_or_come_in_another_order(tmp_path: Path) -> None:
    real = LocalStore(tmp_path)
    names = [f"{number:02d}" for number in range(30)]
    for name in names:
        real.put_new(name, b"")
    missing = FaultyStore(real, FaultPlan(at={0: FaultKind.LIST_MISSES})).list_names("")
    assert len(missing) == 29
    assert set(missing) < set(names)
    shuffled = FaultyStore(real, FaultPlan(at={0: FaultKind.LIST_SHUFFLES})).list("")
    assert sorted(meta.path for meta in shuffled) == names
    assert [meta.path for meta in shuffled] != [meta.path for meta in real.list("")]


@pytest.mark.parametrize(("kind", "there"), [(FaultKind.CRASH_BEFORE, False), (FaultKind.CRASH_AFTER, True)])
def test_nothing_happens_after_a_crash(tmp_path: Path, kind: FaultKind, there: bool) -> None:
    store, real = faulty(tmp_path, kind, at=1)
    other = store.script.wrap(real)
    store.put_new("before", b"1")
    with pytest.raises(SimulatedCrash):
        store.put_new("at", b"2")
    for survivor in (store, other):
        with pytest.raises(SimulatedCrash):
            survivor.put_new("after", b"3")
    assert sorted(real.list_names("")) == (["at", "before"] if there else ["before"])


def test_no_handler_of_exceptions_survives_a_crash(tmp_path: Path) -> None:
    store, _ = faulty(tmp_path, FaultKind.CRASH_BEFORE)
    with pytest.raises(SimulatedCrash) as crash:
        store.get("a")
    assert not isinstance(crash.value, Exception)


def test_a_fault_that_cannot_apply_is_an_error_of_the_test(tmp_path: Path) -> None:
    store, _ = faulty(tmp_path, FaultKind.SHORT_READ)
    with pytest.raises(InvalidInputError, match="short_read cannot happen to call 0, a put_new"):
        store.put_new("a", b"1")


def scenario(store: ObjectStore) -> list[str]:
    """A little life of a shard; what it saw."""
    seen = []
    for number in range(60):
        path = f"wal/{number % 20}"
        try:
            match number % 4:
                case 0 | 1:
                    seen.append(store.put_new(path, bytes([number]) * 50).value)
                case 2:
                    seen.append(store.get(path).hex())
                case 3:
                    seen.append(repr(store.list_names("wal")))
        except (UnavailableError, ObjectExistsError, ObjectNotFoundError) as error:
            seen.append(type(error).__name__)
    return seen


def test_the_same_seed_gives_the_same_faults_and_another_seed_others(tmp_path: Path) -> None:
    def run(name: str, seed: int) -> tuple[list[str], list[tuple[int, str]]]:
        script = FaultScript(FaultPlan(rate=0.4, seed=seed), SkippingClock())
        seen = scenario(script.wrap(LocalStore(tmp_path / name)))
        return seen, [(call.index, call.fault.value) for call in script.injected if call.fault]

    first, again, other = run("first", 1), run("again", 1), run("other", 2)
    assert first[1] == again[1]
    assert first[1] != other[1]
    assert 10 <= len(first[1]) <= 40


def test_a_random_plan_keeps_to_the_kinds_it_was_given(tmp_path: Path) -> None:
    kinds = frozenset({FaultKind.THROTTLE, FaultKind.BIT_FLIP})
    script = FaultScript(FaultPlan(rate=1.0, kinds=kinds))
    scenario(script.wrap(LocalStore(tmp_path)))
    assert {call.fault for call in script.injected} == kinds
    assert {call.fault for call in script.calls if call.kind == "put_new"} == {FaultKind.THROTTLE}


def test_a_sweep_can_hit_every_call_of_a_scenario_with_every_kind_that_fits(tmp_path: Path) -> None:
    rehearsal = FaultScript()
    scenario(rehearsal.wrap(LocalStore(tmp_path / "rehearsal")))
    assert len(rehearsal.calls) == 60
    swept = set()
    for call in rehearsal.calls[:8]:
        for kind in FaultKind:
            if not kind.applies_to(call.kind):
                continue
            script = FaultScript(FaultPlan(at={call.index: kind}), SkippingClock())
            try:
                scenario(script.wrap(LocalStore(tmp_path / f"{call.index}-{kind.value}")))
            except SimulatedCrash:
                assert kind in (FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER)
            assert [(hit.index, hit.fault) for hit in script.injected] == [(call.index, kind)]
            swept.add(kind)
    assert swept == set(FaultKind) - {FaultKind.LOST_DELETE}


def test_damage_is_told_apart_from_what_an_honest_store_may_do() -> None:
    damage = {kind for kind in FaultKind if not kind.keeps_contract}
    assert {kind.value for kind in damage} == {"short_read", "bit_flip", "torn_object", "lost_delete", "list_misses"}
