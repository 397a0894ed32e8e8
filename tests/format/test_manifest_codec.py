"""Shard manifests and index details survive the round trip; nothing malformed passes, and every rule of a commit is checked."""

from __future__ import annotations

import uuid
from base64 import b85decode
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_memwal.errors import CorruptDataError, InvalidInputError
from lance_memwal.lance.details import MAX_DETAILS_BYTES, MemWalDetails, decode_details, encode_details
from lance_memwal.lance.proto import bounded, mem_wal_pb2
from lance_memwal.log.invariants import check_manifest_transition
from lance_memwal.log.manifest_codec import MAX_MANIFEST_BYTES, decode_manifest, encode_manifest, unknown_fields
from lance_memwal.types import ShardingField, ShardingSpec, ShardManifest, ShardStatus, SsTable
from tests.kit.logs import manifest_faults
from tools.compile_proto import compiled

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


def test_an_unknown_status_reads_as_active_and_is_written_back() -> None:
    for status in (9, -1, 2**31 - 1):
        data = message(status=status).SerializeToString(deterministic=True)
        assert decode_manifest(data).status is ShardStatus.ACTIVE
        assert encode_manifest(decode_manifest(data)) == data


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


@pytest.mark.parametrize(
    ("path", "generation", "reason"),
    [
        *((path, 4, "does not fit generation 4") for path in BAD_PATHS),
        ("00ff00ff_gen_0", 0, "generation 0"),
        ("99999999_gen_5", 5, "twice"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_an_sstable_with_a_wrong_path_or_generation_is_corrupt(path: str, generation: int, reason: str) -> None:
    parsed = message()
    parsed.sstables[0].path, parsed.sstables[0].generation = path, generation
    with pytest.raises(CorruptDataError, match=reason):
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


@pytest.mark.parametrize("nested", [False, True])
def test_a_bomb_of_empty_messages_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch, nested: bool) -> None:
    monkeypatch.setattr(bounded, "MAX_FIELDS", 50_000)
    inner = b"\x18\x00" * 60_000
    size = len(inner)
    bomb = b"\x42" + bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14]) + inner
    with pytest.raises(CorruptDataError, match="more than 50000 fields"):
        decode_manifest(bomb if nested else b"\x42\x00" * 50_001)


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


A, B = "00000000-0000-4000-8000-00000000000a", "00000000-0000-4000-8000-00000000000b"
BUCKET = ShardingSpec(1, (ShardingField("bucket", (0,), "bucket", "int32", {"num_buckets": "4"}),))
BUCKET_BYTES = bytes.fromhex(
    "10043a300801122c0a066275636b65741201001a066275636b65742a05696e74333232100a0b6e756d5f6275636b6574731201346001"
)

texts = st.text(max_size=6)
pairs = st.dictionaries(texts, texts, max_size=3)
progress = st.dictionaries(st.uuids().map(str), st.integers(0, 2**64 - 1), max_size=3)
parts = st.builds(
    ShardingField,
    field_id=texts,
    source_ids=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3).map(tuple),
    transform=st.none() | texts,
    result_type=texts,
    parameters=pairs,
    expression=st.none() | texts,
)
all_details = st.builds(
    MemWalDetails,
    num_shards=st.integers(0, 2**32 - 1),
    sharding_specs=st.lists(
        st.builds(ShardingSpec, spec_id=st.integers(0, 2**32 - 1), fields=st.lists(parts, max_size=2).map(tuple)),
        max_size=2,
        unique_by=lambda spec: spec.spec_id,
    ).map(tuple),
    maintained_indexes=st.lists(texts, max_size=3).map(tuple),
    maintain_all_indexes=st.none() | st.booleans(),
    writer_config_defaults=pairs,
    compacted=progress,
    index_catchup=st.dictionaries(texts, progress, max_size=2),
    snapshot_ts_millis=st.integers(-(2**63), 2**63 - 1),
    inline_snapshots=st.none() | st.binary(max_size=5),
)


@given(all_details)
def test_every_value_survives_the_round_trip(details: MemWalDetails) -> None:
    data = encode_details(details)
    assert decode_details(data) == details
    assert encode_details(decode_details(data)) == data


@given(all_details, all_details)
def test_changing_what_was_read_writes_exactly_the_new_values(old: MemWalDetails, new: MemWalDetails) -> None:
    read = decode_details(encode_details(old))
    assert decode_details(encode_details(replace(new, raw=read.raw))) == new


@pytest.mark.parametrize(
    ("data", "details"),
    [
        (b"", MemWalDetails()),
        (b"\x60\x01", MemWalDetails(maintain_all_indexes=True)),
        (b"\x60\x00", MemWalDetails(maintain_all_indexes=False)),
        (BUCKET_BYTES, MemWalDetails(num_shards=4, sharding_specs=(BUCKET,), maintain_all_indexes=True)),
    ],
    ids=["lance-13-default", "default", "none-maintained", "bucket"],
)
def test_the_bytes_that_pylance_writes_are_ours(data: bytes, details: MemWalDetails) -> None:
    assert decode_details(data) == details
    assert encode_details(details) == data


def test_unknown_fields_at_every_depth_are_written_back() -> None:
    known = mem_wal_pb2.MemWalIndexDetails()
    known.ParseFromString(BUCKET_BYTES)
    unknown = b"\xa2\x1f\x03abc"
    spec = known.sharding_specs[0].SerializeToString() + unknown
    shard = b"\x0a\x12\x0a\x10" + bytes(16) + b"\x10\x05" + unknown
    data = b"\x3a" + bytes([len(spec)]) + spec + b"\x4a" + bytes([len(shard)]) + shard + b"\x60\x01" + unknown
    read = decode_details(data)
    assert encode_details(read) == data
    changed = replace(read, compacted={str(k): v + 1 for k, v in read.compacted.items()} | {A: 1})
    assert encode_details(changed).count(unknown) == 3


def test_snapshots_that_we_do_not_model_are_kept_when_progress_is_recorded() -> None:
    read = decode_details(
        encode_details(MemWalDetails(snapshot_ts_millis=-5, inline_snapshots=b"xyz", compacted={A: 1}))
    )
    written = decode_details(encode_details(replace(read, compacted={A: 2, B: 1})))
    assert (written.snapshot_ts_millis, written.inline_snapshots) == (-5, b"xyz")
    assert written.compacted == {A: 2, B: 1}


def test_the_order_of_stored_writer_defaults_is_kept_as_it_was_read() -> None:
    data = b"".join(b"\x5a\x06\x0a\x01" + key + b"\x12\x011" for key in (b"z", b"a", b"m"))
    assert encode_details(decode_details(data)) == data


def test_progress_of_a_shard_that_is_dropped_is_gone() -> None:
    read = decode_details(encode_details(MemWalDetails(compacted={A: 1, B: 2}, index_catchup={"i": {A: 1}, "j": {}})))
    written = decode_details(encode_details(replace(read, compacted={B: 2}, index_catchup={"j": {B: 2}})))
    assert (written.compacted, written.index_catchup) == ({B: 2}, {"j": {B: 2}})


def entry(shard: bytes, generation: int) -> mem_wal_pb2.CompactedSsTable:
    return mem_wal_pb2.CompactedSsTable(shard_id=mem_wal_pb2.Uuid(value=shard), generation=generation)


@pytest.mark.parametrize(
    "message",
    [
        mem_wal_pb2.MemWalIndexDetails(compacted_sstables=[entry(b"x" * 16, 1), entry(b"x" * 16, 2)]),
        mem_wal_pb2.MemWalIndexDetails(compacted_sstables=[entry(b"x" * 15, 1)]),
        mem_wal_pb2.MemWalIndexDetails(compacted_sstables=[mem_wal_pb2.CompactedSsTable(generation=1)]),
        mem_wal_pb2.MemWalIndexDetails(index_catchup=[mem_wal_pb2.IndexCatchup(index_name="i")] * 2),
        mem_wal_pb2.MemWalIndexDetails(index_catchup=[mem_wal_pb2.IndexCatchup(caught_up=[entry(b"", 1)])]),
        mem_wal_pb2.MemWalIndexDetails(sharding_specs=[mem_wal_pb2.ShardingSpec(spec_id=1)] * 2),
    ],
    ids=["shard-twice", "short-id", "no-id", "index-twice", "catchup-without-id", "spec-twice"],
)
def test_ambiguous_details_are_corrupt(message: mem_wal_pb2.MemWalIndexDetails) -> None:
    with pytest.raises(CorruptDataError) as error:
        decode_details(message.SerializeToString(), path="v/2")
    assert error.value.path == "v/2"


@pytest.mark.parametrize("data", [b"\x3a\x05\x08", b"\xff", b"\x42\x02\xff\xfe", bytes(MAX_DETAILS_BYTES + 1)])
def test_bytes_that_are_no_details_are_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        decode_details(data)


@pytest.mark.parametrize(
    "details",
    [
        MemWalDetails(num_shards=-1),
        MemWalDetails(compacted={"not-a-uuid": 1}),
        MemWalDetails(compacted={A: 1 << 64}),
        MemWalDetails(writer_config_defaults={"max_memtable_rows": 5}),  # type: ignore[dict-item]
    ],
    ids=["num-shards", "shard-id", "generation", "default-value"],
)
def test_values_that_do_not_fit_are_never_encoded(details: MemWalDetails) -> None:
    with pytest.raises(InvalidInputError):
        encode_details(details)


def test_the_descriptor_is_that_of_the_proto_file(tmp_path: Path) -> None:
    assert b85decode(mem_wal_pb2.DESCRIPTOR_BYTES) == compiled(tmp_path), "run tools/compile_proto.py"


def test_optional_numbers_are_there_or_not() -> None:
    known = mem_wal_pb2.SsTable(generation=3, physical_rows=0)
    read = mem_wal_pb2.SsTable.FromString(known.SerializeToString())
    assert read.HasField("physical_rows")
    assert not read.HasField("in_memory_bytes")


def sstable(generation: int, token: str = "00000000") -> SsTable:
    return SsTable(generation, f"{token}_gen_{generation}")


OLD = ShardManifest(
    version=9,
    shard_id=SHARD,
    shard_spec_id=1,
    shard_field_entries=(("bucket", b"\0\0\0\0"),),
    writer_epoch=4,
    replay_after_wal_entry_position=20,
    wal_entry_position_last_seen=21,
    current_generation=6,
    sstables=(sstable(3), sstable(4), sstable(5)),
)
CLAIM = replace(OLD, version=10, writer_epoch=5)
FLUSH = replace(
    OLD,
    version=10,
    replay_after_wal_entry_position=25,
    wal_entry_position_last_seen=25,
    current_generation=7,
    sstables=(*OLD.sstables, sstable(6)),
)
TRIM = replace(OLD, version=10, sstables=(sstable(5),))
FIRST = ShardManifest(version=1, shard_id=SHARD, writer_epoch=1)


@pytest.mark.parametrize(
    "new",
    [
        CLAIM,
        FLUSH,
        TRIM,
        replace(OLD, version=10),
        replace(OLD, version=10, wal_entry_position_last_seen=30),
        replace(OLD, version=10, status=ShardStatus.SEALED),
        replace(OLD, version=10, sstables=()),
        replace(FLUSH, sstables=(sstable(5), sstable(6))),
        replace(FLUSH, sstables=(sstable(6),)),
        replace(FLUSH, replay_after_wal_entry_position=20, wal_entry_position_last_seen=21),
        replace(FLUSH, sstables=(*OLD.sstables, sstable(6), sstable(7)), current_generation=8),
    ],
    ids=[
        "claim",
        "flush",
        "trim",
        "nothing",
        "last-seen",
        "seal",
        "drain",
        "flush+trim",
        "flush+drain",
        "flush-no-entries",
        "flush-of-two",
    ],
)
def test_an_honest_step_passes(new: ShardManifest) -> None:
    check_manifest_transition(OLD, new)


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_blank_first_manifest_passes(epoch: int) -> None:
    check_manifest_transition(None, replace(FIRST, writer_epoch=epoch, shard_spec_id=1))


BREACHES: list[tuple[str, ShardManifest, dict[str, Any]]] = [
    ("I-1", FLUSH, {"version": 9}),
    ("I-1", FLUSH, {"version": 11}),
    ("I-1", CLAIM, {"version": 12}),
    ("I-2", FLUSH, {"shard_id": SHARD.replace("0a", "0b")}),
    ("I-2", TRIM, {"shard_spec_id": 2}),
    ("I-2", TRIM, {"shard_spec_id": 0}),
    ("I-2", TRIM, {"shard_field_entries": ()}),
    ("I-3", FLUSH, {"writer_epoch": 3}),
    ("I-3", CLAIM, {"writer_epoch": 6}),
    ("I-4", CLAIM, {"replay_after_wal_entry_position": 21}),
    ("I-4", CLAIM, {"wal_entry_position_last_seen": 22}),
    ("I-4", CLAIM, {"current_generation": 7}),
    ("I-4", CLAIM, {"sstables": (sstable(5),)}),
    ("I-4", CLAIM, {"status": ShardStatus.SEALED}),
    ("I-4", FLUSH, {"writer_epoch": 5}),
    ("I-5", FLUSH, {"replay_after_wal_entry_position": 19}),
    ("I-5", FLUSH, {"wal_entry_position_last_seen": 20}),
    ("I-5", FLUSH, {"wal_entry_position_last_seen": 24}),
    ("I-5", TRIM, {"replay_after_wal_entry_position": 21}),
    ("I-6", TRIM, {"current_generation": 7}),
    ("I-6", TRIM, {"current_generation": 5}),
    ("I-6", FLUSH, {"current_generation": 6}),
    ("I-6", FLUSH, {"current_generation": 8}),
    ("I-7", FLUSH, {"sstables": (*OLD.sstables, sstable(7)), "current_generation": 8}),
    ("I-7", FLUSH, {"sstables": (sstable(2), *OLD.sstables)}),
    ("I-7", FLUSH, {"sstables": (*OLD.sstables, sstable(6), sstable(8)), "current_generation": 9}),
    ("I-7", FLUSH, {"sstables": (*OLD.sstables, sstable(6), sstable(6))}),
    ("I-8", TRIM, {"sstables": (sstable(3), sstable(5))}),
    ("I-8", TRIM, {"sstables": (sstable(3), sstable(4))}),
    ("I-8", TRIM, {"sstables": (sstable(5, "ffffffff"),)}),
    ("I-8", TRIM, {"sstables": (replace(sstable(5), physical_rows=1),)}),
    ("I-8", TRIM, {"sstables": (sstable(5), sstable(4), sstable(3))}),
    ("I-8", TRIM, {"sstables": (sstable(5), sstable(5))}),
    ("I-8", FLUSH, {"sstables": (sstable(6), *OLD.sstables)}),
    ("I-9", FLUSH, {"sstables": (*OLD.sstables, SsTable(6, "../00000000_gen_6"))}),
    ("I-9", FLUSH, {"sstables": (*OLD.sstables, SsTable(6, "00000000_gen_7"))}),
    ("I-10", TRIM, {"status": 9}),
]


@pytest.mark.parametrize(
    ("rule", "step", "change"), BREACHES, ids=[f"{rule}-{n}" for n, (rule, _, _) in enumerate(BREACHES)]
)
def test_a_breach_is_refused_by_its_rule(rule: str, step: ShardManifest, change: dict[str, Any]) -> None:
    check_manifest_transition(OLD, step)
    with pytest.raises(InvalidInputError, match=f"rule {rule}:"):
        check_manifest_transition(OLD, replace(step, **change))


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("I-1", {"version": 2}),
        ("I-11", {"writer_epoch": 2}),
        ("I-11", {"replay_after_wal_entry_position": 1}),
        ("I-11", {"current_generation": 2}),
        ("I-11", {"sstables": (sstable(1),)}),
        ("I-11", {"status": ShardStatus.SEALED}),
    ],
)
def test_a_first_manifest_that_is_not_blank_is_refused(rule: str, change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=f"rule {rule}:"):
        check_manifest_transition(None, replace(FIRST, **change))


def test_a_shard_id_that_is_no_uuid_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="UUID"):
        check_manifest_transition(None, replace(FIRST, shard_id="../x"))


def test_a_sealed_shard_is_neither_reopened_nor_claimed_but_may_be_drained() -> None:
    sealed = replace(OLD, status=ShardStatus.SEALED)
    check_manifest_transition(sealed, replace(TRIM, status=ShardStatus.SEALED))
    with pytest.raises(InvalidInputError, match="rule I-10:"):
        check_manifest_transition(sealed, TRIM)
    with pytest.raises(InvalidInputError, match="rule I-4:"):
        check_manifest_transition(sealed, replace(CLAIM, status=ShardStatus.SEALED))


def test_a_spec_id_and_field_entries_may_be_set_once() -> None:
    manual = replace(OLD, shard_spec_id=0, shard_field_entries=())
    check_manifest_transition(manual, replace(OLD, version=10))
    with pytest.raises(InvalidInputError, match="rule I-4:"):
        check_manifest_transition(manual, CLAIM)


def test_an_odd_manifest_of_another_implementation_can_be_claimed_flushed_and_trimmed() -> None:
    odd = replace(
        OLD,
        sstables=(sstable(5), sstable(1), sstable(3)),
        replay_after_wal_entry_position=30,
        wal_entry_position_last_seen=2,
    )
    check_manifest_transition(odd, replace(odd, version=10, writer_epoch=5))
    grown = (*odd.sstables, sstable(6))
    check_manifest_transition(odd, replace(odd, version=10, sstables=grown, current_generation=7))
    check_manifest_transition(odd, replace(odd, version=10, sstables=(sstable(3), sstable(5))))
    check_manifest_transition(odd, replace(odd, version=10, sstables=(sstable(5), sstable(3))))
    with pytest.raises(InvalidInputError, match="rule I-8:"):
        check_manifest_transition(odd, replace(odd, version=10, sstables=(sstable(3), sstable(1), sstable(5))))


@given(st.lists(st.sampled_from(["claim", "flush", "trim", "seen"]), max_size=30), st.integers(0, 3))
def test_a_life_of_honest_steps_keeps_the_list_whole(steps: list[str], removed: int) -> None:
    manifest = FIRST
    for step in steps:
        new = replace(manifest, version=manifest.version + 1)
        if step == "claim":
            new = replace(new, writer_epoch=new.writer_epoch + 1)
        elif step == "flush":
            cursor, generation = new.wal_entry_position_last_seen + 2, new.current_generation
            new = replace(new, replay_after_wal_entry_position=cursor, wal_entry_position_last_seen=cursor)
            new = replace(new, sstables=(*new.sstables, sstable(generation)), current_generation=generation + 1)
        elif step == "trim":
            new = replace(new, sstables=new.sstables[removed:])
        else:
            new = replace(new, wal_entry_position_last_seen=new.wal_entry_position_last_seen + 1)
        check_manifest_transition(manifest, new)
        assert manifest_faults(new) == []
        manifest = new


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"sstables": (sstable(5), sstable(4))}, "ascending"),
        ({"sstables": (sstable(3), sstable(5))}, "gap"),
        ({"sstables": (sstable(5), sstable(5, "ffffffff"))}, "twice"),
        ({"current_generation": 5}, "current one is 5"),
        ({"wal_entry_position_last_seen": 19}, "below the replay cursor"),
    ],
)
def test_each_oddity_of_a_manifest_is_named(change: dict[str, Any], fault: str) -> None:
    assert manifest_faults(OLD) == []
    assert any(fault in found for found in manifest_faults(replace(OLD, **change)))
