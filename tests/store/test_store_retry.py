"""Retries end and never guess, metering counts each attempt, the newest record counts, and planned faults happen exactly."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import lance_memwal as mw
from lance_memwal.errors import InvalidInputError, ObjectExistsError, ObjectNotFoundError, UnavailableError
from lance_memwal.log.shards import Floor
from lance_memwal.store import paths
from lance_memwal.store.local import LocalStore
from lance_memwal.store.location import resolve
from lance_memwal.store.metering import MeteredStore, Recorder
from lance_memwal.store.port import ObjectStore, PutResult
from lance_memwal.store.retry import RetryingStore, RetryPolicy
from lance_memwal.store.sequenced import Record, Records
from lance_memwal.testing import FaultKind, FaultPlan, FaultScript, FaultyStore, SimulatedCrash
from lance_memwal.testing.clocks import SkippingClock


class Scene:
    """A retrying store over a faulty one over a real one."""

    def __init__(self, root: Path, faults: dict[int, FaultKind], policy: RetryPolicy | None = None) -> None:
        self.clock = SkippingClock()
        self.real = LocalStore(root)
        self.script = FaultScript(FaultPlan(at=faults), self.clock)
        self.store = RetryingStore(self.script.wrap(self.real), policy, self.clock)

    def kinds(self) -> list[str]:
        return [call.kind for call in self.script.calls]


BEFORE, AFTER, THROTTLE = FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER, FaultKind.THROTTLE
ATTEMPTS: dict[str, tuple[dict[int, FaultKind], bool, PutResult, list[str]]] = {
    "lost answer": ({0: AFTER}, False, PutResult.RECOGNISED, ["put_new", "get"]),
    "lost answer, made durable": ({0: AFTER}, True, PutResult.RECOGNISED, ["put_new", "get", "sync_tree"]),
    "lost request": ({0: BEFORE, 1: THROTTLE}, False, PutResult.CREATED, ["put_new"] * 2),
    "failed read back": ({0: AFTER, 2: BEFORE, 4: THROTTLE}, False, PutResult.RECOGNISED, ["put_new", "get"] * 3),
    "gone at the read back": (
        {0: BEFORE, 1: FaultKind.CONFLICT_WITHOUT_EFFECT},
        False,
        PutResult.CREATED,
        ["put_new", "get", "put_new"],
    ),
}


@pytest.mark.parametrize("case", ATTEMPTS)
def test_put_new_resolves_its_failed_attempts(tmp_path: Path, case: str) -> None:
    faults, sync, result, retried = ATTEMPTS[case]
    scene = Scene(tmp_path, faults)
    assert scene.store.put_new("wal/1", b"ours", sync=sync) is result
    assert scene.kinds() == ["put_new", *retried]
    assert scene.real.get("wal/1") == b"ours"


@pytest.mark.parametrize(
    ("faults", "stored", "kinds"),
    [
        ({0: BEFORE}, b"theirs", ["put_new", "put_new", "get"]),
        ({0: THROTTLE}, b"ours", ["put_new"] * 2),
        ({}, b"theirs", ["put_new"]),
    ],
    ids=["other bytes after an ambiguous failure", "equal bytes after a certain one", "an answer is not retried"],
)
def test_object_of_another_writer_is_not_claimed(
    tmp_path: Path, faults: dict[int, FaultKind], stored: bytes, kinds: list[str]
) -> None:
    scene = Scene(tmp_path, faults)
    scene.real.put_new("wal/1", stored)
    with pytest.raises(ObjectExistsError):
        scene.store.put_new("wal/1", b"ours")
    assert scene.kinds() == kinds
    with pytest.raises(ObjectNotFoundError):
        scene.store.get("wal/2")
    assert scene.kinds() == [*kinds, "get"]
    assert scene.real.get("wal/1") == stored


def test_a_late_effect_of_an_earlier_attempt_is_recognised(tmp_path: Path) -> None:
    plan = FaultPlan(at={0: FaultKind.LATE_EFFECT, 1: FaultKind.ERROR_BEFORE}, late_after_calls=2)
    clock = SkippingClock()
    script = FaultScript(plan, clock)
    store = RetryingStore(script.wrap(LocalStore(tmp_path)), clock=clock)
    assert store.put_new("wal/1", b"ours") is PutResult.RECOGNISED
    assert store.get("wal/1") == b"ours"


def test_attempts_end_at_their_maximum_with_the_last_failure_as_cause(tmp_path: Path) -> None:
    faults = dict.fromkeys(range(10), FaultKind.ERROR_BEFORE)
    scene = Scene(tmp_path, faults, RetryPolicy(max_attempts=3))
    with pytest.raises(UnavailableError) as gave_up:
        scene.store.get("wal/1")
    assert len(scene.script.calls) == 3
    assert isinstance(gave_up.value.__cause__, UnavailableError)
    assert "call 2" in str(gave_up.value.__cause__)
    assert gave_up.value.retryable


def test_attempts_end_before_a_wait_would_pass_the_deadline(tmp_path: Path) -> None:
    faults = dict.fromkeys(range(1000), FaultKind.ERROR_BEFORE)
    policy = RetryPolicy(max_attempts=1000, base_delay_seconds=1, max_delay_seconds=8, deadline_seconds=20, jitter=0)
    scene = Scene(tmp_path, faults, policy)
    before = scene.clock.monotonic()
    with pytest.raises(UnavailableError, match="deadline of 20 s"):
        scene.store.put_new("wal/1", b"ours")
    assert scene.clock.slept == [1, 2, 4, 8]
    assert scene.clock.monotonic() - before < 20


def test_what_no_retry_can_mend_fails_at_once(tmp_path: Path) -> None:
    clock = SkippingClock()
    script = FaultScript(clock=clock)
    store = RetryingStore(script.wrap(LocalStore(tmp_path)), clock=clock)
    with pytest.raises(UnavailableError) as refused:
        store.put_new("x" * 300, b"a name that is too long")
    assert not refused.value.retryable
    assert len(script.calls) == 1
    assert clock.slept == []


def test_the_final_error_is_ambiguous_if_any_attempt_was(tmp_path: Path) -> None:
    for first, expected in ((FaultKind.ERROR_BEFORE, True), (FaultKind.THROTTLE, False)):
        faults = {0: first, 1: FaultKind.THROTTLE}
        scene = Scene(tmp_path, faults, RetryPolicy(max_attempts=2))
        with pytest.raises(UnavailableError) as gave_up:
            scene.store.put_new(f"wal/{first.value}", b"ours")
        assert gave_up.value.ambiguous is expected


def test_every_kind_of_call_survives_two_failures(tmp_path: Path) -> None:
    calls = {
        "put_new": lambda store: store.put_new("new", b"12"),
        "put": lambda store: store.put("hint", b"12"),
        "get": lambda store: store.get("object"),
        "get_range": lambda store: store.get_range("object", 1, 1),
        "get_tail": lambda store: store.get_tail("object", 1),
        "head": lambda store: store.head("object").size_bytes,
        "list": lambda store: [meta.path for meta in store.list("below")],
        "list_names": lambda store: store.list_names("below"),
        "delete": lambda store: store.delete("other"),
        "sync_tree": lambda store: store.sync_tree("below"),
    }
    expected = {"put_new": PutResult.CREATED, "get": b"12", "get_range": b"2", "get_tail": b"2", "head": 2}
    expected |= {"list": ["below/x"], "list_names": ["x"]}
    for name, call in calls.items():
        scene = Scene(tmp_path / name, {0: FaultKind.ERROR_BEFORE, 1: FaultKind.ERROR_BEFORE})
        for path in ("object", "other", "below/x"):
            scene.real.put_new(path, b"12")
        assert call(scene.store) == expected.get(name)
        assert scene.kinds() == [name] * 3


def test_waits_grow_up_to_a_ceiling_and_are_spread_by_jitter() -> None:
    policy = RetryPolicy(base_delay_seconds=0.1, max_delay_seconds=1.0)
    assert [policy.delay_seconds(attempt, 0.0) for attempt in (1, 2, 3, 4, 5, 100)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert policy.delay_seconds(3, 0.75) == pytest.approx(0.1)
    assert RetryPolicy(base_delay_seconds=0.1, jitter=0.5).delay_seconds(1, 0.99) == pytest.approx(0.0505)


@pytest.mark.parametrize(
    "wrong",
    [{"max_attempts": 0}, {"jitter": 1.5}, {"jitter": -0.1}, {"deadline_seconds": -1}, {"max_delay_seconds": -1}],
)
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInputError):
        RetryPolicy(**wrong)  # type: ignore[arg-type]


def test_each_kind_of_call_is_counted_with_its_bytes(tmp_path: Path) -> None:
    metrics = Recorder()
    store = MeteredStore(LocalStore(tmp_path), metrics)
    store.put_new("t/a", b"12345")
    store.put("t/hint", b"123")
    store.get("t/a")
    store.get_range("t/a", 1, 2)
    store.get_tail("t/a", 4)
    store.head("t/a")
    store.list("t")
    store.list_names("t")
    store.sync_tree("t")
    store.delete("t/a")
    seen = {kind: (stats.count, stats.errors, stats.size_bytes) for kind, stats in metrics.snapshot().items()}
    assert seen == {
        "put_new": (1, 0, 5),
        "put": (1, 0, 3),
        "get": (1, 0, 5),
        "get_range": (1, 0, 2),
        "get_tail": (1, 0, 4),
        "head": (1, 0, 0),
        "list": (1, 0, 0),
        "list_names": (1, 0, 0),
        "sync_tree": (1, 0, 0),
        "delete": (1, 0, 0),
    }


def test_a_conflict_and_an_absence_are_answers_and_not_failures(tmp_path: Path) -> None:
    metrics = Recorder()
    store = MeteredStore(LocalStore(tmp_path), metrics)
    store.put_new("a", b"12")
    with pytest.raises(ObjectExistsError):
        store.put_new("a", b"345")
    for read in (store.get, store.head, lambda path: store.get_range(path, 0, 1), lambda path: store.get_tail(path, 1)):
        with pytest.raises(ObjectNotFoundError):
            read("absent")
    totals = metrics.snapshot()
    assert {kind: stats.errors for kind, stats in totals.items()} == dict.fromkeys(totals, 0)
    assert (totals["put_new"].count, totals["put_new"].size_bytes) == (2, 2)


def test_a_failure_counts_as_one_and_adds_no_bytes(tmp_path: Path) -> None:
    metrics = Recorder()
    faults = FaultScript(FaultPlan(at=dict.fromkeys(range(4), FaultKind.ERROR_BEFORE)))
    store = MeteredStore(faults.wrap(LocalStore(tmp_path)), metrics)
    calls = (lambda: store.put_new("a", b"1"), lambda: store.put("a", b"1"), lambda: store.get("a"))
    for call in (*calls, lambda: store.list("a")):
        with pytest.raises(UnavailableError):
            call()
    totals = metrics.snapshot()
    assert sorted(totals) == ["get", "list", "put", "put_new"]
    assert {(stats.count, stats.errors, stats.size_bytes) for stats in totals.values()} == {(1, 1, 0)}


def test_time_spent_is_recorded_with_the_slowest_call(tmp_path: Path) -> None:
    clock = SkippingClock()
    metrics = Recorder()
    faults = FaultScript(FaultPlan(at={1: FaultKind.DELAY}, delay_seconds=5), clock)
    store = MeteredStore(faults.wrap(LocalStore(tmp_path)), metrics, clock)
    store.list("")
    store.list("")
    stats = metrics.snapshot()["list"]
    assert 5 <= stats.max_seconds < 6
    assert stats.max_seconds <= stats.seconds < 6


def test_every_attempt_of_a_retried_call_is_counted(tmp_path: Path) -> None:
    metrics = Recorder()
    faults = FaultScript(FaultPlan(at={0: FaultKind.ERROR_BEFORE}))
    location = resolve(tmp_path, wrap=faults.wrap, metrics=metrics, clock=SkippingClock())
    location.store.put_new("a", b"12")
    assert (metrics.snapshot()["put_new"].count, metrics.snapshot()["put_new"].errors) == (2, 1)


def test_a_crash_passes_through_and_is_counted(tmp_path: Path) -> None:
    metrics = Recorder()
    faults = FaultScript(FaultPlan(at={0: FaultKind.CRASH_AFTER}))
    store = MeteredStore(faults.wrap(LocalStore(tmp_path)), metrics)
    with contextlib.suppress(BaseException):
        store.put_new("a", b"12")
    assert metrics.snapshot()["put_new"].errors == 1
    assert LocalStore(tmp_path).get("a") == b"12"


SHARD = mw.shard_id_for(mw.Unsharded())


def records(tmp_path: Path) -> Records:
    return Records(resolve(str(tmp_path)).store, paths.record_dir(paths.CONSUMERS_DIR, "sync"))


def test_newest_record_counts_and_old_numbers_are_not_won(tmp_path: Path) -> None:
    found = records(tmp_path)
    assert found.newest() is None
    for number in range(1, 13):
        assert found.create(Record(number, {"n": number}))
    assert found.numbers() == [10, 11, 12]
    assert not found.create(Record(2, {"n": "late"})), "its slot was emptied"
    newest = found.newest()
    assert newest is not None
    assert (newest.number, newest.value) == (12, {"n": 12})


def test_a_taken_number_is_not_won(tmp_path: Path) -> None:
    found = records(tmp_path)
    assert found.create(Record(1, {"by": "a"}))
    assert not found.create(Record(1, {"by": "b"}))
    assert found.read(1).value == {"by": "a"}


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"7"])
def test_a_damaged_record_is_named(tmp_path: Path, data: bytes) -> None:
    found = records(tmp_path)
    path = tmp_path / found.directory / "1.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    with pytest.raises(mw.CorruptDataError, match=r"1\.json"):
        found.newest()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-a", "a" * 101, "ä", None, 3])
def test_a_name_cannot_point_elsewhere(name: str) -> None:
    with pytest.raises(mw.InvalidInputError):
        paths.record_dir(paths.CONSUMERS_DIR, name)


@pytest.mark.parametrize("name", ["1.json", "987654321.json"])
def test_names_of_records_round_trip(name: str) -> None:
    number = paths.parse_record_name(name)
    assert number is not None
    assert paths.record_path("d", number) == f"d/{name}"


@pytest.mark.parametrize("name", ["0.json", "01.json", "1.json.tmp", "-1.json", "x.json", "1"])
def test_stray_names_are_no_records(name: str) -> None:
    assert paths.parse_record_name(name) is None


def test_a_floor_never_falls_whoever_raises_it(tmp_path: Path) -> None:
    location = resolve(str(tmp_path))
    assert Floor(location, SHARD).position() == 0
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda position: Floor(location, SHARD).raise_to(position), [5, 40, 7, 39, 12, 40]))
    floor = Floor(location, SHARD)
    assert floor.position() == 40
    Floor(location, SHARD).raise_to(41)
    assert floor.position() == 41, "a floor that was looked at before sees it rise"


@pytest.mark.parametrize("kind", [FaultKind.CONFLICT_AFTER_EFFECT, FaultKind.CONFLICT_WITHOUT_EFFECT])
def test_a_record_of_ours_that_exists_already_and_one_that_does_not_are_won(tmp_path: Path, kind: FaultKind) -> None:
    script = FaultScript(FaultPlan(at={0: kind}))
    found = Records(resolve(str(tmp_path), wrap=script.wrap).store, paths.record_dir(paths.CONSUMERS_DIR, "sync"))
    assert found.create(Record(1, {"by": "us"}))
    assert [call.fault for call in script.injected] == [kind]
    assert not found.create(Record(1, {"by": "others"}))
    newest = found.newest()
    assert newest is not None
    assert newest.value == {"by": "us"}


def faulty(root: Path, kind: FaultKind, at: int = 0, **plan: int) -> tuple[FaultyStore, LocalStore]:
    real = LocalStore(root)
    return FaultyStore(real, FaultPlan(at={at: kind}, **plan)), real


@pytest.mark.parametrize(
    ("kind", "error", "stored"),
    [
        (FaultKind.ERROR_BEFORE, UnavailableError, None),
        (FaultKind.ERROR_AFTER, UnavailableError, b"1234"),
        (FaultKind.CONFLICT_WITHOUT_EFFECT, ObjectExistsError, None),
        (FaultKind.CONFLICT_AFTER_EFFECT, ObjectExistsError, b"1234"),
        (FaultKind.TORN_OBJECT, UnavailableError, b"12"),
    ],
)
def test_failed_put_has_the_planned_effect(
    tmp_path: Path, kind: FaultKind, error: type[Exception], stored: bytes | None
) -> None:
    store, real = faulty(tmp_path, kind)
    with pytest.raises(error) as lost:
        store.put_new("a", b"1234")
    assert getattr(lost.value, "ambiguous", True)
    assert {name: real.get(name) for name in real.list_names("")} == ({} if stored is None else {"a": stored})


def test_the_answer_that_error_after_loses_may_be_a_conflict(tmp_path: Path) -> None:
    store, real = faulty(tmp_path, FaultKind.ERROR_AFTER)
    real.put_new("a", b"theirs")
    with pytest.raises(UnavailableError):
        store.put_new("a", b"ours")
    assert real.get("a") == b"theirs"


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
