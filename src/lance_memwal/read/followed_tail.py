"""The unflushed rows of a shard that another process writes: read once as memtables, and followed.

Owns `FollowedTail`. Invariants:

1. Entries after the cursor never change and are never collected, so what was read of them stays right as long as epoch,
   cursor, current generation, table and columns are the same. If one of them is another one, the tail is read anew; so it is
   if the manifest is another object: a table that was copied back to its place has the names and numbers of this one.
2. In one epoch entries are created in order, one after the other. So whoever finds the next one missing has read all that
   was acknowledged before. That nothing lies above it, which would be damage, is looked at again now and then.
3. A tail of which an entry could not be taken in whole is not followed any further.
4. Whether the manifest is still the newest afterwards is the matter of whoever asks. Many entries are not read for one
   that is not the newest before: most of them may be flushed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from lance_memwal.log.reading import read_next, read_tail
from lance_memwal.memtable.memtable import InMemoryMemTableRef
from lance_memwal.process.cache import SMALL_BYTES
from lance_memwal.read.tail_rows import TailRows, tail_memtables
from lance_memwal.rows.schema import TableSchema
from lance_memwal.store.location import Location
from lance_memwal.store.port import ObjectMeta
from lance_memwal.types import ShardManifest, WalEntry

_FOLLOWS_PER_LOOK = 64
_ONE_BY_ONE = 8  # new entries; more are listed, and read several at once


class FollowedTail:
    """The tail of one shard as far as it was read. Threads may share it."""

    def __init__(
        self, location: Location, manifest: ShardManifest, seen: ObjectMeta | None, schema: TableSchema, tag: str | None
    ) -> None:
        """`seen` is the object of the manifest; None if it could not be looked at."""
        self.manifest = manifest
        self.seen = seen
        self._location = location
        self._schema = schema
        self._tag = tag
        self._rows = TailRows(location, manifest, schema, tag)
        self._follows = 0
        self._is_whole = True
        self._lock = threading.RLock()

    @property
    def size_bytes(self) -> int:
        """Resident bytes."""
        return SMALL_BYTES + self._rows.size_bytes

    def is_of(self, manifest: ShardManifest, seen: ObjectMeta | None, schema: TableSchema, tag: str | None) -> bool:
        """Whether what was read is the beginning of the tail of `manifest`, in these columns of this table."""
        same = seen is not None and self.seen == seen and _stands_at(self.manifest) == _stands_at(manifest)
        return self._is_whole and same and self._tag == tag and schema.is_like(self._schema)

    def follow(self, manifest: ShardManifest, is_newest: Callable[[], bool]) -> tuple[InMemoryMemTableRef, ...]:
        """All rows of the tail of `manifest` now; only what came since the last call is read.

        `is_newest` is asked before many entries are read; where it says that the manifest is not, rows are missing.
        """
        with self._lock:
            whole, self._is_whole = self._is_whole, False
            if not whole:
                return tail_memtables(self._location, manifest, None, self._schema, self._tag)
            self._rows.take(self._new_entries(manifest, is_newest))
            self._follows += 1
            self.manifest, self._is_whole = manifest, True
            return self._rows.captured(manifest)

    def _new_entries(self, manifest: ShardManifest, is_newest: Callable[[], bool]) -> Iterator[WalEntry]:
        start = self._rows.next_position
        if self._follows % _FOLLOWS_PER_LOOK:
            yield from read_next(self._location, manifest.shard_id, start, _ONE_BY_ONE, tag=self._tag)
            if self._rows.next_position < start + _ONE_BY_ONE:
                return
        if is_newest():
            yield from read_tail(self._location, manifest, tag=self._tag, start=self._rows.next_position)


def _stands_at(manifest: ShardManifest) -> tuple[int, int, int]:
    """What decides how a tail is read."""
    return manifest.writer_epoch, manifest.current_generation, manifest.replay_after_wal_entry_position
