"""A write as it goes from one process to another, and its answer.

Owns `Request`, `perform` and the bytes of both directions. Invariants:

1. A message is data only: JSON and Arrow streams, checked when they are read. Nothing in it is executed.
2. A write does the same wherever it is performed: `perform` is the only way.
3. An error arrives as the error that it was, with its attributes; one that is not ours arrives as `UnavailableError`.

    message = length of the header (4 bytes, little-endian) | header (JSON) | Arrow streams, one after the other

The header of a request says `table`, `shard`, `epoch`, `verb`, `options`, `txn`, and in `parts` the lengths of the streams:
each part of a write is a list of streams (batches of equal columns share one), or null.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from lance_memwal import errors
from lance_memwal.errors import InvalidInputError, MemWalError, UnavailableError
from lance_memwal.shard_writer import ShardWriter
from lance_memwal.types import Transaction
from lance_memwal.write.changes import Settings
from lance_memwal.write.results import WriteResult

__all__ = [
    "Message",
    "Request",
    "decode",
    "decode_answer",
    "encode_answer",
    "encode_error",
    "encode_request",
    "perform",
    "request_of",
]

_LENGTH = struct.Struct("<I")
_LARGEST_BYTES = 1 << 30
_KINDS = {
    kind.__name__: kind
    for kind in map(vars(errors).get, errors.__all__)
    if isinstance(kind, type) and issubclass(kind, MemWalError)
}
_ATTRIBUTES = ("our_epoch", "current_epoch", "ambiguous", "retryable", "path", "position")

Rows = list[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class Request:
    """One write: its verb, its rows (or keys) in parts, and its options, which are JSON values."""

    verb: str
    parts: tuple[Rows | None, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


def perform(writer: ShardWriter, request: Request, txn: Transaction | None) -> WriteResult | bool | None:
    """What the writer does with a write."""
    parts, options = request.parts, request.options
    match request.verb:
        case "put":
            return writer.put(
                parts[0], txn=txn, missing=options["missing"], if_absent=options["if_absent"], where=options["where"]
            )
        case "delete":
            sequence = None if parts[1] is None else parts[1][0].column(0)[0].as_py()
            return writer.delete(_batch(parts[0]), txn=txn, count=options["count"], sequence=sequence)
        case "update":
            return writer.update(parts[0], txn=txn, insert=options["insert"])
        case "insert":
            return writer.insert(parts[0], txn=txn, missing=options["missing"])
        case "update_matching":
            settings = Settings(options["set"], None if parts[1] is None else parts[1][0])
            return writer.update_matching(_table(parts[0]), options["where"], settings, txn)
        case "delete_matching":
            return writer.delete_matching(_table(parts[0]), options["where"], txn)
        case "compare_and_set":
            key = _table(parts[0]).to_pylist()[0]
            return writer.compare_and_set(key, parts[1], parts[2], txn=txn)
        case "evolve_schema":
            writer.evolve_schema()
        case "seal":
            writer.force_seal_active()
        case "drain":
            writer.wait_for_flush_drain(options["seconds"])
        case other:
            raise InvalidInputError(f"the owner of the shard does not know {other!r}; use the same version everywhere")
    return None


def _table(rows: Rows | None) -> pa.Table:
    return pa.Table.from_batches(rows or [])


def _batch(rows: Rows | None) -> Any:
    return rows[0] if rows is not None and len(rows) == 1 else _table(rows)


# ------------------------------------------------------------------------------------------------------------- messages


@dataclass(frozen=True, slots=True)
class Message:
    """A header and the streams that follow it."""

    header: dict[str, Any]
    body: pa.Buffer


def encode_request(request: Request, to: Mapping[str, Any], txn: Transaction | None) -> bytes:
    """The bytes of a request; `to` says who is asked."""
    streams: list[pa.Buffer] = []
    parts = [None if rows is None else _streams(rows, streams) for rows in request.parts]
    mark = None if txn is None else [txn.app, txn.version, txn.query]
    header = {**to, "verb": request.verb, "options": request.options, "txn": mark, "parts": parts}
    return _message(header, streams)


def request_of(message: Message) -> tuple[Request, Transaction | None]:
    """The request in a message; `InvalidInputError` if it is none."""
    header, at = message.header, 0
    try:
        parts: list[Rows | None] = []
        for lengths in header["parts"]:
            rows: Rows | None = None if lengths is None else []
            for length in lengths or ():
                rows = [*(rows or ()), *_read(message.body.slice(at, length))]
                at += length
            parts.append(rows)
        mark = header["txn"]
        txn = None if mark is None else Transaction(str(mark[0]), int(mark[1]), mark[2])
        return Request(str(header["verb"]), tuple(parts), dict(header["options"])), txn
    except (KeyError, TypeError, ValueError, IndexError, pa.ArrowException) as error:
        raise InvalidInputError(f"not a request that this version understands: {error}") from error


def _streams(rows: Sequence[pa.RecordBatch], streams: list[pa.Buffer]) -> list[int]:
    """Append the streams of `rows`; returns their lengths."""
    lengths, at = [], 0
    while at < len(rows):
        schema, sink = rows[at].schema, pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as stream:
            while at < len(rows) and rows[at].schema.equals(schema, check_metadata=True):
                stream.write_batch(rows[at])
                at += 1
        streams.append(sink.getvalue())
        lengths.append(streams[-1].size)
    return lengths


def _read(data: pa.Buffer) -> Rows:
    aligned = pa.ipc.IpcReadOptions(ensure_alignment=pa.ipc.Alignment.At64Byte)  # as Lance needs them
    with pa.ipc.open_stream(data, options=aligned) as stream:
        found = list(stream)
    for batch in found:
        batch.validate(full=True)
    return found


def _message(header: Mapping[str, Any], streams: Sequence[pa.Buffer] = ()) -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    data = b"".join([_LENGTH.pack(len(text)), text, *streams])
    if len(data) > _LARGEST_BYTES:
        raise InvalidInputError(f"a write of {len(data):,} bytes is too large to be forwarded; split it")
    return data


def decode(data: pa.Buffer) -> Message:
    """The message in these bytes; `InvalidInputError` if there is none."""
    view = memoryview(data)
    try:
        (length,) = _LENGTH.unpack_from(view)
        header = json.loads(bytes(view[_LENGTH.size : _LENGTH.size + length]))
        if not isinstance(header, dict):
            raise InvalidInputError("a message without a header")
    except (struct.error, ValueError, RecursionError) as error:
        raise InvalidInputError(f"a message that cannot be read: {error}") from error
    return Message(header, data.slice(_LENGTH.size + length))


# -------------------------------------------------------------------------------------------------------------- answers


def encode_answer(result: WriteResult | bool | int | None) -> bytes:
    """The bytes of an answer."""
    if not isinstance(result, WriteResult):
        return _message({"plain": result})
    streams: list[pa.Buffer] = []
    if result.rejected is not None:
        _streams(result.rejected.to_batches(), streams)
    positions = result.batch_positions
    told = [positions.start, positions.stop, result.skipped, result.written, result.matched, len(streams)]
    return _message({"result": told}, streams)


def encode_error(error: BaseException) -> bytes:
    """The bytes of an answer that is an error."""
    if not isinstance(error, MemWalError):
        error = UnavailableError(f"the owner of the shard failed: {type(error).__name__}: {error}")
    kept = {name: value for name in _ATTRIBUTES if (value := getattr(error, name, None)) is not None}
    kind = next(name for base in type(error).__mro__ if _KINDS.get(name := base.__name__) is base)
    return _message({"error": [kind, str(error), kept]})


def decode_answer(data: pa.Buffer) -> Any:
    """What the owner answered; raises the error that it met."""
    message = decode(data)
    header = message.header
    if "error" in header:
        kind, text, kept = header["error"]
        raise errors.rebuilt(_KINDS.get(kind, MemWalError), (text,), kept)
    if "result" not in header:
        return header.get("plain")
    start, stop, skipped, written, matched, has_rejected = header["result"]
    rejected = pa.Table.from_batches(_read(message.body)) if has_rejected else None
    return WriteResult(range(start, stop), skipped, written, rejected, matched)
