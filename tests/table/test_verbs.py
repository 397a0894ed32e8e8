"""The write verbs give the same results and errors on a table, a table writer and a shard writer; those of a table write through
one shared writer, and other processes read every acknowledged row."""

from __future__ import annotations

import inspect
import json
import multiprocessing
import os
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_memwal as mw
from lance_memwal.memtable import live
from lance_memwal.store.location import resolve
from lance_memwal.write.request import NowaitWritable, Writable
from tests.harness.points import run_once_at
from tests.harness.processes import start
from tests.harness.profile import scaled
from tests.kit.tables import FAST, Outside, create, files_below, ids_of, keyed, manifest_of, outside, rows_of
from tests.kit.writers import fork
from tests.shared.shared_child import put_on_signal


def row(key: int, v: int = 0, s: str | None = "a") -> dict[str, Any]:
    return {"id": key, "v": v, "s": s}


VERBS = ("put", "insert", "update", "delete", "compare_and_set")
KINDS = ["table", "table of shards", "table writer", "writer of shards", "shared writer", "shard writer"]


class Target:
    """Something with write verbs, and the table below it."""

    def __init__(self, kind: str, path: Path, stack: ExitStack, **options: Any) -> None:
        sharding = mw.Bucket("id", 3) if "shards" in kind else mw.Unsharded()
        self.table = stack.enter_context(create(str(path / "t"), sharding=sharding, **options))
        self.writes: Writable = self.table
        if "writer" in kind:
            opened = (
                self.table.shard_writer()
                if kind == "shard writer"
                else self.table.writer(shared=kind == "shared writer", compaction=None)
            )
            self.writes = stack.enter_context(opened)

    def rows(self) -> list[dict[str, Any]]:
        return sorted(self.table.to_arrow().to_pylist(), key=lambda found: found["id"])

    def values(self) -> dict[int, Any]:
        return {found["id"]: found["v"] for found in self.rows()}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def target(kind: str, tmp_path: Path) -> Iterator[Target]:
    with ExitStack() as stack:
        yield Target(kind, tmp_path, stack)


def keys_of(found: pa.Table | None) -> list[int] | None:
    return None if found is None else sorted(found["id"].to_pylist())


def test_verbs_have_one_signature() -> None:
    for owner in (mw.Table, mw.TableWriter, mw.ShardWriter):
        assert issubclass(owner, Writable)
        for verb in VERBS:
            assert getattr(owner, verb) is getattr(Writable, verb), (owner, verb)
            parameters = inspect.signature(getattr(Writable, verb)).parameters.values()
            assert not {each.kind for each in parameters} & {
                inspect.Parameter.VAR_POSITIONAL,
                inspect.Parameter.VAR_KEYWORD,
            }
    for owner in (mw.TableWriter, mw.ShardWriter):
        assert owner.put_nowait is NowaitWritable.put_nowait
        assert owner.delete_nowait is NowaitWritable.delete_nowait
    assert Writable.__abstractmethods__ == {"_apply"}


def test_put_replaces_rows_by_key(target: Target) -> None:
    done = target.writes.put([row(1, 1), row(2, 2)])
    assert (done.written, done.matched, done.rejected, done.skipped) == (2, None, None, False)
    assert target.writes.put(pa.RecordBatch.from_pylist([row(2, 20), row(3, 30)], keyed())).written == 2
    assert target.writes.put(row(1, 10)).written == 1
    assert target.values() == {1: 10, 2: 20, 3: 30}


def test_put_refuses_columns_that_are_left_out_unless_told_what_they_become(target: Target) -> None:
    target.writes.put([row(1, 1, "kept")])
    with pytest.raises(mw.InvalidInputError, match="left out: 's'"):
        target.writes.put([{"id": 1, "v": 2}])
    target.writes.put([{"id": 1, "v": 2}], missing="keep")
    assert target.rows() == [row(1, 2, "kept")]
    target.writes.put([{"id": 1, "v": 3}], missing="null")
    assert target.rows() == [row(1, 3, None)]
    with pytest.raises(mw.InvalidInputError, match="missing must be"):
        target.writes.put([row(1)], missing="drop")  # type: ignore[arg-type]


def test_put_with_conditions_names_the_rejected_keys(target: Target) -> None:
    target.writes.put([row(1, 5), row(2, 5)])
    absent = target.writes.put([row(1, 9), row(3, 9)], if_absent=True)
    assert (absent.written, keys_of(absent.rejected)) == (1, [1])
    newer = target.writes.put([row(1, 4), row(2, 6)], where="excluded.v > v")
    assert (newer.written, keys_of(newer.rejected)) == (1, [1])
    assert target.values() == {1: 5, 2: 6, 3: 9}
    with pytest.raises(mw.InvalidInputError, match="if_absent"):
        target.writes.put([row(1)], if_absent="yes")  # type: ignore[arg-type]


def test_insert_refuses_keys_that_exist_or_occur_twice(target: Target) -> None:
    assert target.writes.insert([row(1), row(2)]).written == 2
    for again in ([row(1, 11)], [row(3), row(3)]):
        with pytest.raises(mw.InvalidInputError, match="nothing was written"):
            target.writes.insert(again)
    with pytest.raises(mw.InvalidInputError, match="left out"):
        target.writes.insert([{"id": 4}])
    assert target.values() == {1: 0, 2: 0}


def test_update_changes_given_columns_of_existing_rows(target: Target) -> None:
    target.writes.put([row(1, 1, "x"), row(2, 2, "y")])
    done = target.writes.update([{"id": 1, "v": 10}, {"id": 2, "s": "z"}])
    assert (done.written, done.matched) == (2, 2)
    assert target.rows() == [row(1, 10, "x"), row(2, 2, "z")]
    with pytest.raises(mw.InvalidInputError):
        target.writes.update([{"id": 3, "v": 1}])
    inserted = target.writes.update([{"id": 2, "v": 20}, {"id": 3, "v": 30}], insert=True)
    assert (inserted.written, inserted.matched) == (2, 1)
    assert target.rows() == [row(1, 10, "x"), row(2, 20, "z"), row(3, 30, None)]


def test_update_by_a_filter(target: Target) -> None:
    target.writes.put([row(i, i) for i in range(4)])
    assert target.writes.update(where="v > 1", values={"s": "big"}).matched == 2
    assert target.writes.update(where="v <= 1", set={"v": "v + 10"}, values={"s": "small"}).matched == 2
    assert target.writes.update(where="v = 99", values={"s": "none"}).matched == 0
    assert target.writes.update(where=mw.where("v = ?", 3), set={"v": "id * 2"}).written == 1
    assert target.rows() == [row(0, 10, "small"), row(1, 11, "small"), row(2, 2, "big"), row(3, 6, "big")]
    assert target.writes.update(where="true", values={"v": 0}).matched == 4


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"rows": [row(1)], "where": "v = 1"},
        {"rows": [row(1)], "values": {"v": 1}},
        {"rows": [row(1)], "where": "v = 1", "values": {"v": 1}},
        {"where": "v = 1"},
        {"values": {"v": 1}},
        {"set": {"v": "1"}},
        {"where": "v = 1", "values": {"v": 1}, "insert": True},
        {"where": "v = 1", "values": {"v": 1}, "set": {"v": "1"}},
        {"where": "v = 1", "values": {}},
        {"where": "v = 77", "values": {"id": 1}},
        {"where": "v = 77", "set": {"w": "1"}},
        {"rows": [row(1)], "insert": "yes"},
        {"rows": [row(1)], "txn": ("app", -1)},
    ],
)
def test_wrong_updates_are_refused_and_change_nothing(target: Target, wrong: dict[str, Any]) -> None:
    target.writes.put([row(1, 1)])
    with pytest.raises(mw.InvalidInputError):
        target.writes.update(**wrong)
    assert target.rows() == [row(1, 1)]


def test_delete_by_key_and_by_filter(target: Target) -> None:
    target.writes.put([row(i, i) for i in range(6)])
    done = target.writes.delete([0, 99])
    assert (done.written, done.matched) == (2, None)
    assert target.writes.delete([1, 99], count=True).matched == 1
    assert target.writes.delete(where="v >= 4").matched == 2
    assert target.writes.delete(where="v >= 4").matched == 0
    assert target.writes.delete(2).written == 1
    assert target.values() == {3: 3}


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"keys": [1], "where": "v = 1"},
        {"where": "v = 1", "sequence": 3},
        {"keys": [1], "sequence": 3},
        {"keys": "v = 1"},
        {"keys": [None]},
        {"keys": [1], "count": "yes"},
        {"where": "nothing = 1"},
        {"where": "v ="},
    ],
)
def test_wrong_deletes_are_refused_and_change_nothing(target: Target, wrong: dict[str, Any]) -> None:
    target.writes.put([row(1, 1)])
    with pytest.raises(mw.InvalidInputError):
        target.writes.delete(**wrong)
    assert target.rows() == [row(1, 1)]


def test_compare_and_set_changes_one_row(target: Target) -> None:
    assert target.writes.compare_and_set(1, None, row(1, 1))
    assert not target.writes.compare_and_set(1, None, row(1, 2))
    assert target.writes.compare_and_set((1,), row(1, 1), {"v": 2, "s": "b"}, txn=("app", 1))
    assert target.writes.compare_and_set(1, row(1, 1), {"v": 2, "s": "b"}, txn=("app", 1))  # a repeat
    assert target.rows() == [row(1, 2, "b")]
    with pytest.raises(mw.InvalidInputError):
        target.writes.compare_and_set(1, None, {"v": 2})
    assert target.writes.compare_and_set({"id": 1}, row(1, 2, "b"), None)
    assert target.rows() == []


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        ("put", {"rows": [row(1, 2), row(2, 2)]}),
        ("put", {"rows": [row(1, 2), row(2, 2)], "if_absent": True}),
        ("insert", {"rows": [row(3), row(4)]}),
        ("update", {"rows": [{"id": 1, "v": 3}]}),
        ("update", {"where": "id = 1", "set": {"v": "v + 1"}}),
        ("delete", {"keys": [1]}),
        ("delete", {"keys": [1], "count": True}),
    ],
)
def test_a_transaction_is_applied_once(target: Target, verb: str, arguments: dict[str, Any]) -> None:
    target.writes.put([row(1, 1)])
    first = getattr(target.writes, verb)(**arguments, txn=("app", 1))
    rows = target.rows()
    assert not first.skipped
    again = getattr(target.writes, verb)(**arguments, txn=("app", 1))
    assert again.written == 0
    had_it = {name for name, done in first.shards.items() if done.written}
    assert {name for name, done in again.shards.items() if done.skipped} == had_it
    assert target.rows() == rows


def test_a_transaction_is_skipped_only_if_every_shard_had_it(tmp_path: Path) -> None:
    with ExitStack() as stack:
        target = Target("writer of shards", tmp_path, stack)
        assert not target.writes.put([row(1)], txn=("app", 1)).skipped
        both = target.writes.put([row(key) for key in range(12)], txn=("app", 1))
        assert not both.skipped
        assert [done.skipped for done in both.shards.values()].count(True) == 1
        assert target.writes.put([row(key) for key in range(12)], txn=("app", 1)).skipped
        assert not target.writes.put([], txn=("app", 1)).skipped


def test_results_sum_up_their_shards_and_are_short(target: Target, kind: str) -> None:
    done = target.writes.put([row(key, 1) for key in range(20)])
    assert len(done.shards) == (3 if "shards" in kind else 1)
    assert sum(shard.written for shard in done.shards.values()) == done.written == 20
    assert all(len(shard.positions) == 1 for shard in done.shards.values())
    assert repr(done) == f"WriteResult(written=20, shards={len(done.shards)})"
    rejecting = target.writes.put([row(key) for key in range(21)], if_absent=True)
    assert repr(rejecting) == f"WriteResult(written=1, rejected=20, shards={len(rejecting.shards)})"
    told = json.loads(json.dumps(rejecting.to_dict()))
    assert (told["written"], told["matched"], told["skipped"]) == (1, None, False)
    assert sorted(key["id"] for key in told["rejected"]) == list(range(20))
    assert told["shards"].keys() == rejecting.shards.keys()
    assert {len(shard["positions"]) for shard in told["shards"].values()} == {2}
    shard = next(iter(done.shards.values()))
    assert repr(shard) == f"ShardWrite(positions={shard.positions}, written={shard.written})"
    with pytest.raises(AttributeError):
        done.written = 3  # type: ignore[misc]


def test_rows_that_can_be_read_once_are_written_whole(target: Target) -> None:
    batch = pa.RecordBatch.from_pylist([row(1), row(2)], keyed())
    assert target.writes.put(iter([batch])).written == 2
    assert target.writes.insert(row(key) for key in (3, 4)).written == 2
    assert target.writes.update(pa.RecordBatchReader.from_batches(batch.schema, [batch])).matched == 2
    assert target.writes.delete(iter([1, 2]), count=True).matched == 2
    assert sorted(target.values()) == [3, 4]


@pytest.mark.parametrize("kind", [name for name in KINDS if "shards" not in name])  # shards are of the key
def test_verbs_that_need_a_key_say_so(kind: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        target = Target(kind, tmp_path, stack, primary_key=None)
        assert target.writes.put([row(1), row(1)]).written == 2
        for call in (
            lambda: target.writes.insert([row(2)]),
            lambda: target.writes.put([{"id": 1}], missing="keep"),
            lambda: target.writes.put([row(1)], if_absent=True),
            lambda: target.writes.delete([1], count=True),
            lambda: target.writes.update([row(1)]),
            lambda: target.writes.update(where="v = 0", values={"v": 1}),
            lambda: target.writes.delete([1]),
            lambda: target.writes.delete(where="v = 0"),
            lambda: target.writes.compare_and_set(1, None, row(1)),
        ):
            with pytest.raises(mw.InvalidInputError, match="no primary key"):
                call()
        assert len(target.table) == 2


def test_a_merge_holds_for_every_verb(kind: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        target = Target(kind, tmp_path, stack, merge=mw.LastWrite(sequence="v"))
        target.writes.put([row(1, 5), row(2, 5)])
        late = target.writes.put([row(1, 4), row(2, 6)])
        assert (late.written, keys_of(late.rejected)) == (1, [1])
        assert keys_of(target.writes.delete([1], sequence=4).rejected) == [1]
        assert target.writes.delete([{"id": 1, "v": 9}]).written == 1
        with pytest.raises(mw.InvalidInputError, match="sequence="):
            target.writes.delete([2])
        assert target.values() == {2: 6}


@pytest.mark.parametrize("kind", ["table writer", "writer of shards", "shared writer", "shard writer"], indirect=True)
def test_writes_that_do_not_wait_return_their_result_with_the_wait(target: Target) -> None:
    writer = target.writes
    assert isinstance(writer, NowaitWritable)
    acks = [writer.put_nowait([row(key) for key in range(5)]), writer.delete_nowait([1, 2])]
    assert [ack.wait(30).written for ack in acks] == [5, 2]
    assert [ack.wait().written for ack in acks] == [5, 2]
    assert all(ack.durable for ack in acks)
    assert sorted(target.values()) == [0, 3, 4]
    assert writer.put_nowait(iter([row(1)])).wait().written == 1
    with pytest.raises(mw.InvalidInputError):
        writer.put_nowait([{"id": 1}])


@pytest.mark.parametrize("kind", ["table writer", "writer of shards", "shared writer", "shard writer"], indirect=True)
def test_writes_that_do_not_wait_are_refused_if_the_table_looks_rows_up(kind: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        writer: Any = Target(kind, tmp_path, stack, merge=mw.LastWrite(sequence="v")).writes
        with pytest.raises(mw.InvalidInputError, match="put_nowait looks no rows up"):
            writer.put_nowait([row(1)])
        with pytest.raises(mw.InvalidInputError, match="delete_nowait looks no rows up"):
            writer.delete_nowait([1])


# ------------------------------------------------------------------------------------------------------- verbs of a table


@pytest.fixture(params=[mw.Unsharded(), mw.Bucket("id", 3), mw.Identity("id")], ids=str)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[mw.Table]:
    with create(str(tmp_path / "t"), sharding=request.param) as made:
        yield made


def test_a_table_without_a_key_takes_rows_as_they_come(tmp_path: Path) -> None:
    with create(str(tmp_path / "t"), primary_key=None) as table:
        table.put([row(1), row(1)])
        table.put(row(1) for _ in range(1))
        assert len(table) == 3


def test_delete_takes_an_arrow_expression(table: mw.Table) -> None:
    table.put([row(1), {**row(2), "v": 3}])
    assert table.delete(where=pc.field("v") == 3).matched == 1
    assert ids_of(table.scan()) == [1]


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


def test_verbs_see_and_change_the_rows_of_another_process(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"))
    other = start(put_on_signal, table.uri, [row(1)])
    assert other.receive(30) == ("put",)
    with table:
        table.put([row(2)])
        with pytest.raises(mw.InvalidInputError, match="nothing was written"):
            table.insert([row(1)])
        assert table.update(where="id = 1", values={"s": "it's"}).matched == 1
        other.kill()
        table.put([row(3)])
        assert ids_of(table.scan()) == [1, 2, 3]
        assert table.get(1) == row(1, s="it's")


def test_closed_table_opens_another_writer_for_its_verbs(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"))
    with table:
        assert ids_of(table.scan()) == []
        assert table.shards() == []
        table.put([row(1)])
        assert not live.all_of(table.location.key)
    assert [shard.generations for shard in table.shards()] == [()]  # one entry stays in the log
    table.put([row(2)])
    for number in range(3, 12):
        table.put([row(number)])
    table.close()
    table.close()
    assert [shard.generations for shard in table.shards()] == [(1,)]
    assert ids_of(table.scan()) == list(range(1, 12))


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


def test_close_on_top_of_a_write_returns_at_once(tmp_path: Path) -> None:
    """As a signal handler does it."""
    table = create(str(tmp_path / "t"))
    closed = run_once_at("once.after_put", table.close)
    assert table.put([row(0)]).written == 1
    assert closed
    table.put([row(1)])
    assert ids_of(table.scan()) == [0, 1]
    table.close()


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
