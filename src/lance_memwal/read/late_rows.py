"""What tells late rows from others: the highest sequence of all tiers, and deletes that are remembered.

Owns `with_remembered`, `column_parts` and the highest sequence of a base table. Invariant: tombstones count here, since late
rows must meet them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_memwal.lance.base import BaseTable
from lance_memwal.process.cache import CACHE
from lance_memwal.read.base_rows import version_of
from lance_memwal.read.fresh import ShardMerge
from lance_memwal.read.tiers import Tiers
from lance_memwal.rows.keys import key_array, one_array
from lance_memwal.rows.merging import order_of
from lance_memwal.rows.normal_form import nulls
from lance_memwal.rows.schema import TableSchema
from lance_memwal.sstable.deletes import RememberedDeletes
from lance_memwal.types import TOMBSTONE


def with_remembered(
    found: pa.Table, keys: pa.RecordBatch, schema: TableSchema, remembered: RememberedDeletes, sequence: str
) -> pa.Table:
    """`found`, the newest rows of `keys`, with a tombstone for every other key that is remembered as deleted."""
    names = list(schema.primary_key)
    known = key_array([found.column(name) for name in names])
    left = keys.filter(pc.invert(pc.is_in(key_array(keys.columns), value_set=known)))
    if not left.num_rows:
        return found
    at, sequences = remembered.find(left.columns)
    if not len(at):
        return found
    given = {**dict(zip(names, left.take(at).columns, strict=True)), sequence: sequences}
    given[TOMBSTONE] = pa.array(np.ones(len(at), dtype=bool))
    arrays = [given[f.name] if f.name in given else nulls(len(at), f.type) for f in found.schema]
    return pa.concat_tables([found, pa.Table.from_arrays(arrays, schema=found.schema)])


def column_parts(snapshot: Tiers, name: str) -> Iterator[pa.Array]:
    """A column in every tier above the base table, part by part: superseded rows and tombstones may be among them."""
    for view in snapshot.shards:
        yield from (one_array(ref.table().column(name)) for ref in view.memory)
        for reader in ShardMerge(view, snapshot).readers:
            for batch, _ in reader.batches(snapshot.schema, [name], None, reader.stored.part_rows):
                yield batch.column(name)


def highest_of_base(base: BaseTable, name: str) -> Any:
    """The highest sequence in a column of the base table, None if it has none; remembered for one version of it."""
    slot = ("highest sequence", base.location.key, name)
    return CACHE.fetch(slot, lambda: _Highest(highest_of(_base_parts(base, name))), version_of(base)).value


def highest_of(parts: Iterable[pa.Array]) -> Any:
    """The highest sequence of all parts; None if there is none."""
    return max((order_of(part.drop_null())[0].max() for part in parts if len(part) > part.null_count), default=None)


@dataclass(frozen=True, slots=True)
class _Highest:
    value: Any
    size_bytes: int = 128


def _base_parts(base: BaseTable, name: str) -> Iterator[pa.Array]:
    with base.reading("looking for the highest sequence of the base table"):
        for batch in base.dataset.scanner(columns=[name], batch_size=262_144).to_batches():
            yield batch.column(name)
