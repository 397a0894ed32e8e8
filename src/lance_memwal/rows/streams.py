"""Rows as the bytes of one Arrow IPC stream, and nothing besides.

Owns `stream_of` and `read_stream`. Invariant: what `read_stream` gives is fully validated; bytes that Arrow refuses, for whatever
reason, are `CorruptDataError`.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from lance_memwal.errors import CorruptDataError

__all__ = ["read_stream", "stream_of"]


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
        table = pa.ipc.open_stream(data).read_all()
        table.validate(full=True)
    except (pa.ArrowException, ValueError, TypeError, EOFError, OSError) as error:
        raise CorruptDataError(f"{what} cannot be read: {error}", path=path) from None
    return table
