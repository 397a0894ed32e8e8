"""Processes that are stopped in the middle of anything, while others take over, write and collect; then they go on.

Owns `Takeovers`: rounds of two or three processes on one table. Each but the last is stopped (SIGSTOP) at a point or at any
instant; the next one takes the table over, acknowledges writes, and tidies up; of three the second does nothing but compact and
collect. The processes of some tables share them, and then the owner of the shards is the one that is stopped. Then the stopped
ones go on (SIGCONT), in any order. Whatever each of them acknowledged, before or after, must be there, once; what it did not is
there wholly or not at all. Who looks at the table after a round makes transactions again of which nobody knows what became.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from tests.harness.crash_report import CrashReport
from tests.harness.deaths import DEADLINE_SECONDS, Actor, bury
from tests.harness.kill_points import ANY_POINT, GC_POINTS, POINTS
from tests.harness.table_crash import SINK_SHAPES, DrawnTable
from tests.harness.table_life import live_table
from tests.harness.table_plan import TableLife

__all__ = ["Takeovers"]

_ROUNDS_PER_TABLE: Final = 6
_SHARED_SHARDS: Final = 2  # who shares waits some seconds per shard for an owner that stands still


class Takeovers:
    """One table and its rounds."""

    def __init__(
        self, directory: str, seed: int, report: CrashReport, target: Callable[..., None] = live_table
    ) -> None:
        again = f"make crash KILLS={_ROUNDS_PER_TABLE} SEED={seed} ARGS=--takeovers"
        self._table = DrawnTable(directory, seed, report, again, target)
        # All its rounds or none: who shares waits a minute for a writer that did not, and was killed.
        self._is_shared = self._table.shape.shards <= _SHARED_SHARDS and self._table.draw.random() < 0.3

    def run(self, takeovers: int) -> None:
        """Make a few rounds, then show that all is there; `takeovers` are wanted at most."""
        try:
            self._run_all(takeovers)
        finally:
            self._table.end_all()

    def _run_all(self, takeovers: int) -> None:
        report = self._table.report
        until = report.takeovers + takeovers
        for _ in range(_ROUNDS_PER_TABLE):
            if report.takeovers >= until:
                break
            self._round()
        self._table.finish()

    def _round(self) -> None:
        table, draw = self._table, self._table.draw
        table.record.settles = False  # until all of them ended: who is stopped may still write
        lives = self._draw_lives(draw.choice((2, 2, 2, 3)))
        table.record.context = f"lives={lives}"
        asleep = [self._run_until_stopped(life) for life in lives[:-1]]
        sleepers = [actor for actor in asleep if actor is not None]
        last = table.begin(lives[-1])
        self._hear_until(last, "done")
        table.report.takeovers += len(sleepers)
        if draw.random() < 0.5:
            sleepers.reverse()
        for actor in sleepers:
            actor.child.resume()
            if draw.random() < 0.5:
                table.watch(actor)
        table.watch(*[actor for actor in sleepers if not actor.ended])
        last.kill()
        table.watch(last)
        table.record.settles = True
        table.look("shared" if self._is_shared else "own")

    def _draw_lives(self, count: int) -> list[TableLife]:
        table, draw = self._table, self._table.draw
        sinks = table.shape.name in SINK_SHAPES and draw.random() < 0.25 and not self._is_shared
        common: dict[str, Any] = {"shows": False, "consumes": False, "alone": False, "parts": count}
        if sinks:  # attempts of the same task
            first = table.life("sink", part=0, **(common | {"parts": 1}))
            common |= {"parts": 1, "seed": first.seed, "first_number": first.first_number}
            twins = {"writes": first.writes, "twin": first.name, "settings": dict(first.settings)}
            lives = [table.life("sink", **common, **twins, **self._stop(i, count)) for i in range(count)]
            if count == 3:  # a collector has none of the keys
                lives[1] = table.life("upkeep", **common, **(self._stop(1, count) | self._collecting()), part=1)
            return lives
        common |= {"changes_columns": False, "settled": table.record.settled()}
        shared = self._is_shared
        lives = []
        for i in range(count):
            mode = draw.choice(("own", "own", "own", "retake", "upkeep"))
            if shared or (i == count - 1 and mode == "upkeep"):
                mode = "shared" if shared else "own"
            given = common | self._stop(i, count) | {"part": i}
            if count == 3 and i == 1:
                mode, given = "upkeep", given | self._collecting()
            lives.append(table.life(mode, **given))
        return lives

    def _collecting(self) -> dict[str, Any]:
        """What a collector does; half of them stop in the middle of it."""
        draw = self._table.draw
        stop = {"stop_at": (draw.choice(GC_POINTS), draw.choice((1, 2, 5)))} if draw.random() < 0.5 else {}
        return {"collects": True, "beside_shared": self._is_shared, "writes": 3, **stop}

    def _stop(self, place: int, count: int) -> dict[str, Any]:
        """Where the process stops, all but the last; half of them at any instant. The last is done before others go on, so that
        nobody may fence it."""
        draw = self._table.draw
        if place == count - 1:
            return {"ending": "linger"}
        chance = draw.random()
        ending = {"ending": draw.choice(("close", "abort")), "may_be_fenced": True}
        if chance < 0.3:
            return ending
        if chance < 0.7:
            return ending | {"stop_at": (ANY_POINT, int(draw.choice((5, 20, 60)) * draw.random()) + 1)}
        return ending | {"stop_at": (draw.choice(POINTS), draw.choice((1, 1, 2)))}

    def _run_until_stopped(self, life: TableLife) -> Actor | None:
        """The process, once it stands still; None if it ended before."""
        actor = self._table.begin(life)
        patience = None if life.stop_at is not None else self._table.draw.random() ** 2 * 0.3
        if patience is not None and life.mode == "shared" and not self._hear_until(actor, "returned"):
            return None  # at any instant of an owner: who stops while it claims holds up its host for half a minute
        if not self._hear_until(actor, "stops", patience):
            return None
        try:
            if patience is not None:
                actor.child.stop()
            actor.child.wait_until_stopped(DEADLINE_SECONDS)
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            self._table.watch(actor)
            return None
        self._table.report.killed_at["any instant" if life.stop_at is None else actor.place] += 1
        return actor

    def _hear_until(self, actor: Actor, tag: str, patience: float | None = None) -> bool:
        """Hear a process until it says `tag`, or for `patience` seconds; False if it ended before."""
        until = time.monotonic() + (patience or 0.0)
        while True:
            try:
                message = actor.child.receive(DEADLINE_SECONDS if patience is None else until - time.monotonic())
            except EOFError:
                bury(actor, lambda what: self._table.record.fail("I12", what), self._table.report)
                return False
            if message is None:
                if patience is None:
                    self._table.record.fail("I12", f"nothing was heard for {DEADLINE_SECONDS} seconds")
                return True
            actor.note(message)
            self._table.record.hear(message)
            if message[0] == tag:
                return True
