"""Rows of the base table: by key, by row id.

Owns `BaseLookup`, `BaseRows` and `shown_rows`. The first lookups of a base version go through its scalar index
where there is one; after a few, or where there is none, an index of key hashes and row ids is built in memory, if it fits
the cache. Invariants:

1. A hash only ever proposes rows; the key of every proposed row is compared before it is an answer.
2. The index belongs to one version of one table; that of another version takes its place.
3. Where it does not fit, lookups are filters that Lance answers itself.
4. Rows come in shown form (`lance_memwal.rows.blobs`), whatever version the files have.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_memwal.lance.base import BaseTable, take_rows
from lance_memwal.memtable.key_index import key_values
from lance_memwal.process.cache import CACHE, SMALL_BYTES, Slot
from lance_memwal.rows.blobs import as_shown
from lance_memwal.rows.key_codes import hash_code, hash_codes
from lance_memwal.rows.keys import KeySet, as_numbers, key_array, one_array
from lance_memwal.rows.lookup_key import LookupKey
from lance_memwal.rows.normal_form import no_rows
from lance_memwal.rows.sql import in_list
from lance_memwal.types import ROW_ID

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)
_BYTES_PER_ROW = 16
_INDEX_AFTER_LOOKUPS = 8
_MANY_KEYS, _ROWS_PER_KEY = 10_000, 100
_PASSED_PER_TAKEN = 64  # rows whose keys are passed over in the time that one row is taken
_OTHER_NULLS = "2.0"  # files of this version hold a null blob as one


class BaseLookup:
    """Row lookups of one table's base, by key; follows the base version that it is asked about."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._known: tuple[object, ...] = ()
        self._asked = 0

    def find(self, base: BaseTable, keys: pa.RecordBatch, columns: Sequence[str]) -> pa.Table:
        """The rows of `base` that have one of `keys`, with `columns` and the key columns, in no order."""
        if base.dataset.count_rows() == 0 or keys.num_rows == 0:
            return _none_of(base, columns)
        return _find(base, self._index_for(base, keys.num_rows), keys, columns)

    def find_one(self, base: BaseTable, key: LookupKey, columns: Sequence[str]) -> pa.Table | None:
        """The row of `base`, which is not empty, with one key, `columns` at least; None if there is none."""
        index = self._index_for(base, 1)
        if index is None or key.whole is None:
            rows = _find(base, index, key.columns, columns)
            return rows if rows.num_rows else None
        row_ids = index.propose_one(key.whole)
        if not len(row_ids):
            return None
        if index.exact:
            return rows_by_id(base, row_ids, columns)
        rows = rows_by_id(base, row_ids, _with_key(base, columns))
        held = key_values([one_array(rows.column(name)) for name in base.primary_key])
        return rows.slice(held.index(key.held), 1) if key.held in held else None

    def row_id(self, base: BaseTable, key: pa.RecordBatch) -> int | None:
        """The row id of the row of `base` that has this one key, or None."""
        if base.dataset.count_rows() == 0:
            return None
        index = self._index_for(base, 1)
        if index is None:
            found = _by_filter(base, key, [*base.primary_key, ROW_ID]).column(ROW_ID).to_pylist()
            return found[0] if found else None
        for proposed in index.propose(key.columns):
            rows = rows_by_id(base, np.array([proposed]), base.primary_key)
            if _verified(rows, key, base.primary_key).num_rows:
                return int(proposed)
        return None

    def _index_for(self, base: BaseTable, keys: int) -> _HashIndex | None:
        with self._lock:
            version = version_of(base)
            found: _HashIndex | None = CACHE.find(_slot_of(base), version)
            if found is not None:
                return found
            if version != self._known:
                self._known, self._asked = version, 0
            self._asked += 1
            if not self._worth_building(base, keys):
                return None
            return _key_index(base)

    def _worth_building(self, base: BaseTable, keys: int) -> bool:
        if not _keys_fit(base):
            return False
        many = (
            keys * _ROWS_PER_KEY >= base.dataset.count_rows() and keys >= _MANY_KEYS
        )  # a filter would name all of them
        return many or not base.is_key_indexed or self._asked > _INDEX_AFTER_LOOKUPS


def _find(base: BaseTable, index: _HashIndex | None, keys: pa.RecordBatch, columns: Sequence[str]) -> pa.Table:
    wanted = _with_key(base, columns)
    if index is None:
        return _by_filter(base, keys, wanted)
    row_ids = index.propose(keys.columns)
    if not len(row_ids):
        return _none_of(base, columns)
    rows = rows_by_id(base, row_ids, wanted)
    return rows if index.exact else _verified(rows, keys, base.primary_key)


def _with_key(base: BaseTable, columns: Sequence[str]) -> list[str]:
    return list(dict.fromkeys([*columns, *base.primary_key]))


def _none_of(base: BaseTable, columns: Sequence[str]) -> pa.Table:
    return no_rows(pa.schema([base.columns.shown.columns.field(name) for name in _with_key(base, columns)]))


def version_of(base: BaseTable) -> tuple[object, ...]:
    """What tells one version of one table from every other."""
    return base.table_id, base.version, base.stamp  # a table made anew has versions of the same number


def is_first_time(base: BaseTable, what: str) -> bool:
    """Whether this was not asked before of this version: what pays only if it is done again, and costs memory, may wait."""
    slot: Slot = (what, base.location.key)
    if CACHE.find(slot, version_of(base)):
        return False
    CACHE.keep(slot, True, SMALL_BYTES, version_of(base))
    return True


def row_ids_of(rows: pa.Table | pa.RecordBatch) -> npt.NDArray[np.int64]:
    """The row ids of rows that Lance gave with them."""
    return np.asarray(one_array(rows.column(ROW_ID)).to_numpy()).astype(np.int64)


def _slot_of(base: BaseTable) -> Slot:
    return "base keys", base.location.key


def _keys_fit(base: BaseTable) -> bool:
    return base.dataset.count_rows() * _BYTES_PER_ROW <= CACHE.limit_bytes


def _key_index(base: BaseTable) -> _HashIndex:
    return CACHE.fetch(_slot_of(base), lambda: _HashIndex.build(base, list(base.primary_key)), version_of(base))


def ids_of_keys(base: BaseTable, keys: pa.Array) -> npt.NDArray[np.int64]:
    """The ids of all rows of `base` that have one of `keys`, in no order.

    By the index of keys in memory, where it fits and few rows are to be compared; else by one pass over the keys.
    """
    if not len(keys) or base.dataset.count_rows() == 0:
        return np.empty(0, np.int64)
    if not _keys_fit(base):
        return _ids_by_a_pass(base, KeySet(keys))
    index = _key_index(base)
    row_ids = index.propose([keys])
    if not index.exact and len(row_ids):
        if len(row_ids) * _PASSED_PER_TAKEN > base.dataset.count_rows():
            return _ids_by_a_pass(base, KeySet(keys))
        row_ids = row_ids[KeySet(keys).of_rows(rows_by_id(base, row_ids, base.primary_key), base.primary_key)]
    return row_ids.astype(np.int64)


def holds_keys(base: BaseTable) -> bool:
    """Whether there is an index of the keys of `base` in memory."""
    return CACHE.find(_slot_of(base), version_of(base)) is not None


def count_of_keys(base: BaseTable, keys: KeySet) -> int:
    """How many rows of `base` have one of `keys`, by one pass over its keys."""
    return sum(int(found.sum()) for _, found in _pass(base, keys, with_row_id=False))


def _ids_by_a_pass(base: BaseTable, keys: KeySet) -> npt.NDArray[np.int64]:
    found = [row_ids_of(batch)[rows] for batch, rows in _pass(base, keys, with_row_id=True)]
    return np.concatenate(found) if found else np.empty(0, np.int64)


def _pass(
    base: BaseTable, keys: KeySet, *, with_row_id: bool
) -> Iterator[tuple[pa.RecordBatch, npt.NDArray[np.bool_]]]:
    """All rows of `base`, their key columns alone, and which of them have one of `keys`."""
    names = list(base.primary_key)
    with base.reading("looking keys up in the base table"):
        for batch in base.dataset.scanner(columns=names, with_row_id=with_row_id, batch_size=262_144).to_batches():
            yield batch, keys.of_rows(batch, names)


def _by_filter(base: BaseTable, keys: pa.RecordBatch, wanted: list[str]) -> pa.Table:
    conditions = [in_list(name, keys.column(i), keys.column(i).type) for i, name in enumerate(base.primary_key)]
    with base.reading("looking keys up in the base table"):
        scanner = base.dataset.scanner(columns=wanted, filter=" and ".join(conditions))
        return shown_rows(base, _verified(scanner.to_table(), keys, base.primary_key))


def _verified(table: pa.Table, keys: pa.RecordBatch, key: Sequence[str]) -> pa.Table:
    found = pc.is_in(key_array(table.select(list(key)).columns), value_set=key_array(keys.columns))
    return table.filter(found)


class _HashIndex:
    """Sorted key hashes with row ids; integer keys are their own hash."""

    __slots__ = ("_hashes", "_row_ids", "exact")

    def __init__(self, hashes: npt.NDArray[np.generic], row_ids: npt.NDArray[np.uint64], *, exact: bool) -> None:
        # numbers are often in order; a merge keeps to that
        order = np.argsort(hashes, kind="stable" if exact else None)
        self._hashes = hashes[order]
        self._row_ids = row_ids[order]
        self.exact = exact

    @classmethod
    def build(cls, base: BaseTable, key: list[str]) -> _HashIndex:
        with base.reading("indexing the keys of the base table"):
            scanner = base.dataset.scanner(columns=key, with_row_id=True, batch_size=262_144)
            hashes, row_ids = [], []
            exact = True
            for batch in scanner.to_batches():
                part, exact = _hashes([batch.column(name) for name in key])
                hashes.append(part)
                row_ids.append(one_array(batch.column(ROW_ID)).to_numpy())
        return cls(np.concatenate(hashes), np.concatenate(row_ids), exact=exact)

    @property
    def size_bytes(self) -> int:
        """Resident bytes."""
        return int(self._hashes.nbytes + self._row_ids.nbytes)

    def propose_one(self, key: int | bytes) -> npt.NDArray[np.uint64]:
        """`propose` for one key, which is as `key_array` has it."""
        wanted = self._hashes.dtype.type(hash_code(key) if isinstance(key, bytes) else key)
        low, high = (int(self._hashes.searchsorted(wanted, side=side)) for side in ("left", "right"))
        return self._row_ids[low:high]

    def propose(self, keys: Sequence[pa.Array]) -> npt.NDArray[np.uint64]:
        """Row ids whose key has the hash of one of `keys`, which are columns (or whole keys, as one)."""
        wanted, _ = _hashes(keys)
        wanted = np.unique(wanted)
        low = np.searchsorted(self._hashes, wanted, side="left")
        high = np.searchsorted(self._hashes, wanted, side="right")
        if len(wanted) == 1:
            return self._row_ids[low[0] : high[0]]
        hits = np.flatnonzero(high > low)
        counts = (high - low)[hits]
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.asarray(self._row_ids[np.repeat(low[hits], counts) + within])


def _hashes(columns: Sequence[pa.Array]) -> tuple[npt.NDArray[np.generic], bool]:
    """Hashes of keys, and whether equal hashes mean equal keys."""
    keys = key_array(columns)
    numbers = as_numbers(keys)
    return (hash_codes(keys), False) if numbers is None else (numbers, True)


# ------------------------------------------------------------------------------------------------------------ by row id


def shown_rows(base: BaseTable, rows: Rows) -> Rows:
    """Rows that Lance read of `base`, with blobs as they are shown."""
    if not base.columns.blobs or base.data_storage_version != _OTHER_NULLS:
        return rows
    columns = [
        as_shown(one_array(column), fresh=False) if name in base.columns.blobs else column
        for name, column in zip(rows.schema.names, rows.columns, strict=True)
    ]
    return type(rows).from_arrays(columns, schema=rows.schema)


def rows_by_id(base: BaseTable, row_ids: npt.NDArray[Any], columns: Sequence[str]) -> pa.Table:
    """`columns` of the base rows with these ids, in that order."""
    with base.reading("reading rows of the base table"):
        return shown_rows(base, take_rows(base.dataset, row_ids.tolist(), columns))


class BaseRows:
    """Rows of the base table by row id; what a search brought along is not read again."""

    def __init__(self, base: BaseTable) -> None:
        self._base = base
        self._known: pa.Table | None = None

    def remember(self, rows: pa.Table) -> None:
        """Keep `rows`, which have `_rowid`, for `take`."""
        self._known = rows

    def take(self, rows: npt.NDArray[np.int64], columns: Sequence[str]) -> pa.Table:
        """`columns` of the rows with these ids, in that order."""
        if self._known is not None and set(columns) <= set(self._known.schema.names):
            known = row_ids_of(self._known)
            order = np.argsort(known)
            at = np.searchsorted(known, rows, sorter=order)
            at[at == len(known)] = 0
            if len(known) and (known[order[at]] == rows).all():
                return self._known.select(list(columns)).take(pa.array(order[at]))
        return rows_by_id(self._base, rows, columns)
