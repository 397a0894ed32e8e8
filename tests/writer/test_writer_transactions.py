"""Idempotent writes: an equal version is skipped, after waiting for one that is pending; a lower one is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from lance_memwal import InvalidInputError, WriterPoisonedError
from lance_memwal.types import EntryTransaction, Transaction
from tests.kit.writers import UNKEYED, WAL, in_thread, open_writer, row_entries, rows, scanned, wait_for, watched


def test_an_equal_version_is_written_once(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        assert not writer.put(rows([1], "first"), txn=("app", 7)).skipped
        again = writer.put(rows([1], "second"), txn=("app", 7))
        assert again.skipped
        assert len(again.batch_positions) == 0
        assert scanned(writer) == {1: "first"}
        assert len(row_entries(tmp_path)) == 1


def test_a_lower_version_is_an_error_and_a_higher_one_is_written(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.put(rows([1]), txn=("app", 7))
        with pytest.raises(InvalidInputError, match="older than the shard's version 7"):
            writer.put(rows([2]), txn=("app", 6))
        assert not writer.put(rows([3]), txn=("app", 9)).skipped
        assert writer.transactions()["app"].version == 9
        assert scanned(writer) == {1: "a", 3: "a"}


def test_applications_do_not_disturb_each_other(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        for app in ("a", "b"):
            assert not writer.put(rows([1], app), txn=(app, 1)).skipped
        assert writer.put(rows([1]), txn=("a", 1)).skipped
        assert set(writer.transactions()) == {"a", "b"}


def test_deletes_can_be_transactions(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.put(rows([1]))
        assert not writer.delete([1], txn=("app", 1)).skipped
        writer.put(rows([1], "back"))
        assert writer.delete([1], txn=("app", 1)).skipped
        assert scanned(writer) == {1: "back"}


def test_a_repeat_of_a_pending_version_waits_until_that_is_durable(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    with open_writer(location) as writer:
        held = store.hold("put_new", WAL)
        first = in_thread(lambda: writer.put(rows([1]), txn=("app", 1)))
        held.wait_reached()
        second = in_thread(lambda: writer.put(rows([2]), txn=("app", 1)))
        third = in_thread(lambda: writer.put(rows([3]), txn=("app", 0)))
        with pytest.raises(InvalidInputError, match="older"):
            third.result()
        assert second.running, "it would claim that a write is there that a crash could still take back"
        held.open()
        assert not first.result().skipped
        assert second.result().skipped
        assert scanned(writer) == {1: "a"}


def test_a_repeat_of_a_pending_version_that_fails_fails_too(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    writer = open_writer(location, max_wal_persist_retries=0)
    held = store.hold("put_new", WAL, 1)
    store.fail("put_new", WAL)
    first = in_thread(lambda: writer.put(rows([1]), txn=("app", 1)))
    held.wait_reached()
    second = in_thread(lambda: writer.put(rows([1]), txn=("app", 1)))
    held.open()
    for put in (first, second):
        with pytest.raises(WriterPoisonedError):
            put.result()
    writer.abort()


def test_a_transaction_is_durable_when_put_returns_in_every_mode(tmp_path: Path) -> None:
    with open_writer(tmp_path, durable_write=False, max_wal_flush_interval_ms=None) as writer:
        writer.put(rows([1]))
        writer.put(rows([2]), txn=("app", 1))
        assert [e.num_rows for e in row_entries(tmp_path)] == [2], "a transaction shares the entry of what was pending"
        assert row_entries(tmp_path)[0].footer.txns == (EntryTransaction(Transaction("app", 1), 1, 1),)


def test_a_transaction_shares_an_entry_and_says_which_rows_are_its_own(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    with open_writer(location) as writer:
        held = store.hold("put_new", WAL, 1)
        acks = [writer.put_nowait(rows([0]))]
        held.wait_reached()
        acks.append(writer.put_nowait(rows([1])))
        txn = in_thread(lambda: writer.delete([2, 3], txn=("app", 1)))
        wait_for(lambda: writer.memtable_stats().pending_wal_batch_count >= 3)
        acks.append(writer.put_nowait(rows([3])))
        held.open()
        txn.result()
        acks[-1].wait()
        assert [(e.num_rows, e.footer.txns) for e in row_entries(tmp_path)] == [
            (1, ()),
            (4, (EntryTransaction(Transaction("app", 1), 1, 2),)),
        ]


def test_versions_survive_reopening_flushing_and_takeover(tmp_path: Path) -> None:
    with open_writer(tmp_path, UNKEYED) as writer:
        writer.put(rows([1], schema=UNKEYED), txn=("app", 3))
    for _ in range(3):
        with open_writer(tmp_path, UNKEYED) as writer:
            assert writer.put(rows([1], schema=UNKEYED), txn=("app", 3)).skipped
            writer.put(rows([2], schema=UNKEYED))


@pytest.mark.parametrize(
    "txn", [("", 1), ("app",), ("app", -1), ("app", 1.5), ("app", True), (1, 1), "app", ("app", 1 << 63)]
)
def test_a_transaction_that_makes_no_sense_is_refused(tmp_path: Path, txn: object) -> None:
    with open_writer(tmp_path) as writer:
        with pytest.raises(InvalidInputError, match="txn must be"):
            writer.put(rows([1]), txn=txn)  # type: ignore[arg-type]
        assert scanned(writer) == {}


def test_an_id_that_another_query_uses_is_refused(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.put(rows([1]), txn=Transaction("app", 5, "query-1"))
        assert writer.put(rows([1]), txn=Transaction("app", 4, "query-1")).skipped  # a query that was restarted
        with pytest.raises(InvalidInputError, match="another query"):
            writer.put(rows([1]), txn=Transaction("app", 5, "query-2"))
