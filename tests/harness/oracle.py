"""What a shard must show after a crash: the truth, kept outside the process under test.

Owns `Oracle`. Every write has a number that only grows and stands in its rows, so a row says which write made it. A
write is *durable* (its acknowledgement promised storage), *acknowledged* (accepted, not yet promised), or *issued*
(no return seen). Keys belong to one thread for one life of the writer, so the writes of a key are in a known order.

After a crash the rows must be what some *cut* of every thread's writes leaves: all writes up to the cut, none behind
it, and every durable write up to it. That says at once: nothing acknowledged is lost (I1), nothing appears that was never
issued (I2), a write is whole or absent (I4), the deleted stay deleted and no key is there twice (I5). Across threads: a
write that returned before another began is there if the later one is (I3). The numbers are those of `docs/reliability.md`.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import pyarrow as pa

from lance_memwal.types import WalEntry

Value: TypeAlias = Hashable
"""What a reader can tell of a row beside its key: the number of the write that made it, or of those that did."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row as a reader saw it: its key, the number of the write that made it, and whether its other columns fit."""

    key: int
    number: Value
    intact: bool = True


@dataclass(frozen=True, slots=True)
class Write:
    """One put (rows of these keys) or one delete (of these keys), or what `values` says that each key has afterwards."""

    number: int
    keys: tuple[int, ...]
    deletes: bool = False
    values: tuple[Value | None, ...] | None = None

    def leaves(self) -> Iterable[tuple[int, Value | None]]:
        """Each key with what it has after this write; None: no row."""
        if self.values is not None:
            return zip(self.keys, self.values, strict=True)
        return ((key, None if self.deletes else self.number) for key in self.keys)


@dataclass(frozen=True, slots=True)
class Broken:
    """One broken invariant, with what was expected and what was seen."""

    rule: str
    what: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.what}"


@dataclass(slots=True)
class _Thread:
    """The writes of one thread in one life: where in the event order each began and returned."""

    writes: list[Write] = field(default_factory=list)
    began: list[int] = field(default_factory=list)
    returned: list[int] = field(default_factory=list)
    durable: int = 0

    def cuts(self, settled: dict[int, Value], seen: dict[int, Value]) -> list[int]:
        """Every number of writes after which the keys that this thread wrote stand as they were seen."""
        touched = {key for write in self.writes for key in write.keys}
        state = {key: settled.get(key) for key in touched}
        wrong = {key for key in touched if state[key] != seen.get(key)}
        found = [] if wrong else [0]
        for count, write in enumerate(self.writes, 1):
            for key, left in write.leaves():
                state[key] = left
                (wrong.discard if state[key] == seen.get(key) else wrong.add)(key)
            if not wrong:
                found.append(count)
        return found


class Oracle:
    """What the shard must hold; events come in the order in which the writer reported them."""

    def __init__(self) -> None:
        self.settled: dict[int, Value] = {}
        self.acknowledged = 0
        self._threads: dict[Hashable, _Thread] = {}
        self._events = 0
        self._drain: dict[Hashable, int] = {}

    # ------------------------------------------------------------------------------------------------------- events

    def issued(self, thread: Hashable, write: Write) -> None:
        """The thread is about to make this write."""
        self._events += 1
        state = self._threads.setdefault(thread, _Thread())
        state.writes.append(write)
        state.began.append(self._events)

    def returned(self, thread: Hashable, *, durable: bool) -> None:
        """The thread's last write returned; `durable` says what its return promised."""
        self._events += 1
        self.acknowledged += 1
        state = self._threads[thread]
        state.returned.append(self._events)
        if durable:
            state.durable = len(state.writes)

    def drain_begins(self, is_drained: Callable[[Hashable], bool] = lambda _: True) -> None:
        """A writer is asked to make everything durable that returned before this, of its own threads."""
        self._drain |= {name: len(state.returned) for name, state in self._threads.items() if is_drained(name)}

    def drain_returned(self, is_drained: Callable[[Hashable], bool] = lambda _: True) -> None:
        """What returned before the drain began is durable."""
        for name in [name for name in self._drain if is_drained(name)]:
            count = self._drain.pop(name)
            state = self._threads[name]
            state.durable = max(state.durable, count)

    def rewrite(self, change: Callable[[Value], Value]) -> None:
        """From now on readers tell less, or other things, of every row: a column was dropped."""
        self.settled = {key: change(value) for key, value in self.settled.items()}
        for state in self._threads.values():
            state.writes = [
                write
                if write.values is None
                else replace(write, values=tuple(None if v is None else change(v) for v in write.values))
                for write in state.writes
            ]

    def promised(self) -> set[tuple[int, Value]]:
        """Every row that a durable write made and that is not settled yet."""
        return {
            (key, left)
            for state in self._threads.values()
            for write in state.writes[: state.durable]
            for key, left in write.leaves()
            if left is not None
        }

    # -------------------------------------------------------------------------------------------------------- verdict

    def check(self, rows: Iterable[Row]) -> list[Broken]:
        """What is wrong with these rows of the recovered shard; if nothing is, they become the settled state."""
        listed = list(rows)
        seen = {row.key: row.number for row in listed}
        broken = [*self._twice(listed), *self._phantoms(listed), *self._untouched(seen)]
        cuts: dict[Hashable, list[int]] = {}
        for name, state in self._threads.items():
            cuts[name] = state.cuts(self.settled, seen)
            broken += self._judge(name, state, cuts[name], seen)
        if not broken:
            broken = self._holes(cuts)
        if not broken:
            self.settled = seen
            self._threads = {}
            self._drain = {}
        return broken

    def _twice(self, rows: Sequence[Row]) -> list[Broken]:
        keys = [row.key for row in rows]
        twice = sorted({key for key in keys if keys.count(key) > 1}) if len(set(keys)) < len(keys) else []
        return [Broken("I5", f"keys are there more than once: {twice[:10]}")] if twice else []

    def _phantoms(self, rows: Sequence[Row]) -> list[Broken]:
        issued = set(self.settled.items())
        for state in self._threads.values():
            issued |= {(key, left) for write in state.writes for key, left in write.leaves() if left is not None}
        strange = [row for row in rows if not row.intact or (row.key, row.number) not in issued]
        return [Broken("I2", f"rows that nobody wrote: {strange[:5]} ({len(strange)} in all)")] if strange else []

    def _untouched(self, seen: dict[int, Value]) -> list[Broken]:
        touched = {key for state in self._threads.values() for write in state.writes for key in write.keys}
        moved = {
            key: (self.settled.get(key), seen.get(key))
            for key in (self.settled.keys() | seen.keys()) - touched
            if self.settled.get(key) != seen.get(key)
        }
        return [Broken("I1", f"settled keys changed (was, is): {dict(list(moved.items())[:5])}")] if moved else []

    def _judge(self, name: Hashable, state: _Thread, cuts: list[int], seen: dict[int, Value]) -> list[Broken]:
        if any(cut >= state.durable for cut in cuts):
            return []
        tail = [(w.number, "delete" if w.deletes else "put", w.keys) for w in state.writes[-4:]]
        shown = {key: seen.get(key) for write in state.writes[-4:] for key in write.keys}
        if cuts:
            return [
                Broken(
                    "I1",
                    f"thread {name}: {state.durable - cuts[-1]} durable writes are lost "
                    f"({state.durable} promised, {cuts[-1]} there); last writes {tail}, seen {shown}",
                )
            ]
        return [
            Broken(
                "I4",
                f"thread {name}: the rows are no state between its {len(state.writes)} writes "
                f"({state.durable} durable, {len(state.returned)} returned); last writes {tail}, seen {shown}",
            )
        ]

    def _holes(self, cuts: dict[Hashable, list[int]]) -> list[Broken]:
        """A write is there although one of another thread, which had returned before it began, is not."""
        broken = []
        for later, state in self._threads.items():
            there = min(cut for cut in cuts[later] if cut >= state.durable)
            if not there:
                continue
            for earlier, other in self._threads.items():
                if _writer_of(earlier) != _writer_of(later):
                    continue  # what one writer lost says nothing of what another one wrote
                most = max(cuts[earlier])
                if len(other.returned) > most and other.returned[most] < state.began[there - 1]:
                    what = (
                        f"write {state.writes[there - 1].number} is there, {other.writes[most].number} before it is not"
                    )
                    broken.append(Broken("I3", what))
        return broken


def _writer_of(thread: Hashable) -> Hashable:
    """Threads that are named by numbers are of one writer; others are named (writer, thread)."""
    return thread[0] if isinstance(thread, tuple) else None


# What the entries of a shard's log must be like, one after the other: the epochs of the protocol.
#
# A claimer that slept between its claim and its sentinel may place that sentinel above the one of its successor: the
# second look at the manifest stops it before it writes a row, and a sentinel is no row. So epochs may fall from one
# entry to the next, and those of rows may not.


def epoch_faults(entries: Iterable[WalEntry]) -> Iterator[str]:
    """What is wrong with the epochs of these entries, which come in the order of their positions.

    An epoch has at most one sentinel. Its rows lie above that sentinel (the first epoch needs none) and below that of any higher
    epoch.
    """
    epoch = 1
    sentinels: set[int] = set()
    for entry in entries:
        where = f"position {entry.position}: epoch {entry.writer_epoch}"
        if entry.is_sentinel:
            if entry.writer_epoch in sentinels:
                yield f"{where} has a second sentinel"
            sentinels.add(entry.writer_epoch)
        else:
            if entry.writer_epoch < epoch:
                yield f"{where} wrote above epoch {epoch}"
            if entry.writer_epoch > 1 and entry.writer_epoch not in sentinels:
                yield f"{where} wrote before its sentinel"
        epoch = max(epoch, entry.writer_epoch)


# Two reads of the same rows, compared.


def require_same(what: str, fast: pa.Table, slow: pa.Table, *, but: str | None = None) -> None:
    """An error unless both hold the same rows, in any order; the column `but` is not looked at."""
    if set(fast.schema.names) != set(slow.schema.names):
        raise AssertionError(f"I7: the {what} has columns {fast.schema.names}, not {slow.schema.names}")
    names = [name for name in slow.schema.names if name != but]
    shown, held = (sorted(map(repr, table.select(names).to_pylist())) for table in (fast, slow))
    if shown != held:
        lacks, more = set(held) - set(shown), set(shown) - set(held)
        raise AssertionError(f"I7: the {what} lacks {lacks} and has {more}: {len(shown)} rows of {len(held)}")
