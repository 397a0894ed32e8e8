"""A table as a dict with a history: what every read must say, now and as of then.

Owns `Model`, `Moment` and `Mirror`. A row is a dict; of a table without a key every row is kept under a number of its own.
Invariants:

1. A row that a write makes has a `v` that no other row has, except where a test writes the same row twice on purpose.
2. A moment may be gone only if somebody collected after it, when storage had changed since. Nothing else is an excuse.
3. Who follows the feed from a moment on has what the table has, except for keys that are `foreign` to it: somebody wrote
   them straight to the base table since, and the log does not tell.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]
Key = tuple[Any, ...]
Storage = tuple[int, dict[str, int]]
"""The version of the base table, and that of every shard's manifest."""

FILTERS: dict[str | None, Callable[[Row], bool]] = {
    None: lambda row: True,
    "v % 2 = 0": lambda row: row["v"] % 2 == 0,
    "v > 40": lambda row: row["v"] > 40,
    "s is null": lambda row: row["s"] is None,
    "s = 'even'": lambda row: row["s"] == "even",
    "v between 10 and 60 and s is not null": lambda row: 10 <= row["v"] <= 60 and row["s"] is not None,
}


@dataclass(slots=True)
class Moment:
    """The rows and columns at a time, and the names by which the table knows it: what `Table.at` takes.

    The rows are its own: columns come and go later. `storage` is what storage had come to by then, in versions of manifests;
    `passed` says that something was collected at a later one, so that what is not kept may be gone.
    """

    rows: dict[Key, Row]
    columns: tuple[str, ...]
    at: Any
    kept: bool
    storage: Storage
    foreign: set[Key] = field(default_factory=set)
    passed: bool = False


@dataclass(slots=True)
class Mirror:
    """What a consumer of the changes has made of them."""

    rows: dict[Key, Row] = field(default_factory=dict)
    foreign: set[Key] = field(default_factory=set)


class Model:
    def __init__(self, key: Sequence[str], columns: Sequence[str]) -> None:
        self.key = tuple(key)
        self.columns = list(columns)
        self.rows: dict[Key, Row] = {}
        self.noted: dict[Key, int] = {}  # of every key the highest sequence, deletes included
        self.is_past_the_log = False  # whether somebody wrote to the base table alone
        self.mirrors: dict[str, Mirror] = {}  # of consumers, by their names
        self.written: set[int] = set()  # the `v` of every row that was ever written to the log
        self.transactions: dict[str, dict[str, int]] = {}  # by shard and application
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
            self.written.add(row["v"])
        return sorted(refused)

    def delete(self, keys: Iterable[Key]) -> int:
        """Take keys out; returns how many were there."""
        return len([key for key in dict.fromkeys(keys) if self.rows.pop(key, None) is not None])

    def write_past_the_log(self, rows: Iterable[Row]) -> None:
        """Rows that somebody put into the base table."""
        self.is_past_the_log = True
        for row in rows:
            key = self.key_of(row)
            self.rows[key] = dict.fromkeys(self.columns) | row
            for since in (*self.moments, *self.mirrors.values()):
                since.foreign.add(key)

    def note_transaction(self, shard_id: str, application: str, version: int) -> None:
        self.transactions.setdefault(shard_id, {})[application] = version

    def matching(self, where: str | None) -> list[Row]:
        """The rows for which one of `FILTERS` is true."""
        return [row for row in self.rows.values() if FILTERS[where](row)]

    def add_column(self, name: str) -> None:
        self.columns.append(name)
        for row in self.rows.values():
            row[name] = None

    def drop_column(self, name: str) -> None:
        """Forget a column; moments keep it."""
        self.columns.remove(name)
        for row in self.rows.values():
            row.pop(name, None)

    def remember(self, at: Any, storage: Storage, *, kept: bool) -> None:
        """Keep this moment; `kept`: the table promised to keep it. `storage` is from before it, since background work goes on."""
        rows = {key: dict(row) for key, row in self.rows.items()}
        self.moments.append(Moment(rows, tuple(self.columns), at, kept, storage))

    def collected(self, storage: Storage) -> None:
        """Somebody has collected; `storage` is from after it. Where nothing changed since a moment, that one has all it had."""
        for moment in self.moments:
            moment.passed = moment.passed or moment.storage != storage

    def moment(self, which: int) -> Moment | None:
        return self.moments[which % len(self.moments)] if self.moments else None

    def forget(self, moment: Moment) -> None:
        self.moments = [kept for kept in self.moments if kept is not moment]
