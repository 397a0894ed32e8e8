"""Reads as of then: whatever happens later, a moment shows what it showed."""

from __future__ import annotations

import pickle
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.store.location import resolve
from lance_memwal.store.retry import RetryPolicy
from lance_memwal.testing.faulty import FaultKind, FaultPlan, FaultScript

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
SHARD = mw.shard_id_for(mw.Unsharded())


@pytest.fixture
def table(tmp_path: Path) -> mw.Table:
    return mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", writer_defaults={"fsync": False})


def put(table: mw.Table, numbers: list[int], value: str, *, flush: bool = True) -> None:
    writer = table.shard_writer(SHARD)
    writer.put(pa.table({"id": numbers, "v": [value] * len(numbers)}, schema=SCHEMA))
    writer.close() if flush else writer.abort()


def delete(table: mw.Table, numbers: list[int]) -> None:
    writer = table.shard_writer(SHARD)
    writer.delete(numbers)
    writer.abort()


def rows(view: mw.Table | mw.TableView) -> dict[int, str]:
    found = view.scan().to_table()
    return dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))


def live(table: mw.Table) -> dict[int, str]:
    """Row 1 in the base table, 2 in an SSTable, 3 in the log; 9 was deleted."""
    put(table, [1, 9], "old")
    table.compact()
    put(table, [2], "old")
    put(table, [3], "old", flush=False)
    delete(table, [9])
    return rows(table)


def change_everything(table: mw.Table) -> None:
    put(table, [1, 2, 3, 4, 9], "new")
    table.compact()
    put(table, [5], "new", flush=False)


# ---------------------------------------------------------------------------------------------------------- snapshots


def test_a_snapshot_shows_then_what_the_table_has_become_since(table: mw.Table) -> None:
    before = live(table)
    snapshot = table.snapshot()
    change_everything(table)
    view = table.at(snapshot)
    assert before == {1: "old", 2: "old", 3: "old"} == rows(view)
    assert view.count_rows() == len(view) == 3
    assert view.get(1) == {"id": 1, "v": "old"}
    assert view.get(9) is None
    assert view.get(4) is None
    assert sorted(view.lookup([1, 3, 5, 9])["id"].to_pylist()) == [1, 3]
    assert view.count_rows("v = 'new'") == 0
    assert view.to_arrow().num_rows == 3
    assert view.head(2).num_rows == 2
    assert rows(table) == {1: "new", 2: "new", 3: "new", 4: "new", 5: "new", 9: "new"}


def test_a_snapshot_is_a_small_text_and_travels(table: mw.Table) -> None:
    live(table)
    snapshot = table.snapshot()
    text = str(snapshot)
    assert mw.Snapshot.parse(text) == snapshot == pickle.loads(pickle.dumps(snapshot))
    assert len(text) < 70
    assert text in repr(snapshot)
    change_everything(table)
    assert rows(mw.open_table(table.uri).at(text)) == rows(pickle.loads(pickle.dumps(table.at(snapshot))))
    assert table.snapshot() != snapshot


@pytest.mark.parametrize("text", ["memwal1:", "memwal1:-:", "memwal1:-:1:x", "memwal1:-:1:{0}.1.2.3:{0}.1.2.3"])
def test_a_text_that_was_cut_or_changed_is_refused(table: mw.Table, text: str) -> None:
    with pytest.raises(mw.InvalidInputError):
        mw.Snapshot.parse(text.format("A" * 22))


def test_a_snapshot_of_another_form_is_not_understood() -> None:
    with pytest.raises(mw.UnsupportedFormatError):
        mw.Snapshot.parse("memwal2:-:1")


def test_a_snapshot_of_another_table_is_refused(table: mw.Table, tmp_path: Path) -> None:
    other = mw.create_table(str(tmp_path / "other"), SCHEMA, primary_key="id")
    with pytest.raises(mw.TableReplacedError):
        table.at(other.snapshot())


def test_rows_that_are_not_durable_yet_are_not_in_a_snapshot(table: mw.Table) -> None:
    with table.shard_writer(SHARD, durable_write=False, max_wal_flush_interval_ms=None) as writer:
        writer.put(pa.table({"id": [7], "v": ["x"]}, schema=SCHEMA))
        assert rows(table) == {7: "x"}
        assert rows(table.at(table.snapshot())) == {}
    assert rows(table.at(table.snapshot())) == {7: "x"}


def test_a_base_version_is_exactly_what_plain_lance_shows(table: mw.Table) -> None:
    live(table)
    change_everything(table)
    for item in lance.dataset(table.uri).versions():
        version = int(item["version"])
        plain = lance.dataset(table.uri, version=version).to_table().sort_by("id")
        assert table.at(version).scan().to_table().sort_by("id") == plain
        assert table.at(str(version)).count_rows() == plain.num_rows
    with pytest.raises(mw.InvalidInputError, match="newest"):
        table.at(10_000)
    lance.dataset(table.uri).cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    with pytest.raises(mw.CollectedError):
        table.at(1)


def test_columns_are_those_of_then(table: mw.Table) -> None:
    live(table)
    snapshot = table.snapshot()
    lance.dataset(table.uri).add_columns(pa.field("n", pa.int64()))
    writer = table.shard_writer(SHARD)
    writer.put(pa.table({"id": [1], "v": ["new"], "n": pa.array([7], pa.int64())}))
    writer.close()
    assert table.at(snapshot).schema.names == ["id", "v"]
    assert rows(table.at(snapshot)) == {1: "old", 2: "old", 3: "old"}
    assert table.at(table.snapshot()).get(1) == {"id": 1, "v": "new", "n": 7}


# --------------------------------------------------------------------------------------------------------------- times


def test_a_time_shows_the_table_as_it_was(table: mw.Table) -> None:
    moments = []
    for step in (
        lambda: put(table, [1, 2], "a", flush=False),
        lambda: put(table, [2], "b"),
        lambda: delete(table, [1]),
        table.compact,
        lambda: put(table, [3], "c", flush=False),
        lambda: put(table, [1], "d"),
        table.compact,
    ):
        step()
        time.sleep(0.005)
        moments.append((datetime.now(UTC), rows(table)))
        time.sleep(0.005)
    for moment, then in moments:
        assert rows(table.at(moment)) == then
        assert rows(table.at(moment.isoformat())) == then
    first = moments[0][0] - timedelta(days=1)
    with pytest.raises(mw.CollectedError):
        table.at(first)
    assert rows(table.at(datetime.now(UTC) + timedelta(days=1))) == rows(table)


def test_a_time_before_a_shard_was_claimed_shows_none_of_its_rows(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=mw.Bucket("id", 4))
    time.sleep(0.005)
    empty = datetime.now(UTC)
    time.sleep(0.005)
    with table.writer(fsync=False) as writer:
        writer.put({"id": list(range(20)), "v": ["x"] * 20})
    table.compact()
    assert rows(table.at(empty)) == {}


def test_a_time_that_collection_passed_is_an_error(table: mw.Table) -> None:
    live(table)
    time.sleep(0.005)
    then = datetime.now(UTC)
    time.sleep(0.005)
    change_everything(table)
    put(table, [6], "new")
    table.compact()
    table.gc(grace_seconds=0)
    with pytest.raises(mw.CollectedError):
        table.at(then).count_rows()


@pytest.mark.parametrize("moment", [None, True, 1.5, "", datetime(2026, 1, 1), "2026-01-01T00:00", "2026-13-01"])
def test_what_names_no_moment_is_refused(table: mw.Table, moment: object) -> None:
    with pytest.raises(mw.InvalidInputError):
        table.at(moment)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["snapshot", "version"])
def test_what_is_out_of_reach_is_not_taken_for_removed(table: mw.Table, kind: str) -> None:
    """Each call to the store is lost once: the answer is right, or says that the store did not answer."""
    live(table)
    moment = table.snapshot() if kind == "snapshot" else table.base.version
    then = rows(table.at(moment))
    change_everything(table)
    failed = 0
    for call in range(200):
        script = FaultScript(FaultPlan(at={call: FaultKind.ERROR_BEFORE}))
        try:
            location = resolve(table.uri, wrap=script.wrap, policy=RetryPolicy(max_attempts=1))
            assert rows(mw.open_table(location).at(moment)) == then
        except mw.UnavailableError:
            failed += 1
        if not script.injected:
            break
    assert not script.injected
    assert failed
