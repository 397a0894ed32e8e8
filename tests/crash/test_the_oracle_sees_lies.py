"""The judge is judged: every kind of wrong answer is called wrong, and every permitted one is not."""

from __future__ import annotations

import pytest

from tests.harness.oracle import Oracle, Row, Write


def rows(**numbers: int) -> list[Row]:
    return [Row(int(name[1:]), number) for name, number in numbers.items()]


def rules(oracle: Oracle, *seen: Row) -> set[str]:
    return {broken.rule for broken in oracle.check(seen)}


def written(*writes: tuple[Write, bool | None]) -> Oracle:
    """An oracle that heard of these writes of one thread; None: no return, else whether it promised storage."""
    oracle = Oracle()
    for write, durable in writes:
        oracle.issued(0, write)
        if durable is not None:
            oracle.returned(0, durable=durable)
    return oracle


def test_an_acknowledged_row_that_is_gone_is_a_loss() -> None:
    assert rules(written((Write(1, (7,)), True))) == {"I1"}


def test_an_older_value_than_the_acknowledged_one_is_a_loss() -> None:
    oracle = written((Write(1, (7,)), True), (Write(2, (7,)), True))
    assert rules(oracle, *rows(k7=1)) == {"I1"}


def test_a_write_that_did_not_return_may_be_there_or_not() -> None:
    for seen in (rows(k7=1), rows(k7=2)):
        assert written((Write(1, (7,)), True), (Write(2, (7,)), None)).check(seen) == []


def test_what_was_seen_after_recovery_must_stay() -> None:
    oracle = written((Write(1, (7,)), None))
    assert oracle.check(rows(k7=1)) == []
    assert rules(oracle) == {"I1"}


def test_what_was_not_there_after_recovery_must_not_appear_later() -> None:
    oracle = written((Write(1, (7,)), None))
    assert oracle.check([]) == []
    assert "I2" in rules(oracle, *rows(k7=1))


def test_a_row_that_nobody_wrote_is_a_phantom() -> None:
    assert "I2" in rules(written((Write(1, (7,)), True)), *rows(k7=1, k8=1))


def test_a_row_with_other_columns_than_written_is_a_phantom() -> None:
    assert "I2" in rules(written((Write(1, (7,)), True)), Row(7, 1, intact=False))


def test_half_of_a_put_is_torn() -> None:
    assert rules(written((Write(1, (7, 8)), None)), *rows(k7=1)) == {"I4"}


def test_half_of_a_delete_is_torn() -> None:
    oracle = written((Write(1, (7, 8)), True), (Write(2, (7, 8), deletes=True), None))
    assert rules(oracle, *rows(k8=1)) == {"I4"}


def test_a_deleted_row_that_comes_back_is_a_loss_of_the_delete() -> None:
    oracle = written((Write(1, (7,)), True), (Write(2, (7,), deletes=True), True))
    assert rules(oracle, *rows(k7=1)) == {"I1"}


def test_a_key_that_is_there_twice_is_seen() -> None:
    assert "I5" in rules(written((Write(1, (7,)), True)), Row(7, 1), Row(7, 1))


def test_writes_without_a_promise_may_be_lost_from_the_end_only() -> None:
    for seen, expected in ((rows(), set()), (rows(k1=1), set()), (rows(k1=1, k2=2), set()), (rows(k2=2), {"I4"})):
        oracle = written((Write(1, (1,)), False), (Write(2, (2,)), False))
        assert rules(oracle, *seen) == expected


def test_a_drain_promises_what_returned_before_it() -> None:
    oracle = written((Write(1, (1,)), False))
    oracle.drain_begins()
    oracle.issued(0, Write(2, (2,)))
    oracle.returned(0, durable=False)
    oracle.drain_returned()
    assert rules(oracle) == {"I1"}
    assert oracle.check(rows(k1=1)) == []


def test_a_write_that_survives_an_earlier_one_of_another_thread_is_a_hole() -> None:
    oracle = Oracle()
    oracle.issued(0, Write(1, (1,)))
    oracle.returned(0, durable=False)
    oracle.issued(1, Write(2, (2,)))
    oracle.returned(1, durable=False)
    assert rules(oracle, *rows(k2=2)) == {"I3"}


@pytest.mark.parametrize("seen", [{}, {"k1": 1}, {"k2": 2}, {"k1": 1, "k2": 2}])
def test_writes_of_two_threads_at_the_same_time_may_survive_in_any_order(seen: dict[str, int]) -> None:
    oracle = Oracle()
    oracle.issued(0, Write(1, (1,)))
    oracle.issued(1, Write(2, (2,)))
    oracle.returned(0, durable=False)
    oracle.returned(1, durable=False)
    assert oracle.check(rows(**seen)) == []
