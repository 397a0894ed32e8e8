"""Sums that were made of parts are those of the whole."""

from __future__ import annotations

import zlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_memwal.log.checksum import Piece, crc_after, summed
from lance_memwal.log.entry import EntryEncoder, RowEncoder, decode_entry
from lance_memwal.rows.adapt import live_flags
from lance_memwal.rows.schema import TableSchema
from lance_memwal.types import TOMBSTONE_FIELD
from tests.kit.logs import SCHEMA, rows


def _piece(data: bytes) -> Piece:
    return Piece(pa.py_buffer(data), zlib.crc32(data))


@given(st.lists(st.binary(max_size=2_000), max_size=6))
def test_joined_sums_are_the_sum_of_all_bytes(parts: list[bytes]) -> None:
    crc = 0
    for part in parts:
        crc = crc_after(crc, _piece(part))
    assert crc == zlib.crc32(b"".join(parts))


@pytest.mark.parametrize("size", [255, 256, 257, 65_535, 65_536, 65_793, 3_000_001, 1 << 24, (1 << 24) + 77])
def test_sums_of_any_length_are_joined(size: int) -> None:
    head, tail = b"what came before", b"\x05" * size
    assert crc_after(zlib.crc32(head), _piece(tail)) == zlib.crc32(head + tail)


def test_only_large_pieces_are_summed_ahead() -> None:
    small, large = summed(pa.py_buffer(b"a" * 1_000)), summed(pa.py_buffer(b"a" * (1 << 20)))
    assert small.crc is None
    assert large.crc == zlib.crc32(b"a" * (1 << 20))
    for piece in (small, large):
        assert crc_after(17, piece) == zlib.crc32(piece.data, 17)


def test_an_entry_of_messages_that_were_summed_ahead_has_the_same_bytes() -> None:
    schema = TableSchema.from_arrow(SCHEMA).wal
    batches = [
        rows(*range(count)).append_column(TOMBSTONE_FIELD, live_flags(count)) for count in (3, 40_000, 5, 50_000)
    ]
    encoder, messages = EntryEncoder(schema, 1, 1), RowEncoder(schema).messages(batches, ahead=True)
    assert [message.crc is None for message in messages] == [True, False, True, False]
    data = encoder.assemble(messages)
    assert data == encoder.encode(batches)
    assert decode_entry(data).num_rows == 90_008
