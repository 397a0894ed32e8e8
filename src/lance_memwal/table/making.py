"""New tables, and a write path for tables that are there.

Owns `create_table`, `enable` and `from_lancedb`; what they do is in `lance_memwal.create`. A table of LanceDB is a Lance table
in a directory: nothing is copied, and both libraries use it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import lance

from lance_memwal.arguments import check_names
from lance_memwal.config import WriterConfig
from lance_memwal.create import LEFTOVERS, Choices, check_existing, enable_base, install, refuse_leftovers, write_base
from lance_memwal.errors import ConflictError, InvalidInputError
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.commit import let_survive
from lance_memwal.rows.merging import Merge
from lance_memwal.rows.sharding import ONE_SHARD, Sharding
from lance_memwal.store.location import resolve
from lance_memwal.table.table import Table


def create_table(
    uri: str,
    data_or_schema: Any,
    *,
    primary_key: str | Sequence[str] | None = None,
    sharding: Sharding = ONE_SHARD,
    merge: Merge | None = None,
    maintained_indexes: str | Sequence[str] | None = "all",
    writer_defaults: WriterConfig | Mapping[str, Any] | None = None,
    allow_keys_across_shards: bool = False,
    storage_options: Mapping[str, str] | None = None,
    exist_ok: bool = False,
) -> Table:
    """A new table with a MemWAL index; data that is given becomes its first base rows.

    Without a primary key the table is append-only. All rows go to one shard unless `sharding` spreads them. `merge` says what
    a later write of a key does: `LastWrite(sequence=column)` keeps the row with the larger sequence, `FirstRow()` the first;
    by default the last write wins. With
    `exist_ok` a table that is there already is opened as it is (it must have the columns and the key that are asked for);
    data is not written to it.
    """
    location = resolve(uri, storage_options)
    choices = Choices(
        sharding=sharding,
        maintained_indexes=maintained_indexes,
        writer_defaults=writer_defaults,
        allow_keys_across_shards=allow_keys_across_shards,
        merge=merge,
    )
    base = BaseTable.open(location)
    if base is None:
        try:
            return _made(install(write_base(location, data_or_schema, primary_key, choices), choices))
        except ConflictError:
            base = BaseTable.open(location)
            if base is None or not exist_ok:
                raise
    if not exist_ok:
        raise InvalidInputError(f"there is a table at {location.describe()} already; open it, or pass exist_ok=True")
    try:
        return _existing(base, data_or_schema, primary_key, choices)
    except ConflictError:
        base = BaseTable.open(location)
        if base is None or base.details is None:
            raise
    return _existing(base, data_or_schema, primary_key, choices)  # another call enabled it


def _existing(base: BaseTable, data_or_schema: Any, primary_key: str | Sequence[str] | None, choices: Choices) -> Table:
    """An existing table, with a MemWAL index from now on."""
    check_existing(base, data_or_schema, primary_key, choices.merge)
    if base.details is None:
        refuse_leftovers(base.location, LEFTOVERS)
        return _made(enable_base(base, primary_key, choices))
    return Table(base.location, base)


def enable(
    uri_or_lance_dataset: str | lance.LanceDataset,
    *,
    primary_key: str | Sequence[str] | None = None,
    sharding: Sharding = ONE_SHARD,
    merge: Merge | None = None,
    maintained_indexes: str | Sequence[str] | None = "all",
    writer_defaults: WriterConfig | Mapping[str, Any] | None = None,
    allow_keys_across_shards: bool = False,
    adopt_shards: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> Table:
    """Put a MemWAL index on an existing Lance table; its rows stay as they are.

    `primary_key` sets the key of a table that has none; it is refused, and the table is as it was, if a key is null or
    there twice. Without it the table keeps the key that it has, or is append-only. `merge`: see `create_table`.

    Shards that an earlier index left behind are refused, since their rows would appear above those of the table;
    `adopt_shards=True` says that they belong to it.
    """
    given = uri_or_lance_dataset
    location = resolve(given.uri if isinstance(given, lance.LanceDataset) else given, storage_options)
    base = BaseTable.need(location)
    choices = Choices(
        sharding=sharding,
        maintained_indexes=maintained_indexes,
        writer_defaults=writer_defaults,
        allow_keys_across_shards=allow_keys_across_shards,
        merge=merge,
    )
    if base.details is None and not adopt_shards:
        refuse_leftovers(location, LEFTOVERS)
    return _made(enable_base(base, primary_key, choices))


def _made(base: BaseTable) -> Table:
    """The table, which survives power loss from now on, unless its settings say that nothing has to."""
    let_survive(base)
    return Table(base.location, base)


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
