"""A write as it goes from one process to another, and its answer.

Owns `Request`, `perform` and the bytes of both directions. Invariants:

1. A message is data only: JSON and Arrow messages, checked when they are read. Nothing in it is executed.
2. A write does the same wherever it is performed: `perform` is the only way, and `perform_together` for puts that share
   a message.
3. An error arrives as the error that it was, with its attributes; one that is not ours arrives as `UnavailableError`.
4. What an exchange says again and again is numbered in the order in which it was sent, and sent once: the shards that are
   meant, and the schemas of their rows.
5. Rows are not compressed, so that a message becomes no more than it is: what says that it is refused before it is read.

    message = length of the header (4 bytes, little-endian) | header (JSON) | new schemas | batches, one after the other

The header of a request says `to` (the number of a shard; `shards` has the new ones: table, shard, epoch), `verb` and
`options`; in `marks` the transactions, each with its number of rows; in `schemas` the lengths of the new schemas; and in
`parts` the batches: each part of a write is null, or a list of (number of the schema, length). A batch whose columns have
dictionaries, or one of too many schemas, is a whole Arrow stream, without a number. What is empty is left out.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa
from lance_memwal.serve.numbers import numbers_of

from lance_memwal import errors
from lance_memwal.errors import InvalidInputError, MemWalError, UnavailableError
from lance_memwal.rows.dictionaries import dictionaries
from lance_memwal.rows.ipc_frames import asked_bytes, stream_of
from lance_memwal.rows.validity import validate
from lance_memwal.shard_writer import ShardWriter
from lance_memwal.types import TOMBSTONE, EntryTransaction, Transaction
from lance_memwal.write.changes import Terms
from lance_memwal.write.request import Write, apply_to
from lance_memwal.write.results import ShardWrite, WriteResult, result_of

_LENGTH = struct.Struct("<I")
_JSON = json.JSONEncoder(separators=(",", ":"))
_LARGEST_BYTES = 1 << 30
_MOST_SCHEMAS = 32
_MOST_SHARDS = 10_000
_KINDS = {
    kind.__name__: kind
    for kind in map(vars(errors).get, errors.__all__)
    if isinstance(kind, type) and issubclass(kind, MemWalError)
}
_ATTRIBUTES = ("our_epoch", "current_epoch", "ambiguous", "retryable", "path", "position")

_UNREADABLE = (
    KeyError,
    TypeError,
    ValueError,
    IndexError,
    OverflowError,
    EOFError,
    OSError,
    struct.error,
    pa.ArrowException,
)
Rows = list[pa.RecordBatch]
ShardName = tuple[str, str, int]  # table, shard, epoch
Numbers = dict[str, int | float]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Request:
    """One write: its verb, its rows (or keys) in parts, and its options, which are JSON values.

    `is_plain`: a put of whole rows without conditions, which may share a message with others.
    """

    verb: str
    parts: tuple[Rows | None, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    is_plain: bool = False


def perform(writer: ShardWriter, request: Request, txn: Transaction | None) -> WriteResult | bool | Numbers | None:
    """What the writer does with a write; `numbers` asks how it is."""
    parts, options = request.parts, request.options
    match request.verb:
        case "put":
            conditions = {name: options[name] for name in ("missing", "if_absent", "where") if name in options}
            return writer.put(parts[0], txn=txn, **conditions)
        case "delete":
            sequence = None if parts[1] is None else parts[1][0].column(0)[0]
            return writer.delete(_batch(parts[0]), txn=txn, count=options["count"], sequence=sequence)
        case "update":
            return writer.update(parts[0], txn=txn, insert=options["insert"])
        case "append":
            return apply_to(writer, _append(parts[0] or [], Terms(**options), txn))
        case "insert":
            return writer.insert(parts[0], txn=txn)
        case "update_matching":
            values = {name: value[0] for batch in parts[1] or () for name, value in _columns(batch)}
            where, set_ = options["where"], options["set"]
            found = _table(parts[0])
            return apply_to(writer, Write("update", where=where, set=set_, values=values, txn=txn, found=found))
        case "delete_matching":
            return apply_to(writer, Write("delete", where=options["where"], txn=txn, found=_table(parts[0])))
        case "compare_and_set":
            key = _table(parts[0]).to_pylist()[0]
            return writer.compare_and_set(key, parts[1], parts[2], txn=txn)
        case "evolve_schema":
            writer.evolve_schema()
        case "seal":
            writer.force_seal_active()
        case "drain":
            writer.wait_for_flush_drain(options["seconds"])
        case "numbers":
            return numbers_of(writer).told()
        case other:
            raise InvalidInputError(f"the owner of the shard does not know {other!r}; use the same version everywhere")
    return None


def perform_together(
    writer: ShardWriter, request: Request, marks: Sequence[EntryTransaction]
) -> list[WriteResult | Exception]:
    """What the writer does with puts that share a message: whole rows, in one batch, each put with its own mark."""
    if request.verb != "put" or len(request.parts) != 1 or not request.parts[0] or len(request.parts[0]) != 1:
        raise InvalidInputError("only puts of whole rows share a message")
    counts = [mark.num_rows or 0 for mark in marks]
    if min(counts, default=0) < 1 or sum(counts) != request.parts[0][0].num_rows:
        raise InvalidInputError("the puts of one message have its rows, one after the other, and each at least one")
    results: list[WriteResult | Exception] = []
    for mark in marks:
        rows = request.parts[0][0].slice(mark.first_row, mark.num_rows)
        try:
            results.append(writer.put(rows, txn=mark.txn, missing=request.options.get("missing")))
        except Exception as error:
            results.append(error)
    return results


def _append(batches: Rows, terms: Terms, txn: Transaction | None) -> Write:
    """Rows of a sink as a write; without tombstones and conditions they are a put."""
    batches = [batch for batch in batches if batch.num_rows]
    flags = [batch.column(TOMBSTONE) for batch in batches if TOMBSTONE in batch.schema.names]
    if terms.need_a_look or any(flag.true_count for flag in flags):
        return Write("append", batches, terms=terms, txn=txn)
    names = [[name for name in batch.schema.names if name != TOMBSTONE] for batch in batches]
    live = [batch.select(names) for batch, names in zip(batches, names, strict=True)]
    return Write("put", live, terms.missing, txn=txn)


def _columns(batch: pa.RecordBatch) -> Iterable[tuple[str, pa.Array]]:
    return zip(batch.schema.names, batch.columns, strict=True)


def _table(rows: Rows | None) -> pa.Table:
    return pa.Table.from_batches(rows or [])


def _batch(rows: Rows | None) -> Any:
    return rows[0] if rows is not None and len(rows) == 1 else _table(rows)


# ------------------------------------------------------------------------------------------------------------- messages


class Book:
    """What one side of an exchange has sent to the other, by number; both keep the same book."""

    __slots__ = ("_schemas", "_shards")

    def __init__(self) -> None:
        self._schemas: list[tuple[pa.Schema, bytes, bool]] = []
        self._shards: list[ShardName] = []

    def number_of_shard(self, shard: ShardName, fresh: list[ShardName]) -> int:
        """The number of a shard; one that is new goes to `fresh`, too."""
        try:
            return self._shards.index(shard)
        except ValueError:
            fresh.append(shard)
            self._shards.append(shard)
            return len(self._shards) - 1

    def number_of(self, schema: pa.Schema, fresh: list[bytes]) -> int | None:
        """The number of a schema; one that is new goes to `fresh`, too. None: batches of it are sent as streams."""
        for number, (known, _, _) in enumerate(self._schemas):
            if known is schema or known.equals(schema, check_metadata=True):
                return number
        if len(self._schemas) >= _MOST_SCHEMAS or any(dictionaries(schema)):
            return None
        fresh.append(schema.serialize().to_pybytes())
        self._schemas.append((schema, fresh[-1], True))
        return len(self._schemas) - 1

    def learn(self, shards: Sequence[Any], schemas: Sequence[bytes]) -> None:
        """Give the next numbers to what was received."""
        if len(self._shards) + len(shards) > _MOST_SHARDS or len(self._schemas) + len(schemas) > _MOST_SCHEMAS:
            raise InvalidInputError("an exchange about too many shards or schemas")
        self._shards += map(shard_name, shards)
        for data in schemas:
            schema = pa.ipc.read_schema(pa.py_buffer(data))
            self._schemas.append((schema, data, _is_aligned_by_8(schema)))

    def shard(self, number: int) -> ShardName:
        """The shard of a number that was received."""
        return _at(self._shards, number)

    def batch(self, number: int, data: memoryview) -> Rows:
        """A batch that was received, in memory that is aligned as its types need it."""
        schema, head, is_aligned_by_8 = _at(self._schemas, number)
        if not is_aligned_by_8:
            return _read(head + data)
        room = pa.allocate_buffer(len(data))
        memoryview(room).cast("B")[:] = data
        _refuse_compressed(room)
        batch = pa.ipc.read_record_batch(room, schema)
        validate(batch)
        return [batch]


def shard_name(told: Any) -> ShardName:
    """The shard that a message names; `InvalidInputError` if it names none."""
    try:
        table, shard, epoch = told
        return str(table), str(shard), int(epoch)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInputError("a message names a shard by its table, its id and its epoch") from None


def _at(known: list[_T], number: int) -> _T:
    if not 0 <= number < len(known):
        raise InvalidInputError("a message about something that was never sent")
    return known[number]


def _is_aligned_by_8(schema: pa.Schema) -> bool:
    """Whether buffers that begin at multiples of 8 suit all columns, as those of a message do in aligned memory."""
    kinds = [field.type for field in schema]
    while kinds:
        kind = kinds.pop()
        kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
        if pa.types.is_decimal(kind):
            return False
        kinds += [kind.field(i).type for i in range(kind.num_fields)]
    return True


@dataclass(frozen=True, slots=True)
class Message:
    """A header and the bytes that follow it."""

    header: dict[str, Any]
    body: memoryview


def encode_request(request: Request, to: ShardName, marks: Sequence[EntryTransaction], book: Book) -> bytes:
    """The bytes of a request; `to` says who is asked, `book` what the other side knows."""
    shards: list[ShardName] = []
    schemas: list[bytes] = []
    bodies: list[pa.Buffer] = []
    header: dict[str, Any] = {"to": book.number_of_shard(to, shards), "verb": request.verb}
    header["parts"] = [
        None if rows is None else [_encode(batch, book, schemas, bodies) for batch in rows] for rows in request.parts
    ]
    header["marks"] = [_told_of(item) for item in marks]
    beside = {"options": request.options, "shards": shards, "schemas": [len(data) for data in schemas]}
    header.update((name, value) for name, value in beside.items() if value)
    return _message(header, [*schemas, *bodies])


def _encode(batch: pa.RecordBatch, book: Book, fresh: list[bytes], bodies: list[pa.Buffer]) -> tuple[int | None, int]:
    number = book.number_of(batch.schema, fresh)
    bodies.append(stream_of(batch.schema, [batch]) if number is None else batch.serialize())
    return number, bodies[-1].size


def request_of(message: Message, book: Book) -> tuple[ShardName, Request, list[EntryTransaction]]:
    """The request in a message, and for whom it is; `InvalidInputError` if it is none."""
    header, body, at = message.header, message.body, 0
    try:
        schemas = []
        for length in header.get("schemas", ()):
            schemas.append(bytes(body[at : at + length]))
            at += length
        book.learn(header.get("shards", ()), schemas)
        parts: list[Rows | None] = []
        for told in header["parts"]:
            rows: Rows = []
            for number, length in told or ():
                data = body[at : at + length]
                rows += _read(bytes(data)) if number is None else book.batch(number, data)
                at += length
            parts.append(None if told is None else rows)
        request = Request(str(header["verb"]), tuple(parts), dict(header.get("options", ())))
        return book.shard(header["to"]), request, _marks_of(header["marks"])
    except _UNREADABLE as error:
        raise InvalidInputError(f"not a request that this version understands: {error}") from error


def _told_of(mark: EntryTransaction) -> list[Any]:
    txn = mark.txn
    return [txn.app, txn.version, txn.query, mark.num_rows]


def _marks_of(told: Any) -> list[EntryTransaction]:
    """The marks as they were sent; whoever writes them checks them."""
    marks, first_row = [], 0
    for app, version, query, rows in told:
        marks.append(EntryTransaction(Transaction(app, version, query), first_row, rows))
        first_row += rows or 0
    return marks


def _refuse_compressed(messages: pa.Buffer) -> None:
    if asked_bytes(messages):
        raise InvalidInputError("the rows of a message are not compressed")


def _read(data: bytes) -> Rows:
    _refuse_compressed(pa.py_buffer(data))
    aligned = pa.ipc.IpcReadOptions(ensure_alignment=pa.ipc.Alignment.At64Byte)  # as Lance needs them
    with pa.ipc.open_stream(pa.py_buffer(data), options=aligned) as stream:
        found = list(stream)
    for batch in found:
        validate(batch)
    return found


def _message(header: Mapping[str, Any], bodies: Sequence[pa.Buffer | bytes] = ()) -> bytes:
    text = _JSON.encode(header).encode()
    data = b"".join([_LENGTH.pack(len(text)), text, *bodies])
    if len(data) > _LARGEST_BYTES:
        raise InvalidInputError(f"a write of {len(data):,} bytes is too large to be forwarded; split it")
    return data


def encode_header(header: Mapping[str, Any]) -> bytes:
    """The bytes of a message without rows."""
    return _message(header)


def decode(data: Any) -> Message:
    """The message in these bytes; `InvalidInputError` if there is none."""
    view = memoryview(data).cast("B")
    try:
        if len(view) > _LARGEST_BYTES:
            raise InvalidInputError("a message that is too large")
        (length,) = _LENGTH.unpack_from(view)
        header = json.loads(str(view[_LENGTH.size : _LENGTH.size + length], "utf-8"))
        if not isinstance(header, dict):
            raise InvalidInputError("a message without a header")
    except (struct.error, ValueError, RecursionError) as error:
        raise InvalidInputError(f"a message that cannot be read: {error}") from error
    return Message(header, view[_LENGTH.size + length :])


# -------------------------------------------------------------------------------------------------------------- answers


def encode_answer(result: WriteResult | bool | int | Numbers | None) -> bytes:
    """The bytes of an answer."""
    if not isinstance(result, WriteResult):
        return _message({"plain": result})
    rejected = None if result.rejected is None else result.rejected.to_batches()
    return _message(_told(result), [stream_of(rejected[0].schema, rejected)] if rejected else [])


def encode_answers(results: Sequence[WriteResult | Exception]) -> bytes:
    """The bytes of the answers to puts that shared a message."""
    return _message({"all": [_told(r) if isinstance(r, WriteResult) else _told_error(r) for r in results]})


def encode_error(error: BaseException) -> bytes:
    """The bytes of an answer that is an error."""
    return _message(_told_error(error))


def _told(result: WriteResult) -> dict[str, Any]:
    (done,) = result.shards.values()
    positions, has_rejected = done.positions, done.rejected is not None
    told = [positions.start, positions.stop, done.skipped, done.written, done.matched, has_rejected]
    return {"result": told}


def _told_error(error: BaseException) -> dict[str, Any]:
    if not isinstance(error, MemWalError):
        error = UnavailableError(f"the owner of the shard failed: {type(error).__name__}: {error}")
    kept = {name: value for name in _ATTRIBUTES if (value := getattr(error, name, None)) is not None}
    kind = next(name for base in type(error).__mro__ if _KINDS.get(name := base.__name__) is base)
    return {"error": [kind, str(error), kept]}


def decode_answer(data: Any) -> Any:
    """What the owner answered; raises the error that it met. Puts that shared a message get a list: results and errors.

    `UnavailableError` if it cannot be read: nobody knows what the owner did.
    """
    try:
        message = decode(data)
        if "all" in message.header:
            return [_result_of(told, message.body) for told in message.header["all"]]
        result = _result_of(message.header, message.body)
    except _UNREADABLE as error:
        raise UnavailableError(f"the owner of the shard answered what cannot be read: {error}") from error
    if isinstance(result, Exception):
        raise result
    return result


def _result_of(told: Mapping[str, Any], body: memoryview) -> Any:
    if "error" in told:
        kind, text, kept = told["error"]
        known = {name: kept[name] for name in _ATTRIBUTES if name in kept}
        return errors.rebuilt(_KINDS.get(kind, MemWalError), (str(text),), known)
    if "result" not in told:
        return told.get("plain")
    start, stop, skipped, written, matched, has_rejected = told["result"]
    rejected = pa.Table.from_batches(_read(bytes(body))) if has_rejected else None
    return result_of({"": ShardWrite(range(start, stop), written, matched, rejected, skipped)})
