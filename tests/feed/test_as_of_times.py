"""A time is resolved exactly per shard, whatever the clocks of writers and store say, or not at all."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.store import paths

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
SHARD = mw.shard_id_for(mw.Unsharded())


@pytest.fixture
def table(tmp_path: Path) -> mw.Table:
    return mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", writer_defaults={"fsync": False})


_TICK_SECONDS = 0.02  # the times of files are those of the last tick of the system


def now() -> datetime:
    time.sleep(_TICK_SECONDS)
    moment = datetime.now(UTC)
    time.sleep(_TICK_SECONDS)
    return moment


def put(writer: mw.ShardWriter, number: int, value: str) -> None:
    writer.put(pa.table({"id": [number], "v": [value]}, schema=SCHEMA))


def rows(view: mw.Table | mw.TableView) -> dict[int, str]:
    found = view.scan().to_table()
    return dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))


def shift(directory: Path, seconds: float) -> None:
    """As if the store's clock were off by so much."""
    for path in directory.iterdir():
        shifted = path.stat().st_mtime + seconds
        os.utime(path, (shifted, shifted))


@pytest.mark.parametrize(
    ("part", "seconds"), [("manifests", -3600), ("versions", -3600), ("both", -3600), ("both", -1)]
)
def test_a_store_whose_clock_is_behind_shows_no_later_row(table: mw.Table, part: str, seconds: float) -> None:
    moments = []
    for number in range(3):
        with table.shard_writer(SHARD) as writer:
            put(writer, number, "first")
            moments.append((now(), rows(table)))
            put(writer, 0, f"again {number}")
            moments.append((now(), rows(table)))
        table.compact()
    if part != "versions":
        shift(Path(table.uri) / paths.manifest_dir(SHARD), seconds)
    if part != "manifests":
        shift(Path(table.uri) / "_versions", seconds)
    for moment, then in moments:
        assert rows(table.at(moment)) == then


@pytest.mark.parametrize("seconds", [1, 3600])
def test_a_store_whose_clock_is_ahead_shows_the_same_rows_or_none(table: mw.Table, seconds: float) -> None:
    with table.shard_writer(SHARD) as writer:
        put(writer, 1, "a")
        moment, then = now(), rows(table)
        put(writer, 2, "b")
    table.compact()
    for directory in (paths.manifest_dir(SHARD), "_versions"):
        shift(Path(table.uri) / directory, seconds)
    with pytest.raises(mw.CollectedError):
        table.at(moment)
    assert rows(table.at(moment + timedelta(days=1))) == rows(table)
    assert then == {1: "a"}


def test_a_time_between_what_a_checkpoint_keeps_is_not_the_checkpoint(table: mw.Table) -> None:
    """The manifest and the first entry are kept, and the second entry, of the same manifest, is not."""
    writer = table.shard_writer(SHARD)
    put(writer, 1, "a")
    table.checkpoint_create("kept")
    put(writer, 2, "b")
    gone = now()
    put(writer, 3, "c")
    writer.close()
    for number in range(4):
        with table.shard_writer(SHARD) as writer:
            put(writer, 10 + number, "d")
        table.compact()
    table.gc(grace_seconds=0)
    assert rows(table.at("kept")) == {1: "a"}
    with pytest.raises(mw.CollectedError):
        table.at(gone)


def test_entries_of_the_peer_have_the_time_of_their_objects(table: mw.Table) -> None:
    dataset = lance.dataset(table.uri)
    with dataset.mem_wal_writer(SHARD) as peer:
        peer.put(pa.record_batch({"id": [1], "v": ["a"]}, schema=SCHEMA))
        moment = now()
        peer.put(pa.record_batch({"id": [2], "v": ["b"]}, schema=SCHEMA))
        assert rows(table.at(moment)) == {1: "a"}
        assert rows(table) == {1: "a", 2: "b"}


def test_a_version_is_old_from_when_another_took_its_place(table: mw.Table) -> None:
    with table.shard_writer(SHARD) as writer:
        put(writer, 1, "a")
    table.compact()
    shift(Path(table.uri) / "_versions", -30 * 86_400)
    snapshot = table.snapshot()
    with table.shard_writer(SHARD) as writer:
        put(writer, 1, "b")
    table.maintain()
    assert table.base.version > snapshot.base_version
    assert rows(table.at(snapshot)) == {1: "a"}


def test_a_large_put_is_there_from_its_manifest_on(table: mw.Table) -> None:
    moments = []
    with table.shard_writer(SHARD, max_memtable_rows=10) as writer:
        for number in range(3):
            put(writer, number, "small")
            moments.append((now(), rows(table)))
            many = list(range(100 * number, 100 * number + 50))
            writer.put(pa.table({"id": many, "v": [f"large {number}"] * len(many)}, schema=SCHEMA))
            moments.append((now(), rows(table)))
    table.compact()
    assert len(moments[-1][1]) > 100
    for moment, then in moments:
        assert rows(table.at(moment)) == then


def test_a_version_that_clean_up_took_is_not_replaced_by_an_older_one_that_somebody_keeps(table: mw.Table) -> None:
    with table.writer(compaction=None) as writer:
        writer.put({"id": [1], "v": ["a"]})
    table.checkpoint_create("kept")
    now()
    table.dataset.add_columns(pa.field("extra", pa.int64()))
    then = now()
    assert "extra" in table.at(then).schema.names
    now()
    table.dataset.add_columns(pa.field("later", pa.int64()))
    table.maintain(versions=timedelta(0), grace_seconds=0)
    with pytest.raises(mw.CollectedError):
        table.at(then)
    assert "extra" not in table.at("kept").schema.names


def test_a_version_that_does_not_fit_is_not_replaced_by_one_on_the_other_side_of_a_gap(table: mw.Table) -> None:
    """The clock of the store is behind, so that the newest version of then is too new; the one before it is gone."""
    with table.writer(compaction=None) as writer:
        writer.put({"id": [1], "v": ["a"]})
    table.compact()
    table.checkpoint_create("kept")
    now()
    table.dataset.update({"v": "'b'"}, where="id = 1")  # plain Lance: no log has it
    moment, then = now(), rows(table)
    with table.writer(compaction=None) as writer:
        writer.put({"id": [2], "v": ["later"]})
    table.compact()
    for directory in (paths.manifest_dir(SHARD), "_versions"):
        shift(Path(table.uri) / directory, -3600)
    assert rows(table.at(moment)) == then == {1: "b"}
    table.dataset.cleanup_old_versions(older_than=timedelta(0), error_if_tagged_old_versions=False)
    with pytest.raises(mw.CollectedError, match="gone"):
        table.at(moment)
