"""One snapshot of a table per load: taken on the driver, rebuilt once in every process that runs its tasks.

Owns `Pin`, `pin_table` and `rebuild`; what a snapshot is, and what it keeps, is `lance_memwal.read.snapshot`'s.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from lance_memwal.feed.snapshots import snapshot_of, tiers_of
from lance_memwal.lance.base import NewestBase
from lance_memwal.read.reader import Reader
from lance_memwal.read.rebuilt import base_of
from lance_memwal.read.snapshot import Snapshot
from lance_memwal.read.tiers import Tiers
from lance_memwal.rows.schema import TableSchema
from lance_memwal.spark.options import Options
from lance_memwal.store.location import resolve
from lance_memwal.table import open_table

__all__ = ["Pin", "pin_table", "rebuild"]

_kept: deque[tuple[str, Snapshot, Tiers]] = deque(maxlen=2)


@dataclass(frozen=True, slots=True)
class Pin:
    """A snapshot, and the columns that readers see of it: Spark asks for them before anything is read."""

    snapshot: Snapshot
    schema: TableSchema


def pin_table(options: Options) -> Pin:
    """The table as it is now, or was at the moment that the option `asOf` names."""
    table = open_table(options.path, storage_options=options.storage_options)
    if options.as_of is not None:
        snapshot = snapshot_of(table.base, options.as_of)
    else:
        snapshot = Reader(NewestBase(table.base)).snapshot(options.filter, consistency=options.consistency)
    return Pin(snapshot, base_of(table.location, snapshot).columns.shown)


def rebuild(options: Options, pin: Pin) -> Tiers:
    """The tiers of a pin; remembered, since one process runs many tasks of one read."""
    location = resolve(options.path, options.storage_options)
    for key, known, tiers in list(_kept):
        if key == location.key and known == pin.snapshot:
            return tiers
    tiers = tiers_of(location, pin.snapshot)
    _kept.append((location.key, pin.snapshot, tiers))
    return tiers
