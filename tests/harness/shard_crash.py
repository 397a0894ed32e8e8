"""Lives of the writer of one shard: killed, recovered, and killed again, telling every step before and after it happens."""

from __future__ import annotations

import faulthandler
import os
import random
import shutil
import signal
import time
import traceback
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import pyarrow as pa

from lance_memwal.shard_writer import ShardWriter
from lance_memwal.table import open_table
from tests.harness.deaths import NEVER, Actor, CrashFailure, CrashReport, Death, Ends, watch
from tests.harness.kill_points import COMPACT_POINTS, FLUSH_POINTS, OPEN_POINTS, PUT_POINTS, obey_points
from tests.harness.oracle import Broken, Oracle, Write, require_same
from tests.harness.processes import Voice, run_threads, start
from tests.harness.shard_audit import KINDS, ShardAudit, TableKind, merged_rows, peer_rows, stored_rows

_LIVES_PER_TABLE = 7
_ENDS = Ends(closing_share=0.6, recovery_seconds=0.04, begins_at="rows", writing_seconds=0.15)


class ShardLives:
    def __init__(
        self, directory: str, seed: int, report: CrashReport, target: Callable[[ShardLife, Connection], None]
    ) -> None:
        self._seed = seed
        self._target = target
        self._draw = random.Random(seed)
        self._kind = KINDS[seed % len(KINDS)]
        self._uri = os.path.join(directory, f"table-{seed}")
        self._shard_id = str(uuid.UUID(int=self._draw.getrandbits(128), version=4))
        TableKind(self._kind).create(self._uri)
        self._oracle = Oracle()
        self._audit = ShardAudit(self._uri, self._shard_id)
        self._report = report
        self._number = 1
        self._life: ShardLife | None = None

    def run(self, kills: int) -> None:
        """Live and die a few times, then close cleanly and let everybody read; `kills` are wanted at most."""
        until = self._report.kills + kills
        for _ in range(_LIVES_PER_TABLE):
            if self._report.kills >= until:
                break
            self._live_once()
        self._finish()
        shutil.rmtree(self._uri)

    def _live_once(self) -> None:
        self._life = life = self._draw_life()
        actor = Actor(
            start(self._target, life),
            _ENDS.draw(self._draw, life.kill_at, life.ending),
            lingers=life.ending == "linger",
        )
        watch([actor], self._hear, self._broke_i12, self._report)
        self._report.kinds["shard"] += 1
        self._number += life.threads * life.writes
        self._require("after the kill", self._audit.run())

    def _hear(self, message: tuple[Any, ...]) -> None:
        if message[0] == "returned":
            self._report.writes += 1
        elif message[0] == "reached":
            self._report.reached.add(message[1])
        elif message[0] == "opened":
            self._report.opens += 1
            self._report.recovery_seconds.append(message[1])
        self._require("after recovery", _tell(self._oracle, message, self._broke_i12))

    def _finish(self) -> None:
        """The last recovery, in this process: open, close, compare all readers, open again."""
        kind = TableKind(self._kind)
        writer = ShardWriter.open(self._uri, shard_id=self._shard_id, fsync=False)
        self._require("at the end", self._oracle.check(kind.rows_of(all_rows(writer, kind, self._uri))))
        writer.close()
        self._compare("stored rows", stored_rows(self._uri, self._shard_id))
        if kind.has_key:
            self._compare("pylance's rows", peer_rows(self._uri, self._shard_id))
        with ShardWriter.open(self._uri, shard_id=self._shard_id, fsync=False) as again:
            self._compare("rows of another open", all_rows(again, kind, self._uri))
        self._require("at the end", self._audit.run())

    def _compare(self, what: str, rows: pa.Table) -> None:
        self._require(f"{what} after a clean close", self._oracle.check(TableKind(self._kind).rows_of(rows)))

    def _require(self, when: str, broken: list[Any]) -> None:
        if broken:
            self._fail(when, "; ".join(str(item) for item in broken))

    def _broke_i12(self, what: str) -> None:
        self._fail("I12", what)

    def _fail(self, when: str, what: str) -> None:
        again = f"make crash KILLS={_LIVES_PER_TABLE} SEED={self._seed} ARGS='--only shard'"
        raise CrashFailure(f"{when} [life={self._life}, table={self._uri}]: {what}\n  repeat it with: {again}")

    # ------------------------------------------------------------------------------------------------------ the draws

    def _draw_life(self) -> ShardLife:
        draw = self._draw
        threads = draw.choice((1, 1, 2, 3, 4))
        compacts = draw.random() < 0.3
        return ShardLife(
            uri=self._uri,
            shard_id=self._shard_id,
            kind=self._kind,
            seed=draw.getrandbits(32),
            first_number=self._number,
            threads=threads,
            writes=draw.choice((15, 40, 90)) // threads + 1,
            settings=_draw_settings(draw),
            kill_at=_draw_point(draw, compacts),
            compacts=compacts,
            reopen=draw.random() < 0.15,
            ending=draw.choice(("linger", "linger", "close", "abort")),
        )


def _draw_point(draw: random.Random, compacts: bool) -> tuple[str, int] | None:
    if draw.random() < 0.4:
        return None
    if compacts and draw.random() < 0.5:
        return draw.choice(COMPACT_POINTS), 1
    points, most = draw.choice(((OPEN_POINTS, 2), (PUT_POINTS, 40), (PUT_POINTS, 40), (FLUSH_POINTS, 4)))
    return draw.choice(points), draw.randint(1, most)


def _draw_settings(draw: random.Random) -> dict[str, Any]:
    settings = draw_settings(draw) | {"enable_memtable": draw.random() >= 0.08}
    if settings["enable_memtable"] and draw.random() < 0.1:
        settings["max_entry_bytes"] = draw.choice((120, 300))  # the larger writes become generations of their own
    return settings


def _tell(oracle: Oracle, message: tuple[Any, ...], fail: Callable[[str], None]) -> list[Broken]:
    """Tell `oracle` what a life said; returns what is wrong with rows that it showed. `fail` is told of a life that failed."""
    match message:
        case ("issued", thread, write):
            oracle.issued(thread, write)
        case ("returned", thread, durable):
            oracle.returned(thread, durable=durable)
        case ("draining" | "closing",):
            oracle.drain_begins()
        case ("drained" | "closed",):
            oracle.drain_returned()
        case ("rows", rows):
            return oracle.check(rows)
        case ("failed", text):
            fail(text)
        case ("opened" | "done" | "reached" | "dies", *_):
            pass
        case _:
            fail(f"a process said {message[0]!r}, which nobody knows")
    return []


def live_until_killed(life: ShardLife, oracle: Oracle) -> bool:
    """Run one life; whether it died by a kill: its own at a point, or ours once a life that lingers is done."""
    report = CrashReport()

    def fail(what: str) -> None:
        raise CrashFailure(what)

    def hear(message: tuple[Any, ...]) -> None:
        assert _tell(oracle, message, fail) == []

    death = NEVER if life.kill_at is None else Death(life.kill_at[0])
    watch([Actor(start(live, life), death, lingers=life.ending == "linger")], hear, fail, report)
    return report.kills == 1


# The process that is killed: one life of a shard writer, telling every step before and after it happens.
#
# Messages go through a pipe in the order in which things happened; what was sent before the kill arrives. Tags:
# opened, rows, issued, returned, draining, drained, closing, closed, done, failed, and those of `obey_points`.

KEYS = 48


@dataclass(frozen=True, slots=True)
class ShardLife:
    """One life of the writer. `kill_at` is a point and a count; `ending` is what follows the last write.

    `compacts` lets the first thread compact the table now and then, beside the writes of the others.
    """

    uri: str
    shard_id: str
    kind: str
    seed: int
    first_number: int
    threads: int = 1
    writes: int = 50
    settings: dict[str, Any] = field(default_factory=dict)
    kill_at: tuple[str, int] | None = None
    reopen: bool = False
    compacts: bool = False
    ending: str = "linger"

    @property
    def wal_only(self) -> bool:
        """Whether this life writes the log alone."""
        return self.settings.get("enable_memtable") is False


def live(life: ShardLife, pipe: Connection) -> None:
    """Open, show what was recovered, write, end. Every failure is told."""
    voice = Voice(pipe)
    faulthandler.register(signal.SIGUSR1)  # where is it, if it is silent?
    try:
        obey_points(voice.say, kill_at=life.kill_at)
        writer = _open(life, voice)
        _write_all(writer, life, voice)
        _end(writer, life, voice)
        voice.say("done")
    except BaseException:
        voice.say("failed", traceback.format_exc())
        raise SystemExit(1) from None
    if life.ending == "linger":
        signal.pause()


def _open(life: ShardLife, voice: Voice) -> ShardWriter:
    """The writer of this life; what it recovered was shown, twice where the life says so."""
    with_memtable = life.settings | {"enable_memtable": True}
    writer = _timed_open(life, with_memtable, voice)
    _show(writer, life, voice)
    if life.reopen or life.wal_only:
        if random.Random(life.seed).random() < 0.5:
            writer.abort()
        else:
            writer.close()
        writer = _timed_open(life, with_memtable, voice)
        _show(writer, life, voice)
    if life.wal_only:
        writer.abort()
        writer = _timed_open(life, life.settings, voice)
    return writer


def _timed_open(life: ShardLife, settings: dict[str, Any], voice: Voice) -> ShardWriter:
    started = time.monotonic()
    writer = ShardWriter.open(life.uri, shard_id=life.shard_id, **settings)
    voice.say("opened", time.monotonic() - started)
    return writer


def _show(writer: ShardWriter, life: ShardLife, voice: Voice) -> None:
    kind = TableKind(life.kind)
    voice.say("rows", kind.rows_of(all_rows(writer, kind, life.uri)))


def all_rows(writer: ShardWriter, kind: TableKind, uri: str) -> pa.Table:
    """The rows of the shard by the slow reader; an error if the engine's scan or lookup shows anything else (I7)."""
    rows = merged_rows(writer, uri)
    require_same("scan", writer.scan().to_table(), rows)
    if kind.has_key:
        require_same("lookup", writer.lookup(kind.keys_of(range(KEYS))), rows)
    return rows


def _write_all(writer: ShardWriter, life: ShardLife, voice: Voice) -> None:
    run_threads(life.threads, lambda thread: _Scribe(writer, life, voice, thread).run())


def _end(writer: ShardWriter, life: ShardLife, voice: Voice) -> None:
    if life.ending == "close":
        voice.say("closing")
        writer.close()
        voice.say("closed")
    elif life.ending == "abort":
        writer.abort()
    elif life.ending == "wait":
        signal.pause()  # for the kill, in the background


class _Scribe:
    """One thread's writes; its keys are its own in this life."""

    def __init__(self, writer: ShardWriter, life: ShardLife, voice: Voice, thread: int) -> None:
        self._writer = writer
        self._life = life
        self._voice = voice
        self._thread = thread
        self._kind = TableKind(life.kind)
        self._random = random.Random(life.seed * 8 + thread)
        self._durable = bool(life.settings.get("durable_write", True))

    def run(self) -> None:
        for count in range(self._life.writes):
            number = self._life.first_number + count * self._life.threads + self._thread
            draw = self._random.random()
            if draw < 0.03 and not self._life.wal_only:
                self._drain()
            elif draw < 0.07 and self._life.compacts and self._thread == 0:
                open_table(self._life.uri).compact()
            elif draw < 0.16 and self._kind.has_key:
                self._delete(number)
            else:
                self._put(number, draw)

    def _keys(self, number: int) -> tuple[int, ...]:
        count = self._random.choice((1, 1, 2, 3, 6))
        if not self._kind.has_key:
            return tuple(number * 16 + i for i in range(count))
        own = range(self._thread, KEYS, self._life.threads)
        return tuple(self._random.sample(own, min(count, len(own))))

    def _put(self, number: int, draw: float) -> None:
        keys = self._keys(number)
        parts = [keys[: len(keys) // 2], keys[len(keys) // 2 :]] if draw > 0.8 and len(keys) > 1 else [keys]
        batches = [self._kind.batch_of(part, number) for part in parts]
        waits = 0.7 < draw < 0.8
        self._voice.say("issued", self._thread, Write(number, keys))
        if waits:
            self._writer.put_nowait(batches).wait()
        else:
            self._writer.put(batches)
        self._voice.say("returned", self._thread, waits or self._durable)

    def _delete(self, number: int) -> None:
        keys = self._keys(number)
        self._voice.say("issued", self._thread, Write(number, keys, deletes=True))
        self._writer.delete(self._kind.keys_of(keys))
        self._voice.say("returned", self._thread, self._durable)

    def _drain(self) -> None:
        if self._thread == 0:
            self._voice.say("draining")
            self._writer.force_seal_active()
            self._writer.wait_for_flush_drain()
            self._voice.say("drained")
        else:
            self._writer.force_seal_active()


def draw_settings(draw: random.Random, *, durable: bool = False) -> dict[str, Any]:
    """Settings with small limits, so that everything happens within a few writes; all writes are durable if that is asked."""
    settings: dict[str, Any] = {
        "durable_write": durable or draw.random() < 0.7,
        "fsync": draw.random() < 0.1,
        "max_memtable_rows": draw.choice((1, 8, 25, 80, 1_000)),
        "max_memtable_batches": draw.choice((4, 8, 20, 1_000)),
        "max_wal_flush_interval_ms": draw.choice((1, 5, 20)),
        "max_wal_buffer_size": draw.choice((0, 400, 4_000)),
    }
    if draw.random() < 0.1:
        settings["max_unflushed_memtable_bytes"] = 4_000
    return settings
