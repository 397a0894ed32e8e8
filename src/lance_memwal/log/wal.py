"""The log of a shard: claiming it, appending to it, reading it.

Owns `ShardLog` (the claimed end of a log, for writers) and `WalTailer` (the reading end, for everybody). Invariants:

1. `open_log` claims, places a sentinel above everything that is in the log (epoch > 1), and looks at the manifest again:
   whoever slept in between finds a higher epoch and stops. The next position is fixed from then on, never discovered.
2. The bytes of an entry are fixed per position at the first attempt; a retry sends exactly those. An entry that is found
   to be there already is made durable before it counts: the attempt that wrote it may have failed at just that.
3. "Already exists" is answered by reading: our epoch and our bytes are success; our epoch with other bytes poisons; a higher
   epoch fences; a lower-epoch sentinel moves us on; a lower-epoch entry with rows moves on a sentinel only.
4. A missing position is the tip only if a listing shows nothing above it, it is missing still, and the cursor, read after
   that, is below it. With something above it, it is a hole.
5. Tailers and readers never write.
6. A forked child appends nothing: two processes must not share an epoch.
7. Only a claim makes directories. An entry whose directory is gone is not written: the table is looked at, which is also
   done now and then while entries are written, and a log whose table is another one says so.
8. An entry of another table (RFC 0004) takes its position and says nothing: it is skipped whatever its epoch, fences
   nobody, and what lies above a missing position counts only if it is ours.
9. The map of a sentinel leaves a bulk mark out only if nobody can publish it any more: the manifest, read after the log, still
   has our epoch. A claimer that slept must not make the shard forget what its successor publishes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from threading import Event
from types import MappingProxyType
from typing import TypeAlias, TypeVar

from lance_memwal.arguments import check_callable, check_number, check_seconds
from lance_memwal.clock import SYSTEM_CLOCK, BackOff, Clock, in_order
from lance_memwal.config import WriterConfig
from lance_memwal.crash_points import reach
from lance_memwal.errors import (
    ClosedError,
    CollectedError,
    ConflictError,
    CorruptDataError,
    DirectoryNotFoundError,
    FencedError,
    MemWalError,
    ObjectNotFoundError,
    TableReplacedError,
    UnavailableError,
    UnsupportedFormatError,
    WriterPoisonedError,
)
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.identity import TableWatch
from lance_memwal.lance.restored import check_not_older
from lance_memwal.log.blob_targets import with_blobs
from lance_memwal.log.entry import EntryDecoder, decode_entry, decode_footer, encode_sentinel
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.transactions import ShardTime, TransactionMap, is_whole, maps_beside, newest_of
from lance_memwal.log.understood import KnownColumns, refuse_unknown
from lance_memwal.process.telemetry import active
from lance_memwal.store import paths
from lance_memwal.store.location import Location, resolve
from lance_memwal.store.own import put_or_find
from lance_memwal.types import EntryFooter, ShardManifest, WalEntry, check_shard_id

__all__ = [
    "OpenedLog",
    "PersistPolicy",
    "ShardLog",
    "WalTailer",
    "list_positions",
    "met_entry",
    "own_end",
    "open_log",
    "read_next",
    "read_run",
    "read_tail",
    "read_transactions",
    "shard_transactions",
    "tags_of",
    "tail_end",
    "tail_positions",
    "written_ms",
    "written_ms_at",
]

_LOG = logging.getLogger(__name__)
_LOOKED_BYTES = 256 << 20  # what a memtable holds by default; more is read a second time
_MAX_SENTINEL_MOVES = 10_000
_TAIL_BYTES = 64 * 1024
_READ_AHEAD = 8
_LOOKS = "memwal-look-back"
Footers: TypeAlias = Mapping[int, EntryFooter | None]
_NO_FOOTERS: Footers = MappingProxyType({})
_LONGEST_GAP = 256  # as many entries as there are between two whole maps; what is longer was collected
_WAITS_PER_LOOK = 20

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class PersistPolicy:
    """How often one WAL put is retried before the writer is poisoned, and whether local files are synced."""

    max_retries: int = 3
    base_delay_seconds: float = 0.05
    fsync: bool = True

    @classmethod
    def of(cls, config: WriterConfig) -> PersistPolicy:
        """The policy that a writer's settings ask for."""
        return cls(config.max_wal_persist_retries, config.wal_persist_retry_base_delay_ms / 1000, config.fsync)


def list_positions(location: Location, shard_id: str) -> list[int]:
    """Every WAL position on storage, ascending; stray names do not count."""
    names = location.store.list_names(paths.wal_dir(shard_id))
    return sorted(p for p in map(paths.parse_entry_name, names) if p is not None)


def tail_positions(location: Location, manifest: ShardManifest) -> list[int]:
    """The WAL positions on storage after the cursor, ascending."""
    cursor = manifest.replay_after_wal_entry_position
    return [position for position in list_positions(location, manifest.shard_id) if position > cursor]


# ------------------------------------------------------------------------------------------------- the writing end


class ShardLog:
    """The claimed end of one shard's log. Not thread-safe: one appender at a time, led by its caller."""

    __slots__ = (
        "_clock",
        "_directory",
        "_policy",
        "_process",
        "_store",
        "_watch",
        "epoch",
        "location",
        "next_position",
        "shard_id",
        "table",
    )

    def __init__(
        self,
        location: Location,
        shard_id: str,
        epoch: int,
        next_position: int,
        policy: PersistPolicy,
        clock: Clock,
        watch: TableWatch | None = None,
    ) -> None:
        """`watch` is the table that the log belongs to; None where there is no base table."""
        self.location = location
        self.shard_id = shard_id
        self.epoch = epoch
        self.next_position = next_position
        self._policy = policy
        self._clock = clock
        self._store = location.store_once
        self._directory = paths.wal_dir(shard_id)
        self._process = os.getpid()
        self._watch = watch
        self.table = None if watch is None else watch.tag  # which its entries carry

    def append(self, data: bytes) -> int:
        """The position at which `data`, the bytes of one entry of our epoch, is now durable.

        Raises `FencedError` if a successor owns the log, `TableReplacedError` if its table is another one,
        `WriterPoisonedError` if the entry could not be written: its outcome may be unknown, so the shard must be reopened.
        """
        if os.getpid() != self._process:
            raise ClosedError(f"the log of shard {self.shard_id} belongs to the process that opened it; open it here")
        if self._watch is not None:
            self._watch.look_if_due()
        position = self._persist(data, self.next_position, placing_sentinel=False)
        self.next_position = position + 1
        return position

    def append_once(self, position: int, data: bytes) -> None:
        """`append`, unless an attempt that was interrupted has put `data` at `position` already."""
        if self.next_position == position:
            self.append(data)

    def place_sentinel(self, transactions: TransactionMap, *, joint: bool = False) -> int:
        """The position of our sentinel, the first free one from `next_position` on; it carries the whole map.

        A sentinel that moves on takes over what the entry says that it met, so that it covers everything below it.
        """
        for _ in range(_MAX_SENTINEL_MOVES):
            footer = transactions.mark(table=self.table, joint=joint)
            met = self._persist_sentinel(encode_sentinel(self.epoch, footer))
            self.next_position += 1
            if met is None:
                transactions.take(footer)
                return self.next_position - 1
            if met.footer is not None:
                transactions.take(met.footer, decided=False)
        raise UnavailableError(f"the log of shard {self.shard_id} grows faster than it can be fenced", retryable=True)

    def _persist_sentinel(self, data: bytes) -> WalEntry | None:
        """None once `data` is at `next_position`, else the lower-epoch entry that is there."""
        try:
            self.next_position = self._persist(data, self.next_position, placing_sentinel=True)
        except _OccupiedError as met:
            return met.entry
        except WriterPoisonedError as error:  # nothing was acknowledged yet: the open failed, nobody is poisoned
            if isinstance(error.__cause__, (CorruptDataError, UnsupportedFormatError, ConflictError)):
                raise error.__cause__ from None
            raise UnavailableError(f"shard {self.shard_id} could not be fenced; retry the open") from error
        return None

    def _persist(self, data: bytes, position: int, *, placing_sentinel: bool) -> int:
        failures = 0
        while True:
            path = paths.entry_path_below(self._directory, position)
            try:
                found = put_or_find(self._store, path, data, sync=self._policy.fsync, make_directory=False)
            except DirectoryNotFoundError as error:
                raise self._gone(position, error) from error
            except (ObjectNotFoundError, UnavailableError) as error:
                failures += 1
                if failures > self._policy.max_retries:
                    raise self._poison(position, error) from error
                if (told := active()) is not None:
                    told.note("lance_object_store_retryable_responses_total")
                BackOff(self._policy.base_delay_seconds, jitter=0.5).wait(self._clock, failures - 1)
                continue
            if found is None:
                return position
            position = self._after_collision(found, position, placing_sentinel=placing_sentinel)

    def _after_collision(self, found: bytes, position: int, *, placing_sentinel: bool) -> int:
        """Where to go on after meeting somebody else's entry at our position."""
        try:
            entry = met_entry(found, self.shard_id, position, self.epoch, self._watch)
        except (CorruptDataError, UnsupportedFormatError) as error:
            raise self._poison(position, error) from error
        if entry is None:
            return position + 1
        if entry.writer_epoch < self.epoch and placing_sentinel:
            raise _OccupiedError(entry)
        if entry.writer_epoch < self.epoch and entry.is_sentinel:
            return position + 1
        taken = ConflictError(f"WAL position {position} holds another entry, of epoch {entry.writer_epoch}")
        raise self._poison(position, taken) from taken

    def _gone(self, position: int, error: DirectoryNotFoundError) -> MemWalError:
        """What it means that the directory of the log is gone: most likely its table is."""
        try:
            if self._watch is not None:
                self._watch.look()
        except TableReplacedError as replaced:
            return replaced
        return self._poison(position, error)

    def _poison(self, position: int, cause: Exception) -> WriterPoisonedError:
        return WriterPoisonedError(
            f"WAL position {position} of shard {self.shard_id} could not be written ({cause}); "
            "reopen the shard to recover what is in the log"
        )


def met_entry(data: bytes, shard_id: str, position: int, epoch: int, watch: TableWatch | None) -> WalEntry | None:
    """The entry that is where one of `epoch` should go; None if it is one of another table.

    `FencedError` if it is of a higher epoch, `TableReplacedError` if it is our table that is gone.
    """
    entry = decode_entry(data, position, path=paths.wal_entry_path(shard_id, position))
    if not entry.is_of(None if watch is None else watch.tag):
        if watch is not None:
            watch.look()  # one of the two tables is gone: is it ours?
        return None
    if entry.writer_epoch > epoch:
        raise FencedError(epoch, entry.writer_epoch, f"shard {shard_id}, WAL position {position}")
    return entry


class _OccupiedError(Exception):
    """A lower-epoch entry is where our sentinel should go; never leaves this module."""

    def __init__(self, entry: WalEntry) -> None:
        super().__init__(entry.position)
        self.entry = entry


@dataclass(frozen=True, slots=True)
class OpenedLog:
    """A claimed log: the manifest of the claim, the positions that replay must read (`replay_end` excluded), the shard's
    transactions, and entries that were read on the way."""

    log: ShardLog
    manifest: ShardManifest
    replay_start: int
    replay_end: int
    transactions: TransactionMap
    looked: dict[int, WalEntry] = field(default_factory=dict)


def open_log(
    manifests: ShardManifestStore,
    *,
    spec_id: int = 0,
    policy: PersistPolicy,
    watch: TableWatch | None = None,
    known: KnownColumns | None = None,
    joint: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> OpenedLog:
    """Own the shard's log: claim an epoch, fence its predecessor with a sentinel, look at the manifest again.

    Then the table is looked at: what was claimed must belong to the table that the caller opened, and must not be older
    than its base. What a version like ours does not understand in the tail (`known` says what it does) is refused before
    anybody is fenced. A `joint` epoch (RFC 0017) belongs to whoever reads the whole log before each entry; also its first
    one has a sentinel.
    """
    looked = _look_at_tail(manifests, known, None if watch is None else watch.tag)
    mark = 0 if watch is None else watch.mark_of(manifests.shard_id)
    opened = _claim_log(manifests, spec_id, policy, watch, clock, looked, joint=joint)
    if watch is not None:
        watch.look()
        check_not_older(manifests.location, opened.manifest, mark)
    return opened


def _look_at_tail(manifests: ShardManifestStore, known: KnownColumns | None, tag: str | None) -> dict[int, WalEntry]:
    """The first entries of the tail, decoded: replay reads them, and need not read them again.

    `UnsupportedFormatError` if one is not understood. Damage and holes are left to whoever owns the log: only then is
    certain that nobody is at work here.
    """
    shard_id = manifests.shard_id
    manifest = manifests.read_latest() if known is not None else None
    if known is None or manifest is None:
        return {}
    looked: dict[int, WalEntry] = {}
    size_bytes = 0
    try:
        for entry in read_tail(manifests.location, manifest, tag=tag):
            refuse_unknown(shard_id, entry, known.unknown_in(entry))
            size_bytes += entry.size_bytes
            if size_bytes <= _LOOKED_BYTES:
                looked[entry.position] = entry
    except CorruptDataError as error:
        _LOG.info("the tail cannot be read yet [shard=%s]: %s", shard_id, error)
    return looked


def _claim_log(
    manifests: ShardManifestStore,
    spec_id: int,
    policy: PersistPolicy,
    watch: TableWatch | None,
    clock: Clock,
    looked: dict[int, WalEntry],
    *,
    joint: bool,
) -> OpenedLog:
    location, shard_id = manifests.location, manifests.shard_id
    epoch, manifest = manifests.claim_epoch(spec_id)
    log = ShardLog(location, shard_id, epoch, manifest.replay_after_wal_entry_position + 1, policy, clock, watch)
    if location.is_local:
        location.store.make_directory(paths.wal_dir(shard_id))
    reach("open.after_claim")
    if epoch == 1 and not joint:
        transactions = TransactionMap({}, ShardTime(clock))
        return OpenedLog(log, manifest, log.next_position, log.next_position, transactions, looked)
    footers = {position: entry.footer for position, entry in looked.items()}
    positions = own_end(location, shard_id, list_positions(location, shard_id), log.table, footers)
    cursor = manifest.replay_after_wal_entry_position
    log.next_position = max(cursor, manifest.wal_entry_position_last_seen, *positions[-1:]) + 1
    transactions = shard_transactions(location, manifest, positions, clock, tag=log.table, footers=footers)
    if transactions.leaves_out:  # only the owner knows that nobody decides that mark any more, and writes its map so
        manifests.check_fenced(epoch)
    sentinel = log.place_sentinel(transactions, joint=joint)
    if not manifests.is_newest(manifest.version):  # else it is the one that we wrote
        manifest = manifests.check_fenced(epoch)
    return OpenedLog(log, manifest, manifest.replay_after_wal_entry_position + 1, sentinel, transactions, looked)


# -------------------------------------------------------------------------------------------------- its transactions


def shard_transactions(
    location: Location,
    manifest: ShardManifest,
    positions: list[int],
    clock: Clock = SYSTEM_CLOCK,
    *,
    tag: str | None = None,
    footers: Footers = _NO_FOOTERS,
) -> TransactionMap:
    """All transactions of a shard: those of `read_transactions`, and those beside the listed generations, if there are any."""
    known = read_transactions(location, manifest, positions, clock, tag=tag, footers=footers)
    known.merge(maps_beside(known, location, manifest))
    return known


def read_transactions(
    location: Location,
    manifest: ShardManifest,
    positions: list[int],
    clock: Clock = SYSTEM_CLOCK,
    *,
    tag: str | None = None,
    footers: Footers = _NO_FOOTERS,
) -> TransactionMap:
    """The transactions in the log of a shard: the newest whole map and all that came after it.

    `tag` is that of the table: what entries of another one say does not count. `manifest` was read before `positions`
    were listed: a bulk mark that it has not reached does not count. `footers` are those that were read already.
    """
    newest = _newest_footers(location, manifest.shard_id, positions, tag, footers)
    newest_ms = max((footer.written_ms or newest_of(footer.seen or {}) for _, footer in newest), default=0)
    known = TransactionMap({}, ShardTime(clock, newest_ms))
    for position, footer in reversed(newest):
        known.take(footer, decided=position <= manifest.replay_after_wal_entry_position)
    return known


def _newest_footers(
    location: Location, shard_id: str, positions: list[int], tag: str | None, footers: Footers
) -> list[tuple[int, EntryFooter]]:
    """The footers from the newest entry down to the one with the newest whole map; other implementations have none."""
    read = partial(_footer_at, location, shard_id, known=footers)
    found: list[tuple[int, EntryFooter]] = []
    newest_first, step = _without_gaps(positions)[::-1], 1  # a sentinel answers at once; a long log is read in parallel
    while newest_first:
        at_once = location.at_once(_READ_AHEAD)
        for position, footer in zip(newest_first, in_order(read, newest_first[:step], at_once, _LOOKS), strict=False):
            if footer is not None and footer.is_of(tag):
                found.append((position, footer))
                if is_whole(footer):
                    return found
        newest_first, step = newest_first[step:], min(step * _READ_AHEAD, _READ_AHEAD**2)
    return found


def _without_gaps(positions: list[int]) -> list[int]:
    """`positions`, and those that a listing may have missed: above the newest whole map nothing is ever collected."""
    filled = positions[:1]
    for below, above in pairwise(positions):
        filled += range(below + 1, above + 1) if above - below <= _LONGEST_GAP else (above,)
    return filled


def _footer_at(location: Location, shard_id: str, position: int, known: Footers = _NO_FOOTERS) -> EntryFooter | None:
    if position in known:
        return known[position]
    path = paths.wal_entry_path(shard_id, position)
    try:
        tail = location.store.get_tail(path, _TAIL_BYTES)
        found = decode_footer(tail, path=path)
        if found is not None:
            return found
        data = tail if len(tail) < _TAIL_BYTES else location.store.get(path)
    except ObjectNotFoundError:
        return None
    return decode_entry(data, position, path=path).footer  # no footer, or a map larger than the tail


def written_ms_at(location: Location, shard_id: str, position: int) -> int | None:
    """When the entry at a position was written, as `written_ms` says it."""
    return written_ms(location, shard_id, position, _footer_at(location, shard_id, position))


def written_ms(location: Location, shard_id: str, position: int, footer: EntryFooter | None) -> int | None:
    """When an entry was written: what its footer says, else when the store got it; None if it is not there."""
    if footer is not None and footer.written_ms is not None:
        return footer.written_ms
    try:
        return location.store.head(paths.wal_entry_path(shard_id, position)).modified_ms
    except ObjectNotFoundError:
        return None


# ------------------------------------------------------------------------------------------------- the reading end


def own_end(
    location: Location, shard_id: str, positions: list[int], tag: str | None, footers: Footers = _NO_FOOTERS
) -> list[int]:
    """`positions` up to the newest entry that may be of the table with this tag; `footers` were read already."""
    while positions and tag is not None and not _is_own(location, shard_id, positions[-1], tag, footers):
        positions = positions[:-1]
    return positions


def _is_own(location: Location, shard_id: str, position: int, tag: str, footers: Footers) -> bool:
    footer = _footer_at(location, shard_id, position, footers)
    return footer is None or footer.is_of(tag)


def tags_of(location: Location, shard_id: str, positions: list[int]) -> set[str]:
    """The tags of all tables that wrote these entries."""
    footers = in_order(partial(_footer_at, location, shard_id), positions, location.at_once(_READ_AHEAD), _LOOKS)
    return {footer.table for footer in footers if footer is not None and footer.table is not None}


def read_run(
    location: Location,
    shard_id: str,
    start: int,
    end: int,
    *,
    tag: str | None = None,
    looked: dict[int, WalEntry] | None = None,
) -> Iterator[WalEntry]:
    """The entries of `[start, end)` in order; a missing one is an error, never the tip.

    `looked` are entries that were read by this function before: entries never change, so those need no second read. They
    are taken out, so that memory holds them once.

    Entries of another table than the one with this tag count as marks; where nothing but such entries lies above a
    missing position, the log ends there. On object stores a bounded number of reads runs ahead of the consumer.
    """
    decoder = EntryDecoder()
    while looked is not None and start < end and start in looked:
        yield looked.pop(start)
        start += 1
    for position, (path, data) in zip(range(start, end), _fetch(location, shard_id, start, end), strict=True):
        if data is None:
            if not _goes_on(location, shard_id, position, end, tag):
                return
            raise CorruptDataError("WAL entry is missing inside the log", path=path, position=position)
        yield _as_ours(location, shard_id, decoder.decode(data, position, path=path), tag)


def read_next(location: Location, shard_id: str, start: int, most: int, *, tag: str | None) -> Iterator[WalEntry]:
    """The entries from `start` on, up to one that is not there now or to `most` of them; nothing is said of those above."""
    decoder = EntryDecoder()
    for position in range(start, start + most):
        path = paths.wal_entry_path(shard_id, position)
        try:
            data = location.store.get(path)
        except ObjectNotFoundError:
            return
        yield _as_ours(location, shard_id, decoder.decode(data, position, path=path), tag)


def _as_ours(location: Location, shard_id: str, entry: WalEntry, tag: str | None) -> WalEntry:
    """An entry as it counts in the log of the table with this tag."""
    return with_blobs(location, shard_id, entry) if entry.is_of(tag) else entry.as_mark()


def read_tail(
    location: Location, manifest: ShardManifest, end: int | None = None, *, tag: str | None, start: int | None = None
) -> Iterator[WalEntry]:
    """The entries after the cursor, or from `start` on, in order: `read_run` up to `end`, or to the newest on storage."""
    if start is None:
        start = manifest.replay_after_wal_entry_position + 1
    if end is None:
        end = max([start, *(position + 1 for position in tail_positions(location, manifest)[-1:])])
    return read_run(location, manifest.shard_id, start, end, tag=tag)


def tail_end(location: Location, manifest: ShardManifest, *, tag: str | None) -> int:
    """The first position after the newest entry, by a listing alone; `CorruptDataError` if one is missing below it."""
    start, found = manifest.replay_after_wal_entry_position + 1, tail_positions(location, manifest)
    if found != list(range(start, start + len(found))):  # what another table left above a hole does not count
        found = own_end(location, manifest.shard_id, found, tag)
    if found != list(range(start, start + len(found))):
        raise CorruptDataError("WAL entry is missing inside the log", path=paths.wal_dir(manifest.shard_id))
    return start + len(found)


def _goes_on(location: Location, shard_id: str, position: int, end: int, tag: str | None) -> bool:
    """Whether the log of our table goes on above a missing position; without a tag everything is ours."""
    if tag is None:
        return True
    above = [p for p in list_positions(location, shard_id) if position < p < end]
    return not above or bool(own_end(location, shard_id, above, tag))


def _fetch(location: Location, shard_id: str, start: int, end: int) -> Iterator[tuple[str, bytes | None]]:
    """The path of each position, and what is there."""
    directory = paths.wal_dir(shard_id)

    def read(position: int) -> tuple[str, bytes | None]:
        path = paths.entry_path_below(directory, position)
        try:
            return path, location.store.get(path)
        except ObjectNotFoundError:
            return path, None

    return in_order(read, range(start, end), location.at_once(_READ_AHEAD), "memwal-read-ahead")


class WalTailer:
    """Reads a shard's log as it grows, and writes nothing: it claims nothing and fences nobody."""

    def __init__(
        self,
        uri: str | Location,
        shard_id: str,
        *,
        storage_options: Mapping[str, str] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.location = resolve(uri, storage_options)
        self.shard_id = check_shard_id(shard_id)
        self._clock = clock
        self._manifests = ShardManifestStore(self.location, shard_id, clock=clock)
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
        entry = self.peek(position)
        if entry is not None:
            return entry
        above = [p for p in list_positions(self.location, self.shard_id) if p > position]
        entry = self.peek(position)  # it may have come since the first look; if others lie above it, it must have
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
            entry = self.peek(position) if waits % _WAITS_PER_LOOK else self.read_entry(position)
            if entry is not None:
                yield entry
                position, waits = position + 1, 0
                continue
            waits += 1
            if isinstance(stop, Event):
                stop.wait(poll_seconds)
            else:
                self._clock.sleep(poll_seconds)

    def peek(self, position: int) -> WalEntry | None:
        """The entry at `position` if it is there now; None does not say why it is not."""
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
