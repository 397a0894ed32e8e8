"""How writers of a table are opened.

Owns `open_writer` and `shard_settings`. Invariant: whatever can be refused is refused before a shard is claimed.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Literal, TypeAlias

from lance_memwal.arguments import check_choice, check_flag, check_instance, check_number
from lance_memwal.clock import SYSTEM_CLOCK
from lance_memwal.compact.policy import DEFAULT_COMPACTION, CompactionPolicy
from lance_memwal.config import ShardSettings, WriterConfig
from lance_memwal.errors import InvalidInputError
from lance_memwal.lance.base import BaseTable, NewestBase
from lance_memwal.lance.identity import TableWatch
from lance_memwal.log.shards import for_writing
from lance_memwal.read.reader import Reader
from lance_memwal.serve.shared_shard import SharedShard, SharedTable
from lance_memwal.shard_writer import ShardWriter, open_shard_of
from lance_memwal.sstable.maintained import with_names
from lance_memwal.table_writer import TableWriter
from lance_memwal.write.life import Parked
from lance_memwal.write.open_shards import DEFAULT_OPEN_SHARDS
from lance_memwal.write.table_target import with_shard, writer_config

OnFenced: TypeAlias = Literal["raise", "retake"]


def open_writer(
    newest: NewestBase,
    reader: Reader,
    *,
    config: WriterConfig | None = None,
    compaction: CompactionPolicy | None = DEFAULT_COMPACTION,
    max_open_shards: int = DEFAULT_OPEN_SHARDS,
    shared: bool = False,
    on_fenced: OnFenced = "raise",
    overrides: ShardSettings | None = None,
) -> TableWriter:
    """A writer that routes rows to shards; see `Table.writer`."""
    check_number("max_open_shards", max_open_shards, least=1)
    check_flag("shared", shared)
    check_choice("on_fenced", on_fenced, ("raise", "retake"))
    if compaction is not None:
        check_instance("compaction", compaction, CompactionPolicy, "a CompactionPolicy or None")
    base = newest.with_index()
    settings = writer_config(base, config, overrides or {}, ())
    if settings.shard_id is not None and base.sharding.is_routed:
        raise InvalidInputError(
            "shard_id does not fit a writer of a table that routes its rows: leave it out, or use Table.shard_writer"
        )
    base.check_columns()
    base = with_names(for_writing(base))
    watch = TableWatch(base)

    def open_shard(shard_id: str | None, parked: Parked | None) -> ShardWriter:
        now = watch.look()
        named = shard_settings(now, shard_id, config, overrides)
        return open_shard_of(now, named, routed=True, watch=watch, parked=parked)

    age_ms = settings.max_memtable_age_ms if settings.enable_memtable else None
    age_seconds = None if age_ms is None else age_ms / 1000
    claimed: Callable[[str | None, Parked | None], ShardWriter | SharedShard] = open_shard
    if shared:
        claimed = _share(base, watch, settings, open_shard)
    return TableWriter(
        base,
        reader,
        claimed,
        watch,
        compaction,
        max_open_shards,
        age_seconds,
        shared=shared,
        retake=on_fenced == "retake" and not shared,
    )


def _share(
    base: BaseTable,
    watch: TableWatch,
    settings: WriterConfig,
    open_shard: Callable[[str | None, Parked | None], ShardWriter],
) -> Callable[[str | None, Parked | None], SharedShard]:
    """Opens shards that are shared with other processes."""
    if watch.table_id is None:
        raise InvalidInputError("the table has no id, by which processes know that they share it; use shared=False")
    table = SharedTable(
        base.location, watch.table_id, watch.tag, base.merge is None, lambda: watch.look().columns, open_shard
    )

    def open_shared(shard_id: str | None, parked: Parked | None) -> SharedShard:
        named = shard_id or with_shard(settings, base.sharding).shard_id
        return SharedShard(table, str(named or SYSTEM_CLOCK.uuid4()), parked)

    return open_shared


def shard_settings(
    base: BaseTable, shard_id: str | uuid.UUID | None, config: WriterConfig | None, overrides: ShardSettings | None
) -> WriterConfig:
    """The settings of a shard's writer: the table's defaults or `config`, then `overrides`, then the shard."""
    settings = writer_config(base, config, overrides or {}, ())
    return settings if shard_id is None else settings.replace(shard_id=shard_id)
