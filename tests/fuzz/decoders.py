"""The decoders that are fuzzed, each with its corpus; those of logs and manifests are here.

Owns the table `TARGETS`: to add a decoder, write a function that takes bytes and a function that returns honest bytes,
and list them; `python tests/fuzz --renew NAME` makes the corpus. A decode function may go on to check what it got (a round
trip, say): an `AssertionError` is a failure.
Imports of memwal happen inside the functions, so that one broken module fails its own target only.

Not here, and why: files of Lance's own format, which Lance reads (what we read out of them ourselves is here); what the tasks
and the two halves of one Spark job tell each other, which comes with code that they run; predicates of Polars and expressions
of pyarrow, which libraries of this process make.
"""

import struct
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import asked_decoders as asked
import entries_with_blobs as blobs
import message_decoders as messages
import stored_decoders as stored
from inputs import committed

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


class Target(NamedTuple):
    """One decoder under fuzz; `is_asked`: what it is given comes from a caller, who may be told that the call is wrong.

    `build` makes honest bytes as they are written today; the corpus are those that were committed (`inputs.py`).
    """

    decode: Callable[[bytes], None]
    build: Callable[[], list[bytes]]
    is_asked: bool = False

    def corpus(self) -> list[bytes]:
        """What mutations start from."""
        return committed(self.decode.__name__)

    @property
    def place(self) -> str:
        """Where the decoder is, as "module:function"."""
        return f"{self.decode.__module__}:{self.decode.__name__}"


def _files(pattern: str) -> list[bytes]:
    """The different ones among the golden files with such a name."""
    return list(dict.fromkeys(file.read_bytes() for file in sorted(GOLDEN.rglob(pattern))))


def shard_manifest(data: bytes) -> None:
    from lance_memwal.log.manifest_codec import decode_manifest, encode_manifest

    manifest = decode_manifest(data)
    assert decode_manifest(encode_manifest(manifest)) == manifest


def shard_manifest_corpus() -> list[bytes]:
    from lance_memwal.log.manifest_codec import encode_manifest
    from lance_memwal.types import ShardManifest, ShardStatus, SsTable

    shard = "00112233-4455-4677-8899-aabbccddeeff"
    tables = tuple(SsTable(n, f"{n:08x}_gen_{n}", 1 << 40, n, n * 8) for n in range(1, 40))
    full = ShardManifest(9, shard, 1, (("bucket", b"\1\0\0\0"),), 3, 50, 51, 40, tables, ShardStatus.SEALED)
    return [*_files("manifest/*.binpb"), encode_manifest(full)]


def index_details(data: bytes) -> None:
    from lance_memwal.errors import CorruptDataError, UnsupportedFormatError
    from lance_memwal.lance.details import decode_details, encode_details
    from lance_memwal.rows.sharding import from_specs

    details = decode_details(data)
    assert decode_details(encode_details(details)) == details
    try:
        from_specs(details.sharding_specs, {0: "id", 1: "val", 2: "name"})
    except (CorruptDataError, UnsupportedFormatError):
        return


def index_details_corpus() -> list[bytes]:
    return _files("details/*.binpb")


def protobuf_bombs(data: bytes) -> None:
    """Inputs of the largest size that decoders read, all of them two-byte messages or groups."""
    if data == b"any":
        return  # the corpus, which is decoded before the memory limit holds
    from lance_memwal.errors import CorruptDataError
    from lance_memwal.lance.details import MAX_DETAILS_BYTES, decode_details
    from lance_memwal.log.manifest_codec import MAX_MANIFEST_BYTES, decode_manifest

    for decode, size, units in (
        (decode_manifest, MAX_MANIFEST_BYTES, (b"\x42\x00", b"\x0b\x0c")),
        (decode_details, MAX_DETAILS_BYTES, (b"\x3a\x00", b"\x3a\x02\x12\x00")),
    ):
        for unit in units:
            try:
                decode(unit * (size // len(unit)))
            except CorruptDataError:
                continue
            raise AssertionError("a bomb was decoded")


def wal_entry(data: bytes) -> None:
    import pyarrow as pa

    from lance_memwal.log.entry import decode_entry

    for batch in decode_entry(data, 1).batches:
        backwards = pa.array(range(batch.num_rows - 1, -1, -1), pa.int64())
        for column in batch.columns:  # every value is moved: what validation let through must not crash later
            try:
                column.take(backwards)
            except pa.ArrowNotImplementedError:
                continue
        batch.serialize()


def wal_entry_corpus() -> list[bytes]:
    return [*_files("wal/*.arrow"), *_files("memwal/entries/*.arrow"), *_our_entries()]


def wal_stream_behind_a_true_footer(data: bytes) -> None:
    """A stream from a writer that lies: checksums are right, the Arrow bytes are not."""
    wal_entry(_with_footer(data, b""))


def wal_stream_corpus() -> list[bytes]:
    return _files("wal/*.arrow")


def wal_extension_behind_a_true_footer(data: bytes) -> None:
    """An extension from a writer that lies: checksums are right, the JSON is not."""
    from lance_memwal.log.entry import decode_entry

    decode_entry(_with_footer(_stream_of_a_sentinel(), data), 1)


def wal_extension_corpus() -> list[bytes]:
    return [
        b"",
        b'{"ms":1,"txns":[["a",7,null,0,null]]}',
        b'{"t":"0123abcd","ms":1700000000000,"txns":[["a",7,null,0,3]],"delta":{},"seal":3}',
        b'{"t":"0123abcd","ms":1700000000000,"base":17}',
        b'{"t":"0123abcd","ms":1700000000000,"base":17,"fragments":4}',
        b'{"ms":1,"bulk":{"generation":4,"path":"00c0ffee_gen_4","sizes":[1,10,null]},"joint":true}',
        b'{"ms":2,"txns":[["a",8,"q",0,2]],"seen":{"a":[7,1700000000000,"q"],"b":[1,2,null]}}',
    ]


def wal_messages_behind_a_known_schema(data: bytes) -> None:
    """The quick way of a reader that has met the schema before: checksums are right, the messages are not."""
    from lance_memwal.log.entry import EntryDecoder

    prefix, honest = _known_schema()
    decoder = EntryDecoder()
    decoder.decode(_with_footer(prefix + honest, b""), 1)
    try:
        entry = decoder.decode(_with_footer(prefix + data, b""), 2)
    finally:
        wal_entry(_with_footer(prefix + honest, b""))
    for batch in entry.batches:
        batch.serialize()


def wal_messages_corpus() -> list[bytes]:
    return [_known_schema()[1]]


def blobs_of_an_entry(data: bytes) -> None:
    """An entry of the peer, which has no checksum, with blobs in it, beside it, and in objects of others."""
    from lance_memwal.log.blob_targets import with_blobs
    from lance_memwal.log.entry import decode_entry

    entry = with_blobs(blobs.place(), blobs.SHARD, decode_entry(data, 5))
    for batch in entry.batches:
        batch.validate(full=True)
        batch.serialize()


def rows_of_an_entry(data: bytes) -> None:
    """A stream without a footer, whose rows are made to fit the columns of a table."""
    from lance_memwal.log.entry import decode_entry
    from lance_memwal.rows.adapt import RowAdapter
    from lance_memwal.types import BaseMark

    for batch in decode_entry(data, 1).batches:
        rows, _ = RowAdapter(_table()).adapt(batch, BaseMark(7), position=1)
        rows.validate(full=True)


def rows_of_an_entry_corpus() -> list[bytes]:
    import pyarrow as pa

    rows = [{"id": n, "s": {"a": n, "b": ["x", None]}, "m": {"k": n}, "_tombstone": n == 1} for n in range(3)]
    schemas = [_table().with_ids, pa.schema([field.remove_metadata() for field in _table().memory])]
    streams = []
    for schema in schemas:
        tagged = schema.with_metadata({"writer_epoch": "3", "generation": "2"})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, tagged) as stream:
            stream.write_batch(
                pa.RecordBatch.from_pylist([row | {"m": list(row["m"].items())} for row in rows], tagged)
            )
        streams.append(bytes(sink.getvalue()))
    return streams


@cache
def _table() -> Any:
    import pyarrow as pa

    from lance_memwal.rows.schema import FieldId, TableSchema

    nested = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])
    fields = [pa.field("id", pa.int64(), False), ("s", nested), ("m", pa.map_(pa.string(), pa.int64()))]
    ids = (FieldId(0), FieldId(1, (FieldId(2), FieldId(3, (FieldId(4),)))))
    ids += (FieldId(5, (FieldId(6, (FieldId(7), FieldId(8))),)),)
    return TableSchema(pa.schema(fields), ("id",), ids)


def wal_extension_tail(data: bytes) -> None:
    from lance_memwal.log.footer import decode_footer

    decode_footer(data)


def wal_extension_tail_corpus() -> list[bytes]:
    return [data[-200:] for data in _our_entries()] + _our_entries()


def bloom(data: bytes) -> None:
    import numpy as np

    from lance_memwal.sstable.bloom import might_contain

    might_contain(data, np.array([0, 1, 1 << 63, (1 << 64) - 1], np.uint64))


def bloom_corpus() -> list[bytes]:
    return _files("bloom_filter.bin")[:1]


def lance_manifest(data: bytes) -> None:
    from lance_memwal.lance.manifest import deletion_path, parse_lance_manifest

    found = parse_lance_manifest(data)
    found.fragment_messages()
    found.schema_metadata()
    assert found.config("no such key") is None
    for fragment in found.fragments():
        assert 0 <= fragment.physical_rows < 1 << 32
        if fragment.deletion is not None:
            deletion_path(fragment.id, fragment.deletion)


def lance_manifest_corpus() -> list[bytes]:
    return _files("_versions/*.manifest")


def deletion_vector(data: bytes) -> None:
    from lance_memwal.lance.deletions import decode_deletions

    decode_deletions(data, physical_rows=1 << 20)


def deletion_vector_corpus() -> list[bytes]:
    import numpy as np

    from lance_memwal.lance.deletions import encode_deletions

    many = [np.arange(0, 200_000, step, dtype=np.uint32) for step in (1, 3, 5_000)]
    return [*_files("_deletions/*.bin"), *[encode_deletions(offsets) for offsets in many]]


TARGETS: dict[str, Target] = {
    target.decode.__name__: target
    for target in (
        Target(shard_manifest, shard_manifest_corpus),
        Target(index_details, index_details_corpus),
        Target(wal_entry, wal_entry_corpus),
        Target(wal_stream_behind_a_true_footer, wal_stream_corpus),
        Target(wal_extension_behind_a_true_footer, wal_extension_corpus),
        Target(wal_messages_behind_a_known_schema, wal_messages_corpus),
        Target(rows_of_an_entry, rows_of_an_entry_corpus),
        Target(blobs_of_an_entry, blobs.entries),
        Target(wal_extension_tail, wal_extension_tail_corpus),
        Target(bloom, bloom_corpus),
        Target(lance_manifest, lance_manifest_corpus),
        Target(deletion_vector, deletion_vector_corpus),
        Target(stored.cursor, stored.cursor_corpus, is_asked=True),
        Target(stored.snapshot, stored.snapshot_corpus, is_asked=True),
        Target(stored.consumer_record, stored.consumer_record_corpus),
        Target(stored.checkpoint_record, stored.checkpoint_record_corpus),
        Target(stored.floor_record, stored.floor_record_corpus),
        Target(stored.compaction_marks, stored.compaction_marks_corpus),
        Target(stored.merge_setting, stored.merge_setting_corpus),
        Target(stored.lance_transaction, stored.lance_transaction_corpus),
        Target(stored.remembered_deletes, stored.remembered_deletes_corpus),
        Target(stored.deletes_behind_a_true_checksum, stored.deletes_stream_corpus),
        Target(stored.object_name, stored.object_name_corpus),
        Target(stored.staged_rows, stored.staged_rows_corpus),
        Target(messages.filter_text, messages.filter_text_corpus, is_asked=True),
        Target(messages.typed_key, messages.typed_key_corpus, is_asked=True),
        Target(asked.typed_text, asked.typed_text_corpus, is_asked=True),
        Target(asked.spark_options, asked.spark_options_corpus, is_asked=True),
        Target(asked.spark_filter, asked.spark_filter_corpus, is_asked=True),
        Target(asked.stream_offset, asked.stream_offset_corpus, is_asked=True),
        Target(asked.environment, asked.environment_corpus, is_asked=True),
        Target(asked.data_file, asked.data_file_corpus, is_asked=True),
        Target(asked.query_of_the_page, asked.query_of_the_page_corpus, is_asked=True),
        Target(asked.request_of_the_page, asked.request_of_the_page_corpus, is_asked=True),
    )
}


LOGS = tuple(name for name, target in TARGETS.items() if target.decode.__module__ == __name__)
OTHERS = tuple(name for name in TARGETS if name not in LOGS)


def any_of_the_others(data: bytes) -> None:
    """The first byte chooses the decoder: many of them in one process."""
    from lance_memwal.errors import InvalidInputError

    target = TARGETS[OTHERS[(data or b"\0")[0] % len(OTHERS)]]
    try:
        target.decode(data[1:])
    except InvalidInputError as error:
        if not target.is_asked:
            raise AssertionError(f"{target.place} blames its caller") from error
        raise


def any_of_the_others_corpus() -> list[bytes]:
    return [bytes([number]) + data for number, name in enumerate(OTHERS) for data in TARGETS[name].corpus()]


def _with_footer(stream: bytes, extension: bytes) -> bytes:
    fixed = struct.pack("<QII", len(stream), len(extension), zlib.crc32(stream))
    return stream + extension + fixed + struct.pack("<I", zlib.crc32(extension + fixed)) + b"MWALEND1"


def _stream_of_a_sentinel() -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    pa.ipc.new_stream(sink, pa.schema([], metadata={"writer_epoch": "2", "fence_sentinel": "true"})).close()
    return bytes(sink.getvalue())


def _our_entries() -> list[bytes]:
    import pyarrow as pa

    from lance_memwal.log.entry import EntryEncoder, encode_mark, encode_sentinel
    from lance_memwal.types import TOMBSTONE_FIELD, EntryFooter, EntryTransaction, SeenTransaction, SsTable, Transaction

    seen = {"app": SeenTransaction(7, 1_700_000_000_000, "q")}
    nested = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])
    schema = pa.schema(
        [("id", pa.int64()), ("s", nested), ("d", pa.dictionary(pa.int8(), pa.string())), TOMBSTONE_FIELD]
    )
    rows = [{"id": n, "s": {"a": n, "b": ["x", None]}, "d": "ab"[n % 2], "_tombstone": False} for n in range(5)]
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    encoder = EntryEncoder(schema, 3, 2)
    txns = (EntryTransaction(Transaction("app", 7, "q"), 0, 10),)
    footer = EntryFooter(table="0123abcd", written_ms=1_700_000_000_001, txns=txns, seen=seen)
    bulk = EntryFooter(written_ms=1, txns=txns, seen=seen, seal=3, bulk=SsTable(4, "00c0ffee_gen_4", 1, 10, None))
    return [encoder.encode([batch, batch], footer), encode_sentinel(4, footer), encode_mark(4, bulk)]


def _known_schema() -> tuple[bytes, bytes]:
    """A schema message, and what may follow it in a stream: batches and the end-of-stream marker."""
    import pyarrow as pa

    schema = pa.schema([("id", pa.int64()), ("s", pa.list_(pa.string()))], metadata={"writer_epoch": "1"})
    rows = [{"id": n, "s": ["x", None] * n} for n in range(3)]
    batch = bytes(pa.RecordBatch.from_pylist(rows, schema=schema).serialize())
    return bytes(schema.serialize()), batch + batch + b"\xff\xff\xff\xff\0\0\0\0"
