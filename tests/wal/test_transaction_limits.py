"""The transaction map stays small, forgets by the time of its shard, and can always be written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lance_memwal as mw
from lance_memwal import InvalidInputError, WalAppender
from lance_memwal.clock import Clock, SystemClock
from lance_memwal.log.entry import encode_mark
from lance_memwal.log.transactions import (
    KEPT_DIGESTS,
    MAX_APPLICATIONS,
    MAX_ID_BYTES,
    ShardTime,
    TransactionMap,
    as_transaction,
)
from lance_memwal.store import paths
from lance_memwal.testing.clocks import SkippingClock
from lance_memwal.types import EntryFooter, SeenTransaction, Transaction
from lance_memwal.write.once import OnceAppender
from tests.kit.logs import SCHEMA, SHARD, manifests_at, map_of, of_earlier_release, place, put_entry, read_all, rows

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
    digests = tuple(((1 << 62) - n, "0" * 16) for n in range(KEPT_DIGESTS))
    newest = SeenTransaction(1 << 62, 1 << 50, "q" * MAX_ID_BYTES, digests)
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
def test_an_id_that_an_older_release_took_does_not_keep_a_shard_closed(tmp_path: Path) -> None:
    """Three ids of 30 MB beside three generations: together more than an entry can carry."""
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, sharding=mw.Unsharded())
    with table.shard_writer(fsync=False) as writer:
        for number in range(3):
            writer.put(rows(number), txn=("app", number))
            writer.force_seal_active()
            writer.wait_for_flush_drain()
        manifest = writer.manifest()
    of_earlier_release(table.location, manifest.shard_id)
    for number, sstable in enumerate(manifest.sstables):
        path = paths.txn_map_path(manifest.shard_id, sstable.path)
        beside = {f"{number}" + "a" * (30 << 20): [1, SystemClock().now_ms(), None]}
        table.location.store.put(path, json.dumps(beside).encode())
    with table.shard_writer(fsync=False) as writer:
        assert writer.put(rows(2), txn=("app", 2)).skipped
        assert not writer.put(rows(3), txn=("app", 3)).skipped


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


@pytest.mark.repro("writer-19")
@pytest.mark.parametrize("opened", ["before", "while", "after"])
@pytest.mark.parametrize("jump_days", [31, -31, 4_000])
@pytest.mark.parametrize("write", [_Put, _Append, _Once])
def test_a_clock_that_jumps_makes_no_repeat_look_new(
    write: type[_Put] | type[_Append] | type[_Once], jump_days: int, opened: str, tmp_path: Path
) -> None:
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
def test_a_process_that_lives_long_forgets_by_the_time_that_passed_for_it(
    write: type[_Put] | type[_Append] | type[_Once], tmp_path: Path
) -> None:
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
def test_an_application_is_forgotten_when_two_opens_agree_that_its_time_is_over(
    app: str, seconds: int, tmp_path: Path
) -> None:
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
