"""What changed between two moments, net: one row per key that differs.

Owns `diff_tiers`. Invariants:

1. A key is in the answer if, and only if, its live rows of the two moments differ; a table without a key is compared row by
   row, each as often as it is there. The columns are those of the second moment, matched by field id.
2. Only tiers that differ are looked at: SSTables that one moment has and the other has not, logs, and fragments of the base
   table that are not the same files with the same deletions. They propose keys; the live rows of both moments decide.
3. Blobs are compared by their bytes, and shown as readers see them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_memwal.feed.past_rows import as_columns_of, column_of, find_rows
from lance_memwal.lance.base import BaseTable
from lance_memwal.read.blobs import BlobFile, find_blob
from lance_memwal.read.fresh import ShardMerge
from lance_memwal.read.merge import Merge, Projection
from lance_memwal.read.tiers import ShardView, Tiers
from lance_memwal.rows.blobs import shows_blobs
from lance_memwal.rows.keys import first_of_each, key_array, one_array
from lance_memwal.rows.normal_form import no_rows
from lance_memwal.rows.row_codes import occurrences, row_codes, value_codes
from lance_memwal.types import ROW_ADDRESS

OP = "_op"
OPS = ("insert", "update", "delete")
_INSERT, _UPDATE, _DELETE = OPS
_BEFORE, _AFTER = "update_before", "update_after"
_KEYS_AT_ONCE = 1 << 17
_BLOB_PART_BYTES = 1 << 20


def diff_tiers(before: Tiers, after: Tiers, *, with_before: bool = False) -> pa.Table:
    """The rows that differ, with `_op`; deleted rows as they were, others as they became.

    With `with_before` an update is two rows, one after the other: `update_before` and `update_after`.
    """
    if not after.schema.primary_key:
        return _diff_of_rows(before, after)
    parts = [_Pairs.of(before, after, keys).changed(with_before=with_before) for keys in _proposed_keys(before, after)]
    empty = _with_op(no_rows(after.schema.nullable), "")
    return pa.concat_tables([empty, *parts]).combine_chunks()


# --------------------------------------------------------------------------------------------------- which keys differ


def _proposed_keys(before: Tiers, after: Tiers) -> Iterator[pa.RecordBatch]:
    """The keys of all tiers that differ, each once."""
    key = list(after.schema.primary_key)
    if before.schema.primary_key != after.schema.primary_key:  # the table got its key meanwhile: everything may differ
        tables = [Merge(tiers, Projection(tuple(key)), None).batches() for tiers in (before, after)]
        parts = [batch for table in tables for batch in table]
    else:
        parts = [*_keys_of_shards(before, after, key), *_keys_of_base(before.base, after.base, key)]
    found = [_plain(part, key) for part in parts if part.num_rows]
    if not found:
        return
    rows = pa.Table.from_batches(found)
    once = rows.take(pa.array(first_of_each(key_array(rows.columns)))).combine_chunks()
    yield from once.to_batches(max_chunksize=_KEYS_AT_ONCE)


def _plain(part: pa.RecordBatch, key: Sequence[str]) -> pa.RecordBatch:
    columns = [part.column(name) for name in key]
    return pa.RecordBatch.from_arrays(
        columns, schema=pa.schema([(n, c.type) for n, c in zip(key, columns, strict=True)])
    )


def _keys_of_shards(before: Tiers, after: Tiers, key: list[str]) -> Iterator[pa.RecordBatch]:
    old = {view.shard_id: view for view in before.shards}
    new = {view.shard_id: view for view in after.shards}
    for shard_id in sorted(old.keys() | new.keys()):
        pair = [(before, old.get(shard_id)), (after, new.get(shard_id))]
        listed = [set() if view is None else {s.path for s in view.sstables} for _, view in pair]
        for (tiers, view), others in zip(pair, (listed[1], listed[0]), strict=True):
            if view is not None:
                yield from _keys_of_shard(tiers, view, others, key)


def _keys_of_shard(tiers: Tiers, view: ShardView, others: set[str], key: list[str]) -> Iterator[pa.RecordBatch]:
    for ref in view.memory:
        yield from ref.table().select(key).to_batches()
    for reader in ShardMerge(view, tiers).readers:
        if reader.sstable.path not in others:
            for batch, _ in reader.batches(tiers.schema, key, None, reader.stored.part_rows):
                yield batch.select(key)


def _keys_of_base(before: BaseTable, after: BaseTable, key: list[str]) -> Iterator[pa.RecordBatch]:
    if before.version == after.version:
        return
    old, new = before.fragment_messages, after.fragment_messages
    changed = {number for number in old.keys() | new.keys() if old.get(number) != new.get(number)}
    if not changed:
        return
    old_files = {fragment.id: fragment.files for fragment in before.manifest.fragments() if fragment.id in changed}
    new_files = {fragment.id: fragment.files for fragment in after.manifest.fragments() if fragment.id in changed}
    same = {number for number in changed if old_files.get(number) == new_files.get(number)}
    yield from _keys_of(before, changed - same, key).to_batches()
    yield from _keys_of(after, changed - same, key).to_batches()
    left, right = _keys_of(before, same, key), _keys_of(after, same, key)  # of the same files other rows are deleted
    for rows, others in ((left, right), (right, left)):
        gone = ~np.isin(rows[ROW_ADDRESS].to_numpy(), others[ROW_ADDRESS].to_numpy())
        yield from rows.filter(pa.array(gone)).to_batches()


def _keys_of(base: BaseTable, fragments: set[int], key: list[str]) -> pa.Table:
    """The keys of some fragments, with row addresses."""
    schema = pa.schema([*(base.schema.field(name) for name in key), pa.field(ROW_ADDRESS, pa.uint64())])
    chosen = [f for f in base.dataset.get_fragments() if f.fragment_id in fragments]
    if not chosen:
        return no_rows(schema)
    with base.reading("comparing versions of the base table"):
        return base.dataset.scanner(columns=key, fragments=chosen, with_row_address=True).to_table()


# ------------------------------------------------------------------------------------------------------- which rows do


@dataclass(frozen=True, slots=True)
class _Pairs:
    """The live rows of some keys at two moments, in the columns of the second; -1: there is none."""

    tiers: tuple[Tiers, Tiers]
    old: pa.Table
    new: pa.Table
    old_at: npt.NDArray[np.int64]
    new_at: npt.NDArray[np.int64]

    @classmethod
    def of(cls, before: Tiers, after: Tiers, keys: pa.RecordBatch) -> _Pairs:
        old, new = (find_rows(tiers, keys, after.schema) for tiers in (before, after))
        key = list(after.schema.primary_key)
        wanted = key_array(keys.columns)
        at = [_positions(wanted, key_array(rows.select(key).columns)) for rows in (old, new)]
        return cls((before, after), old, new, at[0], at[1])

    def changed(self, *, with_before: bool) -> pa.Table:
        """The rows that differ."""
        there_before, there_after = self.old_at >= 0, self.new_at >= 0
        both = np.flatnonzero(there_before & there_after)
        both = both[~self._is_same(self.old_at[both], self.new_at[both])]
        inserted = _with_op(self.new.take(pa.array(self.new_at[~there_before & there_after])), _INSERT)
        deleted = _with_op(self.old.take(pa.array(self.old_at[there_before & ~there_after])), _DELETE)
        updated = self.new.take(pa.array(self.new_at[both]))
        if not with_before:
            return pa.concat_tables([inserted, _with_op(updated, _UPDATE), deleted])
        pairs = [_with_op(self.old.take(pa.array(self.old_at[both])), _BEFORE), _with_op(updated, _AFTER)]
        order = np.arange(2 * len(both)).reshape(2, -1).T.ravel()  # 0 2 1 3: each before its own after
        return pa.concat_tables([inserted, pa.concat_tables(pairs).take(pa.array(order)), deleted])

    def _is_same(self, old_at: npt.NDArray[np.int64], new_at: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Per pair of rows whether nothing of them differs."""
        old, new = self.old.take(pa.array(old_at)), self.new.take(pa.array(new_at))
        same = np.ones(len(old_at), dtype=bool)
        for field in self.new.schema:
            if shows_blobs(field):
                same &= self._same_blobs(field.name, old, new, same)
                continue
            codes = value_codes(pa.concat_arrays([one_array(rows.column(field.name)) for rows in (old, new)]))
            same &= codes[: len(same)] == codes[len(same) :]
        return same

    def _same_blobs(
        self, column: str, old: pa.Table, new: pa.Table, among: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.bool_]:
        names = [column_of(tiers.schema, self.tiers[1].schema, column) for tiers in self.tiers]
        key, same = list(self.tiers[1].schema.primary_key), among.copy()
        for row in np.flatnonzero(among):
            files = [
                None if name is None else find_blob(tiers, _key_at(rows, key, int(row)), name)
                for tiers, rows, name in zip(self.tiers, (old, new), names, strict=True)
            ]
            same[row] = _same_bytes(files[0], files[1])
        return same


def _key_at(rows: pa.Table, key: list[str], row: int) -> pa.RecordBatch:
    return rows.select(key).slice(row, 1).combine_chunks().to_batches()[0]


def _same_bytes(left: BlobFile | None, right: BlobFile | None) -> bool:
    if left is None or right is None:
        return left is right
    if left.size() != right.size():
        return False
    while part := left.read(_BLOB_PART_BYTES):
        if part != right.read(_BLOB_PART_BYTES):
            return False
    return True


def _positions(wanted: pa.Array, found: pa.Array) -> npt.NDArray[np.int64]:
    """Per wanted key its row among those that were found, or -1."""
    codes = value_codes(pa.concat_arrays([wanted, found]))
    rows = np.full(int(codes.max(initial=-1)) + 1, -1, dtype=np.int64)
    rows[codes[len(wanted) :]] = np.arange(len(found))
    return np.asarray(rows[codes[: len(wanted)]])


def _with_op(rows: pa.Table, op: str) -> pa.Table:
    return rows.append_column(pa.field(OP, pa.string(), nullable=False), pa.repeat(pa.scalar(op), rows.num_rows))


# ------------------------------------------------------------------------------------------------- tables without a key


def _diff_of_rows(before: Tiers, after: Tiers) -> pa.Table:
    """Rows that one moment has more often than the other."""
    old = as_columns_of(after.schema, before.schema, _rows_that_may_differ(before, after))
    new = as_columns_of(after.schema, after.schema, _rows_that_may_differ(after, before))
    names = [field.name for field in new.schema if not shows_blobs(field)]
    both = pa.concat_tables([old, new]).select(names)
    codes = row_codes(both.columns) if names else np.zeros(both.num_rows, dtype=np.int64)
    ranked = codes * (len(codes) + 1) + np.concatenate(
        [occurrences(codes[: old.num_rows]), occurrences(codes[old.num_rows :])]
    )
    left, right = ranked[: old.num_rows], ranked[old.num_rows :]
    inserted = new.filter(pa.array(~np.isin(right, left)))
    deleted = old.filter(pa.array(~np.isin(left, right)))
    return pa.concat_tables([_with_op(inserted, _INSERT), _with_op(deleted, _DELETE)]).combine_chunks()


def _rows_that_may_differ(tiers: Tiers, other: Tiers) -> pa.Table:
    """The rows of tiers that the other moment has not."""
    listed = {(view.shard_id, s.path) for view in other.shards for s in view.sstables}
    views = tuple(
        ShardView(
            view.manifest,
            view.memory,
            view.from_tail,
            tuple(s for s in view.sstables if (view.shard_id, s.path) not in listed),
        )
        for view in tiers.shards
    )
    names = tuple(tiers.schema.columns.names)
    merge = Merge(Tiers(tiers.location, tiers.schema, tiers.base, views), Projection(names), None)
    mine, others = tiers.base.fragment_messages, other.base.fragment_messages
    changed = [number for number, message in mine.items() if others.get(number) != message]
    parts = [*merge.fresh_batches(), *(merge.base_batches(changed) if changed else ())]
    return pa.Table.from_batches(parts, schema=merge.schema)
