"""An earlier state of a table: what `Table.at` returns.

Owns `TableView`. Invariant: it reads one snapshot, and writes nothing.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pyarrow as pa

from lance_memwal.errors import InvalidInputError
from lance_memwal.feed.time_travel import tiers_of
from lance_memwal.read.lookup import LookupKeys
from lance_memwal.read.readable import WholeTable
from lance_memwal.read.scan import Pickled, Read, Scan
from lance_memwal.read.snapshot import Snapshot
from lance_memwal.read.tiers import Tiers
from lance_memwal.store.location import Location


def scan_at(location: Location, snapshot: Snapshot, read: Read) -> Scan:
    """A scan that was pickled, in the process that it arrives in."""
    return TableView(location, snapshot).scan(**{field.name: getattr(read, field.name) for field in fields(read)})


class TableView(WholeTable):
    """A table as it was at one snapshot: reads give what they gave then. Threads may share it.

    `CollectedError` if GC removed a part of the snapshot.
    """

    def __init__(self, location: Location, snapshot: Snapshot) -> None:
        """Use `Table.at`."""
        self.location = location
        self.snapshot = snapshot
        self._tiers = replace(tiers_of(location, snapshot), is_fixed=True)

    def __repr__(self) -> str:
        return f"TableView({self.location.describe()!r}, {str(self.snapshot)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickled view is the location of the table and the snapshot."""
        return TableView, (self.location, self.snapshot)

    @property
    def schema(self) -> pa.Schema:
        """The columns that the table had."""
        return self._tiers.base.schema

    @property
    def primary_key(self) -> list[str]:
        """The key columns in key order; empty for an append-only table."""
        return list(self._tiers.schema.primary_key)

    def _capture(self, read: Read, keys: LookupKeys | None = None) -> Tiers:
        if read.in_memory is not None:
            raise InvalidInputError("in_memory is for reads of the newest state, not of a view")
        tiers = self._tiers
        if keys is not None:
            keys.columns(tiers.base.columns)
        if read.shards is not None:
            tiers = replace(tiers, shards=tuple(view for view in tiers.shards if view.shard_id in read.shards))
        if read.consistency == "flushed":
            tiers = replace(tiers, shards=tuple(replace(view, memory=()) for view in tiers.shards))
        return tiers

    def _pickled(self) -> Pickled | None:
        return lambda read: (scan_at, (self.location, self.snapshot, read))
