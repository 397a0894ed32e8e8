"""A table as a dict with a history: what every read must say, now and as of then.

Owns `Model` and `Moment`. A row is a dict; of a table without a key every row is kept under a number of its own. Invariants:

1. A row that a write makes has a `v` that no other row has, except where a test writes the same row twice on purpose.
2. `followed` is what a consumer of the feed must have: it sees every write of ours and of other writers of the log, and none that
   went straight to the base table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["FILTERS", "Model", "Moment", "Row"]

Row = dict[str, Any]
Key = tuple[Any, ...]

FILTERS: dict[str | None, Callable[[Row], bool]] = {
    None: lambda row: True,
    "v % 2 = 0": lambda row: row["v"] % 2 == 0,
    "v > 40": lambda row: row["v"] > 40,
    "s is null": lambda row: row["s"] is None,
    "s = 'even'": lambda row: row["s"] == "even",
    "v between 10 and 60 and s is not null": lambda row: 10 <= row["v"] <= 60 and row["s"] is not None,
}


@dataclass(frozen=True, slots=True)
class Moment:
    """The rows and columns at a time, and the names by which the table knows it: what `Table.at` takes."""

    rows: dict[Key, Row]
    columns: tuple[str, ...]
    at: Any
    kept: bool


class Model:
    """What the table must hold."""

    def __init__(self, key: Sequence[str], columns: Sequence[str]) -> None:
        self.key = tuple(key)
        self.columns = list(columns)
        self.rows: dict[Key, Row] = {}
        self.noted: dict[Key, int] = {}  # of every key the highest sequence, deletes included
        self.followed: dict[Key, int] = {}
        self.foreign: set[Key] = set()  # keys that somebody changed past the log
        self.moments: list[Moment] = []
        self._count = 0

    def key_of(self, row: Row) -> Key:
        """The key of a row, or a number of its own."""
        if self.key:
            return tuple(row[name] for name in self.key)
        self._count += 1
        return (self._count,)

    def write(self, rows: Iterable[Row], admits: Callable[[Row, Row | None], bool] = lambda *_: True) -> list[Key]:
        """Merge rows in, one after the other, columns that they lack kept (or null); returns the keys that were kept out."""
        refused = []
        for row in rows:
            key = self.key_of(row)
            old = self.rows.get(key)
            if not admits(row, old):
                refused.append(key)
                continue
            self.rows[key] = dict.fromkeys(self.columns) | (old or {}) | row
            self.followed[key] = row["v"]
        return sorted(refused)

    def delete(self, keys: Iterable[Key]) -> int:
        """Take keys out; returns how many were there."""
        gone = [key for key in dict.fromkeys(keys) if self.rows.pop(key, None) is not None]
        for key in gone:
            self.followed.pop(key, None)
        return len(gone)

    def write_past_the_log(self, rows: Iterable[Row]) -> None:
        """Rows that somebody put into the base table."""
        for row in rows:
            key = self.key_of(row)
            self.rows[key] = dict.fromkeys(self.columns) | row
            self.foreign.add(key)

    def matching(self, where: str | None) -> list[Row]:
        """The rows for which one of `FILTERS` is true."""
        return [row for row in self.rows.values() if FILTERS[where](row)]

    def remember(self, at: Any, *, kept: bool) -> None:
        """Keep this moment; `kept`: the table promised to keep it."""
        self.moments.append(Moment(dict(self.rows), tuple(self.columns), at, kept))
