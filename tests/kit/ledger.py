"""What each key may show at a time, by what was issued and acknowledged until then.

Owns `Ledger`. The clock is one for all processes of a machine (`time.monotonic`). A key belongs to one writer at a time, so its
writes have an order. Invariants:

1. A write that was acknowledged before a read began has happened; one that was issued after the read ended has not; any other may
   have.
2. A write without an acknowledgement (its process was killed, or it failed) may also happen later than writes of the next process
   for that key, as long as a request of the dead may be under way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["Kind", "Ledger", "Write"]

Kind = Literal["put", "delete", "update"]
State = int | None
_KEPT_SECONDS = 30.0  # longer than any read takes
_LATE_SECONDS = 120.0


@dataclass(slots=True)
class Write:
    """One write of some keys. An update changes those that are there."""

    number: int
    kind: Kind
    keys: tuple[int, ...]
    issued: float
    acked: float | None = None
    failed: float | None = None

    def after(self, states: frozenset[State]) -> frozenset[State]:
        """What a key may be once it happened."""
        if self.kind == "put":
            return frozenset([self.number])
        if self.kind == "delete":
            return frozenset([None])
        return frozenset(None if state is None else self.number for state in states)


class Ledger:
    """The truth about every key, kept outside of the processes that write."""

    def __init__(self, keys: Iterable[int], first: State = 0) -> None:
        """All keys begin with a row of the write `first`; None: without a row."""
        self._states: dict[int, frozenset[State]] = dict.fromkeys(keys, frozenset([first]))
        self._recent: dict[int, list[Write]] = defaultdict(list)
        self._late: dict[int, list[Write]] = defaultdict(list)
        self._open: dict[int, Write] = {}
        self.acknowledged = 0
        self.failed = 0

    def issued(self, write: Write) -> None:
        """This write is about to be made."""
        self._open[write.number] = write
        for key in write.keys:
            self._recent[key].append(write)

    def returned(self, number: int, at: float) -> None:
        """It was acknowledged."""
        self._open.pop(number).acked = at
        self.acknowledged += 1

    def lost(self, number: int, at: float) -> None:
        """It failed, or nobody will hear of it any more."""
        write = self._open.pop(number)
        write.failed = at
        self.failed += 1
        for key in write.keys:
            self._late[key].append(write)

    def lost_by(self, numbers: range, at: float) -> None:
        """The process that made these writes is dead."""
        for number in [number for number in self._open if number in numbers]:
            self.lost(number, at)

    def allowed(self, key: int, began: float, ended: float) -> frozenset[State]:
        """What a read of `key` in this time may have seen."""
        states = self._states[key]
        for write in self._recent.get(key, ()):
            if write.acked is not None and write.acked < began:
                states = write.after(states)
            elif write.issued <= ended:
                states |= write.after(states)
        for write in self._late.get(key, ()):
            states |= write.after(states)
        return states

    def wrong(self, seen: Mapping[int, int], keys: Iterable[int], began: float, ended: float) -> list[str]:
        """What is wrong with these keys, as one read saw them; a key that is not in `seen` had no row."""
        found = []
        for key in keys:
            allowed = self.allowed(key, began, ended)
            if seen.get(key) not in allowed:
                writes = [(w.number, w.kind, w.issued, w.acked) for w in self._recent.get(key, ())]
                found.append(f"key {key} shows {seen.get(key)}, not one of {set(allowed)} [{began}, {ended}]; {writes}")
        return found

    def forget(self, now: float) -> None:
        """Fold what every read to come has behind it."""
        for key, writes in list(self._recent.items()):
            while writes and (writes[0].acked or writes[0].failed or now) < now - _KEPT_SECONDS:
                write = writes.pop(0)
                states = self._states[key]
                self._states[key] = write.after(states) if write.acked is not None else states | write.after(states)
            if not writes:
                del self._recent[key]
        for key, writes in list(self._late.items()):
            writes[:] = [write for write in writes if (write.failed or now) >= now - _LATE_SECONDS]
            if not writes:
                del self._late[key]
