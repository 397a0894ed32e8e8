"""Hostile bytes make every decoder, and a hostile bucket every use of its table, answer or refuse; and the fuzzer finds
each kind of fault.
"""

import json
import re
from collections import Counter
from pathlib import Path

import bad_decoders
import fuzzer
import pyarrow as pa
import pytest
from decoders import LOGS, OTHERS, TARGETS, any_of_the_others_corpus
from entries_with_blobs import entry, image
from fuzzer import fuzz_decoder
from inputs import PLACE
from mutations import MAX_INPUT_BYTES, every_cut_and_flip, mutate

from lance_memwal.errors import CorruptDataError, InvalidInputError, UnsupportedFormatError
from lance_memwal.lance.manifest import Fragment, generation_manifest
from lance_memwal.rows.ipc_frames import stream_of
from tests.fuzz.hostile_child import CASES, use_hostile_table
from tests.harness.processes import Child, start
from tests.harness.profile import scaled

SMALL_BYTES = 1_100
SMALL = [name for name in LOGS if any(len(data) <= SMALL_BYTES for data in TARGETS[name].corpus())]


@pytest.mark.scaled
@pytest.mark.parametrize("name", scaled(ci=LOGS, prove=tuple(TARGETS)))
def test_mutated_bytes_are_refused_or_decoded(name: str) -> None:
    runs = scaled(ci=5_000, prove=100_000)
    target = TARGETS[name]
    counts = fuzz_decoder(target.place, target.corpus(), runs, is_asked=target.is_asked)
    assert sum(counts.values()) == runs
    assert counts["refused"] > runs // 20, "the mutations hardly hurt: they do not reach the decoder"


def test_mutated_records_texts_and_messages_are_refused_or_decoded() -> None:
    runs = 400 * len(OTHERS)
    counts = fuzz_decoder("decoders:any_of_the_others", any_of_the_others_corpus(), runs, is_asked=True)
    assert counts["refused"] > runs // 2


@pytest.mark.parametrize("name", TARGETS)
def test_the_committed_bytes_are_accepted_and_are_those_that_are_written_today(name: str) -> None:
    target = TARGETS[name]
    for data in target.corpus():
        target.decode(data)
    assert target.corpus()[: len(target.build())] == target.build(), f"python tests/fuzz --renew {name}"


def test_the_corpus_is_small_and_has_nothing_that_no_decoder_takes() -> None:
    files = [file for file in PLACE.rglob("*") if file.is_file()]
    assert {file.parent.name for file in files} == set(TARGETS)
    assert sum(file.stat().st_size for file in files) < 300_000


@pytest.mark.parametrize("name", SMALL)
def test_every_cut_and_every_flipped_bit_is_refused_or_decoded(name: str) -> None:
    target = TARGETS[name]
    small = [data for data in target.corpus() if len(data) <= SMALL_BYTES][:2]
    counts = fuzz_decoder(target.place, small, 0, is_asked=target.is_asked)
    assert sum(counts.values()) == sum(len(data) * 9 for data in small)
    assert counts["refused"] > 0


def test_a_bomb_of_the_largest_size_allowed_stays_within_the_memory_limit() -> None:
    assert fuzz_decoder("decoders:protobuf_bombs", [b"any"], 1) == {"taken": 1, "refused": 0}


CORPUS = [b"honest bytes"]


def test_a_decoder_that_only_refuses_passes() -> None:
    counts = fuzzer.fuzz_decoder("bad_decoders:honest", CORPUS, 300)
    assert sum(counts.values()) == 300
    assert counts["refused"] > 250


def test_an_unexpected_exception_is_found_and_can_be_reproduced_from_the_message() -> None:
    with pytest.raises(AssertionError, match="KeyError") as error:
        fuzzer.fuzz_decoder("bad_decoders:raises_another_error", CORPUS, 2_000, seed=7)
    found = re.search(r"seed (\d+), input (\d+)", str(error.value))
    assert found is not None
    with pytest.raises(KeyError):
        bad_decoders.raises_another_error(mutate(int(found[1]), int(found[2]), CORPUS))


def test_a_crash_of_the_process_is_found_with_its_input() -> None:
    with pytest.raises(AssertionError, match=r"input \d+: child ended with signal SIGSEGV") as error:
        fuzzer.fuzz_decoder("bad_decoders:crashes", CORPUS, 2_000, seed=7)
    found = re.search(r"seed (\d+), input (\d+)", str(error.value))
    assert found is not None
    assert len(mutate(int(found[1]), int(found[2]), CORPUS)) < 4


def test_a_decoder_that_trusts_a_hostile_length_hits_the_memory_limit() -> None:
    with pytest.raises(AssertionError, match="MemoryError"):
        fuzzer.fuzz_decoder("bad_decoders:trusts_a_length", CORPUS, 100)


@pytest.mark.parametrize("decoder", ["never_ends", "never_comes_back"])
def test_decoder_that_never_ends_is_stopped_also_in_native_code(decoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzer, "SECONDS_PER_INPUT", 1)
    with pytest.raises(fuzzer.FuzzError, match="took longer than 1 seconds") as error:
        fuzzer.fuzz_decoder(f"bad_decoders:{decoder}", CORPUS, 100, seed=7, first=3)
    assert f"in {decoder}" in str(error.value), "it shows where it was"
    assert mutate(7, error.value.number, CORPUS) != CORPUS[0]


def test_a_corpus_that_the_decoder_refuses_is_a_failure() -> None:
    with pytest.raises(AssertionError, match="not honest"):
        fuzzer.fuzz_decoder("bad_decoders:honest", [b"dishonest bytes"], 10)


def test_every_cut_and_every_flip_is_made_once() -> None:
    inputs = list(every_cut_and_flip([b"abc"]))
    assert len(inputs) == len(set(inputs)) == 3 + 24
    assert inputs + list(every_cut_and_flip([b"de"])) == list(every_cut_and_flip([b"abc", b"de"]))


def test_mutated_inputs_are_repeatable_diverse_and_bounded() -> None:
    corpus = [bytes(range(256)) * 2, b"short", b""]
    inputs = [mutate(1, number, corpus) for number in range(2_000)]
    assert inputs == [mutate(1, number, corpus) for number in range(2_000)]
    assert len(set(inputs)) > 1_200
    sizes = Counter(len(data).bit_length() for data in inputs)
    assert len(sizes) > 10
    assert max(map(len, inputs)) <= MAX_INPUT_BYTES


# Hostile inputs that made a decoder fail once, as the fuzzer found them or made small: each is refused with an error
# of ours.

SHARD = "00112233-4455-4677-8899-aabbccddeeff"
_ID = {"lance:field_id": "1"}
DEEP = b'{"a":' * 5_000


def changed(name: str, **values: object) -> bytes:
    """The honest input with other values; `...` leaves one out."""
    value = json.loads(TARGETS[name].build()[-1])
    return json.dumps({key: item for key, item in {**value, **values}.items() if item is not ...}).encode()


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
    ("compaction_marks", changed("compaction_marks", **{"00112233-4455-4677-8899-aabbccddeeff": float("inf")})),
    ("merge_setting", changed("merge_setting", remember_deletes_ms=10**400)),
    ("merge_setting", changed("merge_setting", remember_deletes_ms=-1)),
    ("merge_setting", changed("merge_setting", field=float("inf"))),
    ("merge_setting", DEEP),
    ("deletes_behind_a_true_checksum", TARGETS["deletes_behind_a_true_checksum"].build()[0].replace(b"\x4c", b"\xff")),
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
    *(("typed_text", text) for text in (b"[" * 20_000, b"[1%s]" % (b"0" * 400), b"9" * 5_000)),
    *(("typed_text", b"v:vector[%s]" % text) for text in (b"9" * 5_000, b"9" * 30, "²".encode())),
    *(("typed_text", text) for text in (b"\xff:int64", "bucket(id,²)".encode(), b"bucket(id,%s)" % (b"9" * 5_000))),
    *(("spark_options", changed("spark_options", maxRowsPerTrigger=text)) for text in ("²", "9" * 5_000)),
    *(("spark_options", changed("spark_options", maxBytesPerTrigger=text)) for text in ("²k", "9" * 5_000)),
    *(
        ("spark_filter", b"%s\nat > timestamp '2026-01-31'" % zone)
        for zone in (b"+81:30", b"9" * 400, b"Europe" + b"/Osl" * 900, b"\xff", b"..")
    ),
    ("spark_filter", b"+01:00\nat > timestamp '0001-01-01'"),
    *(("stream_offset", text) for text in (b"{}", b"[]", b'{"shards": []}', b'{"shards": {"a": 1}}')),
    *(
        ("stream_offset", changed("stream_offset", **more))
        for more in ({"table": 7}, {"initial": "x"}, {"began_at": 7}, {"began_at": "c1,-/0/x"})
    ),
    *(("stream_offset", changed("stream_offset", shards={SHARD: n})) for n in (True, 0, 1.5, "1", 1 << 64)),
    *(("environment", b"LANCE_MEMWAL_CACHE_BYTES=" + n) for n in (b"9" * 5_000, b"x")),
    ("request_of_the_page", b"GET ?shard=\xf2"),
    ("request_of_the_page", b"POST /api/query\ncontent-type: application/json\ncontent-length: " + b"9" * 5_000),
]


@pytest.mark.parametrize(("name", "data"), FOUND, ids=[f"{name}-{n}" for n, (name, _) in enumerate(FOUND)])
def test_an_input_that_was_found_is_refused(name: str, data: bytes) -> None:
    target = TARGETS[name]
    refusals = (CorruptDataError, UnsupportedFormatError, *((InvalidInputError,) if target.is_asked else ()))
    with pytest.raises(refusals):
        target.decode(data)


# A hostile thing in the bucket: every use of the table answers or refuses, in a process with little memory, and
# touches nothing outside of the table.

REFUSED = {
    "path_that_leads_out",
    "absolute_path",
    "linked_log",
    "linked_manifest",
    "linked_shard",
    "compression_bomb",
    "deep_columns",
    "rows_that_cost_nothing",
}
SHOWN_BY_VERIFY = {"linked_data_of_an_sstable", "linked_data_of_the_base"}  # which Lance opens itself
IN_VAIN = {"answered", "out of memory", "UnsupportedFormatError"}  # what nobody calls damaged
READS = ("scan", "get", "count")
SECONDS = 100
GROWN_MIB = 200  # what an honest table of this size takes, and twice as much again


def told_by(child: Child) -> list[tuple[str, ...]]:
    """All that a process says until it ends, and how it ended."""
    told = []
    while True:
        try:
            message = child.receive(SECONDS)
        except EOFError:
            return [*told, ("status", str(child.wait(SECONDS)))]
        assert message is not None, told
        told.append(message)


@pytest.mark.parametrize("case", CASES)
def test_every_use_of_a_hostile_table_answers_or_refuses(case: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("not yours")
    told = told_by(start(use_hostile_table, case, tmp_path / "t"))
    assert told[-2:] == [("done",), ("status", "0")], told
    answers = dict(told[:-2])
    grown_mib = int(answers.pop("grown"))
    assert len(answers) == 10
    assert not any("NOT OURS" in answer for answer in answers.values()), told
    assert case not in REFUSED or "answered" not in [answers[use] for use in (*READS, "verify")], told
    assert case not in SHOWN_BY_VERIFY or answers["verify"] != "answered", told
    if case == "more_rows_than_memory":
        assert {answers[use] for use in READS} <= IN_VAIN, told
    else:
        assert "out of memory" not in answers.values(), told
        assert grown_mib < GROWN_MIB, told
    assert outside.read_text() == "not yours"
