"""Keys that are bytes, each in a slot that its code chooses: which rows are the only one of their key, and where a key is.

Owns `KeySlots`: what a hash table is for one key, for arrays of them. Invariants:

1. A slot proposes one key, whose code is compared, and then the key itself: no answer depends on codes alone.
2. Keys that share a slot with another one go to a next, smaller table, where their codes choose other slots. Of those that
   are left after the last table (somebody may have searched for keys with equal codes) Arrow finds the equal ones.
3. Before a key is looked for, its end is: most keys that are not ours end otherwise, and cost one word each.
4. All rows of one key have the same code, so they are in one slot of every table: one stays, the others go with it.

    keys a, b, a, c with the slots 1, 2, 1, 2: the first table has 1: row 2 (a), 2: row 3 (c); row 0 is the same as row 2
    and goes, row 1 is another key than row 3 and is in the next table
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_memwal.rows.key_codes import BLOCK_ROWS, hash_codes, tail_codes

SLOT_BYTES_PER_KEY = 64
_TABLES = 12
_FEWEST_BITS = 4
_FILTER_BITS = 4  # more than a key for each would need: so few other keys pass the filter
_FEW_SHARE = 2
_ODD = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1

_Rows = npt.NDArray[np.int64]
_Codes = npt.NDArray[np.uint64]


class KeySlots:
    """Where each of some keys is: texts or binaries without nulls. Of equal ones the last counts, or the first."""

    __slots__ = ("_codes", "_filter", "_keys", "_left", "_tables", "_tails", "rows")

    def __init__(self, keys: pa.Array, *, keep_first: bool = False) -> None:
        self._keys = keys
        self._codes = hash_codes(keys)
        self._filter: npt.NDArray[np.bool_] | None = None
        self._tails: npt.NDArray[np.bool_] | None = None
        self._tables: list[_Rows] = []
        chosen, left = [], np.arange(len(keys))
        while len(left) and len(self._tables) < _TABLES:
            placed, left = self._place(left, keep_first=keep_first)
            chosen.append(placed)
        self._left = _one_of_each(keys, left, keep_first=keep_first)
        self.rows: _Rows = np.sort(np.concatenate([*chosen, self._left]))
        """The rows that count, ascending."""

    def _place(self, rows: _Rows, *, keep_first: bool) -> tuple[_Rows, _Rows]:
        """Make the next table: the rows that are in it, and those that it has no place for."""
        number, bits = len(self._tables), max(_FEWEST_BITS, len(rows).bit_length() + 1)
        slots = _slots(self._codes[rows], number, bits)
        if keep_first:
            table = np.full(1 << bits, len(self._codes), np.int64)
            np.minimum.at(table, slots, rows)
            table[table == len(self._codes)] = -1
        else:
            table = np.full(1 << bits, -1, np.int64)
            np.maximum.at(table, slots, rows)
        self._tables.append(table)
        best = table[slots]
        placed = best == rows
        rest, best = rows[~placed], best[~placed]
        return rows[placed], rest[~self._is_same(rest, best)]

    def _is_same(self, rows: _Rows, others: _Rows) -> npt.NDArray[np.bool_]:
        same: npt.NDArray[np.bool_] = self._codes[rows] == self._codes[others]
        same[same] = _equal(self._keys, rows[same], self._keys, others[same])
        return same

    def find(self, keys: pa.Array) -> _Rows:
        """Per key, without nulls, the row that counts of the same one, or -1."""
        found = np.full(len(keys), -1, np.int64)
        some = self._with_a_tail_of_ours(keys)
        if len(some) * _FEW_SHARE <= len(keys):
            found[some] = self._find(keys.take(pa.array(some)))
            return found
        return self._find(keys)

    def _find(self, keys: pa.Array) -> _Rows:
        codes = hash_codes(keys)
        found = np.full(len(keys), -1, np.int64)
        asked = self._not_excluded(codes)
        for number, table in enumerate(self._tables):
            if not len(asked):
                return found
            at = table[_slots(codes[asked], number, len(table).bit_length() - 1)]
            taken = at >= 0
            asked, at = asked[taken], at[taken]
            same = self._codes[at] == codes[asked]
            same[same] = _equal(keys, asked[same], self._keys, at[same])
            found[asked[same]] = at[same]
            asked = asked[~same]
        if len(self._left) and len(asked):
            which = pc.index_in(keys.take(pa.array(asked)), value_set=self._keys.take(pa.array(self._left)))
            places = np.asarray(which.fill_null(-1).to_numpy(zero_copy_only=False))
            found[asked] = np.where(places >= 0, self._left[places], -1)
        return found

    def _with_a_tail_of_ours(self, keys: pa.Array) -> _Rows:
        """Those of some keys that end as one of ours does, and a few more: to look at the rest of the others is in vain."""
        bits = max(_FEWEST_BITS, len(self.rows).bit_length() + _FILTER_BITS)
        if self._tails is None:
            flags = np.zeros(1 << bits, np.bool_)
            flags[_slots(tail_codes(self._keys), _TABLES, bits)] = True
            self._tails = flags
        flags = self._tails
        blocks = [keys.slice(start, BLOCK_ROWS) for start in range(0, len(keys), BLOCK_ROWS)]
        passed = [flags[_slots(tail_codes(block), _TABLES, bits)] for block in blocks]
        return np.flatnonzero(np.concatenate(passed)) if passed else np.empty(0, np.int64)

    def _not_excluded(self, codes: _Codes) -> _Rows:
        """Those of some codes that may be among ours: one look into a table of flags excludes most others."""
        bits = max(_FEWEST_BITS, len(self.rows).bit_length() + _FILTER_BITS)
        if self._filter is None:
            flags = np.zeros(1 << bits, np.bool_)
            flags[_slots(self._codes[self.rows], _TABLES, bits)] = True
            self._filter = flags
        return np.flatnonzero(self._filter[_slots(codes, _TABLES, bits)])


def _slots(codes: _Codes, number: int, bits: int) -> npt.NDArray[np.intp]:
    """The slots that codes choose in the table of this number, which has 2^bits."""
    factor = np.uint64(_ODD * (2 * number + 1) & _MASK)
    return ((codes * factor) >> np.uint64(64 - bits)).astype(np.intp)


def _equal(keys: pa.Array, rows: _Rows, others: pa.Array, other_rows: _Rows) -> npt.NDArray[np.bool_]:
    if not len(rows):
        return np.empty(0, np.bool_)
    same = pc.equal(keys.take(pa.array(rows)), others.take(pa.array(other_rows)))
    return np.asarray(same.to_numpy(zero_copy_only=False))


def _one_of_each(keys: pa.Array, rows: _Rows, *, keep_first: bool) -> _Rows:
    """One row of each key among these rows."""
    if not len(rows):
        return rows
    rows = rows if keep_first else rows[::-1]
    codes = np.asarray(keys.take(pa.array(rows)).dictionary_encode().indices.to_numpy())
    return rows[np.unique(codes, return_index=True)[1]]
