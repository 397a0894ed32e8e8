"""The groups of a table: `table.checkpoints`, `table.consumers` and `table.indexes`.

Owns `Checkpoints`, `Consumers` and `Indexes`. Invariant: a group holds the parts of its table and no state of its own, so that
every call reads the newest version of the base table.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from lance_memwal.feed.changes import Request
from lance_memwal.feed.checkpoints import Checkpoint, create_checkpoint, drop_checkpoint, list_checkpoints
from lance_memwal.feed.consumers import DEFAULT_MAX_AGE, Consumer, drop_consumer
from lance_memwal.feed.starts import Start, Until
from lance_memwal.lance.base import NewestBase
from lance_memwal.lance.details import MemWalDetails
from lance_memwal.memtable.index import IndexSpec
from lance_memwal.process.aio import Aio, waits
from lance_memwal.read.snapshot import Snapshot
from lance_memwal.rows.filter import FilterLike
from lance_memwal.sstable.maintained import choose_maintained
from lance_memwal.upkeep.indexes import IndexInfo, IndexRequest, create_index, drop_index, list_indexes
from lance_memwal.upkeep.reports import ConsumerInfo
from lance_memwal.upkeep.stats import consumer_infos


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Named snapshots that GC keeps."""

    _newest: NewestBase = field(repr=False)
    _snapshot: Callable[[], Snapshot] = field(repr=False)

    def create(self, name: str, *, lifetime: timedelta | None = None) -> Checkpoint:
        """Keep the current snapshot under a name: GC and the removal of old versions leave everything that it needs.

        It ends when it is dropped, or at the first GC after `lifetime`.
        """
        return create_checkpoint(self._newest.with_index, self._snapshot, name, lifetime)

    def list(self) -> builtins.list[Checkpoint]:
        """Return the checkpoints, ordered by name."""
        return list_checkpoints(self._newest.with_index())

    def drop(self, name: str) -> None:
        """Remove a checkpoint. GC may then delete what only this checkpoint needed."""
        drop_checkpoint(self._newest.with_index(), name)


@dataclass(frozen=True, slots=True)
class Consumers:
    """Named readers of the change feed."""

    _newest: NewestBase = field(repr=False)

    def open(
        self,
        name: str,
        *,
        start: Start = "snapshot",
        max_age: timedelta = DEFAULT_MAX_AGE,
        until: Until = None,
        columns: Sequence[str] | None = None,
        filter: FilterLike | None = None,  # noqa: A002
        before: bool = False,
    ) -> Consumer:
        """Return a named reader of the change feed. Its cursor is stored with the table.

        Iterate over it, and call `commit()` after the changes were applied. After a restart it continues from its last
        commit. A new consumer begins at `start`. GC keeps everything that it has not committed. If it does not commit for
        `max_age`, it expires, and its next commit or read raises `CollectedError`. One process reads for a name: a later
        process takes over.
        """
        request = Request(columns, filter, before)
        return Consumer(self._newest, name, request, start=start, until=until, max_age=max_age)

    def list(self) -> builtins.list[ConsumerInfo]:
        """Return the consumers with their lag, ordered by name."""
        return consumer_infos(self._newest.location, self._newest.with_index().table_id)

    def drop(self, name: str) -> None:
        """Remove a consumer. GC no longer keeps changes for it, and a process that reads for it gets an error."""
        drop_consumer(self._newest.location, name, self._newest.with_index().table_id)


@dataclass(frozen=True, slots=True)
class Indexes:
    """The indexes of the base table."""

    _newest: NewestBase = field(repr=False)
    _details: Callable[[], MemWalDetails] = field(repr=False)
    _compact: Callable[[], object] = field(repr=False)

    def create(
        self,
        /,
        column: str | IndexSpec,
        index_type: str | None = None,
        *,
        name: str | None = None,
        replace: bool = True,
        **options: Any,
    ) -> IndexInfo:
        """Create an index of the base table with Lance. Memtables and SSTables mirror it if they can.

        Compacts fresh rows before building a vector index: the index is trained on the rows of the base table.

        Args:
            column: The column, or a `BTreeIndex`, `FtsIndex` or `HnswIndex`.
            index_type: A type of Lance ("BTREE", "INVERTED" or "FTS", "IVF_PQ", ...). By default vectors get
                "IVF_HNSW_SQ", and all other columns "BTREE".
            name: By default the name of the column and `_idx`.
            replace: Whether to replace an index of this name.
            **options: Options of Lance for this type.
        """
        request = IndexRequest.of(column, index_type, name, options, self._newest.with_index().columns.nullable)
        if request.is_vector:
            self._compact()
        return create_index(self._newest.with_index, request, replace=replace)

    def list(self) -> builtins.list[IndexInfo]:
        """Return the indexes, ordered by name."""
        return list_indexes(self._newest.with_index())

    def drop(self, name: str) -> None:
        """Remove an index from the base table, and from the maintained indexes."""
        drop_index(self._newest.with_index, name)

    def maintain(self, names: str | Sequence[str] | None) -> MemWalDetails:
        """Choose the indexes that memtables and SSTables mirror: "all", a list of names, or None.

        Open writers use the choice from their next memtable on. Compacted SSTables wait until an added index covers their
        rows; `Table.maintain` brings indexes up to date.
        """
        choose_maintained(self._newest.with_index, names)
        return self._details()


class CheckpointsAio(Aio):
    """The calls of `Checkpoints` as coroutines."""

    __slots__ = ()
    create = waits(Checkpoints.create)
    list = waits(Checkpoints.list)
    drop = waits(Checkpoints.drop)


class ConsumersAio(Aio):
    """The calls of `Consumers` as coroutines."""

    __slots__ = ()
    open = waits(Consumers.open)
    list = waits(Consumers.list)
    drop = waits(Consumers.drop)


class IndexesAio(Aio):
    """The calls of `Indexes` as coroutines."""

    __slots__ = ()
    create = waits(Indexes.create)
    list = waits(Indexes.list)
    drop = waits(Indexes.drop)
    maintain = waits(Indexes.maintain)
