"""A store that answers "exists already" to what is our own file, or to nothing at all, does not fail a compaction."""

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
    """The first create below `prefix` is answered with "exists already".

    It took effect, and a retry below us hid the answer; or not, and two requests were in each other's way.
    """

    prefix = ""
    takes_effect = True

    def around(self, kind: str, call: Callable[..., Any], path: str, *rest: Any, **options: Any) -> Any:
        if kind != "put_new" or not self.prefix or not path.startswith(self.prefix):
            return call(path, *rest, **options)
        self.prefix = ""
        if self.takes_effect:
            call(path, *rest, **options)
        raise ObjectExistsError(path)


@pytest.mark.parametrize("takes_effect", [True, False])
@pytest.mark.parametrize("prefix", ["_transactions/", "_deletions/", "_versions/"])
def test_a_file_that_exists_already_does_not_fail_a_compaction(tmp_path: Path, prefix: str, takes_effect: bool) -> None:
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
    stores[0].prefix, stores[0].takes_effect = prefix, takes_effect
    Compactor(location, newest).run()
    assert stores[0].prefix == ""
    assert table.scan().to_table().sort_by("id").to_pydict() == {"id": [1, 2, 3], "value": [1, 2, 2]}
