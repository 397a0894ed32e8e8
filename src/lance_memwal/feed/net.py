"""The last change of each key between two cursors.

Owns `net_changes`. The logs are read twice: once for the keys alone, then for the rows. Invariants:

1. One row per key, the newest one of the span; a table without a key has no such thing, and every row counts.
2. Memory grows with the number of keys that changed in one shard, not with the number of changes, and never with rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_memwal.feed.changed_rows import ChangedRows
from lance_memwal.rows.keys import concat_keys, key_array, last_of_each

__all__ = ["net_changes"]

_REDUCE_ROWS = 1 << 20

Read = Callable[[], Iterator[ChangedRows]]


def net_changes(keys: Read, rows: Read, primary_key: tuple[str, ...]) -> Iterator[ChangedRows]:
    """The newest change per key of one shard; `keys` gives the changes with their key columns, `rows` with all."""
    if not primary_key:
        yield from rows()
        return
    winners = _winners(keys(), primary_key)
    start = at = 0
    for changes in rows():
        end = int(np.searchsorted(winners, start + changes.num_rows))
        chosen = winners[at:end] - start
        start, at = start + changes.num_rows, end
        if len(chosen):
            yield changes if len(chosen) == changes.num_rows else changes.take(chosen)


def _winners(changes: Iterator[ChangedRows], primary_key: tuple[str, ...]) -> npt.NDArray[np.int64]:
    """The numbers of the rows that are the last ones of their key, ascending."""
    parts: list[pa.Array] = []
    numbers: list[npt.NDArray[np.int64]] = []
    total = held = kept = 0
    for found in changes:
        parts.append(key_array([found.rows.column(name) for name in primary_key]))
        numbers.append(np.arange(total, total + found.num_rows))
        total, held = total + found.num_rows, held + found.num_rows
        if held > 2 * kept + _REDUCE_ROWS:
            parts, numbers = _reduced(parts, numbers)
            held = kept = len(numbers[0])
    return _reduced(parts, numbers)[1][0] if parts else np.empty(0, dtype=np.int64)


def _reduced(
    parts: list[pa.Array], numbers: list[npt.NDArray[np.int64]]
) -> tuple[list[pa.Array], list[npt.NDArray[np.int64]]]:
    """Each key once, with the number of its last row."""
    keys = concat_keys(parts)
    last = last_of_each(keys)
    return [keys.take(pa.array(last))], [np.concatenate(numbers)[last]]
