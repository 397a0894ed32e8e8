"""MERGE as a builder: joins a source with the merged table, and writes upserts and tombstones.

Owns `merge_into`. Invariants:

1. The join sees one snapshot of the table. A key that others write between it and the append is a conflict, checked shard by
   shard against the positions of that snapshot (`__unchangedSince`). The merge is then joined again with a new snapshot: shards
   that have it already, by its mark, are left alone. After the last attempt the conflict is a `ChangedKeysError`.
2. Clauses are tried in the order in which they were given; the first that applies decides a row.
3. Every row that no clause takes is left alone. Two source rows of one key are an error.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal, get_args

import pyarrow as pa
from pyspark.sql import functions as f

from lance_memwal.arguments import check_choice, check_number
from lance_memwal.clock import SYSTEM_CLOCK
from lance_memwal.errors import ChangedKeysError, InvalidInputError
from lance_memwal.spark.executor_mode import BatchReport, write_batch
from lance_memwal.spark.options import CASE_SENSITIVE, STORAGE_PREFIX, UNCHANGED_SINCE, found, resolved, told_by
from lance_memwal.spark.rows import OP
from lance_memwal.spark.types import refuse_time_casts, spark_type
from lance_memwal.table import Table, open_table

_LOG = logging.getLogger(__name__)
_IN_TARGET, _IN_SOURCE, _CHOSEN = "_memwal_in_target", "_memwal_in_source", "_memwal_clause"
_ATTEMPTS = 4
_Kind = Literal["matched", "not_matched", "not_matched_by_source"]
OnConflict = Literal["retry", "error", "overwrite"]


@dataclass(frozen=True, slots=True)
class _Clause:
    kind: _Kind
    delete: bool = False
    condition: Any = None
    settings: Mapping[str, Any] | None = None

    @property
    def applies(self) -> Any:
        """Whether the clause takes a row of the join."""
        here, there = f.col(_IN_TARGET).isNotNull(), f.col(_IN_SOURCE).isNotNull()
        sides = {"matched": here & there, "not_matched": ~here & there, "not_matched_by_source": here & ~there}
        return sides[self.kind] if self.condition is None else sides[self.kind] & _expression(self.condition)


def merge_into(
    spark: Any,
    uri: str,
    source: Any,
    on: str | Sequence[str],
    *,
    storage_options: Mapping[str, str] | None = None,
) -> MergeBuilder:
    """Begin a merge of `source` into the table, matched by its primary key `on`.

    Conditions and values are SQL texts or columns; they see the source as `source` and the table as `target`.
    """
    table = open_table(uri, storage_options=storage_options)
    exactly = told_by(spark)[CASE_SENSITIVE] == "true"
    key, given = table.primary_key, [on] if isinstance(on, str) else list(on)
    keys = [found(name, table.schema.names, case_sensitive=exactly) or name for name in given]
    if sorted(keys) != sorted(key):
        raise InvalidInputError(
            f"a merge matches rows by the primary key ({', '.join(key) or 'none'}), not by {', '.join(given)}"
        )
    return MergeBuilder(spark, table, source, keys, dict(storage_options or {}), case_sensitive=exactly)


class MergeBuilder:
    """A merge under construction; `execute` runs it."""

    def __init__(
        self, spark: Any, table: Table, source: Any, keys: list[str], storage: dict[str, str], *, case_sensitive: bool
    ) -> None:
        """Use `merge_into`."""
        self._spark = spark
        self._table = table
        self._source = source
        self._keys = keys
        self._storage = storage
        self._exactly = case_sensitive
        self._clauses: list[_Clause] = []

    def when_matched_update(self, condition: Any = None, set: Mapping[str, Any] | None = None) -> MergeBuilder:  # noqa: A002
        """Replace the table's row by the source's (columns that the source lacks keep the table's value).

        With `set` the columns that it names get these values, and all others keep theirs.
        """
        return self._add(_Clause("matched", condition=condition, settings=self._settings(set)))

    def when_matched_delete(self, condition: Any = None) -> MergeBuilder:
        """Delete the table's row."""
        return self._add(_Clause("matched", delete=True, condition=condition))

    def when_not_matched_insert(self, condition: Any = None) -> MergeBuilder:
        """Insert the source's row."""
        return self._add(_Clause("not_matched", condition=condition))

    def when_not_matched_by_source_delete(self, condition: Any = None) -> MergeBuilder:
        """Delete rows of the table that the source does not have."""
        return self._add(_Clause("not_matched_by_source", delete=True, condition=condition))

    def when_not_matched_by_source_update(
        self,
        condition: Any = None,
        set: Mapping[str, Any] | None = None,  # noqa: A002
    ) -> MergeBuilder:
        """Give columns of rows that the source does not have these values."""
        if not set:
            raise InvalidInputError(
                "when_not_matched_by_source_update needs 'set': there is no source to take values of"
            )
        return self._add(_Clause("not_matched_by_source", condition=condition, settings=self._settings(set)))

    def _add(self, clause: _Clause) -> MergeBuilder:
        self._clauses.append(clause)
        return self

    def _settings(self, given: Mapping[str, Any] | None) -> dict[str, Any] | None:
        if given is None:
            return None
        if not isinstance(given, Mapping) or not given:
            raise InvalidInputError("'set' says by column what it becomes: {'n': 'source.n + 1'}")
        named = {
            resolved(name, self._table.schema.names, case_sensitive=self._exactly): value
            for name, value in given.items()
        }
        for name in named:
            if name in self._keys:
                raise InvalidInputError(f"column {name!r} is part of the primary key, and stays")
        return named

    def execute(
        self,
        *,
        app_id: str | None = None,
        version: int | None = None,
        on_conflict: OnConflict = "retry",
        **options: Any,
    ) -> BatchReport:
        """Join and write. With `app_id` and `version` a repeat of the same merge writes nothing.

        If others write the same keys meanwhile, the merge is joined again, three times at most, and then fails with a
        `ChangedKeysError`; `on_conflict="error"` fails at once, and `"overwrite"` lets the merge win.
        """
        if not self._clauses:
            raise InvalidInputError("a merge needs a clause: when_matched_update, when_matched_delete, ...")
        if (app_id is None) != (version is None):
            raise InvalidInputError("give both 'app_id' and 'version', or neither")
        check_choice("on_conflict", on_conflict, get_args(OnConflict))
        app = app_id or f"merge-{SYSTEM_CLOCK.uuid4()}"
        number = 0 if version is None else check_number("version", version)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._write(app, number, options, checked=on_conflict != "overwrite")
            except ChangedKeysError:
                if on_conflict == "error" or attempt == _ATTEMPTS:
                    raise
                _LOG.info("keys of a merge changed meanwhile, it is joined again [app=%s, attempt=%d]", app, attempt)
        raise AssertionError("unreachable")

    def _write(self, app: str, version: int, options: dict[str, Any], *, checked: bool) -> BatchReport:
        snapshot = str(self._table.snapshot())
        given = {**options, UNCHANGED_SINCE: snapshot} if checked else options
        uri, storage = self._table.uri, self._storage
        return write_batch(self._changes(snapshot), uri, version, app_id=app, storage_options=storage, **given)

    # --------------------------------------------------------------------------------------------------------- the join

    def _changes(self, snapshot: str) -> Any:
        """The rows to write, with `_op`."""
        options = {f"{STORAGE_PREFIX}{name}": value for name, value in self._storage.items()}
        reader = self._spark.read.format("memwal").options(**options).option("asOf", snapshot)
        target = reader.load(self._table.uri).withColumn(_IN_TARGET, f.lit(True)).alias("target")
        source = self._source.withColumn(_IN_SOURCE, f.lit(True)).alias("source")
        same = reduce(lambda one, more: one & more, (_of("source", key) == _of("target", key) for key in self._keys))
        by_source = any(clause.kind == "not_matched_by_source" for clause in self._clauses)
        joined = source.join(target, same, "full" if by_source else "left")
        self._refuse_time_casts(joined)
        chosen = f.lit(None).cast("int")
        for number, clause in reversed(list(enumerate(self._clauses))):
            chosen = f.when(clause.applies, f.lit(number)).otherwise(chosen)
        marked = joined.withColumn(_CHOSEN, chosen).where(f.col(_CHOSEN).isNotNull())
        values = [self._value(field.name, field.type).alias(field.name) for field in self._table.schema]
        return marked.select(*values, self._by_clause(lambda clause: f.lit("d" if clause.delete else "u")).alias(OP))

    def _refuse_time_casts(self, joined: Any) -> None:
        """Return only if the values of all clauses are times of the kinds that the table holds."""
        of_source = any(clause.settings is None and not clause.delete for clause in self._clauses)
        names = self._table.schema.names if of_source else self._keys
        columns = [(name, _of("source", name)) for name in names if self._is_given(name)]
        columns += [(name, value) for clause in self._clauses for name, value in (clause.settings or {}).items()]
        chosen = [f.lit(_expression(value)).alias(name) for name, value in columns]
        for field in joined.select(*chosen).schema if chosen else ():
            refuse_time_casts(field.dataType, self._table.schema.field(field.name).type, repr(field.name))

    def _is_given(self, name: str) -> bool:
        return found(name, self._source.columns, case_sensitive=self._exactly) is not None

    def _by_clause(self, value: Any) -> Any:
        """What `value` gives for the clause that takes a row."""
        made = f.lit(None)
        for number, clause in reversed(list(enumerate(self._clauses))):
            made = f.when(f.col(_CHOSEN) == number, value(clause)).otherwise(made)
        return made

    def _value(self, name: str, kind: pa.DataType) -> Any:
        """What a column becomes."""
        ours, theirs = _of("target", name), _of("source", name) if self._is_given(name) else None

        def of_clause(clause: _Clause) -> Any:
            if clause.kind == "matched" and name in self._keys:  # Spark may take two values for equal that are not
                return ours
            if clause.settings is not None:
                settings = clause.settings
                return f.lit(_expression(settings[name])).cast(spark_type(kind)) if name in settings else ours
            return ours if theirs is None or clause.kind == "not_matched_by_source" else theirs

        return self._by_clause(of_clause)


def _of(side: str, name: str) -> Any:
    return f.col(f"{side}.`{name.replace('`', '``')}`")


def _expression(given: Any) -> Any:
    return f.expr(given) if isinstance(given, str) else given
