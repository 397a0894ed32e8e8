"""One SQL query over tables, by DataFusion.

Owns `query`. Invariants:

1. A query only reads what it was given: DDL, DML and statements are refused before anything runs, and no name in it is a
   file or an address.
2. Memory of sorts, groups and joins is bounded: beyond the bound a query spills to temporary files, or fails. Text that
   would overflow the stack is refused before DataFusion reads it (`rows.sql`). Values that functions make are not bounded.
3. An error of a table keeps its type; what DataFusion itself refuses is `InvalidInputError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds

from lance_memwal.arguments import check_number
from lance_memwal.engines.dataset import Rows, TableDataset
from lance_memwal.errors import InvalidInputError, MemWalError, is_failure, need, reason_of
from lance_memwal.rows.sql import fault_of, longest_chain, tokens_of

SQL_MEMORY_BYTES: Final = 1 << 30
_POLL_SECONDS: Final = 0.2
# A stack overflows, which ends the process, from about 10,000 parts of a term on, 9,000 conditions, and 400 queries or tables.
_MAX_CHAIN: Final = 2_000
_JOINS: Final = {
    **dict.fromkeys(("and", "or", "xor"), 1),
    "interval": 5,
    **dict.fromkeys((",", "join", "union", "intersect", "except", "explain"), 20),
}


def query(
    text: str,
    tables: Mapping[str, Any],
    *,
    memory_bytes: int = SQL_MEMORY_BYTES,
    limit: int | None = None,
    watch: Callable[[Rows], Rows] = lambda rows: rows,
    check: Callable[[], None] | None = None,
) -> pa.Table:
    """The answer to `text`, in which `tables` have the names that they are given under; its first `limit` rows.

    `watch` may look at every scan that DataFusion makes of a table of ours. `check` is called again and again while the
    query runs: what it raises ends the query.
    """
    if not isinstance(text, str):
        raise InvalidInputError(f"a query is SQL text, not {type(text).__name__}")
    _refuse_too_large(text)
    datafusion = need("datafusion", "sql", "SQL")
    context = _context(datafusion, check_number("memory_bytes", memory_bytes, least=1))
    failures: list[Exception] = []
    for name, table in tables.items():
        register(context, name, _as_dataset(name, table), lambda rows: _Watched(rows, failures.append, watch))
    try:
        found = context.sql_with_options(text, _reading_only(datafusion))
        found = found if limit is None or _is_explained(text) else found.limit(limit)
        return found.to_arrow_table() if check is None else asyncio.run(_collected(found, check, failures.append))
    except BaseException as error:
        if not is_failure(error):
            raise
        if failures:
            raise failures[0] from None
        raise InvalidInputError(f"the query cannot be answered: {reason_of(error)}") from error


def _refuse_too_large(text: str) -> None:
    """Refuse what DataFusion would end the process at."""
    tokens = tokens_of(text)
    if (asked := fault_of(tokens)) is not None:
        raise InvalidInputError(f"the query cannot be answered: {asked}")
    if longest_chain(tokens, _JOINS) > _MAX_CHAIN:
        raise InvalidInputError(
            f"the query cannot be answered: one of its terms has more than {_MAX_CHAIN:,} parts, where a table or query that is "
            f"joined counts as {_JOINS['join']}. Write a list of conditions as `column in (...)`, or give the values as a table "
            "and join it"
        )


async def _collected(found: Any, check: Callable[[], None], note: Callable[[Exception], None]) -> pa.Table:
    """The rows of a query that ends where `check` raises; nothing of it runs any further then."""
    stream, batches = found.execute_stream(), list[pa.RecordBatch]()
    while True:
        step = asyncio.ensure_future(stream.__anext__())
        try:
            while not step.done():
                await asyncio.wait({step}, timeout=_POLL_SECONDS)
                check()
        except Exception as error:
            step.cancel()
            note(error)
            raise
        try:
            batches.append(step.result().to_pyarrow())
        except StopAsyncIteration:
            return pa.Table.from_batches(batches, batches[0].schema if batches else found.schema())


def _is_explained(text: str) -> bool:
    """Whether it asks for a plan: of that DataFusion takes no first rows, and there are few."""
    kept = [part for kind, part in tokens_of(text) if kind != "comment"]
    return bool(kept) and kept[0].lower() == "explain"


@dataclass(frozen=True, slots=True)
class _Watched:
    """The rows of a scan; its errors are noted, since DataFusion passes on no more than their text."""

    rows: Rows
    note: Callable[[MemWalError], None]
    watch: Callable[[Rows], Rows]

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows as a streaming reader."""
        with self._noting():
            reader = self.watch(self.rows).to_reader()
        return pa.RecordBatchReader.from_batches(reader.schema, self._each(reader))

    def to_table(self) -> pa.Table:
        """The rows as a table."""
        with self._noting():
            return self.watch(self.rows).to_table()

    def count_rows(self) -> int:
        """How many they are."""
        with self._noting():
            return self.watch(self.rows).count_rows()

    def _each(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        with self._noting():
            yield from reader

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except MemWalError as error:
            self.note(error)
            raise


def register(context: Any, name: str, dataset: ds.Dataset, watch: Callable[[Rows], Rows] = lambda rows: rows) -> None:
    """`dataset` as a table of `context`, with the answers that DataFusion gives for tables of its own.

    DataFusion lets pyarrow apply what it pushes down to a dataset. pyarrow has other rules for nulls and lists, which a
    dataset of ours puts right, and for NaN: conditions on floating-point columns are kept above the scan, behind a
    function that returns what it is given.
    """
    floats = [field for field in dataset.schema if pa.types.is_floating(field.type)]
    inner = dataset.in_sql(watch) if isinstance(dataset, TableDataset) else dataset
    if not floats:
        context.register_dataset(name, inner)
        return
    datafusion = need("datafusion", "sql", "SQL")
    context.register_dataset(hidden := f"{name}__pushed_down", inner)
    kept = {field.name: _itself(datafusion, field.type) for field in floats}
    columns = [datafusion.col(_quoted(column)) for column in dataset.schema.names]
    shown = [
        kept[column](found).alias(column) if column in kept else found
        for column, found in zip(dataset.schema.names, columns, strict=True)
    ]
    context.register_view(name, context.table(hidden).select(*shown))


def _itself(datafusion: Any, kind: pa.DataType) -> Any:
    return datafusion.udf(lambda values: values, [kind], kind, "immutable", name=f"memwal_itself_{kind}")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _context(datafusion: Any, memory_bytes: int) -> Any:
    runtime = datafusion.RuntimeEnvBuilder().with_disk_manager_os().with_fair_spill_pool(memory_bytes)
    return datafusion.SessionContext(datafusion.SessionConfig().with_information_schema(False), runtime)


def _reading_only(datafusion: Any) -> Any:
    return datafusion.SQLOptions().with_allow_ddl(False).with_allow_dml(False).with_allow_statements(False)


def _as_dataset(name: str, table: Any) -> ds.Dataset:
    if isinstance(table, ds.Dataset):
        return table
    if hasattr(table, "to_dataset"):
        return table.to_dataset()
    try:
        return ds.dataset(table if isinstance(table, pa.Table) else pa.table(table))
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidInputError(f"{name} is no table, dataset or data: {reason_of(error)}") from None
