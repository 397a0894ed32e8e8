"""Decoders of what comes over the network, or from a person: messages between processes, envelopes, filters, typed keys."""

from typing import Any

_SHARD = ("0a1b2c3d", "00112233-4455-4677-8899-aabbccddeeff", 3)


def _request(data: bytes) -> Any:
    from lance_memwal.serve.wire import Book, decode, request_of

    return request_of(decode(data), Book())


def forwarded_write(data: bytes) -> None:
    """A message of a caller who knows the token."""
    _, request, _ = _request(data)
    for rows in request.parts:
        for batch in rows or ():
            batch.serialize()


def forwarded_write_corpus() -> list[bytes]:
    from decimal import Decimal

    import pyarrow as pa

    from lance_memwal.serve.wire import Book, Request, encode_request
    from lance_memwal.types import EntryTransaction, Transaction

    plain = pa.record_batch({"id": [1, 2], "s": ["a", None]})
    nested = pa.record_batch({"d": pa.array(["a", "b"]).dictionary_encode(), "n": [Decimal("1.5"), None]})
    marks = [EntryTransaction(Transaction("app", 7, "q"), 0, 2)]
    asked = [
        Request("put", ([plain],), {"missing": "null"}),
        Request("compare_and_set", ([plain.slice(0, 1)], [nested], None)),
        Request("drain", (), {"seconds": 3.5}),
    ]
    return [encode_request(request, _SHARD, marks, Book()) for request in asked]


def conversation(data: bytes) -> None:
    """An owner answers every message, and what it answers can be read."""
    from lance_memwal.errors import ClosedError, InvalidInputError
    from lance_memwal.serve.desk import Conversation, Desk, answer_greeting
    from lance_memwal.serve.wire import decode_answer

    desk, refused = Desk(), 0
    answers = [Conversation(desk).answer(data), desk.answer_hello(data), answer_greeting(data, is_full=False)[1]]
    for answer in answers:
        try:
            decode_answer(answer)
        except InvalidInputError:
            refused += 1
        except ClosedError:  # it understands, and owns nothing
            continue
    if refused == len(answers):
        raise InvalidInputError("all were refused")


def conversation_corpus() -> list[bytes]:
    from lance_memwal.serve.wire import encode_header

    hello = [encode_header({"version": 2}), encode_header({"version": 2, "shard": _SHARD})]
    return [*forwarded_write_corpus(), *hello]


def owners_answer(data: bytes) -> None:
    """An answer: a value, an error that the owner met, or one that says that it cannot be understood."""
    from lance_memwal.errors import CorruptDataError, MemWalError
    from lance_memwal.serve.wire import decode_answer

    try:
        decode_answer(data)
    except MemWalError as error:
        raise CorruptDataError("an error") from error


def owners_answer_corpus() -> list[bytes]:
    import pyarrow as pa

    from lance_memwal.serve.wire import encode_answer, encode_answers
    from lance_memwal.write.results import WriteResult

    result, some = WriteResult(range(3, 5), False, 2, None, None), pa.table({"id": [1, 2]})
    rejecting = WriteResult(range(3, 5), False, 2, some, None)
    return [encode_answer(rejecting), encode_answer(7), encode_answers([result, ValueError("no")])]


def filter_text(data: bytes) -> None:
    """A filter as it comes in a query string: read by us, then planned by Lance, on no rows."""
    import pyarrow as pa

    from lance_memwal.rows.filter import RowFilter
    from lance_memwal.rows.sql import values_of

    schema = pa.schema([("id", pa.int64()), ("note", pa.string()), ("x", pa.float64())])
    found = RowFilter(data.decode("utf-8", "surrogateescape"), schema)
    values_of("id", found.predicates())


def filter_text_corpus() -> list[bytes]:
    return [
        b"id = 3 and note in ('a', 'b''c') or not (x between 1 and 2)",
        b"id >= -7 and x < 1e3 and `note` is not null",
        b"x = cast('2' as double) and note like '%y%'",
    ]


def typed_key(data: bytes) -> None:
    """A key as a person types it, on the command line or in the page."""
    import pyarrow as pa

    from lance_memwal.errors import InvalidInputError
    from lance_memwal.rows.schema import TableSchema
    from lance_memwal.rows.text_values import typed_key

    text, refused = data.decode("utf-8", "surrogateescape"), 0
    kinds = (pa.int32(), pa.timestamp("us", "UTC"), pa.decimal128(9, 2), pa.binary(4), pa.uuid(), pa.date32())
    for kind in kinds:
        fields = [pa.field("a", kind, nullable=False), pa.field("b", pa.string(), nullable=False)]
        for key in (("a", "b"), ("a",)):
            try:
                typed_key(TableSchema(pa.schema(fields), key), text)
            except InvalidInputError:
                refused += 1
    if refused == 2 * len(kinds):
        raise InvalidInputError("all were refused")


def typed_key_corpus() -> list[bytes]:
    return [b'["7", "x"]', b'{"a": 1, "b": "y"}', b'["2026-01-31T12:00:00+01:00", "z"]', b'["00112233", "z"]']
