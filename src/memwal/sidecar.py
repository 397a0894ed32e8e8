"""The primary-key sidecar of an SSTable: every key of a generation with its row offset, sorted, in pages.

Owns `_pk_index/page_data.lance` (`values`, `ids`, sorted by key and offset) and `_pk_index/page_lookup.lance` (the
smallest and largest key of every page), both Lance files of version 2.0, and reading the bloom filter beside them.
Invariants:

1. Every physical row is listed, replaced rows and tombstones too; the newest row of a key is its last one.
2. A composite key is stored in its order-preserving encoding, a single key as it is.
3. A lookup reads only pages whose range holds the key, and answers from bytes that were checked.

Called by: flush (writing), the read path (reading).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from lance.file import LanceFileWriter

from memwal.base_table import lance_errors, lance_options
from memwal.format.keys import encode_composite
from memwal.store import paths
from memwal.store.location import Location

__all__ = ["PAGE_ROWS", "SortedKeys", "sort_keys", "write_sidecar"]

PAGE_ROWS = 8192
_FILE_VERSION = "2.0"
_SIGN = np.uint64(1 << 63)


@dataclass(frozen=True, slots=True)
class SortedKeys:
    """The keys of a generation in sidecar order: `values[i]` is the key of row `order[i]`.

    `replaced` are the rows that have a later row of the same key.
    """

    values: pa.Array
    order: npt.NDArray[np.integer]
    replaced: npt.NDArray[np.integer]


def sort_keys(columns: Sequence[pa.Array]) -> SortedKeys:
    """Sort rows by key, then by offset; `columns` are the key columns in key order, without nulls."""
    keys = columns[0] if len(columns) == 1 else encode_composite(columns)
    if pa.types.is_integer(keys.type):
        order = _integer_order(keys.to_numpy())
    else:
        order = pc.array_sort_indices(keys).to_numpy()
    values = keys.take(pa.array(order))
    same = pc.equal(values.slice(1), values.slice(0, len(values) - 1)).to_numpy(zero_copy_only=False)
    return SortedKeys(values, order, order[:-1][same])


def write_sidecar(location: Location, shard_id: str, name: str, keys: SortedKeys) -> None:
    """Write both files of the sidecar."""
    directory = paths.pk_index_dir(shard_id, name)
    schema = pa.schema([pa.field("values", keys.values.type), pa.field("ids", pa.uint64(), nullable=False)])
    data = pa.record_batch([keys.values, pa.array(keys.order.astype(np.uint64, copy=False))], schema=schema)
    pages = [data.slice(start, PAGE_ROWS) for start in range(0, len(data), PAGE_ROWS)]
    _write_file(location, f"{directory}/page_data.lance", pages, {})
    metadata = {"batch_size": str(PAGE_ROWS), "range_partitioned": "false"}
    _write_file(location, f"{directory}/page_lookup.lance", [_page_lookup(keys.values)], metadata)


def _write_file(location: Location, path: str, batches: list[pa.RecordBatch], metadata: Mapping[str, str]) -> None:
    with lance_errors("writing a primary-key sidecar"):
        writer = LanceFileWriter(
            location.child_uri(path), batches[0].schema, version=_FILE_VERSION, storage_options=lance_options(location)
        )
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
