"""The MemWAL index details survive the round trip, with everything in them that we do not know."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_memwal.errors import CorruptDataError, InvalidInputError
from lance_memwal.lance.details import MAX_DETAILS_BYTES, MemWalDetails, decode_details, encode_details
from lance_memwal.lance.proto import mem_wal_pb2
from lance_memwal.types import ShardingField, ShardingSpec

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
