"""Verbs write through one shared writer that is opened when a row comes; other processes read every acknowledged row."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_memwal as mw
from lance_memwal import crash_points
from lance_memwal.lance.base import BaseTable, NewestBase
from lance_memwal.memtable import live
from lance_memwal.read.reader import Reader
from lance_memwal.store.location import resolve
from lance_memwal.table.verbs import KeptWriter
from lance_memwal.table.writers import open_writer
from lance_memwal.write.request import Write
from tests.harness.processes import start
from tests.harness.profile import scaled
from tests.kit.tables import FAST, Outside, create, files_below, ids_of, keyed, manifest_of, outside, rows_of
from tests.kit.writers import fork, in_thread, wait_for
from tests.serve.shared_child import own_and_put


def row(key: int, v: int = 0, s: str = "a") -> dict[str, Any]:
    return {"id": key, "v": v, "s": s}


@pytest.fixture(params=[mw.Unsharded(), mw.Bucket("id", 3), mw.Identity("id")], ids=str)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[mw.Table]:
    with create(str(tmp_path / "t"), sharding=request.param) as made:
        yield made


def test_a_table_without_a_key_takes_rows_as_they_come(tmp_path: Path) -> None:
    with create(str(tmp_path / "t"), primary_key=None) as table:
        table.put([row(1), row(1)])
        table.put(row(1) for _ in range(1))
        assert len(table) == 3


def test_a_filter_that_cannot_be_sent_is_refused(table: mw.Table) -> None:
    table.put([row(1, 3)])
    with pytest.raises(mw.InvalidInputError, match="SQL text"):
        table.delete(where=pc.field("v") == 3)


def test_a_table_is_true_and_has_a_length(table: mw.Table) -> None:
    assert (bool(table), len(table)) == (True, 0)
    table.put([row(i) for i in range(7)])
    assert (bool(table), len(table)) == (True, 7)
    assert table.head().num_rows == 5
    assert table.head(2).schema == table.to_arrow().schema
    assert sorted(table.to_pandas()["id"]) == list(range(7))


# ------------------------------------------------------------------------------------------------------- one writer


def test_two_tables_and_a_writer_share_the_shard(tmp_path: Path) -> None:
    one = create(str(tmp_path / "t"))
    with one, mw.open_table(one.uri) as other, one.writer(shared=True) as writer:
        for number in range(5):
            one.put([row(3 * number)])
            other.put([row(3 * number + 1)])
            writer.put([row(3 * number + 2)])
        assert ids_of(one.scan()) == list(range(15))
    assert {shard.epoch for shard in one.shards()} == {1}


def test_verbs_go_to_the_owner_in_another_process(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"))
    owner = start(own_and_put, table.uri, [row(1)], {})
    assert owner.receive(30) is not None
    with table:
        table.put([row(2)])
        with pytest.raises(mw.InvalidInputError, match="nothing was written"):
            table.insert([row(1)])
        assert table.update(where="id = 1", values={"s": "it's"}).matched == 1
        assert not live.all_of(table.location.key)
        owner.kill()
        table.put([row(3)])
        assert ids_of(table.scan()) == [1, 2, 3]
        assert table.get(1) == row(1, s="it's")
        assert live.all_of(table.location.key)


def test_nothing_is_opened_by_reads_and_the_end_closes(tmp_path: Path) -> None:
    with create(str(tmp_path / "t")) as table:
        assert len(table) == 0
        assert not live.all_of(table.location.key)
        table.put([row(1)])
        assert len(live.all_of(table.location.key)) == 1
    assert not live.all_of(table.location.key)
    assert [shard.generations for shard in table.shards()] == [(1,)]
    table.put([row(2)])  # opens another one
    table.close()
    table.close()
    assert ids_of(table.scan()) == [1, 2]


def test_an_idle_writer_is_closed_and_flushed(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"))
    newest = NewestBase(BaseTable.need(resolve(table.uri)))
    kept = KeptWriter(newest, partial(open_writer, newest, Reader(newest), shared=True), idle_seconds=0.05)
    for number in range(2):
        kept.apply(Write("put", [row(number)]))
        wait_for(lambda: not live.all_of(table.location.key))
    assert [shard.generations for shard in table.shards()] == [(1, 2)]
    assert ids_of(table.scan()) == [0, 1]


def test_nothing_that_was_acknowledged_is_lost_by_closing(tmp_path: Path) -> None:
    table, stop = create(str(tmp_path / "t"), primary_key=None), threading.Event()

    def add(thread: int) -> list[int]:
        done = []
        for number in range(1000):
            if stop.is_set():
                break
            table.put([row(thread * 1000 + number)])
            done.append(thread * 1000 + number)
        return done

    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(add, thread) for thread in range(4)]
        for _ in range(5):
            table.close()
        stop.set()
        acknowledged = sorted(number for future in running for number in future.result(60))
    table.close()
    assert acknowledged
    assert ids_of(table.scan()) == acknowledged


def test_a_forked_child_does_not_use_the_writer_of_its_parent(tmp_path: Path) -> None:
    with create(str(tmp_path / "t")) as table:
        table.put([row(1)])
        pid = fork()
        if pid == 0:
            status = 1
            try:
                table.put([row(2)])
            except mw.UnavailableError:  # Lance does not survive a fork
                status = 7
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        table.put([row(3)])
        assert ids_of(table.scan()) == [1, 3]
    assert {shard.epoch for shard in table.shards()} == {1}


def test_a_table_with_manual_shards_is_written_by_shard(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), primary_key=None, sharding=mw.Manual())
    with pytest.raises(mw.InvalidInputError, match="shard_writer"):
        table.put([row(1)])
    assert table.shards() == []


# ----------------------------------------------------------------------------------------------- it follows the table


def test_verbs_follow_new_columns(tmp_path: Path) -> None:
    with create(str(tmp_path / "t")) as table:
        table.put([row(1)])
        table.dataset.add_columns(pa.field("w", pa.int64()))
        table.put([{**row(2), "w": 5}])
        assert table.update(where="id = 2", values={"w": 6}).matched == 1
        assert {found["id"]: found["w"] for found in table.to_arrow().to_pylist()}[2] == 6


class _ReadOnce:
    """A stream of another library: whoever reads it again finds nothing."""

    def __init__(self, reader: pa.RecordBatchReader) -> None:
        self._reader = reader

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._reader.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize(
    "once",
    [
        lambda batch: iter([batch]),
        lambda batch: (dict(item) for item in batch.to_pylist()),
        lambda batch: pa.RecordBatchReader.from_batches(batch.schema, [batch]),
        lambda batch: _ReadOnce(pa.RecordBatchReader.from_batches(batch.schema, [batch])),
    ],
    ids=["iterator", "generator", "reader", "stream"],
)
@pytest.mark.parametrize("key", ["id", None])
def test_rows_that_can_be_read_once_follow_new_columns_whole(tmp_path: Path, once: Any, key: str | None) -> None:
    """The first attempt does not know the column: the second one must not find an empty stream, and call that written."""
    with create(str(tmp_path / "t"), primary_key=key) as table:
        table.put([row(1)])
        table.dataset.add_columns(pa.field("w", pa.int64()))
        batch = pa.RecordBatch.from_pylist([{**row(2), "w": 5}, {**row(3), "w": 6}])
        assert table.put(once(batch)).written == 2
        assert ids_of(table.scan()) == [1, 2, 3]


def test_a_table_that_was_made_anew_is_written_after_one_error(tmp_path: Path) -> None:
    with create(str(tmp_path / "t")) as table:
        table.put([row(1)])
        mw.open_table(table.uri).drop(force=True)
        mw.create_table(table.uri, keyed(), primary_key="id", writer_defaults=FAST)
        assert _first_error(table) is mw.TableReplacedError
        table.put([row(3)])
        assert ids_of(table.scan()) == [3]


def _first_error(table: mw.Table) -> type[BaseException] | None:
    """What a verb raises; a writer looks at its table once a second."""
    for _ in range(300):
        try:
            table.put([row(2)])
        except mw.MemWalError as error:
            return type(error)
        threading.Event().wait(0.01)
    return None


def test_a_table_that_is_gone_is_named(tmp_path: Path) -> None:
    with create(str(tmp_path / "t")) as table:
        table.drop()
        with pytest.raises(mw.InvalidInputError, match="there is no table at"):
            table.put([row(1)])


def test_a_table_that_is_closed_within_a_write_is_closed_when_that_returns(tmp_path: Path) -> None:
    """The end of the write closes the writer, as a call of its own and not on top of one: it waits for the flush."""
    table = create(str(tmp_path / "t"))
    closed, flushes, go_on = [], threading.Event(), threading.Event()

    def point(name: str) -> None:
        if name == "put.before_ack" and not closed:
            closed.append(table.close())
        elif name == "flush.before_write":
            flushes.set()
            go_on.wait(60)

    crash_points.install(point)
    try:
        adding = in_thread(lambda: table.put([row(0)]))
        assert flushes.wait(60)
        adding.wait(0.3)
        assert adding.running, "it returned before its rows were flushed"
    finally:
        crash_points.install(None)
        go_on.set()
    assert adding.result().written == 1
    assert not list(Path(table.uri).glob("_mem_wal/*/memwal_owner_*.json"))


TWO = mw.Bucket("id", 2)
ROUNDS = scaled(ci=60, prove=3_000)


@pytest.fixture(scope="module")
def reader() -> Any:
    with outside() as other:
        yield other


@pytest.mark.scaled
@pytest.mark.timeout(scaled(ci=300, prove=0))
def test_a_second_process_sees_each_acknowledged_row_at_once(tmp_path: Path, reader: Outside) -> None:
    """Through rotation, flushes and deletes of the writer, which goes on undisturbed."""
    table = create(str(tmp_path / "t"), sharding=TWO)
    shown: dict[int, dict[str, Any]] = {}
    with table.writer(max_memtable_rows=7, compaction=None) as writer:
        for i in range(ROUNDS):
            if i % 7 == 3:
                writer.delete([i % 5])
                shown.pop(i % 5, None)
            else:
                row = {"id": i % 23, "v": i, "s": f"s{i}"}
                writer.put([row])
                shown[row["id"]] = row
            key = i % 23
            assert reader.ask("get", table.uri, key) == shown.get(key), f"round {i}"
            if i % 4 == 0:
                assert rows_of(reader.ask("scan", table.uri)) == [shown[k] for k in sorted(shown)], f"round {i}"
            if i % 10 == 0:
                assert reader.ask("count_rows", table.uri) == len(shown)
        assert {shard.epoch for shard in table.shards()} == {1}
        for shard in writer.shard_writers.values():
            shard.check_fenced()
    assert rows_of(table.scan()) == [shown[k] for k in sorted(shown)]


def test_a_reader_claims_nothing_writes_nothing_and_fences_nobody(tmp_path: Path, reader: Outside) -> None:
    table = create(str(tmp_path / "t"), sharding=TWO)
    with table.writer(compaction=None) as writer:
        writer.put([{"id": i, "v": i, "s": "x"} for i in range(10)])
        writer.flush()
        writer.put([{"id": i, "v": -i, "s": "y"} for i in range(5, 15)])
        before = files_below(table.uri)
        manifests = {shard.shard_id: manifest_of(table.uri, shard.shard_id) for shard in table.shards()}
        assert ids_of(reader.ask("scan", table.uri)) == list(range(15))
        assert reader.ask("get", table.uri, 7) == {"id": 7, "v": -7, "s": "y"}
        assert reader.ask("lookup", table.uri, [1, 12, 99]).num_rows == 2
        assert reader.ask("count_rows", table.uri, "v < 0") == 10
        assert len(reader.ask("shards", table.uri)) == 2
        assert files_below(table.uri) == before
        assert {shard_id: manifest_of(table.uri, shard_id) for shard_id in manifests} == manifests
        writer.put([{"id": 99, "v": 1, "s": "z"}])


def test_flushed_consistency_leaves_the_log_of_another_process_out(tmp_path: Path, reader: Outside) -> None:
    table = create(str(tmp_path / "t"), sharding=TWO)
    with table.writer(compaction=None) as writer:
        writer.put([{"id": 1, "v": 1, "s": "x"}])
        writer.flush()
        writer.put([{"id": 2, "v": 1, "s": "x"}])
        writer.delete([1])
        assert ids_of(reader.ask("scan", table.uri, consistency="flushed")) == [1]
        assert reader.ask("count_rows", table.uri, consistency="flushed") == 1
        assert ids_of(reader.ask("scan", table.uri)) == [2]


def test_rows_that_are_not_durable_yet_are_no_business_of_another_process(tmp_path: Path, reader: Outside) -> None:
    table = create(str(tmp_path / "t"))
    slow = {"durable_write": False, "max_wal_flush_interval_ms": None, "max_wal_buffer_size": 0}
    with table.writer(compaction=None, **slow) as writer:
        writer.put([{"id": 1, "v": 1, "s": "x"}])
        assert ids_of(table.scan()) == [1]
        assert ids_of(reader.ask("scan", table.uri)) == []
        writer.put_nowait([{"id": 2, "v": 1, "s": "x"}]).wait()
        assert ids_of(reader.ask("scan", table.uri)) == [1, 2]


def count(table: mw.Table) -> int:
    return table.count_rows()


def test_a_table_travels_to_a_worker_process_and_is_read_fresh_there(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"))
    with (
        table.writer(**FAST) as writer,
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool,
    ):
        writer.put({"id": [1, 2], "v": [1, 1], "s": ["a", "b"]})
        assert pool.submit(count, table).result(30) == 2
        writer.put({"id": [3], "v": [1], "s": ["c"]})
        assert pool.submit(count, table).result(30) == 3


def test_its_options_travel_with_it() -> None:
    location = resolve("s3://bucket/t", {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region": "x"})
    again = pickle.loads(pickle.dumps(location))
    assert (again.key, again.storage_options) == (location.key, location.storage_options)
    assert "secret" not in repr(again)


def rows(scan: mw.Scan) -> list[dict[str, Any]]:
    return scan.to_table().to_pylist()


def test_a_scan_travels_with_its_query_and_its_moment(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"))
    with (
        table.writer(**FAST) as writer,
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool,
    ):
        writer.put({"id": [1], "v": [1], "s": ["a"]})
        writer.flush(20)
        table.compact()
        writer.put({"id": [2], "v": [2], "s": ["b"]})
        writer.flush(20)
        writer.put({"id": [3, 4], "v": [3, 4], "s": ["c", "d"]})
        scan = writer.scan(["id", "s"], "v > 1", 2, order_by=["-id"])
        sent = pickle.dumps(scan)
        expected = [{"id": 4, "s": "d"}, {"id": 3, "s": "c"}]
        writer.put({"id": [5], "v": [5], "s": ["e"]})
        writer.delete([3])
        copy = pickle.loads(sent)
        assert rows(copy) == rows(pickle.loads(pickle.dumps(copy))) == expected
        assert copy.schema == scan.schema
        assert pool.submit(rows, copy).result(30) == expected
        assert rows(pickle.loads(pickle.dumps(scan))) == [{"id": 5, "s": "e"}, {"id": 4, "s": "d"}]


def test_a_scan_of_a_moment_travels_as_that_moment(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"))
    with table:
        table.put({"id": [1], "v": [1], "s": ["a"]})
        view = table.at(table.snapshot())
        table.put({"id": [2], "v": [1], "s": ["b"]})
        assert rows(pickle.loads(pickle.dumps(view.scan(["id"])))) == [{"id": 1}]


def test_scans_with_expressions_shards_and_consistency_travel(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), sharding=mw.Bucket("id", 2))
    with table:
        table.put({"id": [1, 2, 3, 4], "v": [1, 2, 3, 4], "s": ["a"] * 4})
        shard = table.shards()[0].shard_id
        for options in ({"filter": pc.field("v") > 2}, {"shards": [shard]}, {"consistency": "flushed"}):
            scan = table.scan(["id"], **options)
            assert ids_of(pickle.loads(pickle.dumps(scan))) == ids_of(scan)


def test_a_scan_of_memory_says_that_it_cannot_travel(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"))
    with table.shard_writer(**FAST) as writer:
        writer.put({"id": [1], "v": [1], "s": ["a"]})
        scan = table.scan(in_memory=writer.in_memory_memtable_refs())
        with pytest.raises(mw.InvalidInputError, match="send the table"):
            pickle.dumps(scan)
