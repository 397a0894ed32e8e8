"""A table as a pyarrow dataset: what query engines ask of files, they can ask of fresh rows.

Owns `TableDataset` and what it hands out. Invariants:

1. Every scan reads one snapshot, of the moment when its rows are asked for: two scans of one dataset may differ, as the
   table did. Whoever needs one state for all hands in a `scan` that has one.
2. A filter is applied exactly, by the one filter that scans have: engines that push a filter down do not apply it again.
3. A dataset has no C++ part. Everything that pyarrow's `Dataset` can do is done here, or refused: what pyarrow would do
   with the missing part is a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from lance_memwal.arguments import check_number
from lance_memwal.errors import InvalidInputError
from lance_memwal.read.scan import Read, Scan
from lance_memwal.read.tiers import Consistency, Tiers
from lance_memwal.rows.blobs import shown_field
from lance_memwal.rows.expressions import with_sql_nulls
from lance_memwal.rows.filter import FilterLike
from lance_memwal.rows.projection import checked_paths, field_at

_BATCH_ROWS = 1 << 17


class Rows(Protocol):
    """The rows of one scan, in the ways that engines read them."""

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows as a streaming reader."""

    def to_table(self) -> pa.Table:
        """The rows as a table."""

    def count_rows(self) -> int:
        """How many they are."""


class Scans(Protocol):
    """Makes a scan of the columns and rows that are asked for."""

    def __call__(self, columns: Sequence[str] | None, filter: FilterLike | None, /) -> Rows:  # noqa: A002
        """The scan."""


class TableDataset(ds.Dataset):  # type: ignore[misc]  # engines ask whether it is one
    """The live rows of a table, as a dataset with one fragment."""

    def __init__(self, schema: Callable[[], pa.Schema], scan: Scans, filter: pc.Expression | None = None) -> None:  # noqa: A002
        """`filter` restricts it; `schema` is asked for the columns whenever somebody wants to know them."""
        self._schema = schema
        self._scan = scan
        self._filter = filter

    def __reduce__(self) -> tuple[Any, ...]:
        return TableDataset, (self._schema, self._scan, self._filter)

    def __repr__(self) -> str:
        return f"TableDataset({', '.join(self.schema.names)})"

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self._schema()

    @property
    def partition_expression(self) -> pc.Expression:
        """True: nothing is known of all rows."""
        return pc.scalar(True)

    def scanner(
        self,
        columns: Sequence[str] | Mapping[str, pc.Expression] | None = None,
        filter: FilterLike | None = None,  # noqa: A002
        batch_size: int = _BATCH_ROWS,
        **ignored: Any,  # how files are read
    ) -> TableScanner:
        """A scan that has not begun: its snapshot is taken when its rows are asked for."""
        del ignored
        return TableScanner(
            self.schema, self._scan, columns, self._both(filter), check_number("batch_size", batch_size)
        )

    def _both(self, given: FilterLike | None) -> FilterLike | None:
        if self._filter is None or given is None:
            return given if self._filter is None else self._filter
        if not isinstance(given, pc.Expression):
            raise InvalidInputError("a dataset that was filtered takes pyarrow expressions, not SQL text")
        return self._filter & given

    def in_sql(self, watch: Callable[[Rows], Rows] = lambda rows: rows) -> TableDataset:
        """The dataset for an engine that pushes down what SQL says: lists of values have its rules for nulls.

        `watch` may look at every scan that is made.
        """

        def scan(columns: Sequence[str] | None, filter: FilterLike | None) -> Rows:  # noqa: A002
            meant = with_sql_nulls(filter) if isinstance(filter, pc.Expression) else filter
            return watch(self._scan(columns, meant))

        return TableDataset(self._schema, scan, self._filter)

    def get_fragments(self, filter: pc.Expression | None = None) -> Iterator[TableFragment]:  # noqa: A002
        """The one fragment that a table is."""
        yield TableFragment(self if filter is None else self.filter(filter))

    def filter(self, expression: pc.Expression) -> TableDataset:
        """The dataset, without the rows for which `expression` is not true."""
        if not isinstance(expression, pc.Expression):
            raise InvalidInputError(f"a dataset is filtered by a pyarrow expression, not {type(expression).__name__}")
        return TableDataset(self._schema, self._scan, self._both(expression))

    def to_table(self, columns: Any = None, filter: FilterLike | None = None, **ignored: Any) -> pa.Table:  # noqa: A002
        """The rows as a table."""
        return self.scanner(columns, filter, **ignored).to_table()

    def to_batches(
        self,
        columns: Any = None,
        filter: FilterLike | None = None,  # noqa: A002
        **ignored: Any,
    ) -> Iterator[pa.RecordBatch]:
        """The rows as a stream of batches."""
        return self.scanner(columns, filter, **ignored).to_batches()

    def head(self, num_rows: int, columns: Any = None, filter: FilterLike | None = None, **ignored: Any) -> pa.Table:  # noqa: A002
        """The first rows that come."""
        return self.scanner(columns, filter, **ignored).head(num_rows)

    def take(self, indices: Any, columns: Any = None, filter: FilterLike | None = None, **ignored: Any) -> pa.Table:  # noqa: A002
        """The rows at these places of the stream."""
        return self.scanner(columns, filter, **ignored).take(indices)

    def count_rows(self, filter: FilterLike | None = None, **ignored: Any) -> int:  # noqa: A002
        """How many rows there are."""
        return self.scanner(None, filter, **ignored).count_rows()

    def sort_by(self, sorting: Any, **options: Any) -> ds.Dataset:
        """The rows in order, in memory."""
        return ds.dataset(self.to_table().sort_by(sorting, **options))

    def join(self, right_dataset: ds.Dataset, *args: Any, **options: Any) -> ds.Dataset:
        """The rows joined with those of another dataset, in memory."""
        return ds.dataset(self.to_table().join(right_dataset.to_table(), *args, **options))

    def join_asof(self, right_dataset: ds.Dataset, *args: Any, **options: Any) -> ds.Dataset:
        """The rows joined with the nearest ones of another dataset, in memory."""
        return ds.dataset(self.to_table().join_asof(right_dataset.to_table(), *args, **options))

    def replace_schema(self, schema: pa.Schema) -> NoReturn:  # noqa: ARG002
        """A table has the columns that it has."""
        raise InvalidInputError("the columns of a table cannot be replaced: read it, and cast what it gives")

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.scanner().to_reader().__arrow_c_stream__(requested_schema)


class TableFragment:
    """All rows of a dataset, as engines that go by fragments read them."""

    def __init__(self, dataset: TableDataset) -> None:
        self._dataset = dataset

    @property
    def physical_schema(self) -> pa.Schema:
        """The columns."""
        return self._dataset.schema

    @property
    def partition_expression(self) -> pc.Expression:
        """True: nothing is known of all rows."""
        return self._dataset.partition_expression

    def scanner(self, schema: pa.Schema | None = None, **asked: Any) -> TableScanner:  # noqa: ARG002
        """A scan of the fragment."""
        return self._dataset.scanner(**asked)

    def to_table(self, schema: pa.Schema | None = None, **asked: Any) -> pa.Table:
        """The rows as a table."""
        return self.scanner(schema, **asked).to_table()

    def to_batches(self, schema: pa.Schema | None = None, **asked: Any) -> Iterator[pa.RecordBatch]:
        """The rows as a stream of batches."""
        return self.scanner(schema, **asked).to_batches()

    def count_rows(self, **asked: Any) -> int:
        """How many rows there are."""
        return self._dataset.count_rows(**asked)


class TableScanner:
    """One read of a dataset; each way to read it is a scan of its own moment."""

    def __init__(
        self,
        schema: pa.Schema,
        scan: Scans,
        columns: Sequence[str] | Mapping[str, pc.Expression] | None,
        filter: FilterLike | None,  # noqa: A002
        batch_rows: int,
    ) -> None:
        self.dataset_schema = schema
        self._scan = scan
        self._computed = dict(columns) if isinstance(columns, Mapping) else None
        self._columns = None if columns is None or isinstance(columns, Mapping) else list(columns)
        self._filter = filter
        self._batch_rows = batch_rows

    @property
    def projected_schema(self) -> pa.Schema:
        """The columns of the answer."""
        if self._computed is not None:
            empty = ds.Scanner.from_batches(iter(()), schema=self.dataset_schema, columns=self._computed)
            return empty.projected_schema
        return pa.schema(
            [field_at(path, self.dataset_schema) for path in checked_paths(self._columns, self.dataset_schema)]
        )

    def _read(self) -> Rows:
        return self._scan(self._columns, self._filter)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as a stream of batches of at most `batch_size` rows."""
        for batch in self.to_reader():
            for start in range(0, batch.num_rows, self._batch_rows):
                yield batch.slice(start, self._batch_rows)

    def scan_batches(self) -> Iterator[ds.TaggedRecordBatch]:
        """The rows as a stream of batches, each with the fragment that it is from: none that pyarrow knows."""
        return (ds.TaggedRecordBatch(batch, None) for batch in self.to_batches())

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows as a streaming reader."""
        rows = self._read().to_reader()
        return rows if self._computed is None else ds.Scanner.from_batches(rows, columns=self._computed).to_reader()

    def to_table(self) -> pa.Table:
        """The rows as a table."""
        return self._read().to_table() if self._computed is None else self.to_reader().read_all()

    def head(self, num_rows: int) -> pa.Table:
        """The first rows that come; no more are read than it takes."""
        left, found, reader = check_number("num_rows", num_rows), list[pa.RecordBatch](), self.to_reader()
        for batch in reader if left else ():
            found.append(batch.slice(0, left))
            left -= found[-1].num_rows
            if not left:
                break
        return pa.Table.from_batches(found, reader.schema)

    def take(self, indices: Any) -> pa.Table:
        """The rows at these places of the stream."""
        return self.to_table().take(indices)

    def count_rows(self) -> int:
        """How many rows there are."""
        return self._scan(None, self._filter).count_rows()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.to_reader().__arrow_c_stream__(requested_schema)


# ---------------------------------------------------------------------------------------------------- of a table


class Readable(Protocol):
    """A table, or a view of one: it has columns, and scans."""

    @property
    def schema(self) -> pa.Schema:
        """The columns as the table stores them."""

    def scan(self, columns: Any, filter: Any, limit: int | None = None, *, consistency: Consistency) -> Scan:  # noqa: A002
        """The live rows."""


def dataset_of(table: Readable, consistency: Consistency) -> TableDataset:
    """The newest rows of a table, at every scan anew; it can be pickled if the table can."""
    return TableDataset(partial(columns_of, table), partial(_scan_of, table, consistency))


def columns_of(table: Readable) -> pa.Schema:
    """The columns that scans of a table give."""
    return pa.schema([shown_field(field) for field in table.schema])


def _scan_of(table: Readable, consistency: Consistency, columns: Any, filter: Any) -> Scan:  # noqa: A002
    return table.scan(columns, filter, consistency=consistency)


def dataset_at(tiers: Tiers) -> TableDataset:
    """The rows of one moment, for every scan the same."""
    return TableDataset(
        lambda: tiers.schema.columns,
        lambda columns, rows: Scan(lambda: tiers, Read(columns=columns, filter=rows)),
    )
