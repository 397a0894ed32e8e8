"""The filter of an SSTable never denies a key that it was given, and has the reference's bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_memwal.errors import CorruptDataError
from lance_memwal.sstable.bloom import BLOOM_BYTES, build_bloom, might_contain

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
