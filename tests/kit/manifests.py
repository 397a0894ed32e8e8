"""What is odd about a shard manifest by itself."""

from __future__ import annotations

from lance_memwal.types import ShardManifest


def manifest_faults(manifest: ShardManifest) -> list[str]:
    """What is odd about `manifest` by itself: legal where another implementation wrote it, never written by us."""
    faults = []
    generations = [sstable.generation for sstable in manifest.sstables]
    if generations != sorted(generations):
        faults.append("SSTables are not in ascending order")
    if generations and max(generations) - min(generations) + 1 != len(set(generations)):
        faults.append("there is a gap between the listed generations")
    if len(set(generations)) != len(generations):
        faults.append("a generation is listed twice")
    if generations and max(generations) >= manifest.current_generation:
        faults.append(f"generation {max(generations)} is listed, but the current one is {manifest.current_generation}")
    if manifest.wal_entry_position_last_seen < manifest.replay_after_wal_entry_position:
        faults.append("the last-seen position is below the replay cursor")
    return faults
