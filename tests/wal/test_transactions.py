"""A transaction is written once: repeats are skipped, older versions refused, across takeovers and other writers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lance_memwal import InvalidInputError, ReplayMismatchError, WalAppender
from lance_memwal.clock import SystemClock
from lance_memwal.log.reading import list_positions, read_transactions
from lance_memwal.log.transactions import (
    EXPIRY_MS,
    KEPT_DIGESTS,
    OWN_EXPIRY_MS,
    ShardTime,
    TransactionMap,
    as_transaction,
    is_repeat,
    merge_footer,
    merge_seen,
)
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.testing.clocks import SkippingClock
from lance_memwal.types import EntryFooter, EntryTransaction, SeenTransaction, Transaction
from tests.kit.logs import (
    SHARD,
    entry_bytes,
    flushed,
    manifests_at,
    map_beside,
    map_of,
    of_earlier_release,
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


def test_an_equal_version_is_skipped_and_returns_0(tmp_path: Path) -> None:
    location = place(tmp_path)
    writer = appender(location)
    assert [writer.append(rows(1), txn=("app", 5)), writer.append(rows(1), txn=("app", 5))] == [1, 0]
    assert writer.append(rows(2), txn=("app", 6)) == 2
    assert story(read_all(location)) == [(1, 1, [1]), (2, 1, [2])]


def test_a_lower_version_is_an_error_and_writes_nothing(tmp_path: Path) -> None:
    location = place(tmp_path)
    writer = appender(location)
    writer.append(rows(1), txn=("app", 5))
    with pytest.raises(InvalidInputError, match="older"):
        writer.append(rows(2), txn=("app", 4))
    assert writer.append(rows(3)) == 2
    assert story(read_all(location)) == [(1, 1, [1]), (2, 1, [3])]


def test_applications_do_not_know_of_each_other(tmp_path: Path) -> None:
    location = place(tmp_path)
    writer = appender(location)
    for app in ("a", "b"):
        assert writer.append(rows(1), txn=(app, 5)) > 0
        assert writer.append(rows(1), txn=(app, 5)) == 0
    assert versions(location) == {"a": 5, "b": 5}


def test_a_repeat_of_rows_that_do_not_fit_is_refused_and_not_skipped(tmp_path: Path) -> None:
    writer = appender(place(tmp_path))
    writer.append(rows(1), txn=("app", 5))
    with pytest.raises(InvalidInputError):
        writer.append([], txn=("app", 5))


def test_the_whole_map_stands_on_the_first_entry_and_on_sentinels_and_never_holds_its_own_transaction(
    tmp_path: Path,
) -> None:
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


def test_a_transaction_of_a_generation_without_entries_is_known(tmp_path: Path) -> None:
    location = place(tmp_path)
    appender(location).append(rows(1), txn=("app", 5))
    of_earlier_release(location)
    sstable = flushed(location, 1).sstables[0]
    beside = paths.txn_map_path(SHARD, sstable.path)
    location.store.put(beside, map_beside(seen(app=9, bulk=2)))
    successor = appender(location)
    assert [successor.append(rows(1), txn=(app, version)) for app, version in (("app", 9), ("bulk", 2))] == [0, 0]
    assert versions(location) == {"app": 9, "bulk": 2}
    location.store.delete(beside)  # what the log holds now need not be looked for beside it
    assert appender(location).append(rows(1), txn=("bulk", 2)) == 0


def test_a_map_beside_a_generation_that_an_earlier_release_wrote_after_us_is_known(tmp_path: Path) -> None:
    location = place(tmp_path)
    appender(location).append(rows(1), txn=("app", 5))
    appender(location).append(rows(2))
    appender(location).append(rows(3))
    of_earlier_release(location, start=4)  # the sentinel and the entry of the last one
    sstable = flushed(location, 5).sstables[0]
    location.store.put(paths.txn_map_path(SHARD, sstable.path), map_beside(seen(bulk=2)))
    assert appender(location).append(rows(1), txn=("bulk", 2)) == 0


def test_no_map_is_looked_for_beside_generations_of_writers_that_make_none(tmp_path: Path) -> None:
    location = place(tmp_path)
    appender(location).append(rows(1), txn=("app", 5))
    flushed(location, 1)
    before = location.metrics.snapshot()["get"].count
    opened = appender(location)
    asked = location.metrics.snapshot()["get"].count - before
    other = place(tmp_path / "other")
    appender(other).append(rows(1), txn=("app", 5))
    of_earlier_release(other)
    flushed(other, 1)
    before = other.metrics.snapshot()["get"].count
    appender(other)
    assert other.metrics.snapshot()["get"].count - before == asked + 1
    assert opened.append(rows(1), txn=("app", 5)) == 0


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


def test_an_application_of_another_query_is_refused_unless_its_version_is_new() -> None:
    known = {"app": SeenTransaction(5, 1, "first")}
    for version in (4, 5):
        with pytest.raises(InvalidInputError, match="another query"):
            is_repeat(Transaction("app", version, "second"), known)
    assert not is_repeat(Transaction("app", 6, "second"), known)


def test_a_query_that_repeats_its_older_versions_is_skipped() -> None:
    known = {"app": SeenTransaction(5, 1, "first")}
    assert [is_repeat(Transaction("app", version, "first"), known) for version in (3, 5, 6)] == [True, True, False]


def digest(number: int) -> str:
    return f"{number:016x}"


def test_a_repeat_has_the_rows_of_the_first_as_far_as_anybody_can_tell() -> None:
    known: dict[str, SeenTransaction] = {}
    for version in (1, 2, 4, 5):  # 2 came without a digest, and this shard had no row of 3
        txn = Transaction("app", version, "q", None if version == 2 else digest(version))
        merge_footer(known, EntryFooter(written_ms=version, txns=(EntryTransaction(txn),)))
    told = known["app"]
    assert told == SeenTransaction(5, 5, "q", ((1, digest(1)), (2, None), (4, digest(4)), (5, digest(5))))
    for version, number in ((5, 5), (4, 4), (1, 1), (2, 9), (0, 9)):
        assert is_repeat(Transaction("app", version, "q", digest(number)), known)
    for version, number in ((5, 6), (4, 5), (3, 3), (1, 2)):
        with pytest.raises(ReplayMismatchError, match="replayMismatch=skip"):
            is_repeat(Transaction("app", version, "q", digest(number)), known)
    assert is_repeat(Transaction("app", 4, "q"), known), "nobody looks"
    assert is_repeat(Transaction("old", 4, "q", digest(1)), {"old": SeenTransaction(5, 1, "q")}), "nobody knows"


def test_versions_that_are_too_old_to_be_compared_are_not_skipped() -> None:
    known: dict[str, SeenTransaction] = {}
    for version in range(KEPT_DIGESTS + 2):
        txn = Transaction("app", version, "q", digest(version))
        merge_footer(known, EntryFooter(written_ms=1 + version, txns=(EntryTransaction(txn),)))
    assert is_repeat(Transaction("app", 2, "q", digest(2)), known)
    with pytest.raises(ReplayMismatchError, match="too old"):
        is_repeat(Transaction("app", 1, "q", digest(1)), known)


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
