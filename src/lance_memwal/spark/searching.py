"""Reads and searches of a table as DataFrames, and the SQL table function `memwal_search`.

Entry points: `read`, `search`, `search_function`. The function is Spark's own kind of function in Python, so that it needs no JVM
face. The columns of its answer depend on the table and on the search, so table, texts and columns must be constants. One task
searches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import types as st
from pyspark.sql.functions import udtf
from pyspark.sql.udtf import AnalyzeArgument, AnalyzeResult

from lance_memwal.errors import InvalidInputError
from lance_memwal.spark.face.warehouse import Warehouse
from lance_memwal.spark.options import STORAGE_PREFIX
from lance_memwal.spark.types import spark_arrow_schema, struct_type, to_spark_batch
from lance_memwal.table import Table, newest_base, open_table

_CATALOG = "spark.sql.catalog."
_CLASS = "io.memwal.spark.MemWalCatalog"


def read(
    spark: Any,
    uri: str,
    *,
    columns: Sequence[str] | None = None,
    filter: str | None = None,  # noqa: A002
    as_of: Any = None,
    storage_options: Mapping[str, str] | None = None,
) -> Any:
    """Return the live rows of a table as a DataFrame; every query of it reads one snapshot of all tiers.

    Args:
        spark: The session.
        uri: Where the table is.
        columns: Names of columns; None: all.
        filter: SQL text that Lance evaluates.
        as_of: An earlier state, as `Table.at` takes it: a snapshot, the name of a checkpoint, a time, or a version.
        storage_options: As in `open_table`.
    """
    reader = spark.read.format("memwal")
    for name, value in (storage_options or {}).items():
        reader = reader.option(f"{STORAGE_PREFIX}{name}", value)
    if filter is not None:
        reader = reader.option("filter", filter)
    if as_of is not None:
        reader = reader.option("asOf", as_of.isoformat() if isinstance(as_of, datetime) else str(as_of))
    found = reader.load(uri)
    return found if columns is None else found.select(*columns)


def search(
    spark: Any,
    uri: str,
    vector: Sequence[float] | None = None,
    *,
    text: str | None = None,
    column: str | Sequence[str] | None = None,
    k: int = 10,
    filter: str | None = None,  # noqa: A002
    storage_options: Mapping[str, str] | None = None,
) -> Any:
    """Return the best `k` live rows as a DataFrame, best first, with `_distance`, `_score` or, for both, `_relevance`.

    The driver searches when this is called. The arguments are those of `Table.search`.
    """
    table = open_table(uri, storage_options=storage_options)
    best = table.search(vector, text=text, column=column, k=k, filter=filter)
    schema = _schema(table, vector is not None, text is not None, None)
    return spark.createDataFrame(list(_rows(best, schema)), schema)


def search_function(settings: Mapping[str, str]) -> Any:
    """The function, which knows the tables of the catalogs that these settings of a session name, and every path."""
    warehouses = _warehouses(settings)

    class Search:
        """`SELECT * FROM memwal_search('lake.docs', vector => array(...), text => '...', k => 10)`."""

        @staticmethod
        def analyze(
            table: AnalyzeArgument,
            vector: AnalyzeArgument | None = None,
            text: AnalyzeArgument | None = None,
            k: AnalyzeArgument | None = None,
            column: AnalyzeArgument | None = None,
            filter: AnalyzeArgument | None = None,  # noqa: A002
            columns: AnalyzeArgument | None = None,
        ) -> AnalyzeResult:
            del k, column, filter  # they change rows, not columns
            found = _table(_constant("table", table), warehouses)
            return AnalyzeResult(
                _schema(found, vector is not None, text is not None, _names(_constant("columns", columns)))
            )

        def eval(
            self,
            table: str,
            vector: list[float] | None = None,
            text: str | None = None,
            k: int | None = None,
            column: str | None = None,
            filter: str | None = None,  # noqa: A002
            columns: str | None = None,
        ) -> Iterator[tuple[Any, ...]]:
            found = _table(table, warehouses)
            names, count = _names(columns), 10 if k is None else k
            best = found.search(vector, text=text, k=count, column=column, filter=filter, columns=names)
            yield from _rows(best, _schema(found, vector is not None, text is not None, names))

    return udtf(Search)


def _warehouses(settings: Mapping[str, str]) -> dict[str, tuple[str, dict[str, str]]]:
    found = {}
    for name, value in settings.items():
        catalog = name.removeprefix(_CATALOG)
        if value == _CLASS and catalog != name and "." not in catalog:
            storage = f"{_CATALOG}{catalog}.{STORAGE_PREFIX}"
            options = {key.removeprefix(storage): given for key, given in settings.items() if key.startswith(storage)}
            found[catalog] = (settings.get(f"{_CATALOG}{catalog}.warehouse", ""), options)
    return found


def _table(name: str, warehouses: Mapping[str, tuple[str, dict[str, str]]]) -> Table:
    """A table by its place, or by its name in a catalog."""
    catalog, *parts = name.split(".")
    if "/" in name or not parts or catalog not in warehouses:
        return open_table(name)
    uri, storage = warehouses[catalog]
    return open_table(Warehouse.of(uri, storage).table(parts[:-1], parts[-1]))


def _constant(name: str, argument: AnalyzeArgument | None) -> Any:
    if argument is None:
        return None
    if not argument.isConstantExpression:
        raise InvalidInputError(f"memwal_search: {name!r} must be a constant")
    return argument.value


def _names(columns: str | None) -> list[str] | None:
    return None if columns is None else [name.strip() for name in columns.split(",")]


def _rows(best: pa.Table, schema: st.StructType) -> Iterator[tuple[Any, ...]]:
    wanted = spark_arrow_schema(schema)
    for batch in best.to_batches():
        yield from (tuple(row.values()) for row in to_spark_batch(batch, wanted).to_pylist())


def _schema(table: Table, by_vector: bool, by_text: bool, columns: Sequence[str] | None) -> st.StructType:
    ranked = "_relevance" if by_vector and by_text else "_distance" if by_vector else "_score"
    return struct_type(newest_base(table).columns.shown.columns, columns).add(ranked, st.FloatType())
