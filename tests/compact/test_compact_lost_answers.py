"""A store that answers "exists already" to what is our own file does not fail a compaction."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.compact.run import Compactor
from lance_memwal.errors import ObjectExistsError
from lance_memwal.lance.base import BaseTable, NewestBase
from lance_memwal.store.location import resolve
from lance_memwal.store.wrap import WrappedStore


class _Forgetful(WrappedStore):
    """The first create below `prefix` takes effect, and a retry below us hides the answer."""

    prefix = ""

    def around(self, kind: str, call: Callable[..., Any], path: str, *rest: Any, **options: Any) -> Any:
        result = call(path, *rest, **options)
        if kind == "put_new" and self.prefix and path.startswith(self.prefix):
            self.prefix = ""
            raise ObjectExistsError(path)
        return result


@pytest.mark.parametrize("prefix", ["_transactions/", "_deletions/", "_versions/"])
def test_a_file_that_is_ours_already_is_taken_for_written(tmp_path: Path, prefix: str) -> None:
    uri = str(tmp_path / "t")
    rows = pa.table({"id": [1, 2], "value": [1, 1]})
    table = mw.create_table(uri, rows, primary_key="id", sharding=mw.Unsharded())
    with table.writer() as writer:
        writer.put(pa.table({"id": [2, 3], "value": [2, 2]}))
    stores: list[_Forgetful] = []

    def wrap(store: Any) -> Any:
        stores.append(_Forgetful(store))
        return stores[0]

    location = resolve(uri, wrap=wrap)
    newest = NewestBase(BaseTable.need(location))
    stores[0].prefix = prefix
    Compactor(location, newest).run()
    assert stores[0].prefix == ""
    assert table.scan().to_table().sort_by("id").to_pydict() == {"id": [1, 2, 3], "value": [1, 2, 2]}
