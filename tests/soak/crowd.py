"""Starts the processes of a soak, kills some of them, hears all of them, and judges what they saw.

Owns `Soak`. Writers share the table; the first one and the reader live from the beginning to the end, the others are killed now
and then (whoever owns a shard is taken over from). An intruder claims all shards from time to time. All but the first writer have
stores that fail: what that one is told must come from others.
The first broken promise ends the run: a read that is wrong, a process that ends although nobody killed or stopped it, or an error
that nothing here explains.
"""

import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.harness.deaths import DEADLINE_SECONDS, KILLED
from tests.harness.processes import Child, start
from tests.kit.log_life import Ledger, Write
from tests.kit.tables import compact_everything
from tests.soak import children
from tests.soak.children import NUMBERS_PER_LIFE, SoakLife, make_table, numbers_of
from tests.soak.figures import Moment, measure, percentile

_JUDGED_AFTER = 1.0  # seconds in which what was said before a read has arrived
_FORGET_SECONDS = 5.0
_END_SECONDS = 120.0
_BEAT_SECONDS = 0.05
_HEAR_SECONDS = 0.5
# Of a role whose store works: an exclusive writer claimed its shard.
_OF_OTHERS = frozenset({"ConflictError", "FencedError", "UnavailableError", "WriterPoisonedError"})
# Of a role that writes no rows, and whose store fails: nothing else is its own, and nobody takes a shard from it.
_OF_ITS_STORE = frozenset({"UnavailableError"})


class SoakFailure(AssertionError):  # noqa: N818 - it is the verdict of a test
    """A promise is broken."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of everything. Times are seconds; `seed` draws keys, writes, victims and faults."""

    seconds: float
    seed: int = 0
    rows: int = 20_000
    shards: int = 4
    writers: int = 4
    writes_per_second: float = 8.0
    reads_per_second: float = 4.0
    maintain_every: float = 5.0
    keep_seconds: float = 30.0
    kill_every: float = 7.0
    intrude_every: float = 20.0
    fault_rate: float = 0.02
    report_every: float = 60.0


@dataclass(slots=True)
class _Role:
    """One seat among the processes; who sits there changes."""

    name: str
    work: Callable[..., None]
    keys: range
    per_second: float
    mortal: bool
    fault_rate: float = 0.0
    writes: bool = False
    child: Child | None = None
    numbers: range = range(0)
    ended: bool = False


@dataclass(slots=True)
class Counts:
    """What happened, for the report."""

    kills: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    intrusions: int = 0
    maintenances: int = 0
    reads: int = 0
    scans: int = 0
    changes: int = 0


class Soak:
    """One table and its processes, for as long as the plan says."""

    def __init__(self, place: Path, plan: Plan, tell: Callable[[str], None] = print) -> None:
        self.plan = plan
        self.table = make_table(place / "t", plan.rows, plan.shards)
        self.ledger = Ledger(range(plan.rows))
        self.counts = Counts()
        self.moments: list[Moment] = []
        self._tell = tell
        self._draw = random.Random(plan.seed)
        self._stop = str(place / "stop")
        self._lives = 0
        self._replica: dict[int, int | None] = {}
        self._timed: dict[str, list[float]] = defaultdict(list)
        self._window: dict[str, list[float]] = defaultdict(list)
        self._seen: list[tuple[dict[int, int], Sequence[int], float, float]] = []
        self._heard: set[str] = set()
        self._roles = self._seats()

    def _seats(self) -> list[_Role]:
        plan, everything = self.plan, range(self.plan.rows)
        own = [range(number, plan.rows, plan.writers + 1) for number in range(plan.writers + 1)]
        pace, rate = plan.writes_per_second, plan.fault_rate
        writers = [
            _Role(f"writer {n}", children.write, own[n], pace, n > 0, fault_rate=rate if n > 0 else 0.0, writes=True)
            for n in range(plan.writers)
        ]
        return [
            *writers,
            _Role("reader", children.read, everything, plan.reads_per_second, mortal=False, fault_rate=rate),
            _Role("keeper", children.keep, everything, 1 / plan.maintain_every, mortal=True, fault_rate=rate),
            _Role("follower", children.follow, everything, 1.0, mortal=True, fault_rate=rate),
            _Role("intruder", children.intrude, own[-1], 20.0, mortal=False, fault_rate=rate, writes=True),
        ]

    # ------------------------------------------------------------------------------------------------------------ the run

    def run(self) -> None:
        """Everything at once; raises `SoakFailure` if a promise broke, and measures once a second. Time counts from when
        every process has been heard."""
        for role in sorted(self._roles[:-1], key=lambda role: not role.mortal):  # so that the mortal own the shards
            self._start(role)
        try:
            self._await("every process is at work", lambda: self._heard >= {role.name for role in self._roles[:-1]})
            self._live(time.monotonic())
            self._finish()
        finally:
            for role in self._roles:
                if role.child is not None:
                    role.child.kill()

    @property
    def _intruder(self) -> _Role:
        return self._roles[-1]

    def _live(self, began: float) -> None:
        due = {"measure": began + 1, "kill": began + self.plan.kill_every, "intrude": began + self.plan.intrude_every}
        due |= {"forget": began + _FORGET_SECONDS, "report": began + self.plan.report_every}
        period = {"measure": 1.0, "kill": self.plan.kill_every, "intrude": self.plan.intrude_every}
        period |= {"forget": _FORGET_SECONDS, "report": self.plan.report_every}
        steps = {"measure": lambda: self._measure(began), "kill": self._kill_one, "intrude": self._intrude}
        steps |= {"forget": lambda: self.ledger.forget(time.monotonic()), "report": lambda: self._report(began)}
        while time.monotonic() < began + self.plan.seconds:
            self._hear()
            now = time.monotonic()
            for name in [name for name, when in due.items() if when <= now]:
                due[name] = now + period[name]
                steps[name]()

    def _start(self, role: _Role) -> None:
        self._lives += 1
        role.numbers = range(self._lives * NUMBERS_PER_LIFE, (self._lives + 1) * NUMBERS_PER_LIFE)
        life = SoakLife(
            uri=self.table.uri,
            stop=self._stop,
            seed=self._draw.getrandbits(32),
            keys=role.keys,
            first_number=role.numbers.start,
            per_second=role.per_second,
            fault_rate=role.fault_rate,
            keep_seconds=self.plan.keep_seconds,
        )
        role.child, role.ended = start(role.work, life), False

    def _kill_one(self) -> None:
        victim = self._draw.choice([role for role in self._roles if role.mortal])
        assert victim.child is not None
        victim.child.kill()
        self.counts.kills[victim.name.split()[0]] += 1
        self._bury(victim, killed=True)
        self._start(victim)

    def _bury(self, role: _Role, *, killed: bool = False) -> None:
        """Hear the last words of a dead process, give up what it was about to do, and judge how it ended."""
        assert role.child is not None
        while True:
            try:
                message = role.child.receive(DEADLINE_SECONDS)
            except EOFError:
                break
            assert message is not None, "a dead process keeps its pipe"
            self._take(role, message)
        status = role.child.wait(DEADLINE_SECONDS)
        role.child = None
        self.ledger.lost_by(role.numbers, time.monotonic())
        if status != KILLED if killed else (status != 0 or not self._may_end(role)):
            raise SoakFailure(f"{role.name} ended by itself with exit status {status} [seed={self.plan.seed}]")

    def _may_end(self, role: _Role) -> bool:
        """Whether it said that it is at its end, and was to come there: the intruder soon, the others when they are stopped."""
        return role.ended and (role is self._intruder or os.path.exists(self._stop))

    def _intrude(self) -> None:
        if self._intruder.child is None:
            self._start(self._intruder)
            self.counts.intrusions += 1

    # ------------------------------------------------------------------------------------------------------------ hearing

    def _hear(self) -> None:
        """Take what everybody has said by now, which ends after about `_HEAR_SECONDS` however much it is, and judge what was
        seen a while ago if nothing was left unheard. Takes `_BEAT_SECONDS` at least."""
        began = time.monotonic()
        heard = [self._hear_one(role, began + _HEAR_SECONDS) for role in self._roles]
        time.sleep(max(0.0, began + _BEAT_SECONDS - time.monotonic()))
        if all(heard):
            self._judge(began - _JUDGED_AFTER)

    def _hear_one(self, role: _Role, until: float) -> bool:
        """Take what one process has said by now; whether that was all before `until`."""
        while role.child is not None:
            if time.monotonic() > until:
                return False
            try:
                message = role.child.receive(0)
            except EOFError:
                self._bury(role)
                break
            if message is None:
                break
            self._take(role, message)
        return True

    def _take(self, role: _Role, message: tuple[object, ...]) -> None:
        self._heard.add(role.name)
        match message:
            case ("issued", Write() as write):
                self.ledger.issued(write)
            case ("acked", int(number), float(at), str(kind), float(ms)):
                self.ledger.returned(number, at)
                self._time(kind, ms, ms)
            case ("failed", int(number), float(at), str(text)):
                self.ledger.lost(number, at)
                self._wrong(role, text)
            case ("refused", str(text)):
                self._wrong(role, text)
            case ("read", str(kind), dict(seen), list(keys), float(began), float(ended), float(cost)):
                self._time(kind, 1000 * (ended - began), cost)
                self.counts.reads += 1
                self._seen.append((seen, keys, began, ended))
            case ("scanned", dict(seen), float(began), float(ended)):
                self.counts.scans += 1
                self._seen.append((seen, range(self.plan.rows), began, ended))
            case ("changes", list(changes)):
                self.counts.changes += len(changes)
                self._replica.update(changes)
            case ("maintained", float()):
                self.counts.maintenances += 1
            case ("ended",):
                role.ended = True
            case ("broken", str(text)):
                raise SoakFailure(f"{role.name} failed [seed={self.plan.seed}]:\n{text}")
            case _:
                raise SoakFailure(f"{role.name} said what nobody knows [seed={self.plan.seed}]: {message}")

    def _wrong(self, role: _Role, text: str) -> None:
        """Something failed by a typed error. Of a write any is allowed where the store of the role fails, elsewhere only those of
        a shard that an exclusive writer claimed; of all else only that the store failed."""
        name = text.partition(":")[0]
        self.counts.errors[name] += 1
        if not role.fault_rate and name not in _OF_OTHERS:
            raise SoakFailure(
                f"a write of {role.name} failed although its store is well [seed={self.plan.seed}]: {text}"
            )
        if not role.writes and name not in _OF_ITS_STORE:
            raise SoakFailure(f"{role.name} failed as no store explains [seed={self.plan.seed}]: {text}")

    def _time(self, kind: str, milliseconds: float, cost: float) -> None:
        """How long a call took, which is printed, and what it cost, which must not grow."""
        self._timed[kind].append(cost)
        self._window[kind].append(milliseconds)

    def _judge(self, before: float) -> None:
        ripe = [seen for seen in self._seen if seen[3] <= before]
        self._seen = [seen for seen in self._seen if seen[3] > before]
        for seen, keys, began, ended in ripe:
            broken = self.ledger.wrong(seen, keys, began, ended)
            if broken:
                raise SoakFailure(
                    f"a read was wrong [seed={self.plan.seed}]: {len(broken)} keys; " + "; ".join(broken[:3])
                )

    # ---------------------------------------------------------------------------------------------------------- measuring

    def _measure(self, began: float) -> None:
        steady = [
            role.child.pid for role in self._roles if not role.mortal and role.child and role is not self._intruder
        ]
        timed, self._timed = self._timed, defaultdict(list)
        self.moments.append(measure(self.table, time.monotonic() - began, steady, timed))

    def _report(self, began: float) -> None:
        window, self._window = self._window, defaultdict(list)
        now = self.moments[-1]
        times = ", ".join(
            f"{kind} {percentile(ms, 50):.1f}/{percentile(ms, 99):.0f}" for kind, ms in sorted(window.items())
        )
        self._tell(
            f"{(time.monotonic() - began) / 60:5.1f} min: p50/p99 ms {times} | {now.rss_mib:.0f} MiB, {now.threads:.0f} threads, "
            f"{now.descriptors:.0f} files, {now.objects:.0f} objects, {now.uncompacted:.0f} SSTables | "
            f"{self.ledger.acknowledged} acknowledged, {self.ledger.failed} failed, {sum(self.counts.kills.values())} kills"
        )

    # ------------------------------------------------------------------------------------------------------------ the end

    def _finish(self) -> None:
        """Let everybody stop, then compare: a scan, the base table after all of it is in it, and the consumer's rows."""
        Path(self._stop).touch()
        stopping = [role for role in self._roles if role.work is not children.follow]
        self._await("every process has stopped", lambda: all(role.child is None for role in stopping))
        self._judge(time.monotonic())
        began = time.monotonic()
        seen = numbers_of(self.table.scan(["id", "n", "t"]).to_table())
        self._compare("the last scan", seen, began)
        self._await("the consumer has every row", lambda: self._follows(seen))
        report = self.table.verify()
        if not report.ok:
            raise SoakFailure(f"verify: {report.problems[:5]}")
        compact_everything(self.table)
        base = numbers_of(self.table.dataset.to_table(["id", "n", "t"]))
        if base != seen:  # nobody wrote in between
            differ = sorted(key for key in base.keys() | seen.keys() if base.get(key) != seen.get(key))
            shown = [(key, base.get(key), seen.get(key)) for key in differ[:3]]
            raise SoakFailure(
                f"the base table is not the last scan [seed={self.plan.seed}]: {len(differ)} keys; {shown}"
            )

    def _compare(self, what: str, seen: dict[int, int], began: float) -> None:
        broken = self.ledger.wrong(seen, range(self.plan.rows), began, began)
        if broken:
            raise SoakFailure(f"{what} [seed={self.plan.seed}]: {len(broken)} keys; " + "; ".join(broken[:3]))

    def _follows(self, seen: dict[int, int]) -> bool:
        """Whether the consumer, killed and started again all the time, has these rows."""
        return {key: number for key, number in self._replica.items() if number is not None} == seen

    def _await(self, what: str, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _END_SECONDS
        while not done():
            if time.monotonic() > deadline:
                raise SoakFailure(f"not within {_END_SECONDS} seconds [seed={self.plan.seed}]: {what}")
            self._hear()

    def summary(self) -> str:
        counts = self.counts
        return (
            f"{self.ledger.acknowledged} writes acknowledged, {self.ledger.failed} failed or lost "
            f"({dict(counts.errors)}), kills {dict(counts.kills)}, {counts.intrusions} intrusions, "
            f"{sum(shard.epoch for shard in self.table.shards())} claims, {counts.maintenances} maintenances, "
            f"{counts.reads} reads and {counts.scans} scans judged, {counts.changes} changes followed; "
            f"0 lost, 0 invented [seed={self.plan.seed}, pid={os.getpid()}]"
        )
