"""Deletion vectors are the portable bitmaps that the reference writes and reads."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from lance_memwal.errors import CorruptDataError
from lance_memwal.lance.deletions import decode_deletions, encode_deletions

offsets = st.sets(st.integers(0, (1 << 32) - 1) | st.integers(0, 300), max_size=200)


def test_two_rows_have_the_bytes_that_the_reference_writes() -> None:
    assert encode_deletions(np.array([1, 0])).hex() == "3a30000001000000000001001000000000000100"


@given(offsets)
def test_deleted_rows_survive_a_round_trip_sorted(rows: set[int]) -> None:
    data = encode_deletions(np.array(list(rows), np.int64))
    assert decode_deletions(data, physical_rows=1 << 32).tolist() == sorted(rows)


def test_a_dense_vector_survives_a_round_trip() -> None:
    rows = np.arange(0, 200_000, 2)
    assert decode_deletions(encode_deletions(rows), physical_rows=200_000).tolist() == rows.tolist()


@pytest.mark.parametrize("rows", [[0, 1], list(range(0, 200_000, 3))])
def test_a_cut_vector_is_refused(rows: list[int]) -> None:
    data = encode_deletions(np.array(rows))
    for size in {0, 1, 4, 8, len(data) // 2, len(data) - 1}:
        with pytest.raises(CorruptDataError):
            decode_deletions(data[:size], physical_rows=200_000)


@given(st.binary(max_size=80))
def test_hostile_bytes_are_a_bitmap_or_refused(data: bytes) -> None:
    try:
        rows = decode_deletions(data, physical_rows=1 << 16)
    except CorruptDataError:
        return
    assert (np.diff(rows.astype(np.int64)) > 0).all()
    assert not len(rows) or rows[-1] < 1 << 16


def test_a_few_hostile_bytes_do_not_become_gigabytes() -> None:
    everything = BitMap(range(1 << 16))
    for high in range(1, 12):
        everything.update(range(high << 28, (high << 28) + (1 << 18)))
    everything.run_optimize()
    data = bytes(everything.serialize())
    assert len(data) < 1_000
    assert len(everything) > 2_500_000
    tracemalloc.start()
    try:
        with pytest.raises(CorruptDataError, match="there are 1000"):
            decode_deletions(data, physical_rows=1_000)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1 << 20


def test_a_vector_may_name_the_last_row_and_none_behind_it() -> None:
    data = encode_deletions(np.array([0, 9]))
    assert decode_deletions(data, physical_rows=10).tolist() == [0, 9]
    with pytest.raises(CorruptDataError):
        decode_deletions(data, physical_rows=9)
