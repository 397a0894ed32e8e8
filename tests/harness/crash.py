"""Kill a shard writer again and again, and check after every kill that the shard is what it promised to be.

Owns the harness: it draws lives (settings, writes, where to kill), runs each in a child process, kills it at a named
point, at a random instant, during recovery or during close, and feeds what the child told to the oracle. The next life
opens the shard (that is the recovery) and shows its rows before it writes. After every kill the files are audited, and
every few kills the shard is closed, read by pylance too, and a new table begins.

Invariants that it checks: I1 to I6, I8 to I10 and I12 of the reliability contract; the first broken one ends the run
with the seed that repeats its draws (timing differs).
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Final

import pyarrow as pa

from lance_memwal.shard_writer import ShardWriter
from tests.harness.crash_child import Life, all_rows, live
from tests.harness.crash_tables import KINDS, TableKind
from tests.harness.kill_points import COMPACT_POINTS, FLUSH_POINTS, OPEN_POINTS, PUT_POINTS
from tests.harness.oracle import Oracle
from tests.harness.processes import Child, start
from tests.harness.shard_audit import ShardAudit
from tests.harness.shard_rows import peer_rows, stored_rows

__all__ = ["KILLED", "CrashFailure", "CrashReport", "live_until_killed", "run_crashes"]

KILLED: Final = -9
_LIVES_PER_TABLE = 7
_DEADLINE_SECONDS = 30.0


class CrashFailure(AssertionError):  # noqa: N818 - it is the verdict of a test
    """An invariant is broken."""


@dataclass(slots=True)
class CrashReport:
    """What a run did and saw."""

    kills: int = 0
    lives: int = 0
    tables: int = 0
    writes: int = 0
    opens: int = 0
    killed_at: Counter[str] = field(default_factory=Counter)
    recovery_seconds: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def recovery(self, percent: float) -> float:
        """Seconds within which `percent` of the opens returned."""
        ordered = sorted(self.recovery_seconds)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]

    def __str__(self) -> str:
        places = ", ".join(f"{name} {count}" for name, count in sorted(self.killed_at.items()))
        return (
            f"{self.kills} kills in {self.seconds:.1f} s over {self.tables} tables: {self.writes} acknowledged writes, "
            f"0 lost, 0 phantoms, {self.opens} opens, 0 failed\n"
            f"recovery p50 {self.recovery(50) * 1e3:.1f} ms, p99 {self.recovery(99) * 1e3:.1f} ms, "
            f"max {self.recovery(100) * 1e3:.1f} ms\nkilled at: {places}"
        )


def run_crashes(
    directory: str, kills: int, seed: int = 0, *, target: Callable[[Life, Connection], None] = live
) -> CrashReport:
    """Kill writers of tables below `directory` until `kills` of them died; raise `CrashFailure` if a promise broke.

    `target` runs in the child; a test of the harness gives one that breaks the engine first.
    """
    report = CrashReport()
    started = time.monotonic()
    while report.kills < kills:
        _Shard(directory, seed, report, target).run(kills)
        report.tables += 1
        seed += 1
    report.seconds = time.monotonic() - started
    return report


class _Shard:
    """One table with one shard, and its lives."""

    def __init__(
        self, directory: str, seed: int, report: CrashReport, target: Callable[[Life, Connection], None]
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
        self._life: Life | None = None

    def run(self, kills: int) -> None:
        """Live and die a few times, then close cleanly and let everybody read."""
        for _ in range(_LIVES_PER_TABLE):
            if self._report.kills >= kills:
                break
            self._live_once()
        self._finish()
        shutil.rmtree(self._uri)

    def _live_once(self) -> None:
        self._life = life = self._draw_life()
        child = start(self._target, life)
        place = self._watch(child, life, _draw_death(self._draw, life))
        if child.wait(_DEADLINE_SECONDS) == KILLED:
            self._report.kills += 1
            self._report.killed_at[place] += 1
        self._report.lives += 1
        self._number += life.threads * life.writes
        self._require("after the kill", self._audit.run())

    def _watch(self, child: Child, life: Life, death: _Death) -> str:
        """Hear the child out, and kill it when its time has come; returns where it died."""
        place, hope = death.place, True
        doom = time.monotonic() + death.seconds if death.begins_at == "start" else None
        while True:
            try:
                left = _DEADLINE_SECONDS if doom is None else doom - time.monotonic()
                message = child.receive(left)
            except EOFError:
                return place
            if message is None and doom is None:
                self._fail("I12", f"nothing was heard for {_DEADLINE_SECONDS} seconds")
            if message is None:
                child.kill()
                doom, hope = None, False
                continue
            self._hear(message)
            if message[0] == death.begins_at and doom is None and hope:
                doom = time.monotonic() + death.seconds
            elif message[0] == "done" and life.ending == "linger":
                child.kill()
                doom, place = None, "after the last write"

    def _hear(self, message: tuple[Any, ...]) -> None:
        tag, values = message[0], message[1:]
        oracle = self._oracle
        if tag == "issued":
            oracle.issued(*values)
        elif tag == "returned":
            oracle.returned(values[0], durable=values[1])
            self._report.writes += 1
        elif tag in {"draining", "closing"}:
            oracle.drain_begins()
        elif tag in {"drained", "closed"}:
            oracle.drain_returned()
        elif tag == "opened":
            self._report.opens += 1
            self._report.recovery_seconds.append(values[0])
        elif tag == "rows":
            self._require("after recovery", oracle.check(values[0]))
        elif tag == "failed":
            self._fail("I12", values[0])

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

    def _fail(self, when: str, what: str) -> None:
        raise CrashFailure(f"{when} [seed={self._seed}, life={self._life}, table={self._uri}]: {what}")

    # ------------------------------------------------------------------------------------------------------ the draws

    def _draw_life(self) -> Life:
        draw = self._draw
        threads = draw.choice((1, 1, 2, 3, 4))
        compacts = draw.random() < 0.3
        return Life(
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


@dataclass(frozen=True, slots=True)
class _Death:
    """Where the child dies: by itself at a point, or `seconds` after it started, showed its rows, or began to close."""

    place: str
    begins_at: str = ""
    seconds: float = 0.0


def _draw_death(draw: random.Random, life: Life) -> _Death:
    if life.kill_at is not None:
        return _Death(life.kill_at[0])
    if life.ending == "close" and draw.random() < 0.6:
        return _Death("during close", "closing", draw.random() * 0.05)
    if draw.random() < 0.25:
        return _Death("during recovery", "start", 0.005 + draw.random() * 0.04)
    return _Death("while writing", "rows", draw.random() ** 2 * 0.15)


def _draw_point(draw: random.Random, compacts: bool) -> tuple[str, int] | None:
    if draw.random() < 0.4:
        return None
    if compacts and draw.random() < 0.5:
        return draw.choice(COMPACT_POINTS), 1
    points, most = draw.choice(((OPEN_POINTS, 2), (PUT_POINTS, 40), (PUT_POINTS, 40), (FLUSH_POINTS, 4)))
    return draw.choice(points), draw.randint(1, most)


def _draw_settings(draw: random.Random) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "durable_write": draw.random() < 0.65,
        "fsync": draw.random() < 0.15,
        "max_memtable_rows": draw.choice((8, 25, 80, 1_000)),
        "max_memtable_batches": draw.choice((4, 8, 20, 1_000)),
        "max_wal_flush_interval_ms": draw.choice((1, 5, 20)),
        "max_wal_buffer_size": draw.choice((0, 400, 4_000)),
        "enable_memtable": draw.random() >= 0.08,
    }
    if settings["enable_memtable"] and draw.random() < 0.1:
        settings["max_entry_bytes"] = draw.choice((120, 300))  # the larger writes become generations of their own
    if draw.random() < 0.1:
        settings["max_unflushed_memtable_bytes"] = 3_000
    return settings


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="memwal-crash-") as place:
        count, first = ([int(text) for text in sys.argv[1:3]] + [100, 0][len(sys.argv) - 1 :])[:2]
        print(run_crashes(place, count, first))


def live_until_killed(life: Life, oracle: Oracle) -> bool:
    """Run one life; whether it died by a kill."""
    child = start(live, life)
    while True:
        try:
            message = child.receive(30)
        except EOFError:
            return child.wait(30) == KILLED
        assert message is not None, "the child is silent"
        match message:
            case ("issued", thread, write):
                oracle.issued(thread, write)
            case ("returned", thread, durable):
                oracle.returned(thread, durable=durable)
            case ("rows", rows):
                assert oracle.check(rows) == []
            case ("failed", text):
                raise AssertionError(text)
            case ("done",):
                child.kill()
