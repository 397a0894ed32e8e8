"""Entries of a log in short, and what each manifest of a shard changed.

It reads only, and claims nothing. Objects that GC deleted are left out; a damaged or unsupported entry is listed as such.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any

from lance_memwal.clock import in_order
from lance_memwal.errors import CollectedError, CorruptDataError, ObjectNotFoundError, UnsupportedFormatError
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.tailer import WalTailer
from lance_memwal.store.location import Location
from lance_memwal.types import ShardManifest, WalEntry

_READ_AT_ONCE = 8


# ---------------------------------------------------------------------------------------------------------- the log


@dataclass(frozen=True, slots=True)
class EntryInfo:
    """One entry of a log. `kind` is "rows", "mark", "sentinel" (the first of an epoch), "damaged" or "not understood"."""

    position: int
    kind: str
    epoch: int | None = None
    generation: int | None = None
    batches: int = 0
    rows: int = 0
    bytes: int = 0
    transaction: str | None = None
    error: str | None = None


def entry_info(entry: WalEntry) -> EntryInfo:
    """An entry in short."""
    return EntryInfo(
        position=entry.position,
        kind="sentinel" if entry.is_sentinel else "rows" if entry.batches else "mark",
        epoch=entry.writer_epoch,
        generation=entry.generation,
        batches=len(entry.batches),
        rows=entry.num_rows,
        bytes=entry.size_bytes,
        transaction=None if entry.txn is None else f"{entry.txn.app}:{entry.txn.version}",
    )


def list_entries(location: Location, shard_id: str, positions: Iterable[int]) -> Iterator[EntryInfo]:
    """The entries at these positions; those that are gone meanwhile are left out."""
    tailer = WalTailer(location, shard_id)

    def read(position: int) -> EntryInfo | None:
        try:
            entry = tailer.read_entry(position)
        except CollectedError:
            return None
        except (CorruptDataError, UnsupportedFormatError) as error:
            kind = "damaged" if isinstance(error, CorruptDataError) else "not understood"
            return EntryInfo(position, kind, error=str(error))
        return None if entry is None else entry_info(entry)

    return (found for found in map(read, positions) if found is not None)


# ---------------------------------------------------------------------------------------------------------- manifests


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two manifests of a shard: of a field, or of a generation that came or went."""

    what: str
    before: Any = None
    after: Any = None


def read_manifests(location: Location, shard_id: str, versions: Iterable[int]) -> list[ShardManifest]:
    """These versions, ascending; those that are gone meanwhile are left out."""
    manifests = ShardManifestStore(location, shard_id)

    def read(version: int) -> ShardManifest | None:
        try:
            return manifests.read_version(version)
        except ObjectNotFoundError:
            return None

    found = in_order(read, sorted(versions), location.at_once(_READ_AT_ONCE), "memwal-history")
    return [manifest for manifest in found if manifest is not None]


def manifest_changes(before: ShardManifest | None, after: ShardManifest) -> list[Change]:
    """What a manifest changed; `before` is None for the first one."""
    skipped = {"version", "shard_id", "sstables", "unknown", "shard_field_unknown"}
    old: Any = before if before is not None else ShardManifest(0, after.shard_id, current_generation=1)
    names = [item.name for item in fields(ShardManifest) if item.compare and item.name not in skipped]
    found = [Change(n, getattr(old, n), getattr(after, n)) for n in names if getattr(old, n) != getattr(after, n)]
    gone, come = set(old.sstables) - set(after.sstables), set(after.sstables) - set(old.sstables)
    found += [Change("sstable", before=s) for s in sorted(gone, key=lambda s: s.generation)]
    return found + [Change("sstable", after=s) for s in sorted(come, key=lambda s: s.generation)]
