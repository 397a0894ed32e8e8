"""Following the log of a shard as it grows.

Owns `WalTailer`, the reading end for everybody. Invariants:

1. It writes nothing, claims nothing and fences nobody.
2. A missing position is the tip only if a listing shows nothing above it, it is missing still, and the cursor, read after
   that, is below it. With something above it, it is a hole.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from threading import Event

from lance_memwal.arguments import check_callable, check_number, check_seconds
from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.errors import CollectedError, CorruptDataError, ObjectNotFoundError, TableReplacedError
from lance_memwal.lance.base import BaseTable
from lance_memwal.log.blob_targets import with_blobs
from lance_memwal.log.entry import EntryDecoder
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.reading import list_positions, own_end
from lance_memwal.store import paths
from lance_memwal.store.location import Location, resolve
from lance_memwal.types import WalEntry, check_shard_id

_WAITS_PER_LOOK = 20


class WalTailer:
    """Reads a shard's log as it grows, and writes nothing: it claims nothing and fences nobody."""

    def __init__(
        self,
        uri: str | Location,
        shard_id: str | uuid.UUID,
        *,
        storage_options: Mapping[str, str] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.location = resolve(uri, storage_options)
        self.shard_id = check_shard_id(shard_id)
        self._clock = clock
        self._manifests = ShardManifestStore(self.location, self.shard_id, clock=clock)
        self._decoder = EntryDecoder()
        self._base: BaseTable | None = None

    def __repr__(self) -> str:
        return f"WalTailer({self.location.describe()!r}, shard_id={self.shard_id!r})"

    def first_position(self) -> int:
        """Where the contiguous run that ends at the tip starts; the next position if the log is empty."""
        positions = list_positions(self.location, self.shard_id)
        first = self._cursor() + 1
        for position in reversed(positions):
            if position < first - 1:  # collection passed here; above the cursor a hole is no boundary but an error
                break
            first = min(first, position)
        return first

    def next_position(self) -> int:
        """The position that the next entry will get."""
        positions = self._own_end(list_positions(self.location, self.shard_id))
        return max([self._cursor(), *positions[-1:]]) + 1

    def read_entry(self, position: int) -> WalEntry | None:
        """The entry at `position`, or None if the log ends before it.

        `CollectedError` if collection passed the position, `CorruptDataError` if the entry is damaged or missing
        although the log goes on above it, `UnsupportedFormatError` if it is whole but not understood.
        """
        check_number("position", position, least=1)
        entry = self._peek(position)
        if entry is not None:
            return entry
        above = [p for p in list_positions(self.location, self.shard_id) if p > position]
        entry = self._peek(position)  # it may have come since the first look; if others lie above it, it must have
        if entry is not None:
            return entry
        cursor = self._cursor()  # read last: what was collected before the second look is covered by this one
        if position <= cursor:
            raise CollectedError(
                f"WAL position {position} of shard {self.shard_id} was collected (cursor {cursor}); "
                "start from first_position()"
            )
        if not self._own_end(above):
            return None
        raise CorruptDataError(
            "WAL entry is missing although the log goes on above it",
            path=paths.wal_entry_path(self.shard_id, position),
            position=position,
        )

    def follow(
        self,
        start: int | None = None,
        poll_seconds: float = 0.05,
        stop: Event | Callable[[], bool] | None = None,
    ) -> Iterator[WalEntry]:
        """Yield entries in order as they come, from `start` (default: `first_position()`) until `stop` says so."""
        position = self.first_position() if start is None else check_number("start", start, least=1)
        check_seconds("poll_seconds", poll_seconds)
        if not isinstance(stop, Event):
            check_callable("stop", stop)
        stopped: Callable[[], bool] = stop.is_set if isinstance(stop, Event) else stop or bool
        waits = 0
        while not stopped():
            # Whether a missing entry is the tip takes several calls to say; while waiting there, one is enough to see it.
            entry = self._peek(position) if waits % _WAITS_PER_LOOK else self.read_entry(position)
            if entry is not None:
                yield entry
                position, waits = position + 1, 0
                continue
            waits += 1
            if isinstance(stop, Event):
                stop.wait(poll_seconds)
            else:
                self._clock.sleep(poll_seconds)

    def _peek(self, position: int) -> WalEntry | None:
        path = paths.wal_entry_path(self.shard_id, position)
        try:
            data = self.location.store.get(path)
        except ObjectNotFoundError:
            return None
        entry = self._decoder.decode(data, position, path=path)
        tagged = entry.footer is not None and entry.footer.table is not None
        if tagged and not entry.is_of(self._tag()):
            return self._foreign(entry)
        return with_blobs(self.location, self.shard_id, entry)

    def _foreign(self, entry: WalEntry) -> WalEntry:
        """An entry of another table as it counts here."""
        self._check_table()
        return entry.as_mark()

    def _own_end(self, positions: list[int]) -> list[int]:
        """`positions` up to the newest entry of our table."""
        if not positions:
            return positions
        own = own_end(self.location, self.shard_id, positions, self._tag())
        if len(own) < len(positions):
            self._check_table()
        return own

    def _tag(self) -> str | None:
        """The tag of the table whose log is read; None where there is no base table, or it has none yet."""
        if self._base is None:
            self._base = BaseTable.open(self.location)
        return None if self._base is None else self._base.tag

    def _check_table(self) -> None:
        """There are entries of two tables: say so if ours is the one that is gone."""
        newest = BaseTable.open(self.location)
        if newest is None or newest.tag != self._tag():
            raise TableReplacedError(
                f"the table at {self.location.describe()} was made anew while its log was read: open the log again"
            )

    def _cursor(self) -> int:
        latest = self._manifests.read_latest()
        return 0 if latest is None else latest.replay_after_wal_entry_position


def entry_at(tailer: WalTailer, position: int) -> WalEntry | None:
    """Return the entry at `position` if it is there now; None does not say why it is not."""
    return tailer._peek(position)
