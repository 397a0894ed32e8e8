"""Entries come back as they were encoded, and only whole ones: every cut and every flipped bit of an entry is noticed."""

from __future__ import annotations

import contextlib
import json
import random
import struct
import zlib
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.fuzzer import fuzz_decoder
from lance_memwal.errors import CorruptDataError, InvalidInputError, UnsupportedFormatError
from lance_memwal.log import entry, footer
from lance_memwal.log.entry import EntryDecoder, EntryEncoder, decode_entry, encode_mark, encode_sentinel
from lance_memwal.log.footer import FOOTER_BYTES, decode_footer
from lance_memwal.rows.ipc_frames import decompressed_bytes, read_stream
from lance_memwal.rows.ipc_frames import stream_of as bounded_stream
from lance_memwal.types import (
    TOMBSTONE_FIELD,
    BaseMark,
    EntryFooter,
    EntryTransaction,
    SeenTransaction,
    SsTable,
    Transaction,
    WalEntry,
)

FIELDS = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string()), TOMBSTONE_FIELD])
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
TEXT = st.text(st.characters(), max_size=20)
NUMBERS = st.integers(0, (1 << 64) - 1)


def rows(*numbers: int) -> pa.RecordBatch:
    columns = {"id": list(numbers), "name": [f"n{n}" for n in numbers], "_tombstone": [n < 0 for n in numbers]}
    return pa.RecordBatch.from_pydict(columns, schema=FIELDS)


def with_footer(stream: bytes, extension: bytes = b"") -> bytes:
    """The layout as the specification spells it, not as the codec does."""
    fixed = struct.pack("<QII", len(stream), len(extension), zlib.crc32(stream))
    return stream + extension + fixed + struct.pack("<I", zlib.crc32(extension + fixed)) + b"MWALEND1"


def stream_of(schema: pa.Schema, *batches: pa.RecordBatch, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, schema, options=ipc.IpcWriteOptions(compression=compression, allow_64bit=True)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def claimed(schema: pa.Schema, epoch: str = "1") -> pa.Schema:
    return schema.with_metadata({"writer_epoch": epoch})


def test_an_entry_comes_back_with_its_batches_epoch_and_generation() -> None:
    entry = decode_entry(EntryEncoder(FIELDS, 5, 9).encode([rows(1, 2), rows(-3)]), 12)
    assert (entry.position, entry.writer_epoch, entry.generation, entry.is_sentinel) == (12, 5, 9, False)
    assert [batch.to_pylist() for batch in entry.batches] == [rows(1, 2).to_pylist(), rows(-3).to_pylist()]
    assert (entry.num_rows, entry.txn, entry.footer) == (3, None, EntryFooter())


def test_the_bytes_are_those_of_the_specification() -> None:
    data = EntryEncoder(FIELDS, 5, 9).encode([rows(1, 2)])
    schema = FIELDS.with_metadata({"writer_epoch": "5", "generation": "9"})
    assert data == with_footer(stream_of(schema, rows(1, 2).cast(schema)))


def test_an_entry_with_a_transaction_has_the_extension_of_the_specification() -> None:
    footer = EntryFooter(
        table="0123abcd",
        written_ms=18,
        txns=(EntryTransaction(Transaction("a", 3, "q"), 0, 1),),
        seen={"a": SeenTransaction(2, 17, None)},
        seal=4,
        bulk=SsTable(5, "00c0ffee_gen_5", 100, 2, None),
    )
    data = EntryEncoder(FIELDS, 1, 1).encode([rows(1)], footer)
    length = struct.unpack("<I", data[-20:-16])[0]
    assert json.loads(data[-FOOTER_BYTES - length : -FOOTER_BYTES]) == {
        "t": "0123abcd",
        "ms": 18,
        "txns": [["a", 3, "q", 0, 1]],
        "seen": {"a": [2, 17, None]},
        "seal": 4,
        "bulk": {"generation": 5, "path": "00c0ffee_gen_5", "sizes": [100, 2, None]},
    }
    assert decode_entry(data).footer == footer


def test_keys_that_an_earlier_version_wrote_are_ignored() -> None:
    extension = b'{"ms":18,"txns":[["a",3,"q",0,1]],"delta":{},"digests":{"a":[[2,null],[3,"00000000000000cd"]]}}'
    footer = decode_entry(with_footer(stream_of(claimed(FIELDS), rows(1)), extension)).footer
    assert footer == EntryFooter(written_ms=18, txns=(EntryTransaction(Transaction("a", 3, "q"), 0, 1),))


@pytest.mark.parametrize("base", [BaseMark(7), BaseMark(7, 0), BaseMark(0, 12), BaseMark(10**17, 10**9)])
@pytest.mark.parametrize("footer", [EntryFooter("0123abcd", 18), EntryFooter(written_ms=18, seal=4)])
def test_base_version_of_an_entry_is_stored(footer: EntryFooter, base: BaseMark) -> None:
    footer = footer._replace(base=base)
    data = EntryEncoder(FIELDS, 1, 1).encode([rows(1)], footer)
    length = struct.unpack("<I", data[-20:-16])[0]
    stored = json.loads(data[-FOOTER_BYTES - length : -FOOTER_BYTES])
    assert (stored["base"], stored.get("fragments")) == base
    assert decode_entry(data).footer == footer


@pytest.mark.parametrize("key", [b'"base":', b'"base":7,"fragments":'])
@pytest.mark.parametrize("wrong", [b"-1", b"1.5", b'"7"', b"true", b"18446744073709551616", b"[7]"])
def test_malformed_base_version_is_refused(wrong: bytes, key: bytes) -> None:
    extension = b'{"t":"0123abcd","ms":18,' + key + wrong + b"}"
    with pytest.raises(UnsupportedFormatError, match="number"):
        decode_entry(with_footer(stream_of(claimed(FIELDS), rows(1)), extension))


def test_equal_input_gives_equal_bytes_whatever_the_order_of_the_map() -> None:
    first = {"a": SeenTransaction(1, 2), "b": SeenTransaction(3, 4)}
    second = dict(reversed(first.items()))
    encoders = [EntryEncoder(FIELDS, 1, 1) for _ in range(2)]
    encoded = {
        e.encode([rows(1)], EntryFooter(seen=seen)) for e in encoders for seen in (first, second) for _ in range(2)
    }
    assert len(encoded) == 1


@pytest.mark.parametrize("is_sentinel", [True, False])
def test_sentinels_and_marks_have_an_empty_schema_and_nothing_but_their_metadata(is_sentinel: bool) -> None:
    seen = {"a": SeenTransaction(1, 2)}
    footer = EntryFooter(written_ms=3, seen=seen)
    data = encode_sentinel(7, footer) if is_sentinel else encode_mark(7, footer)
    with ipc.open_stream(data) as reader:
        assert reader.schema.names == []
        wanted = {b"writer_epoch": b"7"} | ({b"fence_sentinel": b"true"} if is_sentinel else {})
        assert dict(reader.schema.metadata) == wanted
        assert list(reader) == []
    entry = decode_entry(data)
    assert (entry.writer_epoch, entry.is_sentinel, entry.generation, entry.batches) == (7, is_sentinel, None, ())
    assert entry.footer == footer


@settings(deadline=None)
@given(
    app=TEXT,
    version=NUMBERS,
    query=st.none() | TEXT,
    others=st.dictionaries(TEXT, st.tuples(NUMBERS, NUMBERS), max_size=5),
)
def test_any_transaction_and_map_come_back_whole_and_from_the_tail_alone(
    app: str, version: int, query: str | None, others: dict[str, tuple[int, int]]
) -> None:
    txn = Transaction(app, version, query)
    seen = {name: SeenTransaction(*pair) for name, pair in others.items()} | {app: SeenTransaction(version, 1, query)}
    footer = EntryFooter(written_ms=version, txns=(EntryTransaction(txn, 0, 1),), seen=seen)
    data = EntryEncoder(FIELDS, 1, 1).encode([rows(1)], footer)
    entry = decode_entry(data)
    assert (entry.txn, entry.footer) == (txn, footer)
    extension = struct.unpack("<I", data[-20:-16])[0]
    assert decode_footer(data[-FOOTER_BYTES - extension :]) == footer
    assert decode_footer(data) == footer


def test_a_tail_without_the_whole_extension_or_without_a_footer_says_nothing() -> None:
    data = EntryEncoder(FIELDS, 1, 1).encode([rows(1)], EntryFooter(seen={"a": SeenTransaction(1, 2)}))
    extension = struct.unpack("<I", data[-20:-16])[0]
    for size in range(FOOTER_BYTES + extension):
        assert decode_footer(data[len(data) - size :]) is None
    assert decode_footer(stream_of(claimed(FIELDS), rows(1))) is None


def test_a_damaged_tail_is_an_error_that_names_the_path() -> None:
    data = bytearray(EntryEncoder(FIELDS, 1, 1).encode([rows(1)], EntryFooter(seen={"a": SeenTransaction(1, 2)})))
    data[-FOOTER_BYTES - 3] ^= 1
    with pytest.raises(CorruptDataError, match="checksum") as error:
        decode_footer(bytes(data), path="some/path")
    assert error.value.path == "some/path"


MANY = {
    "dictionary": pa.array(["a", "b", "a"]).dictionary_encode(),
    "nested dictionary": pa.array([["a"], None, ["b", "a"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
    "struct": pa.array([{"x": 1, "y": ["p"]}, None, {"x": None, "y": []}]),
    "map": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int32())),
    "vector": pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float16(), 2)),
    "decimal": pa.array([None, 1, 2], pa.decimal256(50, 3)),
    "view": pa.array(["short", "a string that is longer than twelve bytes", None], pa.string_view()),
    "binary": pa.array([b"", b"\0\xff", None], pa.large_binary()),
    "time": pa.array([0, None, 2], pa.timestamp("ns", tz="Europe/Berlin")),
    "null": pa.nulls(3),
    "uuid": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0" * 16, None, b"1" * 16], pa.binary(16))),
}


@pytest.mark.parametrize("kind", MANY)
def test_every_arrow_type_comes_back_also_from_a_slice(kind: str) -> None:
    fields = pa.schema([pa.field("c", MANY[kind].type), TOMBSTONE_FIELD])
    whole = pa.RecordBatch.from_arrays([MANY[kind], pa.array([False] * 3)], schema=fields)
    batches = [whole, whole.slice(1, 2)]
    encoder, decoder = EntryEncoder(fields, 1, 1), EntryDecoder()
    for _ in range(2):
        found = decoder.decode(encoder.encode(batches), 1).batches
        assert [batch.column("c").to_pylist() for batch in found] == [b.column("c").to_pylist() for b in batches]
        assert found[0].schema.types == fields.types


def test_a_decoder_that_remembers_a_schema_answers_like_one_that_does_not() -> None:
    other = pa.schema([pa.field("id", pa.int32()), TOMBSTONE_FIELD])
    more = pa.RecordBatch.from_pydict({"id": [1], "_tombstone": [False]}, schema=other)
    run = [
        EntryEncoder(FIELDS, 1, 1).encode([rows(1)]),
        EntryEncoder(FIELDS, 1, 1).encode([rows(2), rows(3)]),
        encode_sentinel(2),
        EntryEncoder(FIELDS, 2, 1).encode([rows(4)]),
        EntryEncoder(FIELDS, 2, 2).encode([rows(5)]),
        EntryEncoder(other, 2, 2).encode([more]),
        stream_of(claimed(FIELDS), rows(6)),
        EntryEncoder(FIELDS, 2, 2).encode([rows(7)]),
        encode_mark(2),
    ]
    decoder = EntryDecoder()
    for position, data in enumerate(run):
        warm, cold = decoder.decode(data, position), decode_entry(data, position)
        assert [b.to_pylist() for b in warm.batches] == [b.to_pylist() for b in cold.batches]
        assert (warm.writer_epoch, warm.generation, warm.schema) == (cold.writer_epoch, cold.generation, cold.schema)


# --------------------------------------------------------------------------------------- entries of other writers


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_a_plain_stream_of_another_writer_is_read(compression: str | None) -> None:
    entry = decode_entry(stream_of(claimed(FIELDS, "4"), rows(1, 2), compression=compression))
    assert (entry.writer_epoch, entry.generation, entry.footer) == (4, None, None)
    assert entry.batches[0].to_pylist() == rows(1, 2).to_pylist()


@pytest.mark.parametrize("kind", ["rows", "dictionary"])
@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_what_a_compressed_entry_asks_for_is_bounded_before_it_is_allocated(compression: str, kind: str) -> None:
    count, most = 1_000, 3 << 30
    zeros: pa.Array = pa.array([0] * count, pa.int64())
    if kind == "dictionary":
        zeros = pa.DictionaryArray.from_arrays(pa.array([7] * count, pa.int16()), zeros)
    noise = pa.array([random.Random(n).randbytes(64) for n in range(count)], pa.binary(64))
    batch = pa.record_batch({"zeros": zeros, "noise": noise})
    honest = stream_of(claimed(batch.schema), batch, compression=compression)
    assert decode_entry(honest).num_rows == count
    size = struct.pack("<q", 8 * count)
    assert honest.count(size) == 1
    greedy = honest.replace(size, struct.pack("<q", most))
    for data in (greedy, with_footer(greedy)):
        with pytest.raises(UnsupportedFormatError, match="decompressed it has more than"):
            decode_entry(data)
    assert pa.default_memory_pool().max_memory() < most
    for number, message in product(range(2_000), ipc.MessageReader.open_stream(honest)):
        draw, metadata = random.Random(number), bytearray(message.metadata)
        metadata[draw.randrange(len(metadata))] ^= 1 << draw.randrange(8)
        with contextlib.suppress(struct.error):
            assert decompressed_bytes(bytes(metadata[: draw.randrange(1, 400)]), memoryview(message.body or b"")) >= 0


@pytest.mark.parametrize(
    ("why", "data"),
    [
        ("empty", b""),
        ("zeros", bytes(2000)),
        ("no end-of-stream marker", stream_of(claimed(FIELDS), rows(1))[:-8]),
        ("cut in a body", stream_of(claimed(FIELDS), rows(1))[:-40]),
        ("cut in the schema", stream_of(claimed(FIELDS), rows(1))[:100]),
        ("an end-of-stream marker alone", b"\xff\xff\xff\xff\0\0\0\0"),
        ("a footer that is cut", EntryEncoder(FIELDS, 1, 1).encode([rows(1)])[:-4]),
        ("an extension that is cut", EntryEncoder(FIELDS, 1, 1).encode([rows(1)], EntryFooter(written_ms=1))[:-30]),
        ("text", b"hello, this is no entry at all, but a longer text"),
    ],
)
def test_a_stream_that_is_not_whole_is_refused_with_its_place(why: str, data: bytes) -> None:
    with pytest.raises(CorruptDataError) as error:
        decode_entry(data, 33, path="wal/33")
    assert (error.value.position, error.value.path) == (33, "wal/33")


def of_the_future(data: bytes) -> bytes:
    """`data`, whose first message says that it is of a metadata version that no Arrow knows yet."""
    changed = bytearray(data)
    (table,) = struct.unpack_from("<I", changed, 8)
    (back,) = struct.unpack_from("<i", changed, 8 + table)
    (offset,) = struct.unpack_from("<H", changed, 8 + table - back + 4)
    struct.pack_into("<h", changed, 8 + table + offset, 9)
    return bytes(changed)


class RefusesItsStorage(pa.ExtensionType):
    """An extension type whose class takes other storage than the stream has, as an older one of a newer type does."""

    def __init__(self) -> None:
        super().__init__(pa.int64(), "memwal.test.refuses")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> RefusesItsStorage:
        del cls, serialized
        raise TypeError(f"{storage_type} is of another version")


def of_an_extension_type() -> bytes:
    plain = pa.schema([pa.field("id", pa.int64(), metadata={"ARROW:extension:name": "memwal.test.refuses"})])
    return stream_of(claimed(plain), pa.record_batch([pa.array([1])], names=["id"]))


@pytest.fixture
def refusing_type() -> Iterator[None]:
    pa.register_extension_type(RefusesItsStorage())
    yield
    pa.unregister_extension_type("memwal.test.refuses")


@pytest.mark.usefixtures("refusing_type")
@pytest.mark.parametrize("with_our_footer", [False, True])
@pytest.mark.parametrize(
    ("why", "data"),
    [
        ("a metadata version of the future", of_the_future(stream_of(claimed(FIELDS), rows(1)))),
        ("an extension type that its class refuses", of_an_extension_type()),
        ("a second stream behind the first", stream_of(claimed(FIELDS), rows(1)) * 2),
        ("no epoch", stream_of(FIELDS, rows(1))),
        ("an epoch that is no number", stream_of(claimed(FIELDS, "one"), rows(1))),
        ("a negative epoch", stream_of(claimed(FIELDS, "-1"), rows(1))),
        ("an epoch beyond 64 bits", stream_of(claimed(FIELDS, str(1 << 64)), rows(1))),
        ("a generation that is no number", stream_of(FIELDS.with_metadata({"writer_epoch": "1", "generation": ""}))),
        ("a batch without rows", stream_of(claimed(FIELDS), rows())),
        ("the file format", b"ARROW1\0\0" + stream_of(claimed(FIELDS), rows(1))),
        (
            "more rows than bytes could hold",
            stream_of(
                claimed(pa.schema([("n", pa.null())])),
                pa.record_batch([pa.Array.from_buffers(pa.null(), 1 << 40, [None])], names=["n"]),
            ),
        ),
    ],
)
def test_what_is_whole_but_unknown_is_not_called_damaged(why: str, data: bytes, with_our_footer: bool) -> None:
    with pytest.raises(UnsupportedFormatError, match="not understood by this version") as error:
        decode_entry(with_footer(data) if with_our_footer else data, 33, path="wal/33")
    assert (error.value.position, error.value.path) == (33, "wal/33")


@pytest.mark.parametrize("behind", [b"x", b"some other footer, NEWMAGIC", b"newer" * 9 + b"MWALEND2"])
def test_bytes_behind_a_whole_stream_that_are_no_footer_of_ours_are_unknown(behind: bytes) -> None:
    with pytest.raises(UnsupportedFormatError):
        decode_entry(stream_of(claimed(FIELDS), rows(1)) + behind)


def test_text_that_is_not_utf8_in_a_value_is_refused() -> None:
    raw = pa.array([b"\xff\xfe"], pa.binary()).view(pa.string())
    schema = pa.schema([pa.field("s", pa.string())])
    with pytest.raises(UnsupportedFormatError):
        decode_entry(stream_of(claimed(schema), pa.RecordBatch.from_arrays([raw], schema=schema)))


@pytest.mark.parametrize("column", [pa.field("text", pa.int64()), pa.field("s", pa.struct([("text", pa.int64())]))])
def test_a_column_name_that_is_not_utf8_is_refused(column: pa.Field) -> None:
    data = stream_of(claimed(pa.schema([column])))
    decode_entry(data)
    with pytest.raises(UnsupportedFormatError):
        decode_entry(data.replace(b"text", b"te\xfft"))


def test_two_columns_of_one_name_are_refused() -> None:
    data = stream_of(claimed(pa.schema([("left", pa.int64()), ("over", pa.int64())])))
    with pytest.raises(UnsupportedFormatError, match="twice"):
        decode_entry(data.replace(b"over", b"left"))


# ---------------------------------------------------------------------------- checksums that hold, content that lies


@pytest.mark.parametrize(
    "extension",
    [
        b"not json",
        b"[]",
        b"3",
        b"\xff",
        b'{"txns":[[1,1,null,0,1]]}',
        b'{"txns":[["a",-1,null,0,1]]}',
        b'{"txns":[["a",true,null,0,1]]}',
        b'{"txns":[["a",1.0,null,0,1]]}',
        b'{"txns":[["a",18446744073709551616,null,0,1]]}',
        b'{"t":"0123ABCD"}',
        b'{"t":7}',
        b'{"ms":-1}',
        b'{"seal":"1"}',
        b'{"txns":{}}',
        b'{"txns":[["a",1,null,0]]}',
        b'{"txns":[["a",1,null,0,-1]]}',
        b'{"bulk":{"generation":1}}',
        b'{"bulk":{"generation":1,"path":"x","sizes":[1,2]}}',
        b'{"seen":[]}',
        b'{"seen":{"a":[1,2]}}',
        b'{"seen":{"a":[1,NaN,null]}}',
        b'{"seen":{"a":[1,2,3]}}',
        b"[" * 100_000,
        b'{"seen":{"a":[' + b"9" * 5_000 + b",1,null]}}",
    ],
)
def test_an_extension_that_lies_behind_a_true_checksum_is_refused(extension: bytes) -> None:
    stream = stream_of(claimed(FIELDS), rows(1))
    with pytest.raises(UnsupportedFormatError):
        decode_entry(with_footer(stream, extension))
    with pytest.raises(UnsupportedFormatError):
        decode_footer(with_footer(stream, extension))


def test_keys_of_an_extension_that_are_unknown_are_named() -> None:
    extension = b'{"later":{"a":1},"seen":{"a":[1,2,null]},"joint":true}'
    footer = decode_entry(with_footer(stream_of(claimed(FIELDS), rows(1)), extension)).footer
    assert footer == EntryFooter(seen={"a": SeenTransaction(1, 2)}, joint=True, unknown=("later",))


def _prefix() -> bytes:
    return bytes(FIELDS.with_metadata({"writer_epoch": "1", "generation": "1"}).serialize())


@pytest.mark.parametrize(
    ("why", "stream"),
    [
        ("a marker in the middle", _prefix() + END_OF_STREAM + END_OF_STREAM),
        ("the old marker in the middle", _prefix() + b"\0" * 8 + END_OF_STREAM),
        ("half a marker in the middle", _prefix() + b"\0" * 4 + END_OF_STREAM),
        ("a message of nothing", _prefix() + b"\xff\xff\xff\xff\x10\0\0\0" + b"\0" * 16 + END_OF_STREAM),
        ("a message that claims too much", _prefix() + b"\xff\xff\xff\xff\xff\xff\xff\x7f" + END_OF_STREAM),
        ("a second schema", _prefix() + _prefix() + END_OF_STREAM),
        ("no marker", _prefix() + bytes(rows(1).serialize())),
        ("only the schema", _prefix()),
        ("nothing", b""),
    ],
)
def test_lying_stream_with_a_true_checksum_is_refused(why: str, stream: bytes) -> None:
    known = EntryDecoder()
    known.decode(EntryEncoder(FIELDS, 1, 1).encode([rows(1)]), 1)
    for decoder in (known, EntryDecoder()):
        with pytest.raises(UnsupportedFormatError):
            decoder.decode(with_footer(stream), 2)


def test_a_footer_whose_lengths_do_not_add_up_is_refused() -> None:
    stream = stream_of(claimed(FIELDS), rows(1))
    for length in (0, len(stream) - 1, len(stream) + 1, (1 << 64) - 1):
        fixed = struct.pack("<QII", length, 0, zlib.crc32(stream[:length]))
        with pytest.raises(CorruptDataError, match="add up"):
            decode_entry(stream + fixed + struct.pack("<I", zlib.crc32(fixed)) + b"MWALEND1")


def test_what_is_too_large_for_a_decoder_is_neither_written_nor_read(monkeypatch: pytest.MonkeyPatch) -> None:
    data = EntryEncoder(FIELDS, 1, 1).encode([rows(1)])
    monkeypatch.setattr(entry, "MAX_ENTRY_BYTES", len(data) - 1)
    with pytest.raises(UnsupportedFormatError, match="exceed"):
        decode_entry(data)
    with pytest.raises(InvalidInputError, match="too many"):
        EntryEncoder(FIELDS, 1, 1).encode([rows(1)])


def test_a_map_that_is_too_large_for_a_decoder_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {"a" * 200: SeenTransaction(1, 2)}
    monkeypatch.setattr(footer, "_MAX_EXTENSION_BYTES", 100)
    with pytest.raises(InvalidInputError, match="map is too large"):
        encode_sentinel(1, EntryFooter(seen=seen))


GOLDEN = Path(__file__).resolve().parents[1] / "golden"
SEEN = {"app": SeenTransaction(7, 1_700_000_000_000, "q")}


def numbered(count: int) -> pa.RecordBatch:
    columns = {"id": list(range(count)), "name": [f"n{n}" for n in range(count)], "_tombstone": [False] * count}
    return pa.RecordBatch.from_pydict(columns, schema=FIELDS)


def one_kilobyte() -> bytes:
    """An entry with rows, a transaction and a map, of 1 KB and no more than a row's difference."""
    encoder = EntryEncoder(FIELDS, 3, 2)
    txns = (EntryTransaction(Transaction("app", 7, "q"), 0, 1),)
    footer = EntryFooter(table="0123abcd", written_ms=1_700_000_000_000, txns=txns, seen=SEEN)
    return next(data for count in range(1, 100) if len(data := encoder.encode([numbered(count)], footer)) >= 1024)


ENTRIES = {
    "an entry of 1 KB": one_kilobyte(),
    "a sentinel": encode_sentinel(4, EntryFooter(written_ms=1, seen=SEEN)),
    "a mark": encode_mark(4, EntryFooter(written_ms=1, seen=SEEN, seal=3)),
}


def seen_rows(entry: WalEntry) -> list[Any]:
    return [entry.writer_epoch, entry.generation, entry.is_sentinel, *(batch.to_pylist() for batch in entry.batches)]


def decoders() -> dict[str, EntryDecoder]:
    """One that meets the schema for the first time, and one that knows it from the entry before."""
    known = EntryDecoder()
    known.decode(EntryEncoder(FIELDS, 3, 2).encode([numbered(1)]), 1)
    return {"new": EntryDecoder(), "knows the schema": known}


def outcome(decoder: EntryDecoder, data: bytes, whole: WalEntry) -> str:
    try:
        entry = decoder.decode(data, whole.position)
    except CorruptDataError as error:
        return "refused" if error.position == whole.position else "refused elsewhere"
    if seen_rows(entry) != seen_rows(whole):
        return "wrong rows"
    return "intact" if entry == whole else "rows intact"


def test_the_entry_of_one_kilobyte_has_about_one_kilobyte() -> None:
    assert 1024 <= len(one_kilobyte()) <= 1100


@pytest.mark.parametrize("decoder", ["new", "knows the schema"])
@pytest.mark.parametrize("name", ENTRIES)
def test_every_single_flipped_bit_is_refused(name: str, decoder: str) -> None:
    data, under_test = ENTRIES[name], decoders()[decoder]
    whole = under_test.decode(data, 5)
    outcomes: Counter[str] = Counter()
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        outcomes[outcome(under_test, bytes(flipped), whole)] += 1
    assert outcomes == {"refused": 8 * len(data)}


@pytest.mark.parametrize("decoder", ["new", "knows the schema"])
@pytest.mark.parametrize("name", ENTRIES)
def test_every_cut_is_refused_but_the_one_that_leaves_all_rows(name: str, decoder: str) -> None:
    data, under_test = ENTRIES[name], decoders()[decoder]
    whole = under_test.decode(data, 5)
    outcomes = {size: outcome(under_test, data[:size], whole) for size in range(len(data))}
    intact = [size for size, result in outcomes.items() if result != "refused"]
    stream = int.from_bytes(data[-FOOTER_BYTES : -FOOTER_BYTES + 8], "little")
    assert intact == [stream]
    assert outcomes[stream] == "rows intact"


def test_every_byte_that_is_added_or_taken_out_anywhere_is_refused() -> None:
    data, decoder = one_kilobyte(), EntryDecoder()
    for at in range(len(data) + 1):
        for changed in (data[:at] + b"\0" + data[at:], data[:at] + data[at + 1 :] if at < len(data) else data + b"\1"):
            with pytest.raises(CorruptDataError):
                decoder.decode(changed, 1)


@pytest.mark.parametrize("kind", ["rows", "tombstones", "sentinel"])
def test_no_cut_and_no_flip_of_an_entry_of_pylance_does_more_than_give_an_error_or_a_valid_value(kind: str) -> None:
    log = GOLDEN / "pylance" / "pk_table" / "_mem_wal" / "11111111-2222-4333-8444-555555555555" / "wal"
    position = {"rows": 1, "tombstones": 2, "sentinel": 3}[kind]
    data = (log / f"{format(position, '064b')[::-1]}.arrow").read_bytes()
    counts = fuzz_decoder("decoders:wal_entry", [data], 0)  # in a child process: a crash is a result there
    assert sum(counts.values()) == 9 * len(data)
    assert counts["refused"] > len(data)


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_a_stream_that_would_become_too_large_is_refused_before_it_does(compression: str) -> None:
    count, most = 1_000, 3 << 30
    batch = pa.record_batch({"zeros": pa.array([0] * count, pa.int64())})
    honest = bounded_stream(batch.schema, [batch], compression=compression).to_pybytes()
    assert read_stream(honest, "rows") == pa.table(batch)
    size = struct.pack("<q", 8 * count)
    assert honest.count(size) == 1
    with pytest.raises(CorruptDataError, match="rows would have more than"):
        read_stream(honest.replace(size, struct.pack("<q", most)), "rows", path="somewhere")
    assert pa.default_memory_pool().max_memory() < most
