"""Waits between attempts, and calls that run ahead of their consumer."""

from __future__ import annotations

import threading

import pytest

from lance_memwal.clock import BackOff, in_order
from lance_memwal.testing.clocks import SkippingClock


def test_waits_double_up_to_the_longest_and_a_share_of_each_is_random() -> None:
    waits = BackOff(0.1, 1.0)
    assert [waits.seconds(attempt, 0.0) for attempt in (0, 1, 2, 3, 4, 99)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert waits.seconds(2, 0.75) == pytest.approx(0.1)
    assert BackOff(0.1, jitter=0.5).seconds(10**9, 0.5) == pytest.approx(0.1 * 2.0**60 * 0.75)
    clock = SkippingClock()
    waits.wait(clock, 3)
    assert 0 <= clock.slept[0] <= 0.8


@pytest.mark.parametrize("at_once", [1, 2, 8, 100])
def test_answers_come_in_the_order_of_the_items(at_once: int) -> None:
    assert list(in_order(lambda number: number * 2, range(50), at_once, "test")) == list(range(0, 100, 2))
    assert list(in_order(str, [], at_once, "test")) == []


def test_calls_run_at_the_same_time_and_no_further_ahead_than_asked_for() -> None:
    together = threading.Barrier(4)
    begun: list[int] = []

    def call(number: int) -> int:
        begun.append(number)
        if number < 4:
            together.wait(30)
        return number

    answers = in_order(call, range(40), 4, "test")
    assert next(answers) == 0
    assert len(begun) <= 5
    answers.close()  # type: ignore[attr-defined]
    assert len(begun) <= 5


def test_one_at_a_time_needs_no_thread() -> None:
    assert set(in_order(lambda _: threading.get_ident(), range(5), 1, "test")) == {threading.get_ident()}
    assert set(in_order(lambda _: threading.get_ident(), [0], 8, "test")) == {threading.get_ident()}


def test_after_a_failure_nothing_more_is_begun() -> None:
    begun: list[int] = []

    def call(number: int) -> None:
        begun.append(number)
        raise ValueError(number)

    with pytest.raises(ValueError, match="0"):
        list(in_order(call, range(100), 3, "test"))
    assert len(begun) <= 4
