"""Rows as files of other programs: CSV, JSON lines, Parquet, Arrow.

Owns what `--format` means for rows that are printed. Invariants:

1. Rows are streamed: no more than a batch is held.
2. There is one header, whatever the number of batches, and one even if there are no rows.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import Any, Literal

import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet as pq

from lance_memwal.cli.output import rows_as_json
from lance_memwal.errors import InvalidInputError, reason_of

__all__ = ["Format", "write_rows"]

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
