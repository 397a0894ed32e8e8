"""Lives of the writer of one shard: killed, recovered, and killed again.

Owns `ShardLives`, the kind of lives in which a shard writer has a shard to itself, and `live_until_killed`, one such life for
tests that choose where it ends. The next life opens the shard (that is the recovery) and shows its rows before it writes.
After every kill the files are audited, and every few kills the shard is closed, read by pylance too, and a new table begins.
"""

from __future__ import annotations

import os
import random
import shutil
import uuid
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import pyarrow as pa

from lance_memwal.shard_writer import ShardWriter
from tests.harness.crash_child import Life, all_rows, live
from tests.harness.crash_report import CrashFailure, CrashReport
from tests.harness.crash_tables import KINDS, TableKind
from tests.harness.deaths import DEADLINE_SECONDS, KILLED, Actor, Death, watch
from tests.harness.kill_points import COMPACT_POINTS, FLUSH_POINTS, OPEN_POINTS, PUT_POINTS
from tests.harness.oracle import Oracle
from tests.harness.processes import start
from tests.harness.shard_audit import ShardAudit
from tests.harness.shard_rows import peer_rows, stored_rows

__all__ = ["ShardLives", "live_until_killed"]

_LIVES_PER_TABLE = 7


class ShardLives:
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
        actor = Actor(start(self._target, life), _draw_death(self._draw, life), lingers=life.ending == "linger")
        watch([actor], self._hear, lambda what: self._fail("I12", what), self._report)
        self._report.kinds["shard"] += 1
        self._number += life.threads * life.writes
        self._require("after the kill", self._audit.run())

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
        elif tag != "done":
            self._fail("I12", f"a process said {tag!r}, which nobody knows")

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
        again = f"make crash KILLS={_LIVES_PER_TABLE} SEED={self._seed} ARGS='--only shard'"
        raise CrashFailure(f"{when} [life={self._life}, table={self._uri}]: {what}\n  repeat it with: {again}")

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


def _draw_death(draw: random.Random, life: Life) -> Death:
    if life.kill_at is not None:
        return Death(life.kill_at[0])
    if life.ending == "close" and draw.random() < 0.6:
        return Death("during close", "closing", draw.random() * 0.05)
    if draw.random() < 0.25:
        return Death("during recovery", "start", 0.005 + draw.random() * 0.04)
    return Death("while writing", "rows", draw.random() ** 2 * 0.15)


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


def live_until_killed(life: Life, oracle: Oracle) -> bool:
    """Run one life; whether it died by a kill: its own at a point, or ours once a life that lingers is done."""
    child = start(live, life)
    while True:
        try:
            message = child.receive(DEADLINE_SECONDS)
        except EOFError:
            status = child.wait(DEADLINE_SECONDS)
            assert status in (0, KILLED), f"the child ended by itself with exit status {status}"
            return status == KILLED
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
            case ("done",) if life.ending == "linger":
                child.kill()
