"""Every table has an id of its own that no commit loses; leftovers of an earlier table; nested looks at a table."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.config import WriterConfig
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.identity import TableWatch
from tests.kit.identity import SCHEMA, make, make_anew, overwrite, row, shown
from tests.kit.writers import in_thread

ID = "memwal.table_id"


def _id(table: mw.Table) -> str | None:
    return table.details().writer_config_defaults.get(ID)


def test_two_tables_have_two_ids_also_where_the_settings_were_copied(tmp_path: Path) -> None:
    one = make(str(tmp_path / "one"))
    stored = one.details().writer_config_defaults
    copied = {ID: stored[ID], "max_memtable_rows": 9}
    two = mw.create_table(str(tmp_path / "two"), SCHEMA, sharding=mw.Unsharded(), writer_defaults=copied)
    assert len({_id(one), _id(two), None}) == 3
    assert WriterConfig.from_defaults(stored).fsync is False


def test_enable_gives_an_id_and_an_overwritten_table_gets_another(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    lance.write_dataset(pa.table({"id": [1], "v": ["a"]}, schema=SCHEMA), uri)
    first = _id(mw.enable(uri, sharding=mw.Unsharded()))
    overwrite(uri)
    second = _id(mw.enable(uri, sharding=mw.Unsharded()))
    assert first
    assert second not in (None, first)


@pytest.mark.parametrize("key", ["id", None])
@pytest.mark.parametrize("row_ids", [False, True])
def test_no_commit_of_ours_or_of_lance_loses_the_id(tmp_path: Path, key: str | None, row_ids: bool) -> None:
    uri = str(tmp_path / "t")
    columns = SCHEMA if key else pa.schema([("id", pa.int64()), ("v", pa.string())])
    rows = pa.table({"id": [1, 2], "v": ["a", "b"]}, schema=columns)
    lance.write_dataset(rows, uri, enable_stable_row_ids=row_ids)
    table = mw.enable(uri, sharding=mw.Unsharded())
    first = _id(table)
    for number in range(3):
        with table.shard_writer() as writer:
            writer.put(row(10 + number))
        assert table.compact().generations == 1
        lance.dataset(uri).insert(rows)
    lance.dataset(uri).create_scalar_index("v", "BTREE")
    lance.dataset(uri).optimize.optimize_indices()
    lance.dataset(uri).optimize.compact_files()
    lance.dataset(uri).delete("id = 2")
    lance.dataset(uri).update_config({"owner": "blue"})
    table.gc(grace_seconds=0, optimize_indices=True)
    table.repair(dry_run=False)
    assert _id(table) == first


def test_a_table_that_pylance_initialised_gets_its_id_when_it_is_first_written(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    dataset = lance.write_dataset(pa.table({"id": [1], "v": ["a"]}, schema=SCHEMA), uri)
    dataset.initialize_mem_wal(unsharded=True)
    before = lance.dataset(uri).version
    table = mw.open_table(uri)
    assert shown(table) == [1]
    table.verify()
    assert lance.dataset(uri).version == before  # reading writes nothing
    one, two = table.writer(compaction=None), mw.open_table(uri).writer(compaction=None)
    given = lance.dataset(uri).config()[ID]
    one.put(row(2))
    one.close()
    two.put(row(3))
    two.close()
    mw.WalAppender.open(uri, mw.shard_id_for(mw.Unsharded()))
    assert lance.dataset(uri).config() == {ID: given}
    assert lance.dataset(uri).version == before + 1
    assert shown(table) == [1, 2, 3]
    table.compact()
    assert lance.dataset(uri).config() == {ID: given}


def test_a_writer_of_a_table_that_pylance_initialised_stops_after_an_overwrite(tmp_path: Path) -> None:
    """The configuration, and the id in it, survive an overwrite: what tells is the entry that is gone."""
    uri = str(tmp_path / "t")
    lance.write_dataset(pa.table({"id": [1], "v": ["a"]}, schema=SCHEMA), uri).initialize_mem_wal(unsharded=True)
    writer = mw.open_table(uri).writer(compaction=None)
    writer.put(row(2))
    overwrite(uri)
    assert ID in lance.dataset(uri).config()
    with pytest.raises(mw.TableReplacedError):
        writer.close()


def _remove_base(uri: str) -> None:
    for part in Path(uri).iterdir():
        if part.name != "_mem_wal":
            shutil.rmtree(part) if part.is_dir() else part.unlink()


@pytest.mark.parametrize("flushed", [True, False])
def test_a_table_is_not_created_over_shards_that_hold_rows(tmp_path: Path, flushed: bool) -> None:
    uri = str(tmp_path / "t")
    writer = make(uri).writer(compaction=None)
    writer.put(row(1))
    if flushed:
        writer.flush()
    writer.abort()
    _remove_base(uri)
    with pytest.raises(mw.InvalidInputError, match="remove its _mem_wal"):
        make(uri, 7)
    assert [part.name for part in Path(uri).iterdir()] == ["_mem_wal"]
    shutil.rmtree(Path(uri) / "_mem_wal")
    assert shown(make(uri, 7)) == [7]


def test_shards_without_rows_are_no_leftovers_and_miss_nothing(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = make(uri)
    with table.writer(compaction=None) as writer:
        writer.put(row(1))
    table.compact()
    _remove_base(uri)
    anew = make(uri, 7)
    assert shown(anew) == [7]
    with anew.writer(compaction=None) as writer:
        writer.put(row(8))
    anew.compact()
    assert shown(anew) == [7, 8]
    assert anew.verify().problems == []


@contextmanager
def on_top_of_a_look(handler: Callable[[], Any]) -> Iterator[None]:
    """Calls `handler` in this thread, once, when a look has just read the newest version."""
    before = sys.gettrace()

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        return ended if frame.f_code is BaseTable.refresh.__code__ else None

    def ended(frame: FrameType, event: str, arg: object) -> Any:
        if event == "return":
            sys.settrace(before)
            handler()
        return ended

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def compacted(table: mw.Table, number: int) -> None:
    with table.writer() as writer:
        writer.put(row(number))
    table.compact()


def test_a_table_that_was_given_up_is_not_taken_back(tmp_path: Path) -> None:
    table = make(str(tmp_path / "t"))
    base = BaseTable.open(table.location)
    assert base is not None
    watch = TableWatch(base)

    def handler() -> None:
        make_anew(table.uri)
        with pytest.raises(mw.TableReplacedError):
            watch.look()

    with on_top_of_a_look(handler), pytest.raises(mw.TableReplacedError):
        watch.look()
    assert watch.is_replaced


def test_a_look_that_read_an_older_version_takes_nothing_for_a_restore(tmp_path: Path) -> None:
    table = make(str(tmp_path / "t"))
    compacted(table, 1)
    base = BaseTable.open(table.location)
    assert base is not None
    watch = TableWatch(base)
    [shard] = table.shards()
    compacted(table, 2)

    def handler() -> None:
        in_thread(lambda: compacted(table, 3)).result()
        watch.look()

    with on_top_of_a_look(handler):
        assert watch.look().version > base.version
    assert not watch.is_replaced
    assert watch.mark_of(shard.shard_id) == 3
