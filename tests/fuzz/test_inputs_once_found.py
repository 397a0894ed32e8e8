"""Hostile inputs that made a decoder fail once, as the fuzzer found them or made small: each is refused with an error of ours."""

from __future__ import annotations

import json
import struct

import pytest
from decoders import TARGETS
from pyroaring import BitMap

from lance_memwal.errors import CorruptDataError, InvalidInputError, UnsupportedFormatError
from lance_memwal.serve.desk import Desk
from lance_memwal.serve.wire import decode_answer

DEEP = b'{"a":' * 5_000
EVERYTHING = bytes(BitMap(range(1 << 23)).serialize())


def changed(name: str, **values: object) -> bytes:
    """The honest input with other values; `...` leaves one out."""
    value = json.loads(TARGETS[name].corpus()[-1])
    return json.dumps({key: item for key, item in {**value, **values}.items() if item is not ...}).encode()


def message(header: object, body: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<I", len(text)) + text + body


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
    ("deletes_behind_a_true_checksum", TARGETS["deletes_behind_a_true_checksum"].corpus()[0].replace(b"\x4c", b"\xff")),
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
    ("typed_key", b"[" * 20_000),
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
    envelope = json.loads(TARGETS["debezium_envelope"].corpus()[0])
    for schema in (7, {"fields": [{}]}, {"fields": [{"field": "after", "fields": [{"name": "x"}, 3]}]}):
        TARGETS["debezium_envelope"].decode(json.dumps({"schema": schema, "payload": envelope}).encode())
