"""A `Table` that is kept open over a table that was dropped and created anew at the same place follows the new one."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import count
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from tests.kit.tables import watched_table

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


def _make(uri: str, value: str, *, schema: pa.Schema = SCHEMA, key: str | None = "id") -> mw.Table:
    """Base rows 1 to 3, the same number of versions each time, and row 4 in a flushed generation."""
    columns = {"id": [1, 2, 3], schema.names[1]: [value] * 3}
    table = mw.create_table(uri, pa.table(columns, schema=schema), primary_key=key, sharding=mw.Unsharded())
    with table.writer(compaction=None) as writer:
        writer.put({"id": [4], schema.names[1]: [value]})
        writer.flush()
    return table


def _shown(table: mw.Table) -> dict[int, str]:
    rows = table.scan().to_table()
    return dict(zip(rows[0].to_pylist(), rows[1].to_pylist(), strict=True))


@pytest.mark.parametrize("key", ["id", None])
@pytest.mark.parametrize("warm", [True, False])
def test_the_rows_of_the_new_table_are_read_at_the_same_version(tmp_path: Path, key: str | None, warm: bool) -> None:
    uri = str(tmp_path / "t")
    kept = _make(uri, "old", key=key)
    version = kept.dataset.version
    if warm:
        assert set(_shown(kept).values()) == {"old"}
        assert kept.scan(filter="id = 4").to_table().num_rows == 1
    shutil.rmtree(uri)
    _make(uri, "new", key=key)
    assert lance.dataset(uri).version == version
    assert _shown(kept) == dict.fromkeys([1, 2, 3, 4], "new")
    assert set(kept.dataset.to_table()["v"].to_pylist()) == {"new"}


def test_keys_are_looked_up_in_the_new_table(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    kept = _make(uri, "old")
    for _ in range(12):  # often enough that an index of the base keys is in memory
        assert kept.get(1)["v"] == "old"
    shutil.rmtree(uri)
    _make(uri, "new")
    assert [kept.get(number)["v"] for number in (1, 4)] == ["new", "new"]


def test_other_columns_of_the_new_table_are_read(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    kept = _make(uri, "old")
    assert kept.scan().schema.names == ["id", "v"]
    shutil.rmtree(uri)
    _make(uri, "new", schema=pa.schema([("id", pa.int64()), ("other", pa.string())]))
    assert kept.scan().schema.names == ["id", "other"]
    assert set(_shown(kept).values()) == {"new"}
    with kept.writer(compaction=None) as writer:
        writer.put({"id": [5], "other": ["later"]})
        assert _shown(kept)[5] == "later"


@pytest.mark.parametrize("more", [-1, 1])
def test_a_new_table_with_another_number_of_versions_is_followed(tmp_path: Path, more: int) -> None:
    uri = str(tmp_path / "t")
    kept = _make(uri, "old")
    if more < 0:
        kept.dataset.delete("id = 1")
    assert _shown(kept)[2] == "old"
    shutil.rmtree(uri)
    table = _make(uri, "new")
    if more > 0:
        table.dataset.delete("id = 1")
    assert set(_shown(kept).values()) == {"new"}


def test_a_table_that_is_gone_says_so(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    kept = _make(uri, "old")
    shutil.rmtree(uri)
    with pytest.raises(mw.MemWalError):
        kept.scan()


def test_a_version_that_lance_cleaned_up_is_no_new_table(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    kept = _make(uri, "old")
    before = kept.base
    kept.dataset.delete("id = 1")
    lance.dataset(uri).cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    assert _shown(kept) == dict.fromkeys([2, 3, 4], "old")
    assert kept.base.version > before.version


def test_a_filter_is_pruned_by_the_sharding_of_the_new_table(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    kept = mw.create_table(uri, SCHEMA, primary_key="id", sharding=mw.Bucket("id", 64))
    with kept.writer(compaction=None) as writer:
        writer.put({"id": [4], "v": ["old"]})
    assert kept.scan(filter="id = 4").count_rows() == 1
    shutil.rmtree(uri)
    table = mw.create_table(uri, SCHEMA, primary_key="id", sharding=mw.Bucket("id", 3))
    with table.writer(compaction=None) as writer:
        writer.put({"id": [4], "v": ["new"]})
    assert kept.scan(filter="id = 4").to_table()["v"].to_pylist() == ["new"]


def test_a_table_that_is_made_anew_at_any_request_of_a_scan_is_read_whole(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")

    def make(value: str, buckets: int) -> None:
        shutil.rmtree(uri, ignore_errors=True)
        table = mw.create_table(uri, SCHEMA, primary_key="id", sharding=mw.Bucket("id", buckets))
        with table.writer(compaction=None, fsync=False) as writer:
            writer.put({"id": [1, 2, 3], "v": [value] * 3})

    for at in count(1):
        make("old", 2)
        calls = 0

        def seen(name: str, path: str, at: int = at) -> None:
            nonlocal calls
            calls += 1
            if calls == at:
                with ThreadPoolExecutor(1) as another:
                    another.submit(make, "new", 5).result()

        table = watched_table(uri, seen)
        calls = 0
        shown = _shown(table)
        if calls < at:
            assert at > 5
            return
        assert shown in (dict.fromkeys([1, 2, 3], "old"), dict.fromkeys([1, 2, 3], "new")), f"made anew at request {at}"
