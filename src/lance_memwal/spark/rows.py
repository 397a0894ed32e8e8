"""Rows of a DataFrame on their way to a table: operation, columns, shard, duplicates.

Owns `WritePlan`, what the driver decided about a write, and the functions that tasks and commits run with it. Invariants:

1. Everything that the schema of the DataFrame can get wrong is refused on the driver, before a task starts.
2. A row goes to the shard that the table's sharding names, whatever partition it came from.
3. `sequenceBy` names a column of the table: then it decides against the rows and deletes that the table has, as the sequence
   of a table does. Of another column it is known in one version only. Rows of one key in one version count in the order of
   the table's sequence and of `sequenceBy`; without both, duplicates
   are an error, since the order of rows inside a partition is not repeatable, unless the user says that it is.
4. If one statement both deletes keys and writes rows (`duplicates=live`), a row wins over a delete of its key, and two rows
   of one key are an error.
5. An SQL statement (`statement_on`) changes no key. Rows that it inserts are marked until the commit (`INSERTED`).
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as st

from lance_memwal.arguments import check_column
from lance_memwal.errors import InvalidInputError
from lance_memwal.lance.base import BaseTable
from lance_memwal.read.snapshot import Snapshot
from lance_memwal.rows.fit import Fitter, Missing, fills_missing, keeps_missing
from lance_memwal.rows.ingest import refuse_missing
from lance_memwal.rows.keys import KeySet, key_array, last_of_each
from lance_memwal.rows.merging import FirstRow, LastWrite, Merge, check_merge, merge_of_text, text_of_merge
from lance_memwal.rows.schema import TableSchema
from lance_memwal.rows.sharding import Sharding, sharding_of_text
from lance_memwal.spark.dialect import as_spark_reads
from lance_memwal.spark.options import Operation, Options, found, refuse_doubles
from lance_memwal.spark.types import arrow_type, refuse_time_casts, to_arrow_columns
from lance_memwal.table import Table, newest_base
from lance_memwal.types import TOMBSTONE
from lance_memwal.write.changes import Terms

OP = "_op"
SEQUENCE = "_memwal_sequence"
INSERTED = "_memwal_inserted"
_LOG = logging.getLogger(__name__)
_DELETES = pa.array(["d"])
_KNOWN_OPS = pa.array(["u", "i", "d"])
_CHANGED_KEY = "k"  # in `_op`, from `ChangeWriters.java` only
_MAX_SHOWN = 5
_POSITIONS = frozenset({"_position", "_commit_version"})
"""Columns of the change feed that count the log entries of one shard of one table."""


@functools.lru_cache(maxsize=64)  # once per process
def _warn_of_late_rows(table: str, column: str) -> None:
    _LOG.warning(
        "sequenceBy decides inside one write only: a late row of a later write wins, since the table at %s has no column %r. "
        "With such a column it decides against the table",
        table, column,
    )  # fmt: skip


def _sequence(base: BaseTable, options: Options) -> str | None:
    """The column of the table by which a write is decided against it; None where the table decides, or nothing does."""
    by = options.sequence_by
    if by is None or base.merge is not None or not base.primary_key:
        return None
    if by not in base.columns.columns.names:
        _warn_of_late_rows(base.location.describe(), by)
        return None
    try:
        check_merge(LastWrite(by), base.columns.columns, base.primary_key, base.sharding.column)
    except InvalidInputError as error:
        raise InvalidInputError(f"option 'sequenceBy': {error}") from None
    return by


def needed_for_delete(key: Sequence[str], sharding: Sharding, merge: Merge | None) -> list[str]:
    """The columns that a tombstone has: the key, and those that say to which shard it goes, and when it was."""
    names, column = list(key), sharding.column
    if isinstance(merge, LastWrite):
        names.append(merge.sequence)
    return names if column is None or column in names else [*names, column]


def _as_table_names(
    frame: st.StructType, columns: Sequence[str], *, case_sensitive: bool
) -> tuple[st.StructType, tuple[tuple[str, str], ...]]:
    """The DataFrame with the names of the table, and which ones these are; names match as Spark's resolver does it."""
    refuse_doubles(frame.names, case_sensitive=case_sensitive)
    known = [*columns, OP, TOMBSTONE]
    meant = [found(name, known, case_sensitive=case_sensitive) or name for name in frame.names]
    fields = [st.StructField(name, item.dataType, item.nullable) for name, item in zip(meant, frame, strict=True)]
    renamed = tuple((old, new) for old, new in zip(frame.names, meant, strict=True) if old != new)
    return st.StructType(fields), renamed


def _resolved(options: Options, names: Sequence[str], renamed: dict[str, str], columns: pa.Schema) -> Options:
    """The options of a write, with names as the table has them and a condition as Spark reads it."""
    exactly, by, where = options.case_sensitive, options.sequence_by, options.where
    if by is not None:
        by = found(renamed.get(by, by), names, case_sensitive=exactly)
        if by is None:
            raise InvalidInputError(f"option 'sequenceBy' names column {options.sequence_by!r}, which is not there")
        if by.lower() in _POSITIONS and by in columns.names:
            raise InvalidInputError(
                f"option 'sequenceBy' names {by!r}, which counts the log entries of one shard of one source; rows of another "
                "source would lose to the values in the column of the table; write into a table without that column"
            )
    if where is not None:
        where = as_spark_reads(
            where,
            columns,
            zone=options.time_zone,
            case_sensitive=exactly,
            instead="use MERGE INTO, which Spark evaluates",
        )
    return replace(options, sequence_by=by, where=where)


def _check_definition(base: BaseTable, options: Options) -> None:
    """Return only if the options that define a table agree with this table."""
    found = {
        "primaryKey": ",".join(base.primary_key),
        "sharding": str(base.sharding),
        "merge": text_of_merge(base.merge),
    }
    wanted = {
        "primaryKey": None if options.primary_key is None else ",".join(options.primary_key),
        "sharding": None if options.sharding is None else str(sharding_of_text(options.sharding)),
        "merge": None if options.merge is None else text_of_merge(merge_of_text(options.merge)),
    }
    for name, value in wanted.items():
        if value is not None and value.lower() != found[name].lower():
            raise InvalidInputError(
                f"option {name!r} is {value!r}, and the table has {found[name] or 'none'!r}; leave the option out, or write to "
                "another table"
            )


@dataclass(frozen=True, slots=True)
class WritePlan:
    """How rows of one DataFrame become rows of one table; small, and sent to every task."""

    options: Options
    schema: TableSchema
    sharding: Sharding
    operation: Operation
    merge: Merge | None = None
    given: frozenset[str] = frozenset()
    table_id: str | None = None
    renamed: tuple[tuple[str, str], ...] = ()  # columns that the DataFrame writes otherwise than the table
    sequence: str | None = None  # the column by which this write is decided, where the table does not decide

    @classmethod
    def make(cls, table: Table, frame: st.StructType, options: Options) -> WritePlan:
        """The plan, or `InvalidInputError` saying what of the DataFrame does not fit the table."""
        base = newest_base(table)
        base.need_details()
        key = base.primary_key
        _check_definition(base, options)
        operation = options.operation or ("upsert" if key else "append")
        if operation in ("upsert", "update", "delete") and not key:
            raise InvalidInputError(
                f"operation {operation!r} needs a primary key, which the table has not; use 'append'"
            )
        if operation == "append" and key:
            raise InvalidInputError("operation 'append' would replace rows of a table with a primary key; use 'upsert'")
        sharding = base.sharding
        if not sharding.is_routed:
            raise InvalidInputError(
                "the table has manual shards, so that rows cannot be routed; use Table.shard_writer"
            )
        frame, renamed = _as_table_names(frame, base.columns.columns.names, case_sensitive=options.case_sensitive)
        options = _resolved(options, frame.names, dict(renamed), base.columns.columns)
        given = frozenset(frame.names)
        sequence = _sequence(base, options)
        plan = cls(options, base.columns, sharding, operation, base.merge, given, base.table_id, renamed, sequence)
        plan._check(frame)
        if options.unchanged_since is not None:
            base.columns.need_key()
            Snapshot.parse(options.unchanged_since).check_table(base.tag)
        return plan

    @property
    def terms(self) -> Terms:
        """Under which terms the rows are appended; columns that become null are there already."""
        updates = self.operation == "update"
        keeps = updates or (keeps_missing(self.options.missing) and self.operation != "delete")
        options = self.options
        missing: Missing | None = "keep" if keeps else None
        return Terms(missing, options.if_absent, options.where, insert=not updates, sequence=self.sequence)

    @property
    def decides(self) -> Merge | None:
        """What decides between the rows of this write and those of the table; None: the last write wins."""
        return self.merge if self.sequence is None else LastWrite(self.sequence)

    @property
    def _keeps(self) -> bool:
        """Whether columns that the DataFrame leaves out stay as the rows have them."""
        return keeps_missing(self.terms.missing)

    @property
    def _fills(self) -> bool:
        """Whether columns that the DataFrame leaves out become null."""
        missing = None if self._keeps or self.operation == "delete" else self.options.missing
        return fills_missing(missing, self.schema)

    @property
    def order(self) -> list[str]:
        """By what rows of one key in one version are sorted; nothing: their order is that of the DataFrame."""
        merge = self.decides
        names = [merge.sequence] if isinstance(merge, LastWrite) and merge.sequence in self.given else []
        names += [SEQUENCE] if self.options.sequence_by else []
        return names

    @property
    def each_row_counts(self) -> bool:
        """Whether a row of a key matters although a later one of the same version follows."""
        return self.terms.decide_each or isinstance(self.merge, FirstRow)

    @property
    def _address(self) -> list[str]:
        """The columns that say which row is meant, and where it is."""
        names, column = list(self.schema.primary_key), self.sharding.column
        return names if column is None or column in names else [*names, column]

    @property
    def _needed_for_delete(self) -> list[str]:
        return needed_for_delete(self.schema.primary_key, self.sharding, self.decides)

    @property
    def _written(self) -> list[str]:
        """The columns that are taken from the DataFrame: a delete without a condition needs no others."""
        key_alone = self.operation == "delete" and self.options.where is None
        return self._needed_for_delete if key_alone else self.schema.columns.names

    @property
    def _needed(self) -> list[str]:
        if self.operation == "delete":
            return self._needed_for_delete
        return self._address if self._keeps else [f.name for f in self.schema.columns if not f.nullable]

    def _check(self, frame: st.StructType) -> None:
        names = set(frame.names)
        columns = self.schema.columns
        special = {OP, TOMBSTONE} | ({self.options.sequence_by} if self.options.sequence_by else set())
        if {OP, TOMBSTONE} <= names:
            raise InvalidInputError(f"columns {OP!r} and {TOMBSTONE!r} both say what is deleted: give one of them")
        if names & {OP, TOMBSTONE}:
            self.schema.need_key()
        self.terms.check(self.schema)
        missing = [name for name in self._needed if name not in names]
        if missing:
            raise InvalidInputError(f"column {missing[0]!r} is missing and must not be null")
        may_leave_out = self.operation == "delete" or names & {OP, TOMBSTONE}  # deletes need no more than the key
        if not may_leave_out and not self._keeps and not self._fills:
            absent = [name for name in columns.names if name not in names]
            if absent:
                raise refuse_missing(absent)
        for item in frame:
            if item.name in columns.names:
                arrow_type(item.dataType, repr(item.name))
                if item.name in self._written:
                    refuse_time_casts(item.dataType, columns.field(item.name).type, repr(item.name))
            elif item.name not in special and self.operation != "delete":
                check_column(item.name, columns.names)

    # ------------------------------------------------------------------------------------------------------ in a task

    def split(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The rows by shard, as the table holds them. `_tombstone`, `SEQUENCE` and `INSERTED` follow, if they are used."""
        fitter = Fitter(self.schema)
        for batch in batches:
            if batch.num_rows:
                yield from self.sharding.route(self._fit(fitter, batch), self.schema.columns)

    def fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of one batch as the table holds them."""
        return self._fit(Fitter(self.schema), batch)

    def _fit(self, fitter: Fitter, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.renamed:
            batch = batch.rename_columns([dict(self.renamed).get(name, name) for name in batch.schema.names])
        extra = self._extra(batch)
        flags = self._flags(batch)
        wanted = self._written
        rows = batch.select([name for name in batch.schema.names if name in wanted])
        rows = to_arrow_columns(rows, self.schema.columns).append_column(TOMBSTONE, flags)
        fitted = fitter.fit_flagged_part(rows)[0] if self._keeps else fitter.fit_flagged(rows, fill=self._fills)
        for name, column in extra.items():
            fitted = fitted.append_column(name, column)
        return fitted

    def _extra(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """The columns that the commit needs and the table does not hold."""
        found = {}
        if self.options.sequence_by:
            found[SEQUENCE] = batch.column(self.options.sequence_by)
        if self.options.statement_on:
            found[INSERTED] = self._inserted(batch)
        return found

    def _inserted(self, batch: pa.RecordBatch) -> pa.Array:
        """Per row whether the statement inserts it: all rows of a MERGE that only inserts, which have no `_op`."""
        if OP not in batch.schema.names:
            return pa.repeat(True, batch.num_rows)
        self._refuse_changed_keys(batch)
        return pc.equal(batch.column(OP), "i")

    def _refuse_changed_keys(self, batch: pa.RecordBatch) -> None:
        key = list(self.schema.primary_key)
        changed = batch.filter(pc.equal(batch.column(OP), _CHANGED_KEY)).select(key)
        if changed.num_rows:
            raise InvalidInputError(
                f"the statement sets the primary key ({', '.join(key)}) of a row to another value: {shown_keys(changed)}; "
                "delete the row and insert a new one; nothing was written"
            )

    def _flags(self, batch: pa.RecordBatch) -> pa.Array:
        if self.operation == "delete":
            return pa.repeat(True, batch.num_rows)
        if TOMBSTONE in batch.schema.names:
            return batch.column(TOMBSTONE).cast(pa.bool_()).fill_null(False)
        if OP not in batch.schema.names:
            return pa.repeat(False, batch.num_rows)
        ops = batch.column(OP).cast(pa.string()).fill_null("u")
        known = pc.is_in(ops, value_set=_KNOWN_OPS)
        if known.true_count < len(ops):
            raise InvalidInputError(
                f"column {OP!r} holds 'u' (or 'i') for rows that stay and 'd' for deletes, nothing else"
            )
        return pc.is_in(ops, value_set=_DELETES)


# ---------------------------------------------------------------------------------------------------------- at commit


def rows_in_order(plan: WritePlan, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The rows of one shard and version in the order in which they count, without those that a later one replaces anyway."""
    if not plan.schema.primary_key or not batches:
        return batches
    order = plan.order
    if len(batches) == 1 and not order and plan.options.duplicates != "live" and not _repeats(plan, batches[0]):
        return batches  # what a small write has for each of many shards
    # Rows and tombstones of an overwrite differ in what may be null.
    table = pa.concat_tables((pa.Table.from_batches([batch]) for batch in batches), promote_options="default")
    if order:
        table = table.take(pc.sort_indices(table, sort_keys=[(name, "ascending", "at_start") for name in order]))
    table = table.drop_columns([name for name in (SEQUENCE, INSERTED) if name in table.column_names])
    if plan.options.duplicates == "live":
        table = _without_taken(plan, table)
    last = last_of_each(_keys(plan, table))
    repeated = table.num_rows - len(last)
    if repeated and not order and plan.options.duplicates != "last":
        raise InvalidInputError(
            f"{repeated} rows of this write repeat the key of another one, and nothing says which wins: "
            "give the option 'sequenceBy' (the largest wins), or 'duplicates=last' if the order of rows is repeatable"
        )
    if repeated and not plan.each_row_counts:
        table = table.take(pa.array(last))
    in_order: list[pa.RecordBatch] = table.to_batches()
    return in_order


def inserted_keys(plan: WritePlan, batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """The keys of the rows that a statement inserts into a shard, except for keys that it also deletes."""
    names = plan.schema.primary_key
    rows = pa.Table.from_batches([batch.select([*names, TOMBSTONE, INSERTED]) for batch in batches])
    inserted, deleted = rows.filter(rows[INSERTED]), rows.filter(rows[TOMBSTONE])
    if inserted.num_rows and deleted.num_rows:
        inserted = inserted.filter(pa.array(~KeySet(_keys(plan, deleted)).of_rows(inserted, names)))
    return inserted.select(names)


def shown_keys(keys: pa.RecordBatch | pa.Table) -> str:
    """Some keys, for an error message."""
    shown = ", ".join(map(str, keys.slice(0, _MAX_SHOWN).to_pylist()))
    return f"{shown}, …" if keys.num_rows > _MAX_SHOWN else shown


def _keys(plan: WritePlan, rows: pa.RecordBatch | pa.Table) -> pa.Array:
    return key_array([rows.column(name) for name in plan.schema.primary_key])


def _repeats(plan: WritePlan, rows: pa.RecordBatch) -> bool:
    return bool(len(last_of_each(_keys(plan, rows))) < rows.num_rows)


def _without_taken(plan: WritePlan, table: pa.Table) -> pa.Table:
    """The rows without tombstones of keys that a row takes, and each tombstone once."""
    gone = np.asarray(table.column(TOMBSTONE))
    rows, tombstones = table.filter(pa.array(~gone)), table.filter(pa.array(gone))
    if not tombstones.num_rows:
        return table
    tombstones = tombstones.take(pa.array(last_of_each(_keys(plan, tombstones))))
    if rows.num_rows:
        taken = KeySet(_keys(plan, rows))
        tombstones = tombstones.filter(pa.array(~taken.of_rows(tombstones, plan.schema.primary_key)))
    return pa.concat_tables([rows, tombstones])
