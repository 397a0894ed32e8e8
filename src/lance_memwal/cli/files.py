"""Data files as batches: Parquet, CSV, JSON lines, Arrow.

Owns reading of input files. Invariants:

1. A file is streamed, never loaded whole; so is standard input, except for Parquet, which is kept in a temporary file.
2. Text (CSV, JSON) is read with the types of the table's columns where it has them, so that the key "007" stays a text.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc as ipc
import pyarrow.json
import pyarrow.parquet as pq

from lance_memwal.errors import InvalidInputError, reason_of

__all__ = ["DataFile"]

_SUFFIXES = {"csv": ".csv", "jsonl": ".jsonl", "parquet": ".parquet", "arrow": ".arrow"}
_DEEPEST = 1_000  # Arrow's reader of JSON overflows its stack between 8,000 and 20,000
_STRINGS = re.compile(rb'"(?:[^"\\\n]|\\.)*"')
_NULL_IN_FRONT = re.compile(rb"(?:\A|[\n}])[ \t\r\n]*null")
_MARKS = re.compile(rb"[\[\]{}]|null")
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_STEPS = np.zeros(256, dtype=np.int8)
_STEPS[list(b"[{")], _STEPS[list(b"]}")] = 1, -1
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
            return self._json(source, open_files)
        open_files.callback(reader.close)  # first, since it may read ahead
        return reader.schema, iter(reader)

    def _source(self) -> pa.NativeFile:
        return pa.PythonFile(sys.stdin.buffer, "r") if self._is_pipe else pa.OSFile(str(self._path))

    def _json(self, source: Any, open_files: ExitStack) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Dates are texts in JSON; Arrow's reader would take numbers for them."""
        known = self._known(lambda kind: pa.types.is_nested(kind) or pa.types.is_binary(kind))
        asked = [field.with_type(pa.string()) if pa.types.is_date(field.type) else field for field in known]
        options = pyarrow.json.ParseOptions(explicit_schema=pa.schema(asked))
        reader = pyarrow.json.open_json(pa.PythonFile(_SafeLines(source), "r"), parse_options=options)
        open_files.callback(reader.close)  # first, since it may read ahead
        dates = {field.name: field.type for field in known if pa.types.is_date(field.type)}
        schema = pa.schema([field.with_type(dates.get(field.name, field.type)) for field in reader.schema])
        return schema, (batch.cast(schema) for batch in reader)

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


class _SafeLines:
    """Lines of JSON without what ends the process in Arrow's reader: rows that are null, and values that nest too deep."""

    def __init__(self, source: pa.NativeFile) -> None:
        self._source = source
        self._begun = b""  # a line of which the end was not read yet

    @property
    def closed(self) -> bool:
        """Whether the file is."""
        return bool(self._source.closed)

    def close(self) -> None:
        """The one who opened the file closes it."""

    def read(self, size: int) -> bytes:
        """At most `size` bytes, whole lines where that can be; `InvalidInputError` if they are not to be read."""
        more: bytes = self._source.read(max(0, size - len(self._begun)))
        data = self._begun + more
        end = min(size, data.rfind(b"\n") + 1 if more else 0) or min(size, len(data))
        lines, self._begun = data[:end], data[end:]
        if _climb(lines) > _DEEPEST and _climb(_STRINGS.sub(b"", lines)) > _DEEPEST:
            raise InvalidInputError(f"the JSON cannot be read: it nests more than {_DEEPEST} values")
        if _NULL_IN_FRONT.search(lines) and _has_null_row(_STRINGS.sub(b"", lines)):
            raise InvalidInputError("the JSON cannot be read: a row is null; leave such lines out")
        return lines


def _has_null_row(data: bytes) -> bool:
    """Whether a null is in nothing; there are no strings in `data`."""
    depth = 0
    for mark in _MARKS.findall(data):
        if mark == b"null" and depth <= 0:
            return True
        depth = max(0, depth + int(_STEPS[mark[0]]))
    return False


def _climb(data: bytes) -> int:
    """How many more brackets are opened than closed at most, from one byte on."""
    steps = _STEPS[np.frombuffer(data.translate(None, _NO_BRACKETS), dtype=np.uint8)]
    heights = np.concatenate([[0], np.cumsum(steps, dtype=np.int64)])
    return int((heights - np.minimum.accumulate(heights)).max())


def _unreadable(path: Path, error: OSError) -> InvalidInputError:
    if isinstance(error, FileNotFoundError):
        return InvalidInputError(f"there is no file {path}")
    return InvalidInputError(f"{path} cannot be read: {error.strerror or reason_of(error)}")
