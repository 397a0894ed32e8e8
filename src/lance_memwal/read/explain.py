"""A read, told to a person.

Owns the text of `Scan.explain`. Invariant: it says what the snapshot says, and reads nothing.
"""

from __future__ import annotations

from lance_memwal.read.memory import indexes_used
from lance_memwal.read.merge import Projection
from lance_memwal.read.snapshot import ShardView, Snapshot
from lance_memwal.rows.filter import RowFilter

__all__ = ["explain"]


def explain(
    snapshot: Snapshot, projection: Projection, row_filter: RowFilter | None, limit: int | None, offset: int
) -> str:
    """Sources, newest tier first, with what was pruned."""
    key = ", ".join(snapshot.schema.primary_key)
    lines = [f"scan of {snapshot.location.describe()}"]
    lines.append(f"  columns: {', '.join(projection.columns) or '(none)'}")
    if row_filter is not None:
        lines.append(f"  filter:  {row_filter} (after recency)")
    if limit is not None or offset:
        lines.append(f"  limit:   {limit if limit is not None else 'none'}, offset {offset}")
    lines.append(f"  merge:   {f'newest row per ({key}), deletes hidden' if key else 'append-only, every row counts'}")
    for view in snapshot.shards:
        lines += _shard(view, row_filter)
    for shard_id in snapshot.pruned_shards:
        lines.append(f"  shard {shard_id}: pruned, the filter cannot match there")
    if snapshot.base_table is not None:
        rows = snapshot.base_table.dataset.count_rows()
        lines.append(f"  base table version {snapshot.base_table.version}: {rows} rows")
    return "\n".join(lines)


def _shard(view: ShardView, row_filter: RowFilter | None) -> list[str]:
    lines = [f"  shard {view.shard_id} (epoch {view.manifest.writer_epoch}, manifest {view.manifest.version})"]
    tier = "WAL tail" if view.from_tail else "memtable"
    for ref in reversed(view.memory):
        used = indexes_used(ref, row_filter)
        how = f", BTree index {', '.join(used)}" if used else ""
        lines.append(f"    {tier} generation {ref.generation}: {ref.num_rows} rows{how}")
    for sstable in reversed(view.sstables):
        rows = "?" if sstable.physical_rows is None else sstable.physical_rows
        lines.append(f"    SSTable generation {sstable.generation}: {rows} rows ({sstable.path})")
    if view.skipped_generations:
        lines.append(f"    {view.skipped_generations} compacted generations skipped")
    if len(lines) == 1:
        lines.append("    nothing above the base table")
    return lines
