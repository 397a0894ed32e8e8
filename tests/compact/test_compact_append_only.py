"""Append-only tables have every row once, whatever Lance does to them between compactions."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import crash_points
from lance_memwal.lance.marks import METADATA_KEY
from tests.harness.points import run_once_at
from tests.kit.compaction import by_lance_only, unheld_files

SCHEMA = pa.schema([("a", pa.int64()), ("s", pa.string())])
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "stable row ids": {"enable_stable_row_ids": True},
    "old manifest names": {"enable_v2_manifest_paths": False},
}
AT_ONCE = dt.timedelta(0)


def _rows(numbers: Any) -> pa.Table:
    return pa.table([list(numbers), ["x"] * len(numbers)], schema=SCHEMA)


def _table(place: Path, kind: str) -> mw.Table:
    lance.write_dataset(_rows(range(40)), str(place), max_rows_per_file=10, **KINDS[kind])
    return mw.enable(str(place), sharding=mw.Unsharded(), writer_defaults={"fsync": False})


def _write(table: mw.Table, *generations: list[int]) -> None:
    with table.writer(compaction=None) as writer:
        for numbers in generations:
            writer.put(_rows(numbers))
            writer.flush()


def _numbers(rows: pa.Table) -> list[int]:
    return sorted(rows.column("a").to_pylist())


class _StoppedError(Exception):
    """The compactor ends here."""


def _stop() -> None:
    raise _StoppedError


def _nothing(_: str) -> None:
    return None


def _index_and_compact(uri: str) -> None:
    lance.dataset(uri).create_scalar_index("a", "BTREE")
    lance.dataset(uri).optimize.compact_files()


def _append_and_clean_up(uri: str) -> None:
    for number in (500, 501):
        lance.write_dataset(_rows([number]), uri, mode="append")
    lance.dataset(uri).cleanup_old_versions(older_than=AT_ONCE, delete_unverified=True)


def _everything(uri: str) -> None:
    _append_and_clean_up(uri)
    lance.dataset(uri).delete("a = 501")
    lance.dataset(uri).update({"s": "'y'"}, where="a = 3")
    _index_and_compact(uri)
    lance.dataset(uri).update_config({"somebody": "else"})
    lance.dataset(uri).add_columns(pa.field("more", pa.int32()))
    lance.dataset(uri).drop_columns(["more"])
    lance.dataset(uri).cleanup_old_versions(older_than=AT_ONCE, delete_unverified=True)


MAINTENANCE: dict[str, tuple[Callable[[str], None], list[int]]] = {
    "nothing": (_nothing, []),
    "index and compact_files": (_index_and_compact, []),
    "appends and cleanup_old_versions": (_append_and_clean_up, [500, 501]),
    "everything": (_everything, [500]),
}


@pytest.mark.repro("reads-01")
@pytest.mark.parametrize("action", MAINTENANCE)
@pytest.mark.parametrize("kind", KINDS)
def test_maintenance_by_lance_leaves_the_table_readable_and_compactable(tmp_path: Path, kind: str, action: str) -> None:
    table = _table(tmp_path / "t", kind)
    maintain, added = MAINTENANCE[action]
    _write(table, [100])
    table.compact()
    _write(table, [101])
    maintain(table.uri)
    expected = sorted([*range(40), 100, 101, *added])
    again = mw.open_table(table.uri)
    assert _numbers(again.scan().to_table()) == expected
    assert again.verify().ok
    again.compact()
    again.gc(grace_seconds=0)
    _write(again, [102])
    again.compact()
    assert _numbers(lance.dataset(table.uri).to_table()) == sorted([*expected, 102])
    assert _numbers(again.scan().to_table()) == sorted([*expected, 102])


def test_generations_that_an_earlier_version_named_and_did_not_record_count_once(tmp_path: Path) -> None:
    """It committed rows and a name of their generations, and stopped before the commit that records these."""
    table = _table(tmp_path / "t", "plain")
    _write(table, [100], [101, 101])
    lance.write_dataset(_rows([100, 101, 101]), table.uri, mode="append")
    named = json.dumps({table.shards()[0].shard_id: 2})
    lance.dataset(table.uri).update_schema_metadata({METADATA_KEY: named})
    expected = [*range(40), 100, 101, 101]
    again = mw.open_table(table.uri)
    assert _numbers(again.scan().to_table()) == expected
    assert again.count_rows() == len(expected)
    assert again.schema.metadata is None
    _write(again, [102])
    again.compact()
    assert _numbers(again.scan().to_table()) == _numbers(lance.dataset(table.uri).to_table()) == [*expected, 102]
    assert again.verify().ok


def test_an_append_only_table_with_unknown_features_is_not_enabled_and_not_compacted(tmp_path: Path) -> None:
    lance.write_dataset(_rows(range(40)), str(tmp_path / "a"), **by_lance_only(str(tmp_path / "a")))
    with pytest.raises(mw.UnsupportedFormatError, match="copy its rows into a new table"):
        mw.enable(str(tmp_path / "a"), sharding=mw.Unsharded())
    assert lance.dataset(str(tmp_path / "a")).version == 1
    table = _table(tmp_path / "b", "plain")
    _write(table, [100])
    elsewhere = lance.DatasetBasePath(f"{table.uri}-elsewhere", name="elsewhere")
    lance.dataset(table.uri).add_bases([elsewhere])
    before = table.dataset.version
    with pytest.raises(mw.UnsupportedFormatError, match="cannot be compacted"):
        table.compact()
    assert table.dataset.version == before
    assert _numbers(mw.open_table(table.uri).scan().to_table()) == [*range(40), 100]


def test_columns_and_their_numbers_stay_as_they_are(tmp_path: Path) -> None:
    """A compaction keeps field ids with gaps, and metadata of the user."""
    table = _table(tmp_path / "t", "plain")
    lance.dataset(table.uri).add_columns(pa.field("gone", pa.int32()))
    lance.dataset(table.uri).add_columns(pa.field("kept", pa.int32()))
    lance.dataset(table.uri).drop_columns(["gone"])
    lance.dataset(table.uri).update_schema_metadata({"owner": "somebody"})
    before = mw.open_table(table.uri).schema
    ids = [(field.name(), field.id()) for field in lance.dataset(table.uri).lance_schema.fields()]
    with mw.open_table(table.uri).writer(compaction=None) as writer:
        writer.put([{"a": 100, "s": "x", "kept": 7}])
        writer.flush()
    table.compact()
    assert [(field.name(), field.id()) for field in lance.dataset(table.uri).lance_schema.fields()] == ids
    assert mw.open_table(table.uri).schema.equals(before, check_metadata=True)
    assert lance.dataset(table.uri).to_table(filter="kept = 7").num_rows == 1
    table.dataset.validate()


def test_pylance_opens_a_shard_with_unflushed_rows_after_a_compaction(tmp_path: Path) -> None:
    """It replays no entry if the metadata of the schema is another one."""
    table = _table(tmp_path / "t", "plain")
    _write(table, [100])
    table.compact()
    assert lance.dataset(table.uri).schema.metadata is None
    writer = table.writer(compaction=None)
    writer.put(_rows([101]))
    peer = lance.dataset(table.uri).mem_wal_writer(table.shards()[0].shard_id)  # fences ours, replays its entry
    peer.put(_rows([102]))
    assert _numbers(mw.open_table(table.uri).scan().to_table()) == [*range(40), 100, 101, 102]
    with pytest.raises(mw.FencedError):
        writer.close()


def test_rows_are_written_once_where_others_commit_all_the_time(tmp_path: Path) -> None:
    table = _table(tmp_path / "t", "plain")
    _write(table, [100], [101])
    disturbed: list[int] = []
    written: set[str] = set()

    def disturb(point: str) -> None:
        if point == "compact.after_fragments" and len(disturbed) < 12:
            written.update(name for name in unheld_files(table.uri) if name.startswith("data/"))
            disturbed.append(len(disturbed))
            lance.write_dataset(_rows([200 + len(disturbed)]), table.uri, mode="append")

    crash_points.install(disturb)
    report = table.compact()
    assert report.conflicts == 12
    assert len(written) == 1, "the rows were written once"
    assert _numbers(lance.dataset(table.uri).to_table()) == sorted([*range(40), 100, 101, *range(201, 213)])
    assert unheld_files(table.uri) == set()


def test_a_compaction_that_gives_up_takes_its_files_along(tmp_path: Path) -> None:
    table = _table(tmp_path / "t", "plain")
    _write(table, [100])
    run_once_at("compact.after_fragments", _stop)
    with pytest.raises(_StoppedError):
        table.compact()
    assert unheld_files(table.uri) == set()
    table.compact()
    assert _numbers(lance.dataset(table.uri).to_table()) == [*range(40), 100]
