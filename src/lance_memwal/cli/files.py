"""Data files in and out: Parquet, CSV, JSON lines, Arrow.

Owns the reading of input files, and what `--format` means for rows that are printed. Invariants:

1. A file is streamed, never loaded whole; so is standard input, except for Parquet, which is kept in a temporary file. Output
   holds no more than a batch, and has one header, also if there are no rows.
2. Text (CSV, JSON) is read with the types of the table's columns where it has them, so that the key "007" stays a text.
3. Nothing in lines of JSON ends the process: each block is checked as Arrow reads it, by itself.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Literal

import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.ipc as ipc
import pyarrow.json
import pyarrow.parquet as pq

from lance_memwal.cli.output import rows_as_json
from lance_memwal.errors import InvalidInputError, reason_of
from lance_memwal.rows.json_values import nesting

_SUFFIXES = {"csv": ".csv", "jsonl": ".jsonl", "parquet": ".parquet", "arrow": ".arrow"}
_BLOCK_BYTES = 1 << 20
_LONGEST_LINE_BYTES = 16 << 20
_DEEPEST = 1_000  # Arrow's reader of JSON overflows its stack between 8,000 and 20,000
_STRINGS = re.compile(rb'"(?:[^"\\\n]++|\\.)*+"?')  # one that is not closed is taken whole: each byte is looked at once
_SKIPPED = b" \t\r\n\xef\xbb\xbf"  # at the start of what Arrow reads: spaces, and any part of a byte order mark
_NULL_IN_FRONT = re.compile(rb"(?:\A|[\]}])null")
_MARKS = re.compile(rb"[\[\]{}]|null")
_STEPS = {b"[": 1, b"{": 1, b"]": -1, b"}": -1}
_KINDS = ".parquet, .csv, .json, .jsonl, .ndjson, .arrow, .arrows, .feather"


class DataFile:
    """One input file. `size_bytes` and `done_bytes` say how much there is and how much of it was read."""

    def __init__(self, path: Path, columns: pa.Schema | None = None, kind: str | None = None) -> None:
        """`columns`: those of the table, whose types text is read with. `kind` says what the name does not; the path "-" is
        standard input, which has no name."""
        self._path = path
        self._columns = columns
        self._suffix = path.suffix.lower() if kind is None else _SUFFIXES[kind]
        self._done: Callable[[], int] = lambda: 0
        self._is_pipe = str(path) == "-"
        self.size_bytes = 0
        if self._is_pipe:
            if kind is None:
                raise InvalidInputError("standard input has no name: say with --format what it holds")
            return
        try:
            self.size_bytes = path.stat().st_size
        except OSError as error:
            raise _unreadable(path, error) from None
        if not path.is_file():
            raise InvalidInputError(f"{path} is no file: give data files by name")

    @property
    def done_bytes(self) -> int:
        """Bytes that were read so far."""
        return self._done()

    @property
    def schema(self) -> pa.Schema:
        """The columns of the file."""
        with self._opened(1024) as (schema, _):
            return schema

    def batches(self, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """The rows in batches of at most `batch_rows`."""
        with self._opened(batch_rows) as (_, batches):
            for batch in batches:
                for start in range(0, batch.num_rows, batch_rows):
                    yield batch.slice(start, batch_rows)

    @contextmanager
    def _opened(self, batch_rows: int) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
        try:
            with ExitStack() as open_files:
                schema, batches = self._open(batch_rows, open_files)
                _ = schema.names  # raises if one is no text
                yield schema, batches
            self._done = lambda: self.size_bytes
        except OSError as error:
            raise _unreadable(self._path, error) from None
        except (pa.ArrowException, UnicodeDecodeError) as error:  # the latter: a name that is no text
            raise InvalidInputError(f"{self._path} cannot be read: {reason_of(error)}") from None

    def _open(self, batch_rows: int, open_files: ExitStack) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        suffix = self._suffix
        if suffix == ".parquet":
            return self._parquet(batch_rows, open_files)
        if suffix in (".arrow", ".feather") and not self._is_pipe:
            return self._arrow_file(open_files)
        suffix = ".arrows" if suffix == ".arrow" else suffix
        if suffix not in (".csv", ".json", ".jsonl", ".ndjson", ".arrows"):
            raise InvalidInputError(f"{self._path.name}: unknown kind of file; known: {_KINDS}")
        source = open_files.enter_context(self._source())
        if not self._is_pipe:
            self._done = lambda: int(source.tell())
        if suffix == ".csv":
            types = {field.name: field.type for field in self._known(pa.types.is_nested)}
            reader = pyarrow.csv.open_csv(source, convert_options=pyarrow.csv.ConvertOptions(column_types=types))
        elif suffix == ".arrows":
            reader = ipc.open_stream(source)
        else:
            return self._json(source)
        open_files.callback(reader.close)  # first, since it may read ahead
        return reader.schema, iter(reader)

    def _source(self) -> pa.NativeFile:
        return pa.PythonFile(sys.stdin.buffer, "r") if self._is_pipe else pa.OSFile(str(self._path))

    def _json(self, source: pa.NativeFile) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Dates are texts in JSON; Arrow's reader would take numbers for them."""
        known = self._known(lambda kind: pa.types.is_nested(kind) or pa.types.is_binary(kind))
        asked = [field.with_type(pa.string()) if pa.types.is_date(field.type) else field for field in known]
        tables = _json_tables(source, pa.schema(asked))
        first = next(tables, None)
        if first is None or not first.num_columns:
            raise InvalidInputError(f"{self._path} cannot be read: its first lines hold no values")
        dates = {field.name: field.type for field in known if pa.types.is_date(field.type)}
        schema = pa.schema([field.with_type(dates.get(field.name, field.type)) for field in first.schema])
        return schema, (batch.cast(schema) for table in chain([first], tables) for batch in table.to_batches())

    def _known(self, leave_out: Callable[[pa.DataType], bool]) -> list[pa.Field]:
        """The table's columns whose types can be asked for; the others are guessed, and fitted later."""
        return [field for field in self._columns or () if not leave_out(field.type)]

    def _parquet(self, batch_rows: int, open_files: ExitStack) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        where: Any = self._path
        if self._is_pipe:  # its end comes first
            where = open_files.enter_context(TemporaryFile())  # noqa: SIM115 (the stack closes it)
            shutil.copyfileobj(sys.stdin.buffer, where)
        file = open_files.enter_context(pq.ParquetFile(where))
        total, done = max(file.metadata.num_rows, 1), 0

        def batches() -> Iterator[pa.RecordBatch]:
            nonlocal done
            for batch in file.iter_batches(batch_size=batch_rows):
                done += batch.num_rows
                yield batch

        self._done = lambda: self.size_bytes * done // total
        return file.schema_arrow, batches()

    def _arrow_file(self, open_files: ExitStack) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        source = open_files.enter_context(pa.memory_map(str(self._path)))
        try:
            reader: Any = ipc.open_file(source)
        except pa.ArrowInvalid:  # a stream under the name of a file
            source.seek(0)
            reader = ipc.open_stream(source)
            return reader.schema, iter(reader)
        total, done = max(reader.num_record_batches, 1), 0

        def batches() -> Iterator[pa.RecordBatch]:
            nonlocal done
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)
                done = number + 1

        self._done = lambda: self.size_bytes * done // total
        return reader.schema, batches()


def _json_tables(source: pa.NativeFile, asked: pa.Schema) -> Iterator[pa.Table]:
    """The rows of lines of JSON, block by block. The first rows decide about columns and their types.

    Every block is read whole by Arrow, in this thread: it reads nothing ahead, and what it is given was looked at as it is.
    """
    schema, unexpected = asked, "infer"
    for block in _blocks(source):
        _refuse_unsafe(block)
        rows = pyarrow.json.read_json(
            pa.BufferReader(block),
            pyarrow.json.ReadOptions(use_threads=False, block_size=len(block) + 1),
            pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected),
        )
        if rows.num_rows:
            schema, unexpected = rows.schema, "error"
            yield rows


def _blocks(source: pa.NativeFile) -> Iterator[bytes]:
    """All bytes, in pieces of whole lines, each with its end: Arrow reads what stands behind the last end of a line apart."""
    begun, more = b"", source.read(_BLOCK_BYTES)
    while more:
        begun, more = begun + more, source.read(_BLOCK_BYTES)
        end = begun.rfind(b"\n") + 1 if more else len(begun)
        if end:
            yield begun[:end] if more else begun + b"\n"
        begun = begun[end:]
        if len(begun) > _LONGEST_LINE_BYTES:
            raise InvalidInputError(f"the JSON cannot be read: a line is longer than {_LONGEST_LINE_BYTES >> 20} MiB")


def _refuse_unsafe(lines: bytes) -> None:
    """Refuse what ends the process in Arrow's reader: rows that are null, and values that nest too deep."""
    if nesting(lines) > _DEEPEST:
        raise InvalidInputError(f"the JSON cannot be read: it nests more than {_DEEPEST} values")
    if _NULL_IN_FRONT.search(lines.translate(None, _SKIPPED)) and _has_null_row(_STRINGS.sub(b"", lines)):
        raise InvalidInputError("the JSON cannot be read: a row is null; leave such lines out")


def _has_null_row(data: bytes) -> bool:
    """Whether a null is in nothing; there are no strings in `data`."""
    depth = 0
    for mark in _MARKS.findall(data):
        if mark == b"null" and depth <= 0:
            return True
        depth = max(0, depth + _STEPS.get(mark, 0))
    return False


def _unreadable(path: Path, error: OSError) -> InvalidInputError:
    if isinstance(error, FileNotFoundError):
        return InvalidInputError(f"there is no file {path}")
    return InvalidInputError(f"{path} cannot be read: {error.strerror or reason_of(error)}")


# ------------------------------------------------------------------------------------------------------------ formats


Format = Literal["csv", "jsonl", "parquet", "arrow"]


def write_rows(batches: Iterable[pa.RecordBatch], schema: pa.Schema, kind: Format) -> int:
    """Write rows to standard output; returns how many."""
    if kind == "jsonl":
        return _json_lines(batches)
    makers: dict[str, Callable[..., Any]] = {
        "csv": pyarrow.csv.CSVWriter,
        "parquet": pq.ParquetWriter,
        "arrow": pyarrow.ipc.new_stream,
    }
    count = 0
    try:
        with open(os.dup(sys.stdout.fileno()), "wb") as out, makers[kind](out, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
                count += batch.num_rows
    except BrokenPipeError:
        return count  # whoever read it has seen enough
    except pa.ArrowException as error:
        raise InvalidInputError(f"these columns cannot be written as {kind}: {reason_of(error)}") from None
    return count


def _json_lines(batches: Iterable[pa.RecordBatch]) -> int:
    count = 0
    for batch in batches:
        rows_as_json(batch.to_pylist())
        count += batch.num_rows
    return count
