"""The live rows of the keys of a write, as the owner of the shard knows them.

Owns `KeysOfWrite` and `LiveRows`. Invariants:

1. What counts is what was inserted, not what readers may see: the owner's own order decides.
2. A look is as of a number of batches. Whether a key got a newer row since is answered from memory alone, under the lock of
   the writer; a look that memory cannot bring up to date any more is to be taken again.
3. Keys that a memtable has cost no call to storage; all others are asked for at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_memwal.memtable.key_index import key_values
from lance_memwal.memtable.memtable import InMemoryMemTables
from lance_memwal.process.waiting import refuse_on_top
from lance_memwal.rows.keys import key_array, one_array
from lance_memwal.rows.schema import TableSchema
from lance_memwal.types import TOMBSTONE
from lance_memwal.write.resolve import Live
from lance_memwal.write.shard import Shard

# The newest row of each key that the shard (memtables are given) or the base table has: these columns, `_tombstone` last.
LookUp: TypeAlias = Callable[[pa.RecordBatch, Sequence[str], TableSchema, InMemoryMemTables], pa.Table]


@dataclass(frozen=True, slots=True)
class KeysOfWrite:
    """The distinct keys of a write: their columns, and as values that a memtable is asked for."""

    columns: list[pa.Array]
    values: list[Any]

    @classmethod
    def of(cls, columns: list[pa.Array]) -> tuple[KeysOfWrite, npt.NDArray[np.int64]]:
        """The keys in these columns, and per row the number of its key: [a, b, a] has the keys [a, b] and [0, 1, 0]."""
        values = key_values(columns)
        if len(set(values)) == len(values):
            return cls(columns, values), np.arange(len(values))
        numbers = key_array(columns).dictionary_encode().indices.to_numpy().astype(np.int64)
        first = np.unique(numbers, return_index=True)[1]
        return cls([column.take(pa.array(first)) for column in columns], [values[row] for row in first]), numbers

    @classmethod
    def of_batches(
        cls, batches: Sequence[pa.RecordBatch], names: Sequence[str]
    ) -> tuple[KeysOfWrite, list[npt.NDArray[np.int64]]]:
        """The keys, which are in the columns `names`, of all batches together, and per batch the numbers of its rows."""
        if len(batches) == 1:
            keys, numbers = cls.of([batches[0].column(name) for name in names])
            return keys, [numbers]
        keys, numbers = cls.of([pa.concat_arrays([batch.column(name) for batch in batches]) for name in names])
        return keys, np.split(numbers, np.cumsum([batch.num_rows for batch in batches])[:-1])


@dataclass(frozen=True, slots=True)
class Look:
    """Live rows as of the moment at which all batches below `end` were inserted, and no others."""

    live: Live
    end: int


class LiveRows:
    """Finds live rows for one write to a shard. `StaleRowsError` if the shard no longer has the columns of `schema`."""

    __slots__ = ("_look_up", "_schema", "_shard")

    def __init__(self, shard: Shard, look_up: LookUp, schema: TableSchema) -> None:
        self._shard = shard
        self._look_up = look_up
        self._schema = schema

    def find(self, keys: KeysOfWrite, columns: Sequence[str]) -> Look:
        """The live rows of `keys`, as of now."""
        shard = self._shard
        tables, health = shard.tables.need(), shard.health
        refuse_on_top(health.lock, "a write")
        with health.lock:
            health.refuse_writes()
            shard.commits.refuse_stale(self._schema)
            end = shard.commits.buffered
            memory = tables.capture(end)
        names = [*columns, TOMBSTONE]
        at = np.full(len(keys.values), -1, dtype=np.int64)
        parts = _from_memory(memory, keys, names, at, since=0)
        found = sum(len(part[0]) for part in parts)
        if found == len(at):
            return Look(_live(names, parts, at, in_order=len(parts) == 1), end)
        parts.append(self._from_storage(memory, keys, columns, at, at < 0, found))
        return Look(_live(names, parts, at), end)

    def _from_storage(
        self,
        memory: InMemoryMemTables,
        keys: KeysOfWrite,
        columns: Sequence[str],
        at: npt.NDArray[np.int64],
        left: npt.NDArray[np.bool_],
        start: int,
    ) -> list[pa.Array]:
        """The rows of the keys that are `left`; `at` gets their numbers, from `start` on."""
        schema = self._schema
        asked = [column if left.all() else column.filter(pa.array(left)) for column in keys.columns]
        batch = pa.RecordBatch.from_arrays(asked, names=list(schema.primary_key))
        wanted = list(dict.fromkeys([*columns, *schema.primary_key]))
        found = self._look_up(batch, wanted, schema, memory)
        rows = _rows_of(asked, found, schema.primary_key)
        at[left] = np.where(rows < 0, -1, rows + start)
        return [one_array(found.column(name)) for name in [*columns, TOMBSTONE]]

    def again(self, keys: KeysOfWrite, columns: Sequence[str], look: Look) -> Look | None:
        """`look`, brought up to date from memory; itself if no newer row came, None if memory cannot tell.

        The lock of the writer is held.
        """
        shard = self._shard
        tables, end = shard.tables.need(), shard.commits.buffered
        shard.commits.refuse_stale(self._schema)
        if end == look.end:
            return look
        memory = tables.capture(end)
        if memory.ascending[0].memtable.first_batch > look.end:
            return None
        names = [*columns, TOMBSTONE]
        at = np.full(len(keys.values), -1, dtype=np.int64)
        parts = _from_memory(memory, keys, names, at, since=look.end)
        if not parts:
            return look
        newer = _live(names, parts, at)
        found = np.flatnonzero(at >= 0)
        columns_of = {name: column.take(pa.array(at[found])) for name, column in newer.columns.items()}
        return Look(look.live.below(found, columns_of), end)


def live_of(found: pa.Table, keys: KeysOfWrite, columns: Sequence[str], primary_key: Sequence[str]) -> Live:
    """What a look-up of `keys` found: the newest row of each, `_tombstone` among its columns."""
    at = _rows_of(keys.columns, found, primary_key)
    return Live({name: one_array(found.column(name)) for name in [*columns, TOMBSTONE]}, at)


def _rows_of(keys: list[pa.Array], found: pa.Table, primary_key: Sequence[str]) -> npt.NDArray[np.int64]:
    """Per key its row in `found`, or -1."""
    rows = pc.index_in(key_array(keys), value_set=key_array([found.column(name) for name in primary_key]))
    return np.asarray(rows.fill_null(-1).to_numpy()).astype(np.int64)


def _from_memory(
    memory: InMemoryMemTables, keys: KeysOfWrite, names: Sequence[str], at: npt.NDArray[np.int64], *, since: int
) -> list[list[pa.Array]]:
    """The columns of the newest rows in memtables, of batches from `since` on; `at` gets per key its row among them."""
    parts: list[list[pa.Array]] = []
    count = 0
    for ref in reversed(memory.ascending):
        if not ref.num_rows:
            continue
        rows = ref.find(keys.values)
        hits = rows >= (ref.memtable.rows_before(since) if since else 0)
        if count:
            hits &= at < 0
        found = int(np.count_nonzero(hits))
        if found:
            parts.append(ref.take(rows if found == len(rows) else rows[hits], names))
            at[hits] = np.arange(count, count + found)
            count += found
            if count == len(at):
                break
    return parts


def _live(
    names: Sequence[str], parts: list[list[pa.Array]], at: npt.NDArray[np.int64], *, in_order: bool = False
) -> Live:
    columns = parts[0] if len(parts) == 1 else map(pa.concat_arrays, zip(*parts, strict=True))
    return Live(dict(zip(names, columns, strict=True)), at, in_order=in_order)
