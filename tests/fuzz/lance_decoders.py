"""Decoders of what we read ourselves of Lance's text indexes; the files around it are read by Lance."""

from __future__ import annotations

import struct

from inputs import committed


def term_map(data: bytes) -> None:
    from lance_memwal.lance.term_map import TermMap

    terms = TermMap(data)
    for word in ("amber", "teal", "é", ""):
        terms.get(word)
    for _, _ in zip(terms.near("ambre", 2, 1), range(50), strict=False):
        pass


def term_map_corpus() -> list[bytes]:
    return committed("term_map")  # cut out of files of Lance


def posting_list(data: bytes) -> None:
    """`length, documents, codec`, then blocks with their lengths."""
    import pyarrow as pa

    from lance_memwal.lance.posting_list import TAIL_CODECS, read_postings

    length, documents, codec = struct.unpack("<IIB", data[:9].ljust(9, b"\0"))
    blocks, at = [], 9
    while at + 4 <= len(data):
        (size,) = struct.unpack_from("<I", data, at)
        blocks.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    array = pa.array(blocks, pa.large_binary())
    found = read_postings(array, length, documents, tail_codec=TAIL_CODECS[codec % len(TAIL_CODECS)])
    assert len(found) == length


def posting_list_corpus() -> list[bytes]:
    return committed("posting_list")  # cut out of files of Lance


def covered_fragments(data: bytes) -> None:
    from lance_memwal.lance.text_index import fragments_of

    fragments_of(data, "index")


def covered_fragments_corpus() -> list[bytes]:
    from pyroaring import BitMap

    return [bytes(BitMap(numbers).serialize()) for numbers in ([], [0], range(5, 9_000), range(0, 70_000, 7))]


def parts_of_a_text_index(data: bytes) -> None:
    from lance_memwal.lance.text_index import parts_of

    assert all(number >= 0 for number in parts_of(data.decode("utf-8", "surrogateescape"), "index"))


def parts_of_a_text_index_corpus() -> list[bytes]:
    return [b"[]", b"[0]", b"[0,4294967296,8589934592]"]
