"""Moments of a table: the tiers that a snapshot names.

Owns `tiers_of`.
"""

from __future__ import annotations

from lance_memwal.read.rebuilt import rebuild
from lance_memwal.read.snapshot import Snapshot
from lance_memwal.read.tiers import Tiers
from lance_memwal.store.location import Location
from lance_memwal.upkeep.pins import is_pinned

__all__ = ["tiers_of"]


def tiers_of(location: Location, snapshot: Snapshot) -> Tiers:
    """What the table at `location` was when `snapshot` was taken; `CollectedError` if a part of it was removed."""
    return rebuild(location, snapshot, is_pinned)
