"""A process that was stopped at the worst moment and taken over cannot acknowledge when it wakes up."""

from __future__ import annotations

from pathlib import Path

import pytest

from lance_memwal import WalAppender
from lance_memwal.store.location import Location
from tests.harness.processes import Child, start
from tests.kit.logs import SHARD, collected, flushed, place, read_all, rows, story
from wal.wal_children import append_and_stall, append_in_a_fork

SECONDS = 60.0


def stalled(uri: str, point: str, before: int) -> Child:
    """A child that stands still at `point`."""
    child = start(append_and_stall, uri, SHARD, point, before, 666)
    assert child.receive(SECONDS) == ("stopping",)
    child.wait_until_stopped(SECONDS)
    return child


def woken(child: Child) -> tuple[object, ...]:
    """What became of its append."""
    child.resume()
    told = child.receive(SECONDS)
    assert told is not None
    assert child.wait(SECONDS) == 0
    return told


def take_over(location: Location) -> WalAppender:
    appender = WalAppender.open(location, SHARD, fsync=False)
    appender.append(rows(10))
    appender.append(rows(11))
    return appender


@pytest.mark.parametrize("predecessors", [0, 1], ids=["as epoch 1", "as epoch 2"])
@pytest.mark.parametrize("point", ["open.after_claim", "wal.before_put"])
def test_a_stopped_appender_cannot_acknowledge_after_a_takeover(point: str, predecessors: int, tmp_path: Path) -> None:
    location = place(tmp_path)
    for _ in range(predecessors):
        WalAppender.open(location, SHARD, fsync=False).append(rows(1))
    child = stalled(location.uri, point, 2)
    successor = take_over(location)
    told = woken(child)
    assert told[0] == "FencedError", told
    assert "Writer fenced" in str(told[1])
    assert successor.append(rows(12)) > 0
    log = story(read_all(location))
    assert not any(666 in what for _, _, what in log if isinstance(what, list))
    assert [what for _, epoch, what in log if epoch == successor.epoch] == ["sentinel", [10], [11], [12]]


@pytest.mark.parametrize("point", ["open.after_claim", "wal.before_put"])
def test_a_stopped_appender_cannot_acknowledge_after_takeovers_and_collection(point: str, tmp_path: Path) -> None:
    """Everything of the log is flushed and collected but its sentinels and its newest entry."""
    location = place(tmp_path)
    WalAppender.open(location, SHARD, fsync=False).append(rows(1))
    child = stalled(location.uri, point, 2)
    for _ in range(3):
        successor = take_over(location)
    cursor = successor.next_position - 2
    flushed(location, cursor)
    collected(location, cursor)
    told = woken(child)
    assert told[0] == "FencedError", told
    assert ids_in(location) == [11]


def ids_in(location: Location) -> list[int]:
    return [number for _, _, what in story(read_all(location)) if isinstance(what, list) for number in what]


def test_an_entry_that_was_stored_before_the_stop_is_acknowledged_and_the_successor_has_it(tmp_path: Path) -> None:
    location = place(tmp_path)
    child = stalled(location.uri, "wal.after_put", 2)
    successor = take_over(location)
    assert woken(child) == ("acknowledged", 3)
    assert story(read_all(location)) == [
        (1, 1, [0]),
        (2, 1, [1]),
        (3, 1, [666]),
        (4, successor.epoch, "sentinel"),
        (5, successor.epoch, [10]),
        (6, successor.epoch, [11]),
    ]


def test_a_forked_child_appends_nothing_and_its_parent_goes_on(tmp_path: Path) -> None:
    location = place(tmp_path)
    process = start(append_in_a_fork, location.uri, SHARD)
    told = [process.receive(SECONDS), process.receive(SECONDS)]
    assert process.wait(SECONDS) == 0
    assert told[0] is not None
    assert told[0][:2] == ("child", "ClosedError")
    assert told[1] == ("parent", "acknowledged", 2)
    assert story(read_all(location)) == [(1, 1, [1]), (2, 1, [2])]
