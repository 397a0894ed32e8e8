"""Hostile inputs that made a decoder fail once, as the fuzzer found them or made small: each is refused with an error of ours."""

from __future__ import annotations

import json
import struct

import pyarrow as pa
import pytest
from decoders import TARGETS
from entries_with_blobs import entry, image
from pyroaring import BitMap

from lance_memwal.errors import CorruptDataError, InvalidInputError, UnsupportedFormatError
from lance_memwal.lance.manifest import Fragment, generation_manifest
from lance_memwal.rows.streams import stream_of
from lance_memwal.serve.desk import Desk
from lance_memwal.serve.wire import decode_answer

SHARD = "00112233-4455-4677-8899-aabbccddeeff"
_ID = {"lance:field_id": "1"}
DEEP = b'{"a":' * 5_000
EVERYTHING = bytes(BitMap(range(1 << 23)).serialize())


def changed(name: str, **values: object) -> bytes:
    """The honest input with other values; `...` leaves one out."""
    value = json.loads(TARGETS[name].build()[-1])
    return json.dumps({key: item for key, item in {**value, **values}.items() if item is not ...}).encode()


def message(header: object, body: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<I", len(text)) + text + body


def manifest_with_rows(rows: int) -> bytes:
    """A manifest of Lance whose fragment claims to have so many rows."""
    fragment = Fragment(0, (), None, rows)
    options = {"field_ids": {}, "schema_metadata": {}, "storage_version": "2.1", "lance_version": "1", "now_ms": 1}
    return generation_manifest([], fragment, **options)  # type: ignore[arg-type]


def stream_with_id(text: bytes) -> bytes:
    """A stream whose key column has this field id: it is none of the table."""
    fields = [pa.field("id", pa.int64(), metadata={"lance:field_id": text}), pa.field("s", pa.int8(), metadata=_ID)]
    schema = pa.schema(fields, metadata={"writer_epoch": "3"})
    return bytes(stream_of(schema, [pa.RecordBatch.from_pylist([{"id": 1, "s": 1}], schema)]))


def stream_with_other_keys() -> bytes:
    """A stream with a map whose keys are of another type than those of the table, under the same field ids."""
    key, item = (
        pa.field(name, pa.int64(), name != "key", {"lance:field_id": str(7 + (name != "key"))})
        for name in ("key", "value")
    )
    fields = [pa.field("id", pa.int64(), metadata={"lance:field_id": "0"})]
    schema = pa.schema(
        [*fields, pa.field("m", pa.map_(key, item), metadata={"lance:field_id": "5"})], {"writer_epoch": "3"}
    )
    return bytes(stream_of(schema, [pa.RecordBatch.from_pylist([{"id": 1, "m": [(1, 2)]}], schema)]))


FOUND: list[tuple[str, bytes]] = [
    ("consumer_record", changed("consumer_record", snapshot=...)),
    ("consumer_record", changed("consumer_record", table=...)),
    ("owner_record", changed("owner_record", pid=[])),
    ("owner_record", changed("owner_record", started_ms=float("nan"))),
    ("compaction_marks", changed("compaction_marks", **{"00112233-4455-4677-8899-aabbccddeeff": float("inf")})),
    ("merge_setting", changed("merge_setting", remember_deletes_ms=10**400)),
    ("merge_setting", changed("merge_setting", remember_deletes_ms=-1)),
    ("merge_setting", changed("merge_setting", field=float("inf"))),
    ("merge_setting", DEEP),
    ("deletes_behind_a_true_checksum", TARGETS["deletes_behind_a_true_checksum"].build()[0].replace(b"\x4c", b"\xff")),
    ("roll_up_footer_behind_a_true_checksum", changed("roll_up_footer_behind_a_true_checksum", blocks=float("inf"))),
    (
        "roll_up_footer_behind_a_true_checksum",
        changed("roll_up_footer_behind_a_true_checksum", sstables=[[1, "a", 1, "x", 1, ""]] * 2),
    ),
    ("covered_fragments", EVERYTHING),
    ("forwarded_write", message({"to": 0, "verb": "put", "parts": [], "marks": [["a", float("inf"), None, 1]]})),
    ("forwarded_write", message({"to": 0, "verb": "put", "parts": [[[None, 8]]], "marks": []}, b"\xff" * 8)),
    ("owners_answer", message({"result": 7})),
    ("owners_answer", message({"error": ["FencedError"]})),
    ("debezium_envelope", changed("debezium_envelope", before=True)),
    ("debezium_envelope", changed("debezium_envelope", before={"id": ""})),
    ("filter_text", b"id >= " + b"9" * 5_000),
    ("filter_text", b"(" * 5_000 + b"id = 1" + b")" * 5_000),
    ("filter_text", b"id = x " + b"= x " * 20_000 + b"or not (x = 1"),  # ended the process
    ("filter_text", b"x > 9 ) " + b"0" * 1_000_000 + b"a"),  # took for ever
    ("filter_text", b"x > 9 ) " + b"/* " * 300_000),
    ("typed_key", b"[" * 20_000),
    ("data_file", b"\1null\n"),  # ended the process
    ("data_file", b'\1{"id": 1}\n null{"id": 2}\n'),
    ("data_file", b"\1" + b'{"a":' * 50_000 + b"1" + b"}" * 50_000),  # ended the process
    ("blobs_of_an_entry", entry(image(1, blob_id=1, blob_size=3, position=1 << 63))),
    ("blobs_of_an_entry", entry(image(1, blob_id=1, blob_size=1 << 63, position=1 << 62))),
    ("blobs_of_an_entry", entry(image(1, blob_id=1, blob_size=3)).replace(b".lance", b"\0.lanc")),
    ("rows_of_an_entry", stream_with_id(b"9" * 5_000)),
    ("rows_of_an_entry", stream_with_other_keys()),
    ("data_file", TARGETS["data_file"].build()[2].replace(b"\1\0\0\0v", b"\1\0\0\0\xf6")),
    ("data_file", b'\x01{"\xff": 1}\n'),
    ("lance_manifest", manifest_with_rows(1 << 32)),
    *(("parts_of_a_text_index", text) for text in (b"[-1]", b'"12"', b"[1.5]", b"[true]", b"{}", b"[" * 5_000)),
    *(("typed_text", text) for text in (b"[" * 20_000, b"[1%s]" % (b"0" * 400), b"9" * 5_000)),
    *(("typed_text", b"v:vector[%s]" % text) for text in (b"9" * 5_000, b"9" * 30, "²".encode())),
    *(("typed_text", text) for text in (b"\xff:int64", "bucket(id,²)".encode(), b"bucket(id,%s)" % (b"9" * 5_000))),
    *(("spark_options", changed("spark_options", maxRowsPerTrigger=text)) for text in ("²", "9" * 5_000)),
    *(("spark_options", changed("spark_options", inlineBytes=text)) for text in ("²k", "9" * 5_000)),
    *(
        ("spark_filter", b"%s\nat > timestamp '2026-01-31'" % zone)
        for zone in (b"+81:30", b"9" * 400, b"Europe" + b"/Osl" * 900, b"\xff", b"..")
    ),
    ("spark_filter", b"+01:00\nat > timestamp '0001-01-01'"),
    *(("stream_offset", text) for text in (b"{}", b"[]", b'{"shards": []}', b'{"shards": {"a": 1}}')),
    *(
        ("stream_offset", changed("stream_offset", **more))
        for more in ({"table": 7}, {"snapshot": "x"}, {"snapshot": 7})
    ),
    *(("stream_offset", changed("stream_offset", shards={SHARD: n})) for n in (True, 0, 1.5, "1", 1 << 64)),
    *(("environment", b"LANCE_MEMWAL_PORT=%s\nLANCE_MEMWAL_CACHE_BYTES=%s" % (n, n)) for n in (b"9" * 5_000, b"x")),
    ("request_of_the_page", b"GET ?shard=\xf2"),
    ("request_of_the_page", b"POST /api/query\ncontent-type: application/json\ncontent-length: " + b"9" * 5_000),
]


@pytest.mark.parametrize(("name", "data"), FOUND, ids=[f"{name}-{n}" for n, (name, _) in enumerate(FOUND)])
def test_an_input_that_was_found_is_refused(name: str, data: bytes) -> None:
    target = TARGETS[name]
    refusals = (CorruptDataError, UnsupportedFormatError, *((InvalidInputError,) if target.is_asked else ()))
    with pytest.raises(refusals):
        target.decode(data)


@pytest.mark.parametrize("shard", [["a", "b"], ["a", [], {}], 7])
def test_an_owner_says_that_a_question_names_no_shard(shard: object) -> None:
    with pytest.raises(InvalidInputError, match="names a shard"):
        decode_answer(Desk().answer_hello(message({"version": 2, "shard": shard})))


def test_an_envelope_may_have_a_schema_that_says_nothing() -> None:
    envelope = json.loads(TARGETS["debezium_envelope"].build()[0])
    for schema in (7, {"fields": [{}]}, {"fields": [{"field": "after", "fields": [{"name": "x"}, 3]}]}):
        TARGETS["debezium_envelope"].decode(json.dumps({"schema": schema, "payload": envelope}).encode())
