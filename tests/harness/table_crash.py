"""Lives over whole tables, of one process or several at once, that are killed or stopped anywhere."""

import os
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from tests.harness.deaths import DEADLINE_SECONDS, NEVER, Actor, CrashReport, Death, Ends, bury, watch
from tests.harness.kill_points import ANY_POINT, GC_POINTS, POINTS
from tests.harness.processes import start
from tests.harness.shard_crash import draw_settings
from tests.harness.table_life import live_table
from tests.harness.table_record import TableRecord
from tests.harness.table_shapes import CONSUMER, SHAPES, Repeat, Shape, TableLife, finish_table

LIVES_PER_TABLE: Final = 16
_KNOWN_REPEATED: Final = 2
_MODES: Final = ("own", "own", "own", "own", "own", "sink", "upkeep")
_SHARED_MODES: Final = ("shared", "shared", "shared", "upkeep")
_SHARED_TABLES: Final = 5  # every fifth table is shared: a shared writer waits a minute for a killed exclusive writer
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
        table.consumers.open(CONSUMER, start="earliest")

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
        watch(actors, self.record.hear, lambda what: self.record.fail("I12", what), self.report)

    def finish(self) -> None:
        """Show that the table is whole, and forget it."""
        self.record.settles = True
        life = self.life("upkeep", settings={}, ending="close")
        self.record.context = f"at the end, shape={self.shape}, table={self.uri}"
        self.watch(self.begin(life, target=finish_table))
        shutil.rmtree(self.uri)


class TableLives:
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
    settings = draw_settings(draw, durable=mode == "shared")
    if draw.random() < 0.25:
        settings["max_entry_bytes"] = draw.choice((600, 3_000))  # the larger writes become generations of their own
    if mode != "sink" and draw.random() < 0.3:
        settings["max_open_shards"] = draw.choice((1, 3))
    if draw.random() < 0.2:
        settings["commit_linger_ms"] = 2
    return settings


# Processes that are stopped in the middle of anything, while others take over, write and collect; then they go on.
#
# Each but the last is stopped (SIGSTOP) at a point or at any instant; the next one takes the table over, acknowledges
# writes, and tidies up; of three the second does nothing but compact and collect. The processes of some tables share
# them: the next one appends in the same epoch. Then the stopped ones go on (SIGCONT), in any
# order. Whatever each of them acknowledged, before or after, must be there, once; what it did not is there wholly or
# not at all. Who looks at the table after a round makes transactions again of which nobody knows what became.

_ROUNDS_PER_TABLE: Final = 6
_SHARED_SHARDS: Final = 2  # a stopped process may hold the kernel lock of each shard, for some seconds


class Takeovers:
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
            mode = draw.choice(("own", "own", "own", "own", "upkeep"))
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
