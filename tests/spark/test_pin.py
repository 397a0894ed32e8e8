"""What the driver pins is a read like any other: it says so where rows are missing, or where something is not understood."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.feed.snapshots import tiers_of
from lance_memwal.lance.base import BaseTable, NewestBase
from lance_memwal.read.reader import Reader
from lance_memwal.read.scan import Scan
from lance_memwal.read.tiers import Tiers
from lance_memwal.spark.distributed import is_big
from lance_memwal.spark.options import Options
from lance_memwal.spark.pin import Pin, pin_table, shards_of_pin
from lance_memwal.store import paths
from lance_memwal.store.location import resolve
from tests.kit.tables import Interceptor

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


@pytest.fixture
def table(tmp_path: Path) -> mw.Table:
    return mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", writer_defaults={"fsync": False})


def rebuilt(options: Options, pin: Pin) -> Tiers:
    """All shards of a pin, as tasks rebuild theirs."""
    return shards_of_pin(options, pin, pin.snapshot.shards)


def put(table: mw.Table, number: int) -> None:
    with table.writer(compaction=None) as writer:
        writer.put({"id": [number], "v": ["a"]})


def test_a_base_that_was_restored_to_before_a_compaction_is_not_pinned(table: mw.Table) -> None:
    before = lance.dataset(table.uri).version
    put(table, 1)
    table.compact()
    put(table, 2)
    assert pin_table(Options(table.uri)).snapshot.shards
    lance.dataset(table.uri, version=before).restore()
    with pytest.raises(mw.TableReplacedError, match=r"keep_base.*bring_back"):
        pin_table(Options(table.uri))


def test_what_is_left_to_compact_is_counted_although_the_base_was_restored(table: mw.Table) -> None:
    before = lance.dataset(table.uri).version
    put(table, 1)
    table.compact()
    put(table, 2)
    lance.dataset(table.uri, version=before).restore()
    location = resolve(table.uri)
    assert is_big(location, BaseTable.need(location), 1)  # the compactor then says why it refuses
    assert not is_big(location, BaseTable.need(location), 1 << 40)


def test_a_manifest_of_a_newer_version_is_read_with_a_warning(table: mw.Table) -> None:
    put(table, 1)
    (shard,) = table.shards()
    newest = mw.ShardManifestStore(table.uri, shard.shard_id).list_versions()[-1]
    path = Path(table.uri) / paths.manifest_path(shard.shard_id, newest)
    path.write_bytes(path.read_bytes() + b"\xa2\x1f\x03abc")
    options = Options(table.uri)
    with pytest.warns(UserWarning, match="does not understand"):
        snapshot = rebuilt(options, pin_table(options))
    assert [view.shard_id for view in snapshot.shards] == [shard.shard_id]


def make_anew(table: mw.Table, *numbers: int) -> mw.Table:
    shutil.rmtree(table.uri)
    again = mw.create_table(table.uri, SCHEMA, primary_key="id", writer_defaults={"fsync": False})
    for number in numbers:
        put(again, number)
    return again


def lengthen(table: mw.Table) -> None:
    for name in ("a", "b", "c"):
        lance.dataset(table.uri).update_config({name: "1"})


def shorten(table: mw.Table) -> None:
    """Leave the table as it is: made anew it has fewer versions than the pinned one."""


@pytest.mark.parametrize("first", [lengthen, shorten])
@pytest.mark.parametrize("second", [lengthen, shorten])
@pytest.mark.parametrize("numbers", [(), (2,), (2, 3, 4, 5)])
def test_a_task_never_reads_a_table_that_was_made_anew_after_the_pin(
    table: mw.Table,
    first: Callable[[mw.Table], None],
    second: Callable[[mw.Table], None],
    numbers: tuple[int, ...],
) -> None:
    first(table)
    put(table, 1)
    options = Options(table.uri)
    pin = pin_table(options)
    second(make_anew(table, *numbers))
    with pytest.raises(mw.TableReplacedError, match=r"another one.*load again"):
        rebuilt(options, pin)


def test_a_task_of_a_table_that_was_removed_says_so(table: mw.Table) -> None:
    put(table, 1)
    options = Options(table.uri)
    pin = pin_table(options)
    shutil.rmtree(table.uri)
    with pytest.raises(mw.TableReplacedError, match="removed"):
        rebuilt(options, pin)


def test_a_table_that_is_made_anew_at_any_request_of_a_pin_is_pinned_whole(table: mw.Table) -> None:
    put(table, 1)
    for at in count(1):
        calls = 0

        def seen(name: str, path: str, at: int = at) -> None:
            nonlocal calls
            calls += 1
            if calls == at:
                with ThreadPoolExecutor(1) as another:
                    another.submit(make_anew, table, 2 * at, 2 * at + 1).result()

        base = BaseTable.open(resolve(table.uri, wrap=lambda store: Interceptor(store, seen)))
        assert base is not None
        snapshot = Reader(NewestBase(base)).snapshot()
        if calls < at:
            assert at > 5
            return
        rows = Scan(lambda: tiers_of(resolve(table.uri), snapshot)).to_table()  # noqa: B023
        assert sorted(rows["id"].to_pylist()) == [2 * at, 2 * at + 1], f"made anew at request {at}"
