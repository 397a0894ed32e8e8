"""A transaction is written once, across takeovers and writers; its map stays small and can always be written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import InvalidInputError, WalAppender
from lance_memwal.clock import Clock, SystemClock
from lance_memwal.log.entry import encode_mark
from lance_memwal.log.reading import list_positions, read_transactions
from lance_memwal.log.transactions import (
    EXPIRY_MS,
    MAX_APPLICATIONS,
    MAX_ID_BYTES,
    OWN_EXPIRY_MS,
    ShardTime,
    TransactionMap,
    as_transaction,
    is_repeat,
    merge_seen,
)
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.testing.clocks import SkippingClock
from lance_memwal.types import EntryFooter, EntryTransaction, SeenTransaction, Transaction
from lance_memwal.write.once import OnceAppender
from tests.kit.logs import (
    SCHEMA,
    SHARD,
    entry_bytes,
    flushed,
    manifests_at,
    map_of,
    place,
    put_entry,
    read_all,
    rows,
    seen,
    story,
)


def appender(location: Location, **options: Any) -> WalAppender:
    return WalAppender.open(location, SHARD, fsync=False, **options)


def versions(location: Location) -> dict[str, int]:
    """The transactions that the log holds."""
    manifest = manifests_at(location).read_latest()
    assert manifest is not None
    known = read_transactions(location, manifest, list_positions(location, SHARD))
    return {app: item.version for app, item in known.whole().items()}


def test_equal_versions_are_skipped_and_lower_ones_refused_per_application(tmp_path: Path) -> None:
    location = place(tmp_path)
    writer = appender(location)
    assert [writer.append(rows(1), txn=("app", 5)), writer.append(rows(1), txn=("app", 5))] == [1, 0]
    with pytest.raises(InvalidInputError):
        writer.append([], txn=("app", 5))
    with pytest.raises(InvalidInputError, match="older"):
        writer.append(rows(2), txn=("app", 4))
    assert writer.append(rows(2), txn=("app", 6)) == 2
    assert [writer.append(rows(3), txn=("b", 5)), writer.append(rows(3), txn=("b", 5))] == [3, 0]
    assert story(read_all(location)) == [(1, 1, [1]), (2, 1, [2]), (3, 1, [3])]
    assert versions(location) == {"app": 6, "b": 5}


def test_whole_map_is_on_first_entry_and_sentinels_without_its_own_transaction(tmp_path: Path) -> None:
    location = place(tmp_path)
    writer = appender(location)
    writer.append(rows(1))
    writer.append(rows(2), txn=("app", 5))
    writer.append(rows(3))
    appender(location)
    entries = read_all(location)
    assert [None if e.txn is None else e.txn.version for e in entries] == [None, 5, None, None]
    assert [map_of(e) for e in entries] == [{}, None, None, {"app": 5}]
    assert entries[-1].is_sentinel


def test_a_transaction_survives_takeovers_through_the_map_of_the_sentinel(tmp_path: Path) -> None:
    location = place(tmp_path)
    appender(location).append(rows(1), txn=("app", 5))
    for _ in range(3):
        successor = appender(location)
        assert successor.append(rows(1), txn=("app", 5)) == 0
    assert [entry.is_sentinel for entry in read_all(location)] == [False, True, True, True]


def test_a_transaction_survives_the_collection_of_its_entry(tmp_path: Path) -> None:
    location = place(tmp_path)
    writer = appender(location)
    writer.append(rows(1), txn=("app", 5))
    appender(location).append(rows(2))
    flushed(location, 1)
    location.store.delete(paths.wal_entry_path(SHARD, 1))
    assert appender(location).append(rows(1), txn=("app", 5)) == 0


def test_a_transaction_is_found_behind_the_entries_of_another_implementation(tmp_path: Path) -> None:
    location = place(tmp_path)
    appender(location).append(rows(1), txn=("app", 5))
    manifests_at(location).claim_epoch()
    for position in (2, 3):
        put_entry(location, position, entry_bytes(2, position)[:-28])  # its entries have no footer
    successor = appender(location)
    assert successor.append(rows(1), txn=("app", 5)) == 0
    assert successor.append(rows(4), txn=("app", 6)) == 5


def test_an_application_that_was_silent_for_long_leaves_the_map_with_the_next_whole_one(tmp_path: Path) -> None:
    location = place(tmp_path)
    clock = SkippingClock()
    writer = appender(location, clock=clock)
    writer.append(rows(1), txn=("old", 5))
    clock.sleep(EXPIRY_MS / 1000 + 1)
    writer.append(rows(2))
    assert versions(location) == {"old": 5}
    writer.append(rows(3), txn=("new", 1))
    appender(location, clock=clock)
    assert map_of(read_all(location)[-1]) == {"new": 1}


@pytest.mark.parametrize(
    "txn",
    [
        ("", 1),
        ("app", -1),
        ("app", True),
        ("app", 1.0),
        ("app", "1"),
        ("app", 1 << 63),
        (b"app", 1),
        ("app",),
        ("app", 1, 7),
        ("app", 1, None, None),
        "app",
        5,
        ["app", 1],
        Transaction("", 1),
        Transaction("app", -1),
        Transaction("app", 1, 7),  # type: ignore[arg-type]
    ],
    ids=repr,
)
def test_what_is_no_transaction_is_refused_and_the_log_stays_readable(txn: Any, tmp_path: Path) -> None:
    location = place(tmp_path)
    writer = appender(location)
    with pytest.raises(InvalidInputError, match="txn must be"):
        writer.append(rows(1), txn=txn)
    assert writer.append(rows(1)) == 1
    assert len(read_all(location)) == 1


@pytest.mark.parametrize("app", ["ünïcode", "\ud800 alone", "a" * 512, "\0", 'quo"te'], ids=ascii)
def test_any_name_of_an_application_comes_back_and_can_be_taken_over(app: str, tmp_path: Path) -> None:
    location = place(tmp_path)
    appender(location).append(rows(1), txn=(app, 5))
    assert appender(location).append(rows(1), txn=(app, 5)) == 0
    assert versions(location) == {app: 5}


# ------------------------------------------------------------------------------------------------- the rules alone


def test_a_transaction_is_taken_as_a_pair_a_triple_a_value_or_nothing() -> None:
    assert as_transaction(None) is None
    assert as_transaction(("app", 0)) == Transaction("app", 0)
    assert as_transaction(("app", 3, "query")) == Transaction("app", 3, "query")  # type: ignore[arg-type]
    assert as_transaction(Transaction("app", 3)) == Transaction("app", 3)


def test_older_versions_of_a_query_are_skipped_and_those_of_another_refused() -> None:
    known = {"app": SeenTransaction(5, 1, "first")}
    assert [is_repeat(Transaction("app", version, "first"), known) for version in (3, 5, 6)] == [True, True, False]
    for version in (4, 5):
        with pytest.raises(InvalidInputError, match="another query"):
            is_repeat(Transaction("app", version, "second"), known)
    assert not is_repeat(Transaction("app", 6, "second"), known)


def test_a_version_that_was_written_is_skipped_even_if_its_rows_differ(tmp_path: Path) -> None:
    table = mw.create_table(
        str(tmp_path / "t"), pa.schema([pa.field("id", pa.int64(), nullable=False)]), primary_key="id"
    )
    with table.writer() as writer:
        assert not writer.put({"id": [1]}, txn=("app", 1)).skipped
        assert writer.put({"id": [2, 3]}, txn=("app", 1)).skipped
    assert table.get(2) is None


def test_maps_are_merged_to_the_highest_version_of_each_application() -> None:
    merged = merge_seen([seen(a=1, b=5), None, seen(a=3, c=1), seen(b=4), {}])
    assert {app: item.version for app, item in merged.items()} == {"a": 3, "b": 5, "c": 1}


@pytest.mark.parametrize(("app", "expiry_ms"), [("app", EXPIRY_MS), ("memwal:client", OWN_EXPIRY_MS)])
def test_a_transaction_is_kept_for_exactly_its_time(app: str, expiry_ms: int) -> None:
    for age_ms, kept in ((expiry_ms - 1, True), (expiry_ms, False)):
        newest_ms = 1_000 + expiry_ms
        known = TransactionMap({app: SeenTransaction(5, newest_ms - age_ms)}, ShardTime(_Stopped(), newest_ms))
        assert (app in known.whole()) == kept


class _Stopped(SystemClock):
    """A clock that stands still, far in the future."""

    def monotonic(self) -> float:  # type: ignore[override]
        return 0.0

    def now_ms(self) -> int:
        return 1 << 60


DAY_MS = 24 * 3600 * 1000


class JumpingClock(SystemClock):
    """A wall clock that somebody sets; its monotonic time does not follow."""

    def __init__(self) -> None:
        self.offset_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.offset_ms


@pytest.mark.repro("writer-13")
@pytest.mark.parametrize("text", ["a" * (MAX_ID_BYTES + 1), "\x01" * (MAX_ID_BYTES // 6 + 1), "ü" * 100_000])
def test_an_id_that_is_too_long_is_refused_and_nothing_is_written(text: str, tmp_path: Path) -> None:
    writer = WalAppender.open(place(tmp_path), SHARD, fsync=False)
    for txn in (Transaction(text, 1), Transaction("app", 1, text)):
        with pytest.raises(InvalidInputError, match="too long"):
            writer.append(rows(1), txn=txn)
    assert writer.append(rows(1), txn=("a" * MAX_ID_BYTES, 1)) == 1


def known(count: int, prefix: str = "app", *, written_ms: int = 0) -> TransactionMap:
    seen = {f"{prefix}{n}": SeenTransaction(1, written_ms) for n in range(count)}
    return TransactionMap(seen, ShardTime(SkippingClock(), written_ms))


def test_one_application_too_many_is_refused_and_those_that_are_known_go_on() -> None:
    full = known(MAX_APPLICATIONS, written_ms=1)
    full.admit(Transaction("app7", 2))
    full.admit(Transaction("memwal:client", 1))
    with pytest.raises(InvalidInputError, match=r"at most 10000.*after 30 days"):
        full.admit(Transaction("another", 1))


def test_ids_of_our_own_do_not_count_against_the_limit_and_have_one_of_their_own() -> None:
    clients = known(39_999, "memwal:", written_ms=1)
    clients.admit(Transaction("app", 1))
    clients.admit(Transaction("memwal:last", 1))
    clients.merge({"memwal:last": SeenTransaction(1, 1)})
    with pytest.raises(InvalidInputError, match=r"at most 40000.*'memwal:' is forgotten after an hour"):
        clients.admit(Transaction("memwal:one too many", 1))


def test_a_map_at_all_limits_can_be_written() -> None:
    long = "\x01" * (MAX_ID_BYTES // 6 - 10)
    newest = SeenTransaction(1 << 62, 1 << 50, "q" * MAX_ID_BYTES)
    apps = {f"{n:05d}{long}": newest for n in range(MAX_APPLICATIONS)}
    clients = {f"memwal:{n:05d}".ljust(MAX_ID_BYTES, "x"): SeenTransaction(1 << 62, 1 << 50) for n in range(40_000)}
    for txn in (next(iter(apps)), next(iter(clients))):
        as_transaction((txn, 1))
    assert len(encode_mark(1, EntryFooter(written_ms=1, seen=apps | clients))) < 64 << 20


def test_a_writer_refuses_one_application_too_many_and_goes_on(tmp_path: Path) -> None:
    location = place(tmp_path)
    manifests_at(location).claim_epoch()
    now_ms = SystemClock().now_ms()
    seen = {f"app{n}": SeenTransaction(1, now_ms) for n in range(MAX_APPLICATIONS)}
    put_entry(location, 1, encode_mark(1, EntryFooter(written_ms=now_ms, seen=seen)))
    writer = WalAppender.open(location, SHARD, fsync=False)
    with pytest.raises(InvalidInputError, match="long-lived application"):
        writer.append(rows(1), txn=("another", 1))
    assert writer.append(rows(1), txn=("app5", 1)) == 0
    assert [writer.append(rows(1), txn=("app5", 2)), writer.append(rows(2), txn=("memwal:x", 1))] == [3, 4]


@pytest.mark.repro("writer-13")
def test_ids_that_no_writer_takes_do_not_keep_a_shard_closed(tmp_path: Path) -> None:
    """Two ids of 40 MB in the log: together more than an entry can carry."""
    location = place(tmp_path)
    manifests_at(location).claim_epoch()
    for position in (1, 2):
        txns = (
            EntryTransaction(Transaction(f"{position}" + "a" * (40 << 20), 1)),
            EntryTransaction(Transaction("app", 2)),
        )
        put_entry(location, position, encode_mark(1, EntryFooter(written_ms=SystemClock().now_ms(), txns=txns)))
    writer = WalAppender.open(location, SHARD, fsync=False)
    assert writer.append(rows(2), txn=("app", 2)) == 0
    assert writer.append(rows(3), txn=("app", 3)) == 4


@pytest.mark.repro("writer-14")
def test_one_row_after_thousands_of_applications_is_a_small_entry(tmp_path: Path) -> None:
    location = place(tmp_path)
    writer = WalAppender.open(location, SHARD, fsync=False)
    for number in range(1_000):
        writer.append(rows(number), txn=(f"request-{number:08d}-aaaaaaaaaaaaaaaaaaaaaaaa", 0))
    writer.append(rows(1))
    entries = read_all(location)
    maps = [entry for entry in entries if map_of(entry) is not None]
    assert len(maps) == 4, "the first, and every 256th"
    assert max(entry.size_bytes for entry in entries if map_of(entry) is None) < 1_500
    again = WalAppender.open(location, SHARD, fsync=False)
    repeats = [again.append(rows(n), txn=(f"request-{n:08d}-aaaaaaaaaaaaaaaaaaaaaaaa", 0)) for n in range(0, 1_000, 50)]
    assert not any(repeats)


# ------------------------------------------------------------------------------------------------- clocks that jump


class _Put:
    """Writes transactions, and makes the log say its whole map: only then is anything forgotten."""

    def __init__(self, uri: str, clock: Clock) -> None:
        self.writer = mw.ShardWriter.open(uri, clock=clock, shard_id=mw.shard_id_for(mw.Unsharded()), fsync=False)

    def __call__(self, app: str, version: int) -> bool:
        """Whether it was new."""
        return not self.writer.put(rows(version), txn=(app, version)).skipped

    def say_all(self) -> None:
        self.writer.force_seal_active()
        self.writer.wait_for_flush_drain()
        self.writer.put(rows(0))


class _Append:
    def __init__(self, uri: str, clock: Clock) -> None:
        self.writer = WalAppender.open(uri, mw.shard_id_for(mw.Unsharded()), clock=clock, fsync=False)

    def __call__(self, app: str, version: int) -> bool:
        return self.writer.append(rows(version), txn=(app, version)) > 0

    def say_all(self) -> None:
        for _ in range(256):
            self.writer.append(rows(0))


class _Once:
    def __init__(self, uri: str, clock: Clock) -> None:
        self.once = OnceAppender(uri, clock=clock)
        self.claim = self.once.claim(mw.shard_id_for(mw.Unsharded()))

    def __call__(self, app: str, version: int) -> bool:
        return not self.once.append(self.claim, [rows(version)], txn=(app, version)).skipped

    def say_all(self) -> None:
        self.once.append(self.claim, [rows(0)])
        self.once.flush_tail(self.claim)


Way = type[_Put] | type[_Append] | type[_Once]


@pytest.mark.repro("writer-19")
@pytest.mark.parametrize("opened", ["before", "while", "after"])
@pytest.mark.parametrize("jump_days", [31, -31, 4_000])
@pytest.mark.parametrize("write", [_Put, _Append, _Once])
def test_a_clock_that_jumps_makes_no_repeat_look_new(write: Way, jump_days: int, opened: str, tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    mw.create_table(uri, SCHEMA, sharding=mw.Unsharded())
    clock = JumpingClock()
    put = write(uri, clock)
    assert put("app", 1)
    clock.offset_ms = jump_days * DAY_MS
    if opened == "while":
        put = write(uri, clock)
    assert [put("other", number) for number in range(3)] == [True] * 3
    assert not put("app", 1)
    put.say_all()
    assert not put("app", 1)
    clock.offset_ms = 0
    if opened != "before":
        put = write(uri, clock)
    put.say_all()
    assert not put("app", 1)
    assert not put("other", 2)


@pytest.mark.parametrize("write", [_Put, _Append, _Once])
def test_process_forgets_by_its_own_time(write: Way, tmp_path: Path) -> None:
    uri, clock = str(tmp_path / "t"), SkippingClock()
    mw.create_table(uri, SCHEMA, sharding=mw.Unsharded())
    put = write(uri, clock)
    for number in range(3):
        assert put("memwal:client", 1), number
        clock.sleep(1800)
        put.say_all()
        assert not put("memwal:client", 1)
        clock.sleep(1801)
        put.say_all()


@pytest.mark.parametrize(("app", "seconds"), [("app", 30 * 24 * 3600), ("memwal:client", 3600)])
def test_application_is_forgotten_once_two_opens_agree(app: str, seconds: int, tmp_path: Path) -> None:
    location = place(tmp_path)
    clock = SkippingClock()
    WalAppender.open(location, SHARD, fsync=False, clock=clock).append(rows(1), txn=(app, 1))
    clock.sleep(seconds + 1)
    for known_still in (True, False):
        WalAppender.open(location, SHARD, fsync=False, clock=clock)
        assert (app in (map_of(read_all(location)[-1]) or {})) == known_still


def test_the_time_of_entries_never_falls(tmp_path: Path) -> None:
    location, clock = place(tmp_path), JumpingClock()
    for offset_ms in (0, DAY_MS, -DAY_MS, 0):
        clock.offset_ms = offset_ms
        writer = WalAppender.open(location, SHARD, fsync=False, clock=clock)
        for _ in range(3):
            writer.append(rows(1))
    times = [entry.footer.written_ms for entry in read_all(location) if entry.footer is not None]
    assert None not in times
    assert times == sorted(set(times), key=lambda ms: ms or 0)
