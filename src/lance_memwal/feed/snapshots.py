"""Moments of a table: from what a caller names to the snapshot that is meant, and to its tiers.

Owns `snapshot_of`, `tiers_of` and `diff_moments`.
"""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa

from lance_memwal.errors import CollectedError, InvalidInputError
from lance_memwal.feed.checkpoints import checkpoint_of
from lance_memwal.feed.diff import diff_tiers
from lance_memwal.feed.moments import Moment, milliseconds, parse_moment
from lance_memwal.feed.snapshot_time import snapshot_at
from lance_memwal.lance.base import BaseTable
from lance_memwal.read.rebuilt import rebuild
from lance_memwal.read.snapshot import Snapshot
from lance_memwal.read.tiers import Tiers, missing_is_collected
from lance_memwal.store.location import Location
from lance_memwal.upkeep.pins import is_pinned

__all__ = ["diff_moments", "snapshot_of", "tiers_of"]


def snapshot_of(base: BaseTable, moment: Moment) -> Snapshot:
    """The snapshot that a caller means; `base` is the newest version of the table."""
    named = parse_moment(moment)
    if isinstance(named, Snapshot):
        return named
    if isinstance(named, datetime):
        return snapshot_at(base, milliseconds(named))
    if isinstance(named, int):
        return _of_version(base, named)
    return checkpoint_of(base, named).snapshot


def tiers_of(location: Location, snapshot: Snapshot) -> Tiers:
    """What the table at `location` was when `snapshot` was taken; `CollectedError` if a part of it was removed."""
    return rebuild(location, snapshot, is_pinned)


def diff_moments(base: BaseTable, a: Moment, b: Moment, *, with_before: bool) -> pa.Table:
    """What changed from `a` to `b`, net; `base` is the newest version of the table."""
    before, after = snapshot_of(base, a), snapshot_of(base, b)
    with missing_is_collected("compare moments that are still there"):
        return diff_tiers(tiers_of(base.location, before), tiers_of(base.location, after), with_before=with_before)


def _of_version(base: BaseTable, version: int) -> Snapshot:
    """What plain Lance shows of a version."""
    if not 1 <= version <= base.version:
        raise InvalidInputError(f"the base table has no version {version}; the newest is {base.version}")
    then = BaseTable.find(base.location, version)
    if then is None:
        raise CollectedError(f"version {version} of the base table was removed; choose a later one")
    return Snapshot(then.tag, version)
