"""Rows as the bytes of one Arrow IPC stream, and nothing besides."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

__all__ = ["stream_of"]


def stream_of(schema: pa.Schema, batches: Iterable[pa.RecordBatch], *, compression: str | None = None) -> pa.Buffer:
    """A stream that holds these batches of `schema`."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return sink.getvalue()
