"""Sinks beside an owner that shares its shard: their rows go through it, once."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.serve.sink_owners import SinkOwners
from lance_memwal.types import TOMBSTONE
from lance_memwal.write.changes import Terms
from lance_memwal.write.joining import Patience, Sink
from lance_memwal.write.once import OnceAppender
from tests.harness.processes import start
from tests.serve.shared_child import own_and_put

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])
SHARD = mw.shard_id_for(mw.Unsharded())


def new_table(path: Path, key: str | None) -> mw.Table:
    return mw.create_table(
        str(path), SCHEMA, primary_key=key, sharding=mw.Unsharded(), writer_defaults={"fsync": False}
    )


def sink(table: mw.Table) -> Sink:
    appender = OnceAppender(table.uri)
    assert appender.table_id is not None
    return Sink(appender, patience=Patience(20, 60), find_owner=SinkOwners(table.location, appender.table_id))


def rows(number: int, value: str = "sink", *, dead: bool | None = None) -> list[pa.RecordBatch]:
    columns = {"id": pa.array([number], pa.int64()), "v": pa.array([value])}
    return [pa.record_batch(columns if dead is None else {**columns, TOMBSTONE: pa.array([dead])})]


def values(table: mw.Table) -> dict[int, str]:
    found = table.scan().to_table()
    assert len(set(found["id"].to_pylist())) == found.num_rows
    return dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))


@pytest.mark.parametrize("key", ["id", None])
def test_rows_go_through_the_owner_and_by_another_way_once_it_is_dead(tmp_path: Path, key: str | None) -> None:
    table = new_table(tmp_path / "t", key)
    writing = sink(table)
    writing.append(SHARD, rows(1))
    child = start(own_and_put, table.uri, [{"id": 2, "v": "owner"}], {})
    assert child.receive(30) == ("owned", [SHARD])
    epoch = table.shards()[0].epoch
    result = writing.append(SHARD, rows(3), txn=("app", 1))
    assert (result.rows, result.skipped) == (1, False)
    assert writing.append(SHARD, rows(4), txn=("app", 1)).skipped
    assert table.shards()[0].epoch == epoch, "nobody was fenced"
    child.kill()
    assert writing.append(SHARD, rows(5), txn=("app", 1)).skipped, "the next epoch knows what went through the owner"
    writing.append(SHARD, rows(6))
    assert table.shards()[0].epoch == epoch + 1
    assert values(table) == {1: "sink", 2: "owner", 3: "sink", 6: "sink"}


def test_tombstones_and_conditions_of_a_sink_are_honoured_by_the_owner(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t", "id")
    with table.writer(shared=True) as writer:
        writer.put([{"id": 1, "v": "owner"}, {"id": 2, "v": "owner"}])
        writing = sink(table)
        both = pa.concat_batches([rows(1, dead=True)[0], rows(3, dead=False)[0]])
        assert writing.append(SHARD, [both], txn=("app", 1)).rows == 2
        kept = writing.append(SHARD, rows(2), terms=Terms(if_absent=True))
        assert (kept.rows, kept.rejected is not None) == (0, True)
        assert values(table) == {2: "owner", 3: "sink"}
    assert values(table) == {2: "owner", 3: "sink"}


@pytest.mark.parametrize("served", [False, True])
def test_an_owner_takes_what_a_sink_would_write_itself_and_refuses_what_it_would_not(
    tmp_path: Path, served: bool
) -> None:
    table = new_table(tmp_path / "t", "id")
    writing = sink(table)
    with table.writer(shared=True) as owner:
        if served:
            owner.put([{"id": 0, "v": "owner"}])
        nothing = pa.RecordBatch.from_pylist([], schema=SCHEMA)
        assert writing.append(SHARD, [nothing, *rows(1), nothing]).rows == 1
        assert writing.append(SHARD, rows(2, dead=False)).rows == 1
        [row] = rows(1, "wrong")
        for flags in (pa.array([None], pa.bool_()), pa.array([1]), pa.array(["x"])):
            with pytest.raises(mw.InvalidInputError, match="must be boolean without nulls"):
                writing.append(SHARD, [row.append_column(TOMBSTONE, flags)])
        for empty in ([], [nothing]):
            with pytest.raises(mw.InvalidInputError, match="empty"):
                writing.append(SHARD, empty)
        expected = {1: "sink", 2: "sink"}
        assert values(table) == ({0: "owner", **expected} if served else expected)
