"""Composite keys read back from their order-preserving encoding: the other half of `encode_composite`, for its tests.

Owns `decode_composite`: whatever `encode_composite` does not produce is a `CorruptDataError`.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_memwal.errors import CorruptDataError

_SIGN = np.uint64(1 << 63)
_BINARY = pa.large_binary()


def decode_composite(encoded: pa.Array, types: Sequence[pa.DataType]) -> list[pa.Array]:
    """The key columns behind encoded keys; anything that `encode_composite` does not produce is `CorruptDataError`."""
    if encoded.null_count:
        raise CorruptDataError("composite key is null")
    rows = encoded.cast(_BINARY)
    ends = np.frombuffer(rows.buffers()[1], np.int64, len(rows) + 1, rows.offset * 8)
    data = np.frombuffer(rows.buffers()[2] or b"", np.uint8)
    reader = _KeyReader(data[: ends[-1]], ends[:-1].copy(), ends[1:])
    columns = [_decode_column(reader, data_type) for data_type in types]
    reader.check_done()
    return columns


class _KeyReader:
    """A cursor per row over the bytes of all encoded keys."""

    def __init__(self, data: npt.NDArray[np.uint8], cursor: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> None:
        self.data, self.cursor, self.ends = data, cursor, ends

    def take(self, rows: npt.NDArray[np.bool_], width: int) -> npt.NDArray[np.uint8]:
        """The next `width` bytes of the chosen rows, one row each."""
        start = self.cursor[rows]
        if (start + width > self.ends[rows]).any():
            raise CorruptDataError("composite key ends too early")
        self.cursor[rows] += width
        taken: npt.NDArray[np.uint8] = self.data[start[:, None] + np.arange(width)]
        return taken

    def take_terminated(self, rows: npt.NDArray[np.bool_]) -> list[bytes]:
        """The bytes before the next `00 00` of the chosen rows, escapes undone."""
        zero = np.flatnonzero(self.data == 0)
        follower = np.append(self.data, np.uint8(0))[zero + 1]
        stops = zero[follower != 0xFF]
        start, ends = self.cursor[rows], self.ends[rows]
        at = np.searchsorted(stops, start)
        stop = np.append(stops, len(self.data))[at]
        if (stop + 2 > ends).any() or (self.data[stop + 1] != 0).any():
            raise CorruptDataError("composite key has an unterminated value")
        self.cursor[rows] = stop + 2
        whole = self.data.tobytes()
        return [whole[a:b].replace(b"\0\xff", b"\0") for a, b in zip(start.tolist(), stop.tolist(), strict=True)]

    def check_done(self) -> None:
        """Raise unless every row was read to its end."""
        if (self.cursor != self.ends).any():
            raise CorruptDataError("composite key has bytes behind its last column")


def _decode_column(reader: _KeyReader, data_type: pa.DataType) -> pa.Array:
    tag = reader.take(np.ones(len(reader.cursor), np.bool_), 1)[:, 0]
    if (tag > 1).any():
        raise CorruptDataError("composite key has an unknown tag")
    valid = tag == 1
    if pa.types.is_decimal(data_type):
        return _decode_decimals(reader, valid, data_type)
    if pa.types.is_temporal(data_type):
        number = pa.int32() if pa.types.is_date32(data_type) else pa.int64()
        return _cast(_decode_numbers(reader, valid, number), number).view(data_type)
    if pa.types.is_boolean(data_type) or pa.types.is_integer(data_type):
        column = _decode_numbers(reader, valid, data_type)
    else:
        cells = np.full(len(valid), None, object)
        cells[valid] = reader.take_terminated(valid)
        column = pa.array(cells.tolist(), _BINARY)
    return _cast(column, data_type)


def _cast(column: pa.Array, data_type: pa.DataType) -> pa.Array:
    try:
        return column.cast(data_type)
    except pa.ArrowInvalid:
        raise CorruptDataError(f"composite key does not hold a valid {data_type}") from None


def _decode_decimals(reader: _KeyReader, valid: npt.NDArray[np.bool_], data_type: pa.DataType) -> pa.Array:
    width = data_type.byte_width
    cells = np.zeros((len(valid), width), np.uint8)
    cells[valid] = reader.take(valid, width)
    cells[:, 0] ^= 0x80
    known = pa.array(valid).buffers()[1]
    return pa.Array.from_buffers(data_type, len(valid), [known, pa.py_buffer(cells[:, ::-1].copy())])


def _decode_numbers(reader: _KeyReader, valid: npt.NDArray[np.bool_], data_type: pa.DataType) -> pa.Array:
    wide = np.zeros(len(valid), np.uint64)
    if pa.types.is_boolean(data_type):
        wide[valid] = reader.take(valid, 1)[:, 0]
        if (wide > 1).any():
            raise CorruptDataError("composite key holds a boolean that is neither 0 nor 1")
        return pa.array(wide, mask=~valid)
    wide[valid] = reader.take(valid, 8).copy().view(">u8")[:, 0]
    signed = pa.types.is_signed_integer(data_type)
    return pa.array((wide ^ _SIGN).view(np.int64) if signed else wide, mask=~valid)
