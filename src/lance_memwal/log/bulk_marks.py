"""Whether the generation that a mark in the log announces was published.

Owns `is_published`. A bulk write creates a mark at the tip and then commits the manifest with the cursor at the mark (RFC
0003). Invariants:

1. Above the cursor a mark is not decided, and nothing above it is part of the log yet. A higher epoch in the manifest makes
   it void: whoever claimed it went on without it.
2. At or below the cursor it counts if its directory is listed, and is void if its generation is listed under another one.
3. If its generation is no longer listed (it was compacted), it counts unless the next entry above it, up to the cursor,
   that has rows or is such a mark has the same generation: then somebody else took the number.
"""

from __future__ import annotations

from collections.abc import Iterable

from lance_memwal.types import ShardManifest, WalEntry


def is_published(mark: WalEntry, manifest: ShardManifest, above: Iterable[WalEntry]) -> bool | None:
    """Whether the rows of `mark` are in the table; None if that is not decided yet.

    `manifest` was read after the mark. `above` are the entries after it, in order; they are asked for only if only they can
    tell.
    """
    bulk = mark.bulk
    if bulk is None:
        return False
    cursor = manifest.replay_after_wal_entry_position
    if mark.position > cursor:
        return False if manifest.writer_epoch > mark.writer_epoch else None
    listed = {sstable.generation: sstable.path for sstable in manifest.sstables}
    if bulk.path in listed.values():
        return True
    if bulk.generation in listed:
        return False
    return _next_generation(above, cursor) != bulk.generation


def _next_generation(above: Iterable[WalEntry], cursor: int) -> int | None:
    for entry in above:
        if entry.position > cursor:
            return None
        if entry.bulk is not None:
            return entry.bulk.generation
        if entry.batches and entry.generation is not None:
            return entry.generation
    return None
