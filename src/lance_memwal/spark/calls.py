"""Which call of `write_batch` this is: of which query, and its number among those of one micro-batch and table.

Owns the names under which calls are written. A micro-batch that is tried again makes the same calls in the same order, so that
query, batch and number name a call for ever. Invariants:

1. The first call has the id of the query, each further one an id of its own: both count, and a repeat of each is recognised.
2. A call that failed keeps its number: who catches the error and calls again repeats it.
3. What is counted is per run of a query: a new run begins again with the first call. The last 256 runs and tables are kept.
4. The calls for one table in one micro-batch come from one thread. Nothing tells in which order those of several would come when
   the batch is tried again: they would change their numbers, and with `replayMismatch=skip` rows would be lost. They are refused.

Over Connect `foreachBatch` runs in a process of its own for each run of a query, and Spark does not tell it the id of the query.
The session that started the query knows which ones it runs: if that is one, it is the one that calls.
"""

from __future__ import annotations

import inspect
import threading
from dataclasses import dataclass
from typing import Any

from lance_memwal.errors import InvalidInputError

__all__ = ["Call", "Caller", "caller_of", "finished", "next_call"]

_MOST_COUNTS = 256
_ROOT_SESSION = "spark_connect_session"
_lock = threading.Lock()
_counts: dict[tuple[str, str, str], _Counted] = {}  # by run, query and table

_connected: Caller | None = None


@dataclass(frozen=True, slots=True)
class Caller:
    """The streaming query that calls, and its run."""

    query: str
    run: str


@dataclass(frozen=True, slots=True)
class Call:
    """One call for one table in one micro-batch."""

    caller: Caller
    table: str
    batch: int
    number: int

    @property
    def app(self) -> str:
        """Who writes: the query, and the number of the call from the second one on."""
        return self.caller.query if self.number == 0 else f"{self.caller.query}#{self.number}"


@dataclass(frozen=True, slots=True)
class _Counted:
    """How many calls of a batch were done, and the thread that makes them."""

    batch: int
    thread: int
    done: int = 0


def caller_of(session: Any) -> Caller | None:
    """The streaming query in whose `foreachBatch` this session is used; None outside of one."""
    try:
        context = session.sparkContext
    except Exception:  # over Connect there is none
        return _connect_caller()
    query, run = context.getLocalProperty("sql.streaming.queryId"), context.getLocalProperty("spark.jobGroup.id")
    return None if query is None else Caller(query, run or "")


def _connect_caller() -> Caller | None:
    """The query whose process this is; None if it is no such process. Asked once, since a second query may start later."""
    global _connected
    with _lock:
        started_by = None if _connected is not None else _starting_session()
        if started_by is not None:
            running = [str(query.id) for query in started_by.streams.active]
            if len(running) != 1:
                raise InvalidInputError(
                    f"{len(running)} queries run in this session, and Connect does not tell which of them calls: give "
                    "'app_id', a name for this query that stays the same over restarts"
                )
            _connected = Caller(running[0], "")
        return _connected


def _starting_session() -> Any:
    """The session that started the query, which Spark's worker of `foreachBatch` keeps in a variable; None elsewhere."""
    frame = inspect.currentframe()
    while frame is not None and _ROOT_SESSION not in frame.f_locals:
        frame = frame.f_back
    return None if frame is None else frame.f_locals[_ROOT_SESSION]


def next_call(caller: Caller, table: str, batch: int) -> Call:
    """The call that is made now; `InvalidInputError` if another thread makes the calls of this batch for the table."""
    slot, thread = _slot(caller, table), threading.get_ident()
    with _lock:
        counted = _counts.get(slot)
        if counted is None or counted.batch != batch:
            counted = _Counted(batch, thread)
        if counted.thread != thread:
            raise InvalidInputError(
                f"several threads call write_batch for one table in micro-batch {batch}, and nothing tells in which order they "
                "would come if it is tried again: call one after the other, or give each call an 'app_id' of its own"
            )
        _note(slot, counted)
        return Call(caller, table, batch, counted.done)


def finished(call: Call) -> None:
    """The call was made: another one in the same batch is the next one."""
    with _lock:
        _note(_slot(call.caller, call.table), _Counted(call.batch, threading.get_ident(), call.number + 1))


def _note(slot: tuple[str, str, str], counted: _Counted) -> None:
    _counts.pop(slot, None)
    _counts[slot] = counted
    while len(_counts) > _MOST_COUNTS:
        _counts.pop(next(iter(_counts)))


def _slot(caller: Caller, table: str) -> tuple[str, str, str]:
    return caller.run, caller.query, table
