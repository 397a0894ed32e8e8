"""Lives over whole tables, of one process or several at once, that are killed anywhere.

Owns `TableLives`: it draws what kind of table a number is, and for every life its settings, its writes, and where it ends. The
next life shows what is left before it goes on, and makes transactions again: all of which nobody knows whether they landed, and
some that are known to be there. After a few lives the table must still do everything: see `finish_table`.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from tests.harness.crash_report import CrashReport
from tests.harness.deaths import DEADLINE_SECONDS, NEVER, Actor, Death, Ends, watch
from tests.harness.kill_points import ANY_POINT, POINTS
from tests.harness.processes import start
from tests.harness.settings import draw_settings
from tests.harness.table_finish import finish_table
from tests.harness.table_life import live_table
from tests.harness.table_looks import CONSUMER
from tests.harness.table_plan import Repeat, TableLife
from tests.harness.table_record import TableRecord
from tests.harness.table_shapes import SHAPES, Shape

__all__ = ["LIVES_PER_TABLE", "SINK_SHAPES", "DrawnTable", "TableLives"]

LIVES_PER_TABLE: Final = 16
_KNOWN_REPEATED: Final = 2
_MODES: Final = ("own", "own", "own", "own", "retake", "sink", "upkeep")
_SHARED_MODES: Final = ("shared", "shared", "shared", "upkeep")
_SHARED_TABLES: Final = (
    5  # every so many tables is shared: who shares waits a minute for a writer that did not, and was killed
)
_ENDS: Final = Ends(closing_share=0.5, recovery_seconds=0.06, begins_at="opened", writing_seconds=0.4)
SINK_SHAPES: Final = ("append", "upsert", "composite", "last_write", "blobs", "search", "blobs_second")


class DrawnTable:
    """One table, all that its number decides, and what is known of it."""

    def __init__(self, directory: str, seed: int, report: CrashReport, again: str, target: Callable[..., None]) -> None:
        """`target` runs in every process but the last."""
        self._target = target
        self.draw = draw = random.Random(seed)
        # Every shape meets everything else that follows from the number.
        shape = SHAPES[(seed + seed // len(SHAPES)) % len(SHAPES)]
        self.shape = Shape(shape, draw.choice((0, 0, 1, 2, 4, 16)))
        self.uri = os.path.join(directory, f"table-{seed}")
        self.report = report
        self.record = TableRecord(report, again)
        self.number = 1
        self.lives = 0
        self._actors: list[Actor] = []
        table = self.shape.create(self.uri)
        table.consumer(CONSUMER, start="earliest")

    def life(self, mode: str, **given: Any) -> TableLife:
        """A life of this mode, drawn where nothing is given."""
        draw, record = self.draw, self.record
        threads = 1 if mode in ("sink", "upkeep") else draw.choice((1, 1, 2, 3))
        drawn: dict[str, Any] = {
            "uri": self.uri,
            "shape": self.shape,
            "seed": draw.getrandbits(32),
            "name": self.next_name(),
            "first_number": self.number,
            "mode": mode,
            "threads": threads,
            "writes": draw.choice((3, 8, 8) if mode == "upkeep" else (5, 12, 30)) // threads + 1,
            "settings": _draw_settings(draw, mode),
            "changes_columns": threads == 1 and mode == "own" and draw.random() < 0.5,
            "retired": frozenset(record.retired),
            "next_column": record.next_column,
            "checkpoints": dict(record.checkpoints),
            "ending": draw.choice(("linger", "linger", "close", "abort")),
        }
        life = TableLife(**(drawn | given))
        self.number = max(self.number, life.own_numbers + life.threads * (life.writes + 1))
        self.report.kinds[f"{life.mode} {self.shape.name}"] += 1
        return life

    def next_name(self) -> int:
        """A name for a life that no other has."""
        self.lives += 1
        return self.lives

    def repeats(self, *, sink: bool = False, known: int = _KNOWN_REPEATED) -> tuple[Repeat, ...]:
        """Transactions that the next life makes again: all unknown ones, and `known` of those that are there."""
        listed = self.record.repeats(sink=sink)
        unknown = [repeat for repeat in listed if self.record.is_unknown(repeat.attempt)]
        rest = [repeat for repeat in listed if repeat not in unknown]
        return (*unknown, *self.draw.sample(rest, min(known, len(rest))))

    def look(self, mode: str = "own") -> None:
        """Processes that show what is there, make transactions again, and do nothing else; `mode` is that of their writer."""
        repeats = {mode: self.repeats(), "sink": self.repeats(sink=True)}
        lives = [self.life(mode, writes=0, repeats=given, ending="close") for mode, given in repeats.items() if given]
        for life in lives or [self.life("upkeep", writes=0, ending="close")]:
            self.record.context = f"a look, life={life}"
            self.watch(self.begin(life))

    def begin(self, life: TableLife, death: Death = NEVER, target: Callable[..., None] | None = None) -> Actor:
        """A process that lives `life`; it does not outlive a broken promise."""
        actor = Actor(start(target or self._target, life), death, lingers=life.ending == "linger")
        self._actors = [*(one for one in self._actors if not one.ended), actor]
        return actor

    def end_all(self) -> None:
        """Kill whatever process of this table there is, stopped or not."""
        for actor in self._actors:
            actor.kill()

    def watch(self, *actors: Actor) -> None:
        """Hear these processes until they ended."""
        watch(actors, self.record.hear, lambda what: self.record.fail("I12", what), self.report)

    def finish(self) -> None:
        """Show that the table is whole, and forget it."""
        self.record.settles = True
        life = self.life("upkeep", settings={}, ending="close")
        self.record.context = f"at the end, shape={self.shape}, table={self.uri}"
        self.watch(self.begin(life, target=finish_table))
        shutil.rmtree(self.uri)


class TableLives:
    """One table and its lives."""

    def __init__(
        self,
        directory: str,
        seed: int,
        report: CrashReport,
        lives: int = LIVES_PER_TABLE,
        target: Callable[..., None] = live_table,
    ) -> None:
        self._lives = lives
        again = f"make crash KILLS={LIVES_PER_TABLE} SEED={seed} ARGS='--only table'"
        self._table = DrawnTable(directory, seed, report, again, target)
        self._modes = _SHARED_MODES if seed % _SHARED_TABLES == 0 else _MODES

    def run(self, kills: int) -> None:
        """Live and die a few times, then show that all is there; `kills` are wanted at most."""
        try:
            self._run_all(kills)
        finally:
            self._table.end_all()

    def _run_all(self, kills: int) -> None:
        until = self._table.report.kills + kills
        for _ in range(self._lives):
            if self._table.report.kills >= until:
                break
            self._live_once()
        self._table.look("shared" if self._modes is _SHARED_MODES else "own")
        self._table.finish()

    def _live_once(self) -> None:
        table, draw = self._table, self._table.draw
        mode = draw.choice(self._modes)
        if mode == "sink" and table.shape.name not in SINK_SHAPES:
            mode = "own"
        repeats = () if mode == "upkeep" else table.repeats(sink=mode == "sink")
        lives = [table.life(mode, kill_at=_draw_point(draw), repeats=repeats)]
        if mode in ("shared", "sink") and draw.random() < 0.6:
            lives = self._together(lives[0])
        table.record.context = f"lives={lives}"
        self._run_together(lives)

    def _together(self, first: TableLife) -> list[TableLife]:
        """Two processes at once: they share the table, or are attempts of the same task. The second is not killed early."""
        table = self._table
        if first.mode == "sink":
            twin = replace(first, twin=first.name, alone=False)
            after = {"first_number": first.own_numbers, "repeats": (), "shows": False, "consumes": False}
            return [twin, replace(twin, name=table.next_name(), kill_at=None, **after)]
        common: dict[str, Any] = {"parts": 2, "alone": False}
        second = table.life("shared", part=1, shows=False, consumes=False, ending="close", **common)
        return [replace(first, part=0, **common), second]

    def _run_together(self, lives: list[TableLife]) -> None:
        table = self._table
        actors = []
        settled = None
        for life in lives:
            death = _ENDS.draw(table.draw, life.kill_at, life.ending) if life is lives[0] else NEVER
            actors.append(table.begin(life if life.shows else replace(life, settled=settled), death))
            if life is not lives[-1]:
                if not self._wait_until_open(actors[-1]):
                    break  # nobody knows what became of its repeats, so that nobody may write over them
                settled = table.record.settled()
        table.watch(*actors)

    def _wait_until_open(self, actor: Actor) -> bool:
        """Let the first process show its rows, which settles what was before, before another one writes; False if it died."""
        while True:
            try:
                message = actor.child.receive(DEADLINE_SECONDS)
            except EOFError:
                return False
            if message is None:
                self._table.record.fail("I12", "a process showed no rows")
                return False
            actor.hear(message)
            self._table.record.hear(message)
            if message[0] == "opened":
                return True


def _draw_point(draw: random.Random) -> tuple[str, int] | None:
    chance = draw.random()
    if chance < 0.35:
        return None
    if chance < 0.75:
        return ANY_POINT, int(draw.choice((3, 10, 40, 120)) * draw.random()) + 1
    return draw.choice(POINTS), draw.choice((1, 1, 2, 5))


def _draw_settings(draw: random.Random, mode: str) -> dict[str, Any]:
    settings = draw_settings(draw, durable=mode in ("shared", "retake"))
    if draw.random() < 0.25:
        settings["max_entry_bytes"] = draw.choice((600, 3_000))  # the larger writes become generations of their own
    if mode != "sink" and draw.random() < 0.3:
        settings["max_open_shards"] = draw.choice((1, 3))
    if draw.random() < 0.2:
        settings["commit_linger_ms"] = 2
    return settings
