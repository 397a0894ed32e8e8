"""What a shard writer writes to, read from the table: place, columns, defaults, sharding.

Owns the local checks of an open: everything here happens before a claim, so that a doomed open fences nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.config import ShardSettings, WriterConfig
from lance_memwal.errors import InvalidInputError
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.identity import TableWatch
from lance_memwal.memtable.index import IndexSpec
from lance_memwal.rows.column_types import check_columns
from lance_memwal.rows.schema import TableSchema, as_lance
from lance_memwal.rows.sharding import Sharding
from lance_memwal.sstable.mirrors import IndexSet
from lance_memwal.sstable.target import ShardTarget
from lance_memwal.store.location import Location

_DEFAULT_STORAGE_VERSION = "2.1"
_MAP_STORAGE_VERSION = "2.2"  # the first one with maps


def with_shard(settings: WriterConfig, sharding: Sharding) -> WriterConfig:
    """`settings` that name a shard: the only one of an unsharded table. Manual shards may be left open: a new one."""
    return settings if settings.shard_id is not None else settings.replace(shard_id=sharding.default_shard())


def target_of(
    location: Location,
    base: BaseTable | None,
    schema: pa.Schema | None,
    *,
    fsync: bool,
    routed: bool = False,
    indexes: Sequence[IndexSpec] = (),
    watch: TableWatch | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> ShardTarget:
    """The target of a shard of this table; `routed` means that the caller sends only rows that belong to the shard.

    `indexes` are the caller's own, beside those that the table maintains. `watch` is the open of the table that the
    shard belongs to; None begins a new one. With `fsync` the version of the table that the target stands on survives power
    loss, as the rows will.
    """
    if base is None:
        if schema is None:
            raise InvalidInputError(f"there is no table at {location.describe()}; create it, or give a schema")
        stored = TableSchema.from_arrow(as_lance(schema))
        version = _storage_version(stored.columns)
        check_columns(stored.columns, version)
        return ShardTarget(location, stored, version, indexes=IndexSet(stored, given=indexes))
    columns = base.columns
    if schema is not None:
        _check_same(as_lance(schema), columns.columns)
    details = base.need_details()
    base.check_columns()
    if fsync:
        base.make_durable()
    sharding = base.sharding
    spec_id = details.sharding_specs[0].spec_id if details.sharding_specs else 0
    check = partial(sharding.check_rows, columns.columns) if sharding.is_routed and not routed else None
    return ShardTarget(
        location,
        columns,
        base.data_storage_version,
        spec_id,
        check,
        IndexSet(columns, base, tuple(indexes)),
        TableWatch(base, clock) if watch is None else watch,
        base.merge,
    )


def refuse_merge(target: ShardTarget, who: str) -> None:
    """Raise if the table has a merge, which a writer that looks no rows up cannot keep to; `who` names it."""
    if target.merge is not None:
        raise InvalidInputError(
            f"the table has merge={target.merge}, which needs a look at its rows: {who} cannot write to it, use Table.writer()"
        )


def _storage_version(columns: pa.Schema) -> str:
    """The oldest file version that holds these columns."""
    return _MAP_STORAGE_VERSION if any(_needs_maps(column.type) for column in columns) else _DEFAULT_STORAGE_VERSION


def _needs_maps(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) or any(_needs_maps(kind.field(i).type) for i in range(kind.num_fields))


def _check_same(given: pa.Schema, columns: pa.Schema) -> None:
    if given.names != columns.names:
        raise InvalidInputError(f"the table has the columns {columns.names}, the given schema has {given.names}")
    for field, column in zip(given, columns, strict=True):
        if field.type != column.type:
            raise InvalidInputError(f"column {field.name!r} is {column.type} in the table, not {field.type}")


def writer_config(
    base: BaseTable | None, config: WriterConfig | None, overrides: ShardSettings, indexes: Sequence[Any]
) -> WriterConfig:
    """The settings in force: the table's stored defaults (or `config`), then `overrides`; refused if they do not fit."""
    if config is None:
        stored = {} if base is None or base.details is None else base.details.writer_config_defaults
        config = WriterConfig.from_defaults(stored)
    elif not isinstance(config, WriterConfig):
        raise InvalidInputError(f"config must be a WriterConfig, not {type(config).__name__}")
    config = config.replace(**overrides)
    if indexes and not config.enable_memtable:
        raise InvalidInputError("indexes require enable_memtable=True: WAL-only mode has nothing to index")
    return config
