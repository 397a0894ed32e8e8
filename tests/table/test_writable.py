"""Every class with write verbs gives the same results and errors to the same calls: a table, a table writer, a shard writer."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.write.request import NowaitWritable, Writable
from tests.kit.tables import create, keyed

VERBS = ("put", "insert", "update", "delete", "compare_and_set")
KINDS = ["table", "table of shards", "table writer", "writer of shards", "shared writer", "shard writer"]


def row(key: int, v: int = 0, s: str | None = "a") -> dict[str, Any]:
    return {"id": key, "v": v, "s": s}


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
        ("update", {"where": "v = 1", "set": {"v": "v + 1"}}),
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
    assert {name: done.skipped for name, done in again.shards.items()} == {
        name: done.written > 0 for name, done in first.shards.items() if name in again.shards
    }
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


def test_verbs_that_need_a_key_say_so(kind: str, tmp_path: Path) -> None:
    if "shards" in kind:
        pytest.skip("shards are of the key")
    with ExitStack() as stack:
        target = Target(kind, tmp_path, stack, primary_key=None)
        assert target.writes.put([row(1), row(1)]).written == 2
        for call in (
            lambda: target.writes.insert([row(2)]),
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
