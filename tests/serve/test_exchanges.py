"""The way between two processes: whatever breaks on it, a write is done once, and an owner that lives stays the owner."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

import lance_memwal as mw
from lance_memwal import crash_points
from lance_memwal.lance.identity import TableWatch
from lance_memwal.rows.ipc_frames import stream_of
from lance_memwal.serve import desk, runtime
from lance_memwal.serve.record import OwnerRecords
from lance_memwal.serve.wire import Book, Request, decode, decode_answer, encode_header, encode_request, request_of
from lance_memwal.table import newest_base
from lance_memwal.types import EntryTransaction, Transaction
from tests.kit.writers import in_thread, wait_for

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])


@pytest.fixture
def table(tmp_path: Path) -> mw.Table:
    return mw.create_table(str(tmp_path / "t"), SCHEMA, writer_defaults={"fsync": False})


@pytest.fixture
def owner(table: mw.Table) -> Iterator[mw.TableWriter]:
    with table.writer(shared=True) as owner:
        owner.put([{"id": 0, "v": "owner"}])
        yield owner


@pytest.fixture
def other(table: mw.Table, owner: mw.TableWriter) -> Iterator[mw.TableWriter]:
    with table.writer(shared=True) as other:
        other.put([{"id": 1, "v": "other"}])
        assert other.owned_shards == set()
        yield other


def ids(table: mw.Table) -> list[int]:
    return sorted(table.scan(columns=["id"]).to_table().column("id").to_pylist())


class Caller:
    """Somebody who knows the token, and says what it likes."""

    def __init__(self, table: mw.Table) -> None:
        [shard] = table.shards()
        found = OwnerRecords(table.location, shard.shard_id).find(shard.epoch)
        assert found is not None
        self.address, self.shard = found.address, shard
        word = runtime.Secret(runtime.token()).word_for(found.address)
        self.client = flight.FlightClient(found.address)
        self.options = flight.FlightCallOptions(headers=[(b"authorization", word)], timeout=30)

    def exchange(self, greeting: dict[str, Any]) -> tuple[Any, Any, Any]:
        """An exchange, and what the greeting was answered with."""
        descriptor = flight.FlightDescriptor.for_command(desk.GREETING)
        writer, reader = self.client.do_exchange(descriptor, self.options)
        writer.write_metadata(bytes(runtime.NONCE_BYTES) + encode_header(greeting))
        return writer, reader, reader.read_chunk().app_metadata.to_pybytes()[runtime.PROOF_BYTES :]

    def ask(self, writer: Any, reader: Any, message: bytes) -> Any:
        """The answer to a message."""
        writer.write_metadata(message)
        return decode_answer(reader.read_chunk().app_metadata.to_pybytes())

    def end(self, writer: Any, reader: Any) -> None:
        """Leave, without a wait."""
        reader.cancel()
        with pytest.raises(pa.ArrowException):
            writer.close()


def test_threads_of_one_process_share_messages_and_each_put_has_its_own_result(
    table: mw.Table, other: mw.TableWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    real = desk.perform_together

    def watched(writer: Any, request: Any, marks: Any) -> Any:
        sizes.append(len(marks))
        return real(writer, request, marks)

    monkeypatch.setattr(desk, "perform_together", watched)
    written: list[int] = []

    def work(name: int) -> None:
        for number in range(40):
            rows = [{"id": name * 1000 + 2 * number + k, "v": "t"} for k in range(1 + number % 2)]
            written.append(other.put(rows).written - len(rows))

    threads = [threading.Thread(target=work, args=(name,)) for name in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sizes, "no message was shared"
    assert written == [0] * 320
    assert len(ids(table)) == 2 + 8 * 60


def test_an_owner_that_is_slow_is_asked_again_and_stays_the_owner(
    table: mw.Table, owner: mw.TableWriter, other: mw.TableWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exchange that never answers: the write is sent once more over another one, under its mark."""
    monkeypatch.setattr("lance_memwal.serve.channel.ANSWER_SECONDS", 0.3)
    stuck, go_on = threading.Event(), threading.Event()

    def hold(point: str) -> None:
        if point == "serve.before_answer" and not stuck.is_set():
            stuck.set()
            go_on.wait(30)

    crash_points.install(hold)
    try:
        result = other.put([{"id": 2, "v": "a"}, {"id": 3, "v": "a"}])
    finally:
        crash_points.install(None)
        go_on.set()
    assert stuck.is_set()
    assert (result.written, result.skipped) == (2, False)
    assert len(owner.owned_shards) == 1
    assert table.shards()[0].epoch == 1
    assert ids(table) == [0, 1, 2, 3]


def test_messages_that_make_no_sense_are_answered_and_the_exchange_goes_on(
    table: mw.Table, other: mw.TableWriter
) -> None:
    caller = Caller(table)
    writer, reader, told = caller.exchange({"version": desk.WIRE_VERSION})
    assert decode_answer(told) == 0
    batch = pa.record_batch([pa.array([7]), pa.array(["x"])], schema=SCHEMA)
    name = ("table", caller.shard.shard_id, caller.shard.epoch)
    whole = encode_request(Request("put", ([batch],)), name, [EntryTransaction(Transaction("a", 1))], Book())
    size = struct.unpack_from("<I", whole)[0]
    nonsense = [
        b"\x01",
        b"\xff" * 40,
        b"\x02\0\0\0{}",
        b"\x02\0\0\0[]",
        struct.pack("<I", 1 << 31) + whole[4:],
        whole[: 4 + size // 2],
        whole[:-40],
        encode_header({"to": 0, "verb": "put", "parts": [[[31, 8]]], "marks": []}),
        encode_header({"to": -1, "verb": "put", "parts": [], "marks": []}),
        encode_header({"to": 0, "verb": "put", "parts": [[[0, -5]]], "marks": []}),
        encode_header({"to": 0, "verb": "erase", "parts": [], "marks": [["a", 1, None, 1]] * 2}),
        encode_header({"to": 0, "verb": "put", "parts": [], "marks": "abc"}),
        encode_header({"to": 0, "shards": [["t", "s", 1]] * 20_000, "verb": "put", "parts": [], "marks": []}),
        encode_header({"to": 0, "schemas": [5], "verb": "put", "parts": [], "marks": []}),
    ]
    for message in nonsense:
        with pytest.raises(mw.MemWalError):
            caller.ask(writer, reader, message)
    caller.end(writer, reader)
    assert other.put([{"id": 2, "v": "a"}]).written == 1
    assert ids(table) == [0, 1, 2]


def test_rows_that_are_not_those_of_their_puts_are_refused(table: mw.Table, other: mw.TableWriter) -> None:
    caller = Caller(table)
    name = (TableWatch(newest_base(table)).table_id or "", caller.shard.shard_id, caller.shard.epoch)
    batch = pa.record_batch([pa.array([7, 8]), pa.array(["x", "y"])], schema=SCHEMA)
    book = Book()
    writer, reader, _ = caller.exchange({"version": desk.WIRE_VERSION})
    for counts in ((1, 2), (0, 2), (None, 1), (3, -1)):
        marks = [EntryTransaction(Transaction(f"a{k}", 1), 0, rows) for k, rows in enumerate(counts)]
        with pytest.raises(mw.InvalidInputError):
            caller.ask(writer, reader, encode_request(Request("put", ([batch],)), name, marks, book))
    marks = [EntryTransaction(Transaction(f"a{k}", 1), 0, 1) for k in range(2)]
    done = caller.ask(writer, reader, encode_request(Request("put", ([batch],)), name, marks, book))
    assert [result.written for result in done] == [1, 1]
    caller.end(writer, reader)
    assert ids(table) == [0, 1, 7, 8]


def test_a_mark_that_no_reader_would_understand_is_refused(table: mw.Table, other: mw.TableWriter) -> None:
    caller = Caller(table)
    name = (TableWatch(newest_base(table)).table_id or "", caller.shard.shard_id, caller.shard.epoch)
    batch = pa.record_batch([pa.array([7, 8]), pa.array(["x", "y"])], schema=SCHEMA)
    book = Book()
    writer, reader, _ = caller.exchange({"version": desk.WIRE_VERSION})
    for number, wrong in enumerate((1 << 64, -1, 1.5, "1", None)):
        marks = [
            EntryTransaction(Transaction("a", number), 0, 1),
            EntryTransaction(Transaction("b", wrong), 0, 1),  # type: ignore[arg-type]
        ]
        done = caller.ask(writer, reader, encode_request(Request("put", ([batch],)), name, marks, book))
        assert done[0].written == 1
        assert isinstance(done[1], mw.InvalidInputError), wrong
    caller.end(writer, reader)
    assert ids(table) == [0, 1, 7, 7, 7, 7, 7]


def test_another_version_is_refused_in_words_and_takes_nothing_over(
    table: mw.Table, owner: mw.TableWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = Caller(table)
    writer, reader, told = caller.exchange({"version": 1})
    with pytest.raises(mw.InvalidInputError, match="same version"):
        decode_answer(told)
    caller.end(writer, reader)
    monkeypatch.setattr("lance_memwal.serve.channel.WIRE_VERSION", 3)
    with table.writer(shared=True) as newer, pytest.raises(mw.InvalidInputError, match="same version"):
        newer.put([{"id": 5, "v": "x"}])
    assert len(owner.owned_shards) == 1
    assert ids(table) == [0]


def noted_refusals(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Greetings that are answered with "full" from now on."""
    answer, refused = desk.answer_greeting, []

    def noted(body: Any, *, is_full: bool) -> tuple[bool, bytes]:
        is_in, told = answer(body, is_full=is_full)
        if not is_in:
            refused.append(told)
        return is_in, told

    monkeypatch.setattr("lance_memwal.serve.office.answer_greeting", noted)
    return refused


def test_an_owner_without_room_is_waited_for_and_not_replaced(table: mw.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lance_memwal.serve.office._MOST_EXCHANGES", 2)
    with table.writer(shared=True) as owner, table.writer(shared=True) as other:
        owner.put([{"id": 0, "v": "a"}])
        caller = Caller(table)
        taken = [caller.exchange({"version": desk.WIRE_VERSION}) for _ in range(4)]
        assert [decode_answer(told) for _, _, told in taken] == [0, 0, desk.FULL, desk.FULL]
        refused = noted_refusals(monkeypatch)
        putting = in_thread(lambda: other.put([{"id": 1, "v": "b"}]))
        wait_for(lambda: len(refused) >= 2)
        assert putting.running
        for writer, reader, _ in taken:
            caller.end(writer, reader)
        assert putting.result().written == 1
        assert len(owner.owned_shards) == 1
        assert table.shards()[0].epoch == 1
    assert ids(table) == [0, 1]


def threads() -> set[str]:
    """The threads of this process, those of its libraries too."""
    return set(os.listdir("/proc/self/task"))


def test_many_callers_cost_a_bounded_number_of_threads(
    table: mw.Table, owner: mw.TableWriter, other: mw.TableWriter
) -> None:
    """Connections that say nothing, strangers, and more exchanges than there may be."""
    caller, before = Caller(table), threads()
    with ExitStack() as ending:
        port = int(caller.address.rpartition(":")[2])
        for number in range(200):
            silent = ending.enter_context(socket.create_connection(("127.0.0.1", port), 5))
            silent.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" if number % 2 else b"GET / HTTP/1.1\r\n\r\n")
        strangers = flight.FlightClient(caller.address)
        for _ in range(50):
            with pytest.raises(flight.FlightUnauthenticatedError):
                list(strangers.do_action(flight.Action(desk.HELLO, b"")))
        answers = []
        for _ in range(280):
            writer, reader, told = caller.exchange({"version": desk.WIRE_VERSION})
            ending.callback(caller.end, writer, reader)
            answers.append(decode_answer(told))
        assert answers.count(desk.FULL) >= 280 - 256
        assert len(threads() - before) < 256 + 50
    assert other.put([{"id": 2, "v": "a"}]).written == 1
    assert len(owner.owned_shards) == 1


def test_a_write_that_is_too_large_is_refused_before_it_is_sent(
    table: mw.Table, other: mw.TableWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lance_memwal.serve.wire._LARGEST_BYTES", 100_000)
    with pytest.raises(mw.InvalidInputError, match="too large"):
        other.put([{"id": 2, "v": "x" * 200_000}])
    assert other.put([{"id": 3, "v": "x" * 50_000}]).written == 1
    assert ids(table) == [0, 1, 3]


def test_compressed_rows_are_refused_before_they_become_large() -> None:
    """A caller sends none: a few bytes that say that they become gigabytes must not."""
    batch = pa.record_batch({"id": pa.array([0] * 1_000, pa.int64())})
    whole = stream_of(batch.schema, [batch], compression="zstd")
    schema, rows = (message.serialize().to_pybytes() for message in pa.ipc.MessageReader.open_stream(whole))
    asked = {"to": 0, "shards": [["t", "s", 1]], "verb": "put", "marks": []}
    by_number = {**asked, "schemas": [len(schema)], "parts": [[[0, len(rows)]]]}
    as_stream = {**asked, "parts": [[[None, whole.size]]]}
    for header, body in ((by_number, schema + rows), (as_stream, bytes(whole))):
        with pytest.raises(mw.InvalidInputError, match="not compressed"):
            request_of(decode(encode_header(header) + body), Book())
    with pytest.raises(mw.UnavailableError, match="not compressed"):
        decode_answer(encode_header({"result": [0, 1, 0, 1, None, True]}) + bytes(whole))


def test_columns_of_every_kind_arrive_as_they_were(tmp_path: Path) -> None:
    """Dictionaries go as whole streams, decimals in memory that is aligned for them."""
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("d", pa.dictionary(pa.int16(), pa.string())),
            ("n", pa.decimal128(20, 2)),
            ("l", pa.list_(pa.float32())),
            ("s", pa.struct([("a", pa.decimal128(9, 1)), ("b", pa.timestamp("us"))])),
            ("f", pa.list_(pa.float32(), 2)),
        ]
    )
    table = mw.create_table(str(tmp_path / "t"), schema, primary_key="id", writer_defaults={"fsync": False})

    def row(key: int) -> dict[str, Any]:
        return {
            "id": key,
            "d": f"d{key}",
            "n": Decimal(key),
            "l": [1.0, key],
            "s": {"a": Decimal(1), "b": None},
            "f": [key, 2.0],
        }

    with table.writer(shared=True) as owner, table.writer(shared=True) as other:
        owner.put([row(0)])
        for key in range(1, 4):
            other.put([row(key)])
        other.update([{"id": 2, "n": Decimal("2.50")}])
        assert other.owned_shards == set()
        assert other.get(2) == {**row(2), "n": Decimal("2.50")}
        assert other.put([row(3)], where="excluded.id = id").written == 1, "SQL over what arrived"
    assert table.verify().ok


def test_exchanges_that_nobody_uses_end_by_themselves(table: mw.Table, other: mw.TableWriter) -> None:
    """So an owner that closes need not wait for those who only once wrote."""
    wait_for(lambda: "memwal-owner-watch" not in {thread.name for thread in threading.enumerate()})
    assert other.put([{"id": 2, "v": "a"}]).written == 1


def test_a_put_of_a_signal_handler_is_refused_on_top_of_a_forwarded_one(table: mw.Table, other: mw.TableWriter) -> None:
    refused: list[Exception] = []
    main = threading.get_ident()
    real = Book.number_of

    def interrupted(book: Book, schema: pa.Schema, fresh: list[bytes]) -> int | None:
        if threading.get_ident() == main and not refused:
            try:
                _handler(other)
            except mw.UnavailableError as error:
                refused.append(error)
        return real(book, schema, fresh)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Book, "number_of", interrupted)
        assert other.put([{"id": 2, "v": "a"}]).written == 1
    assert len(refused) == 1
    assert ids(table) == [0, 1, 2]


def _handler(writer: mw.TableWriter) -> None:
    writer.put([{"id": 99, "v": "handler"}])
