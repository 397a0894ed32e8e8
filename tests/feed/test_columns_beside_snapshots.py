"""A reader that is still at its snapshot when the columns of the table change goes on, in the columns of now."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw

COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("a", pa.string()), ("b", pa.int64())])


def add(dataset: lance.LanceDataset) -> None:
    dataset.add_columns(pa.schema([("c", pa.string())]))


def rename(dataset: lance.LanceDataset) -> None:
    dataset.alter_columns({"path": "a", "name": "z"})


def swap_names(dataset: lance.LanceDataset) -> None:
    dataset.alter_columns({"path": "a", "name": "t"})
    lance.dataset(dataset.uri).add_columns(pa.schema([("a", pa.string())]))


CHANGES: list[tuple[Callable[[lance.LanceDataset], None], dict[str, Any]]] = [
    (add, {"id": 2, "a": "two", "b": 2, "c": None}),
    (rename, {"id": 2, "z": "two", "b": 2}),
    (swap_names, {"id": 2, "t": "two", "b": 2, "a": None}),
]


@pytest.mark.parametrize(("change", "shown"), CHANGES, ids=lambda item: getattr(item, "__name__", ""))
@pytest.mark.parametrize("committed", [False, True])
def test_a_consumer_at_its_snapshot_goes_on_after_the_columns_changed(
    tmp_path: Path, change: Callable[[lance.LanceDataset], None], shown: dict[str, Any], committed: bool
) -> None:
    table = mw.create_table(str(tmp_path / "t"), COLUMNS, primary_key="id", writer_defaults={"fsync": False})
    table.add([{"id": 1, "a": "one", "b": 1}, {"id": 2, "a": "two", "b": 2}])
    table.close()
    reader = table.consumer("mirror", start="snapshot", until="now")
    for _ in reader:
        if committed:
            reader.commit()
    change(table.dataset)
    table.upsert([{"id": 3, "b": 3}], missing="null")
    found = [row for batch in table.consumer("mirror", until="now") for row in batch.to_pylist()]
    plain = [{name: value for name, value in row.items() if not name.startswith("_")} for row in found]
    assert [row["id"] for row in plain] == ([3] if committed else [1, 2, 3])
    assert committed or plain[1] == shown
    assert list(plain[0]) == list(shown)
    table.close()
