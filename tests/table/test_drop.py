"""`Table.drop`: the table and everything in its directory, on every kind of store."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
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
from lance_memwal.testing.faulty import FaultKind, FaultPlan, FaultScript, SimulatedCrash
from lance_memwal.upkeep.drop import drop_table
from lance_memwal.write.joining import Sink
from lance_memwal.write.once import OnceAppender
from tests.harness.processes import start
from tests.kit.tables import create, ids_of, keyed
from tests.serve.shared_child import own_and_put


def row(key: int) -> dict[str, Any]:
    return {"id": key, "v": 0, "s": "a"}


def fill(table: mw.Table) -> mw.Table:
    """Rows in every tier, an index, a tag and a branch."""
    table.add([row(1)])
    table.compact(flush=True)
    table.add([row(2)])
    table.create_index("v")
    table.close()
    dataset = table.dataset
    dataset.tags.create("kept", dataset.version)
    dataset.create_branch("side")
    return table


def gone(table: mw.Table) -> bool:
    return not resolve(table.location).store.list("")


def test_nothing_stays_and_the_place_can_be_used_again(tmp_path: Path) -> None:
    table = fill(create(str(tmp_path / "t")))
    table.add([row(3)])  # its own writer is open
    table.drop()
    assert gone(table)
    assert not (tmp_path / "t").exists()
    with pytest.raises(mw.InvalidInputError, match="there is no table"):
        mw.open_table(table.uri)
    with pytest.raises(mw.InvalidInputError, match="there is no table"):
        table.count_rows()
    table.drop()
    again = create(table.uri)
    again.add([row(9)])
    again.close()
    assert ids_of(again.scan()) == ids_of(table.scan()) == [9]


@pytest.mark.parametrize("uri", ["memory://drop", "memory://drop/below"])
def test_tables_in_memory(uri: str) -> None:
    for number in range(2):
        table = create(uri)
        table.add([row(number)])
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
    owner = start(own_and_put, table.uri, [row(1)], {})
    assert owner.receive(30) is not None
    with pytest.raises(mw.ConflictError, match="within the last minute"):
        table.drop()
    owner.kill()
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
            made.add([row(7)])

    wrapped = resolve(table.uri, wrap=lambda store: _Meanwhile(store, "list", make_anew, skip=1))
    drop_table(wrapped, None, force=True)
    assert ids_of(mw.open_table(table.uri).scan()) == [7]


def test_sinks_that_are_at_work_are_refused(tmp_path: Path) -> None:
    """Their epoch is open to everybody, which does not mean that nobody writes."""
    table = create(str(tmp_path / "t"))
    rows = pa.RecordBatch.from_pylist([row(1)], schema=table.schema)
    Sink(OnceAppender(table.uri)).append(mw.shard_id_for(mw.Unsharded()), [rows], txn=("stream", 1))
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


@pytest.mark.parametrize("after", range(7, 47, 13))
def test_a_table_that_is_made_while_the_old_one_goes_is_whole(tmp_path: Path, after: int) -> None:
    """Made after some of the deletes: of versions, then of data, logs and manifests, whose names the new one uses again."""
    table, deleted = create(str(tmp_path / "t")), []
    for key in range(3):
        table.add([row(key)])
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
        made.add([row(11)])
        assert ids_of(made.scan()) == [10, 11]
        assert not made.verify().problems


def test_a_wrong_flag_is_refused(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), keyed())
    with pytest.raises(mw.InvalidInputError, match="force"):
        table.drop(force="yes")  # type: ignore[arg-type]
    assert len(table) == 0
