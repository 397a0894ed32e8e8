"""Which call of which micro-batch a write is, also in the process that Connect runs `foreachBatch` in."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from lance_memwal.errors import InvalidInputError
from lance_memwal.spark import calls
from lance_memwal.spark.calls import Caller, caller_of, finished, next_call


@pytest.fixture(autouse=True)
def fresh_process() -> Iterator[None]:
    """Nothing is counted and no query is known, as in a new process."""
    importlib.reload(calls)
    yield
    importlib.reload(calls)


def test_calls_are_numbered_per_run_batch_and_table_once_they_are_done() -> None:
    query = Caller("query", "run-1")

    def app(batch: int, *, table: str = "t", caller: Caller = query, done: bool = True) -> str:
        call = next_call(caller, table, batch)
        if done:
            finished(call)
        return call.app

    assert [app(7, done=False), app(7), app(7), app(7)] == ["query", "query", "query#1", "query#2"]
    assert [app(7, table="other"), app(8), app(8)] == ["query", "query", "query#1"]
    assert app(8, caller=Caller("query", "run-2")) == "query", "a new run makes the same calls again"


def test_calls_of_several_threads_for_one_table_are_refused_since_nothing_tells_their_order() -> None:
    query, numbers = Caller("query", "run"), ThreadPoolExecutor(1)
    first = calls.next_call(query, "t", 7)
    with pytest.raises(InvalidInputError, match="'app_id'"):
        numbers.submit(calls.next_call, query, "t", 7).result()
    assert numbers.submit(calls.next_call, query, "other", 7).result().app == "query", "tables are apart"
    calls.finished(first)
    with pytest.raises(InvalidInputError, match="one after the other"):
        numbers.submit(calls.next_call, query, "t", 7).result()
    assert calls.next_call(query, "t", 7).app == "query#1", "what was refused took no number"
    assert numbers.submit(calls.next_call, query, "t", 8).result().app == "query", "batches are apart"
    numbers.shutdown()


class Connected:
    """A session over Connect: it has no context, and lists the queries that it started."""

    def __init__(self, *queries: str) -> None:
        self.streams = SimpleNamespace(active=[SimpleNamespace(id=query) for query in queries])

    @property
    def sparkContext(self) -> Any:
        raise NotImplementedError("no context over Connect")


def in_worker(spark_connect_session: Connected) -> Caller | None:
    """As Spark's worker of `foreachBatch` does it: the session is in a variable of that name."""
    return calls.caller_of(Connected())


def test_over_connect_the_only_query_of_the_session_calls() -> None:
    assert caller_of(Connected("elsewhere")) is None, "this is no process of foreachBatch"
    with pytest.raises(InvalidInputError, match="'app_id'"):
        in_worker(Connected("one", "two"))
    assert in_worker(Connected("one")) == calls.Caller("one", "")
    assert in_worker(Connected("one", "started later")) == calls.Caller("one", ""), "it is asked once"
