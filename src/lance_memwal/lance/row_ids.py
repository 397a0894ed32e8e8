"""Row ids that stay: what the fragments of a table with stable row ids carry.

Owns `RowIds` and its encoding. A row keeps its id when it is replaced, and the version in which it was inserted; a new row
gets the next free id. Verified with pylance 14.0.2 (`rfcs/0002-hand-made-base-versions.md`). Invariants:

1. Every row of a fragment has an id, in the order of its rows; no live row of the table has the same.
2. Pure: who replaces whom is found by the caller.

    DataFragment  5 row ids: {1 segment ...} · 7 last changed, 9 inserted: {1 run {1 segment, 2 version} ...}
    segment       one of: 1 range {1 start, 2 end} · 5 list {3 {2 values, 8 bytes each}}
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from lance_memwal.lance import wire

_Numbers = npt.NDArray[np.uint64]
_FEW_RANGES, _ROWS_PER_RANGE = 64, 8  # many short ranges cost more than a list


@dataclass(frozen=True, slots=True)
class RowIds:
    """The ids of new rows in their order, the version in which each was inserted, and the next free id after them."""

    ids: _Numbers
    created: _Numbers
    next_id: int

    @classmethod
    def of_new_rows(cls, count: int, next_id: int, version: int) -> RowIds:
        """Of rows that replace none."""
        ids = np.arange(next_id, next_id + count, dtype=np.uint64)
        return cls(ids, np.full(count, version, dtype=np.uint64), next_id + count)

    @classmethod
    def replacing(
        cls, count: int, next_id: int, version: int, rows: npt.NDArray[np.int64], ids: _Numbers, created: _Numbers
    ) -> RowIds:
        """Of rows of which `rows` replace those with `ids`, inserted in the versions `created`."""
        is_new = np.ones(count, dtype=np.bool_)
        is_new[rows] = False
        all_ids, versions = np.empty(count, dtype=np.uint64), np.full(count, version, dtype=np.uint64)
        all_ids[rows], versions[rows] = ids, created
        added = int(is_new.sum())
        all_ids[is_new] = np.arange(next_id, next_id + added, dtype=np.uint64)
        return cls(all_ids, versions, next_id + added)

    def fields(self, start: int, end: int, version: int) -> tuple[wire.Field, ...]:
        """What a fragment of `version` with the rows from `start` to `end` carries."""
        changed = _runs(np.full(end - start, version, dtype=np.uint64))
        ids = wire.join(wire.bytes_field(1, segment) for segment in _segments(self.ids[start:end]))
        return (
            wire.bytes_field(5, ids),
            wire.bytes_field(7, changed),
            wire.bytes_field(9, _runs(self.created[start:end])),
        )


def _segments(ids: _Numbers) -> Iterator[bytes]:
    """The ids, in order: ranges where there are few of them, else a list."""
    bounds = _bounds(np.flatnonzero(ids[1:] != ids[:-1] + np.uint64(1)), len(ids))
    if len(bounds) > max(_FEW_RANGES, len(ids) // _ROWS_PER_RANGE):
        values = wire.join([wire.bytes_field(2, ids.astype("<u8").tobytes())])
        yield wire.join([wire.bytes_field(5, wire.join([wire.bytes_field(3, values)]))])
        return
    for start, end in pairwise(bounds):
        yield _range(int(ids[start]), int(ids[end - 1]) + 1)


def _runs(versions: _Numbers) -> bytes:
    """Per row a version: runs of equal ones."""
    bounds = _bounds(np.flatnonzero(versions[1:] != versions[:-1]), len(versions))
    runs = (
        wire.join([wire.bytes_field(1, _range(start, end)), wire.varint_field(2, int(versions[start]))])
        for start, end in pairwise(bounds)
    )
    return wire.join(wire.bytes_field(1, run) for run in runs)


def _bounds(last_of_run: npt.NDArray[np.int64], count: int) -> list[int]:
    return [0, *(last_of_run + 1).tolist(), count]


def _range(start: int, end: int) -> bytes:
    """The segment of a range."""
    ends = [*([wire.varint_field(1, start)] if start else []), wire.varint_field(2, end)]
    return wire.join([wire.bytes_field(1, wire.join(ends))])
