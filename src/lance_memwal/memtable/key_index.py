"""The primary-key index of a memtable: the newest row of every key, for any capture of its rows.

Owns `KeyIndex` and the hashable form of keys. Invariants:

1. Rows of one key are linked in both directions, so that a capture of fewer rows is answered from the same index.
2. It grows with the rows. An interrupted `extend` is made good by the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_memwal.rows.key_encoding import comparable

_INDEX_BYTES_PER_KEY = 160
_LAST = np.iinfo(np.int64).max


def key_values(arrays: Sequence[pa.Array]) -> list[Any]:
    """Hashable keys, one per row: scalars of a single key column, tuples of several, in the form that is compared."""
    columns = [_values(array) for array in arrays]
    return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))


def _values(array: pa.Array) -> list[Any]:
    if not pa.types.is_integer(array.type):
        array = comparable(array)
    if pa.types.is_integer(array.type):
        return array.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]
    return array.to_pylist()  # type: ignore[no-any-return]


class KeyIndex:
    """Key to newest row, with links between the rows of one key, so that any capture can be answered."""

    __slots__ = ("_key_bytes", "_newer", "_newest", "_older", "num_rows")

    def __init__(self) -> None:
        self.num_rows = 0
        self._newest: dict[Any, int] = {}
        self._newer = np.empty(0, dtype=np.int64)
        self._older = np.empty(0, dtype=np.int64)
        self._key_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Resident bytes."""
        links = self._newer.nbytes + self._older.nbytes
        return len(self._newest) * _INDEX_BYTES_PER_KEY + self._key_bytes + links

    def extend(self, columns: Sequence[pa.Array]) -> None:
        """Add rows `num_rows ..` with these keys; an interrupted call is made good by the next one."""
        keys = key_values(columns)
        start, end = self.num_rows, self.num_rows + len(keys)
        self._reserve(end)
        links = self.find(keys, start)
        if len(set(keys)) < len(keys):
            links = _with_repeats(keys, links.tolist(), start)
        self._older[start:end] = links
        rows = (links >= 0).nonzero()[0]
        self._newer[links[rows]] = rows + start
        self._newest.update(zip(keys, range(start, end), strict=True))  # last: a reader may follow it at once
        self.num_rows, self._key_bytes = end, self._key_bytes + _object_bytes(columns)

    def _reserve(self, rows: int) -> None:
        if rows > len(self._newer):
            room = max(rows, 2 * len(self._newer), 1024)
            self._newer = np.concatenate([self._newer, np.full(room - len(self._newer), _LAST)])
            self._older = np.concatenate([self._older, np.full(room - len(self._older), -1)])

    def newest_mask(self, num_rows: int) -> npt.NDArray[np.bool_]:
        """Per row of a capture of `num_rows` rows: whether it is the newest of its key there."""
        return np.asarray(self._newer[:num_rows] >= num_rows)

    def find(self, keys: Sequence[Any], num_rows: int) -> npt.NDArray[np.int64]:
        """Per key: its newest row in a capture of `num_rows` rows, or -1."""
        found = list(map(self._newest.get, keys, repeat(-1)))
        rows = np.array(found, dtype=np.int64)
        return self._before(rows, num_rows) if found and max(found) >= num_rows else rows

    def find_one(self, key: Any, num_rows: int) -> int:
        """`find` for one key."""
        row = self._newest.get(key, -1)
        while row >= num_rows:
            row = int(self._older[row])
        return row

    def _before(self, rows: npt.NDArray[np.int64], num_rows: int) -> npt.NDArray[np.int64]:
        """Per row the newest of its key that is below `num_rows`, or -1."""
        while (late := rows >= num_rows).any():
            rows[late] = self._older[rows[late]]
        return rows


def _with_repeats(keys: list[Any], before: list[int], start: int) -> npt.NDArray[np.int64]:
    """Links for keys that occur more than once among the new rows."""
    latest: dict[Any, int] = {}
    linked: list[int] = []
    for row, (key, older) in enumerate(zip(keys, before, strict=True), start):
        linked.append(latest.get(key, older))
        latest[key] = row
    return np.array(linked, dtype=np.int64)


def _object_bytes(columns: Sequence[pa.Array]) -> int:
    """What the Python objects of these keys hold beyond small integers."""
    if len(columns) == 1 and pa.types.is_integer(columns[0].type):
        return 0
    sizes = (
        0 if pa.types.is_integer(c.type) or pa.types.is_boolean(c.type) else c.nbytes + 56 * len(c)
        for c in map(comparable, columns)
    )
    return sum(sizes) + (64 * len(columns[0]) if len(columns) > 1 else 0)
