"""Reading a log as it grows: holes are errors, the tip is None, and nothing is ever written."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from lance_memwal import CollectedError, CorruptDataError, InvalidInputError, UnavailableError, WalAppender, WalTailer
from lance_memwal.log.entry import encode_sentinel
from lance_memwal.log.reading import read_run
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.store.port import ObjectStore
from lance_memwal.store.wrap import WrappedStore
from lance_memwal.testing import FaultKind, FaultPlan, FaultScript
from lance_memwal.testing.clocks import SkippingClock
from tests.kit.logs import (
    OTHER_SHARD,
    SHARD,
    collected,
    delete_entry,
    entry_bytes,
    flushed,
    ids,
    interrupted,
    place,
    put_entry,
    read_until_damage,
    rows,
)


def grown(location: Location, entries: int) -> WalAppender:
    """A log with `entries` entries of one row, whose id is their position."""
    appender = WalAppender.open(location, SHARD, fsync=False)
    for number in range(1, entries + 1):
        appender.append(rows(number))
    return appender


# ------------------------------------------------------------------------------------------------- positions


def test_a_log_that_nothing_was_collected_from_starts_at_1(tmp_path: Path) -> None:
    location = place(tmp_path)
    tailer = WalTailer(location, SHARD)
    assert (tailer.first_position(), tailer.next_position(), tailer.read_entry(1)) == (1, 1, None)
    grown(location, 5)
    assert (tailer.first_position(), tailer.next_position()) == (1, 6)
    flushed(location, 4)
    assert (tailer.first_position(), tailer.next_position()) == (1, 6)
    assert [tailer.read_entry(position) for position in (6, 7, 1_000)] == [None, None, None], "above the tip"
    assert ids(tailer.read_entry(2)) == [2], "a kept entry below the cursor"
    for position in (0, -1):
        with pytest.raises(InvalidInputError):
            tailer.read_entry(position)


def test_the_first_position_is_behind_the_gap_and_the_kept_sentinels_before_it_do_not_count(tmp_path: Path) -> None:
    for up_to, first in ((2, 3), (7, 8)):  # a sentinel right before the run belongs to it
        location = place(tmp_path / str(up_to))
        grown(location, 2)  # 1, 2
        grown(location, 2)  # sentinel 3, then 4, 5
        grown(location, 3)  # sentinel 6, then 7, 8, 9
        flushed(location, up_to)
        collected(location, up_to)
        assert WalTailer(location, SHARD).first_position() == first
    names = location.store.list_names(paths.wal_dir(SHARD))
    assert sorted(paths.parse_entry_name(name) or 0 for name in names) == [3, 6, 8, 9]
    tailer = WalTailer(location, SHARD)
    assert (tailer.first_position(), tailer.next_position()) == (8, 10)
    assert [entry.position for entry in islice(tailer.follow(), 2)] == [8, 9]


@pytest.mark.parametrize("far_sentinel", [False, True], ids=["nothing", "a sentinel of another implementation"])
def test_a_log_that_was_collected_to_its_tip_starts_where_it_goes_on(tmp_path: Path, far_sentinel: bool) -> None:
    location = place(tmp_path)
    grown(location, 3)
    flushed(location, 3)
    for position in (1, 2, 3):
        delete_entry(location, position)
    tailer = WalTailer(location, SHARD)
    if far_sentinel:
        put_entry(location, 1, encode_sentinel(2))
    else:
        assert tailer.next_position() == 4
    assert (tailer.first_position(), tailer.read_entry(4)) == (4, None)


def test_a_hole_above_the_cursor_is_no_start_of_the_log(tmp_path: Path) -> None:
    location = place(tmp_path)
    grown(location, 4)
    delete_entry(location, 2)
    tailer = WalTailer(location, SHARD)
    assert tailer.first_position() == 1
    assert ids(tailer.read_entry(1)) == [1]
    with pytest.raises(CorruptDataError):
        tailer.read_entry(2)
    delete_entry(location, 1)
    assert tailer.first_position() == 1
    with pytest.raises(CorruptDataError):
        tailer.read_entry(1)


# ------------------------------------------------------------------------------------------------- one entry


def test_an_entry_is_read_with_everything_that_it_is(tmp_path: Path) -> None:
    location = place(tmp_path)
    appender = grown(location, 1)
    appender.append([rows(2), rows(3, 4)], txn=("app", 7))
    entry = WalTailer(location, SHARD).read_entry(2)
    assert entry is not None
    assert (entry.position, entry.writer_epoch, entry.generation, entry.is_sentinel) == (2, 1, 1, False)
    assert [batch.column_names for batch in entry.batches] == [["id", "name", "_tombstone"]] * 2
    assert entry.txn is not None
    assert (entry.txn.app, entry.txn.version, entry.num_rows) == ("app", 7, 3)


def test_a_position_that_collection_passed_is_said_to_be_collected(tmp_path: Path) -> None:
    location = place(tmp_path)
    grown(location, 4)
    flushed(location, 2)
    collected(location, 2)
    tailer = WalTailer(location, SHARD)
    for position in (1, 2):
        with pytest.raises(CollectedError, match="first_position") as error:
            tailer.read_entry(position)
        assert isinstance(error.value, LookupError)
    assert ids(tailer.read_entry(3)) == [3]


def test_a_hole_above_the_cursor_is_corruption_that_names_the_position(tmp_path: Path) -> None:
    location = place(tmp_path)
    grown(location, 4)
    flushed(location, 1)
    delete_entry(location, 3)
    with pytest.raises(CorruptDataError, match="missing") as error:
        WalTailer(location, SHARD).read_entry(3)
    assert (error.value.position, error.value.path) == (3, paths.wal_entry_path(SHARD, 3))


DAMAGE = {
    "empty": b"",
    "one byte": b"\xff",
    "torn in the middle": entry_bytes(1, 1, 2, 3)[:300],
    "torn in the footer": entry_bytes(1, 1)[:-5],
    "flipped": entry_bytes(1, 1)[:100] + b"\x55" + entry_bytes(1, 1)[101:],
    "text": b"this is no entry",
}


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("last", [False, True], ids=["in the middle", "at the tip"])
def test_corrupt_entry_is_an_error_and_never_the_end(how: str, last: bool, tmp_path: Path) -> None:
    location = place(tmp_path)
    grown(location, 3)
    position = 3 if last else 2
    delete_entry(location, position)
    put_entry(location, position, DAMAGE[how])
    tailer = WalTailer(location, SHARD)
    with pytest.raises(CorruptDataError) as error:
        tailer.read_entry(position)
    assert (error.value.position, error.value.path) == (position, paths.wal_entry_path(SHARD, position))
    met, _ = read_until_damage(tailer.follow())
    assert met == list(range(1, position))


@pytest.mark.parametrize("call", ["get", "list_names"])
def test_a_storage_error_is_never_read_as_the_tip(call: str, tmp_path: Path) -> None:
    grown(place(tmp_path), 2)
    dry = FaultScript()
    assert WalTailer(place(tmp_path, wrap=dry.wrap), SHARD).read_entry(3) is None
    for index in (c.index for c in dry.calls if c.kind == call):
        script = FaultScript(FaultPlan(at=dict.fromkeys(range(index, index + 8), FaultKind.ERROR_BEFORE)))
        with pytest.raises(UnavailableError):
            WalTailer(place(tmp_path, wrap=script.wrap), SHARD).read_entry(3)


def test_an_entry_that_arrives_while_the_tip_is_made_sure_is_returned(tmp_path: Path) -> None:
    location = place(tmp_path)
    appender = grown(location, 2)
    race = interrupted("list_names", paths.wal_dir(SHARD), lambda: appender.append(rows(3)))
    assert ids(WalTailer(place(tmp_path, wrap=race), SHARD).read_entry(3)) == [3]


def test_an_entry_that_is_collected_while_the_tip_is_made_sure_is_collected_and_not_the_tip(tmp_path: Path) -> None:
    location = place(tmp_path)
    grown(location, 4)

    def collect() -> None:
        flushed(location, 3)
        for position in (1, 3):
            delete_entry(location, position)

    delete_entry(location, 2)
    race = interrupted("list_names", paths.wal_dir(SHARD), collect)
    with pytest.raises(CollectedError):
        WalTailer(place(tmp_path, wrap=race), SHARD).read_entry(2)


@pytest.mark.parametrize("call", range(4))
def test_reader_stalled_at_any_call_reports_a_collected_position(call: int, tmp_path: Path) -> None:
    """It is never told of a hole, and never that the log ends before what it then finds."""
    location = place(tmp_path)
    appender = grown(location, 2)

    def move_on() -> None:
        for number in (3, 4, 5):
            appender.append(rows(number))
        flushed(location, 4)
        collected(location, 4)

    sleeper = _Sleeping(call, move_on)
    tailer = WalTailer(place(tmp_path, wrap=sleeper.wrap), SHARD)
    with pytest.raises(CollectedError):
        tailer.read_entry(3)
    assert sleeper.awake


class _Sleeping(WrappedStore):
    """Runs `meanwhile` right before store call number `call`."""

    def __init__(self, call: int, meanwhile: Callable[[], None]) -> None:
        self._left = call
        self._meanwhile = meanwhile
        self.awake = False

    def wrap(self, store: ObjectStore) -> ObjectStore:
        super().__init__(store)
        return self

    def around(self, kind: str, call: Callable[..., Any], path: str, *rest: Any, **options: Any) -> Any:
        if self._left == 0:
            self.awake = True
            self._meanwhile()
        self._left -= 1
        return call(path, *rest, **options)


# ------------------------------------------------------------------------------------------------- following


def test_follow_yields_everything_in_order_while_a_writer_appends_and_stops_on_its_event(tmp_path: Path) -> None:
    location = place(tmp_path)
    appender = WalAppender.open(location, SHARD, fsync=False)
    stop, failures = threading.Event(), list[BaseException]()

    def write() -> None:
        try:
            for number in range(1, 101):
                appender.append(rows(number))
        except BaseException as error:
            failures.append(error)
            stop.set()

    writer = threading.Thread(target=write)
    writer.start()
    met = []
    for entry in WalTailer(str(tmp_path / "table"), SHARD).follow(poll_seconds=0.001, stop=stop):
        met.append((entry.position, ids(entry)))
        if entry.position == 100:
            stop.set()
    writer.join()
    assert failures == []
    assert met == [(number, [number]) for number in range(1, 101)]


def test_follow_goes_on_over_a_takeover(tmp_path: Path) -> None:
    location = place(tmp_path)
    grown(location, 2)
    grown(location, 2)
    met = []
    for entry in WalTailer(location, SHARD).follow():
        met.append((entry.position, entry.writer_epoch, entry.is_sentinel))
        if entry.position == 5:
            break
    assert met == [(1, 1, False), (2, 1, False), (3, 2, True), (4, 2, False), (5, 2, False)]


def test_follow_starts_where_it_is_told_and_stops_when_its_callable_says_so(tmp_path: Path) -> None:
    location = place(tmp_path)
    grown(location, 5)
    met: list[int] = []
    for entry in WalTailer(location, SHARD).follow(start=3, stop=lambda: len(met) == 2):
        met.append(entry.position)
    assert met == [3, 4]


def test_follow_ends_at_once_if_it_is_stopped_before_it_starts_and_in_the_middle_of_a_wait(tmp_path: Path) -> None:
    location = place(tmp_path)
    grown(location, 1)
    stop = threading.Event()
    stop.set()
    assert list(WalTailer(location, SHARD).follow(stop=stop)) == []
    stop.clear()
    following = WalTailer(location, SHARD).follow(poll_seconds=3_600, stop=stop)
    assert next(following).position == 1
    threading.Timer(0.05, stop.set).start()
    assert list(following) == []


def test_waiting_at_the_tip_costs_about_one_call_per_look(tmp_path: Path) -> None:
    grown(place(tmp_path), 2)
    script = FaultScript()
    tailer = WalTailer(place(tmp_path, wrap=script.wrap), SHARD, clock=SkippingClock())
    assert list(tailer.follow(start=3, stop=_after(200))) == []
    assert 200 <= len(script.calls) < 300


def test_a_follower_that_waits_where_collection_passed_by_is_told_so_before_long(tmp_path: Path) -> None:
    location = place(tmp_path)
    appender = grown(location, 2)

    class Moving(SkippingClock):
        def sleep(self, seconds: float) -> None:  # type: ignore[override]
            super().sleep(seconds)
            if len(self.slept) == 1:  # while the follower sleeps, its position is written, flushed and collected
                appender.append(rows(3))
                appender.append(rows(4))
                flushed(location, 3)
                collected(location, 3)

    clock = Moving()
    with pytest.raises(CollectedError):
        list(WalTailer(location, SHARD, clock=clock).follow(start=3, poll_seconds=0.05))
    assert sum(clock.slept) < 2


def test_a_follower_that_collection_overtook_is_told_so(tmp_path: Path) -> None:
    location = place(tmp_path)
    grown(location, 4)
    following = WalTailer(location, SHARD).follow()
    assert next(following).position == 1
    flushed(location, 3)
    collected(location, 3)
    with pytest.raises(CollectedError):
        next(following)


# ------------------------------------------------------------------------------------------------- side effects


def test_a_tailer_writes_nothing_claims_nothing_and_fences_nobody(tmp_path: Path) -> None:
    location = place(tmp_path)
    appender = grown(location, 3)
    before = sorted(location.store.list(paths.shard_dir(SHARD)), key=lambda meta: meta.path)
    script = FaultScript()
    tailer = WalTailer(place(tmp_path, wrap=script.wrap), SHARD)
    tailer.first_position()
    tailer.next_position()
    list(tailer.follow(stop=_after(3)))
    tailer.read_entry(4)
    assert {call.kind for call in script.calls} == {"get", "list_names"}
    assert sorted(location.store.list(paths.shard_dir(SHARD)), key=lambda meta: meta.path) == before
    assert appender.append(rows(4)) == 4
    assert WalTailer(location, OTHER_SHARD).read_entry(1) is None
    assert location.store.list_names(paths.MEM_WAL_DIR) == [SHARD]


def _after(calls: int) -> Callable[[], bool]:
    left = [calls]

    def stop() -> bool:
        left[0] -= 1
        return left[0] < 0

    return stop


def test_a_tailer_says_what_it_reads_and_no_options(tmp_path: Path) -> None:
    shown = repr(WalTailer(str(tmp_path), SHARD, storage_options={"secret": "hush"}))
    assert SHARD in shown
    assert "hush" not in shown
    with pytest.raises(InvalidInputError):
        WalTailer(str(tmp_path), "no shard")


# ------------------------------------------------------------------------------------------------- runs


@pytest.mark.parametrize("is_local", [True, False], ids=["near", "far, read ahead"])
def test_a_run_is_read_in_order_and_a_hole_in_it_is_an_error(tmp_path: Path, is_local: bool) -> None:
    grown(place(tmp_path), 30)
    location = replace(place(tmp_path), is_local=is_local)
    assert [ids(entry) for entry in read_run(location, SHARD, 2, 31)] == [[n] for n in range(2, 31)]
    assert list(read_run(location, SHARD, 4, 4)) == []
    met, error = read_until_damage(read_run(location, SHARD, 1, 33))
    assert (met, error.position) == (list(range(1, 31)), 31)
    delete_entry(location, 20)
    met, error = read_until_damage(read_run(location, SHARD, 1, 31))
    assert (met, error.position) == (list(range(1, 20)), 20)
