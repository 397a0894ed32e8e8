"""A column that was dropped while no data file held it: the next column gets its field id, and is empty where it was not put."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw

SCHEMA = pa.schema([("id", pa.int64()), ("a", pa.int32())])


def add_text(dataset: lance.LanceDataset) -> None:
    dataset.add_columns(pa.schema([("s", pa.string())]))


def add_under_the_same_name(dataset: lance.LanceDataset) -> None:
    dataset.add_columns(pa.schema([("a", pa.string())]))


def add_nested(dataset: lance.LanceDataset) -> None:
    dataset.add_columns(pa.schema([("n", pa.list_(pa.int32()))]))


def made(place: Path, key: str | None) -> tuple[mw.Table, mw.TableWriter]:
    """Row 1 in an SSTable, row 2 in a memtable and the log, nothing in the base table."""
    table = mw.create_table(str(place), SCHEMA, primary_key=key, sharding=mw.Unsharded())
    writer = table.writer(compaction=None)
    writer.put({"id": [1], "a": [7]})
    writer.flush()
    writer.put({"id": [2], "a": [8]})
    return table, writer


def shown(table: mw.Table) -> list[dict[str, Any]]:
    return sorted(table.scan().to_table().to_pylist(), key=lambda row: row["id"])


@pytest.mark.parametrize("key", ["id", None])
@pytest.mark.parametrize("add", [add_text, add_under_the_same_name, add_nested])
def test_a_new_column_of_another_type_is_null_where_the_dropped_one_was(
    tmp_path: Path, key: str | None, add: Callable[[lance.LanceDataset], None]
) -> None:
    table, writer = made(tmp_path / "t", key)
    table.dataset.drop_columns(["a"])
    add(lance.dataset(table.uri))
    assert [field.id() for field in table.dataset.lance_schema.fields()] == [0, 1]  # Lance gave the id out again
    name = table.schema.names[1]
    expected = [{"id": 1, name: None}, {"id": 2, name: None}]
    assert shown(table) == expected  # the writer's own memtable
    writer.abort()
    assert shown(mw.open_table(table.uri)) == expected  # the log
    if key is not None:
        assert [mw.open_table(table.uri).get(number) for number in (1, 2)] == expected
    if name != "n":
        assert table.scan(filter=f"{name} = 'x'").to_table().num_rows == 0
        assert table.scan(filter=f"{name} is null").to_table().num_rows == 2
    table.flush(idle_seconds=0)
    assert shown(mw.open_table(table.uri)) == expected
    table.compact()
    assert sorted(lance.dataset(table.uri).to_table().to_pylist(), key=lambda row: row["id"]) == expected
    assert table.verify().ok
