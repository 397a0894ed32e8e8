"""A roll-up: copies of the small things of several generations in one object, so that cold readers open few.

Owns the format of the objects below `memwal_rollups` (RFC 0031), and finding them. Invariants:

1. A roll-up says nothing that the directories of its generations do not say, and is believed of a generation only if its
   footer lists it exactly as the manifest that is read does: path, rows and sizes.
2. It is optional. One that is missing, torn, damaged or of an unknown version is not used; nothing fails because of it.
3. Nothing of it is used before its checksum was compared: slices of the filters have one each, and so have facts, rows
   and footer.
4. What is held of it counts in the one cache, and goes when that drops it.

Layout (little-endian):

    [slice of block 0][u32 crc] ... [facts][rows of a generation] ... [footer: JSON][u32 its length][u32 its crc][MWALROL1]

A slice is one block of the filters of all generations, folded to the same number of blocks. Facts are an Arrow stream with one
row per generation; the rows of each generation that has them here are one, too.
"""

from __future__ import annotations

import hashlib
import json
import logging
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_memwal.errors import CorruptDataError, MemWalError, ObjectNotFoundError, UnsupportedFormatError
from lance_memwal.process.cache import CACHE, Slot
from lance_memwal.rows.keys import one_array
from lance_memwal.rows.streams import read_stream, stream_of
from lance_memwal.sstable.bloom import BLOCK_BYTES, BLOOM_BLOCKS, folded, has_bits, places
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.store.records import is_count
from lance_memwal.types import SsTable

__all__ = [
    "Copy",
    "Facts",
    "Keys",
    "RollUp",
    "Rolled",
    "encode_roll_up",
    "find_rolled",
    "forget_roll_up",
    "is_torn",
    "listed_roll_ups",
    "path_of_roll_up",
]

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")
Offsets = npt.NDArray[np.int64]
_MAGIC: Final = b"MWALROL1"
_END: Final = struct.Struct("<II8s")
_CRC: Final = struct.Struct("<I")
_TAIL_BYTES = 64 << 10
_BITS_PER_ROW = 32
_MOST_GENERATIONS = 4096
_HANDLE_BYTES = 8 << 10
_SMALLEST_BLOCKS = 8


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of a small generation, ascending, with the offsets of their newest rows; and the offsets of its tombstones."""

    values: pa.Array
    offsets: Offsets
    tombstones: Offsets

    def equals(self, other: Keys) -> bool:
        """Whether both say the same."""
        numbers = ((self.offsets, other.offsets), (self.tombstones, other.tombstones))
        return self.values.equals(other.values) and all(np.array_equal(*pair) for pair in numbers)


@dataclass(frozen=True, slots=True)
class Copy:
    """The small things of one generation; what it does not have, or is better read from its own files, is None.

    `rows` are all of its data file, as they are stored, `columns` those that they have, with the ids of all fields.
    """

    sstable: SsTable
    filter_bytes: bytes | None = None
    manifest: bytes | None = None
    keys: Keys | None = None
    rows: pa.Table | None = None
    columns: pa.Schema | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What a roll-up tells of a generation at once; `columns` are the same object for all that have the same."""

    manifest: bytes | None = None
    keys: Keys | None = None
    columns: pa.Schema | None = None


# ---------------------------------------------------------------------------------------------------------------- writing


def path_of_roll_up(shard_id: str, sstables: Sequence[SsTable]) -> str:
    """Where the roll-up of these generations, which ascend, is: the same for all who write it."""
    digest = hashlib.sha256(repr([_listed(sstable) for sstable in sstables]).encode()).hexdigest()[:16]
    return paths.roll_up_path(shard_id, sstables[0].generation, sstables[-1].generation, digest)


def encode_roll_up(copies: Sequence[Copy]) -> bytes:
    """The bytes of the roll-up of these generations, which ascend."""
    slices = _encode_filters(copies)
    facts = _encode_facts(copies)
    rows = [b"" if copy.rows is None else _stream_of(copy.rows) for copy in copies]
    start = sum(map(len, slices))
    starts = np.cumsum([start + len(facts), *map(len, rows)]).tolist()
    footer = json.dumps(
        {
            "v": 1,
            "sstables": [_listed(copy.sstable) for copy in copies],
            "blocks": len(slices),
            "facts": [start, len(facts), zlib.crc32(facts)],
            "rows": [[at, len(data), zlib.crc32(data)] for at, data in zip(starts, rows, strict=False)],
        }
    ).encode()
    return b"".join([*slices, facts, *rows, footer, _END.pack(len(footer), zlib.crc32(footer), _MAGIC)])


def _listed(sstable: SsTable) -> list[Any]:
    """What a manifest says of a generation."""
    return [*astuple(sstable)[:-1], sstable.unknown.hex()]


def _parsed(listed: Sequence[Any]) -> SsTable:
    generation, path, in_memory_bytes, rows, key_bytes, unknown = listed
    numbers = (generation, in_memory_bytes, rows, key_bytes)
    if not isinstance(path, str) or not all(number is None or is_count(number) for number in numbers):
        raise ValueError("not what a manifest says of a generation")
    return SsTable(generation, path, in_memory_bytes, rows, key_bytes, bytes.fromhex(unknown))


def _encode_filters(copies: Sequence[Copy]) -> list[bytes]:
    """The slices. A generation without a filter has all bits set: it may have every key."""
    blocks = max(_blocks_for(copy.sstable.physical_rows) for copy in copies)
    whole = np.full((blocks, 8), 0xFFFFFFFF, np.uint32)
    filters = [whole if copy.filter_bytes is None else folded(copy.filter_bytes, blocks) for copy in copies]
    slices = np.stack(filters, axis=1).astype("<u4")
    return [data + _CRC.pack(zlib.crc32(data)) for data in map(np.ndarray.tobytes, slices)]


def _blocks_for(rows: int | None) -> int:
    if rows is None:
        return BLOOM_BLOCKS
    wanted = -(-rows * _BITS_PER_ROW // (BLOCK_BYTES * 8))
    return min(BLOOM_BLOCKS, max(_SMALLEST_BLOCKS, 1 << (wanted - 1).bit_length()))


def _encode_facts(copies: Sequence[Copy]) -> bytes:
    known = [copy.keys for copy in copies]
    kind = next((keys.values.type for keys in known if keys is not None), pa.int64())
    table = pa.table(
        {
            "manifest": pa.array([copy.manifest for copy in copies], pa.binary()),
            "columns": pa.array([_schema_bytes(copy.columns) for copy in copies], pa.binary()),
            "tombstones": _lists([None if keys is None else pa.array(keys.tombstones) for keys in known], pa.int64()),
            "keys": _lists([None if keys is None else keys.values for keys in known], kind),
            "offsets": _lists([None if keys is None else pa.array(keys.offsets) for keys in known], pa.int64()),
        }
    )
    return _stream_of(table)


def _schema_bytes(columns: pa.Schema | None) -> bytes | None:
    return None if columns is None else bytes(columns.serialize().to_pybytes())


def _stream_of(table: pa.Table) -> bytes:
    return bytes(stream_of(table.schema, table.to_batches()))


def _lists(parts: Sequence[pa.Array | None], kind: pa.DataType) -> pa.Array:
    """One list per generation, null where it has none."""
    sizes = [0 if part is None else len(part) for part in parts]
    values = pa.concat_arrays([part for part in parts if part is not None] or [pa.array([], kind)])
    ends = pa.array(np.cumsum([0, *sizes]), pa.int64())
    return pa.LargeListArray.from_arrays(ends, values, mask=pa.array([part is None for part in parts]))


# ---------------------------------------------------------------------------------------------------------------- reading


@dataclass(frozen=True, slots=True)
class _Span:
    start: int
    length: int
    crc: int


class RollUp:
    """One roll-up. Opening reads its footer; threads may share it, and read the same immutable bytes."""

    def __init__(self, location: Location, path: str) -> None:
        """`CorruptDataError` or `UnsupportedFormatError` if it cannot be used."""
        self._location = location
        self.path = path
        footer = self._read_footer()
        try:
            self.sstables = tuple(map(_parsed, footer["sstables"]))
            self._blocks = int(footer["blocks"])
            self._facts_at = _Span(*map(int, footer["facts"]))
            self._rows_at = tuple(_Span(*map(int, item)) for item in footer["rows"])
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            raise CorruptDataError(f"the footer of a roll-up is malformed: {error!r}", path=path) from None
        count = len(self.sstables)
        if not 0 < count <= _MOST_GENERATIONS or len(self._rows_at) != count or self._blocks not in _POSSIBLE:
            raise CorruptDataError("the footer of a roll-up is malformed", path=path)
        self._slices: dict[int, npt.NDArray[np.uint32]] = {}
        self._facts: tuple[Facts, ...] | None = None
        self._facts_bytes = 0
        self._is_useless = False

    def _read_footer(self) -> dict[str, Any]:
        store, path = self._location.store, self.path
        data = store.get_tail(path, _TAIL_BYTES)
        if len(data) < _END.size or data[-8:] != _MAGIC:
            raise CorruptDataError("a roll-up has no end", path=path)
        length, crc, _ = _END.unpack(data[-_END.size :])
        if length + _END.size > len(data):
            data = store.get_tail(path, length + _END.size)
        footer = data[-_END.size - length : -_END.size]
        if zlib.crc32(footer) != crc:
            raise CorruptDataError("the footer of a roll-up is damaged", path=path)
        try:
            found = json.loads(footer)
        except (ValueError, RecursionError) as error:
            raise CorruptDataError(f"the footer of a roll-up is malformed: {error!r}", path=path) from None
        if not isinstance(found, dict) or found.get("v") != 1:
            raise UnsupportedFormatError("a roll-up of an unknown version", path=path)
        return found

    @property
    def size_bytes(self) -> int:
        """Bytes that are held now."""
        held = sum(item.nbytes for item in list(self._slices.values())) + self._facts_bytes
        return int(_HANDLE_BYTES + 256 * len(self.sstables) + held)

    def let_go(self) -> None:
        """Hold no more than the footer."""
        self._slices, self._facts, self._facts_bytes = {}, None, 0

    def might_contain(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_] | None:
        """Per generation and hash: False only if the key is certainly not there. None if the roll-up is of no use."""
        return self._if_whole(lambda: self._ask(hashes))

    def facts_of(self, number: int) -> Facts | None:
        """What it has of one of its generations, but for filter and rows; None if the roll-up is of no use."""
        found = self._facts if self._facts is not None else self._if_whole(self._load_facts)
        return None if found is None else found[number]

    def rows_of(self, number: int) -> pa.Table | None:
        """The rows of one of its generations, which are not held; None if it has none of them, or is of no use."""
        return self._if_whole(lambda: self._rows(number))

    def is_whole(self) -> bool:
        """Whether all of it is as it was written, by its checksums; reads it, a generation at a time."""
        try:
            self._load_facts()
            for number in range(len(self.sstables)):
                self._rows(number)
        except CorruptDataError:
            return False
        return self._has_whole_filters()

    def _has_whole_filters(self) -> bool:
        size = len(self.sstables) * BLOCK_BYTES + _CRC.size
        data = self._location.store.get_range(self.path, 0, self._blocks * size)
        slices = [data[start : start + size] for start in range(0, self._blocks * size, size)]
        return all(zlib.crc32(item[: -_CRC.size]) == int.from_bytes(item[-_CRC.size :], "little") for item in slices)

    def _if_whole(self, read: Callable[[], _T]) -> _T | None:
        """What `read` gives; None, and so from then on, if something is damaged or gone."""
        if self._is_useless:
            return None
        try:
            return read()
        except (CorruptDataError, ObjectNotFoundError) as error:
            self._is_useless = True
            _unused(self.path, error)
            return None

    def _ask(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        blocks, bits = places(hashes, self._blocks)
        return has_bits(np.stack([self._slice(block) for block in blocks.tolist()], axis=1), bits)

    def _slice(self, block: int) -> npt.NDArray[np.uint32]:
        """One block of the filter of every generation."""
        found = self._slices.get(block)
        if found is None:
            size = len(self.sstables) * BLOCK_BYTES
            data = self._checked_slice(block * (size + _CRC.size), size)
            found = self._slices[block] = np.frombuffer(data, "<u4").reshape(len(self.sstables), -1)
            self._count()
        return found

    def _checked_slice(self, start: int, length: int) -> bytes:
        """So many bytes, with their checksum behind them."""
        data = self._location.store.get_range(self.path, start, length + _CRC.size)
        return self._compared(data[:length], length, int.from_bytes(data[length:], "little"))

    def _checked(self, span: _Span) -> bytes:
        data = self._location.store.get_range(self.path, span.start, span.length)
        return self._compared(data, span.length, span.crc)

    def _compared(self, data: bytes, length: int, crc: int) -> bytes:
        if len(data) != length or zlib.crc32(data) != crc:
            raise CorruptDataError("a roll-up is damaged", path=self.path)
        return data

    def _stream(self, span: _Span) -> pa.Table:
        return read_stream(self._checked(span), "a roll-up", path=self.path)

    def _count(self) -> None:
        CACHE.keep(_slot(self._location, self.path), self, self.size_bytes, let_go=self.let_go)

    def _rows(self, number: int) -> pa.Table | None:
        span = self._rows_at[number]
        if not span.length:
            return None
        rows = self._stream(span)
        if rows.num_rows != self.sstables[number].physical_rows:
            raise CorruptDataError("a roll-up has other rows than a generation", path=self.path)
        return rows

    def _load_facts(self) -> tuple[Facts, ...]:
        table = self._stream(self._facts_at)
        if not _are_facts(table.schema) or table.num_rows != len(self.sstables):
            raise CorruptDataError("the facts of a roll-up are malformed", path=self.path)
        arrays = dict(zip(_FACTS, (one_array(column) for column in table.columns), strict=True))
        found = tuple(_decoded_facts(arrays, self.sstables, self.path))
        self._facts, self._facts_bytes = found, int(table.nbytes)
        self._count()
        return found


_FACTS = ["manifest", "columns", "tombstones", "keys", "offsets"]
_POSSIBLE = frozenset(1 << bits for bits in range(BLOOM_BLOCKS.bit_length()))


def _decoded_facts(arrays: Mapping[str, pa.Array], sstables: Sequence[SsTable], path: str) -> Iterator[Facts]:
    schemas: dict[bytes | None, pa.Schema | None] = {None: None}
    lists = [_items(arrays[name]) for name in ("keys", "offsets", "tombstones")]
    plain = [arrays[name].to_pylist() for name in ("manifest", "columns")]
    for sstable, values, offsets, tombstones, manifest, stored in zip(sstables, *lists, *plain, strict=True):
        if stored not in schemas:  # most generations have the same
            schemas[stored] = _schema(stored, path)
        keys = None
        if values is not None:
            if offsets is None or tombstones is None or offsets.null_count or tombstones.null_count:
                raise CorruptDataError("a roll-up lacks the offsets of keys", path=path)
            keys = Keys(values, offsets.to_numpy(), tombstones.to_numpy())
            if not _fits(keys, sstable.physical_rows or 0):
                raise CorruptDataError("a roll-up contradicts itself", path=path)
        yield Facts(manifest, keys, schemas[stored])


def _are_facts(schema: pa.Schema) -> bool:
    """Whether these are the columns of facts; keys may have any type."""
    if schema.names != _FACTS:
        return False
    offsets = pa.large_list(pa.int64())
    manifest, columns, tombstones, keys, at = schema.types
    return bool(manifest == columns == pa.binary() and tombstones == at == offsets and pa.types.is_large_list(keys))


def _schema(data: bytes, path: str) -> pa.Schema:
    try:
        return pa.ipc.read_schema(pa.py_buffer(data))
    except (pa.ArrowException, ValueError, TypeError, OSError) as error:
        raise CorruptDataError(f"the columns in a roll-up cannot be read: {error}", path=path) from None


def _fits(keys: Keys, rows: int) -> bool:
    """Whether these can be the keys of a generation with so many rows."""
    inside = all(not len(at) or 0 <= at.min() <= at.max() < rows for at in (keys.offsets, keys.tombstones))
    return inside and len(keys.values) == len(keys.offsets) and not keys.values.null_count


def _items(lists: pa.Array) -> Iterator[pa.Array | None]:
    """Every list as an array, or None."""
    ends, values = lists.offsets.to_pylist(), lists.values
    for start, end, is_valid in zip(ends[:-1], ends[1:], lists.is_valid().to_pylist(), strict=True):
        yield values.slice(start, end - start) if is_valid else None


@dataclass(frozen=True, slots=True)
class Rolled:
    """One generation in a roll-up."""

    roll_up: RollUp
    number: int

    def facts(self) -> Facts:
        """What is known of it, but for filter and rows; nothing if the roll-up is of no use."""
        return self.roll_up.facts_of(self.number) or _NO_FACTS

    def rows(self) -> pa.Table | None:
        """Its rows, or None."""
        return self.roll_up.rows_of(self.number)


_NO_FACTS = Facts()


def _unused(path: str, error: MemWalError) -> None:
    _LOG.warning("a roll-up is not used; the files that it is a copy of are [path=%s]: %s", path, error)


def listed_roll_ups(location: Location, shard_id: str) -> dict[str, tuple[int, int]]:
    """The roll-ups of a shard, with the first and the last generation of each."""
    directory = paths.roll_up_dir(shard_id)
    ranges = {f"{directory}/{name}": paths.parse_roll_up_name(name) for name in location.store.list_names(directory)}
    return {path: span for path, span in ranges.items() if span is not None}


def find_rolled(location: Location, shard_id: str, sstables: Iterable[SsTable]) -> Mapping[str, Rolled]:
    """Those of `sstables` that a roll-up has, by their path; the largest ones come first."""
    wanted = {sstable.generation: sstable for sstable in sstables}
    found: dict[str, Rolled] = {}
    listed = listed_roll_ups(location, shard_id)
    for path, (first, last) in sorted(listed.items(), key=lambda item: (item[1][0] - item[1][1], item[0])):
        here = [generation for generation in wanted if first <= generation <= last]
        roll_up = _open(location, path) if here else None
        for number, sstable in enumerate(() if roll_up is None else roll_up.sstables):
            if roll_up is not None and wanted.get(sstable.generation) == sstable:
                found[sstable.path] = Rolled(roll_up, number)
                del wanted[sstable.generation]
    return found


def _open(location: Location, path: str) -> RollUp | None:
    try:
        return CACHE.fetch(_slot(location, path), lambda: RollUp(location, path))
    except (CorruptDataError, UnsupportedFormatError, ObjectNotFoundError) as error:
        _unused(path, error)
        return None


def forget_roll_up(location: Location, path: str) -> None:
    """Hold nothing of a roll-up any more: another one may come in its place."""
    CACHE.forget(_slot(location, path))


def is_torn(location: Location, path: str) -> bool:
    """Whether a roll-up has no footer that can be read, so that nobody uses it; costs one small read."""
    try:
        RollUp(location, path)
    except CorruptDataError:
        return True
    except (UnsupportedFormatError, ObjectNotFoundError):  # of a newer version, or gone meanwhile
        return False
    return False


def _slot(location: Location, path: str) -> Slot:
    return ("roll-up", location.key, path)
