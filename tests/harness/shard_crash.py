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
from tests.harness.crash_child import ShardLife, all_rows, live
from tests.harness.crash_report import CrashFailure, CrashReport
from tests.harness.crash_tables import KINDS, TableKind
from tests.harness.deaths import NEVER, Actor, Death, Ends, watch
from tests.harness.kill_points import COMPACT_POINTS, FLUSH_POINTS, OPEN_POINTS, PUT_POINTS
from tests.harness.oracle import Broken, Oracle
from tests.harness.processes import start
from tests.harness.settings import draw_settings
from tests.harness.shard_audit import ShardAudit
from tests.harness.shard_rows import peer_rows, stored_rows

__all__ = ["ShardLives", "live_until_killed"]

_LIVES_PER_TABLE = 7
_ENDS = Ends(closing_share=0.6, recovery_seconds=0.04, begins_at="rows", writing_seconds=0.15)


class ShardLives:
    """One table with one shard, and its lives."""

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
