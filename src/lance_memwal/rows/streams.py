"""Rows as the bytes of one Arrow IPC stream, and nothing besides.

Owns `stream_of` and `read_stream`. Invariants:

1. What `read_stream` gives is fully validated; bytes that Arrow refuses, for whatever reason, are `CorruptDataError`.
2. So are those that would become more than `MAX_STREAM_BYTES`, before they do.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from lance_memwal.errors import CorruptDataError
from lance_memwal.rows.ipc_frames import asked_bytes

__all__ = ["MAX_STREAM_BYTES", "read_stream", "stream_of"]

MAX_STREAM_BYTES: Final = 1 << 31


def stream_of(schema: pa.Schema, batches: Iterable[pa.RecordBatch], *, compression: str | None = None) -> pa.Buffer:
    """A stream that holds these batches of `schema`."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return sink.getvalue()


def read_stream(data: bytes, what: str, *, path: str | None = None) -> pa.Table:
    """The rows of a stream that comes from storage; `what` it is and its `path` are for errors."""
    try:
        if asked_bytes(pa.py_buffer(data)) <= MAX_STREAM_BYTES:
            table = pa.ipc.open_stream(data).read_all()
            table.validate(full=True)
            return table
    except (pa.ArrowException, ValueError, TypeError, EOFError, OSError, struct.error) as error:
        raise CorruptDataError(f"{what} cannot be read: {error}", path=path) from None
    raise CorruptDataError(f"{what} would have more than {MAX_STREAM_BYTES} bytes", path=path)
