"""What is opened when it is used, and closed when nobody does."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from lance_memwal.clock import SYSTEM_CLOCK
from lance_memwal.errors import MemWalError, UnavailableError
from lance_memwal.process.held import Held
from tests.kit.writers import fork, wait_for

LONG = 600.0


class Door:
    """Counts its openings; tells when it was closed."""

    def __init__(self) -> None:
        self.opened = 0
        self.closed: list[int] = []
        self.changed = threading.Event()
        self.fails: list[BaseException] = []

    def open(self) -> int:
        if self.fails:
            raise self.fails.pop()
        self.opened += 1
        return self.opened

    def close(self, number: int) -> None:
        self.closed.append(number)
        self.changed.set()
        if self.fails:
            raise self.fails.pop()


Make = Callable[..., Held[int]]


@pytest.fixture
def held() -> Iterator[Make]:
    """Makes them, and closes them in the end."""
    made = []

    def make(door: Door, idle_seconds: float = LONG) -> Held[int]:
        made.append(Held("the door", door.open, door.close, idle_seconds=idle_seconds))
        return made[-1]

    yield make
    for thing in made:
        thing.close(10)


@contextmanager
def used_elsewhere(thing: Held[int]) -> Iterator[threading.Event]:
    """A use in another thread, until the event."""
    inside, end = threading.Event(), threading.Event()

    def run() -> None:
        with thing.use():
            inside.set()
            assert end.wait(20)

    thread = SYSTEM_CLOCK.spawn(run, "elsewhere")
    assert inside.wait(10)
    try:
        yield end
    finally:
        end.set()
        thread.join(10)


def test_many_threads_share_one(held: Make) -> None:
    door, begin = Door(), threading.Barrier(8)
    thing = held(door)

    def use(_: int) -> int:
        begin.wait(10)
        with thing.use() as number:
            return number

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(use, range(8))) == {1}
    thing.close()
    assert (door.opened, door.closed) == (1, [1])


def test_it_is_closed_when_it_is_idle_and_opened_again_when_it_is_used(held: Make) -> None:
    door = Door()
    thing = held(door, idle_seconds=0.02)
    for number in (1, 2):
        door.changed.clear()
        with thing.use() as found:
            assert found == number
        assert door.changed.wait(10)
        assert door.closed[-1] == number
    assert door.closed == [1, 2]


def test_what_is_in_use_is_not_idle(held: Make) -> None:
    door = Door()
    thing = held(door, idle_seconds=0.01)
    with thing.use():
        assert not door.changed.wait(0.15)
    assert door.changed.wait(10)


def test_a_close_waits_for_uses_and_the_next_use_opens_another_one(held: Make) -> None:
    door = Door()
    thing = held(door)
    with used_elsewhere(thing) as end, ThreadPoolExecutor(2) as pool:
        closing = pool.submit(thing.close)
        assert not door.changed.wait(0.05)
        late = pool.submit(lambda: thing.use().__enter__())
        assert not door.changed.wait(0.05)
        end.set()
        closing.result(10)
        assert late.result(10) == 2
    assert door.closed == [1]


def test_a_close_that_takes_too_long_says_so_and_changes_nothing(held: Make) -> None:
    door = Door()
    thing = held(door)
    with used_elsewhere(thing):
        with pytest.raises(UnavailableError, match="still open, use or close the door"):
            thing.close(0.02)
        with thing.use() as number:
            assert number == 1
    assert door.closed == []
    thing.close()
    assert door.closed == [1]


def test_a_use_within_a_use_does_not_wait_for_a_close(held: Make) -> None:
    door = Door()
    thing = held(door)
    with ThreadPoolExecutor(1) as pool:
        with thing.use():
            closing = pool.submit(thing.close)
            assert not door.changed.wait(0.05)
            with thing.use() as again:
                assert again == 1
        closing.result(10)
    assert door.closed == [1]


def test_a_close_within_a_use_is_done_at_its_end(held: Make) -> None:
    door = Door()
    thing = held(door)
    with thing.use():
        thing.close()
        assert door.closed == []
    assert door.closed == [1]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemWalError("no")])
def test_what_cannot_be_opened_is_tried_again_by_the_next_use(held: Make, error: BaseException) -> None:
    door = Door()
    thing = held(door)
    door.fails.append(error)
    with pytest.raises(type(error)), thing.use():
        pass
    with thing.use() as number:
        assert number == 1


def test_a_close_that_fails_says_so_once(held: Make) -> None:
    door = Door()
    thing = held(door)
    with thing.use():
        pass
    door.fails.append(MemWalError("no"))
    with pytest.raises(MemWalError, match="no"):
        thing.close()
    thing.close()
    assert door.closed == [1]


def test_an_idle_close_that_fails_is_logged(held: Make, caplog: pytest.LogCaptureFixture) -> None:
    door = Door()
    thing = held(door, idle_seconds=0.01)
    with thing.use():
        door.fails.append(MemWalError("no disk"))
    wait_for(lambda: "no disk" in caplog.text)
    with thing.use() as number:
        assert number == 2


def test_a_use_that_was_interrupted_does_not_count(held: Make) -> None:
    """Its call is gone, without having left: an interrupt came between entering and the `with`."""
    door = Door()
    thing = held(door)
    thing.use().__enter__()
    thing.close(10)
    assert door.closed == [1]


def test_a_forked_child_opens_its_own(held: Make) -> None:
    door = Door()
    thing = held(door)
    with used_elsewhere(thing):
        pid = fork()
        if pid == 0:
            status = 1
            try:
                with thing.use() as number:
                    status = 7 if (number, door.closed) == (2, []) else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        with thing.use() as number:
            assert number == 1
    thing.close()
    assert door.closed == [1]
