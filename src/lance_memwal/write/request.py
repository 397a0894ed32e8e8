"""One write of a caller as a value, and the write verbs over one abstract method that applies it.

Entry points: `Write`, `Writable`; `apply_to` and `begin_on` apply a write from another module.

Invariants:

1. What arguments a verb takes, and which go together, is decided once, in `Write`.
2. The rows of a `Write` can be read more than once: a write may be routed, retried and fitted to new columns.
3. A verb has one signature and one body, so that it takes the same arguments and gives the same result everywhere.
4. `Writable` holds no state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import pyarrow as pa

from lance_memwal.arguments import check_choice, check_flag
from lance_memwal.errors import InvalidInputError
from lance_memwal.log.transactions import as_transaction
from lance_memwal.rows.filter import FilterLike
from lance_memwal.rows.fit import Missing
from lance_memwal.rows.ingest import reread, with_rows
from lance_memwal.rows.merging import LastWrite, Merge
from lance_memwal.rows.schema import TableSchema
from lance_memwal.types import Transaction
from lance_memwal.write import changes
from lance_memwal.write.changes import Change, Settings, Terms
from lance_memwal.write.fitting import Fitting
from lance_memwal.write.results import WriteResult
from lance_memwal.write.writes import Ack

Kind = Literal["put", "insert", "update", "delete", "compare_and_set", "append"]


@dataclass(frozen=True, slots=True)
class Write:
    """One write of a caller, with its arguments checked.

    `rows` are the rows, the keys of a delete, or the new row of `compare_and_set`. `found` are the keys of the rows for
    which `where` of an update or a delete was true when it was routed; None: not looked up yet. An `append` has the rows of
    a sink, with a column `_tombstone`, and `terms`.
    """

    kind: Kind
    rows: Any = None
    missing: Missing | None = None
    if_absent: bool = False
    where: FilterLike | None = None
    set: Mapping[str, str] | None = None
    values: Mapping[str, Any] | None = None
    insert: bool = False
    count: bool = False
    sequence: Any = None
    txn: Transaction | None = None
    key: Any = None
    expected: Any = None
    found: pa.Table | None = None
    terms: Terms | None = None

    def __post_init__(self) -> None:
        """Refuse arguments that do not go together."""
        if not isinstance(self.rows, (list, dict)):
            object.__setattr__(self, "rows", reread(self.rows))
        match self.kind:
            case "put":
                if self.if_absent is not False:
                    check_flag("if_absent", self.if_absent)
                if self.missing is not None:
                    check_choice("missing", self.missing, ("error", "null", "keep"))
            case "update":
                sets = self.set is not None or self.values is not None
                has_filter = self.where is not None
                if (
                    sets != has_filter
                    or sets == (self.rows is not None)
                    or (check_flag("insert", self.insert) and sets)
                ):
                    raise InvalidInputError("give rows to update, or where= with set= or values=")
            case "delete":
                check_flag("count", self.count)
                if (self.rows is None) == (self.where is None) or (
                    self.where is not None and self.sequence is not None
                ):
                    raise InvalidInputError("give keys to delete, or where=")
            case "compare_and_set":
                object.__setattr__(self, "expected", reread(self.expected))

    @property
    def by_filter(self) -> bool:
        """Whether it updates or deletes the rows for which `where` is true."""
        return self.where is not None and self.kind != "put"

    @property
    def counts(self) -> bool:
        """Whether the result says how many live rows were found."""
        return self.kind == "update" or self.count or self.by_filter

    @property
    def is_plain(self) -> bool:
        """Whether it is a put or a delete without conditions."""
        return not self.needs_lookup(None)

    def needs_lookup(self, merge: Merge | None) -> bool:
        """Whether the result depends on live rows, in a table with this merge. Only this method decides it."""
        if self.kind == "put":
            return merge is not None or self.if_absent or self.where is not None or self.missing == "keep"
        if self.kind == "delete":
            has_conditions = self.where is not None or self.count or self.sequence is not None
            return has_conditions or isinstance(merge, LastWrite)
        return True

    def refuse_lookup(self, merge: Merge | None) -> None:
        """Raise if it needs a lookup, for verbs that do none."""
        if self.needs_lookup(merge):
            raise InvalidInputError(f"{self.kind}_nowait looks no rows up, and the table has merge=: use {self.kind}")

    def settings(self, schema: TableSchema) -> Settings:
        """What an update by a filter sets columns to; `InvalidInputError` if that does not fit the table."""
        return Settings.of(self.set, self.values, schema)

    def part(self, rows: Any, sequence: Any = None) -> Write:
        """The same write for some of its rows or keys; `sequence` as the column has it."""
        return replace(self, rows=rows, sequence=sequence)

    def part_of_found(self, keys: pa.Table) -> Write:
        """The same write by a filter for some of the rows that it found."""
        return replace(self, found=keys)

    def change(self) -> Callable[[Fitting], Change]:
        """The write as a change of live rows, which depends on the columns of the shard."""
        if self.found is not None and self.where is not None:
            if self.kind == "delete":
                return changes.deleted_where(self.found, self.where)
            return changes.updated_where(self.found, self.where, self.settings)
        match self.kind:
            case "put":
                return changes.put(self.rows, self.missing, if_absent=self.if_absent, where=self.where)
            case "insert":
                return changes.insert(self.rows)
            case "update":
                return changes.update(self.rows, insert=self.insert)
            case "delete":
                return changes.delete(self.rows, count=self.count, sequence=self.sequence)
            case "compare_and_set":
                return changes.compared(self.key, self.expected, self.rows)
        return changes.appended(with_rows(self.rows), self.terms or Terms())


class Writable(ABC):
    """The write verbs over one abstract method that applies a `Write`."""

    @abstractmethod
    def _apply(self, write: Write) -> WriteResult:
        """Apply a write and return what it did."""

    def put(
        self,
        rows: Any,
        *,
        missing: Missing | None = None,
        if_absent: bool = False,
        where: FilterLike | None = None,
        txn: Transaction | tuple[str, int] | None = None,
    ) -> WriteResult:
        """Write rows, replacing existing rows with the same key. A table without a primary key keeps all rows.

        The write is atomic per shard. It is durable when it returns, unless the writer was opened with
        `durable_write=False`.

        Args:
            rows: A dict, a list of dicts, dataclasses, or anything Arrow-like.
            missing: What to do with columns that the rows leave out. None refuses them on a table with a primary key and
                makes them null on one without; "keep" leaves the values of the existing rows; "null" makes them null.
            if_absent: Write only rows whose key does not exist. The result names the others in `rejected`.
            where: A condition under which a row replaces the existing one. `name` is a column of the existing row,
                `excluded.name` that of the new row. Rows whose key does not exist are written.
            txn: `(application, version)`. A shard applies each version of an application once and skips repeats. A write
                that writes no row does not record its transaction.

        Raises:
            InvalidInputError: The rows do not fit the table. Nothing was written.
            FencedError: Another writer claimed the shard. The rows were not written.
            UnavailableError: Storage failed. If `ambiguous` is set, the rows may have been written.
        """
        return self._apply(Write("put", rows, missing, if_absent, where, txn=as_transaction(txn)))

    def insert(self, rows: Any, *, txn: Transaction | tuple[str, int] | None = None) -> WriteResult:
        """Write rows whose keys do not exist.

        Args:
            rows: As those of `put`, with all columns.
            txn: As that of `put`.

        Raises:
            InvalidInputError: A key exists or occurs twice, and nothing was written to its shard; or the table has no
                primary key; or the rows do not fit the table.
            FencedError: As for `put`.
            UnavailableError: As for `put`.
        """
        return self._apply(Write("insert", rows, txn=as_transaction(txn)))

    def update(
        self,
        rows: Any = None,
        *,
        where: FilterLike | None = None,
        set: Mapping[str, str] | None = None,  # noqa: A002
        values: Mapping[str, Any] | None = None,
        insert: bool = False,
        txn: Transaction | tuple[str, int] | None = None,
    ) -> WriteResult:
        """Change columns of existing rows. All other columns keep their values, whatever other threads write.

        Give `rows`, or `where` with `set`, `values` or both. The result counts the existing rows in `matched`.

        Args:
            rows: Keys and the columns to change; dicts may have different columns. If the table is sharded by a column
                that is not part of the key, rows need that column.
            where: A filter. All rows for which it is true are changed; `"true"` changes every row.
            set: SQL expressions over the columns of the existing row, by column.
            values: New values by column.
            insert: Insert rows whose key does not exist, with null in the columns that they leave out.
            txn: As that of `put`.

        Raises:
            InvalidInputError: A key does not exist and `insert` is not set, and nothing was written to its shard; or the
                arguments do not fit the table or each other.
            FencedError: As for `put`.
            UnavailableError: As for `put`.
        """
        return self._apply(
            Write("update", rows, where=where, set=set, values=values, insert=insert, txn=as_transaction(txn))
        )

    def delete(
        self,
        keys: Any = None,
        *,
        where: FilterLike | None = None,
        count: bool = False,
        sequence: Any = None,
        txn: Transaction | tuple[str, int] | None = None,
    ) -> WriteResult:
        """Delete rows by primary key, or all rows for which a filter is true. Keys without a row are ignored.

        Args:
            keys: A list of values (tuples, if the key has several columns), one key, or columns: a dict, or anything
                Arrow-like. If the table is sharded by a column that is not part of the key, keys need that column.
            where: A filter. The result counts the deleted rows in `matched`.
            count: Look the keys up and count the deleted rows in `matched`.
            sequence: The sequence of this delete, on a table with `merge=LastWrite(...)`. Without it the keys need the
                sequence column.
            txn: As that of `put`.

        Raises:
            InvalidInputError: The keys do not fit the table, or the table has no primary key. Nothing was deleted.
            FencedError: As for `put`.
            UnavailableError: As for `put`.
        """
        return self._apply(Write("delete", keys, where=where, count=count, sequence=sequence, txn=as_transaction(txn)))

    def compare_and_set(
        self, key: Any, expected: Any, new: Any, *, txn: Transaction | tuple[str, int] | None = None
    ) -> bool:
        """Make `new` the row of `key` if its row is `expected`; return whether it was.

        Args:
            key: As that of `get`.
            expected: The whole row, or None for no row. A blob column that is left out is not compared.
            new: The whole row, or None to delete it. A blob column that is left out keeps its value.
            txn: As that of `put`. A repeat of a call that changed the row returns True.

        Raises:
            InvalidInputError: A row is not whole, or has another key.
            FencedError: As for `put`.
            UnavailableError: As for `put`.
        """
        done = self._apply(Write("compare_and_set", new, key=key, expected=expected, txn=as_transaction(txn)))
        return done.skipped or done.written > 0


class NowaitWritable(Writable):
    """The verbs of writers that do not wait for storage."""

    @abstractmethod
    def _begin(self, write: Write, *, drain: bool = True) -> Ack:
        """Insert the rows of a plain write. Without `drain` the log entry is left to the next call that waits."""

    def put_nowait(self, rows: Any) -> Ack:
        """Write rows as `put` does, and return before they are durable.

        Reads of this process see the rows when it returns. `Ack.wait` returns when they are on storage.

        Args:
            rows: As those of `put`.

        Raises:
            InvalidInputError: The rows do not fit the table, or the table has a merge: it must look rows up.
        """
        return self._begin(Write("put", rows))

    def delete_nowait(self, keys: Any) -> Ack:
        """Delete rows by primary key as `delete` does, and return before that is durable; see `put_nowait`.

        Args:
            keys: As those of `delete`.

        Raises:
            InvalidInputError: The keys do not fit the table, or the table has `merge=LastWrite(...)`.
        """
        return self._begin(Write("delete", keys))


def apply_to(writer: Writable, write: Write) -> WriteResult:
    """Apply a write to `writer`."""
    return writer._apply(write)  # noqa: SLF001  # the verbs are its public form


def begin_on(writer: NowaitWritable, write: Write, *, drain: bool) -> Ack:
    """Begin a plain write on `writer`."""
    return writer._begin(write, drain=drain)  # noqa: SLF001


def begins(writer: NowaitWritable, merge: Merge | None) -> dict[str, Callable[[Any], Ack]]:
    """By verb, what begins a plain write of rows or keys that shares its entry with others."""

    def begin(kind: Kind, rows: Any) -> Ack:
        return begin_on(writer, Write(kind, rows), drain=False)

    kinds: dict[Kind, bool] = {"put": merge is None, "delete": not isinstance(merge, LastWrite)}
    return {kind: partial(begin, kind) for kind, is_plain in kinds.items() if is_plain}
