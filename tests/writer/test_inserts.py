"""`insert`: rows of new keys, all of them or none."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from tests.kit.writers import SECONDS

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string()), ("ts", pa.int64())])
Pair = tuple[mw.Table, mw.TableWriter]


def new_table(path: Path, **options: Any) -> mw.Table:
    options = {"primary_key": "id", **options}
    return mw.create_table(str(path / "t"), SCHEMA, writer_defaults={"fsync": False}, **options)


def row(key: int, v: str = "new", ts: int = 0) -> dict[str, Any]:
    return {"id": key, "v": v, "ts": ts}


@pytest.fixture(params=[False, True], ids=["own", "shared"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    """Row 1 in the base table, 2 in an SSTable, 3 in memory; 4 was deleted."""
    made = new_table(tmp_path)
    with made.writer(compaction=None, shared=request.param) as writer:
        writer.put([row(1, "old")])
        writer.flush(SECONDS)
        made.compact()
        writer.put([row(2, "old"), row(4)])
        writer.flush(SECONDS)
        writer.put([row(3, "old")])
        writer.delete([4])
        yield made, writer


def values(table: mw.Table) -> dict[int, str]:
    return {found["id"]: found["v"] for found in table.scan().to_table().to_pylist()}


@pytest.mark.parametrize("known", [1, 2, 3])
def test_a_key_that_is_there_in_any_tier_is_refused_and_nothing_is_written(table: Pair, known: int) -> None:
    made, writer = table
    with pytest.raises(mw.InvalidInputError, match=rf"1 rows .*'id': {known}.*nothing was written"):
        writer.insert([row(8), row(known), row(9)])
    assert values(made) == {1: "old", 2: "old", 3: "old"}


def test_new_keys_and_deleted_ones_are_inserted(table: Pair) -> None:
    made, writer = table
    result = writer.insert([row(4), row(5)])
    assert (result.written, result.rejected) == (2, None)
    assert values(made) == {1: "old", 2: "old", 3: "old", 4: "new", 5: "new"}


@pytest.mark.parametrize(
    "rows", [[row(7), row(7)], [pa.RecordBatch.from_pylist([row(7)], SCHEMA)] * 2], ids=["one", "two"]
)
def test_a_key_that_comes_twice_is_refused(table: Pair, rows: Any) -> None:
    made, writer = table
    with pytest.raises(mw.InvalidInputError, match="comes twice"):
        writer.insert(rows)
    assert 7 not in values(made)


def test_a_repeated_transaction_is_skipped_not_refused(table: Pair) -> None:
    _, writer = table
    assert not writer.insert([row(5)], txn=("app", 1)).skipped
    assert writer.insert([row(5)], txn=("app", 1)).skipped


def test_columns_that_are_left_out(table: Pair) -> None:
    made, writer = table
    with pytest.raises(mw.InvalidInputError, match="'ts'"):
        writer.insert([{"id": 5, "v": "x"}])
    with pytest.raises(mw.InvalidInputError, match="nothing to keep"):
        writer.shard_writers[next(iter(writer.owned_shards))].insert([row(5)], missing="keep")
    writer.insert([{"id": 5, "v": "x"}], missing="null")
    assert made.get(5) == {"id": 5, "v": "x", "ts": None}


def test_of_many_threads_that_insert_a_key_one_does(table: Pair) -> None:
    made, writer = table
    begin, done = threading.Barrier(8), []

    def insert(number: int) -> None:
        begin.wait(SECONDS)
        try:
            writer.insert([row(5, str(number))])
            done.append(str(number))
        except mw.InvalidInputError:
            pass

    threads = [threading.Thread(target=insert, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert [values(made)[5]] == done


def test_a_table_without_a_key_has_no_new_keys(tmp_path: Path) -> None:
    made = new_table(tmp_path, primary_key=None)
    with made.writer() as writer, pytest.raises(mw.InvalidInputError, match="no primary key"):
        writer.insert([row(1)])


def test_tables_with_a_merge_take_inserts(tmp_path: Path) -> None:
    first = new_table(tmp_path / "a", merge=mw.FirstRow())
    last = new_table(tmp_path / "b", merge=mw.LastWrite(sequence="ts"))
    for made in (first, last):
        with made.writer() as writer:
            writer.insert([row(1, "a", 5)])
            with pytest.raises(mw.InvalidInputError, match="nothing was written"):
                writer.insert([row(1, "b", 9), row(2)])
        assert values(made) == {1: "a"}
    with last.writer() as writer:
        writer.delete([1], sequence=7)
        late = writer.insert([row(1, "late", 6)])
        assert late.written == 0
        assert late.rejected is not None
        assert values(last) == {}
