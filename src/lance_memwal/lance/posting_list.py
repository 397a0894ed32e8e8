"""A posting list of Lance's inverted index: which documents have a term, and how often.

Owns the unpacking of its blocks, format versions 1 to 3. Invariants:

1. What comes out is checked: documents ascend and exist, every frequency is at least 1. Else it is `CorruptDataError`.
2. All blocks of one width are unpacked together: the cost per list is some numpy calls, not one per block or posting.

A full block has 128 postings, the last one of a list what is left (blocks of 256 are packed otherwise, and not read here):

    full   greatest score (4 bytes), first document (4 bytes), width and packed differences of the documents, width and
           packed frequencies
    last   greatest score (4 bytes), then the documents and the frequencies: `fixed32_v1` as numbers of 4 bytes,
           `varint_delta_v1` as varints, the documents as differences

Packed numbers of width w lie in 4 lanes: the i-th number is in lane i % 4, and a lane is a stream of w words of 32 bits,
lowest bits first; word 0 of all lanes comes before word 1. The 5th number begins at bit w of lane 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_memwal.errors import CorruptDataError

__all__ = ["BLOCK_SIZE", "TAIL_CODECS", "Postings", "read_postings"]

BLOCK_SIZE = 128
TAIL_CODECS = ("fixed32_v1", "varint_delta_v1")
_LANES, _PER_LANE = 4, 32
_SCORE_BYTES = 4
_HEADER_BYTES = 8
Int32s = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Postings:
    """The documents that have a term, ascending, and how often they have it."""

    documents: Int32s
    frequencies: npt.NDArray[np.unsignedinteger]

    @property
    def size_bytes(self) -> int:
        """Resident bytes."""
        return self.documents.nbytes + self.frequencies.nbytes

    def __len__(self) -> int:
        return len(self.documents)


def read_postings(
    blocks: pa.Array, length: int, documents: int, *, tail_codec: str, path: str | None = None
) -> Postings:
    """The `length` postings of a list, of an index that has so many `documents`; `path` is its file, for errors."""
    full = length // BLOCK_SIZE
    if len(blocks) != -(-length // BLOCK_SIZE):
        raise CorruptDataError("a posting list has another number of blocks than its length says", path=path)
    data, starts = _bytes_of(blocks)
    try:
        found, counts = _full_blocks(data, starts[:full])
        if length > full * BLOCK_SIZE:
            tail = data[int(starts[full]) + _SCORE_BYTES : int(starts[full + 1])]
            last, often = _tail(tail, length - full * BLOCK_SIZE, tail_codec)
            found, counts = np.concatenate((found, last)), np.concatenate((counts, often))
    except (IndexError, ValueError) as error:
        raise CorruptDataError("a posting list is cut off", path=path) from error
    ascending = len(found) == length and (length < 2 or bool((found[1:] > found[:-1]).all()))
    if not ascending or (length and (found[0] < 0 or found[-1] >= documents or not counts.all())):
        raise CorruptDataError("a posting list names documents that are not there", path=path)
    return Postings(found.astype(np.int32), counts.astype(np.min_scalar_type(counts.max() if length else 0)))


def _bytes_of(blocks: pa.Array) -> tuple[Bytes, npt.NDArray[np.int64]]:
    """All bytes of an array of large binaries, and where each begins (and the last one ends)."""
    blocks = blocks.cast(pa.large_binary())
    _, offsets, values = blocks.buffers()
    starts = np.frombuffer(offsets, np.int64, len(blocks) + 1, blocks.offset * 8)
    return (np.empty(0, np.uint8) if values is None else np.frombuffer(values, np.uint8)), starts


def _full_blocks(data: Bytes, starts: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]:
    if not len(starts):
        return np.empty(0, np.int64), np.empty(0, np.uint32)
    first = data[starts[:, None] + np.arange(_SCORE_BYTES, _HEADER_BYTES)].view("<u4")
    steps, after = _packed(data, starts + _HEADER_BYTES)
    frequencies, _ = _packed(data, after)
    documents = np.cumsum(steps, axis=1, dtype=np.int64) + first
    return documents.reshape(-1), frequencies.reshape(-1)


def _packed(data: Bytes, at: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """The numbers packed at some places, a row per place, and where what follows them begins."""
    widths = data[at].astype(np.int64)
    if widths.max() > _PER_LANE:
        raise ValueError("wider than a number")
    numbers = np.zeros((len(at), BLOCK_SIZE), np.uint32)
    for width in np.unique(widths[widths > 0]).tolist():
        rows = np.flatnonzero(widths == width)
        words = data[at[rows, None] + 1 + np.arange(width * BLOCK_SIZE // 8)].view("<u4")
        numbers[rows] = _unpacked(words.reshape(len(rows), width, _LANES), width)
    return numbers, at + 1 + widths * (BLOCK_SIZE // 8)


def _unpacked(words: npt.NDArray[np.uint32], width: int) -> npt.NDArray[np.uint32]:
    """`words` are (places, width, lanes)."""
    numbers = np.empty((len(words), _PER_LANE, _LANES), np.uint32)
    mask = np.uint32((1 << width) - 1)
    for i in range(_PER_LANE):
        word, bit = divmod(i * width, 32)
        value = words[:, word] >> np.uint32(bit)
        if bit + width > 32:
            value = value | words[:, word + 1] << np.uint32(32 - bit)
        numbers[:, i] = value & mask
    return numbers.reshape(len(words), BLOCK_SIZE)


def _tail(data: Bytes, count: int, codec: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]:
    if codec == "fixed32_v1":
        numbers = np.frombuffer(data.tobytes(), "<u4").astype(np.int64)
    else:
        numbers = _varints(data)
    if len(numbers) != 2 * count or (len(numbers) and numbers.max() > 0xFFFFFFFF):
        raise ValueError("not as many numbers as postings")
    documents = numbers[:count] if codec == "fixed32_v1" else np.cumsum(numbers[:count])
    return documents, numbers[count:].astype(np.uint32)


def _varints(data: Bytes) -> npt.NDArray[np.int64]:
    """Numbers of seven bits per byte, the lowest first; the highest bit says that more follow."""
    last = np.flatnonzero(data < 0x80)
    if len(last) and last[-1] != len(data) - 1:
        raise ValueError("the last number goes on")
    starts = np.concatenate(([0], last[:-1] + 1)) if len(last) else np.empty(0, np.int64)
    places = np.arange(len(data)) - np.repeat(starts, np.diff(np.append(starts, len(data))))
    if len(places) and places.max() > 4:
        raise ValueError("longer than a number")
    return np.add.reduceat((data & 0x7F).astype(np.int64) << 7 * places, starts) if len(starts) else starts
