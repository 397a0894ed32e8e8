"""Opening a log: claim, sentinel, second look; a process that slept in a claim, an append or a flush loses the shard."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import ConflictError, CorruptDataError, FencedError, InvalidInputError, UnavailableError, WalAppender
from lance_memwal import crash_points as memwal_hooks
from lance_memwal.log.entry import decode_entry, encode_mark, encode_sentinel
from lance_memwal.log.manifest_codec import encode_manifest
from lance_memwal.log.reading import read_transactions
from lance_memwal.log.tail import LogRun
from lance_memwal.store import paths
from lance_memwal.store.location import Location, resolve
from lance_memwal.store.wrap import WrappedStore
from lance_memwal.testing import FaultKind, FaultPlan, FaultScript
from lance_memwal.testing.clocks import SkippingClock
from lance_memwal.types import ShardManifest, ShardStatus
from lance_memwal.write.claim import ShardClaim
from lance_memwal.write.once import OnceAppender
from tests.harness.processes import Child, start
from tests.kit.logs import (
    SHARD,
    collected,
    delete_entry,
    entry_bytes,
    flushed,
    interrupted,
    manifests_at,
    map_of,
    open_shard,
    place,
    put_entry,
    read_all,
    rows,
    story,
    with_map,
)
from wal.wal_children import append_and_stall, append_in_a_fork

CLAIMED = ShardManifest(1, SHARD, writer_epoch=1)


@pytest.fixture
def at_point() -> Iterator[Callable[[str, Callable[[], object]], None]]:
    """Run something once, when the engine reaches a point."""

    def install(point: str, action: Callable[[], object]) -> None:
        def handler(reached: str) -> None:
            if reached == point:
                memwal_hooks.install(None)
                action()

        memwal_hooks.install(handler)

    yield install
    memwal_hooks.install(None)


def sentinel_of(location: Location, position: int) -> tuple[int, bool]:
    found = decode_entry(location.store.get(paths.wal_entry_path(SHARD, position)))
    return found.writer_epoch, found.is_sentinel


# ------------------------------------------------------------------------------------------------- epoch 1


def test_epoch_1_writes_no_sentinel_and_starts_after_the_cursor(tmp_path: Path) -> None:
    location = place(tmp_path)
    opened = open_shard(location)
    assert (opened.log.epoch, opened.log.next_position, opened.replay_start, opened.replay_end) == (1, 1, 1, 1)
    assert location.store.list_names(paths.wal_dir(SHARD)) == []


def test_epoch_1_starts_after_the_cursor_of_a_manifest_that_nobody_claimed_and_never_lists(tmp_path: Path) -> None:
    location = place(tmp_path)
    blank = ShardManifest(
        3, SHARD, replay_after_wal_entry_position=6, wal_entry_position_last_seen=6, current_generation=2
    )
    location.store.put_new(paths.manifest_path(SHARD, 3), encode_manifest(blank))
    put_entry(location, 9, entry_bytes(0, 1))
    script = FaultScript()
    opened = open_shard(place(tmp_path, wrap=script.wrap))
    assert (opened.log.epoch, opened.log.next_position) == (1, 7)
    assert ("list_names", paths.wal_dir(SHARD)) not in [(call.kind, call.path) for call in script.calls]


def test_stale_first_claimer_is_fenced(tmp_path: Path, at_point: Callable[[str, Callable[[], object]], None]) -> None:
    location = place(tmp_path)
    at_point("open.after_claim", lambda: WalAppender.open(location, SHARD).append(rows(1)))
    sleeper = WalAppender.open(location, SHARD)
    assert (sleeper.epoch, sleeper.next_position) == (1, 1)
    with pytest.raises(FencedError, match="Writer fenced"):
        sleeper.append(rows(2))
    assert story(read_all(location)) == [(1, 2, "sentinel"), (2, 2, [1])]


# ------------------------------------------------------------------------------------------------- sentinel


def test_a_takeover_places_its_sentinel_at_the_tip_and_goes_on_behind_it(tmp_path: Path) -> None:
    location = place(tmp_path)
    first = WalAppender.open(location, SHARD)
    for number in range(3):
        first.append(rows(number))
    second = WalAppender.open(location, SHARD)
    assert (second.epoch, second.next_position) == (2, 5)
    assert sentinel_of(location, 4) == (2, True)
    assert second.append(rows(9)) == 5


def test_the_next_position_of_a_writer_is_the_position_of_its_direct_successors_sentinel(tmp_path: Path) -> None:
    location = place(tmp_path)
    writers = [WalAppender.open(location, SHARD)]
    for takeover in range(5):
        for number in range(takeover):
            writers[-1].append(rows(number))
        expected = writers[-1].next_position
        writers.append(WalAppender.open(location, SHARD))
        assert sentinel_of(location, expected) == (writers[-1].epoch, True)
    for stale in writers[:-1]:
        with pytest.raises(FencedError) as error:
            stale.append(rows(0))
        assert error.value.our_epoch == stale.epoch


def test_a_sentinel_goes_above_the_cursor_and_above_the_last_seen_position_when_the_log_is_gone(tmp_path: Path) -> None:
    location = place(tmp_path)
    gone = ShardManifest(
        2,
        SHARD,
        writer_epoch=1,
        replay_after_wal_entry_position=10,
        wal_entry_position_last_seen=10,
        current_generation=2,
    )
    location.store.put_new(paths.manifest_path(SHARD, 2), encode_manifest(gone))
    opened = open_shard(location)
    assert (opened.replay_start, opened.replay_end, opened.log.next_position) == (11, 11, 12)
    assert sentinel_of(location, 11) == (2, True)


def test_a_stray_name_in_the_log_does_not_move_the_tip(tmp_path: Path) -> None:
    location = place(tmp_path)
    WalAppender.open(location, SHARD).append(rows(1))
    for stray in (f"{paths.number_name(50)}.arrow.tmp", f"{paths.number_name(51)}.arrow#1", "foo.tmp"):
        location.store.put(f"{paths.wal_dir(SHARD)}/{stray}", b"stray")
    assert WalAppender.open(location, SHARD).next_position == 3


def test_a_sentinel_that_meets_an_entry_moves_on_and_takes_over_its_map(tmp_path: Path) -> None:
    """The predecessor appends between the successor's listing and its sentinel."""
    location = place(tmp_path)
    first = WalAppender.open(location, SHARD)
    first.append(rows(1), txn=("a", 1))
    race = interrupted("list_names", paths.wal_dir(SHARD), lambda: first.append(rows(2), txn=("b", 7)))
    opened = open_shard(place(tmp_path, wrap=race))
    assert (opened.replay_end, opened.log.next_position) == (3, 4)
    assert {app: item.version for app, item in opened.transactions.whole().items()} == {"a": 1, "b": 7}
    found = decode_entry(location.store.get(paths.wal_entry_path(SHARD, 3)))
    assert found.is_sentinel
    assert map_of(found) == {"a": 1, "b": 7}
    assert [e.position for e in read_all(location)] == [1, 2, 3]


def test_a_sentinel_that_meets_a_lower_sentinel_or_a_mark_moves_on(tmp_path: Path) -> None:
    location = place(tmp_path)
    manifests_at(location).claim_epoch()
    manifests_at(location).claim_epoch()

    def late() -> None:
        put_entry(location, 1, encode_sentinel(2, with_map(a=3)))
        put_entry(location, 2, encode_mark(1, with_map(b=4)))
        put_entry(location, 3, entry_bytes(0, 5))

    race = interrupted("list_names", paths.wal_dir(SHARD), late)
    opened = open_shard(place(tmp_path, wrap=race))
    assert (opened.log.epoch, opened.replay_end, opened.log.next_position) == (3, 4, 5)
    assert {app: item.version for app, item in opened.transactions.whole().items()} == {"a": 3, "b": 4}


MET: dict[str, tuple[bytes, type[Exception], dict[str, object]]] = {
    "a higher epoch": (encode_sentinel(3), FencedError, {"our_epoch": 2, "current_epoch": 3}),
    "its own epoch with other bytes": (encode_mark(2), ConflictError, {"retryable": True}),
    "damage": (b"torn", CorruptDataError, {"position": 1, "path": paths.wal_entry_path(SHARD, 1)}),
}


@pytest.mark.parametrize("met", MET)
def test_sentinel_that_meets_an_entry_it_cannot_pass_raises(tmp_path: Path, met: str) -> None:
    data, kind, expected = MET[met]
    location = place(tmp_path)
    manifests_at(location).claim_epoch()
    race = interrupted("list_names", paths.wal_dir(SHARD), lambda: put_entry(location, 1, data))
    with pytest.raises(kind) as error:
        open_shard(place(tmp_path, wrap=race))
    assert {name: getattr(error.value, name) for name in expected} == expected


def test_an_open_whose_sentinel_cannot_be_written_is_unavailable_and_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    location = place(tmp_path)
    WalAppender.open(location, SHARD).append(rows(1))
    plan = FaultPlan(rate=1.0, kinds=frozenset({FaultKind.THROTTLE, FaultKind.CONFLICT_WITHOUT_EFFECT}))
    script = FaultScript(plan)
    refusing = replace(location, store_once=script.wrap(location.store_once))
    with pytest.raises(UnavailableError) as error:
        open_shard(refusing)
    assert error.value.retryable
    assert {call.kind for call in script.calls} <= {"put_new", "get", "put"}
    assert story(read_all(location)) == [(1, 1, [1])]


# ------------------------------------------------------------------------------------------------- second look


def test_second_look_fences_stale_claim(tmp_path: Path, at_point: Callable[[str, Callable[[], object]], None]) -> None:
    location = place(tmp_path)
    WalAppender.open(location, SHARD).append(rows(1))
    successor: list[WalAppender] = []

    def take_over() -> None:
        successor.append(WalAppender.open(location, SHARD))
        successor[0].append(rows(2))

    at_point("open.after_claim", take_over)
    with pytest.raises(FencedError, match="Writer fenced") as error:
        WalAppender.open(location, SHARD)
    assert (error.value.our_epoch, error.value.current_epoch) == (2, 3)
    assert successor[0].append(rows(3)) == 5, "the sleeper's sentinel at 4 moves the successor on, and nothing more"
    assert story(read_all(location)) == [(1, 1, [1]), (2, 3, "sentinel"), (3, 3, [2]), (4, 2, "sentinel"), (5, 3, [3])]


def test_second_look_needs_no_sentinel(tmp_path: Path, at_point: Callable[[str, Callable[[], object]], None]) -> None:
    location = place(tmp_path)
    WalAppender.open(location, SHARD).append(rows(1))
    at_point("open.after_claim", lambda: manifests_at(location).claim_epoch())
    with pytest.raises(FencedError):
        WalAppender.open(location, SHARD)


def test_second_look_reads_moved_cursor(tmp_path: Path, at_point: Callable[[str, Callable[[], object]], None]) -> None:
    location = place(tmp_path)
    first = WalAppender.open(location, SHARD)
    for number in range(3):
        first.append(rows(number))
    at_point("open.after_claim", lambda: flushed(location, 2))
    opened = open_shard(location)
    assert opened.manifest.version == 3
    assert (opened.replay_start, opened.replay_end) == (3, 4)


def test_a_second_look_that_misses_our_own_claim_is_an_error(tmp_path: Path) -> None:
    location = place(tmp_path)
    manifests_at(location).claim_epoch()
    hidden = paths.manifest_path(SHARD, 2)
    data: list[bytes] = []

    def hide() -> None:
        data.append(location.store.get(hidden))
        location.store.delete(hidden)

    stale = place(tmp_path, wrap=interrupted("list_names", paths.wal_dir(SHARD), hide))
    with pytest.raises(UnavailableError):
        open_shard(stale)
    location.store.put_new(hidden, data[0])


# ------------------------------------------------------------------------------------------------- what is read


@pytest.mark.parametrize("damage", [None, b"", b"torn", entry_bytes(1, 1)[:-40]], ids=["gap", "empty", "text", "cut"])
def test_damage_in_the_tail_is_an_error_that_names_its_position(damage: bytes | None, tmp_path: Path) -> None:
    location = place(tmp_path)
    first = WalAppender.open(location, SHARD)
    for number in range(4):
        first.append(rows(number))
    delete_entry(location, 2)
    if damage is not None:
        put_entry(location, 2, damage)
    with pytest.raises(CorruptDataError, match="missing" if damage is None else None) as error:
        WalAppender.open(location, SHARD)
    assert error.value.position == 2


@pytest.mark.parametrize("claimed", [True, False], ids=["after its claim", "before its claim"])
def test_open_whose_tail_a_successor_collected_is_fenced_or_continues_above(tmp_path: Path, claimed: bool) -> None:
    location = place(tmp_path)
    first = WalAppender.open(location, SHARD)
    for number in range(3):
        first.append(rows(number))

    def take_over_flush_and_collect() -> None:
        cursor = open_shard(location).replay_end
        flushed(location, cursor)
        for position in (1, 2, 3):
            delete_entry(location, position)

    path = paths.wal_entry_path(SHARD, 1)
    late = place(tmp_path, wrap=interrupted("get", path, take_over_flush_and_collect, before=True))
    if claimed:
        with pytest.raises(FencedError, match="WAL replay aborted") as error:
            LogRun.of_tail(open_shard(late))
        assert (error.value.our_epoch, error.value.current_epoch) == (2, 3)
    else:
        third = WalAppender.open(late, SHARD)
        assert (third.epoch, third.append(rows(9))) == (3, 6)


def test_an_entry_of_a_higher_epoch_in_the_tail_aborts_the_open_as_fenced(tmp_path: Path) -> None:
    location = place(tmp_path)
    manifests_at(location).claim_epoch()
    put_entry(location, 1, entry_bytes(9, 1))
    with pytest.raises(FencedError, match="WAL replay aborted") as error:
        WalAppender.open(location, SHARD)
    assert (error.value.our_epoch, error.value.current_epoch) == (2, 9)


def test_the_map_is_found_behind_entries_of_other_writers_and_in_a_map_larger_than_the_tail(tmp_path: Path) -> None:
    location = place(tmp_path)
    manifests_at(location).claim_epoch()
    many = {f"application number {n}": n for n in range(3_000)}
    put_entry(location, 1, encode_mark(1, with_map(**many)))
    put_entry(location, 2, entry_bytes(1, 2)[:-28])  # as another implementation leaves it: no footer
    found = open_shard(location).transactions.whole()
    assert {app: item.version for app, item in found.items()} == many


@pytest.mark.parametrize("is_local", [True, False], ids=["near", "far"])
@pytest.mark.parametrize("others", [0, 1, 8, 9, 200])
def test_map_is_found_behind_other_entries_with_one_read_each(others: int, is_local: bool, tmp_path: Path) -> None:
    location = place(tmp_path)
    put_entry(location, 1, encode_mark(1, with_map(old=1)))
    put_entry(location, 2, encode_mark(1, with_map(app=5)))
    bare = entry_bytes(1, 1)[:-28]
    for position in range(3, 3 + others):
        put_entry(location, position, bare)
    script = FaultScript()
    through = replace(place(tmp_path, wrap=script.wrap), is_local=is_local)
    found = read_transactions(through, CLAIMED, list(range(1, 3 + others))).whole()
    assert {app: item.version for app, item in found.items()} == {"app": 5}
    assert {call.kind for call in script.calls} == {"get_tail"}
    assert others + 1 <= len(script.calls) <= others + 2


def test_a_log_of_other_writers_alone_has_no_map(tmp_path: Path) -> None:
    location = place(tmp_path)
    put_entry(location, 1, entry_bytes(1, 1)[:-28])
    assert read_transactions(location, CLAIMED, [1]).whole() == {}
    assert read_transactions(location, CLAIMED, []).whole() == {}


def test_a_damaged_footer_is_not_taken_for_an_entry_of_another_writer(tmp_path: Path) -> None:
    """Its map would be lost, and a transaction that is in it would be written again."""
    location = place(tmp_path)
    put_entry(location, 1, encode_mark(1, with_map(app=5))[:-1] + b"2")
    with pytest.raises(CorruptDataError) as error:
        read_transactions(location, CLAIMED, [1])
    assert error.value.position == 1


# ------------------------------------------------------------------------------------------------- refusals


def test_a_sealed_shard_is_not_opened(tmp_path: Path) -> None:
    location = place(tmp_path)
    sealed = ShardManifest(1, SHARD, status=ShardStatus.SEALED)
    location.store.put_new(paths.manifest_path(SHARD, 1), encode_manifest(sealed))
    with pytest.raises(InvalidInputError, match="sealed"):
        WalAppender.open(location, SHARD)
    assert location.store.list_names(paths.wal_dir(SHARD)) == []


@pytest.mark.parametrize("shard_id", ["", "..", SHARD.upper(), f"{SHARD}/..", "5f1c7d1e"])
def test_what_is_no_shard_id_is_refused_before_anything_is_claimed(shard_id: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="shard id"):
        WalAppender.open(str(tmp_path / "table"), shard_id)
    assert not (tmp_path / "table").exists()


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


UNSHARDED = mw.shard_id_for(mw.Unsharded())
ROWS = [pa.record_batch({"id": pa.array(range(200), pa.int64())})]
ONE_ROW = [pa.record_batch({"id": pa.array([1], pa.int64())})]


class _Once(WrappedStore):
    """Runs `action` right before the call of this kind on `path` that follows `skip` others."""

    def __init__(self, inner: Any, kind: str, path: str, action: Callable[[], object], skip: int) -> None:
        super().__init__(inner)
        self._kind, self._path = kind, path
        self._actions: list[Callable[[], object]] = [action, *([lambda: None] * skip)]

    def around(self, kind: str, call: Callable[..., Any], path: str, *rest: Any, **options: Any) -> Any:
        if self._actions and (kind, path) == (self._kind, self._path):
            self._actions.pop()()
        return call(path, *rest, **options)


def _before(uri: str, kind: str, path: str, action: Callable[[], object], skip: int = 0) -> Location:
    location = resolve(uri)
    store: Any = _Once(location.store, kind, path, action, skip)
    return replace(location, store=store, store_once=store)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    place = str(tmp_path / "t")
    mw.create_table(place, pa.schema([pa.field("id", pa.int64())]), sharding=mw.Unsharded())
    return place


def _appender(place: str | Location) -> OnceAppender:
    return OnceAppender(place, max_entry_bytes=500, clock=SkippingClock())


def test_a_sentinel_that_comes_late_leaves_no_large_append_out(uri: str) -> None:
    others = _appender(uri)
    others.claim(UNSHARDED)
    claims: list[ShardClaim] = []

    def meanwhile() -> None:
        """Between the claim of the sleeper and its look at the log: it is fenced, and a large append is published."""
        claims.append(others.claim(UNSHARDED))
        others.append(claims[0], ROWS, txn=("app", 1))

    wal = paths.wal_dir(UNSHARDED)
    sleeper = _appender(_before(uri, "make_directory", wal, meanwhile))
    with pytest.raises(mw.FencedError):
        sleeper.claim(UNSHARDED)
    again = _appender(uri).append(claims[0], ROWS, txn=("app", 1))
    assert again.skipped
    assert mw.open_table(uri).count_rows() == 200


def test_a_claim_brings_no_directory_of_a_removed_table_back(uri: str) -> None:
    sleeper = _appender(_before(uri, "make_directory", paths.wal_dir(UNSHARDED), lambda: shutil.rmtree(uri)))
    with pytest.raises(mw.TableReplacedError):
        sleeper.claim(UNSHARDED)
    assert not Path(uri).exists()


def test_an_entry_that_is_collected_while_it_is_met_is_nobodys_error(uri: str) -> None:
    others = _appender(uri)
    claim = others.claim(UNSHARDED)
    others.append(claim, ONE_ROW, txn=("other", 1))
    position = others.catch_up(claim).last_position + 1
    path = paths.wal_entry_path(UNSHARDED, position)

    def flush_and_collect() -> None:
        others.flush_tail(claim)
        resolve(uri).store.delete(path)

    sleeper = _appender(_before(uri, "get", path, flush_and_collect))
    sleeper.catch_up(claim)
    others.append(claim, ONE_ROW, txn=("other", 2))
    assert not sleeper.append(claim, ONE_ROW, txn=("app", 1)).skipped
    assert mw.open_table(uri).count_rows() == 3


def test_a_tail_that_was_flushed_and_collected_during_a_flush_is_not_damaged(uri: str) -> None:
    others = _appender(uri)
    claim = others.claim(UNSHARDED)
    path = paths.wal_entry_path(UNSHARDED, others.append(claim, ONE_ROW, txn=("other", 1)).position)

    def flush_and_collect() -> None:
        others.flush_tail(claim)
        others.append(claim, ONE_ROW, txn=("other", 2))
        resolve(uri).store.delete(path)

    sleeper = _appender(_before(uri, "get", path, flush_and_collect, skip=1))
    assert sleeper.flush_tail(claim) == 0
    assert mw.open_table(uri).count_rows() == 2
