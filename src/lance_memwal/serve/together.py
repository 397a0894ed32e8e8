"""Puts of many threads on their way to one owner, in few messages.

Owns `Line`. Invariants:

1. The calling thread leads: one at a time sends what waits, its own put among it, and the others sleep until theirs are
   answered, or lead next. A single caller hands over to nobody.
2. A put is in one message at a time. Each has its own answer; an error of the whole message is everybody's, and each
   caller decides for itself what becomes of its put.
3. A leader that is interrupted leaves nobody waiting: the outcome of what it sent is unknown to its followers.
4. A message holds a bounded number of puts, and of bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from lance_memwal.clock import SYSTEM_CLOCK
from lance_memwal.errors import UnavailableError
from lance_memwal.process.companions import Companions
from lance_memwal.process.deadline import Deadline
from lance_memwal.process.turns import TakenError, Turn
from lance_memwal.process.waiting import Place, on_top_error
from lance_memwal.serve.channel import OwnerLostError, SlowOwnerError
from lance_memwal.types import Transaction

MOST_BYTES = 64 * 1024  # of a put that shares a message
_MOST_PUTS = 64
_UNANSWERED = object()


class MarkedPut:
    """A put of whole rows, its mark, and its answer once it is there; its caller waits at `place`."""

    __slots__ = ("answer", "missing", "place", "rows", "txn")

    def __init__(self, rows: pa.RecordBatch, txn: Transaction, missing: str | None = None) -> None:
        """`missing`: what becomes of columns that only the owner knows."""
        self.place = Place()
        self.rows = rows
        self.missing = missing
        self.txn = txn
        self.answer: Any = _UNANSWERED  # what was done, or an error

    @property
    def is_answered(self) -> bool:
        """Whether the outcome is there."""
        return self.answer is not _UNANSWERED

    def goes_with(self, other: MarkedPut) -> bool:
        """Whether both may be rows of one batch."""
        return self.missing == other.missing and self.rows.schema.equals(other.rows.schema, check_metadata=True)


class Line:
    """The puts of this process to one shard. Threads may share it."""

    def __init__(self, send: Callable[[Sequence[MarkedPut], Deadline], Sequence[Any]]) -> None:
        """`send` returns the answers to puts that share a message, in their order."""
        self._send = send
        self._waiting: deque[MarkedPut] = deque()
        self._turn = Turn()
        self._companions = Companions()

    def write(self, put: MarkedPut, deadline: Deadline) -> Any:
        """What became of a put; raises the error that it met."""
        if self._turn.is_mine:
            raise on_top_error("a write")
        try:
            self._waiting.append(put)
            while not put.is_answered:
                self._lead_or_sleep(put, deadline)
        finally:
            if not put.is_answered:
                self._withdraw(put)
                self._wake_next()
            put.place.wake_follower()
        if isinstance(put.answer, Exception):
            raise put.answer
        return put.answer

    def _lead_or_sleep(self, put: MarkedPut, deadline: Deadline) -> None:
        try:
            with self._turn.taken(0.0):
                if put in self._waiting:
                    self._lead(put, deadline)
                elif not put.is_answered:  # and nobody is at it
                    put.answer = SlowOwnerError("whoever sent this put was interrupted")
        except TakenError:
            put.place.sleep(deadline.left_seconds)
            if not deadline.left_seconds and not put.is_answered:
                raise UnavailableError(
                    "the owner of the shard did not answer in time; it may still do so", ambiguous=True
                ) from None
        else:
            self._wake_next()

    def _lead(self, own: MarkedPut, deadline: Deadline) -> None:
        self._companions.gather(self._waiting, SYSTEM_CLOCK)
        group: list[MarkedPut] = []
        answer: Any = SlowOwnerError("whoever sent this put was interrupted")
        answers: Sequence[Any] = ()
        try:
            self._take(group)
            answers = self._send(group, deadline)
            answer = OwnerLostError("the owner did not answer for every put")
        except Exception as error:
            answer = error
        finally:
            self._answer(group, answers if len(answers) == len(group) else [answer] * len(group), own)

    def _take(self, group: list[MarkedPut]) -> None:
        """Move puts that go together to `group`; each is there before it leaves the line."""
        size = 0
        while self._waiting and len(group) < _MOST_PUTS and size < 2 * MOST_BYTES:
            try:
                put = self._waiting[0]
            except IndexError:  # withdrawn meanwhile
                break
            if group and not put.goes_with(group[0]):
                break
            group.append(put)
            self._withdraw(put)
            size += put.rows.get_total_buffer_size()

    def _answer(self, group: Sequence[MarkedPut], answers: Sequence[Any], own: MarkedPut) -> None:
        """Give all their answers; they wake each other, one after the other: at once they would fight for the interpreter."""
        first: Place | None = None
        for put, answer in zip(group, answers, strict=True):
            if put is not own:
                put.place.follower, first = first, put.place
            put.answer = answer
        if first is not None:
            first.wake()

    def _withdraw(self, put: MarkedPut) -> None:
        try:  # noqa: SIM105 (on the way of every put)
            self._waiting.remove(put)
        except ValueError:
            pass

    def _wake_next(self) -> None:
        try:
            self._waiting[0].place.wake()
        except IndexError:
            return
