"""One key from the memtables of this process: the shortest way to a row that was just written.

Owns `get_from_memory`. Invariants:

1. A memtable answers only if its writer is one of this table, its epoch is that of the newest manifest and its generation
   is not flushed yet; then nothing on storage can be newer.
2. "Not decided" is an answer too: the caller then reads all tiers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from lance_memwal.memtable.live import LiveShard
from lance_memwal.memtable.memtable import InMemoryMemTableRef
from lance_memwal.rows.schema import TableSchema
from lance_memwal.types import TOMBSTONE, ShardManifest

__all__ = ["UNDECIDED", "Undecided", "get_from_memory"]


class Undecided:
    """The answer of a memory that does not know."""


UNDECIDED: Final = Undecided()


def get_from_memory(
    shards: Iterable[LiveShard],
    table_id: str | None,
    schema: TableSchema,
    key: Any,
    columns: Sequence[str] | None,
    newest_manifest: Callable[[str], ShardManifest | None],
) -> dict[str, Any] | Undecided | None:
    """The row of `key`, None if it was deleted, or `UNDECIDED` if no memtable of `shards` has it."""
    if not _is_plain(key, schema):
        return UNDECIDED
    for shard in shards:
        memtables = shard.capture()
        if memtables is None or not memtables.is_of(table_id):
            continue
        for ref in reversed(memtables.ascending):
            row = ref.find_one(key)
            if row < 0:
                continue
            manifest = newest_manifest(shard.shard_id)
            if manifest is None or manifest.writer_epoch != memtables.epoch:
                return UNDECIDED
            if ref.generation < manifest.current_generation or ref.memtable.schema != schema:
                return UNDECIDED
            return _row(ref, row, columns)
    return UNDECIDED


def _is_plain(key: Any, schema: TableSchema) -> bool:
    """Whether `key` is exactly of the Python type that memtable keys have."""
    return (tuple(map(type, key)) if isinstance(key, tuple) else (type(key),)) == schema.key_classes


def _row(ref: InMemoryMemTableRef, row: int, columns: Sequence[str] | None) -> dict[str, Any] | None:
    arrays, at = ref.locate(row)
    if arrays[TOMBSTONE][at].as_py():
        return None
    names = ref.schema.names if columns is None else columns
    return {name: arrays[name][at].as_py() for name in names}
