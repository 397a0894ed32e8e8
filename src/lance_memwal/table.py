"""The facade: a table, its writers and its reads.

Owns `create_table`, `enable`, `open_table` and `Table`; no engine logic. Invariants:

1. A table follows new base versions by itself: every read and every new writer looks at the newest one. It also follows
   a table that was dropped and created anew at the same place.
2. A table whose MemWAL entry was lost (overwritten or dropped base) says so and gives no writer.

Called by: users, the command line, Spark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import lance
import pyarrow as pa

from lance_memwal.arguments import check_instance, check_number
from lance_memwal.clock import SYSTEM_CLOCK
from lance_memwal.compact.policy import DEFAULT_COMPACTION, CompactionPolicy
from lance_memwal.config import WriterConfig
from lance_memwal.create import LEFTOVERS, Choices, check_existing, enable_base, install, refuse_leftovers, write_base
from lance_memwal.errors import InvalidInputError
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.details import INDEX_NAME, MemWalDetails
from lance_memwal.lance.identity import TableWatch
from lance_memwal.lance.marks import recorded
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.table_ids import for_writing
from lance_memwal.log.transactions import load_generation_maps
from lance_memwal.log.wal import list_positions, read_transactions
from lance_memwal.memtable import live
from lance_memwal.memtable.index import Metric
from lance_memwal.memtable.memtable import InMemoryMemTables
from lance_memwal.read.base_keys import BaseLookup
from lance_memwal.read.lookup import lookup_rows
from lance_memwal.read.memory_get import Undecided, get_from_memory
from lance_memwal.read.scan import Scan
from lance_memwal.read.search import SearchRequest, search
from lance_memwal.read.snapshot import Consistency, Snapshot, SnapshotSource, list_shards, no_entry, with_restarts
from lance_memwal.rows.filter import FilterLike
from lance_memwal.rows.ingest import key_batch
from lance_memwal.rows.prune import values_in_filter
from lance_memwal.rows.schema import checked_columns
from lance_memwal.rows.sharding import (
    ONE_SHARD,
    Bucket,
    Identity,
    Manual,
    Sharding,
    shard_ids,
    sharding_of,
    shards_for_values,
)
from lance_memwal.shard_writer import ShardWriter
from lance_memwal.sstable.probe import check_table
from lance_memwal.store.location import Location, resolve
from lance_memwal.table_writer import TableWriter
from lance_memwal.types import ShardManifest, ShardStatus
from lance_memwal.upkeep.maintenance import Maintenance
from lance_memwal.write.open_shards import DEFAULT_OPEN_SHARDS
from lance_memwal.write.parking import Parked
from lance_memwal.write.table_target import target_of, with_shard, writer_config

__all__ = ["ShardInfo", "Table", "create_table", "enable", "open_table"]


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """One shard as storage shows it: its owner's epoch, what is flushed, and what is only in the log."""

    shard_id: str
    epoch: int
    status: ShardStatus
    generations: tuple[int, ...]
    current_generation: int
    wal_tail: int
    bytes: int


def create_table(
    uri: str,
    data_or_schema: Any,
    *,
    primary_key: str | Sequence[str] | None = None,
    sharding: Sharding = ONE_SHARD,
    maintained_indexes: str | Sequence[str] | None = "all",
    writer_defaults: WriterConfig | Mapping[str, Any] | None = None,
    allow_keys_across_shards: bool = False,
    storage_options: Mapping[str, str] | None = None,
    exist_ok: bool = False,
) -> Table:
    """A new table with a MemWAL index; data that is given becomes its first base rows.

    Without a primary key the table is append-only. All rows go to one shard unless `sharding` spreads them. With
    `exist_ok` a table that is there already is opened as it is (it must have the columns and the key that are asked for);
    data is not written to it.
    """
    location = resolve(uri, storage_options)
    choices = Choices(
        sharding=sharding,
        maintained_indexes=maintained_indexes,
        writer_defaults=writer_defaults,
        allow_keys_across_shards=allow_keys_across_shards,
    )
    base = BaseTable.open(location)
    if base is None:
        return Table(location, install(write_base(location, data_or_schema, primary_key, choices), choices))
    if not exist_ok:
        raise InvalidInputError(f"there is a table at {location.describe()} already; open it, or pass exist_ok=True")
    check_existing(base, data_or_schema, primary_key)
    if base.details is None:
        refuse_leftovers(location, LEFTOVERS)
        base = enable_base(base, primary_key, choices)
    return Table(location, base)


def enable(
    uri_or_lance_dataset: str | lance.LanceDataset,
    *,
    primary_key: str | Sequence[str] | None = None,
    sharding: Sharding = ONE_SHARD,
    maintained_indexes: str | Sequence[str] | None = "all",
    writer_defaults: WriterConfig | Mapping[str, Any] | None = None,
    allow_keys_across_shards: bool = False,
    adopt_shards: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> Table:
    """Put a MemWAL index on an existing Lance table; its rows stay as they are.

    `primary_key` sets the key of a table that has none; it is refused, and the table is as it was, if a key is null or
    there twice. Without it the table keeps the key that it has, or is append-only.

    Shards that an earlier index left behind are refused, since their rows would appear above those of the table;
    `adopt_shards=True` says that they belong to it.
    """
    given = uri_or_lance_dataset
    location = resolve(given.uri if isinstance(given, lance.LanceDataset) else given, storage_options)
    base = _need_base(location)
    choices = Choices(
        sharding=sharding,
        maintained_indexes=maintained_indexes,
        writer_defaults=writer_defaults,
        allow_keys_across_shards=allow_keys_across_shards,
    )
    if base.details is None and not adopt_shards:
        refuse_leftovers(location, LEFTOVERS)
    return Table(location, enable_base(base, primary_key, choices))


def open_table(uri: str, *, storage_options: Mapping[str, str] | None = None, for_repair: bool = False) -> Table:
    """The table at `uri`; says so if it has no MemWAL index, or lost it.

    `for_repair=True` opens it all the same: `Table.verify` and `Table.repair` work then, reads and writes do not. If the
    newest version of the base table is damaged, they look at the newest one that can be read, and say so.
    """
    location = resolve(uri, storage_options)
    base = _need_base(location, for_repair=for_repair)
    table = Table(location, base)
    if not for_repair:
        table.details()
    return table


def _need_base(location: Location, *, for_repair: bool = False) -> BaseTable:
    base = BaseTable.open_newest_readable(location) if for_repair else BaseTable.open(location)
    if base is None:
        raise InvalidInputError(f"there is no table at {location.describe()}; create it with memwal.create_table")
    return base


class Table(Maintenance):
    """A Lance table with a write path in front: fresh reads over all tiers, writers for its shards."""

    def __init__(self, location: Location, base: BaseTable) -> None:
        """Use `open_table`, `create_table` or `enable`."""
        self.location = location
        self._base = base
        self._snapshots = SnapshotSource(location, self._newest_base)
        self._lookup = BaseLookup(base.primary_key)

    def __repr__(self) -> str:
        key = ", ".join(self._base.primary_key) or "none"
        return f"Table({self.uri!r}, primary_key=({key}), version={self._base.version})"

    # ------------------------------------------------------------------------------------------------------ the table

    @property
    def uri(self) -> str:
        """Where the table is, without credentials."""
        return self.location.describe()

    @property
    def schema(self) -> pa.Schema:
        """The columns of the newest base version."""
        return self._newest_base().schema

    @property
    def primary_key(self) -> list[str]:
        """The key columns in key order; empty for an append-only table."""
        return list(self._base.primary_key)

    @property
    def sharding(self) -> Sharding:
        """How rows are spread over shards."""
        return self._sharding(self._newest_base())

    @property
    def dataset(self) -> lance.LanceDataset:
        """The newest version of the base table, as a dataset of the caller's own: what it commits moves no read of ours."""
        return self._newest_base().handle()

    def details(self) -> MemWalDetails:
        """What the MemWAL index of the newest base version records."""
        base = self._newest_base()
        if base.details is None:
            raise no_entry(self.location)
        return replace(base.details, compacted=recorded(base))

    def shards(self) -> list[ShardInfo]:
        """Every shard on storage."""
        return [info for shard_id in list_shards(self.location) if (info := self._shard_info(shard_id)) is not None]

    def _shard_info(self, shard_id: str) -> ShardInfo | None:
        manifest = ShardManifestStore(self.location, shard_id).read_latest()
        if manifest is None:
            return None
        cursor = manifest.replay_after_wal_entry_position
        tail = sum(position > cursor for position in list_positions(self.location, shard_id))
        size = sum(sstable.in_memory_bytes or 0 for sstable in manifest.sstables)
        generations = tuple(sstable.generation for sstable in manifest.sstables)
        return ShardInfo(
            shard_id, manifest.writer_epoch, manifest.status, generations, manifest.current_generation, tail, size
        )

    def transactions(self) -> dict[str, dict[str, int]]:
        """Per shard the newest version of every application that wrote with a transaction."""
        found: dict[str, dict[str, int]] = {}
        for shard_id in list_shards(self.location):
            manifest = ShardManifestStore(self.location, shard_id).read_latest()
            if manifest is not None:
                positions = list_positions(self.location, shard_id)
                known = read_transactions(self.location, manifest, positions, tag=self._base.tag)
                known.merge(load_generation_maps(self.location, manifest))
                found[shard_id] = {app: item.version for app, item in known.whole().items()}
        return found

    # ------------------------------------------------------------------------------------------------------ writing

    def writer(
        self,
        *,
        config: WriterConfig | None = None,
        compaction: CompactionPolicy | None = DEFAULT_COMPACTION,
        max_open_shards: int = DEFAULT_OPEN_SHARDS,
        **overrides: Any,
    ) -> TableWriter:
        """A writer that routes rows to shards; shard writers are opened when rows need them.

        Its shards are compacted in the background as `compaction` says; None switches that off. Of more than
        `max_open_shards` shards, those that were not written to for longest are parked: they stay this writer's own,
        without memory or threads.
        """
        check_number("max_open_shards", max_open_shards, least=1)
        if compaction is not None:
            check_instance("compaction", compaction, CompactionPolicy, "a CompactionPolicy or None")
        self.details()
        base = self._newest_base()
        settings = writer_config(base, config, overrides, ())
        if settings.shard_id is not None and not isinstance(self._sharding(base), Manual):
            raise InvalidInputError(
                "shard_id does not fit a writer of a table that routes its rows: leave it out, or use Table.shard_writer"
            )
        check_table(base)
        base = for_writing(base)
        watch = TableWatch(base)
        return TableWriter(
            self,
            base.table_schema,
            self._sharding(base),
            lambda shard_id, parked: self._open_shard(
                shard_id, config, overrides, routed=True, watch=watch, parked=parked
            ),
            watch,
            compaction,
            max_open_shards,
        )

    def shard_writer(
        self, shard_id: str | None = None, *, config: WriterConfig | None = None, **overrides: Any
    ) -> ShardWriter:
        """The writer of one shard. None: the shard of an unsharded table, or a new manual shard."""
        self.details()
        return self._open_shard(shard_id, config, overrides, routed=False)

    def _open_shard(
        self,
        shard_id: str | None,
        config: WriterConfig | None,
        overrides: dict[str, Any],
        *,
        routed: bool,
        watch: TableWatch | None = None,
        parked: Parked | None = None,
    ) -> ShardWriter:
        base = self._newest_base() if watch is None else watch.look()
        settings = writer_config(base, config, overrides, ())
        if shard_id is not None:
            settings = settings.replace(shard_id=shard_id)
        settings = with_shard(settings, self._sharding(base))
        check_table(base)
        base = for_writing(base)
        target = target_of(self.location, base, None, routed=routed, watch=watch)
        return ShardWriter(target, settings, SYSTEM_CLOCK, parked=parked)

    # ------------------------------------------------------------------------------------------------------ reading

    def scan(
        self,
        columns: Sequence[str] | None = None,
        filter: FilterLike | None = None,  # noqa: A002
        limit: int | None = None,
        offset: int | None = None,
        *,
        with_row_address: bool = False,
        with_generation: bool = False,
        consistency: Consistency = "fresh",
        shards: Collection[str] | None = None,
        in_memory: InMemoryMemTables | Iterable[InMemoryMemTables] | None = None,
    ) -> Scan:
        """All live rows of all tiers as of now; see `Scan` for the ways to read them."""

        def capture() -> Snapshot:
            candidates = self._candidates(filter)
            return self._snapshots.capture(
                consistency=consistency, shards=shards, in_memory=in_memory, candidates=candidates
            )

        return Scan(
            capture,
            columns=columns,
            filter=filter,
            limit=limit,
            offset=offset,
            with_row_address=with_row_address,
            with_generation=with_generation,
        )

    def get(self, key: Any, columns: Sequence[str] | None = None) -> dict[str, Any] | None:
        """The live row of one key, or None."""
        base = self._readable_base()
        schema = base.table_schema
        if columns is not None:
            columns = checked_columns(columns, schema.columns)
        shards = live.all_of(self.location.key)
        row = get_from_memory(shards, base.table_id, schema, key, columns, self._newest_manifest)
        if not isinstance(row, Undecided):
            return row
        found = self.lookup([key], columns)
        return found.to_pylist()[0] if found.num_rows else None

    def lookup(self, keys: Any, columns: Sequence[str] | None = None) -> pa.Table:
        """The live rows of many keys, each once and in no order; keys without a row are left out."""
        base = self._readable_base()
        named = key_batch(keys, base.table_schema)

        def capture() -> Snapshot:
            return self._snapshots.capture(candidates=self._shards_of_keys(named, base))

        def read(snapshot: Snapshot) -> pa.Table:
            return lookup_rows(
                snapshot, self._lookup, named, snapshot.schema.columns.names if columns is None else columns
            )

        return with_restarts(capture, read)

    def search(
        self,
        *,
        vector: Any = None,
        text: Any = None,
        column: str | None = None,
        k: int = 10,
        filter: FilterLike | None = None,  # noqa: A002
        columns: Sequence[str] | None = None,
        metric: Metric | None = None,
        nprobes: int = 20,
        refine_factor: int | None = None,
        ef: int | None = None,
        consistency: Consistency = "fresh",
    ) -> pa.Table:
        """The best `k` live rows for a vector, a text, or both (fused by rank), best first.

        They come with `_distance`, `_score` or, for both, `_relevance`. `filter` restricts the rows before they are ranked.
        """
        request = SearchRequest(vector, text, column, k, filter, columns, metric, nprobes, refine_factor, ef)
        return with_restarts(lambda: self._snapshots.capture(consistency=consistency), lambda s: search(s, request))

    def count_rows(self, filter: FilterLike | None = None, consistency: Consistency = "fresh") -> int:  # noqa: A002
        """The number of live rows."""
        return self.scan(filter=filter, consistency=consistency).count_rows()

    # ------------------------------------------------------------------------------------------------------ inside

    def _newest_manifest(self, shard_id: str) -> ShardManifest | None:
        return self._snapshots.manifests(shard_id).read_latest()

    def _newest_base(self) -> BaseTable:
        known, base = self._base, self._base.refresh()
        if base.origin is not known.origin:
            self._forget(base)
        self._base = base
        return base

    def _forget(self, base: BaseTable) -> None:
        """Drop what was learned of another table that was at this place before."""
        self._snapshots.forget()
        self._lookup = BaseLookup(base.primary_key)

    def _readable_base(self) -> BaseTable:
        """The newest base version, which has a MemWAL entry."""
        base = self._newest_base()
        if base.manifest.index(INDEX_NAME) is None:
            raise no_entry(self.location)
        return base

    def _sharding(self, base: BaseTable) -> Sharding:
        if base.details is None:
            raise no_entry(self.location)
        return sharding_of(base)

    def _candidates(self, filter: FilterLike | None) -> set[str] | None:  # noqa: A002
        """The shards in which rows can match, or None for all."""
        base = self._base
        sharding = self._sharding(base)
        if not isinstance(filter, str) or not isinstance(sharding, Bucket | Identity):
            return None
        if base.primary_key and sharding.column not in base.primary_key:
            return None
        values = values_in_filter(filter, sharding.column, base.schema.names)
        return None if values is None else self._shards_of_values(sharding, values, base)

    def _shards_of_values(self, sharding: Bucket | Identity, values: Any, base: BaseTable) -> set[str] | None:
        named = shards_for_values(sharding, values, base.schema.field(sharding.column).type)
        if named is None:
            return None
        derived = set(shard_ids(sharding) or ())
        return {s for s in list_shards(self.location) if s in named or not _is_derived(s, derived)}

    def _shards_of_keys(self, keys: pa.RecordBatch, base: BaseTable) -> set[str] | None:
        sharding = self._sharding(base)
        if not isinstance(sharding, Bucket | Identity):
            return None
        if sharding.column not in base.primary_key:
            return None
        column = keys.column(base.primary_key.index(sharding.column))
        return self._shards_of_values(sharding, column, base)


def _is_derived(shard_id: str, derived: Collection[str]) -> bool:
    """Whether routing made this shard; others (opened by hand with an id of their own) may hold any row.

    Identity shards cannot be enumerated, but routed ones are UUIDs of version 5, which nobody draws at random.
    """
    return shard_id in derived if derived else shard_id[14] == "5"
