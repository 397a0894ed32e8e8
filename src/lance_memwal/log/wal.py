"""The log of a shard: claiming it, and appending to it.

Owns `open_log` and `ShardLog`, the claimed end of a log. Invariants:

1. `open_log` claims, places a sentinel above everything that is in the log (epoch > 1), and looks at the manifest again:
   whoever slept in between finds a higher epoch and stops. The next position is fixed from then on, never discovered.
2. The bytes of an entry are fixed per position at the first attempt; a retry sends exactly those. An entry that is found
   to be there already is made durable before it counts: the attempt that wrote it may have failed at just that.
3. "Already exists" is answered by reading: our epoch and our bytes are success; our epoch with other bytes poisons; a higher
   epoch fences; a lower-epoch sentinel moves us on; a lower-epoch entry with rows moves on a sentinel only. An entry of
   another table (RFC 0004) takes its position whatever its epoch, and fences nobody.
4. A forked child appends nothing: two processes must not share an epoch.
5. Only a claim makes directories. An entry whose directory is gone is not written: the table is looked at, which is also
   done now and then while entries are written, and a log whose table is another one says so.
6. The map of a sentinel leaves a bulk mark out only if nobody can publish it any more: the manifest, read after the log, still
   has our epoch. A claimer that slept must not make the shard forget what its successor publishes.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field

from lance_memwal.clock import SYSTEM_CLOCK, BackOff, Clock
from lance_memwal.config import WriterConfig
from lance_memwal.crash_points import reach
from lance_memwal.errors import (
    ClosedError,
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
from lance_memwal.lance.identity import TableWatch
from lance_memwal.lance.restored import check_not_older
from lance_memwal.log.entry import decode_entry, encode_sentinel
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.reading import list_positions, own_end, read_tail, read_transactions
from lance_memwal.log.transactions import ShardTime, TransactionMap
from lance_memwal.log.understood import KnownColumns, refuse_unknown
from lance_memwal.process.telemetry import active
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.store.sequenced import put_or_find
from lance_memwal.types import ShardManifest, WalEntry

_LOG = logging.getLogger(__name__)
_LOOKED_BYTES = 256 << 20  # what a memtable holds by default; more is read a second time
_MAX_SENTINEL_MOVES = 10_000


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
            refuse_unknown(shard_id, entry, known)
            size_bytes += entry.size_bytes
            if size_bytes <= _LOOKED_BYTES:
                looked[entry.position] = entry
    except CorruptDataError as error:
        _LOG.info("the tail cannot be read yet [shard=%s]: %s", shard_id, error)
    return looked


def _make_directory(location: Location, shard_id: str, watch: TableWatch | None) -> None:
    """Let the directory of the log exist, unless the shard was removed since it was claimed."""
    try:
        location.store.make_directory(paths.wal_dir(shard_id))
    except DirectoryNotFoundError as error:
        if watch is not None:
            watch.look()
        raise UnavailableError(f"shard {shard_id} was removed while it was claimed; retry the open") from error


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
        _make_directory(location, shard_id, watch)
    reach("open.after_claim")
    if epoch == 1 and not joint:
        transactions = TransactionMap({}, ShardTime(clock))
        return OpenedLog(log, manifest, log.next_position, log.next_position, transactions, looked)
    footers = {position: entry.footer for position, entry in looked.items()}
    positions = own_end(location, shard_id, list_positions(location, shard_id), log.table, footers)
    cursor = manifest.replay_after_wal_entry_position
    log.next_position = max(cursor, manifest.wal_entry_position_last_seen, *positions[-1:]) + 1
    transactions = read_transactions(location, manifest, positions, clock, tag=log.table, footers=footers)
    if transactions.leaves_out:  # only the owner knows that nobody decides that mark any more, and writes its map so
        manifests.check_fenced(epoch)
    sentinel = log.place_sentinel(transactions, joint=joint)
    if not manifests.is_newest(manifest.version):  # else it is the one that we wrote
        manifest = manifests.check_fenced(epoch)
    return OpenedLog(log, manifest, manifest.replay_after_wal_entry_position + 1, sentinel, transactions, looked)
