"""Puts of many threads in few messages: each gets its own outcome, whatever becomes of the message."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.clock import SYSTEM_CLOCK
from lance_memwal.process.deadline import Deadline
from lance_memwal.process.waiting import Place
from lance_memwal.serve.channel import OwnerLostError, SlowOwnerError
from lance_memwal.serve.together import Line, MarkedPut
from lance_memwal.types import Transaction
from tests.kit.interrupts import interrupted_everywhere
from tests.kit.writers import in_thread


class NotedPlace(Place):
    """Notes that its caller came to sleep there: its put is queued."""

    def __init__(self) -> None:
        super().__init__()
        self.slept = threading.Event()

    def sleep(self, seconds: float) -> None:
        self.slept.set()
        super().sleep(seconds)


def put_of(number: int, column: str = "id") -> MarkedPut:
    put = MarkedPut(pa.record_batch({column: pa.array([number])}), Transaction(f"memwal:{number}", 1))
    put.place = NotedPlace()
    return put


def numbers(puts: Sequence[MarkedPut]) -> list[int]:
    return [put.rows.column(0)[0].as_py() for put in puts]


class Held:
    """A way to an owner whose first message is held until the others have queued."""

    def __init__(self, then: Callable[[Sequence[MarkedPut]], Sequence[Any]]) -> None:
        self.messages: list[list[int]] = []
        self.busy, self.go_on = threading.Event(), threading.Event()
        self._then = then

    def send(self, puts: Sequence[MarkedPut], deadline: Deadline) -> Sequence[Any]:
        self.messages.append(numbers(puts))
        if not self.busy.is_set():
            self.busy.set()
            assert self.go_on.wait(30)
        return self._then(puts)


def outcomes(held: Held, puts: list[MarkedPut]) -> dict[int, Any]:
    """What became of puts, the first of which leads while the others queue."""
    line, found = Line(held.send), {}

    def work(put: MarkedPut) -> None:
        [number] = numbers([put])
        try:
            found[number] = line.write(put, Deadline(SYSTEM_CLOCK, 20))
        except BaseException as error:
            found[number] = error

    threads = [threading.Thread(target=work, args=(put,)) for put in puts]
    threads[0].start()
    assert held.busy.wait(30)
    places = [put.place for put in puts[1:] if isinstance(put.place, NotedPlace)]
    for thread in threads[1:]:
        thread.start()
    for place in places:
        assert place.slept.wait(30)
    held.go_on.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return found


def test_puts_that_wait_for_a_message_share_the_next_one() -> None:
    held = Held(lambda puts: numbers(puts))
    assert outcomes(held, [put_of(k) for k in range(6)]) == {k: k for k in range(6)}
    assert held.messages[0] == [0]
    assert sorted(held.messages[1]) == [1, 2, 3, 4, 5]


def test_puts_of_other_columns_go_with_the_message_after() -> None:
    held = Held(lambda puts: numbers(puts))
    puts = [put_of(0), put_of(1), put_of(2, "other")]
    assert outcomes(held, puts) == {0: 0, 1: 1, 2: 2}
    assert len(held.messages) == 3


def test_an_error_of_a_message_is_that_of_all_its_puts() -> None:
    def lost(puts: Sequence[MarkedPut]) -> Sequence[Any]:
        if len(puts) > 1:
            raise OwnerLostError("gone")
        return numbers(puts)

    found = outcomes(Held(lost), [put_of(k) for k in range(4)])
    assert found[0] == 0
    assert all(isinstance(found[k], OwnerLostError) for k in (1, 2, 3))


def test_an_owner_that_answers_for_some_only_is_lost() -> None:
    held = Held(lambda puts: numbers(puts)[:1])
    found = outcomes(held, [put_of(k) for k in range(4)])
    assert found.pop(0) == 0
    assert all(isinstance(error, OwnerLostError) for error in found.values())


def test_a_leader_that_is_interrupted_leaves_nobody_waiting() -> None:
    calls: list[int] = []

    def interrupted(puts: Sequence[MarkedPut]) -> Sequence[Any]:
        calls.append(len(puts))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return numbers(puts)

    found = outcomes(Held(interrupted), [put_of(k) for k in range(4)])
    kinds = sorted(type(found[k]).__name__ for k in (1, 2, 3))
    assert found[0] == 0
    assert kinds == ["KeyboardInterrupt", "SlowOwnerError", "SlowOwnerError"], "outcome unknown: they are sent again"
    assert issubclass(SlowOwnerError, mw.MemWalError)


def test_a_put_that_waits_too_long_says_that_its_outcome_is_unknown() -> None:
    held = Held(lambda puts: numbers(puts))
    line = Line(held.send)
    leader = threading.Thread(target=line.write, args=(put_of(0), Deadline(SYSTEM_CLOCK, 30)))
    leader.start()
    assert held.busy.wait(30)
    with pytest.raises(mw.UnavailableError) as found:
        line.write(put_of(1), Deadline(SYSTEM_CLOCK, 0.05))
    assert found.value.ambiguous
    held.go_on.set()
    leader.join(30)
    assert held.messages == [[0]], "nobody waits for it any more"


def test_an_interrupt_anywhere_leaves_the_turn_to_the_others() -> None:
    line = Line(lambda puts, deadline: numbers(puts))

    def write() -> None:
        line.write(put_of(0), Deadline(SYSTEM_CLOCK, 20))

    def check(where: str) -> None:
        assert in_thread(lambda: line.write(put_of(1), Deadline(SYSTEM_CLOCK, 0.0))).result() == 1, where

    assert interrupted_everywhere(write, check, "serve/together.py", "process/") > 20
