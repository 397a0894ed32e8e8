"""The newest-wins merge of a snapshot's tiers, as a stream of batches.

Owns `Merge`. Order of output: memory, SSTables, base table. Invariants:

1. Recency is decided by key alone, before filter and limit: what a newer tier replaced or deleted is hidden whether or
   not the newer row matches.
2. Keys are compared within a shard, and between any shard and the base table.
3. Tombstones never appear. Every row of an append-only table does.
4. Base rows stream; memory holds the keys of the fresh tiers and one batch per source. Several small SSTables, whose rows
   are kept anyhow, are one source.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from lance.dataset import ColumnOrdering

from lance_memwal.clock import in_order
from lance_memwal.process.lazy import lazy
from lance_memwal.read.base_rows import is_first_time, shown_rows
from lance_memwal.read.fresh import ShardMerge, live_rows, not_in
from lance_memwal.read.hidden_rows import HiddenById, HiddenByKey, HiddenRows
from lance_memwal.read.memory import matching_rows, narrowed
from lance_memwal.read.superseded_rows import Learning, blocklist, known_superseded, superseded_rows
from lance_memwal.read.tiers import Tiers
from lance_memwal.rows.adapt import tombstone_flags
from lance_memwal.rows.dictionaries import dictionaries
from lance_memwal.rows.filter import RowFilter, pushdown
from lance_memwal.rows.keys import KeySet, concat_keys
from lance_memwal.rows.projection import check_free, column_at, field_at, root_of, roots_of
from lance_memwal.sstable.read import SsTableReader, keeps_rows
from lance_memwal.sstable.stored_rows import StoredRows
from lance_memwal.types import ROW_ADDRESS, ROW_ID, TOMBSTONE, SsTable

BaseRead: TypeAlias = Callable[[Any], None]
"""Takes Lance's statistics of a scan."""

GENERATION = "_memtable_gen"
_BASE = 0  # the generation that rows of the base table show
_TARGET_BATCH_BYTES = 1 << 20  # larger buffers are mapped and unmapped for every batch, which costs more than it saves
_READ_AHEAD_BYTES = 64 << 20  # what Lance may hold of base rows that nobody has asked for yet
_OPEN_AT_ONCE = 4
_MAX_FIRST = 1 << 16
_SUPERSEDED = 256  # rows that are asked for beyond those that are needed
_FILTERED_TOGETHER = 1 << 16  # rows: evaluating a filter costs as much as some ten thousand of them


@dataclass(frozen=True, slots=True)
class Projection:
    """The columns of the answer, and whether row id, row address and generation come with them.

    Only rows of the base table have an id and an address: those in a memtable or an SSTable would be another base row's.
    """

    columns: tuple[str, ...]
    with_row_address: bool = False
    with_generation: bool = False
    with_row_id: bool = False

    @property
    def of_base(self) -> list[str]:
        """What comes with the columns and only rows of the base table have."""
        return [ROW_ID] * self.with_row_id + [ROW_ADDRESS] * self.with_row_address

    def schema(self, table: pa.Schema) -> pa.Schema:
        """The Arrow schema of the answer; `InvalidInputError` if a column is named like what comes with them."""
        added = self.of_base + [GENERATION] * self.with_generation
        for name in added:
            check_free(name, self.columns)
        return pa.schema(
            [field_at(path, table) for path in self.columns] + [pa.field(name, pa.uint64()) for name in added]
        )


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of one source above the base table."""

    table: pa.Table
    alive: npt.NDArray[np.bool_]
    generation: int
    filtered: bool = False


_Merged: TypeAlias = tuple[SsTableReader, npt.NDArray[np.int64]]
"""An SSTable, and the offsets of its rows that something newer hides, sorted."""


class Merge:
    """One read of a snapshot."""

    def __init__(
        self,
        snapshot: Tiers,
        projection: Projection,
        row_filter: RowFilter | None,
        *,
        hiding: KeySet | None = None,
        on_base_read: BaseRead | None = None,
    ) -> None:
        """`hiding` are keys that hide base rows, of shards that are not in `snapshot`.

        `on_base_read` is told how much of the base table was read, once it was read to its end.
        """
        self._on_base_read = on_base_read
        self.snapshot = snapshot
        self._hiding = hiding
        self.projection = projection
        self.row_filter = row_filter
        self.shards = [ShardMerge(view, snapshot) for view in snapshot.shards]
        self.schema = projection.schema(snapshot.schema.columns)

    def prepare(self) -> None:
        """Open everything that the stream needs, several at once; a missing SSTable shows here, before the first batch."""
        readers = [reader for shard in self.shards for reader in shard.readers]
        cold = [reader.stored for reader in readers if not reader.stored.is_open]
        list(in_order(StoredRows.open, cold, _OPEN_AT_ONCE, "memwal-open"))
        for shard in self.shards:
            _ = shard.index

    @lazy
    def fresh_keys(self) -> KeySet | None:
        """The keys that hide base rows; None if nothing can."""
        if not self.snapshot.schema.primary_key:
            return None
        parts = [keys for shard in self.shards for keys in shard.all_keys() if len(keys)]
        if not parts:
            return self._hiding
        return KeySet(concat_keys(parts if self._hiding is None else [*parts, self._hiding.keys]))

    @property
    def hiding_columns(self) -> list[str]:
        """The columns of the base table that tell which of its rows are hidden; none if nothing can hide one."""
        return [] if self.fresh_keys is None else list(self.snapshot.schema.primary_key)

    def live_in_base(self, rows: pa.Table | pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Per row of the base table, which has `hiding_columns`: whether no fresh tier has its key."""
        if self.fresh_keys is None or not rows.num_rows:
            return np.ones(rows.num_rows, dtype=bool)
        return ~self.fresh_keys.of_rows(rows, self.hiding_columns)

    def blocklist(self) -> bytes | None:
        """Base rows for Lance to leave out: nearly all that are superseded, so that `live_in_base` is still needed."""
        return blocklist(self.snapshot.base, superseded_rows(self.snapshot, self.shards))[0]

    def batches(self, *, in_order: bool = False) -> Iterator[pa.RecordBatch]:
        """All live rows that match, in batches of the answer's schema; `in_order`: in the same order every time."""
        yield from self.fresh_batches()
        if self.snapshot.base_table is not None:
            yield from self.base_batches(in_order=in_order)

    def fresh_batches(self) -> Iterator[pa.RecordBatch]:
        """The live rows of the tiers above the base table that match."""
        waiting: list[_Part] = []
        rows = 0
        for part in self._fresh_parts():
            waiting.append(part)
            rows += len(part.alive)
            if self.row_filter is None or rows >= _FILTERED_TOGETHER:
                yield from self._finish(waiting)
                waiting, rows = [], 0
        yield from self._finish(waiting)

    # ------------------------------------------------------------------------------------------------------ tiers

    def _fresh_parts(self) -> Iterator[_Part]:
        for shard in self.shards:
            for ref, table, live in shard.live_memory():
                yield _Part(table, narrowed(ref, self.row_filter, live), ref.generation)
        for shard in self.shards:
            for group in self._groups(shard.sstables()):
                yield from self._sstable_parts(*group[0]) if len(group) == 1 else [self._joined(group)]

    def _groups(self, sstables: Iterable[_Merged]) -> Iterator[list[_Merged]]:
        """The SSTables in the same order, small ones in groups that make a batch: a batch for each costs more than its rows."""
        group, size_bytes = list[_Merged](), 0
        for reader, hidden in sstables:
            added = self._bytes_that_join(reader.sstable)
            if group and size_bytes + added > _TARGET_BATCH_BYTES:
                yield group
                group, size_bytes = [], 0
            group.append((reader, hidden))
            size_bytes += added
        if group:
            yield group

    def _bytes_that_join(self, sstable: SsTable) -> int:
        """How much the SSTable adds to a batch of several: a whole batch if it cannot be in one."""
        known = sstable.in_memory_bytes if self._joins and keeps_rows(sstable) else None
        return _TARGET_BATCH_BYTES if known is None else max(known, 1)

    @cached_property
    def _joins(self) -> bool:
        """Whether rows of several generations may be one batch. (Arrow cannot join dictionaries with too many values.)"""
        return not self.projection.with_generation and not any(dictionaries(self.snapshot.schema.columns))

    def _joined(self, group: Sequence[_Merged]) -> _Part:
        """The rows of several small SSTables."""
        rows = [reader.all_rows(self.snapshot.schema) for reader, _ in group]
        filtered = () if self.row_filter is None else self.row_filter.columns
        columns = list(dict.fromkeys([*roots_of(self.projection.columns), *filtered, TOMBSTONE]))
        table = pa.concat_tables([table for table, _ in rows]).select(columns).combine_chunks()
        alive, end = ~tombstone_flags(table), 0
        for (_, offsets), (_, hidden) in zip(rows, group, strict=True):
            start, end = end, end + len(offsets)
            if len(hidden):
                alive[start:end] &= not_in(offsets, hidden)
        return _Part(table, alive, group[0][0].sstable.generation)

    def _sstable_parts(self, reader: SsTableReader, hidden: npt.NDArray[np.int64]) -> Iterator[_Part]:
        schema, generation = self.snapshot.schema, reader.sstable.generation
        if keeps_rows(reader.sstable):
            table, offsets = reader.all_rows(schema)
            yield _Part(table, live_rows(table, offsets, hidden), generation)
            return
        columns = list(roots_of(self.projection.columns))
        for batch, offsets in reader.batches(schema, columns, self.row_filter, self._batch_rows()):
            live = live_rows(batch, offsets, hidden)
            yield _Part(pa.Table.from_batches([batch]), live, generation, filtered=True)

    def base_batches(
        self, fragments: Collection[int] | None = None, *, in_order: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """The live rows of the base table, or of some of its fragments, that match; `in_order`: in that of the table."""
        snapshot, projection = self.snapshot, self.projection
        shared = pushdown(self.row_filter)
        base, dataset = snapshot.base, snapshot.base.dataset
        asked = (root_of(path) if root_of(path) in base.columns.blobs else path for path in projection.columns)
        hidden = self._hidden_in_base(whole=self.row_filter is None and fragments is None)
        columns = list(dict.fromkeys([*asked, *(() if hidden is None else hidden.columns), *shared.columns]))
        some = None if fragments is None else [f for f in dataset.get_fragments() if f.fragment_id in fragments]
        with base.reading("scanning the base table", given=shared.told is not None):
            scanner = dataset.scanner(
                columns=columns,
                filter=shared.told,
                fragments=some,
                with_row_id=projection.with_row_id or (hidden is not None and hidden.needs_row_id),
                with_row_address=projection.with_row_address or not columns,
                batch_size=self._batch_rows(),
                scan_in_order=in_order,
                io_buffer_size=_READ_AHEAD_BYTES,
                scan_stats_callback=self._on_base_read,
            )
            for batch in scanner.to_batches():
                if batch.num_rows == 0:
                    continue
                if hidden is not None:
                    live = hidden.live(batch)
                    if not live.any():
                        continue
                    if hidden.needs_row_id and not projection.with_row_id and columns:
                        batch = batch.drop_columns([ROW_ID])  # to filter it, too, would cost as much as to find it
                    if not live.all():
                        batch = batch.filter(pa.array(live))
                for part in shared.finish(pa.Table.from_batches([shown_rows(base, batch)])).to_batches():
                    if part.num_rows:
                        yield self._dress(part, _BASE)
        if hidden is not None:
            hidden.finish()

    def _hidden_in_base(self, *, whole: bool) -> HiddenRows | None:
        """What tells the rows of the base table that are hidden; None if nothing hides one. `whole`: all rows will be asked."""
        schema = self.snapshot.schema
        if (
            not schema.primary_key or self._hiding is not None or schema.key_form.is_number
        ):  # those are compared in no time
            return None if self.fresh_keys is None else HiddenByKey(self.fresh_keys, schema.primary_key, None)
        known, unseen = known_superseded(self.snapshot, self.shards)
        keys = self.fresh_keys if known is None else KeySet(concat_keys(unseen)) if unseen else None
        pays = whole and (known is not None or not is_first_time(self.snapshot.base, "scanned"))
        learning = Learning(self.snapshot, self.shards, known) if pays else None
        by_key = None if keys is None else HiddenByKey(keys, schema.primary_key, learning)
        return by_key if known is None or not len(known.all) else HiddenById(known, by_key)

    def first_of_base(self, by: Sequence[tuple[str, bool]], count: int) -> list[pa.RecordBatch] | None:
        """Live, matching rows of the base table, among them the first `count` in the order of these columns (and whether
        the largest comes first), as Lance orders them; None if it cannot be told, or too many of its rows are superseded.
        """
        shared, columns = pushdown(self.row_filter), [*self.projection.columns, *self.hiding_columns]
        if shared.late is not None or any("." in name for name in columns) or count > _MAX_FIRST:
            return None
        order: list[Any] = [ColumnOrdering(name, ascending=not falls) for name, falls in by]
        base, fetch = self.snapshot.base, count + (_SUPERSEDED if self.fresh_keys is not None else 0)
        blocked: bytes | None = None
        while fetch <= _MAX_FIRST + _SUPERSEDED:
            with base.reading("ordering the base table", given=shared.told is not None):
                scanner = base.dataset.scanner(
                    columns=list(dict.fromkeys(columns)),
                    filter=shared.told,
                    order_by=order,
                    limit=fetch,
                    with_row_id=self.projection.with_row_id,
                    with_row_address=self.projection.with_row_address,
                    row_addr_blocklist=blocked,
                )
                rows = scanner.to_table()
            live = self.live_in_base(rows)
            if live.sum() >= count or rows.num_rows < fetch:
                return [self._dress(part, _BASE) for part in rows.filter(pa.array(live)).to_batches() if part.num_rows]
            blocked = blocked or self.blocklist()
            fetch *= 4
        return None

    # ------------------------------------------------------------------------------------------------------ shaping

    def _finish(self, parts: Sequence[_Part]) -> Iterator[pa.RecordBatch]:
        """The living, matching rows as batches of the answer; the filter is evaluated once for all parts."""
        late = [part for part in parts if not part.filtered]
        masks = iter(matching_rows([(part.table, part.alive) for part in late], self.row_filter))
        for part in parts:
            table, alive = part.table, part.alive if part.filtered else next(masks)
            if not alive.any():
                continue
            if not alive.all():
                table = table.filter(pa.array(alive))
            for batch in table.to_batches():
                if batch.num_rows:
                    yield self._dress(batch, part.generation)

    def _dress(self, batch: pa.RecordBatch, generation: int) -> pa.RecordBatch:
        arrays = [column_at(path, batch) for path in self.projection.columns]
        for name in self.projection.of_base:
            arrays.append(batch.column(name) if generation == _BASE else pa.nulls(batch.num_rows, pa.uint64()))
        if self.projection.with_generation:
            arrays.append(pa.array(np.full(batch.num_rows, generation, dtype=np.uint64)))
        if not arrays:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * batch.num_rows, type=pa.struct([])))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _batch_rows(self) -> int:
        """Rows per batch that make about one megabyte."""
        return int(min(262_144, max(1_024, _TARGET_BATCH_BYTES // max(row_width(self.schema), 16))))


def row_width(schema: pa.Schema) -> int:
    """Bytes per row, guessed."""
    return sum(_width(field.type) for field in schema)


def _width(kind: pa.DataType) -> int:
    """Bytes per value, guessed for values of no fixed width."""
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * _width(kind.value_type)
    if pa.types.is_struct(kind):
        return sum(_width(kind.field(i).type) for i in range(kind.num_fields))
    if pa.types.is_nested(kind):
        return 256
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return 32
