"""The table-level writer: any input, every row to its shard, one acknowledgement for all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.clock import SYSTEM_CLOCK
from lance_memwal.write.results import result_of
from tests.kit.tables import create, ids_of, manifest_of, rows_of
from tests.kit.writers import in_threads

FOUR = mw.Bucket("id", 4)
ROWS = [{"id": i, "v": i * 10, "s": f"s{i}"} for i in range(40)]


def _shard(number: int) -> str:
    return mw.shard_id_for(FOUR, number)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([{"id": None, "v": 1}], "'id'"),
        ([{"id": 1, "w": 1}], "'w'"),
        ([{"id": 1, "_tombstone": True}], "_tombstone"),
        ([{"v": 1}], "'id'"),
        ([{"id": "one"}], "'id'"),
        ([{"id": 1 << 70}], "'id'"),
        (pa.table({"id": [1.5]}), "'id'"),
        (pa.table({"id": [1], "v": ["x"]}), "'v'"),
        ([pa.record_batch({"id": [1, 2, 3]}), pa.record_batch({"id": pa.array([4, None])})], "'id'"),
        ("text", "str"),
        ([1, 2], "int"),
        ({"id": [1, 2], "v": [1]}, "different lengths"),
    ],
)
def test_rows_that_do_not_fit_are_refused_before_any_shard_is_opened(tmp_path: Path, rows: Any, reason: str) -> None:
    table = create(str(tmp_path / "t"), sharding=FOUR)
    with table.writer() as writer:
        with pytest.raises(mw.InvalidInputError, match=reason):
            writer.put(rows, missing="null")
        for keys in ([None], ["x"], [{"v": 1}], [(1, 2)], pa.array(["a"])):
            for call in (writer.delete, writer.lookup):
                with pytest.raises(mw.InvalidInputError):
                    call(keys)  # type: ignore[operator]
        assert writer.shard_writers == {}
    assert table.shards() == []


def test_every_row_goes_to_the_shard_that_its_value_names(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), sharding=FOUR)
    with table.writer() as writer:
        results = writer.put(ROWS)
        assert set(results.shards) == set(writer.shard_writers) == {_shard(row["id"]) for row in ROWS}
        for shard_id, shard in writer.shard_writers.items():
            held = shard.memtable_scanner().to_table()["id"].to_pylist()
            assert held == [row["id"] for row in ROWS if _shard(row["id"]) == shard_id]
            assert manifest_of(table.uri, shard_id).shard_spec_id == 1


def test_shards_are_opened_when_the_first_row_needs_them(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), sharding=FOUR)
    with table.writer() as writer:
        assert table.shards() == []
        writer.put([ROWS[0]])
        assert [shard.shard_id for shard in table.shards()] == [_shard(0)]
        writer.delete([1])
        assert {shard.shard_id for shard in table.shards()} == {_shard(0), _shard(1)}
        assert repr(writer) == f"TableWriter({table.uri!r}, shards={len(writer.shard_writers)}, open)"


def test_a_put_returns_when_every_shard_has_its_rows_on_storage(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), sharding=FOUR)
    writer = table.writer()
    writer.put(ROWS)
    stored = [
        row
        for shard in table.shards()
        for entry in [mw.WalTailer(table.uri, shard.shard_id).read_entry(1)]
        if entry is not None
        for batch in entry.batches
        for row in batch.drop_columns(["_tombstone"]).to_pylist()
    ]
    assert sorted(stored, key=lambda row: row["id"]) == ROWS
    writer.abort()


def test_a_write_that_does_not_wait_is_acknowledged_once_for_all_shards(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), sharding=FOUR)
    with table.writer() as writer:
        acks = [writer.put_nowait([row]) for row in ROWS[:4]]
        whole = writer.put_nowait(ROWS)
        whole.wait(timeout=30)
        assert whole.durable
        for ack in acks:
            ack.wait()
            assert ack.durable
            assert "durable=True" in repr(ack)
    assert rows_of(table.scan()) == ROWS


def test_one_timeout_counts_for_all_shards_of_an_acknowledgement() -> None:
    """Each shard alone would wait for the whole time-out."""
    waited = []

    class Never:
        durable = False

        def wait(self, timeout: float | None = None) -> mw.WriteResult:
            waited.append(timeout)
            SYSTEM_CLOCK.sleep(timeout or 0.0)
            return result_of({})

    mw.Ack([Never()] * 10).wait(timeout=0.05)
    assert len(waited) == 10
    assert 0 < sum(waited) <= 0.05


def _taken_over(table: mw.Table, writer: mw.TableWriter) -> mw.ShardWriter:
    """Another writer owns one of the four shards from now on."""
    writer.put(ROWS)
    return table.shard_writer(_shard(ROWS[0]["id"]))


def test_a_shard_that_fails_fails_the_whole_put_and_the_others_keep_their_rows(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), sharding=FOUR)
    writer = table.writer()
    with _taken_over(table, writer):
        changed = [row | {"v": -1} for row in ROWS]
        with pytest.raises(mw.FencedError):
            writer.put(changed)
        lost = {row["id"] for row in ROWS if _shard(row["id"]) == _shard(0)}
        found = {row["id"]: row["v"] for row in rows_of(table.scan())}
        assert all(found[i] == i * 10 for i in lost)
        assert set(found) == {row["id"] for row in ROWS}
        mine = [row for row in changed if row["id"] not in lost]
        writer.put(mine)
        assert {row["id"]: row["v"] for row in rows_of(table.scan())} == {
            row["id"]: (row["id"] * 10 if row["id"] in lost else -1) for row in ROWS
        }
    writer.abort()


def test_close_closes_every_shard_and_then_raises_the_first_failure(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), sharding=FOUR)
    writer = table.writer()
    with _taken_over(table, writer):
        ack = writer.put_nowait(ROWS)
        with pytest.raises(mw.FencedError):
            ack.wait(timeout=30)
        assert not ack.durable
        with pytest.raises(mw.FencedError):
            writer.close()
        writer.close()
    assert rows_of(table.scan(consistency="flushed")) == ROWS
    assert "closed" in repr(writer)


def test_a_closed_writer_refuses_everything_but_reading(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), sharding=FOUR)
    with table.writer() as writer:
        writer.put(ROWS)
    for call in (writer.put, writer.put_nowait, writer.delete):
        for argument in ([ROWS[0]], []):
            with pytest.raises(mw.ClosedError):
                call(argument)
    writer.close()
    writer.abort()
    assert rows_of(writer.scan()) == ROWS


@pytest.mark.parametrize("flush", [False, True])
def test_an_aborted_writer_flushes_nothing_and_loses_nothing(tmp_path: Path, flush: bool) -> None:
    table = create(str(tmp_path / "t"), sharding=FOUR)
    writer = table.writer()
    writer.put(ROWS)
    if flush:
        writer.flush(timeout=30)
    writer.abort()
    expected = ((1,), 0) if flush else ((), 1)
    assert all((shard.generations, shard.wal_tail) == expected for shard in table.shards())
    assert rows_of(table.scan(consistency="flushed")) == (ROWS if flush else [])
    assert rows_of(table.scan()) == ROWS


def test_deletes_go_to_the_shards_of_their_keys(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), sharding=FOUR)
    with table.writer() as writer:
        writer.put(ROWS)
        assert set(writer.delete([0, 1]).shards) == {_shard(0), _shard(1)}
        writer.delete(pa.array([2, 3]))
        writer.delete(pa.table({"id": [4], "v": [0]}))
        writer.delete([{"id": 5, "s": "ignored"}])
        writer.delete([(6,)])
        assert ids_of(writer.scan()) == list(range(7, 40))
        assert writer.get(6) is None
        writer.put([ROWS[6]])
        assert writer.get(6) == ROWS[6]


def test_a_transaction_is_written_once_in_every_shard(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), sharding=FOUR)
    with table.writer() as writer:
        first = writer.put(ROWS, txn=("loader", 7))
        again = writer.put([row | {"v": -1} for row in ROWS], txn=("loader", 7))
        assert {result.skipped for result in first.shards.values()} == {False}
        assert {result.skipped for result in again.shards.values()} == {True}
        writer.delete([0], txn=("loader", 8))
        with pytest.raises(mw.InvalidInputError):
            writer.put(ROWS, txn=("loader", 6))
    assert rows_of(table.scan()) == ROWS[1:]
    versions = {shard_id: seen["loader"] for shard_id, seen in table.transactions().items()}
    assert versions == {shard.shard_id: 8 if shard.shard_id == _shard(0) else 7 for shard in table.shards()}


def test_threads_share_a_writer(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), sharding=FOUR)

    def write(thread: int) -> None:
        for i in range(12):
            number = thread * 100 + i
            writer.put([{"id": number, "v": i, "s": "x"}])
            assert writer.get(number) == {"id": number, "v": i, "s": "x"}
            writer.stats()

    with table.writer(max_memtable_rows=5) as writer:
        in_threads(write, range(6))
        assert table.count_rows() == 72
        assert sum(stats.put_count for stats in writer.stats().values()) == 72
    assert table.count_rows() == 72


def test_rows_that_are_not_durable_yet_are_seen_in_this_process(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), sharding=FOUR)
    slow = {"durable_write": False, "max_wal_flush_interval_ms": None, "max_wal_buffer_size": 0}
    with table.writer(**slow) as writer:
        writer.put(ROWS)
        assert all(shard.wal_tail == 0 for shard in table.shards())
        assert rows_of(table.scan()) == ROWS
        assert "memtable generation 1" in table.scan().explain()
        assert table.get(3) == ROWS[3]
    assert rows_of(table.scan()) == ROWS


@pytest.mark.parametrize("sharding", [mw.Unsharded(), mw.Bucket("id", 2)], ids=repr)
def test_batch_positions_of_a_shard_count_the_batches_with_its_rows(tmp_path: Path, sharding: mw.Bucket) -> None:
    table = create(str(tmp_path / "t"), sharding=sharding)
    given = [pa.record_batch({"id": [*range(n, n + 40)], "v": [1] * 40, "s": [""] * 40}) for n in range(9)]
    with table.writer(compaction=None, max_memtable_batches=4) as writer:
        for round_ in range(2):
            done = writer.put(given)
            assert {shard.positions for shard in done.shards.values()} == {range(9 * round_, 9 * round_ + 9)}
