"""Turns that Ctrl-C cannot leave taken, wherever it comes."""

from __future__ import annotations

import signal
import sys
import threading

import pytest

from lance_memwal.process import turns
from lance_memwal.process.turns import TakenError, Turn, turn_of
from tests.kit.interrupts import interrupted_everywhere
from tests.kit.writers import in_thread


def is_free(turn: Turn) -> bool:
    """Whether another thread can have it."""

    def take() -> bool:
        try:
            with turn.taken(0.0):
                return turn.is_mine
        except TakenError:
            return False

    return bool(in_thread(take).result())


def test_an_interrupt_anywhere_leaves_no_turn_taken() -> None:
    turn = Turn()

    def work() -> None:
        with turn.taken(1.0):
            assert turn.is_mine

    def check(where: str) -> None:
        assert is_free(turn), where

    assert interrupted_everywhere(work, check, "process/turns.py") > 4


def test_a_signal_that_comes_as_the_turn_is_had_leaves_it_free() -> None:
    """A real one: it waits while this thread waits, and is handled as soon as the lock is there."""
    turn, taken, me, before = Turn(), threading.Event(), threading.get_ident(), sys.getswitchinterval()

    def hold() -> None:
        with turn.taken(1.0):
            taken.set()
            while turn in waiting:  # the other thread is not inside yet
                pass
            sys.setswitchinterval(60)  # what follows is done before the other thread runs
        signal.pthread_kill(me, signal.SIGINT)

    waiting, handler = [turn], signal.signal(signal.SIGINT, signal.default_int_handler)
    holder = in_thread(hold)
    try:
        assert taken.wait(20)
        threading.Timer(0.05, waiting.clear).start()
        with pytest.raises(KeyboardInterrupt), turn.taken(20.0):
            raise AssertionError("the signal came before")
    finally:
        sys.setswitchinterval(before)
        signal.signal(signal.SIGINT, handler)
    holder.result()
    assert is_free(turn)


def test_a_call_on_top_has_the_turn_too_and_leaves_it_to_the_call_below() -> None:
    turn = Turn()
    with turn.taken(0.0):
        with turn.taken(0.0):
            pass
        assert turn.is_mine
        assert not is_free(turn)
    assert is_free(turn)


def test_who_waits_in_vain_is_told_in_its_own_words() -> None:
    turn = turn_of("a name")
    with turn.taken(0.0):

        def wait() -> None:
            with turn_of("a name").taken(0.01, lambda: ValueError("still there")):
                pass

        with pytest.raises(ValueError, match="still there"):
            in_thread(wait).result()
    assert is_free(turn)


def test_a_handler_may_ask_for_a_turn_while_its_thread_does() -> None:
    """It waited for ever for the call that it had interrupted."""
    found: list[Turn] = []

    def on_top(where: str) -> None:
        del where
        found.append(in_thread(lambda: turn_of("another")).result(5))

    kept = [turn_of("another")]
    assert interrupted_everywhere(lambda: turn_of("a name"), on_top, "process/turns.py") > 1
    handler = signal.signal(signal.SIGUSR1, lambda *_: found.append(turn_of("another")))
    try:
        with turns._guard:
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, handler)
    assert all(turn is kept[0] for turn in found)
