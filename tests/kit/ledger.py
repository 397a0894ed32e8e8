"""What each key may show at a time, by what was issued and acknowledged until then.

Owns `Ledger`. The clock is one for all processes of a machine (`time.monotonic`). A key belongs to one writer at a time, so its
writes have an order. Invariants:

1. A write that was acknowledged before a read began has happened; one that was issued after the read ended has not; any other may
   have.
2. A write without an acknowledgement (its process was killed, or it failed) may also happen later than writes of the next process
   for that key, but only than those that were issued within `LATE_SECONDS`; see there. What it made then stays until a later
   write replaces it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["LATE_SECONDS", "Kind", "Ledger", "Write"]

Kind = Literal["put", "delete", "update"]
State = int | None
_KEPT_SECONDS = 30.0  # longer than any read takes
# How long after its process died, or was told of an error, a write may still happen. To the log of a shard that the process
# owned: not at all. What it puts is there before the sentinel of the next claim and is replayed by it, or finds its position
# taken. A write that was forwarded is in the hands of the owner, who does not hear that its client died. Plain writes of a shard
# wait in one queue there, so that what the next process sends comes after it; one that reads first (a condition) may be
# overtaken, by as long as it reads. An owner that takes longer than two seconds counts as slow (`serve.channel.ANSWER_SECONDS`).
LATE_SECONDS = 2.0


@dataclass(slots=True)
class Write:
    """One write of some keys. An update changes those that are there."""

    number: int
    kind: Kind
    keys: tuple[int, ...]
    issued: float
    acked: float | None = None
    failed: float | None = None

    @property
    def end(self) -> float:
        """When it has happened, or never does, if it was not acknowledged."""
        return float("inf") if self.failed is None else self.failed + LATE_SECONDS

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
            if write.issued <= ended:
                states = self._after(key, states, write, is_done=write.acked is not None and write.acked < began)
        return states

    def _after(self, key: int, states: frozenset[State], write: Write, *, is_done: bool) -> frozenset[State]:
        """What a key may be after a write, or without it unless it is done; others that are late may come after it."""
        states = write.after(states) if is_done else states | write.after(states)
        late = [other for other in self._late.get(key, ()) if other.issued < write.issued <= other.end]
        for other in late * len(late):  # in any order
            states |= other.after(states)
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
                self._states[key] = self._after(key, self._states[key], write, is_done=write.acked is not None)
            if not writes:
                del self._recent[key]
        for key, writes in list(self._late.items()):
            first = min((write.issued for write in self._recent.get(key, ())), default=now)
            writes[:] = [write for write in writes if write.end >= first]
            if not writes:
                del self._late[key]
