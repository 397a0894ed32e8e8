"""What kind of epoch a shard is in, and whether anybody is at work there (RFC 0017).

Owns `look_at_epoch` and `silent_seconds`. Invariants:

1. The newest entry of the manifest's epoch decides: with `joint` in its footer everybody may append who reads the whole log
   first. Without such an entry somebody claims right now.
2. An epoch that is joint stays joint. So a look that is old by the time that it is used errs to one side only: a sink waits.
3. Silence is measured by the times of objects: the newest entry and the newest manifest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.errors import ObjectNotFoundError
from lance_memwal.log.entry import decode_entry
from lance_memwal.log.reading import list_positions, own_end, read_tail
from lance_memwal.log.tail import unflushed
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.types import ShardManifest, WalEntry

IDLE_SECONDS = 60.0
"""Nobody seems to write a shard in which nothing happened for so long."""


class EpochKind(Enum):
    """Who may append: everybody, one owner of ours, or one of another implementation."""

    JOINT = auto()
    EXCLUSIVE = auto()
    FOREIGN = auto()


@dataclass(frozen=True, slots=True)
class EpochLook:
    """The epoch of a manifest as it was looked at. `silent_seconds`: for how long nothing came from its owner.

    `is_flushed`: no row waits in the log; it is known of a `FOREIGN` epoch only, which leaves no mark when it ends.
    """

    kind: EpochKind
    silent_seconds: float = 0.0
    is_flushed: bool = False


def look_at_epoch(
    location: Location, manifest: ShardManifest, *, tag: str | None, clock: Clock = SYSTEM_CLOCK
) -> EpochLook:
    """The kind of the manifest's epoch, and for how long its owner was silent."""
    positions = own_end(location, manifest.shard_id, list_positions(location, manifest.shard_id), tag)
    newest = _entry_at(location, manifest.shard_id, positions[-1]) if positions else None
    is_own = newest is not None and newest.writer_epoch == manifest.writer_epoch
    if is_own and newest is not None and newest.footer is not None and newest.footer.joint:
        return EpochLook(EpochKind.JOINT)
    silent = silent_seconds(location, manifest, positions[-1:], clock)
    if not is_own or newest is None or newest.footer is not None:
        return EpochLook(EpochKind.EXCLUSIVE, silent)
    entries = read_tail(location, manifest, positions[-1] + 1, tag=tag)
    return EpochLook(EpochKind.FOREIGN, silent, not any(unflushed(entries, manifest.current_generation)))


def _entry_at(location: Location, shard_id: str, position: int) -> WalEntry | None:
    path = paths.wal_entry_path(shard_id, position)
    try:
        return decode_entry(location.store.get(path), position, path=path)
    except ObjectNotFoundError:  # collected, so that there is a newer one
        return None


def silent_seconds(
    location: Location, manifest: ShardManifest, positions: Sequence[int], clock: Clock = SYSTEM_CLOCK
) -> float:
    """For how long nothing came to the shard: neither this manifest, nor the entries at these positions."""
    shard_id = manifest.shard_id
    seen = [paths.manifest_path(shard_id, manifest.version)]
    seen += [paths.wal_entry_path(shard_id, position) for position in positions]
    try:
        newest_ms = max(location.store.head(path).modified_ms for path in seen)
    except ObjectNotFoundError:  # there is a newer one, or it was collected: somebody is at work here
        return 0.0
    return max(0.0, (clock.now_ms() - newest_ms) / 1000)
