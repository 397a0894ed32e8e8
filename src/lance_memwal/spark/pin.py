"""One snapshot of a table per load: pinned on the driver, rebuilt once in every process that runs its tasks.

Owns `pin_table` and `rebuild`; what a pin is, and what it keeps, is `lance_memwal.read.snapshot`'s.
"""

from __future__ import annotations

from collections import deque

from lance_memwal.lance.base import NewestBase
from lance_memwal.read.reader import Reader
from lance_memwal.read.snapshot import Pin, Snapshot
from lance_memwal.spark.options import Options
from lance_memwal.store.location import resolve
from lance_memwal.table import open_table

__all__ = ["pin_table", "rebuild"]

_kept: deque[tuple[str, Pin, Snapshot]] = deque(maxlen=2)


def pin_table(options: Options) -> Pin:
    """The table as it is now."""
    table = open_table(options.path, storage_options=options.storage_options)
    return Reader(NewestBase(table.base)).pin(options.filter, consistency=options.consistency)


def rebuild(options: Options, pin: Pin) -> Snapshot:
    """The snapshot that was pinned; remembered, since one process runs many tasks of one read."""
    for path, known, snapshot in list(_kept):
        if path == options.path and known == pin:
            return snapshot
    snapshot = pin.rebuild(resolve(options.path, options.storage_options))
    _kept.append((options.path, pin, snapshot))
    return snapshot
