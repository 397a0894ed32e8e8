"""What a parent knows of a table whose processes it kills or stops: an oracle per shard, the feed, checkpoints, columns.

Owns `TableRecord`, which takes the messages of `tests.harness.table_life`, of any number of processes, and raises `CrashFailure`
at the first promise that is broken. A write is atomic per shard, so every shard has an oracle of its own. Beside the oracles:

1. every row that a durable write made is in the feed of the consumer, at least once, and the last change of each key is
   what the table shows when the feed has reached its end;
2. a checkpoint shows the same rows for as long as it is there (whoever makes it sees to it that they are the right ones);
3. what twins append is issued once and returned once, whoever of them said so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from tests.harness.crash_report import CrashFailure, CrashReport
from tests.harness.oracle import Broken, Oracle, Row, Value, Write
from tests.harness.table_plan import Retry
from tests.harness.table_shapes import Shown

__all__ = ["TableRecord"]

_IGNORED = frozenset({"dies", "done", "fenced", "stops"})  # they say how a process fares, nothing about the table


class TableRecord:
    """The truth about one table; `again` is the command that repeats its draws."""

    def __init__(self, report: CrashReport, again: str) -> None:
        self._report = report
        self._again = again
        self._oracles: dict[str, Oracle] = defaultdict(Oracle)
        self._open: dict[tuple[Hashable, int], list[str]] = {}
        self._seen_numbers: set[tuple[Hashable, int]] = set()
        self._promised: set[tuple[int, int]] = set()
        self._fed: set[tuple[int, int]] = set()
        self._replica: dict[int, tuple[int, int]] = {}
        self.settles = True
        self.context = ""
        self.retired: set[int] = set()
        self.next_column = 0
        self.checkpoints: dict[str, int] = {}
        self.retries: dict[tuple[str, int], Retry] = {}

    def hear(self, message: tuple[Any, ...]) -> None:
        """Take one message of a process."""
        tag, values = message[0], message[1:]
        if tag in _IGNORED:
            return
        handler = getattr(self, "_hear_" + tag.replace(" ", "_"), None)
        if handler is None:
            self.fail("I12", f"a process said {tag!r}, which nobody knows")
            return
        handler(*values)

    def fail(self, when: str, what: str) -> None:
        """A promise is broken."""
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

    def _hear_returned(self, who: Hashable, number: int, durable: bool) -> None:
        shards = self._open.pop((who, number), None)
        if shards is None:
            if not _is_twin(who):
                self.fail("I2", f"write {number} of {who} returned, and nobody issued it")
            return
        self._report.writes += 1
        for shard in shards:
            self._oracles[shard].returned(who, durable=durable)

    def _hear_transaction(self, retry: Retry) -> None:
        self.retries[retry.app, retry.number] = retry

    def _hear_transacted(self, app: str, number: int) -> None:
        self.retries.pop((app, number), None)

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
            if operation == "d":
                self._replica.pop(key, None)
            else:
                self._replica[key] = (number, kept)
                self._fed.add((key, number))

    def _hear_consumed(self) -> None:
        """The consumer has reached the end, and nothing is unsettled."""
        lost = self._promised - self._fed
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
