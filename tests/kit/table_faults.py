"""Faults at the store calls of a life of a table: one at a time, and pairs.

Owns the plans. Invariants:

1. A plan is made of calls that were recorded: the life without faults for the first fault, the life with the first fault for
   the second one. So most planned faults are met; where a call came at another place, the life counts for what it met.
2. Kinds that the contract of a store forbids are told apart: after one that leaves damage behind, storage may be refused, with
   the place of the damage.
3. What nothing could notice is left out: a listing that misses names (S5), and a wrong bit in an object whose format, which is
   Lance's, has no checksum. Entries and remembered deletes have one.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

import pyarrow as pa

import lance_memwal as mw
from lance_memwal.process.cache import CACHE
from lance_memwal.testing import FaultKind, FaultPlan, FaultScript, StoreCall
from tests.harness.profile import scaled
from tests.kit.log_life import record as record_calls
from tests.kit.table_life import CanonicalLife, Place, Row

KINDS = tuple(kind for kind in FaultKind if kind is not FaultKind.LIST_MISSES)
CRASHES = frozenset({FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER})
_CHECKED = re.compile(r"/(wal|memwal_deletes)/")
_EFFECTS = frozenset({"put_new", "put", "delete"})
_LATE_AFTER_CALLS = (0, 3, 40)
_SECONDS_PER_FIRST = 5
_NEAR = 14
_MISREAD = frozenset({FaultKind.SHORT_READ, FaultKind.BIT_FLIP})
_TRIES = 3


@dataclass(frozen=True, slots=True)
class _Aimed(FaultPlan):
    """A plan whose faults go by where the call at their place cannot meet them: time may have moved the calls."""

    def fault(self, index: int, call: str) -> FaultKind | None:
        planned = self.at.get(index)
        return planned if planned is not None and planned.applies_to(call) else None


@dataclass(frozen=True, slots=True)
class Planned:
    """The faults of one life: by call, for each of its processes."""

    at: tuple[Mapping[int, FaultKind], ...]
    seed: int = 0
    late_after_calls: int = 3

    def __str__(self) -> str:
        told = [{index: kind.value for index, kind in at.items()} for at in self.at]
        return f"{told} seed={self.seed} late={self.late_after_calls}"

    def scripts(self) -> list[FaultScript]:
        return [FaultScript(_Aimed(at=at, seed=self.seed, late_after_calls=self.late_after_calls)) for at in self.at]


@dataclass
class Sweep:
    """Lives at one place, and what came of them."""

    place: Place
    life: type[CanonicalLife] = CanonicalLife
    lives: int = 0
    unmet: int = 0
    met: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    failed: list[tuple[Planned, str]] = field(default_factory=list)

    def live(self, planned: Planned) -> list[FaultScript]:
        """One life; its scripts, with what they recorded."""
        scripts = planned.scripts()
        life = self.life(self.place, f"{self.life.__name__}{self.lives:06d}", scripts)
        self.lives += 1
        found = life.run()
        injected = [call for script in scripts for call in script.injected]
        self.met[f"{len(injected)} faults"] += 1
        self.met.update(call.fault.value for call in injected if call.fault is not None)
        if not found and life.oracle.refused and _goes_unseen(injected):
            found = [f"a user saw it: {life.oracle.refused[0]}"]
        told = [line for line in life.oracle.refused if ": CorruptDataError: " in line]
        if len(told) > 1 and len(injected) == 1 and injected[0].fault in _MISREAD:
            found.append(f"one bad read was told {len(told)} times, last: {told[-1]}")
        self.refused.update(line.partition(": ")[2].partition(":")[0] for line in life.oracle.refused)
        where = ", ".join(f"{call.kind} {call.path}" for call in injected)
        self.broken += [f"{planned} ({where}): {line}" for line in found]
        if found:
            self.failed.append((planned, self.broken[-len(found)]))
        return scripts

    def meet(self, planned: Planned) -> None:
        """Live until what is planned was met, a few times: time may move calls."""
        wanted = sum(map(len, planned.at))
        for _ in range(_TRIES):
            if sum(len(script.injected) for script in self.live(planned)) == wanted:
                return
        self.unmet += 1

    def add(self, other: Sweep) -> None:
        """What came of other lives counts here, too."""
        self.lives += other.lives
        self.unmet += other.unmet
        self.met.update(other.met)
        self.refused.update(other.refused)
        self.broken += other.broken
        self.failed += other.failed


def _goes_unseen(injected: Sequence[StoreCall]) -> bool:
    """Whether users must not notice: one fault that stores may have, and retries are for."""
    return len(injected) == 1 and all(c.fault not in CRASHES and c.fault.keeps_contract for c in injected if c.fault)


def can_meet(call: StoreCall) -> list[FaultKind]:
    """The kinds of fault that a sweep puts at this call."""
    kinds = [kind for kind in KINDS if kind.applies_to(call.kind)]
    return kinds if _CHECKED.search(call.path) else [kind for kind in kinds if kind is not FaultKind.BIT_FLIP]


def record(sweep: Sweep) -> tuple[StoreCall, ...]:
    (script,) = sweep.live(Planned(({},)))
    return script.calls


def singles(calls: Sequence[StoreCall]) -> Iterator[Planned]:
    """One fault of every kind at every call that can meet it."""
    for call in calls:
        for kind in can_meet(call):
            for late in _LATE_AFTER_CALLS if kind is FaultKind.LATE_EFFECT else (0,):
                yield Planned(({call.index: kind},), late_after_calls=late)


def in_slice(planned: Planned, part: int, parts: int) -> bool:
    """Whether a single fault is in part `part` (from 1) of `parts`: by its call, so that runs agree although calls may move."""
    return min(planned.at[0]) % parts == part - 1


@dataclass(frozen=True, slots=True)
class First:
    """The first of two faults, and how many lives with a second one follow from it."""

    planned: Planned
    seconds: int
    seed: str

    def followed(self, sweep: Sweep) -> Iterator[Planned]:
        """Pairs with this one: the second at a call of the life that has met it."""
        draw, alone = random.Random(self.seed), self.planned
        ((index, kind),) = alone.at[0].items()
        scripts = sweep.live(replace(alone, at=(*alone.at, {})))
        after = scripts[1].calls if kind in CRASHES else scripts[0].calls[index + 1 :]
        for _ in range(min(self.seconds, len(after))):
            near = draw.random() < 0.5
            second = draw.choice(after[:_NEAR] if near else [c for c in after if c.kind in _EFFECTS] or after)
            other = {second.index: draw.choice(can_meet(second))}
            yield replace(alone, at=(*alone.at, other) if kind in CRASHES else ({index: kind, **other}, {}))


def firsts(calls: Sequence[StoreCall], count: int, seed: int) -> Iterator[First]:
    """First faults for `count` pairs: at calls that change storage."""
    critical = [call for call in calls if call.kind in _EFFECTS]
    for number, made in enumerate(range(0, count, _SECONDS_PER_FIRST)):
        draw = random.Random(f"{seed}/{number}")
        call = draw.choice(critical)
        at = {call.index: draw.choice(can_meet(call))}
        planned = Planned((at,), seed=seed, late_after_calls=draw.choice(_LATE_AFTER_CALLS))
        yield First(planned, min(_SECONDS_PER_FIRST, count - made), f"{seed}/{number}/second")


def pairs(sweep: Sweep, calls: Sequence[StoreCall], count: int, seed: int) -> Iterator[Planned]:
    """Two faults: the first at a call that changes storage, the second at one of those that follow."""
    for first in firsts(calls, count, seed):
        yield from first.followed(sweep)


# The life of a table with everything beside plain rows: two shards, a merge by sequence, blobs, an index, many
# generations.
#
# What the canonical life does is not done again; together the two make every call that a store has. A write with an
# old sequence is made on purpose: nobody may see it.

_SCHEMA: Final = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("value", pa.int64(), nullable=False),
        pa.field("note", pa.string()),
        pa.field("image", pa.large_binary(), metadata={"lance-encoding:blob": "true"}),
    ]
)
_SHARDS: Final = mw.Bucket("id", 2)
_MANY: Final = 8  # generations
_WORDS: Final = ("amber", "basalt", "cedar")


class RichLife(CanonicalLife):
    """As `CanonicalLife`; `value` is the sequence that rows go by, and the image of a row follows from it."""

    _sharding = _SHARDS

    def _create(self) -> mw.Table:
        return mw.create_table(
            self._location, _SCHEMA, primary_key="id", sharding=_SHARDS, merge=mw.LastWrite("value"), exist_ok=True
        )

    def _row(self, key: int, value: int, note: str | None) -> dict[str, Any]:
        return super()._row(key, value, note) | {"image": _image(key, value)}

    def share(self) -> None:
        """The first rows come from a writer that others could share the table with."""
        self._writer = self._again("share", lambda: self.table.writer(shared=True, compaction=None))
        self._writers.append(self._writer)
        self._put(3, 6, note="shared")
        self.close()

    def index(self) -> None:
        self._upkeep(lambda: self.table.indexes.create(mw.FtsIndex("note")))

    def write(self) -> None:
        self._put(1, 2, 3, 4, note="amber")
        self._put(2, 5, note="basalt")

    def change(self) -> None:
        value = next(self._values)
        if self._write([1], lambda _: None, lambda: self.writer.delete([1], sequence=value)):
            self._write([1], lambda row: row, lambda: self.writer.put([self._row(1, 0, "too late")]))
        stale = [self._row(2, 0, "too late")]
        self._write([2], lambda row: row or (0, "too late"), lambda: self.writer.put(stale))

    def flush_often(self) -> None:
        """Generations of one shard."""
        keys = pa.record_batch({"id": pa.array(range(20, 60), pa.int64())})
        _, part = next(iter(self.table.sharding.route(keys, _SCHEMA)))
        for number in range(_MANY):
            self._put(part.column(0)[number].as_py(), note=_WORDS[number % len(_WORDS)])
            self.flush()

    def read_cold(self) -> None:
        """Rows, and keys, of files that nobody has opened yet."""
        for read in (self._scan, lambda: self._look(2), lambda: self._look(99)):
            CACHE.clear()
            self._again("read", read)

    def search(self) -> None:
        self._put(7, note=_WORDS[-1])  # in memory still
        self._again("search", lambda: self._compare_search(self._scan()))

    def _look_closer(self, scanned: pa.Table, rows: Mapping[int, Row]) -> None:
        for row in scanned.select(["id", "value", "image"]).to_pylist():
            if row["image"]["size"] != len(_image(row["id"], row["value"])):
                self.oracle.broken.append(f"I2: the blob of {row} has another size")

    def _compare_search(self, rows: Mapping[int, Row]) -> None:
        for word in _WORDS:
            found = self.table.search(text=word, column="note", k=100, columns=["id"]).column("id").to_pylist()
            if sorted(found) != sorted(key for key, (_, note) in rows.items() if note == word):
                self.oracle.broken.append(f"I7: a search for {word} finds {sorted(found)}, the rows are {rows}")

    def _judge_more(self, rows: Mapping[int, Row]) -> None:
        self._compare_search(rows)
        for key, (value, _) in rows.items():
            file = self.table.get_blob(key, "image")
            if file is None or file.read() != _image(key, value):
                self.oracle.broken.append(f"I2: the blob of {key} is not that of {value}")

    steps: ClassVar = (
        CanonicalLife.make,
        share,
        index,
        write,
        CanonicalLife.flush,
        change,
        flush_often,
        read_cold,
        CanonicalLife.keep,
        CanonicalLife.consume,
        search,
        CanonicalLife.compact,
        CanonicalLife.collect,
        CanonicalLife.take_over,
        CanonicalLife.look_back,
        CanonicalLife.maintain,
        search,
        CanonicalLife.close,
    )


def _image(key: int, value: int) -> bytes:
    return bytes([key % 251, value % 251]) * (3 + key % 5 + value)


# Faults whose outcome depends on a draw (which bit, which name), and when a late effect comes.
DRAWN = {FaultKind.BIT_FLIP, FaultKind.LIST_MISSES}
LATE_AFTER_CALLS = (0, 1, 2, 5, 9, 1_000)
SINGLE_KINDS = [kind for kind in FaultKind if kind is not FaultKind.LOST_DELETE]


def no_damage(script: FaultScript) -> bool:
    """Whether storage must be whole: only a torn object leaves damage there."""
    return not any(call.fault is FaultKind.TORN_OBJECT and call.kind == "put_new" for call in script.injected)


def single_faults(
    kind: FaultKind, *, draws: int | None = None, lateness: Sequence[int] = LATE_AFTER_CALLS
) -> Iterator[tuple[str, FaultPlan]]:
    """The fault at every call that it applies to; where the outcome is drawn, with so many draws."""
    drawn = scaled(ci=8, prove=200) if draws is None else draws
    for call in record_calls().calls:
        if not kind.applies_to(call.kind):
            continue
        for seed in range(drawn if kind in DRAWN else 1):
            for late in lateness if kind is FaultKind.LATE_EFFECT else (0,):
                name = f"{kind.value} at call {call.index} ({call.kind} ...{call.path[-60:]}), seed {seed}, late {late}"
                yield name, FaultPlan(at={call.index: kind}, seed=seed, late_after_calls=late)
