"""Arrow IPC streams as bytes: frames, limits, writing and reading.

Owns `end_of_stream`: whether a stream is there from its first message to its end-of-stream marker. Every message says how
long its metadata and its body are, in places that no version of the format has moved, so that a stream whose types,
features or metadata version are unknown can still be told from one that was cut. Layout (little-endian):

    [0xFFFFFFFF][i32 metadata length][metadata: a flatbuffer with the body's length][body] ... [0xFFFFFFFF][0]

Owns `asked_bytes`, too: what a stream asks for before Arrow allocates it. A compressed buffer begins with the bytes
that it becomes (i64; -1: it is not compressed), and a few bytes may say any number. Owns `stream_of` and `read_stream`: rows as
the bytes of one stream, and nothing else. Invariants:

1. Input is hostile; every read is bounded by it.
2. What `read_stream` returns is fully validated. Bytes that Arrow refuses, for any reason, are `CorruptDataError`, and so are
   those that would become more than `MAX_STREAM_BYTES`, before they do.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from lance_memwal.errors import CorruptDataError

_FRAME: Final = struct.Struct("<Ii")
_CONTINUATION: Final = 0xFFFFFFFF
_SIZE: Final = struct.Struct("<q")
_unsigned: Final = struct.Struct("<I").unpack_from
_back: Final = struct.Struct("<i").unpack_from
_short: Final = struct.Struct("<H").unpack_from
_VERSION, _KIND, _HEADER, _BODY_LENGTH = 0, 1, 2, 3  # Message { version, header type, header, body length, metadata }
_BUFFERS, _COMPRESSION = 2, 3  # RecordBatch { length, nodes, buffers, compression }
_ROWS = 1  # DictionaryBatch { id, data: a RecordBatch }
_DICTIONARY_BATCH, _RECORD_BATCH = b"\2", b"\3"
_V5 = b"\4"
_OLD_COMPRESSION = b"ARROW:experimental_compression"  # custom metadata of a message before V5
_MOST_BUFFERS = 1 << 20


def end_of_stream(data: bytes) -> int | None:
    """The offset after the end-of-stream marker; None if the frames do not lead there."""
    at = 0
    while at + _FRAME.size <= len(data):
        marker, length = _FRAME.unpack_from(data, at)
        if marker != _CONTINUATION or length < 0:
            return None
        begin, at = at, at + _FRAME.size
        if length == 0:
            return at if begin else None  # a stream begins with its schema
        try:
            at += length + _body_length(data[at : at + length])
        except struct.error:
            return None
    return None


def _body_length(metadata: bytes) -> int:
    """What a Message says of its body: root table, its vtable, the slot; an absent slot is the default, zero."""
    at = _slot(metadata, _unsigned(metadata)[0], _BODY_LENGTH)
    if at is None:
        return 0
    (length,) = _SIZE.unpack_from(metadata, at)
    if length < 0:
        raise struct.error("a body of less than nothing")
    return int(length)


def asked_bytes(stream: pa.Buffer) -> int:
    """What Arrow allocates for the compressed buffers of a stream; `struct.error` if that is not to be found."""
    messages = pa.ipc.MessageReader.open_stream(stream)
    return sum(decompressed_bytes(part.metadata.to_pybytes(), memoryview(part.body or b"")) for part in messages)


def decompressed_bytes(metadata: bytes, body: memoryview) -> int:
    """What Arrow allocates for the compressed buffers of a message, 0 if it has none; `struct.error` if that is not to be
    found."""
    (table,) = _unsigned(metadata)
    kind_at, header_at = _slot(metadata, table, _KIND), _slot(metadata, table, _HEADER)
    kind = b"" if kind_at is None else metadata[kind_at : kind_at + 1]
    if header_at is None or kind not in (_DICTIONARY_BATCH, _RECORD_BATCH):
        return 0
    rows = _follow(metadata, header_at)
    if kind == _DICTIONARY_BATCH:
        rows_at = _slot(metadata, rows, _ROWS)
        if rows_at is None:
            return 0
        rows = _follow(metadata, rows_at)
    if _slot(metadata, rows, _COMPRESSION) is None and not _is_compressed_as_of_old(metadata, table):
        return 0
    buffers_at = _slot(metadata, rows, _BUFFERS)
    return 0 if buffers_at is None else _sizes_in_front(metadata, _follow(metadata, buffers_at), body)


def _sizes_in_front(metadata: bytes, vector: int, body: memoryview) -> int:
    """The sum of what the buffers of a vector of (i64 offset, i64 length) say that they become."""
    (count,) = _unsigned(metadata, vector)
    if count > _MOST_BUFFERS:
        raise struct.error("too many buffers")
    total = 0
    for offset, length in struct.iter_unpack("<qq", metadata[vector + 4 : vector + 4 + 16 * count]):
        if length >= _SIZE.size and offset >= 0:
            total += max(0, _SIZE.unpack_from(body, offset)[0])
    return total


def _is_compressed_as_of_old(metadata: bytes, table: int) -> bool:
    at = _slot(metadata, table, _VERSION)
    return (at is None or metadata[at : at + 1] < _V5) and _OLD_COMPRESSION in metadata


def _follow(metadata: bytes, at: int) -> int:
    """Where the reference at `at` leads."""
    return at + int(_unsigned(metadata, at)[0])


def _slot(metadata: bytes, table: int, number: int) -> int | None:
    """Where a table of a flatbuffer has a value: its vtable says that by number; None: it is absent, and the default."""
    vtable = table - _back(metadata, table)[0]
    if vtable < 0:
        raise struct.error("the vtable is outside")
    at = 4 + 2 * number
    if at + 2 > _short(metadata, vtable)[0]:
        return None
    (offset,) = _short(metadata, vtable + at)
    return table + offset if offset else None


# ------------------------------------------------------------------------------------------------------------ streams


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
