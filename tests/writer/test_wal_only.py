"""WAL-only mode: the same batched log pipeline and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from lance_memwal import FencedError, InvalidInputError, ShardWriter
from tests.kit.writers import (
    KEYED,
    UNKEYED,
    base_table,
    entries,
    flushed,
    in_thread,
    memwal_threads,
    open_writer,
    row_entries,
    rows,
    scanned,
)


def wal_only(root: Path, **settings: object) -> ShardWriter:
    return open_writer(root, enable_memtable=False, **settings)


def test_every_memtable_accessor_says_that_this_is_wal_only_mode(tmp_path: Path) -> None:
    with wal_only(tmp_path) as writer:
        writer.put(rows([1]))
        for accessor in (
            writer.memtable_stats,
            writer.scan,
            writer.active_memtable_ref,
            writer.in_memory_memtable_refs,
            writer.force_seal_active,
            writer.wait_for_flush_drain,
        ):
            with pytest.raises(InvalidInputError, match="WAL-only mode"):
                accessor()
        assert writer.capture() is None


def test_indexes_are_refused_at_open(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="indexes require enable_memtable=True"):
        wal_only(tmp_path, indexes=[object()])
    assert entries(tmp_path) == []


def test_puts_and_deletes_are_durable_and_nothing_is_ever_flushed(tmp_path: Path) -> None:
    with wal_only(tmp_path, max_memtable_rows=2) as writer:
        assert writer.put([rows([1]), rows([2])]).batch_positions == range(2)
        writer.delete([1])
        writer.put_nowait(rows([3])).wait()
    stats = writer.stats()
    assert (stats.put_count, stats.wal_flush_count) == (3, 3)
    assert (stats.memtable_flush_count, stats.index_update_count) == (0, 0)
    assert flushed(tmp_path) == {}
    assert [e.num_rows for e in row_entries(tmp_path)] == [2, 1, 1]
    assert not memwal_threads()


def test_a_memtable_writer_replays_what_wal_only_mode_wrote(tmp_path: Path) -> None:
    with wal_only(tmp_path) as writer:
        writer.put(rows([1, 2]))
        writer.delete([1])
    with open_writer(tmp_path) as writer:
        assert scanned(writer) == {2: "a"}


def test_entries_are_numbered_in_generations_that_respect_the_memtable_limits(tmp_path: Path) -> None:
    with wal_only(tmp_path, max_memtable_rows=10) as writer:
        for k in range(7):
            writer.put(rows(range(4 * k, 4 * k + 4)))
    assert [e.generation for e in row_entries(tmp_path)] == [1, 1, 2, 2, 3, 3, 4]


def test_numbering_goes_on_after_a_reopen_where_the_tail_ended(tmp_path: Path) -> None:
    with wal_only(tmp_path, max_memtable_rows=10) as writer:
        for k in range(3):
            writer.put(rows(range(4 * k, 4 * k + 4)))
    with wal_only(tmp_path, max_memtable_rows=10) as writer:
        writer.put(rows(range(4)))
        writer.put(rows(range(4)))
    assert [e.generation for e in row_entries(tmp_path)] == [1, 1, 2, 2, 3]
    with open_writer(tmp_path) as writer:  # a memtable writer takes over: the closed generations become SSTables
        assert list(flushed(tmp_path)) == [1, 2]
        assert writer.memtable_stats().generation == 3
        writer.put(rows([99]))
        writer.close()
    with wal_only(tmp_path) as writer:
        writer.put(rows([100]))
    assert row_entries(tmp_path)[-1].generation == 4


def test_group_commit_works_as_in_memtable_mode(tmp_path: Path) -> None:
    with wal_only(tmp_path, durable_write=False, max_wal_flush_interval_ms=None) as writer:
        for k in range(50):
            writer.put(rows([k]))
        assert entries(tmp_path) == []
    assert [e.num_rows for e in row_entries(tmp_path)] == [50]


def test_eight_threads_lose_and_repeat_nothing(tmp_path: Path) -> None:
    with wal_only(tmp_path, max_memtable_batches=30) as writer:
        threads = [in_thread(lambda t=t: [writer.put(rows([100 * t + k])) for k in range(20)]) for t in range(8)]
        for thread in threads:
            thread.result()
    log = row_entries(tmp_path)
    found = [k for e in log for b in e.batches for k in b.column("id").to_pylist()]
    assert sorted(found) == sorted(100 * t + k for t in range(8) for k in range(20))
    generations = [e.generation for e in log]
    assert generations == sorted(generations)
    assert max(sum(len(e.batches) for e in log if e.generation == g) for g in set(generations)) <= 30


def test_fencing_works_as_in_memtable_mode(tmp_path: Path) -> None:
    first = wal_only(tmp_path)
    first.put(rows([1]))
    with wal_only(tmp_path) as second:
        with pytest.raises(FencedError):
            first.put(rows([2]))
        second.put(rows([3]))
    with pytest.raises(FencedError):
        first.close()


def test_transactions_work_without_a_memtable(tmp_path: Path) -> None:
    with wal_only(tmp_path) as writer:
        assert not writer.put(rows([1]), txn=("a", 1)).skipped
        assert writer.put(rows([1]), txn=("a", 1)).skipped
    with wal_only(tmp_path) as writer:
        assert writer.put(rows([1]), txn=("a", 1)).skipped
    assert len(row_entries(tmp_path)) == 1


def test_an_append_only_table_keeps_every_row_once(tmp_path: Path) -> None:
    table = base_table(tmp_path / "t", UNKEYED)
    with table.shard_writer(enable_memtable=False, fsync=False) as writer:
        for _ in range(3):
            writer.put(rows([1, 1], schema=UNKEYED))
    assert table.scan().count_rows() == 6


def test_input_is_checked_as_in_memtable_mode(tmp_path: Path) -> None:
    with wal_only(tmp_path) as writer:
        with pytest.raises(InvalidInputError, match="empty batch list"):
            writer.put([])
        with pytest.raises(InvalidInputError, match="'id' must not be null"):
            writer.put({"id": [None], "v": ["a"]})
        with pytest.raises(InvalidInputError, match="'w'"):
            writer.put({"id": [1], "w": ["a"]})
        assert writer.schema.equals(KEYED)
