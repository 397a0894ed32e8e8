"""The process that is killed: one life of a shard writer, telling every step before and after it happens.

Owns `ShardLife` (what to do, drawn by the parent) and `live` (doing it). Messages go through a pipe in the order in which
things happened; what was sent before the kill arrives. Tags: opened, rows, issued, returned, draining, drained, closing,
closed, done, failed, and those of `obey_points`.
"""

from __future__ import annotations

import faulthandler
import random
import signal
import threading
import time
import traceback
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import pyarrow as pa

from lance_memwal.shard_writer import ShardWriter
from lance_memwal.table import open_table
from tests.harness.crash_tables import TableKind
from tests.harness.kill_points import obey_points
from tests.harness.oracle import Write
from tests.harness.same_rows import require_same
from tests.harness.shard_rows import merged_rows
from tests.harness.voice import Voice

__all__ = ["KEYS", "ShardLife", "all_rows", "live"]

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
    require_same("scan", writer.lsm_scan().to_table(), rows)
    if kind.has_key:
        require_same("lookup", writer.lookup(kind.keys_of(range(KEYS))), rows)
    return rows


def _write_all(writer: ShardWriter, life: ShardLife, voice: Voice) -> None:
    failures: list[str] = []

    def run(thread: int) -> None:
        try:
            _Scribe(writer, life, voice, thread).run()
        except BaseException:
            failures.append(traceback.format_exc())

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(life.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise AssertionError("\n".join(failures))


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
        """All writes of this thread."""
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
