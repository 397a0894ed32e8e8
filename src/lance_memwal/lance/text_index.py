"""The files of an inverted index of Lance, read as they lie: documents with their lengths, terms, and posting lists.

Owns `TextSegment` (one entry of the manifest's index section: an index that grew has several) and `TextPart` (a segment has
one or more). Lance's own search gives the best rows by its own statistics; what BM25 over more than the base table needs, how
many documents have a term and how long they are, only the files say. Invariants:

1. Files of an index never change: what was read of them is kept under the index's id.
2. A layout that we do not know is `UnsupportedFormatError`, before anything is taken from it: whoever asks can do without the
   index. What is known and does not hold together is `CorruptDataError`.
3. A part says nothing about what happened to its rows later: deletions, and fragments that are gone, are the caller's.
4. Open files count against the budget of what is kept: maintenance makes new indexes all the time, and nobody says when the
   last reader of an old one is gone.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from lance.file import LanceFileReader
from pyroaring import BitMap

from lance_memwal.errors import CorruptDataError, UnsupportedFormatError
from lance_memwal.lance import wire
from lance_memwal.lance.base import BaseTable, lance_read
from lance_memwal.lance.manifest import IndexEntry, index_path
from lance_memwal.lance.posting_list import BLOCK_SIZE, TAIL_CODECS, Postings, read_postings
from lance_memwal.lance.term_map import TermMap
from lance_memwal.process.cache import CACHE
from lance_memwal.rows.keys import one_array
from lance_memwal.store.location import Location
from lance_memwal.store.records import is_count

__all__ = ["TextPart", "TextSegment", "fragments_of", "open_segment", "parts_of"]

_VERSIONS = ("1", "2", "3")
_FRAGMENTS, _BASE_ID = 5, 9  # fields of an entry of the index section
_ROW_ID, _LENGTH = "_rowid", "_num_tokens"
_ALL = 1 << 20
_MOST_FRAGMENTS = 1 << 22
_OPEN_BYTES = 2 << 20  # what an open file of Lance costs: its descriptor, its footer, its buffers


@dataclass(frozen=True, slots=True)
class _OpenLists:
    """The posting lists of a part, open for reading: by one thread at a time, Lance's reader serves no more."""

    reader: LanceFileReader
    reading: threading.RLock = field(default_factory=threading.RLock)
    size_bytes: int = _OPEN_BYTES


class TextPart:
    """One partition: its documents are numbered from 0; `row_ids` and `lengths` are theirs."""

    def __init__(self, location: Location, uuid: str, number: int, tail_codec: str) -> None:
        self._location = location
        self._tail_codec = tail_codec
        self._postings_path = index_path(uuid, f"part_{number}_invert.lance")
        documents = self._read(index_path(uuid, f"part_{number}_docs.lance"), [_ROW_ID, _LENGTH])
        self.identity = (location.key, uuid, number)
        self.row_ids: npt.NDArray[np.int64] = _numbers(documents, _ROW_ID).astype(np.int64)
        self.lengths: npt.NDArray[np.int32] = _numbers(documents, _LENGTH).astype(np.int32)
        path = index_path(uuid, f"part_{number}_tokens.lance")
        terms = self._read(path, ["_token_fst_bytes"]).column(0)
        if len(terms) != 1 or terms.null_count:
            raise CorruptDataError("a text index has no terms", path=path)
        self._terms = TermMap(terms[0].as_py(), path=path)

    @property
    def size_bytes(self) -> int:
        """Resident bytes, without posting lists."""
        return self.row_ids.nbytes * 2 + self.lengths.nbytes + self._terms.size_bytes

    @cached_property
    def _by_row_id(self) -> npt.NDArray[np.int64] | None:
        """The documents in the order of their row ids; None where they lie in that order."""
        return None if (self.row_ids[1:] > self.row_ids[:-1]).all() else np.argsort(self.row_ids, kind="stable")

    def documents_of(self, row_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """The documents of the rows with these ids, as far as they are here."""
        order = self._by_row_id
        at = np.searchsorted(self.row_ids, row_ids, sorter=order)
        at, wanted = at[at < len(self.row_ids)], row_ids[at < len(self.row_ids)]
        documents = at if order is None else order[at]
        return np.asarray(documents[self.row_ids[documents] == wanted]).astype(np.int32)

    def near(self, term: str, distance: int, prefix_length: int) -> Iterator[str]:
        """The terms at most `distance` edits from `term` that share its first characters, in alphabetic order."""
        return self._terms.near(term, distance, prefix_length)

    def postings(self, term: str) -> Postings | None:
        """The documents that have `term`, or None."""
        number = self._terms.get(term)
        if number is None:
            return None
        found = lance_read(self._location, self._postings_path, lambda: self._take(number))
        blocks, length = found.column(0)[0].values, found.column(1)[0].as_py()
        return read_postings(blocks, length, len(self.row_ids), tail_codec=self._tail_codec, path=self._postings_path)

    def _take(self, number: int) -> pa.Table:
        lists = CACHE.fetch(
            ("posting lists", *self.identity),
            lambda: _OpenLists(self._open(self._postings_path, ["_posting", "_length"])),
        )
        with lists.reading:
            found = lists.reader.take_rows([number]).to_table()
        found.validate(full=True)
        return found

    def _read(self, path: str, columns: list[str]) -> pa.Table:
        def read() -> pa.Table:
            table = self._open(path, columns).read_all(batch_size=_ALL).to_table()
            table.validate(full=True)
            return table

        return lance_read(self._location, path, read)

    def _open(self, path: str, columns: list[str]) -> LanceFileReader:
        options = self._location.storage_options
        return LanceFileReader(self._location.child_uri(path), storage_options=options, columns=columns)


@dataclass(frozen=True, slots=True)
class TextSegment:
    """One segment of an index: the fragments of the base table that it covers, and its parts."""

    uuid: str
    fragments: frozenset[int]
    parts: tuple[TextPart, ...]

    def has_a_row_twice(self) -> bool:
        """Whether a row has several documents. Where rows keep their ids, Lance merges what they were with what they are."""
        return bool(self.parts) and CACHE.fact(("twice", *self.parts[0].identity), self._has_a_row_twice)

    def _has_a_row_twice(self) -> bool:
        row_ids = np.sort(np.concatenate([part.row_ids for part in self.parts]))
        return bool((row_ids[1:] == row_ids[:-1]).any())


def open_segment(base: BaseTable, entry: IndexEntry) -> TextSegment:
    """The segment behind an entry; `UnsupportedFormatError` if this version does not know how it lies."""
    message = wire.Message(entry.raw)
    path = index_path(entry.uuid, "metadata.lance")
    if not message.has(_FRAGMENTS) or message.has(_BASE_ID):
        raise UnsupportedFormatError("a text index that does not say what it covers, or lies elsewhere", path=path)
    if base.manifest.unknown_reader_flags:
        raise UnsupportedFormatError("a text index of a table with features that are not known here", path=path)
    location = base.location
    numbers, codec, gone = CACHE.fact(("text segment", location.key, entry.uuid), lambda: _layout(location, path))
    covered = fragments_of(message.data(_FRAGMENTS), path)
    if covered & gone:
        raise UnsupportedFormatError("a text index that covers what it says to be gone", path=path)
    return TextSegment(entry.uuid, covered, tuple(_part(location, entry.uuid, number, codec) for number in numbers))


def _part(location: Location, uuid: str, number: int, codec: str) -> TextPart:
    slot = ("text part", location.key, uuid, number)
    return CACHE.fetch(slot, lambda: TextPart(location, uuid, number, codec))


def _layout(location: Location, path: str) -> tuple[tuple[int, ...], str, frozenset[int]]:
    """The numbers of the parts, how the ends of posting lists are packed, and the fragments that do not count."""

    def read() -> tuple[dict[str, str], pa.Table]:
        reader = LanceFileReader(location.child_uri(path), storage_options=location.storage_options)
        told = reader.metadata().schema.metadata or {}
        return {key.decode(): value.decode() for key, value in told.items()}, reader.read_all().to_table()

    told, table = lance_read(location, path, read)
    codec = told.get("posting_tail_codec", TAIL_CODECS[0])
    known = (
        told.get("format_version", "1") in _VERSIONS
        and told.get("posting_block_size", str(BLOCK_SIZE)) == str(BLOCK_SIZE)
        and told.get("token_set_format") == "fst"
        and codec in TAIL_CODECS
        and table.schema.names == ["deleted_fragments"]
    )
    if not known:
        raise UnsupportedFormatError("a text index in a layout that is not known here", path=path)
    gone = frozenset(number for value in table.column(0).to_pylist() for number in fragments_of(value, path))
    return parts_of(told.get("partitions", ""), path), codec, gone


def parts_of(text: str, path: str) -> tuple[int, ...]:
    """The numbers of the parts that a text index names; `path` is the file that says so, for errors."""
    try:
        numbers: Any = json.loads(text)
    except (ValueError, RecursionError):
        numbers = None
    if not isinstance(numbers, list) or not all(is_count(number) for number in numbers):
        raise CorruptDataError("a text index does not name its parts", path=path)
    return tuple(numbers)


def fragments_of(data: bytes, path: str) -> frozenset[int]:
    """The fragments that a bitmap names; `path` is the file that it belongs to, for errors."""
    try:
        found = BitMap.deserialize(data)
    except (ValueError, IndexError) as error:
        raise CorruptDataError("the fragments of a text index are no bitmap", path=path) from error
    if len(found) > _MOST_FRAGMENTS:  # a few hostile bytes can name four billion
        raise CorruptDataError("a text index names more fragments than a table can have", path=path)
    return frozenset(found)


def _numbers(table: pa.Table, name: str) -> npt.NDArray[Any]:
    return np.asarray(one_array(table.column(name)).to_numpy())
