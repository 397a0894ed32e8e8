"""Turns and waits, threads in the background, and an import without effects."""

import signal
import subprocess
import sys
import threading

import pytest

from lance_memwal.clock import BackOff, in_order
from lance_memwal.process import turns
from lance_memwal.process.background import Task
from lance_memwal.process.turns import TakenError, Turn, turn_of
from lance_memwal.testing.clocks import SkippingClock
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


# The threads that all writers share: who waits for them, and whom they keep waiting.


def test_work_that_hangs_holds_up_no_work_that_comes_later() -> None:
    begun, let_go, done = threading.Event(), threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        let_go.wait(20)

    hanging, other = Task("flush").start(hang), Task("flush").start(done.set)
    try:
        hanging.poke()
        assert begun.wait(10)
        other.poke()
        assert done.wait(5)
    finally:
        let_go.set()
        hanging.stop()
        other.stop()


# Importing the package changes nothing: no environment variable, hook, thread or handler of ours.

_IMPORT = """
import atexit, logging, os, sys, threading
import lance, pyarrow, numpy, obstore  # what others do is theirs
before = dict(os.environ)
calls = []

def watched(name, real):
    def call(*args, **options):
        if sys._getframe(1).f_globals.get("__name__", "").startswith("lance_memwal"):
            calls.append(name)
        return real(*args, **options)
    return call

os.register_at_fork = watched("fork", os.register_at_fork)
atexit.register = watched("exit", atexit.register)
threading.Thread.start = watched("thread", threading.Thread.start)
import lance_memwal as mw
import lance_memwal.testing, lance_memwal.store.cloud
print(calls, dict(os.environ) == before, logging.getLogger("lance_memwal").handlers)
mw.create_table("memory://t", pyarrow.schema([("id", pyarrow.int64())]), primary_key="id", sharding=mw.Unsharded())
print(sorted(set(calls)))
"""


def test_importing_the_package_has_no_effect_and_the_first_use_has_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", _IMPORT], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["[] True []", "['exit', 'fork']"]
    assert done.stderr == ""
