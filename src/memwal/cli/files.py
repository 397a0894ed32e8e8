"""Data files as batches: Parquet, CSV, JSON lines, Arrow.

Owns reading of input files. Invariant: a file is streamed, never loaded whole, except JSON lines blocks.

Called by: `memwal put`, `memwal create`, `memwal delete`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.ipc as ipc
import pyarrow.json
import pyarrow.parquet as pq

from memwal.errors import InvalidInputError

__all__ = ["read_batches", "read_schema", "total_rows"]

_KINDS = ".parquet, .csv, .json, .jsonl, .ndjson, .arrow, .arrows, .feather"


def read_batches(path: Path, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """The rows of one file in batches of at most `batch_rows`."""
    try:
        for batch in _open(path, batch_rows):
            for start in range(0, batch.num_rows, batch_rows):
                yield batch.slice(start, batch_rows)
    except FileNotFoundError:
        raise InvalidInputError(f"there is no file {path}") from None
    except pa.ArrowException as error:
        raise InvalidInputError(f"{path} cannot be read: {(str(error).splitlines() or [''])[0]}") from None


def _open(path: Path, batch_rows: int) -> Iterator[pa.RecordBatch]:
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(batch_size=batch_rows)
    elif suffix == ".csv":
        with pyarrow.csv.open_csv(path) as reader:
            yield from reader
    elif suffix in (".json", ".jsonl", ".ndjson"):
        yield from pyarrow.json.read_json(path).to_batches(max_chunksize=batch_rows)
    elif suffix in (".arrow", ".feather"):
        yield from _arrow_file(path)
    elif suffix == ".arrows":
        with ipc.open_stream(path) as reader:
            yield from reader
    else:
        raise InvalidInputError(f"{path.name}: unknown kind of file; known: {_KINDS}")


def _arrow_file(path: Path) -> Iterator[pa.RecordBatch]:
    try:
        with ipc.open_file(path) as reader:
            for i in range(reader.num_record_batches):
                yield reader.get_batch(i)
    except pa.ArrowInvalid:
        with ipc.open_stream(path) as stream:
            yield from stream


def read_schema(path: Path) -> pa.Schema:
    """The columns of a file."""
    for batch in read_batches(path, 1024):
        return batch.schema
    raise InvalidInputError(f"{path} holds no rows, so it has no columns")


def total_rows(path: Path) -> int | None:
    """How many rows the file has, where that is cheap to know."""
    if path.suffix.lower() == ".parquet":
        try:
            return int(pq.read_metadata(path).num_rows)
        except (OSError, pa.ArrowException):
            return None
    return None
