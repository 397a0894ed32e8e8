"""Several SSTables at once: which of them has a key, and what roll-ups spare.

Owns `find_newest`, `use_roll_ups` and `rows_together`. Invariants:

1. A key is looked for from the newest SSTable on, and no further than to the first that has it.
2. Roll-ups are looked for only where many SSTables are cold; what they do not have is read from the files themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_memwal.clock import in_order
from lance_memwal.rows.schema import TableSchema
from lance_memwal.sstable.read import SsTableReader
from lance_memwal.sstable.roll_up import Rolled, find_rolled
from lance_memwal.sstable.sidecar import WantedKeys

__all__ = ["find_newest", "not_rolled", "rows_together", "use_roll_ups"]

Offsets = npt.NDArray[np.int64]
_ASK_AT_ONCE = 16  # filters, where each waits for a network
_MANY_COLD = 8  # so many small files cost more than a listing


def find_newest(
    readers: Sequence[SsTableReader], columns: Sequence[pa.Array]
) -> Iterator[tuple[SsTableReader, npt.NDArray[np.int64], Offsets]]:
    """Where the newest row of each key is, over the SSTables of one shard, which ascend.

    An SSTable, which of the keys it decides, and the offsets of their rows there; keys that are nowhere are in no answer.
    """
    keys = WantedKeys.of(columns)
    left = np.arange(len(keys.values))
    use_roll_ups(readers, few_keys=True)
    # Other threads may find another roll-up of the same readers meanwhile: what is asked is what was grouped.
    found = [(reader, reader.stored.rolled) for reader in reversed(readers)]
    groups = [list(group) for _, group in groupby(found, _roll_up_of)]
    at_once = readers[0].location.at_once(_ASK_AT_ONCE)
    answers = in_order(lambda group: _might_contain(group, keys), groups, at_once, "memwal-open")
    for (reader, _), maybe in chain.from_iterable(map(zip, groups, answers)):
        reader.asked_keys += len(left)
        rows = left[maybe[left]]
        offsets = reader.locate(keys.take(rows)) if len(rows) else rows
        if (offsets >= 0).any():
            yield reader, rows[offsets >= 0], offsets[offsets >= 0]
            left = np.setdiff1d(left, rows[offsets >= 0])
            if not len(left):
                return


_Place = tuple[SsTableReader, Rolled | None]


def _roll_up_of(place: _Place) -> object:
    reader, rolled = place
    return reader if rolled is None else rolled.roll_up


def _might_contain(group: Sequence[_Place], keys: WantedKeys) -> list[npt.NDArray[np.bool_]]:
    """Per SSTable and key whether it may be there; all of `group` are in one roll-up, or there is one of them."""
    first = group[0][1]
    found = None if first is None or keys.hashes is None else first.roll_up.might_contain(keys.hashes)
    return [
        reader.might_contain(keys) if found is None or rolled is None else found[rolled.number]
        for reader, rolled in group
    ]


def use_roll_ups(readers: Iterable[SsTableReader], *, few_keys: bool = False) -> None:
    """Let SSTables be read from roll-ups, where many of a shard are cold and there are any; costs a listing per shard.

    Unless `few_keys` are looked for, what the roll-ups know of them is read at once.
    """
    by_shard: dict[str, list[SsTableReader]] = {}
    for reader in readers:
        if reader.is_cold:
            by_shard.setdefault(reader.shard_id, []).append(reader)
    for shard_id, cold in by_shard.items():
        if len(cold) >= _MANY_COLD:
            location = cold[0].location
            found = find_rolled(location, shard_id, [reader.sstable for reader in cold])
            for reader in cold:
                rolled = found.get(reader.sstable.path)
                if rolled is not None:  # else another thread may have found one
                    reader.stored.rolled = rolled
            first = {rolled.roll_up.path: rolled for rolled in ([] if few_keys else found.values())}
            list(in_order(Rolled.facts, list(first.values()), location.at_once(_ASK_AT_ONCE), "memwal-open"))


def not_rolled(readers: Iterable[SsTableReader], *, rows: bool = False) -> list[SsTableReader]:
    """Those that must open files of their own for their keys, or for their `rows`: of large ones a roll-up has neither."""
    return [reader for reader in readers if (reader.rolled_as is None if rows else not reader.has_rolled_keys)]


def rows_together(readers: Sequence[SsTableReader], schema: TableSchema, columns: Sequence[str]) -> pa.Table | None:
    """The newest rows of SSTables that a roll-up has and that store the same columns, one after the other: `columns` and
    `_tombstone`. None if it does not have all of them."""
    first, parts = readers[0], []
    for reader in readers:
        rolled = reader.stored.rolled_rows()
        if rolled is None or reader.stored.columns is not first.stored.columns:
            return None
        parts.append(rolled[0])
    return first.conformed(pa.concat_tables(parts).combine_chunks(), columns, schema)
