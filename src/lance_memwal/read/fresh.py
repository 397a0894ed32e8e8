"""The tiers of a shard above the base table: which of their rows is the newest of its key.

Owns `FreshIndex`, kept per shard and followed as its list of SSTables changes, and `ShardMerge`. Invariants:

1. Every key is listed once, with the newest generation that has it and the row's offset there.
2. `hidden` names, per SSTable, the rows that a newer SSTable of the same shard replaced (or a newer row of its own, where
   its deletion vector does not); no other row is hidden.
3. Keys of an SSTable are read once as long as the index is kept: a new SSTable is merged into it, one that was compacted
   leaves it. They are merged in steps, so that never the keys of all SSTables are held beside it.
4. Memory hides what SSTables have, whatever is in it; a tombstone hides like any other row, and is not live.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_memwal.clock import in_order
from lance_memwal.memtable.memtable import InMemoryMemTableRef
from lance_memwal.process.cache import CACHE, Cache, Slot
from lance_memwal.process.lazy import lazy
from lance_memwal.read.memory import winners
from lance_memwal.read.tiers import ShardView, Tiers
from lance_memwal.rows.adapt import tombstone_flags
from lance_memwal.rows.key_slots import SLOT_BYTES_PER_KEY, KeySlots
from lance_memwal.rows.keys import concat_keys, key_array
from lance_memwal.rows.lookup_key import LookupKey
from lance_memwal.rows.sorted_keys import find_one_sorted, find_sorted, merge_runs, searchable, union_of_runs
from lance_memwal.sstable.read import SsTableReader, open_sstable
from lance_memwal.store.location import Location

_SMALL_LOOKUP = 1024
_OPEN_AT_ONCE = 4
_FEW_KEYS = 64
_FEW_SSTABLES = 4
_MANY_ROWS = 1 << 16
_ROWS_OF_A_LOOKUP = 1 << 14  # whose keys are read in the time that looking one key up takes
_SSTABLES_OF_A_LOOKUP = 2  # whose files of keys are opened in that time
_MERGED_ROWS = 1 << 20  # in one step: what it holds beside the keys is ten numbers per row


class FreshIndex:
    """Keys of the SSTables of one shard, ascending, each with the SSTable that has its newest row, and the offset there.

    `owners` count the SSTables from the oldest on.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        keys: pa.Array,
        owners: npt.NDArray[np.int32],
        offsets: npt.NDArray[np.int64],
        hidden: Sequence[npt.NDArray[np.int64]],
    ) -> None:
        """`names` are the SSTables, ascending, and `hidden` the offsets in each that a newer row replaced."""
        self.names = names
        self.keys = keys
        self.owners = owners
        self.offsets = offsets
        self.hidden = tuple(hidden)
        self._sorted = searchable(keys)
        self._slots: KeySlots | None = None

    @classmethod
    def of(cls, readers: Sequence[SsTableReader], older: FreshIndex | None = None) -> FreshIndex:
        """That of `readers`, which ascend by generation. What `older` knows of them is not read again."""
        index = None if older is None else older.without_others(readers)
        known = 0 if index is None else len(index.names)
        for group in _groups(readers[known:]):
            index = _extended(index, group)
        if index is None:
            raise AssertionError("an index has an SSTable")
        return index

    def without_others(self, readers: Sequence[SsTableReader]) -> FreshIndex | None:
        """The index of those SSTables that it has in common with `readers`; None if they do not begin with them.

        The oldest ones go when they are compacted, and new ones come. What is hidden was hidden by newer rows, which stay.
        """
        names = tuple(reader.sstable.path for reader in readers)
        gone = self.names.index(names[0]) if names[0] in self.names else len(self.names)
        left = self.names[gone:]
        if not left or names[: len(left)] != left:
            return None
        stays = self.owners >= gone
        if stays.all():
            return FreshIndex(left, self.keys, self.owners - np.int32(gone), self.offsets, self.hidden[gone:])
        keys = self.keys.filter(pa.array(stays))
        return FreshIndex(left, keys, self.owners[stays] - np.int32(gone), self.offsets[stays], self.hidden[gone:])

    @property
    def size_bytes(self) -> int:
        """Resident bytes, with the slots that bytes may need yet."""
        slots = 0 if isinstance(self._sorted, np.ndarray) else self.keys.nbytes + SLOT_BYTES_PER_KEY * len(self.keys)
        hidden = sum(offsets.nbytes for offsets in self.hidden)
        return int(self.keys.nbytes + slots + self.owners.nbytes + self.offsets.nbytes + hidden)

    def locate(self, keys: pa.Array) -> npt.NDArray[np.int64]:
        """Per key its entry, or -1; an entry has an owner (a reader) and an offset there."""
        if isinstance(self._sorted, np.ndarray) or len(keys) <= _SMALL_LOOKUP:
            return find_sorted(self._sorted, searchable(keys))
        if self._slots is None:
            self._slots = KeySlots(self.keys)
        return self._slots.find(keys)

    def locate_one(self, key: LookupKey) -> int:
        """`locate` for one key."""
        return int(self.locate(key.values)[0]) if key.whole is None else find_one_sorted(self._sorted, key.whole)


_NONE = np.empty(0, dtype=np.int64)


def _groups(readers: Sequence[SsTableReader]) -> Iterator[list[SsTableReader]]:
    """The readers in the same order, as many together as have few rows: those are merged in one step."""
    group: list[SsTableReader] = []
    rows = 0
    for reader in readers:
        size = _MERGED_ROWS if reader.sstable.physical_rows is None else reader.sstable.physical_rows
        if group and rows + size > _MERGED_ROWS:
            yield group
            group, rows = [], 0
        group.append(reader)
        rows += size
    if group:
        yield group


def _extended(index: FreshIndex | None, readers: Sequence[SsTableReader]) -> FreshIndex:
    """The index with these SSTables, which are newer than all that it has; their own lists of keys go."""
    newest_first = list(reversed(readers))
    list(in_order(SsTableReader.entries, readers, _OPEN_AT_ONCE, "memwal-open"))
    parts = [reader.entries() for reader in newest_first]
    first = 0 if index is None else len(index.names)
    last = first + len(readers) - 1
    runs = [keys for keys, _ in parts]
    owners = [np.full(len(keys), last - i, np.int32) for i, keys in enumerate(runs)]
    offsets = [found for _, found in parts]
    hidden = [_NONE] * first if index is None else list(index.hidden)
    hidden += [reader.stale for reader in readers]
    if index is not None:
        runs, owners, offsets = [*runs, index.keys], [*owners, index.owners], [*offsets, index.offsets]
    del parts
    for reader in readers:
        reader.forget_entries()
    all_owners, all_offsets = np.concatenate(owners), np.concatenate(offsets)
    keys, rows = merge_runs(runs)
    beaten = np.ones(len(all_owners), dtype=bool)
    beaten[rows] = False
    for owner, found in _by_owner(all_owners[beaten], all_offsets[beaten]):
        hidden[owner] = np.concatenate([hidden[owner], found])
    names = (*(() if index is None else index.names), *(reader.sstable.path for reader in readers))
    return FreshIndex(names, keys, all_owners[rows], all_offsets[rows], hidden)


def _by_owner(
    owners: npt.NDArray[np.int32], offsets: npt.NDArray[np.int64]
) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """The offsets of each owner that has any."""
    order = np.argsort(owners, kind="stable")
    bounds = np.flatnonzero(np.diff(owners[order])) + 1
    for rows in np.split(order, bounds) if len(order) else []:
        yield int(owners[rows[0]]), offsets[rows]


def fresh_index(
    readers: Sequence[SsTableReader], cache: Cache = CACHE, *, keys: int | None = None
) -> FreshIndex | None:
    """The index over `readers` of one shard, ascending by generation; kept until the list changes, and then followed.

    None if it is not there and a lookup of so many `keys` costs less without it.
    """
    slot = _slot(readers[0].location, readers[0].shard_id)
    names = tuple([reader.sstable.path for reader in readers])
    found: FreshIndex | None = cache.find(slot, names)
    if found is not None:
        return found
    older: FreshIndex | None = cache.whatever(slot)
    known = frozenset(() if older is None else older.names)
    if keys is not None and _costs_less_without(readers, known, keys):
        return None
    return cache.fetch(slot, lambda: FreshIndex.of(readers, older), names)


def kept_index(view: ShardView, snapshot: Tiers) -> FreshIndex | None:
    """The index over the SSTables of a shard, if it is there; none of them is opened."""
    names = tuple([sstable.path for sstable in view.sstables])
    found: FreshIndex | None = CACHE.find(_slot(snapshot.location, view.shard_id), names)
    return found


def _slot(location: Location, shard_id: str) -> Slot:
    return ("fresh keys", location.key, shard_id)


def _costs_less_without(readers: Sequence[SsTableReader], known: Collection[str], keys: int) -> bool:
    """Whether few keys are looked for, now and so far, in SSTables most of which are not `known`.

    Each key that is looked up without the index costs all filters, and the files of one SSTable. So the index is made once
    that has cost as much as the index does: whatever comes next, nobody pays more than twice.
    """
    cold = [reader for reader in readers if reader.sstable.path not in known]
    if 2 * len(cold) <= len(readers):
        return False
    rows = sum([reader.sstable.physical_rows or 0 for reader in cold])
    if len(cold) <= _FEW_SSTABLES and rows <= _MANY_ROWS:
        return False
    asked = max([reader.asked_keys for reader in cold])
    return asked + keys <= min(_FEW_KEYS, _lookups_for_the_index(cold, rows))


def _lookups_for_the_index(cold: Sequence[SsTableReader], rows: int) -> float:
    """How many keys can be looked up for what the index of these SSTables costs: their files and their rows."""
    return len(cold) / _SSTABLES_OF_A_LOOKUP + rows / _ROWS_OF_A_LOOKUP


def has_fresh_index(readers: Sequence[SsTableReader], cache: Cache = CACHE) -> bool:
    """Whether an index over `readers`, or over some of them, is there."""
    return cache.whatever(_slot(readers[0].location, readers[0].shard_id)) is not None


def keys_alone(readers: Sequence[SsTableReader]) -> pa.Array:
    """Every key of `readers` once, ascending: for a third of what the index costs, and not kept."""
    keys: list[pa.Array] = []
    for group in _groups(readers):
        runs = in_order(SsTableReader.keys_alone, group, _OPEN_AT_ONCE, "memwal-open")
        keys = [union_of_runs([*keys, *runs])]
    return keys[0]


class ShardMerge:
    """The fresh tiers of one shard: winners in memory, hidden rows per SSTable."""

    def __init__(self, view: ShardView, snapshot: Tiers) -> None:
        self.view = view
        self._snapshot = snapshot
        self.readers = [open_sstable(snapshot.location, view.shard_id, s) for s in view.sstables]

    @property
    def _keyed(self) -> bool:
        return bool(self._snapshot.schema.primary_key)

    @cached_property
    def memory(self) -> list[tuple[InMemoryMemTableRef, npt.NDArray[np.bool_]]]:
        """Per memtable the mask of rows that nothing in memory hides, tombstones included."""
        return winners(self.view.memory)

    @cached_property
    def memory_keys(self) -> pa.Array | None:
        """Every key in memory, tombstones included; None without a primary key or without rows."""
        if not self._keyed or not self.memory:
            return None
        names = list(self._snapshot.schema.primary_key)
        parts = []
        for ref, mask in self.memory:
            keys = ref.table().select(names)
            parts.append(key_array((keys if mask.all() else keys.filter(pa.array(mask))).columns))
        return concat_keys(parts)

    @lazy
    def index(self) -> FreshIndex | None:
        """The newest row per key over the SSTables; None without any, or without a primary key."""
        return fresh_index(self.readers) if self._keyed and self.readers else None

    def live_memory(self) -> Iterator[tuple[InMemoryMemTableRef, pa.Table, npt.NDArray[np.bool_]]]:
        """Per memtable its rows and the mask of those that nothing in memory hides and that are no tombstones."""
        for ref, mask in self.memory:
            table = ref.table()
            yield ref, table, mask & ~tombstone_flags(table)

    def sstables(self) -> Iterator[tuple[SsTableReader, npt.NDArray[np.int64]]]:
        """The SSTables, ascending, each with the offsets of the rows that a newer one or memory hides, sorted."""
        if self.readers:
            hidden = [np.sort(offsets) if len(offsets) > 1 else offsets for offsets in self._hidden()]
            yield from zip(self.readers, hidden, strict=True)

    def _hidden(self) -> list[npt.NDArray[np.int64]]:
        index = self.index
        if index is None:
            return [_NONE] * len(self.readers)
        hidden = list(index.hidden)
        if self.memory_keys is not None:
            entries = index.locate(self.memory_keys)
            entries = entries[entries >= 0]
            for owner, offsets in _by_owner(index.owners[entries], index.offsets[entries]):
                hidden[owner] = np.concatenate([hidden[owner], offsets])
        return hidden

    def all_keys(self) -> list[pa.Array]:
        """Every key of the fresh tiers, tombstones included, some twice."""
        found = [] if self.memory_keys is None else [self.memory_keys]
        return found if self.index is None else [*found, self.index.keys]


def live_rows(
    rows: pa.Table | pa.RecordBatch, offsets: npt.NDArray[np.int64], hidden: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Per row of an SSTable, at these offsets: whether it is neither hidden (sorted offsets) nor a tombstone."""
    return not_in(offsets, hidden) & ~tombstone_flags(rows)


def not_in(offsets: npt.NDArray[np.int64], hidden: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Per offset: whether it is not among the sorted `hidden` ones."""
    if not len(hidden):
        return np.ones(len(offsets), dtype=bool)
    at = np.searchsorted(hidden, offsets)
    at[at == len(hidden)] = 0
    return np.asarray(hidden[at] != offsets)
