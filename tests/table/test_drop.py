"""`Table.drop`, and a table that is dropped and created again at the same URI."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import lance
import lancedb
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.lance.base import BaseTable
from lance_memwal.store.location import resolve
from lance_memwal.store.port import ObjectStore
from lance_memwal.store.wrap import WrappedStore
from lance_memwal.table import newest_base
from lance_memwal.testing.faulty import FaultKind, FaultPlan, FaultScript, SimulatedCrash
from lance_memwal.upkeep.drop import drop_table
from lance_memwal.write.once import OnceAppender
from lance_memwal.write.table_appender import TableAppender
from tests.harness.processes import start
from tests.kit.tables import create, ids_of, keyed, watched_table
from tests.shared.shared_child import put_on_signal


def row(key: int) -> dict[str, Any]:
    return {"id": key, "v": 0, "s": "a"}


def fill(table: mw.Table) -> mw.Table:
    """Rows in every tier, an index, a tag and a branch."""
    table.put([row(1)])
    table.compact(flush=True)
    table.put([row(2)])
    table.indexes.create("v")
    table.close()
    dataset = table.dataset
    dataset.tags.create("kept", dataset.version)
    dataset.create_branch("side")
    return table


def gone(table: mw.Table) -> bool:
    return not resolve(table.location).store.list("")


def test_nothing_stays_and_the_place_can_be_used_again(tmp_path: Path) -> None:
    table = fill(create(str(tmp_path / "t")))
    table.put([row(3)])  # its own writer is open
    table.drop()
    assert gone(table)
    assert not (tmp_path / "t").exists()
    with pytest.raises(mw.InvalidInputError, match="there is no table"):
        mw.open_table(table.uri)
    with pytest.raises(mw.InvalidInputError, match="there is no table"):
        table.count_rows()
    table.drop()
    again = create(table.uri)
    again.put([row(9)])
    again.close()
    assert ids_of(again.scan()) == ids_of(table.scan()) == [9]


@pytest.mark.parametrize("uri", ["memory://drop", "memory://drop/below"])
def test_tables_in_memory(uri: str) -> None:
    for number in range(2):
        table = create(uri)
        table.put([row(number)])
        table.close()
        assert ids_of(table.scan()) == [number]
        table.drop()
        assert gone(table)


@pytest.mark.xdist_group("services")
def test_tables_in_an_object_store(s3_table: tuple[str, dict[str, str]]) -> None:
    uri, options = s3_table
    other = f"{uri}-beside"
    lance.write_dataset(pa.table({"a": [1]}), other, storage_options=options)
    table = fill(create(uri, storage_options=options))
    table.drop()
    assert gone(table)
    assert lance.dataset(other, storage_options=options).count_rows() == 1
    create(uri, storage_options=options).drop()


def test_lancedb_does_not_list_it_any_more(tmp_path: Path) -> None:
    table = fill(create(str(tmp_path / "t.lance")))
    db = lancedb.connect(str(tmp_path))
    assert list(db.list_tables().tables) == ["t"]
    table.drop()
    assert list(db.list_tables().tables) == []


def test_writers_of_this_process_are_refused_or_end(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"))
    with table.shard_writer() as writer:
        writer.put([row(1)])
        with pytest.raises(mw.ConflictError, match="a writer of this process"):
            table.drop()
        assert ids_of(table.scan()) == [1]
        table.drop(force=True)
        with pytest.raises(mw.MemWalError):
            writer.put([row(2)])
        writer.abort()
    assert gone(table)


def test_writers_of_another_process_are_refused(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"))
    other = start(put_on_signal, table.uri, [row(1)])
    assert other.receive(30) == ("put",)
    with pytest.raises(mw.ConflictError, match="within the last minute"):
        table.drop()
    other.kill()
    assert ids_of(table.scan()) == [1]
    table.drop(force=True)
    assert gone(table)


class _Meanwhile(WrappedStore):
    """Lets somebody act before the first object is removed, or when the removed ones are looked for again."""

    def __init__(self, inner: ObjectStore, kind: str, act: Callable[[], Any], skip: int = 0) -> None:
        super().__init__(inner)
        self._kind, self._act, self._skip = kind, act, skip

    def around(self, kind: str, call: Callable[..., Any], path: str, *rest: Any, **options: Any) -> Any:
        if kind == self._kind:
            self._skip -= 1
            if self._skip == -1:
                self._act()
        return super().around(kind, call, path, *rest, **options)


@pytest.mark.parametrize("meanwhile", ["put", "compact"])
def test_what_comes_while_a_table_is_removed_goes_with_it(tmp_path: Path, meanwhile: str) -> None:
    """Otherwise the place could not be used again, or a version of the base table would be left without its files."""
    table = fill(create(str(tmp_path / "t")))
    writer = table.shard_writer()
    writer.put([row(3)])
    acts = {"put": lambda: writer.put([row(4)]), "compact": lambda: table.compact(flush=True)}
    drop_table(resolve(table.uri, wrap=lambda store: _Meanwhile(store, "delete", acts[meanwhile])), None, force=True)
    writer.abort()
    assert gone(table)
    assert ids_of(create(table.uri).scan()) == []


def test_a_table_that_is_made_where_one_was_removed_stays(tmp_path: Path) -> None:
    table = fill(create(str(tmp_path / "t")))

    def make_anew() -> None:
        with create(table.uri) as made:
            made.put([row(7)])

    wrapped = resolve(table.uri, wrap=lambda store: _Meanwhile(store, "list", make_anew, skip=1))
    drop_table(wrapped, None, force=True)
    assert ids_of(mw.open_table(table.uri).scan()) == [7]


def test_sinks_that_are_at_work_are_refused(tmp_path: Path) -> None:
    """Their epoch is open to everybody, which does not mean that nobody writes."""
    table = create(str(tmp_path / "t"))
    rows = pa.RecordBatch.from_pylist([row(1)], schema=table.schema)
    TableAppender(OnceAppender(table.uri)).append(mw.shard_id_for(mw.Unsharded()), [rows], txn=("stream", 1))
    with pytest.raises(mw.ConflictError, match="within the last minute"):
        table.drop()
    assert ids_of(table.scan()) == [1]
    table.drop(force=True)
    assert gone(table)


def test_a_table_inside_of_another_one_is_not_removed_unasked(tmp_path: Path) -> None:
    table = fill(create(str(tmp_path / "t")))
    lance.write_dataset(pa.table({"a": [1]}), str(tmp_path / "t" / "inner"))
    with pytest.raises(mw.InvalidInputError, match="'inner'"):
        table.drop()
    assert ids_of(table.scan()) == [1, 2]
    table.drop(force=True)
    assert not (tmp_path / "t").exists()


def test_a_crash_leaves_the_whole_table_or_none(tmp_path: Path) -> None:
    """Ended after each of its calls: as long as there is a table, it has all its rows; the next call goes on."""
    whole = fill(create(str(tmp_path / "whole"))).uri
    seen = []
    for call in range(1000):
        uri = str(tmp_path / str(call))
        shutil.copytree(whole, uri)
        script = FaultScript(FaultPlan(at={call: FaultKind.CRASH_AFTER}))
        try:
            drop_table(resolve(uri, wrap=script.wrap), None, force=True)
            break
        except SimulatedCrash:
            seen.append(_rows(uri))
            drop_table(resolve(uri), None, force=False)
            assert not os.path.exists(uri)
    assert seen.index(None) > 2  # the list, and old versions
    assert seen == [[1, 2]] * seen.index(None) + [None] * seen.count(None)


def _rows(uri: str) -> list[int] | None:
    if BaseTable.open(resolve(uri)) is None:
        return None
    return ids_of(mw.open_table(uri).scan())


@pytest.mark.parametrize("after", [7, 20, 33, 45])
def test_a_table_that_is_made_while_the_old_one_goes_is_whole(tmp_path: Path, after: int) -> None:
    """Made after some of the deletes: of versions, then of data, logs and manifests, whose names the new one uses again."""
    table, deleted = create(str(tmp_path / "t")), []
    for key in range(3):
        table.put([row(key)])
        table.close()
        table.compact(flush=True)

    class Dropping(WrappedStore):
        def delete(self, path: str) -> None:
            super().delete(path)
            deleted.append(path)
            if len(deleted) == after:
                with create(str(tmp_path / "t")).writer() as writer:
                    writer.put([row(10)])

    drop_table(resolve(table.uri, wrap=Dropping), None, force=True)
    assert len(deleted) >= after
    with mw.open_table(table.uri) as made:
        made.put([row(11)])
        assert ids_of(made.scan()) == [10, 11]
        assert not made.verify().problems


def test_a_wrong_flag_is_refused(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), keyed())
    with pytest.raises(mw.InvalidInputError, match="force"):
        table.drop(force="yes")  # type: ignore[arg-type]
    assert len(table) == 0


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
    before = newest_base(kept)
    kept.dataset.delete("id = 1")
    lance.dataset(uri).cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    assert _shown(kept) == dict.fromkeys([2, 3, 4], "old")
    assert newest_base(kept).version > before.version


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
