"""Appends that are decided by a sequence, on tables that do not decide themselves: against rows and deletes of all tiers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.lance.base import NewestBase
from lance_memwal.read.reader import Reader
from lance_memwal.serve.sink_owners import SinkOwners
from lance_memwal.write.changes import Terms
from lance_memwal.write.joining import Patience, Sink
from lance_memwal.write.once import OnceAppender

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("v", pa.string()), pa.field("ts", pa.int64(), nullable=False)]
)
SHARD = mw.shard_id_for(mw.Unsharded())
BY_TS = Terms(sequence="ts")


def make(place: Path, schema: pa.Schema = SCHEMA, **options: Any) -> mw.Table:
    return mw.create_table(str(place), schema, primary_key="id", writer_defaults={"fsync": False}, **options)


def sink_of(table: mw.Table) -> Sink:
    appender = OnceAppender(table.location, look_up=Reader(NewestBase(table.base)).stored_rows)
    owners = SinkOwners(table.location, str(appender.table_id))
    return Sink(appender, patience=Patience(20, 60), find_owner=owners)


def rows(*given: tuple[int, int | None, str]) -> list[pa.RecordBatch]:
    """(key, sequence, value); the value "" is a delete."""
    columns = {
        "id": pa.array([key for key, _, _ in given], pa.int64()),
        "v": pa.array([v or None for _, _, v in given], pa.string()),
        "ts": pa.array([ts for _, ts, _ in given], pa.int64()),
        "_tombstone": pa.array([not v for _, _, v in given]),
    }
    return [pa.record_batch(columns)]


def contents(table: mw.Table) -> dict[int, tuple[str, int]]:
    return {row["id"]: (row["v"], row["ts"]) for row in table.scan().to_table().to_pylist()}


def test_an_owner_decides_as_a_sink_does_and_remembers_deletes(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    with table.writer(shared=True):
        sink = sink_of(table)
        sink.append(SHARD, rows((1, 10, "a"), (2, 10, "a")), terms=BY_TS)
        assert sink.append(SHARD, rows((1, 9, "late"), (2, 20, "")), terms=BY_TS).rejected_rows == 1
        assert contents(table) == {1: ("a", 10)}
    table.flush(force=True)
    table.compact()
    table.gc(grace_seconds=0)
    with table.writer(shared=True):
        assert sink_of(table).append(SHARD, rows((2, 19, "late")), terms=BY_TS).rejected_rows == 1
    assert sink_of(table).append(SHARD, rows((2, 19, "late"), (2, 21, "b")), terms=BY_TS).rejected_rows == 1
    assert contents(table) == {1: ("a", 10), 2: ("b", 21)}


def test_other_writes_of_such_a_table_are_what_they_were(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    sink = sink_of(table)
    sink.append(SHARD, rows((1, 10, "a"), (2, 10, "")), terms=BY_TS)
    assert table.merge is None
    sink.append(SHARD, rows((1, 5, "plain")))
    table.flush(force=True)
    with table.writer() as writer:
        writer.put_nowait([{"id": 3, "v": "plain", "ts": 1}])
        writer.put([{"id": 3, "v": "plainer", "ts": 0}])
        writer.delete([1])
    assert contents(table) == {3: ("plainer", 0)}
    sink.append(SHARD, rows((1, 1, "after a delete that has no sequence"), (2, 9, "late")), terms=BY_TS)
    assert sorted(contents(table)) == [1, 3]


def test_a_table_goes_by_one_sequence_also_when_its_column_gets_another_name(tmp_path: Path) -> None:
    table = make(tmp_path / "t", SCHEMA.append(pa.field("n", pa.int64())))
    with ThreadPoolExecutor(4) as pool:
        sinks = [sink_of(table) for _ in range(4)]
        made = [
            pool.submit(sink.append, SHARD, rows((1, 10 + n, f"v{n}")), terms=Terms("null", sequence="ts"))
            for n, sink in enumerate(sinks)
        ]
    assert sum(len(future.result().rejected or ()) + future.result().rows for future in made) == 4
    assert contents(table) == {1: ("v3", 13)}
    with pytest.raises(mw.InvalidInputError, match=r"'ts'.*'n'"):
        sinks[0].append(SHARD, rows((1, 10, "a")), terms=Terms("null", sequence="n"))
    table.dataset.alter_columns({"path": "ts", "name": "at"})
    renamed = rows((1, 12, "late"))[0].rename_columns(["id", "v", "at", "_tombstone"])
    assert sink_of(table).append(SHARD, [renamed], terms=Terms("null", sequence="at")).rejected_rows == 1


@pytest.mark.parametrize(
    ("terms", "given", "merge", "match"),
    [
        (BY_TS, (1, None, ""), None, "'ts'"),
        (Terms(sequence="v"), (1, 1, "a"), None, "'v'"),
        (Terms(sequence="id"), (1, 1, "a"), None, "'id'"),
        (BY_TS, (1, 1, "a"), mw.FirstRow(), "FirstRow"),
    ],
)
def test_what_cannot_be_put_in_order_is_refused(
    tmp_path: Path, terms: Terms, given: tuple[int, int | None, str], merge: Any, match: str
) -> None:
    table = make(tmp_path / "t", merge=merge)
    with pytest.raises(mw.InvalidInputError, match=match):
        sink_of(table).append(SHARD, rows(given), terms=terms)
    assert contents(table) == {}
