"""Whether somebody writes a shard, so that a claim would stop it.

Owns `why_kept`. Invariant: a writer of this process is known to live, however long it was silent. Of others only what they bring
is known: whoever brought nothing for a while is taken for gone (`lance_memwal.log.epochs`).
"""

from __future__ import annotations

from lance_memwal.memtable import live
from lance_memwal.store.location import Location
from lance_memwal.types import ShardManifest


def lives_here(location: Location, manifest: ShardManifest) -> bool:
    """Whether the owner of the shard is a writer of this process."""
    return live.is_owned(location.key, manifest.shard_id, manifest.writer_epoch)


def why_kept(location: Location, manifest: ShardManifest, *, silent_seconds: float, idle_seconds: float) -> str | None:
    """Why somebody seems to write the shard; None if a claim would stop nobody. `silent_seconds`: see `EpochLook`."""
    if lives_here(location, manifest):
        return "a writer of this process owns the shard"
    if silent_seconds < idle_seconds:
        return f"what came last from its writer is {silent_seconds:.0f} seconds old, less than {idle_seconds:g}"
    return None
