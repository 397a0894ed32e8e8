"""One snapshot of a table per load: taken on the driver, read in parts by tasks.

Owns `Pin`, and what of it a process reads: `outline_of` on the driver, `base_of_pin` and `shards_of_pin` in tasks. What a
snapshot is, and what it keeps, is `lance_memwal.read.snapshot`'s. Invariants:

1. A task loads the tails of its own shards and no others; of all other shards it gets keys, never rows.
2. A process remembers base versions with their keys of two loads, and no rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, replace

from lance_memwal.feed.time_travel import snapshot_of, tiers_of
from lance_memwal.lance.base import NewestBase
from lance_memwal.read.outline import MOST_KEY_BYTES, Hiding, Outline, outline
from lance_memwal.read.reader import Reader
from lance_memwal.read.rebuilt import base_of
from lance_memwal.read.snapshot import Snapshot, SnapshotShard
from lance_memwal.read.tiers import Tiers
from lance_memwal.rows.keys import KeySet
from lance_memwal.rows.schema import TableSchema
from lance_memwal.spark.options import Options
from lance_memwal.store.location import resolve
from lance_memwal.table import newest_base, open_table
from lance_memwal.upkeep.pins import is_pinned

_kept: deque[tuple[str, Snapshot, Tiers, KeySet | None]] = deque(maxlen=2)


@dataclass(frozen=True, slots=True)
class Pin:
    """A snapshot, and the columns that readers see of it: Spark asks for them before anything is read."""

    snapshot: Snapshot
    schema: TableSchema


def pin_table(options: Options) -> Pin:
    """The table as it is now, or was at the moment that the option `asOf` names."""
    table = open_table(options.path, storage_options=options.storage_options)
    if options.as_of is not None:
        snapshot = snapshot_of(newest_base(table), options.as_of)
    else:
        snapshot = Reader(NewestBase(newest_base(table))).snapshot(options.filter, consistency=options.consistency)
    return Pin(snapshot, base_of(table.location, snapshot).columns.shown)


def outline_of(options: Options, pin: Pin, *, counts: bool = False, most_key_bytes: int = MOST_KEY_BYTES) -> Outline:
    """What the snapshot has above its base table, with so many bytes of keys; `counts`: to the row."""
    location = resolve(options.path, options.storage_options)
    return outline(location, pin.snapshot, is_pinned, counts=counts, most_key_bytes=most_key_bytes)


def base_of_pin(options: Options, pin: Pin, hiding: Hiding) -> tuple[Tiers, KeySet | None]:
    """The base version of a pin, without any shard, and the keys that hide rows of it."""
    location = resolve(options.path, options.storage_options)
    for key, known, tiers, keys in list(_kept):
        if key == location.key and known == pin.snapshot:
            return tiers, keys
    base = base_of(location, pin.snapshot)
    tiers, keys = Tiers.above_base(base, ()), hiding.keys(base, is_pinned)
    _kept.append((location.key, pin.snapshot, tiers, keys))
    return tiers, keys


def shards_of_pin(options: Options, pin: Pin, shards: Collection[SnapshotShard]) -> Tiers:
    """The tiers of some shards of a pin."""
    some = replace(pin.snapshot, shards=tuple(shards))
    return tiers_of(resolve(options.path, options.storage_options), some)
