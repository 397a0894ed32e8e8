"""Buckets equal the public vectors, a scalar hash and the evaluator of the peer; bloom filters those of the reference."""

from __future__ import annotations

import datetime
import math
import random
import struct
from collections.abc import Callable
from typing import Any

import lance.schema
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lance.mem_wal import ShardingField, ShardingSpec, evaluate_sharding_spec

from lance_memwal.errors import CorruptDataError, InvalidInputError
from lance_memwal.rows.bucket import bucket_of, bucket_of_one, is_bucket_type
from lance_memwal.sstable.bloom import BLOOM_BYTES, build_bloom, might_contain
from tests.kit.effort import cpu_seconds

M32 = 0xFFFFFFFF


def rotate(x: int, r: int) -> int:
    return ((x << r) | (x >> (32 - r))) & M32


def mix(h: int, block: int) -> int:
    block = rotate((block & M32) * 0xCC9E2D51 & M32, 15) * 0x1B873593 & M32
    return (rotate(h ^ block, 13) * 5 + 0xE6546B64) & M32


def finish(h: int, size: int) -> int:
    h ^= size
    h = (h ^ h >> 16) * 0x85EBCA6B & M32
    h = (h ^ h >> 13) * 0xC2B2AE35 & M32
    return h ^ h >> 16


def hash32(value: int) -> int:
    return finish(mix(0, value), 4)


def hash64(value: int) -> int:
    return finish(mix(mix(0, value), value >> 32), 8)


def hash_text(value: str) -> int:
    data = value.encode()
    whole = len(data) & ~3
    h = 0
    for at in range(0, whole, 4):
        h = mix(h, int.from_bytes(data[at : at + 4], "little"))
    for byte in data[whole:]:
        h = mix(h, byte - 256 if byte > 127 else byte)
    return finish(h, len(data))


def hash_double(value: float) -> int:
    if math.isnan(value):
        return hash64(0x7FF8000000000000)
    return hash64(0 if value == 0 else struct.unpack("<q", struct.pack("<d", value))[0])


def hash_float(value: float) -> int:
    if math.isnan(value):
        return hash32(0x7FC00000)
    return hash32(0 if value == 0 else struct.unpack("<i", struct.pack("<f", value))[0])


def evaluate(array: pa.Array, num_buckets: int) -> list[int]:
    batch = pa.record_batch([array], names=["c"])
    field = ShardingField("bucket", [0], "bucket", None, "int32", {"num_buckets": str(num_buckets)})
    schema = lance.schema.LanceSchema.from_pyarrow(batch.schema)
    found: list[int] = evaluate_sharding_spec(batch, ShardingSpec(1, [field]), schema).column(0).to_pylist()
    return found


VECTORS: list[tuple[pa.DataType, list[Any], list[int], list[int]]] = [
    (pa.bool_(), [True, False], [2, 6], [170, 54]),
    (pa.int8(), [-128, -1, 0, 1, 127], [5, 0, 6, 2, 3], [477, 648, 54, 170, 395]),
    (pa.int16(), [-5, 300], [0, 0], [840, 160]),
    (pa.int32(), [1, 2, 3, -1, 2**31 - 1, -(2**31)], [2, 7, 1, 0, 2, 4], [170, 463, 505, 648, 114, 916]),
    (pa.date32(), [1, 2, 3, -1], [2, 7, 1, 0], [170, 463, 505, 648]),
    (pa.int64(), [1, -1, 2**40, -(2**63), 2**63 - 1], [4, 0, 2, 5, 7], [556, 712, 778, 829, 599]),
    (pa.timestamp("us"), [1, -1, 2**40], [4, 0, 2], [556, 712, 778]),
    (pa.uint8(), [0, 200, 255], [6, 2, 1], [54, 746, 793]),
    (pa.uint16(), [65535], [6], [326]),
    (pa.uint32(), [2**32 - 1, 2**31, 7], [0, 4, 1], [648, 916, 321]),
    (pa.uint64(), [2**64 - 1, 2**63, 9], [0, 5, 7], [712, 829, 919]),
    (pa.float32(), [1.25, 0.0, -0.0, math.nan, -3.5, math.inf], [0, 6, 6, 3, 6, 0], [576, 54, 54, 251, 262, 520]),
    (pa.float64(), [1.25, -0.0, math.nan, 1e300], [0, 4, 5, 4], [840, 676, 237, 220]),
    (
        pa.string(),
        ["a", "b", "", "abcd", "abcde", "héllo wörld", "日本語x"],
        [1, 5, 0, 2, 4, 2, 4],
        [713, 757, 0, 978, 756, 250, 20],
    ),
    (pa.time32("s"), [5], [6], [494]),
    (pa.time32("ms"), [5000], [5], [965]),
    (pa.time64("us"), [5], [7], [543]),
    (pa.timestamp("s"), [77], [6], [358]),
    (pa.timestamp("ns", tz="UTC"), [123456789012345], [4], [476]),
]


@pytest.mark.parametrize(("kind", "values", "by_8", "by_1000"), VECTORS, ids=[str(vector[0]) for vector in VECTORS])
def test_the_public_vectors_hold(kind: pa.DataType, values: list[Any], by_8: list[int], by_1000: list[int]) -> None:
    array = pa.array(values, kind)
    assert bucket_of(array, 8).tolist() == by_8
    assert bucket_of(array, 1000).tolist() == by_1000


def integers(bits: int, *, signed: bool) -> Callable[[random.Random], int]:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    edges = [low, high, 0, 1]
    return lambda rng: rng.choice(edges) if rng.random() < 0.1 else rng.randint(low, high)


def any_text(rng: random.Random) -> str:
    alphabet = "ab01 éß日本🙂\0\x7f"
    return "".join(rng.choice(alphabet) for _ in range(rng.choice([0, 1, 2, 3, 4, 5, 8, 17, 30, 60])))


def any_double(rng: random.Random) -> float:
    bits = rng.getrandbits(64)
    special = [0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324]
    return rng.choice(special) if rng.random() < 0.1 else float(struct.unpack("<d", struct.pack("<Q", bits))[0])


def any_float(rng: random.Random) -> float:
    return float(struct.unpack("<f", struct.pack("<I", rng.getrandbits(32)))[0])


CASES: list[tuple[pa.DataType, Callable[[random.Random], Any], Callable[[Any], int]]] = [
    (pa.bool_(), lambda rng: rng.random() < 0.5, hash32),
    *[(getattr(pa, f"int{bits}")(), integers(bits, signed=True), hash32) for bits in (8, 16, 32)],
    *[(getattr(pa, f"uint{bits}")(), integers(bits, signed=False), hash32) for bits in (8, 16, 32)],
    (pa.int64(), integers(64, signed=True), hash64),
    (pa.uint64(), integers(64, signed=False), hash64),
    (pa.float32(), any_float, hash_float),
    (pa.float64(), any_double, hash_double),
    (pa.string(), any_text, hash_text),
    (pa.large_string(), any_text, hash_text),
    (pa.date32(), integers(32, signed=True), hash32),
    (pa.time32("s"), lambda rng: rng.randrange(86_400), hash32),
    (pa.time32("ms"), lambda rng: rng.randrange(86_400_000), hash32),
    (pa.time64("us"), lambda rng: rng.randrange(86_400_000_000), hash64),
    (pa.time64("ns"), lambda rng: rng.randrange(86_400_000_000_000), hash64),
    *[(pa.timestamp(unit), integers(64, signed=True), hash64) for unit in ("s", "ms", "us", "ns")],
    (pa.timestamp("us", tz="Europe/Paris"), integers(64, signed=True), hash64),
]


@pytest.mark.parametrize(("kind", "draw", "scalar_hash"), CASES, ids=[str(case[0]) for case in CASES])
def test_thousands_of_random_values_equal_the_scalar_hash_and_the_evaluator(
    kind: pa.DataType, draw: Callable[[random.Random], Any], scalar_hash: Callable[[Any], int]
) -> None:
    rng = random.Random(20_240_614)
    values = [None if rng.random() < 0.05 else draw(rng) for _ in range(3_000)]
    array = pa.array(values, kind)
    for num_buckets in (1, 7, 1024):
        expected = [0 if v is None else (scalar_hash(v) & 0x7FFFFFFF) % num_buckets for v in values]
        found = bucket_of(array, num_buckets)
        assert found.dtype == np.int32
        assert found.tolist() == expected == evaluate(array, num_buckets)
        sliced = pa.concat_arrays([array, array]).slice(1_001, 2_500)
        assert bucket_of(sliced, num_buckets).tolist() == (expected + expected)[1_001:3_501]
        chunks = pa.chunked_array([array.slice(0, 0), array.slice(0, 999), array.slice(999)], kind)
        assert bucket_of(chunks, num_buckets).tolist() == expected
        alone = [bucket_of_one(value, kind, num_buckets) for value in values[:300]]
        assert all(one in (None, known) for one, known in zip(alone, expected, strict=False))
        is_plain = pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)
        assert (sum(one is not None for one in alone) > 200) == is_plain


def test_dates_and_datetimes_hash_by_their_stored_value() -> None:
    days = pa.array([datetime.date(1970, 1, 3)], pa.date32())
    moments = pa.array([datetime.datetime(1970, 1, 1, 0, 0, 2)], pa.timestamp("s"))
    assert bucket_of(days, 1000).tolist() == [hash32(2) % 1000]
    assert bucket_of(moments, 1000).tolist() == [(hash64(2) & 0x7FFFFFFF) % 1000]


def test_what_a_column_cannot_hold_has_no_bucket() -> None:
    assert bucket_of_one(2**63, pa.int64(), 4) is None
    assert bucket_of_one(-1, pa.uint8(), 4) is None
    assert bucket_of_one(True, pa.int64(), 4) is None
    assert bucket_of_one("\ud800", pa.string(), 4) is None
    assert bucket_of_one("a" * 65, pa.string(), 4) is None, "the evaluator is faster"


def test_no_rows_give_no_buckets() -> None:
    assert bucket_of(pa.array([], pa.int64()), 4).tolist() == []
    assert bucket_of(pa.chunked_array([], pa.string()), 4).tolist() == []


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.large_binary(),
        pa.binary(4),
        pa.float16(),
        pa.date64(),
        pa.duration("us"),
        pa.decimal128(10, 2),
        pa.string_view(),
        pa.dictionary(pa.int32(), pa.string()),
        pa.list_(pa.int64()),
        pa.struct([("a", pa.int64())]),
        pa.null(),
    ],
    ids=str,
)
def test_a_type_that_the_peer_does_not_bucket_is_refused(kind: pa.DataType) -> None:
    assert not is_bucket_type(kind)
    with pytest.raises(InvalidInputError, match="cannot be bucketed"):
        bucket_of(pa.nulls(2, kind), 4)


@pytest.mark.parametrize("num_buckets", [0, -1, 1 << 31])
def test_a_number_of_buckets_out_of_range_is_refused(num_buckets: int) -> None:
    with pytest.raises(InvalidInputError, match="num_buckets"):
        bucket_of(pa.array([1]), num_buckets)


def test_a_million_rows_take_no_step_of_python_for_each_even_with_one_huge_string() -> None:
    numbers = pa.array(np.arange(1_000_000))
    texts = pa.array([f"user-{i}" for i in range(1_000_000)] + ["x" * 10_000_001])
    for array in (numbers, texts):
        in_python = cpu_seconds(array.to_pylist, tries=3)
        assert cpu_seconds(lambda array=array: bucket_of(array, 64), tries=3) < in_python
        assert len(bucket_of(array, 64)) == len(array)
    assert bucket_of(texts, 64)[-1] == (hash_text("x" * 10_000_001) & 0x7FFFFFFF) % 64


SALTS = (0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31)


def reference(hashes: list[int]) -> bytes:
    """The definition, one hash at a time."""
    out = bytearray(32768)
    for value in hashes:
        block = ((value >> 32) * 1024) >> 32
        for word, salt in enumerate(SALTS):
            bit = (((value & 0xFFFFFFFF) * salt) & 0xFFFFFFFF) >> 27
            out[block * 32 + word * 4 + bit // 8] |= 1 << (bit % 8)
    return bytes(out)


hash_lists = st.lists(st.integers(0, (1 << 64) - 1), max_size=40)


@given(hash_lists)
def test_the_bytes_equal_the_definition(hashes: list[int]) -> None:
    assert build_bloom(np.array(hashes, np.uint64)) == reference(hashes)


@given(hash_lists, hash_lists)
def test_a_hash_that_was_put_in_is_never_denied(hashes: list[int], others: list[int]) -> None:
    filter_bytes = build_bloom(np.array(hashes, np.uint64))
    assert might_contain(filter_bytes, np.array(hashes, np.uint64)).all()
    answer = might_contain(filter_bytes, np.array(others, np.uint64))
    for value, maybe in zip(others, answer, strict=True):
        assert maybe == (reference([*hashes, value]) == filter_bytes)


def test_the_empty_input_of_append_only_tables_sets_eight_bits() -> None:
    filter_bytes = build_bloom(np.array([0xD1FBA762150C532C], np.uint64))
    assert len(filter_bytes) == BLOOM_BYTES == 32768
    assert sum(byte.bit_count() for byte in filter_bytes) == 8


def test_a_filter_of_eight_thousand_keys_denies_almost_all_others() -> None:
    draw = np.random.default_rng(3)
    inside, outside = draw.integers(0, 1 << 63, (2, 8192), np.uint64)
    filter_bytes = build_bloom(inside)
    assert might_contain(filter_bytes, inside).all()
    assert might_contain(filter_bytes, outside).mean() < 0.01


@pytest.mark.parametrize("size", [0, 3, 32, 32767, 32769, 65536])
def test_a_filter_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(CorruptDataError, match=f"{size} bytes"):
        might_contain(b"\xff" * size, np.array([1], np.uint64))
