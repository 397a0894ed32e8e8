"""The rows of published generations as compaction folds them: newest per key, the table's present columns, streaming.

Owns `Generation` and `fold_newest`. Invariants:

1. Columns, and the fields inside them, are matched by field id (by name while the table has no ids): a renamed one is
   read under its new name, an added one reads as null, a dropped one is not read.
2. The deletion vector of a generation is applied first, then the newest generation of the shard decides per key; a
   tombstone that decides is a delete, never a row.
3. Keys and tombstone flags are held in memory; rows only of generations that fit the given limit, the others are read
   again as a stream. Of generations that are streamed one after the other, the next ones are read ahead, within a limit.
4. A key that several shards hold (tables that allow it) is folded once: a row beats a tombstone, the last shard wins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_memwal.clock import in_order
from lance_memwal.errors import CorruptDataError, MemWalError, ObjectNotFoundError
from lance_memwal.lance.base import lance_options, lance_reading
from lance_memwal.rows.adapt import tombstone_flags
from lance_memwal.rows.field_match import fit_of
from lance_memwal.rows.keys import concat_keys, key_array, last_of_each, newest_of_each, one_array
from lance_memwal.rows.normal_form import no_rows, nulls
from lance_memwal.rows.schema import FieldId, TableSchema, tagged
from lance_memwal.sstable.file import SsTableFile, check_has_flags, simple_file
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.types import TOMBSTONE, SsTable

__all__ = ["Folded", "Generation", "fold_all", "fold_newest"]

_Mask = npt.NDArray[np.bool_]
_Chosen = tuple[pa.RecordBatch, _Mask | None]
_LOAD_AT_ONCE = 8  # a read waits for several threads of Lance in turn; more at once fill the gaps
_BATCH_BYTES = 8 << 20
_MAX_BATCH_ROWS = 1 << 16
_JOINED_BYTES = 2 << 20


class Generation:
    """One SSTable to fold. Its rows are kept once they were read, if `keep` says so."""

    def __init__(self, location: Location, shard_id: str, sstable: SsTable, schema: TableSchema, *, keep: bool) -> None:
        self.shard_id = shard_id
        self.sstable = sstable
        self._location = location
        self._schema = schema
        self._keep = keep
        self._file: SsTableFile | None = None
        self._dataset: lance.LanceDataset | None = None
        self._rows: list[pa.RecordBatch] | None = None
        self.keys: list[pa.Array] = []
        self.flags: _Mask = np.empty(0, dtype=np.bool_)

    @property
    def _action(self) -> str:
        return f"reading generation {self.sstable.generation} of shard {self.shard_id}"

    def _open(self) -> lance.LanceDataset:
        if self._dataset is None:
            directory = paths.sstable_dir(self.shard_id, self.sstable.path)
            try:
                with lance_reading(self._location, self._action, directory):
                    self._dataset = lance.dataset(
                        self._location.child_uri(directory), storage_options=lance_options(self._location)
                    )
            except MemWalError:
                if not self._location.store.list_names(directory):
                    raise ObjectNotFoundError(directory) from None
                raise
        return self._dataset

    def _stored_names(self, stored: Mapping[str, FieldId]) -> dict[str, str | None]:
        """Per table column the name under which this generation, which has the columns `stored`, holds it, or None."""
        columns = self._schema.columns.names
        if self._schema.field_ids is None:
            return {name: name if name in stored else None for name in columns}
        by_id = {ids.id: name for name, ids in stored.items()}
        return {name: by_id.get(ids.id) for name, ids in zip(columns, self._schema.field_ids, strict=True)}

    def load(self) -> None:
        """Read keys and flags, and the rows if they are kept."""
        key = self._schema.primary_key
        parts = list(self._scan(self._schema.columns.names if self._keep else list(key)))
        batches = [batch for batch, _ in parts]
        self.flags = _one_mask([flags for _, flags in parts])
        for name in key:
            column = pa.chunked_array([batch.column(name) for batch in batches], self._schema.memory.field(name).type)
            self.keys.append(one_array(column))
        if any(column.null_count for column in self.keys):
            raise CorruptDataError(
                f"{self._action}: a key is null", path=paths.sstable_dir(self.shard_id, self.sstable.path)
            )
        if self._keep:
            self._rows = batches

    def chosen(self, mask: _Mask | None) -> Iterator[_Chosen]:
        """All rows with the table's columns, streaming, and which of them `mask` chooses (None: every one)."""
        batches: Iterable[pa.RecordBatch] | None = self._rows
        if batches is None:
            batches = (batch for batch, _ in self._scan(self._schema.columns.names))
        start = 0
        for batch in batches:
            yield batch, None if mask is None else mask[start : start + batch.num_rows]
            start += batch.num_rows
        if mask is not None and start != len(mask):
            raise CorruptDataError(
                "two reads of a generation differ", path=paths.sstable_dir(self.shard_id, self.sstable.path)
            )

    @property
    def is_in_memory(self) -> bool:
        """Whether the rows are kept."""
        return self._rows is not None

    def _scan(self, columns: Sequence[str]) -> Iterator[tuple[pa.RecordBatch, _Mask]]:
        """The newest rows with `columns` and their flags, from the data file or, if that is not enough, the dataset."""
        if self._file is None and self._dataset is None:
            self._file = simple_file(self._location, self.shard_id, self.sstable)
        known = self._columns()
        names = self._stored_names(known)
        stored = [*(name for column in columns if (name := names[column]) is not None), TOMBSTONE]
        wanted = pa.schema([self._schema.memory.field(name) for name in columns])
        directory = paths.sstable_dir(self.shard_id, self.sstable.path)
        with lance_reading(self._location, self._action, directory):
            for batch in self._stored_batches(stored):
                if batch.num_rows:
                    yield self._conform(batch, wanted, names, known), tombstone_flags(batch)

    def _columns(self) -> Mapping[str, FieldId]:
        """The columns of the generation, with the ids of all fields."""
        if self._file is not None:
            return self._file.columns
        fields = {field.name(): FieldId.of(field) for field in self._open().lance_schema.fields()}
        check_has_flags(fields, paths.sstable_dir(self.shard_id, self.sstable.path))
        # `_tombstone` has the id behind the last column's, which the next column that the table gets has too.
        return {name: ids for name, ids in fields.items() if name != TOMBSTONE}

    def _stored_batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        if self._file is not None:
            return self._file.batches(columns, self._batch_rows)
        return self._dataset_batches(columns)

    def _dataset_batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        dataset, rows = self._open(), self._batch_rows
        for start in range(0, dataset.count_rows(), rows):  # a single scan would read the whole file ahead
            scanner = dataset.scanner(columns=columns, limit=rows, offset=start)
            yield from scanner.to_batches()

    @property
    def _batch_rows(self) -> int:
        """Rows that make about eight megabytes."""
        size_bytes, rows = self.sstable.in_memory_bytes, self.sstable.physical_rows
        width = size_bytes // rows if size_bytes and rows else 1
        return min(_MAX_BATCH_ROWS, max(1, _BATCH_BYTES // max(1, width)))

    def _conform(
        self, batch: pa.RecordBatch, wanted: pa.Schema, names: Mapping[str, str | None], known: Mapping[str, FieldId]
    ) -> pa.RecordBatch:
        arrays = []
        path = paths.sstable_dir(self.shard_id, self.sstable.path)
        for field in wanted:
            name = names[field.name]
            stored = None if name is None else tagged(batch.schema.field(name), known[name])
            fit = fit_of(stored, field, self._schema.ids_of(field.name), path=path)
            arrays.append(nulls(batch.num_rows, field.type) if name is None else fit.apply(batch.column(name)))
        if not arrays:  # an append-only table asked for its keys: it has none, but it has rows
            return pa.RecordBatch.from_struct_array(pa.array([{}] * batch.num_rows, type=pa.struct([])))
        return pa.RecordBatch.from_arrays(arrays, schema=wanted)


@dataclass(frozen=True, slots=True)
class Folded:
    """Newest rows of several generations: what to delete in the base table, and what to insert or replace there.

    `keys` are those of both, some of them twice, composite ones encoded; none without a primary key.
    """

    deletes: pa.Table
    keys: pa.Array
    _parts: tuple[tuple[Generation, _Mask | None], ...]
    rows: int

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows to write, as batches of the base table's schema; many small ones are joined, which Lance likes."""
        waiting: list[_Chosen] = []
        size_bytes = 0
        enough = 1 if any(_has_dictionary(field.type) for field in schema) else _JOINED_BYTES  # Arrow cannot join these
        for batch, mask in _read_ahead([(part, mask) for part, mask in self._parts if mask is None or mask.any()]):
            waiting.append((pa.RecordBatch.from_arrays(batch.columns, schema=schema), mask))
            size_bytes += batch.nbytes
            if size_bytes >= enough:
                yield from _joined(waiting)
                waiting, size_bytes = [], 0
        if waiting:
            yield from _joined(waiting)


def _joined(parts: Sequence[_Chosen]) -> Iterator[pa.RecordBatch]:
    """The chosen rows of all parts as one batch; nothing if there are none."""
    whole = pa.concat_batches([batch for batch, _ in parts]) if len(parts) > 1 else parts[0][0]
    mask = _one_mask([np.ones(len(batch), dtype=np.bool_) if mask is None else mask for batch, mask in parts])
    chosen = whole if mask.all() else whole.filter(pa.array(mask))
    if chosen.num_rows:
        yield chosen


def _has_dictionary(kind: pa.DataType) -> bool:
    return pa.types.is_dictionary(kind) or any(_has_dictionary(kind.field(i).type) for i in range(kind.num_fields))


def _read_ahead(parts: Sequence[tuple[Generation, _Mask | None]]) -> Iterator[_Chosen]:
    """The rows of all parts in order; while one is consumed, the next ones are read.

    Several generations are only ever folded together if they fit the memory limit together.
    """
    if len(parts) < 2 or all(generation.is_in_memory for generation, _ in parts):
        for generation, mask in parts:
            yield from generation.chosen(mask)
        return
    for rows in in_order(lambda part: list(part[0].chosen(part[1])), parts, _LOAD_AT_ONCE, "memwal-fold"):
        yield from rows


def fold_newest(generations: Sequence[Generation], schema: TableSchema) -> Folded:
    """The newest row per key over `generations`, which ascend within each shard."""
    _load(generations)
    by_shard: dict[str, list[Generation]] = {}
    for generation in generations:
        by_shard.setdefault(generation.shard_id, []).append(generation)
    live: list[tuple[Generation, _Mask]] = []
    dead: list[tuple[Generation, _Mask]] = []
    keys: list[pa.Array] = []
    for members in by_shard.values():
        own = [key_array(member.keys) for member in members]
        keys += own
        for member, mask in zip(members, newest_of_each(own), strict=True):
            live.append((member, mask & ~member.flags))
            dead.append((member, mask & member.flags))
    if len(by_shard) > 1:
        live = _once_over_shards(live)
    key_schema = pa.schema([schema.columns.field(name) for name in schema.primary_key])
    deletes = [
        pa.Table.from_arrays([column.filter(pa.array(mask)) for column in member.keys], schema=key_schema)
        for member, mask in dead
        if mask.any()
    ]
    return Folded(
        deletes=_each_once(pa.concat_tables(deletes).combine_chunks()) if deletes else no_rows(key_schema),
        keys=concat_keys(keys),
        _parts=tuple(live),
        rows=sum(int(mask.sum()) for _, mask in live),
    )


def fold_all(generations: Sequence[Generation], schema: TableSchema) -> Folded:
    """Every row of `generations`, in their order: for tables without a primary key."""
    del schema
    rows = sum(generation.sstable.physical_rows or 0 for generation in generations)
    return Folded(pa.table({}), pa.nulls(0), tuple((generation, None) for generation in generations), rows)


def _load(generations: Sequence[Generation]) -> None:
    for _ in in_order(lambda generation: generation.load(), generations, _LOAD_AT_ONCE, "memwal-fold"):
        pass


def _once_over_shards(live: list[tuple[Generation, _Mask]]) -> list[tuple[Generation, _Mask]]:
    """`live` without the rows of a key that a later member has too."""
    chosen = [key_array(member.keys).filter(pa.array(mask)) for member, mask in live]
    kept = []
    for (member, mask), stays in zip(live, newest_of_each(chosen), strict=True):
        thinned = mask.copy()
        thinned[np.flatnonzero(mask)] = stays
        kept.append((member, thinned))
    return kept


def _each_once(keys: pa.Table) -> pa.Table:
    """`keys` without repetitions: several shards may have deleted one."""
    last = last_of_each(key_array(keys.columns))
    return keys if len(last) == keys.num_rows else keys.take(pa.array(last))


def _one_mask(parts: Sequence[_Mask]) -> _Mask:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.bool_)
