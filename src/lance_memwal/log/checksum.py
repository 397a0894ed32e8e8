"""The checksum of bytes that were summed in parts, by several threads.

Owns `Piece` and `crc_after`. An entry has one CRC-32 over its whole stream, and only whoever commits knows what its stream is;
the sum of a large message takes half as long as storing it. So the thread that encodes a message sums it, and the one that
commits joins the sums. Invariant: the result is `zlib.crc32` of all bytes in order.

A CRC is a polynomial over bits, modulo a fixed one. That of A followed by n bytes B is crc(A) · x^(8n) + crc(B). The power
is put together from those of the bytes of n: x^(8 · 0x0203) = x^(8 · 0x0200) · x^(8 · 0x03). Bits are reflected, as CRC-32
has them: the highest one is x^0.
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import Final, NamedTuple

import pyarrow as pa

__all__ = ["Piece", "crc_after", "summed"]

_POLYNOMIAL: Final = 0xEDB88320
_ONE: Final = 1 << 31
_X_TO_8: Final = 1 << 23
_LARGE_BYTES: Final = 512 * 1024  # below, to join two sums takes longer than others would wait for one


class Piece(NamedTuple):
    """Bytes of an entry, and their own checksum if that was made ahead."""

    data: pa.Buffer
    crc: int | None = None


def summed(data: pa.Buffer) -> Piece:
    """`data`, with its checksum if it is large."""
    return Piece(data, zlib.crc32(data) if data.size >= _LARGE_BYTES else None)


def crc_after(crc: int, piece: Piece) -> int:
    """The checksum of what has the checksum `crc`, followed by `piece`."""
    if piece.crc is None:
        return zlib.crc32(piece.data, crc)
    size, at = piece.data.size, 0
    while size:
        crc = _product(_power(size & 0xFF, at), crc)
        size, at = size >> 8, at + 1
    return crc ^ piece.crc


def _product(first: int, second: int) -> int:
    """The product of two polynomials."""
    found = 0
    while first:
        if first & _ONE:
            found ^= second
        first = (first << 1) & 0xFFFFFFFF
        second = (second >> 1) ^ (_POLYNOMIAL if second & 1 else 0)
    return found


@lru_cache(maxsize=2048)
def _power(byte: int, at: int) -> int:
    """x^(8 · byte · 256^at)."""
    if not byte:
        return _ONE
    if byte == 1:
        return _X_TO_8 if at == 0 else _product(_power(128, at - 1), _power(128, at - 1))
    half = _power(byte // 2, at)
    even = _product(half, half)
    return _product(even, _power(1, at)) if byte % 2 else even
