"""Shard manifests survive the round trip, and nothing malformed gets through."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_memwal.errors import CorruptDataError, InvalidInputError
from lance_memwal.lance.proto import bounded, mem_wal_pb2
from lance_memwal.log.manifest_codec import MAX_MANIFEST_BYTES, decode_manifest, encode_manifest, unknown_fields
from lance_memwal.types import ShardManifest, ShardStatus, SsTable

SHARD = "0a0b0c0d-1112-4314-8516-1718191a1b1c"
U64 = (1 << 64) - 1
FULL = ShardManifest(
    version=7,
    shard_id=SHARD,
    shard_spec_id=1,
    shard_field_entries=(("bucket", b"\x02\x00\x00\x00"), ("empty", b"")),
    writer_epoch=3,
    replay_after_wal_entry_position=40,
    wal_entry_position_last_seen=41,
    current_generation=6,
    sstables=(SsTable(4, "00ff00ff_gen_4", 0, 0, 0), SsTable(5, "12345678_gen_5")),
    status=ShardStatus.SEALED,
)

numbers = st.integers(0, U64)
sstables = st.builds(
    lambda token, generation, sizes: SsTable(generation, f"{token:08x}_gen_{generation}", *sizes),
    st.integers(0, 2**32 - 1),
    st.integers(1, U64),
    st.tuples(*[st.none() | numbers] * 3),
)
manifests = st.builds(
    ShardManifest,
    version=st.integers(1, U64),
    shard_id=st.uuids().map(str),
    shard_spec_id=st.integers(0, 2**32 - 1),
    shard_field_entries=st.lists(st.tuples(st.text(max_size=8), st.binary(max_size=8)), max_size=3).map(tuple),
    writer_epoch=numbers,
    replay_after_wal_entry_position=numbers,
    wal_entry_position_last_seen=numbers,
    current_generation=st.integers(1, U64),
    sstables=st.lists(sstables, max_size=4, unique_by=lambda s: s.generation).map(tuple),
    status=st.sampled_from(ShardStatus),
)


def message(**changes: object) -> mem_wal_pb2.ShardManifest:
    parsed = mem_wal_pb2.ShardManifest()
    parsed.ParseFromString(encode_manifest(FULL))
    for name, value in changes.items():
        setattr(parsed, name, value)
    return parsed


@given(manifests)
def test_every_valid_manifest_survives_the_round_trip(manifest: ShardManifest) -> None:
    data = encode_manifest(manifest)
    assert decode_manifest(data, expected_version=manifest.version, expected_shard_id=manifest.shard_id) == manifest
    assert encode_manifest(decode_manifest(data)) == data


def test_the_first_claim_of_a_shard_has_exactly_these_bytes() -> None:
    claim = ShardManifest(version=1, shard_id=SHARD, writer_epoch=1)
    assert encode_manifest(claim).hex() == "0801100130015a120a10" + uuid.UUID(SHARD).hex


def test_zero_sizes_of_an_sstable_are_written_and_absent_ones_are_not() -> None:
    present, absent = decode_manifest(encode_manifest(FULL)).sstables
    assert (present.in_memory_bytes, present.physical_rows, present.primary_key_bytes) == (0, 0, 0)
    assert (absent.in_memory_bytes, absent.physical_rows, absent.primary_key_bytes) == (None, None, None)


def test_an_unknown_status_reads_as_active() -> None:
    for status in (9, -1, 2**31 - 1):
        assert decode_manifest(message(status=status).SerializeToString()).status is ShardStatus.ACTIVE


def newer(*, nested: bool) -> bytes:
    """FULL as a newer version might write it: more fields in the manifest, or in every message inside of it."""
    unknown = b"\xa2\x1f\x03abc" + b"\x28\x05" + b"\x3a\x02hi"  # fields 500, 5 and 7
    if not nested:
        return encode_manifest(FULL) + unknown
    parsed = message()
    for inner in (*parsed.sstables, *parsed.shard_field_entries, parsed.shard_id):
        inner.MergeFromString(b"\xa2\x1f\x03abc" + b"\xd8\x05\x01")  # fields 500 and 91
    return bytes(parsed.SerializeToString())


@pytest.mark.parametrize("nested", [False, True])
def test_unknown_fields_are_written_back_as_they_were(nested: bool) -> None:
    data = newer(nested=nested)
    decoded = decode_manifest(data)
    assert encode_manifest(decoded) == data
    assert decode_manifest(encode_manifest(decoded)) == decoded
    known = replace(decoded, unknown=b"", shard_field_unknown=(), sstables=FULL.sstables)
    assert known == FULL


def test_an_unknown_status_is_written_back_as_it_was() -> None:
    for status in (9, -1, 2**31 - 1):
        data = message(status=status).SerializeToString(deterministic=True)
        assert encode_manifest(decode_manifest(data)) == data


def test_what_is_unknown_is_named() -> None:
    assert unknown_fields(FULL) == ()
    assert unknown_fields(decode_manifest(newer(nested=False))) == ("field 500", "field 5", "field 7")
    names = unknown_fields(decode_manifest(newer(nested=True)))
    assert [name for name in names if "generation" in name]
    assert [name for name in names if "shard field" in name]
    assert unknown_fields(decode_manifest(message(status=9).SerializeToString())) == ("field 15",)


def test_a_version_that_differs_from_the_file_name_is_corrupt() -> None:
    with pytest.raises(CorruptDataError, match="version 7") as error:
        decode_manifest(encode_manifest(FULL), path="m/7", expected_version=8)
    assert error.value.path == "m/7"


def test_a_manifest_of_another_shard_is_corrupt() -> None:
    with pytest.raises(CorruptDataError, match="lies in the directory of"):
        decode_manifest(encode_manifest(FULL), expected_shard_id=str(uuid.UUID(int=1)))


def test_a_shard_id_is_required_and_has_16_bytes() -> None:
    for value in (None, b"", b"x" * 15, b"x" * 17):
        parsed = message()
        parsed.ClearField("shard_id")
        if value is not None:
            parsed.shard_id.value = value
        with pytest.raises(CorruptDataError, match="16 bytes"):
            decode_manifest(parsed.SerializeToString())


BAD_PATHS = (
    "|../../etc_gen_4|00ff00ff_gen_4/|/00ff00ff_gen_4|00FF00FF_gen_4|00ff00ff_gen_|00ff00ff_gen_5|00ff00ff_gen_4\n|"
    "00ff00ff_gen_-4|0ff00ff_gen_4|00ff00ff_gen_\u0664|" + "x" * 10_000
).split("|")


@pytest.mark.parametrize("path", BAD_PATHS, ids=lambda path: repr(path[:20]))
def test_an_sstable_path_that_is_not_a_name_of_its_generation_is_corrupt(path: str) -> None:
    parsed = message()
    parsed.sstables[0].path = path
    with pytest.raises(CorruptDataError, match="does not fit generation 4"):
        decode_manifest(parsed.SerializeToString())


def test_generation_zero_is_the_base_table_and_never_an_sstable() -> None:
    parsed = message()
    parsed.sstables[0].generation = 0
    parsed.sstables[0].path = "00ff00ff_gen_0"
    with pytest.raises(CorruptDataError, match="generation 0"):
        decode_manifest(parsed.SerializeToString())


def test_a_generation_listed_twice_is_corrupt() -> None:
    parsed = message()
    parsed.sstables.add(generation=5, path="99999999_gen_5")
    with pytest.raises(CorruptDataError, match="twice"):
        decode_manifest(parsed.SerializeToString())


@pytest.mark.parametrize("name", ["version", "current_generation"])
def test_a_zero_that_no_writer_leaves_is_corrupt(name: str) -> None:
    with pytest.raises(CorruptDataError, match="at least 1"):
        decode_manifest(message(**{name: 0}).SerializeToString())


def test_every_cut_of_a_manifest_is_corrupt_or_lacks_a_later_field() -> None:
    data = encode_manifest(FULL)
    for size in range(len(data)):
        try:
            assert decode_manifest(data[:size]) != FULL
        except CorruptDataError:
            continue


def test_an_oversized_manifest_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(CorruptDataError, match="too large"):
        decode_manifest(bytes(MAX_MANIFEST_BYTES + 1))


def test_a_bomb_of_empty_messages_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "MAX_FIELDS", 50_000)
    with pytest.raises(CorruptDataError, match="more than 50000 fields"):
        decode_manifest(b"\x42\x00" * 50_001)


def test_a_bomb_inside_nested_messages_is_counted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "MAX_FIELDS", 50_000)
    inner = b"\x18\x00" * 60_000
    size = len(inner)
    bomb = b"\x42" + bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14]) + inner
    with pytest.raises(CorruptDataError, match="more than 50000 fields"):
        decode_manifest(bomb)


def test_a_large_honest_manifest_passes_the_limits() -> None:
    many = tuple(SsTable(n, f"{n:08x}_gen_{n}", 1, 2, 3) for n in range(1, 20_001))
    manifest = replace(FULL, sstables=many, current_generation=20_001)
    assert decode_manifest(encode_manifest(manifest)) == manifest


@pytest.mark.parametrize(
    "changes",
    [
        {"shard_id": "not-a-uuid"},
        {"version": 0},
        {"version": 1 << 64},
        {"writer_epoch": -1},
        {"shard_spec_id": 1 << 32},
        {"current_generation": 0},
        {"sstables": (SsTable(1, "../x_gen_1"),)},
        {"sstables": (SsTable(1, "00000000_gen_1", -1),)},
        {"shard_field_entries": (("bucket", "text"),)},
    ],
    ids=str,
)
def test_what_no_reader_could_take_is_never_encoded(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidInputError):
        encode_manifest(replace(FULL, **changes))  # type: ignore[arg-type]
