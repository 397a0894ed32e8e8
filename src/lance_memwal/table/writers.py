"""How writers of a table are opened.

Owns `open_writer` and `shard_settings`. Invariant: whatever can be refused is refused before a shard is claimed.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from lance_memwal.arguments import check_flag, check_instance, check_number
from lance_memwal.clock import SYSTEM_CLOCK
from lance_memwal.compact.policy import DEFAULT_COMPACTION, Background, CompactionPolicy
from lance_memwal.config import ShardSettings, WriterConfig
from lance_memwal.errors import InvalidInputError
from lance_memwal.lance.base import BaseTable, NewestBase
from lance_memwal.lance.identity import TableWatch
from lance_memwal.log.epochs import EpochKind, look_at_epoch
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.reading import read_next
from lance_memwal.log.shards import for_writing
from lance_memwal.memtable import live
from lance_memwal.read.reader import Reader
from lance_memwal.shard_writer import ShardWriter, core_of, open_shard_of, park, unpublished_generation
from lance_memwal.sstable.maintained import with_names
from lance_memwal.table_writer import TableWriter
from lance_memwal.upkeep.short_logs import UNKNOWN_LENGTH, LogLength, LogLimits, ShortLogs
from lance_memwal.write.life import Parked
from lance_memwal.write.open_shards import DEFAULT_OPEN_SHARDS, OpenShards
from lance_memwal.write.shared_shards import SharedShards, refuse_buffered, shared_appender
from lance_memwal.write.table_target import with_shard, writer_config

_SHARED_ENTRIES: Final = 1024
"""The entries of a shared log from which this process flushes it."""
_PARALLEL_SHARDS: Final = 8


def open_writer(
    newest: NewestBase,
    reader: Reader,
    *,
    config: WriterConfig | None = None,
    compaction: CompactionPolicy | None = DEFAULT_COMPACTION,
    max_open_shards: int = DEFAULT_OPEN_SHARDS,
    shared: bool = False,
    overrides: ShardSettings | None = None,
) -> TableWriter:
    """A writer that routes rows to shards; see `Table.writer`."""
    check_number("max_open_shards", max_open_shards, least=1)
    check_flag("shared", shared)
    if compaction is not None:
        check_instance("compaction", compaction, CompactionPolicy, "a CompactionPolicy or None")
    base = newest.with_index()
    settings = writer_config(base, config, overrides or {}, ())
    if settings.shard_id is not None and base.sharding.is_routed:
        raise InvalidInputError(
            "shard_id does not fit a writer of a table that routes its rows: leave it out, or use Table.shard_writer"
        )
    if shared:
        refuse_buffered(config, overrides or {})
    base.check_columns()
    base = with_names(for_writing(base))
    watch = TableWatch(base)
    if shared:
        shards, owned = _shared_shards(base, reader, watch, settings)
        return TableWriter(base, reader, shards, watch, Background(compaction, base.location, watch.look, owned))

    def open_shard(shard_id: str | None, parked: Parked | None) -> ShardWriter:
        now = watch.look()
        named = shard_settings(now, shard_id, config, overrides)
        return open_shard_of(now, named, routed=True, watch=watch, parked=parked)

    age_ms = settings.max_memtable_age_ms if settings.enable_memtable else None
    age_seconds = None if age_ms is None else age_ms / 1000
    at_once = base.location.at_once(_PARALLEL_SHARDS)
    lost_to_shared = (
        partial(_lost_to_shared, base) if settings.durable_write else None
    )  # else rows may be in memory only
    open_shards = OpenShards(
        open_shard,
        max_open_shards,
        age_seconds,
        core=core_of,
        park=park,
        lost_to_shared=lost_to_shared,
        at_once=at_once,
    )
    live.keep(base.location.key, open_shards)
    owned = partial(_owned, open_shards)
    return TableWriter(base, reader, open_shards, watch, Background(compaction, base.location, watch.look, owned))


def _lost_to_shared(base: BaseTable, shard_id: str, position: int) -> bool:
    """Whether shared writers claimed the shard, with a sentinel at `position`, and still have it."""
    manifest = ShardManifestStore(base.location, shard_id).read_latest()
    if manifest is None or look_at_epoch(base.location, manifest, tag=base.tag).kind is not EpochKind.JOINT:
        return False
    sentinel = next(iter(read_next(base.location, shard_id, position, 1, tag=base.tag)), None)
    return sentinel is not None and sentinel.footer is not None and sentinel.footer.joint


def _owned(shards: OpenShards[ShardWriter]) -> dict[str, int]:
    """The shards that the writer owns, parked ones too, each with its oldest generation that is not published."""
    parked = {shard_id: kept.generation for shard_id, kept in shards.parked.items() if not kept.is_lost}
    return parked | {shard_id: unpublished_generation(writer) for shard_id, writer in shards.open.items()}


def _shared_shards(
    base: BaseTable, reader: Reader, watch: TableWatch, settings: WriterConfig
) -> tuple[SharedShards, Callable[[], dict[str, int]]]:
    """The shards of a shared writer, and what returns those that it flushed."""
    appender = shared_appender(base, settings.replace(shard_id=None), reader.stored_rows)
    limits = replace(LogLimits.of(settings), entries=_SHARED_ENTRIES, generations=0, maintain_seconds=0)
    logs = ShortLogs(base.location, watch.look, lambda: None, limits=limits)  # `Table.maintain` does the rest

    def note_append(shard_id: str) -> None:
        tail = appender.appender.known_tail(shard_id)
        logs.flush(logs.note({shard_id: UNKNOWN_LENGTH if tail is None else LogLength.of(tail)}))
        logs.start()

    def default_shard() -> str:
        return str(with_shard(settings, base.sharding).shard_id or SYSTEM_CLOCK.uuid4())

    linger = settings.commit_linger_ms / 1000
    at_once = base.location.at_once(_PARALLEL_SHARDS)
    shards = SharedShards(appender, default_shard, note_append, logs.stop, linger_seconds=linger, at_once=at_once)
    return shards, logs.flushed_shards


def shard_settings(
    base: BaseTable, shard_id: str | uuid.UUID | None, config: WriterConfig | None, overrides: ShardSettings | None
) -> WriterConfig:
    """The settings of a shard's writer: the table's defaults or `config`, then `overrides`, then the shard."""
    settings = writer_config(base, config, overrides or {}, ())
    return settings if shard_id is None else settings.replace(shard_id=shard_id)
