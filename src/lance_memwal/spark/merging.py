"""MERGE as a builder: joins a source with the merged table, and writes upserts and tombstones.

Owns `merge_into`. Invariants:

1. The join sees one snapshot of the table; what others write between it and the commit is overwritten row by row, as by
   any upsert.
2. Clauses of one kind are tried in the order in which they were given; the first that applies decides a row.
3. Every row of the source that no clause takes is left alone. Two source rows of one key are an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import functions as f

from lance_memwal.clock import SYSTEM_CLOCK
from lance_memwal.errors import InvalidInputError
from lance_memwal.spark.executor_mode import BatchReport, write_batch
from lance_memwal.spark.rows import OP
from lance_memwal.table import open_table

__all__ = ["MergeBuilder", "merge_into"]

_HERE = "_memwal_matched"


@dataclass(frozen=True, slots=True)
class _Clause:
    matched: bool
    delete: bool
    condition: Any = None


def merge_into(
    spark: Any,
    uri: str,
    source: Any,
    on: str | Sequence[str],
    *,
    storage_options: Mapping[str, str] | None = None,
) -> MergeBuilder:
    """Begin a merge of `source` into the table, matched by its primary key `on`.

    Conditions are SQL texts or columns; they see the source as `source` and the table as `target`.
    """
    keys = [on] if isinstance(on, str) else list(on)
    table = open_table(uri, storage_options=storage_options)
    if sorted(keys) != sorted(table.primary_key):
        key = ", ".join(table.primary_key) or "none"
        raise InvalidInputError(f"a merge matches rows by the primary key ({key}), not by {', '.join(keys)}")
    return MergeBuilder(spark, uri, source, keys, table.schema.names, dict(storage_options or {}))


class MergeBuilder:
    """A merge under construction; `execute` runs it."""

    def __init__(
        self, spark: Any, uri: str, source: Any, keys: list[str], columns: list[str], storage: dict[str, str]
    ) -> None:
        """Use `merge_into`."""
        self._spark = spark
        self._uri = uri
        self._source = source
        self._keys = keys
        self._columns = columns
        self._storage = storage
        self._clauses: list[_Clause] = []

    def when_matched_update(self, condition: Any = None) -> MergeBuilder:
        """Replace the table's row by the source's (columns that the source lacks keep the table's value)."""
        return self._add(_Clause(matched=True, delete=False, condition=condition))

    def when_matched_delete(self, condition: Any = None) -> MergeBuilder:
        """Delete the table's row."""
        return self._add(_Clause(matched=True, delete=True, condition=condition))

    def when_not_matched_insert(self, condition: Any = None) -> MergeBuilder:
        """Insert the source's row."""
        return self._add(_Clause(matched=False, delete=False, condition=condition))

    def _add(self, clause: _Clause) -> MergeBuilder:
        self._clauses.append(clause)
        return self

    def execute(self, *, app_id: str | None = None, version: int | None = None, **options: Any) -> BatchReport:
        """Join and write. With `app_id` and `version` a repeat of the same merge writes nothing."""
        if not self._clauses:
            raise InvalidInputError("a merge needs a clause: when_matched_update, when_matched_delete, ...")
        if (app_id is None) != (version is None):
            raise InvalidInputError("give both 'app_id' and 'version', or neither")
        app = app_id or f"merge-{SYSTEM_CLOCK.uuid4()}"
        return write_batch(
            self._changes(), self._uri, version or 0, app_id=app, storage_options=self._storage, **options
        )

    def _changes(self) -> Any:
        """The rows to write, with `_op`."""
        reader = self._spark.read.format("memwal").options(**{f"storage.{k}": v for k, v in self._storage.items()})
        target = reader.load(self._uri).withColumn(_HERE, f.lit(True)).alias("target")
        source = self._source.alias("source")
        same = [f.col(f"source.`{key}`") == f.col(f"target.`{key}`") for key in self._keys]
        condition = same[0]
        for part in same[1:]:
            condition = condition & part
        joined = source.join(target, condition, "left")
        action = f.lit(None).cast("string")
        for clause in reversed(self._clauses):
            applies = f.col(f"target.{_HERE}").isNotNull() if clause.matched else f.col(f"target.{_HERE}").isNull()
            if clause.condition is not None:
                text = clause.condition
                applies = applies & (f.expr(text) if isinstance(text, str) else text)
            action = f.when(applies, f.lit("d" if clause.delete else "u")).otherwise(action)
        given = set(self._source.columns)
        values = [
            f.col(f"source.`{name}`" if name in given else f"target.`{name}`").alias(name) for name in self._columns
        ]
        return joined.select(*values, action.alias(OP)).where(f.col(OP).isNotNull())
