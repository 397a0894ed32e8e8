"""What a parent knows of a table whose processes it kills or stops: an oracle per shard, the feed, checkpoints, columns.

Owns `TableRecord`, which takes the messages of `tests.harness.table_life`, of any number of processes, and raises `CrashFailure`
at the first promise that is broken. A write is atomic per shard, so every shard has an oracle of its own. Beside the oracles:

1. every row that a durable write made is in the feed of the consumer, at least once, and the last change of each key is
   what the table shows when the feed has reached its end;
2. a checkpoint shows the same rows for as long as it is there (whoever makes it sees to it that they are the right ones);
3. what twins append is issued once and returned once, whoever of them said so, and written by one of them;
4. a transaction is in a shard once. What became of an attempt is known from its return, or from the first look at which nobody
   writes any more; a repeat has rows that say another number, so that it is seen wherever it is written a second time;
5. a change of the feed is one that somebody asked for, also if a later change of its key hides it.
"""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from tests.harness.deaths import CrashFailure, CrashReport
from tests.harness.oracle import Broken, Oracle, Row, Value, Write
from tests.harness.table_shapes import STREAM, Attempt, Repeat, Shown

_IGNORED = frozenset({"dies", "done", "fenced", "stops"})  # they say how a process fares, nothing about the table
_REMEMBERED = 12  # applications whose last transaction is made again now and then, although it returned


class TableRecord:
    """The truth about one table; `again` is the command that repeats its draws."""

    def __init__(self, report: CrashReport, again: str) -> None:
        self._report = report
        self._again = again
        self._oracles: dict[str, Oracle] = defaultdict(Oracle)
        self._open: dict[tuple[Hashable, int], list[str]] = {}
        self._seen_numbers: set[tuple[Hashable, int]] = set()
        self._promised: set[tuple[int, int]] = set()
        self._asked: set[tuple[int, tuple[int, int] | None]] = set()
        self._told: set[tuple[int, tuple[int, int] | None]] = set()
        self._replica: dict[int, tuple[int, int]] = {}
        self.settles = True
        self.context = ""
        self.retired: set[int] = set()
        self.next_column = 0
        self.checkpoints: dict[str, int] = {}
        self._attempts: dict[str, Attempt] = {}  # the newest of each application
        self._unknown: set[str] = set()  # applications of whose newest attempt nobody knows whether it landed
        self._newest: dict[tuple[str, str], int] = {}  # the version of an application that a shard has, at least
        self._written: set[tuple[str, str, int]] = set()  # application, shard and version that were written

    def hear(self, message: tuple[Any, ...]) -> None:
        tag, values = message[0], message[1:]
        if tag in _IGNORED:
            return
        handler = getattr(self, "_hear_" + tag.replace(" ", "_"), None)
        if handler is None:
            self.fail("I12", f"a process said {tag!r}, which nobody knows")
            return
        handler(*values)

    def fail(self, when: str, what: str) -> None:
        raise CrashFailure(f"{when} [{self.context}]: {what}\n  repeat it with: {self._again}")

    def promise(self) -> None:
        """Take down what durable writes promised so far, before it settles."""
        for oracle in self._oracles.values():
            self._promised |= {(key, _number(value)) for key, value in oracle.promised()}

    def settled(self) -> dict[int, Shown]:
        """The rows of the last look that settled what was before it."""
        return {key: value for oracle in self._oracles.values() for key, value in oracle.settled.items()}  # type: ignore[misc]

    # ---------------------------------------------------------------------------------------------------------- writes

    def _hear_issued(self, who: Hashable, number: int, writes: Mapping[str, Write]) -> None:
        if (who, number) in self._seen_numbers and _is_twin(who):
            return
        self._seen_numbers.add((who, number))
        self._open[who, number] = list(writes)
        for shard, write in writes.items():
            self._oracles[shard].issued(who, write)
            self._asked |= {(key, None if left is None else _pair(left)) for key, left in write.leaves()}

    def _hear_returned(self, who: Hashable, number: int, durable: bool) -> None:
        shards = self._open.pop((who, number), None)
        if shards is None:
            if not _is_twin(who):
                self.fail("I2", f"write {number} of {who} returned, and nobody issued it")
            return
        self._report.writes += 1
        for shard in shards:
            self._oracles[shard].returned(who, durable=durable)

    # --------------------------------------------------------------------------------------------------- transactions

    def repeats(self, *, sink: bool) -> list[Repeat]:
        """What the next life makes again, the unknown ones first: the transactions of sinks, or those of all others."""
        apps = sorted(
            (app for app in self._attempts if (app == STREAM) is sink), key=lambda app: app not in self._unknown
        )
        return [self._repeat(self._attempts[app]) for app in apps]

    def _repeat(self, attempt: Attempt) -> Repeat:
        held = (shard for shard in attempt.keys if self._newest.get((attempt.app, shard), -1) >= attempt.version)
        return Repeat(attempt, frozenset(held))

    def is_unknown(self, attempt: Attempt) -> bool:
        """Whether nobody said that this transaction returned."""
        return attempt.app in self._unknown

    def _hear_tries(self, attempt: Attempt) -> None:
        known = self._attempts.get(attempt.app)
        if known is not None and (known.version, known.number) >= (attempt.version, attempt.number):
            return  # a twin has come as far
        self._attempts.pop(attempt.app, None)
        self._attempts[attempt.app] = attempt
        self._unknown.add(attempt.app)
        returned = [app for app in self._attempts if app not in self._unknown]
        for app in returned[:-_REMEMBERED]:
            del self._attempts[app]

    def _hear_wrote(self, app: str, version: int, shard: str) -> None:
        if (app, shard, version) in self._written:
            self.fail("I5", f"version {version} of {app} was written a second time in shard {shard}")
        self._written.add((app, shard, version))

    def _hear_transacted(self, attempt: Attempt) -> None:
        for shard in attempt.keys:
            self._has(attempt, shard)
        if self._attempts.get(attempt.app) == attempt:
            self._unknown.discard(attempt.app)

    def _has(self, attempt: Attempt, shard: str) -> None:
        place = attempt.app, shard
        self._newest[place] = max(self._newest.get(place, -1), attempt.version)

    def _look_for_attempts(self, routed: Mapping[str, Sequence[Row]]) -> None:
        """Nobody writes now, and what an attempt wrote was not written over: so these rows tell what became of it."""
        shown = {row.key: _number(row.number) for rows in routed.values() for row in rows}
        for app in self._unknown:
            attempt = self._attempts[app]
            for shard, keys in attempt.keys.items():
                if any(shown.get(key) == attempt.number for key in keys):
                    self._has(attempt, shard)
                    self._written.add((app, shard, attempt.version))

    # --------------------------------------------------------------------------------------------------------- drains

    def _hear_draining(self, life: int) -> None:
        for oracle in self._oracles.values():
            oracle.drain_begins(lambda who: _life_of(who) == life)

    _hear_closing = _hear_draining

    def _hear_drained(self, life: int) -> None:
        for oracle in self._oracles.values():
            oracle.drain_returned(lambda who: _life_of(who) == life)

    _hear_closed = _hear_drained

    # ----------------------------------------------------------------------------------------------------------- looks

    def _hear_opened(self, seconds: float) -> None:
        self._report.opens += 1
        self._report.recovery_seconds.append(seconds)

    def _hear_rows(self, routed: Mapping[str, Sequence[Row]]) -> None:
        if not self.settles:
            return
        self.promise()
        self._open.clear()
        broken: list[Broken] = []
        for shard in self._oracles.keys() | routed.keys():
            broken += self._oracles[shard].check(routed.get(shard, ()))
        if broken:
            self.fail("after recovery", "; ".join(map(str, broken)))
        self._look_for_attempts(routed)

    def _hear_reached(self, point: str) -> None:
        self._report.reached.add(point)

    def _hear_verified(self, problems: Sequence[str]) -> None:
        if problems:
            self.fail("verify", "; ".join(problems[:5]))

    def _hear_failed(self, text: str) -> None:
        self.fail("I12", text)

    # ------------------------------------------------------------------------------------------------- beside the rows

    def _hear_checkpoint(self, name: str, digest: int) -> None:
        self.checkpoints[name] = digest

    def _hear_drops(self, name: str) -> None:
        self.checkpoints.pop(name, None)

    def _hear_adds_column(self, column: int) -> None:
        self.next_column = max(self.next_column, column + 1)

    def _hear_drops_column(self, column: int) -> None:
        self.retired.add(column)
        mask = ~(1 << column)
        for oracle in self._oracles.values():
            oracle.rewrite(lambda value: value._replace(columns=value.columns & mask))  # type: ignore[attr-defined]

    def _hear_changes(self, changes: Sequence[tuple[int, int, int, str]]) -> None:
        for key, number, kept, operation in changes:
            told = None if operation == "d" else (number, kept)
            self._told.add((key, told))
            if told is None:
                self._replica.pop(key, None)
            else:
                self._replica[key] = told

    def _hear_consumed(self) -> None:
        """The consumer has reached the end, and nothing is unsettled."""
        strange = self._told - self._asked
        if strange:
            self.fail("I2", f"changes (key, (number, kept)) that nobody asked for: {sorted(strange, key=repr)[:5]}")
        lost = self._promised - {(key, told[0]) for key, told in self._told if told is not None}
        if lost:
            self.fail("feed", f"acknowledged rows (key, number) that no change told: {sorted(lost)[:5]} of {len(lost)}")
        settled = {key: _pair(value) for key, value in self.settled().items()}
        if settled != self._replica:
            wrong = {
                key: (settled.get(key), self._replica.get(key))
                for key in settled.keys() | self._replica.keys()
                if settled.get(key) != self._replica.get(key)
            }
            self.fail("feed", f"the changes lead elsewhere (table, feed): {dict(list(wrong.items())[:5])}")


def _is_twin(who: Hashable) -> bool:
    return isinstance(who, tuple) and who[0] == "sink"


def _life_of(who: Hashable) -> Hashable:
    return who[0] if isinstance(who, tuple) else who


def _number(value: Value) -> int:
    return _pair(value)[0]


def _pair(value: Value) -> tuple[int, int]:
    assert isinstance(value, Shown)
    return value.number, value.kept
