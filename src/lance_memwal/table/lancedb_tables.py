"""Tables of LanceDB.

Owns `from_lancedb`. A table of LanceDB is a Lance table in a directory: nothing is copied, and both work on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lance_memwal.arguments import check_names
from lance_memwal.errors import InvalidInputError
from lance_memwal.lance.base import BaseTable
from lance_memwal.store.location import resolve
from lance_memwal.table.making import enable
from lance_memwal.table.table import Table


def from_lancedb(
    table: Any,
    *,
    primary_key: str | Sequence[str] | None = None,
    storage_options: Mapping[str, str] | None = None,
    **choices: Any,
) -> Table:
    """The table of LanceDB as one of ours; if it has no write path yet, it gets one, as `enable` makes it.

    `primary_key` and `choices` are those of `enable`. The options of the object store are those that the table was opened
    with, unless others are given. Tables of LanceDB Cloud are on a server, and refused.
    """
    uri = getattr(table, "uri", None)
    if not isinstance(uri, str) or not hasattr(table, "to_lance"):
        raise InvalidInputError(f"give a table of a LanceDB directory or bucket, not {type(table).__name__}")
    options = storage_options if storage_options is not None else table.latest_storage_options()
    location = resolve(uri, options)
    base = BaseTable.need(location)
    if base.details is None:
        return enable(uri, primary_key=primary_key, storage_options=options, **choices)
    wanted = (
        base.primary_key
        if primary_key is None
        else check_names("primary_key", [primary_key] if isinstance(primary_key, str) else primary_key)
    )
    if choices or tuple(wanted) != tuple(base.primary_key):
        raise InvalidInputError("the table has a write path already: leave the options of a new one out")
    return Table(location, base)
