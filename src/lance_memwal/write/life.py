"""The life of a shard writer: opened, closed, or put away and taken up again.

Owns `open_shard`, `LiveWriter`, `force_seal`, `close`, `park` and `Parked`. Invariants:

1. Everything that can be refused was refused before the claim: a doomed open fences nobody.
2. `open_shard` returns after replay: a writer that exists shows every acknowledged row of the shard.
3. `close` makes everything flushed and visible to any reader, or raises the first failure; the writer is closed either
   way. It never hangs on a fence, and every wait for other threads has a deadline.
4. What is parked is durable: readers find it in the log, or in SSTables if the log would take long to read again.
5. A writer that closed with everything published leaves its epoch to all sinks (RFC 0017), and does nothing after that.
6. A parked shard keeps its epoch, its next position and its transactions. It is taken up without a claim and without a
   sentinel, after a look at the manifest: a shard that somebody claimed meanwhile is lost (`FencedError`).
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from dataclasses import dataclass

from lance_memwal.arguments import check_timeout
from lance_memwal.clock import Clock
from lance_memwal.config import WriterConfig
from lance_memwal.crash_points import reach
from lance_memwal.errors import FencedError, MemWalError, UnavailableError
from lance_memwal.log.entry import encode_mark
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.transactions import TransactionMap
from lance_memwal.log.wal import OpenedLog, ShardLog
from lance_memwal.memtable.memtable import InMemoryMemTables
from lance_memwal.process.background import JOIN_SECONDS
from lance_memwal.process.deadline import Deadline
from lance_memwal.process.telemetry import spanned
from lance_memwal.sstable.target import ShardTarget
from lance_memwal.write.claim import claim_log, manifests_of
from lance_memwal.write.flush import Flushing, Ticking
from lance_memwal.write.replay import replay
from lance_memwal.write.shard import Shard
from lance_memwal.write.stats import StatsHandle

_LOG = logging.getLogger(__name__)
_PARK_SECONDS = 10.0  # others wait for the place meanwhile
_HANGING_SECONDS = 0.25  # for work that has not ended in a much longer time


@dataclass(frozen=True, slots=True)
class Parked:
    """What remains of a writer that is put away; `owes_flush`: the log holds rows that are in no SSTable yet.

    `since` is when (`monotonic`) it was put away, `generation` the one that its rows belong to. `is_lost`: somebody else is
    known to have claimed the shard.
    """

    log: ShardLog
    transactions: TransactionMap
    stats: StatsHandle
    owes_flush: bool
    since: float = 0.0
    generation: int = 0
    is_lost: bool = False


def _about_opened(_target: ShardTarget, config: WriterConfig, *_: object, result: Shard | None) -> dict[str, str | int]:
    if result is not None:
        return result.span_attributes(result.tables.unflushed_rows)
    return {} if config.shard_id is None else {"shard": str(config.shard_id)}


@spanned("memwal.open", about=_about_opened)
def open_shard(target: ShardTarget, config: WriterConfig, clock: Clock, parked: Parked | None = None) -> Shard:
    """Claim and replay the shard, or take a parked one up again; the caller validated `target` and `config`."""
    shard_id = config.shard_id if config.shard_id is not None else clock.uuid4()
    config = config.replace(shard_id=shard_id, shard_spec_id=config.shard_spec_id or target.spec_id)
    manifests = manifests_of(target.location, shard_id, config, clock)
    if parked is not None:
        opened = _opened_again(parked, manifests)
    else:
        opened = claim_log(manifests, config, target.schema, target.watch, config.shard_spec_id, clock)
        reach("open.after_sentinel")
    shard = Shard(target, config, clock, opened, manifests, None if parked is None else parked.stats)
    if config.enable_memtable:
        replay(shard, opened)
    _LOG.log(
        logging.INFO if parked is None else logging.DEBUG,
        "opened writer [shard=%s, epoch=%d, generation=%d, mode=%s]",
        shard_id,
        shard.log.epoch,
        shard.tables.generation,
        "memtable" if config.enable_memtable else "wal-only",
    )
    return shard


def start(shard: Shard) -> None:
    """Begin the background work of a shard."""
    shard.ticker.start(Ticking(shard)).poke()
    shard.flusher.start(Flushing(shard))
    if shard.tables.frozen:
        shard.flusher.poke()


def _opened_again(parked: Parked, manifests: ShardManifestStore) -> OpenedLog:
    """The log of a parked shard, as an open would give it; `FencedError` if another writer claimed the shard."""
    manifest = manifests.check_fenced(parked.log.epoch)
    end = parked.log.next_position
    return OpenedLog(parked.log, manifest, manifest.replay_after_wal_entry_position + 1, end, parked.transactions)


class LiveWriter:
    """A writer as other packages of this process see it: readers, `maintain`, and the end of the program."""

    __slots__ = ("__weakref__", "_shard", "_writer")

    def __init__(self, shard: Shard, writer: object) -> None:
        """`writer` is the public writer of the shard, which this does not keep alive."""
        self._shard = shard
        self._writer = weakref.ref(writer)

    @property
    def writer(self) -> object | None:
        """The public writer, if it takes writes."""
        health = self._shard.health
        return self._writer() if health.is_open and not health.has_failed else None

    @property
    def epoch(self) -> int:
        """The epoch under which it writes."""
        return self._shard.log.epoch

    @property
    def shard_id(self) -> str:
        """The shard that it writes."""
        return self._shard.log.shard_id

    def capture(self) -> InMemoryMemTables | None:
        """Capture active and frozen memtables; None if the writer has none to show."""
        try:
            return self._shard.capture()
        except MemWalError:
            return None

    def publish(self, timeout_seconds: float) -> None:
        """Write everything that was written so far as SSTables, within so many seconds."""
        force_seal(self._shard)
        wait_for_drain(self._shard, timeout_seconds)

    def leave(self, deadline: float) -> None:
        """Keep all other threads out, since the program ends; a close that a signal handler requested is done first."""
        self._shard.health.end_program(deadline)


def check_fenced(shard: Shard) -> None:
    """Raise `FencedError` if the newest manifest carries a higher epoch, `TableReplacedError` if the table is another one."""
    shard.health.look_at_table()
    try:
        shard.manifests.check_fenced(shard.log.epoch)
    except FencedError as error:
        shard.health.fail(error)
        raise


def force_seal(shard: Shard) -> None:
    """Freeze the active memtable, of the owner of the shard."""
    shard.tables.need()
    shard.commits.refuse_on_top()
    with shard.health.lock:
        shard.health.refuse_writes()
    check_fenced(shard)
    shard.seal()


def wait_for_drain(shard: Shard, timeout: float | None) -> None:
    """Return when every frozen memtable is an SSTable; `UnavailableError` after `timeout` seconds."""
    shard.commits.refuse_on_top()
    tables, timeout = shard.tables.need(), check_timeout(timeout)
    shard.health.refuse()
    if not shard.health.wait_until(lambda: not tables.frozen, timeout):
        raise UnavailableError(f"{len(tables.frozen)} memtables were not flushed within {timeout} seconds; wait again")


# ------------------------------------------------------------------------------------------------------------ ending


def about_unflushed(shard: Shard, *_: object, **_result: object) -> dict[str, str | int]:
    """Attributes of a span: a shard with the rows that are in no SSTable yet."""
    return shard.span_attributes(shard.tables.unflushed_rows)


@spanned("memwal.close", about=about_unflushed)
def close(shard: Shard, stop: Callable[[float], None]) -> None:
    """Flush the log and all memtables, then `stop` within some seconds. Raises the first failure. Idempotent."""
    deadline = Deadline(shard.clock)
    if not shard.health.begin_closing(deadline):
        return
    try:
        _LOG.info("closing writer [shard=%s, epoch=%d]", shard.log.shard_id, shard.log.epoch)
        _flush(shard, deadline)
    except BaseException as error:
        stop(JOIN_SECONDS if deadline.left_seconds else _HANGING_SECONDS)
        _LOG.info("closed writer with an error [shard=%s, epoch=%d]: %s", shard.log.shard_id, shard.log.epoch, error)
        raise
    stop(JOIN_SECONDS)
    _leave_joint(shard)
    _LOG.info("closed writer [shard=%s, epoch=%d]", shard.log.shard_id, shard.log.epoch)


def _leave_joint(shard: Shard) -> None:
    """Let sinks in, as the last act of a closed writer: a mark, if nothing of ours can change the shard any more.

    A commit of ours that were still on its way would call entries flushed that sinks append after the mark. All are
    decided: each flush was tried until the newest manifest said that it landed, and one of which that is unknown for good
    poisons, so that the writer is not closed this way.
    """
    if not shard.config.enable_memtable or shard.columns.target.watch is None:
        return
    log = shard.log
    try:
        manifest = shard.manifests.check_fenced(log.epoch)
        if manifest.current_generation != shard.tables.need().active.generation or shard.is_unflushed():
            return
        footer = shard.transactions.mark(table=log.table, joint=True)
        reach("close.before_mark")
        log.append(encode_mark(log.epoch, footer))
    except MemWalError as error:  # everything is flushed: without the mark sinks wait a little, no more
        _LOG.info("a closed shard was not opened for sinks [shard=%s]: %s", log.shard_id, error)


def _flush(shard: Shard, deadline: Deadline) -> None:
    health, commits = shard.health, shard.commits
    _wait_for_bulk(shard, deadline)
    with health.lock:
        health.refuse_drain(owes=shard.is_unflushed())
    commits.make_durable(commits.buffered)
    shard.seal()
    drain(shard, deadline, "the writer is closed all the same; the log has the rows, and the next open replays them")


def _wait_for_bulk(shard: Shard, deadline: Deadline) -> None:
    """Return when no bulk write is under way."""
    if not shard.health.wait_until(lambda: not shard.commits.is_exclusive, deadline.left_seconds):
        raise deadline.error(f"a bulk write of shard {shard.log.shard_id} was still under way; it was not acknowledged")


@spanned("memwal.drain", about=about_unflushed)
def drain(shard: Shard, deadline: Deadline, way_out: str) -> None:
    """Return when every frozen memtable is an SSTable; `UnavailableError` at the deadline, with the way out."""
    tables = shard.tables
    if not shard.health.wait_until(lambda: not tables.frozen, deadline.left_seconds):
        raise deadline.error(
            f"{len(tables.frozen)} memtables of shard {shard.log.shard_id} were not flushed; {way_out}"
        )


def park(shard: Shard, stop: Callable[[float], None]) -> Parked | None:
    """Close a writer, with everything durable; None if it no longer writes or another thread writes: it stays open."""
    deadline = Deadline(shard.clock, _PARK_SECONDS)

    def make_flushed() -> bool:
        if not shard.commits.wait_durable(shard.commits.buffered, deadline.left_seconds):
            return False
        if shard.tables.is_long_to_replay:
            shard.seal()
        drain(shard, deadline, "it stays open")
        with shard.health.lock:
            if shard.tables.frozen:  # since then: its flush may outlive this writer, and the epoch is used again
                return False
            shard.health.park()
            return True

    try:
        with shard.health.lock:
            shard.health.refuse_failing_flush()  # the next attempt may be seconds away: it is not worth the wait
        if shard.health.is_used or not shard.commits.alone(make_flushed, deadline):
            return None
    except MemWalError:
        return None
    reach("park.before_stop")
    stop(JOIN_SECONDS)
    return Parked(
        shard.log,
        shard.transactions,
        shard.stats,
        shard.is_unflushed(),
        shard.clock.monotonic(),
        shard.tables.unpublished_generation,
    )
