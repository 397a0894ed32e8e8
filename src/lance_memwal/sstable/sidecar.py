"""The primary-key sidecar of an SSTable: every key of a generation with its row offset, sorted, in pages.

Owns `_pk_index/page_data.lance` (`values`, `ids`, sorted by key and offset) and `_pk_index/page_lookup.lance` (the
smallest and largest key of every page), both Lance files of version 2.0, and asking the bloom filter beside them.
Invariants:

1. Every physical row is listed, replaced rows and tombstones too; the newest row of a key is its last one.
2. A composite key is stored in its order-preserving encoding, a single key as it is, and handed out as it is compared.
3. A lookup reads the one page that can hold the newest row of its key, and each page once.
4. A sidecar that contradicts itself is `CorruptDataError`; it never turns into "no such key".
5. A filter holds every key of the generation, also where the sidecar lacks rows: both writers fill it before a row is in
   the memtable. So its "no" is final.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from lance.file import LanceFileReader

from lance_memwal.arguments import digits_of
from lance_memwal.errors import CorruptDataError, InvalidInputError, ObjectNotFoundError
from lance_memwal.lance.base import lance_errors, lance_read
from lance_memwal.lance.door import lance_at
from lance_memwal.rows.key_encoding import comparable, hash_is_exact, key_hashes
from lance_memwal.rows.keys import key_array, one_array
from lance_memwal.rows.sorted_keys import Searchable, find_sorted, last_at_most, pick, searchable
from lance_memwal.sstable.bloom import BLOOM_BYTES, might_contain
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.types import SsTable

PAGE_ROWS = 8192
_FILE_VERSION = "2.0"
_SIGN = np.uint64(1 << 63)
_ALL_BITS = (1 << 64) - 1
_MAX_PAGE_ROWS = 1 << 24


@dataclass(frozen=True, slots=True)
class SortedKeys:
    """The keys of a generation in sidecar order: `values[i]` is the key of row `order[i]`, as it is compared.

    `stored` are the same as a sidecar holds them; `replaced` are the rows that have a later row of the same key.
    """

    values: pa.Array
    stored: pa.Array
    order: npt.NDArray[np.integer]
    replaced: npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class WantedKeys:
    """Keys that are looked up, encoded and hashed once for all SSTables; without hashes where filters ignore their values."""

    values: pa.Array
    stored_type: pa.DataType
    hashes: npt.NDArray[np.uint64] | None

    @classmethod
    def of(cls, columns: Sequence[pa.Array]) -> WantedKeys:
        """The keys of these key columns."""
        exact = hash_is_exact([column.type for column in columns])
        keys = key_array(columns)
        return cls(keys, _stored(columns, keys).type, key_hashes(columns) if exact else None)

    def take(self, rows: npt.NDArray[np.int64]) -> WantedKeys:
        """Some of them."""
        hashes = None if self.hashes is None else self.hashes[rows]
        return WantedKeys(self.values.take(pa.array(rows)), self.stored_type, hashes)


def _stored(columns: Sequence[pa.Array], keys: pa.Array) -> pa.Array:
    """`keys`, those of `columns`, as a sidecar holds them: a composite key encoded, a single one in its own type."""
    if len(columns) > 1:
        return keys
    return columns[0].storage if isinstance(columns[0].type, pa.BaseExtensionType) else columns[0]


# -------------------------------------------------------------------------------------------------------- writing


def sort_keys(columns: Sequence[pa.Array]) -> SortedKeys:
    """Sort rows by key, then by offset; `columns` are the key columns in key order, without nulls."""
    keys = key_array(columns)
    if pa.types.is_integer(keys.type):
        order = _integer_order(keys.to_numpy())
    elif pa.types.is_boolean(keys.type):
        order = pc.array_sort_indices(keys).to_numpy()
    else:
        order = _binary_order(keys.cast(pa.large_binary()))
    values = keys.take(pa.array(order))
    stored = _stored(columns, keys)
    as_stored = values if stored.type == values.type else stored.take(pa.array(order))
    return SortedKeys(values, as_stored, order, order[:-1][_equals_next(values)])


def write_sidecar(location: Location, shard_id: str, name: str, keys: SortedKeys) -> None:
    """Write both files of the sidecar."""
    schema = pa.schema([pa.field("values", keys.stored.type), pa.field("ids", pa.uint64(), nullable=False)])
    data = pa.record_batch([keys.stored, pa.array(keys.order.astype(np.uint64, copy=False))], schema=schema)
    pages = [data.slice(start, PAGE_ROWS) for start in range(0, len(data), PAGE_ROWS)]
    _write_file(location, _data_path(shard_id, name), pages, {})
    metadata = {"batch_size": str(PAGE_ROWS), "range_partitioned": "false"}
    _write_file(location, _lookup_path(shard_id, name), [_page_lookup(keys.stored)], metadata)


def _data_path(shard_id: str, name: str) -> str:
    return f"{paths.pk_index_dir(shard_id, name)}/page_data.lance"


def _lookup_path(shard_id: str, name: str) -> str:
    return f"{paths.pk_index_dir(shard_id, name)}/page_lookup.lance"


def _write_file(location: Location, path: str, batches: list[pa.RecordBatch], metadata: Mapping[str, str]) -> None:
    with lance_errors("writing a primary-key sidecar"):
        writer = lance_at(location).writer(path, batches[0].schema, version=_FILE_VERSION)
        for batch in batches:
            writer.write_batch(batch)
        for key, value in metadata.items():
            writer.add_schema_metadata(key, value)
        writer.close()


def _page_lookup(values: pa.Array) -> pa.RecordBatch:
    first = np.arange(0, len(values), PAGE_ROWS)
    last = np.minimum(first + PAGE_ROWS, len(values)) - 1
    number = pa.array(np.arange(len(first), dtype=np.uint32))
    return pa.record_batch(
        [values.take(pa.array(first)), values.take(pa.array(last)), pa.array(np.zeros(len(first), np.uint32)), number],
        schema=pa.schema(
            [
                pa.field("min", values.type),
                pa.field("max", values.type),
                pa.field("null_count", pa.uint32(), nullable=False),
                pa.field("page_idx", pa.uint32(), nullable=False),
            ]
        ),
    )


def _integer_order(values: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
    """The stable sort order of integers.

    Where the range of values leaves enough bits, offset and value share one word: sorting words is several times
    faster than a stable argsort, and ties are in offset order by construction.
    """
    words = values.astype(np.int64).view(np.uint64) ^ _SIGN if values.dtype.kind == "i" else values.astype(np.uint64)
    smallest = words.min()
    offset_bits = (len(words) - 1).bit_length()
    if int(words.max() - smallest).bit_length() + offset_bits > 64:
        return np.argsort(values, kind="stable")
    packed = ((words - smallest) << np.uint64(offset_bits)) | np.arange(len(words), dtype=np.uint64)
    packed.sort()
    order: npt.NDArray[np.uint64] = packed & np.uint64((1 << offset_bits) - 1)
    return order


def _binary_order(keys: pa.Array) -> npt.NDArray[np.integer]:
    """The stable sort order of binaries, by bytes.

    The eight bytes behind the common prefix decide most comparisons, as numbers. Rows that they do not tell apart are
    neighbours then, and get sorted whole among themselves.
    """
    words = _words_behind_prefix(keys)
    order = np.argsort(words)
    ordered = words[order]
    same = ordered[1:] == ordered[:-1]
    if same.any():
        tied = np.append(same, False)
        tied[1:] |= same
        rows = np.sort(order[tied])
        order[tied] = rows[pc.array_sort_indices(keys.take(pa.array(rows))).to_numpy()]
    return order


def _words_behind_prefix(keys: pa.Array) -> npt.NDArray[np.uint64]:
    """Eight bytes of every key from the first one on that not all keys share, big-endian, filled up with zeros."""
    bounds = pc.min_max(keys)
    smallest, largest = bounds["min"].as_py(), bounds["max"].as_py()
    prefix = next((i for i, byte in enumerate(smallest) if largest[i] != byte), len(smallest))
    offsets = np.frombuffer(keys.buffers()[1], np.int64, len(keys) + 1, keys.offset * 8)
    data = np.zeros(offsets[-1] - offsets[0] + 8, np.uint8)
    data[:-8] = np.frombuffer(keys.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    anywhere = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
    words: npt.NDArray[np.uint64] = anywhere[offsets[:-1] - offsets[0] + prefix].byteswap()
    unused = 8 - np.minimum(np.diff(offsets) - prefix, 8).astype(np.uint64)
    kept = np.left_shift(np.uint64(_ALL_BITS), np.minimum(unused, 7) * np.uint64(8))
    words &= np.where(unused == 8, np.uint64(0), kept)
    return words


def _equals_next(values: pa.Array) -> npt.NDArray[np.bool_]:
    """For every value but the last, whether the next one is the same."""
    same: npt.NDArray[np.bool_] = pc.equal(values.slice(1), values.slice(0, len(values) - 1)).to_numpy(
        zero_copy_only=False
    )
    return same


# -------------------------------------------------------------------------------------------------------- reading


@dataclass(frozen=True, slots=True)
class _Page:
    values: Searchable
    offsets: npt.NDArray[np.int64]

    @property
    def size_bytes(self) -> int:
        return int(self.values.nbytes + self.offsets.nbytes)


@dataclass(frozen=True, slots=True)
class _Lookup:
    key_type: pa.DataType
    page_rows: int
    smallest: Searchable
    largest: Searchable


class PkSidecar:
    """The keys of one SSTable. Opening reads nothing; what was read stays in memory. Safe to share between threads."""

    def __init__(self, location: Location, shard_id: str, sstable: SsTable) -> None:
        self._location = location
        self._shard_id = shard_id
        self._name = sstable.path
        # Threads may fill or empty these at the same time: they read the same immutable bytes, and hold what they use.
        self._bloom: bytes | None = None
        self._lookup: _Lookup | None = None
        self._reader: LanceFileReader | None = None
        self._reading = threading.RLock()  # a reader of Lance serves one thread at a time
        self._num_rows = 0
        self._pages: dict[int, _Page] = {}

    # Spelled when they are needed: of 500 SSTables a lookup opens one or two.

    @property
    def _data_path(self) -> str:
        return _data_path(self._shard_id, self._name)

    @property
    def _lookup_path(self) -> str:
        return _lookup_path(self._shard_id, self._name)

    @property
    def _bloom_path(self) -> str:
        return paths.bloom_path(self._shard_id, self._name)

    @property
    def size_bytes(self) -> int:
        """Bytes of the filter and the pages that are held now."""
        return len(self._bloom or b"") + sum(page.size_bytes for page in list(self._pages.values()))

    def let_go(self) -> None:
        """Hold neither filter nor pages; what is asked for is read again."""
        self._bloom, self._reader, self._pages = None, None, {}

    def might_contain(self, keys: WantedKeys) -> npt.NDArray[np.bool_]:
        """False only for keys that are certainly not in the SSTable; reads nothing but the bloom filter.

        "Maybe" for every key where the SSTable has no filter, or where the filter ignores values of the key's type.
        """
        filter_bytes = b"" if keys.hashes is None else self._load_bloom()
        if keys.hashes is None or not filter_bytes:
            return np.ones(len(keys.values), np.bool_)
        try:
            return might_contain(filter_bytes, keys.hashes)
        except CorruptDataError as error:
            raise CorruptDataError(str(error), path=self._bloom_path) from None

    def offsets_of(self, wanted: WantedKeys) -> npt.NDArray[np.int64]:
        """The offset of the newest row of every key, -1 where there is none."""
        lookup, keys = self._load_lookup(), wanted.values
        if wanted.stored_type != lookup.key_type:
            raise InvalidInputError(f"the primary key has type {lookup.key_type}, not {wanted.stored_type}")
        values = searchable(keys)
        pages = last_at_most(lookup.smallest, values)
        found = np.full(len(keys), -1, np.int64)
        by_page = np.argsort(pages, kind="stable")
        for rows in np.split(by_page, np.flatnonzero(np.diff(pages[by_page])) + 1):
            if len(rows) and pages[rows[0]] >= 0:
                page = self._load_page(int(pages[rows[0]]))
                at = find_sorted(page.values, pick(values, rows))
                found[rows] = np.where(at >= 0, page.offsets[at], -1)
        if keys.null_count:
            found[keys.is_null().to_numpy(zero_copy_only=False)] = -1
        return found

    @property
    def num_rows(self) -> int:
        """The rows that the sidecar lists: all of the generation, if it is whole."""
        if not self._num_rows:
            self._load_reader()
        return self._num_rows

    def all_entries(self) -> tuple[pa.Array, npt.NDArray[np.int64]]:
        """Every key once, ascending, and the offset of its newest row. One pass over the whole sidecar, not kept."""
        lookup = self._load_lookup()
        reader = self._load_reader()
        with self._reading:
            table = lance_read(self._location, self._data_path, lambda: reader.read_all().to_table())
        self._reader = None  # whoever has all keys needs no pages; a descriptor per SSTable is too many
        values, offsets = self._checked(table, lookup, table.num_rows)
        newest = np.append(~_equals_next(values), True) if len(values) else np.empty(0, np.bool_)
        return values.filter(pa.array(newest)), offsets[newest]

    def all_keys(self) -> pa.Array:
        """Every key once, ascending. One pass over the keys alone, not kept."""
        location, path = self._location, self._data_path
        table = lance_read(location, path, lambda: lance_at(location).reader(path, ["values"]).read_all().to_table())
        values = self._checked_keys(table, self._load_lookup())
        newest = np.append(~_equals_next(values), True) if len(values) else np.empty(0, np.bool_)
        return values if newest.all() else values.filter(pa.array(newest))

    def _load_bloom(self) -> bytes:
        """The filter, or no bytes if there is none."""
        found = self._bloom
        if found is None:
            try:
                found = self._location.store.get(self._bloom_path)
                if len(found) != BLOOM_BYTES:  # nor is it kept: the next read may be whole
                    what = f"bloom filter has {len(found)} bytes instead of {BLOOM_BYTES}"
                    raise CorruptDataError(what, path=self._bloom_path)
                if not any(found):
                    what = "bloom filter has no bit set, but no generation is empty"
                    raise CorruptDataError(what, path=self._bloom_path)
            except ObjectNotFoundError:
                found = b""
            self._bloom = found
        return found

    def _load_lookup(self) -> _Lookup:
        if self._lookup is None:
            self._lookup = lance_read(self._location, self._lookup_path, self._read_lookup)
        return self._lookup

    def _read_lookup(self) -> _Lookup:
        reader = lance_at(self._location).reader(self._lookup_path)
        table = reader.read_all().to_table()
        table.validate(full=True)
        stored = (reader.metadata().schema.metadata or {}).get(b"batch_size", b"%d" % PAGE_ROWS)
        page_rows = digits_of(stored, most=_MAX_PAGE_ROWS)
        if table.schema.names[:2] != ["min", "max"] or not page_rows:
            raise CorruptDataError("page lookup of a sidecar is malformed", path=self._lookup_path)
        smallest, largest = one_array(table.column("min")), one_array(table.column("max"))
        if smallest.null_count or largest.null_count or smallest.type != largest.type:
            raise CorruptDataError("page lookup of a sidecar has pages without bounds", path=self._lookup_path)
        bounds = searchable(comparable(smallest)), searchable(comparable(largest))
        return _Lookup(smallest.type, page_rows, *bounds)

    def _load_reader(self) -> LanceFileReader:
        reader = self._reader
        if reader is None:
            location, path = self._location, self._data_path
            reader = lance_read(location, path, lambda: lance_at(location).reader(path))
            lookup = self._load_lookup()
            rows = int(reader.num_rows())
            if -(-rows // lookup.page_rows) != len(lookup.smallest):
                raise CorruptDataError("page lookup and page data of a sidecar disagree", path=self._data_path)
            self._num_rows, self._reader = rows, reader
        return reader

    def _load_page(self, number: int) -> _Page:
        page = self._pages.get(number)
        if page is None:
            lookup, reader = self._load_lookup(), self._load_reader()
            start = number * lookup.page_rows
            count = min(lookup.page_rows, self._num_rows - start)
            with self._reading:
                table = lance_read(
                    self._location,
                    self._data_path,
                    lambda: reader.read_range(start, count, batch_size=lookup.page_rows).to_table(),
                )
            values, offsets = self._checked(table, lookup, self._num_rows)
            page = _Page(searchable(values), offsets)
            if page.values[0] != lookup.smallest[number] or page.values[-1] != lookup.largest[number]:
                raise CorruptDataError("a page of a sidecar contradicts its bounds", path=self._data_path)
            self._pages[number] = page
        return page

    def _checked(self, table: pa.Table, lookup: _Lookup, rows: int) -> tuple[pa.Array, npt.NDArray[np.int64]]:
        values = self._checked_keys(table, lookup)
        offsets = one_array(table.column("ids"))
        if offsets.null_count:
            raise CorruptDataError("page data of a sidecar is malformed", path=self._data_path)
        numbers = offsets.to_numpy()
        if (numbers >= rows).any():
            raise CorruptDataError("a sidecar names a row that the generation does not have", path=self._data_path)
        return values, numbers.astype(np.int64)

    def _checked_keys(self, table: pa.Table, lookup: _Lookup) -> pa.Array:
        try:
            table.validate(full=True)
        except pa.ArrowInvalid as error:
            raise CorruptDataError(f"page data of a sidecar is malformed: {error}", path=self._data_path) from None
        values = one_array(table.column("values"))
        if values.type != lookup.key_type or values.null_count:
            raise CorruptDataError("page data of a sidecar is malformed", path=self._data_path)
        return comparable(values)
