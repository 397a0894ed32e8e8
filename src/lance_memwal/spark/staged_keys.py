"""Keys that tasks of a compaction hand to each other through the store.

Owns the staged object (Arrow streams one after the other, a part of the keys in each, ascending) and `StagedKeys`, which asks
them. Invariants:

1. The name of an object is made of its bytes: attempts that stage the same keys write one object.
2. Every part says from which place to which its keys go. Rows are asked against the parts that have keys between the first
   and the last of them, and against no others: memory holds the keys of a range.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_memwal.clock import in_order
from lance_memwal.errors import ObjectExistsError
from lance_memwal.process.cache import CACHE
from lance_memwal.rows.key_places import places
from lance_memwal.rows.keys import KeySet, concat_keys, key_array
from lance_memwal.rows.streams import read_stream, stream_of
from lance_memwal.store import paths
from lance_memwal.store.location import Location

__all__ = ["KeyPart", "StagedKeys", "stage_keys"]

_PART_KEYS = 1 << 18
_READ_AT_ONCE = 8
_NAME = "key"


@dataclass(frozen=True, slots=True)
class KeyPart:
    """Some staged keys: where they are, how many, and the places of the first and the last."""

    path: str
    start: int
    length: int
    count: int
    first: int
    last: int


def stage_keys(location: Location, job: str, parts: Sequence[pa.Array], most: int = _PART_KEYS) -> tuple[KeyPart, ...]:
    """Write the keys of `parts`, each once, up to `most` of them in a part."""
    keys = concat_keys(parts).unique() if parts else pa.array([], pa.int64())
    if not len(keys):
        return ()
    keys = keys.take(pc.sort_indices(keys))
    pieces = [keys.slice(start, most) for start in range(0, len(keys), most)]
    streams = [_encoded(piece) for piece in pieces]
    path = paths.stage_path(job, hashlib.sha256(b"".join(streams)).hexdigest())
    with suppress(ObjectExistsError):  # another attempt was faster
        location.store.put_new(path, b"".join(streams))
    starts = np.cumsum([0, *map(len, streams)]).tolist()
    ends = [places(pa.concat_arrays([piece[:1], piece[-1:]])).tolist() for piece in pieces]
    return tuple(
        KeyPart(path, start, len(stream), len(piece), first, last)
        for start, stream, piece, (first, last) in zip(starts, streams, pieces, ends, strict=False)
    )


def _encoded(keys: pa.Array) -> bytes:
    batch = pa.RecordBatch.from_arrays([keys], [_NAME])
    return bytes(stream_of(batch.schema, [batch]))


class StagedKeys:
    """The keys of all parts, read as rows ask for them. `ObjectNotFoundError` if they were collected."""

    def __init__(self, location: Location, parts: Iterable[KeyPart]) -> None:
        self._location = location
        self._parts = tuple(parts)
        self._first = np.array([part.first for part in self._parts], np.uint64)
        self._last = np.array([part.last for part in self._parts], np.uint64)

    @property
    def size(self) -> int:
        """How many keys there are, at most."""
        return sum(part.count for part in self._parts)

    @cached_property
    def keys(self) -> pa.Array:
        """All of them."""
        return self._set_of(self._parts).keys

    def of_rows(self, rows: pa.Table | pa.RecordBatch, key: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Per row: whether its key, which is in these columns, is staged."""
        asked = key_array([rows.column(name) for name in key])
        if not len(asked):
            return np.zeros(0, dtype=bool)
        where = places(asked)
        near = np.flatnonzero((self._first <= where.max()) & (self._last >= where.min()))
        found = self._set_of(tuple(self._parts[i] for i in near.tolist()))
        return found.contains(asked)

    def _set_of(self, parts: tuple[KeyPart, ...]) -> KeySet:
        """The keys of some parts; remembered, since one process looks at many rows."""

        def build() -> KeySet:
            at_once = self._location.at_once(_READ_AT_ONCE)
            found = list(in_order(self._read, parts, at_once, "memwal-staged-keys"))
            return KeySet(concat_keys(found) if found else pa.array([], pa.int64()))

        return CACHE.fetch(("staged keys", self._location.key), build, parts)

    def _read(self, part: KeyPart) -> pa.Array:
        data = self._location.store.get_range(part.path, part.start, part.length)
        return read_stream(data, "a part of staged keys", path=part.path).column(_NAME).combine_chunks()
