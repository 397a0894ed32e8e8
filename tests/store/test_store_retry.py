"""Retries end, resolve what they can, and never guess."""

from __future__ import annotations

from pathlib import Path

import pytest

from lance_memwal.errors import InvalidInputError, ObjectExistsError, ObjectNotFoundError, UnavailableError
from lance_memwal.store.local import LocalStore
from lance_memwal.store.port import PutResult
from lance_memwal.store.retry import RetryingStore, RetryPolicy
from lance_memwal.testing import FaultKind, FaultPlan, FaultScript
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


def test_a_lost_acknowledgement_is_recognised_as_ours(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {0: FaultKind.ERROR_AFTER})
    assert scene.store.put_new("wal/1", b"ours") is PutResult.RECOGNISED
    assert scene.kinds() == ["put_new", "put_new", "get"]


def test_a_recognised_object_is_made_durable_if_that_was_asked(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {0: FaultKind.ERROR_AFTER})
    assert scene.store.put_new("wal/1", b"ours", sync=True) is PutResult.RECOGNISED
    assert scene.kinds() == ["put_new", "put_new", "get", "sync_tree"]


def test_other_bytes_after_an_ambiguous_failure_are_somebody_elses(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {0: FaultKind.ERROR_BEFORE})
    scene.real.put_new("wal/1", b"theirs")
    with pytest.raises(ObjectExistsError):
        scene.store.put_new("wal/1", b"ours")
    assert scene.real.get("wal/1") == b"theirs"


def test_equal_bytes_without_an_ambiguous_failure_are_not_claimed(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {0: FaultKind.THROTTLE})
    scene.real.put_new("wal/1", b"same")
    with pytest.raises(ObjectExistsError):
        scene.store.put_new("wal/1", b"same")
    assert scene.kinds() == ["put_new", "put_new"]


def test_a_lost_request_is_sent_again(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {0: FaultKind.ERROR_BEFORE, 1: FaultKind.THROTTLE})
    assert scene.store.put_new("wal/1", b"ours") is PutResult.CREATED
    assert scene.real.get("wal/1") == b"ours"


def test_a_read_back_that_fails_is_tried_again(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {0: FaultKind.ERROR_AFTER, 2: FaultKind.ERROR_BEFORE, 4: FaultKind.THROTTLE})
    assert scene.store.put_new("wal/1", b"ours") is PutResult.RECOGNISED
    assert scene.kinds() == ["put_new", *["put_new", "get"] * 3]


def test_an_object_that_is_gone_at_the_read_back_is_put_again(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {0: FaultKind.ERROR_BEFORE, 1: FaultKind.CONFLICT_WITHOUT_EFFECT})
    assert scene.store.put_new("wal/1", b"ours") is PutResult.CREATED
    assert scene.kinds() == ["put_new", "put_new", "get", "put_new"]


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


def test_an_answer_of_the_store_is_not_retried(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {})
    scene.real.put_new("wal/1", b"theirs")
    with pytest.raises(ObjectExistsError):
        scene.store.put_new("wal/1", b"ours")
    with pytest.raises(ObjectNotFoundError):
        scene.store.get("wal/2")
    assert scene.kinds() == ["put_new", "get"]


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
