"""Deletion vectors are the portable bitmaps that the reference writes and reads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwal.errors import CorruptDataError
from memwal.format.deletions import decode_deletions, encode_deletions

offsets = st.sets(st.integers(0, (1 << 32) - 1) | st.integers(0, 300), max_size=200)


def test_two_rows_have_the_bytes_that_the_reference_writes() -> None:
    assert encode_deletions(np.array([1, 0])).hex() == "3a30000001000000000001001000000000000100"


@given(offsets)
def test_deleted_rows_survive_a_round_trip_sorted(rows: set[int]) -> None:
    assert decode_deletions(encode_deletions(np.array(list(rows), np.int64))).tolist() == sorted(rows)


def test_a_dense_vector_survives_a_round_trip() -> None:
    rows = np.arange(0, 200_000, 2)
    assert decode_deletions(encode_deletions(rows)).tolist() == rows.tolist()


@pytest.mark.parametrize("rows", [[0, 1], list(range(0, 200_000, 3))])
def test_a_cut_vector_is_refused(rows: list[int]) -> None:
    data = encode_deletions(np.array(rows))
    for size in {0, 1, 4, 8, len(data) // 2, len(data) - 1}:
        with pytest.raises(CorruptDataError):
            decode_deletions(data[:size])


@given(st.binary(max_size=80))
def test_hostile_bytes_are_a_bitmap_or_refused(data: bytes) -> None:
    try:
        rows = decode_deletions(data)
    except CorruptDataError:
        return
    assert (np.diff(rows.astype(np.int64)) > 0).all()
