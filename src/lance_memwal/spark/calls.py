"""One call of `write_batch` per table in a micro-batch, unless the calls have an `app_id` of their own.

The transaction of a call without an `app_id` is the query and the number of the micro-batch. A second call for the same table
would have the same transaction, and its rows would be skipped as a repeat. So it is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lance_memwal.errors import InvalidInputError

_MAX_RUNS = 256
_lock = threading.Lock()
_calls: dict[str, tuple[int, set[str]]] = {}  # by run of a query: its newest micro-batch, and the tables that it wrote


def streaming_query(session: Any) -> tuple[str | None, str | None]:
    """The id and the run of the streaming query that runs `foreachBatch` in this thread, if there is one."""
    try:
        context = session.sparkContext
    except Exception:  # over Connect there is no context, and Spark does not pass the id of the query
        return None, None
    query = context.getLocalProperty("sql.streaming.queryId")
    return (None, None) if query is None else (query, context.getLocalProperty("spark.jobGroup.id"))


@contextmanager
def only_call(run: str, batch: int, table: str) -> Iterator[None]:
    """Refuse another call for `table` in the same micro-batch. A call that failed may be made again."""
    with _lock:
        newest, tables = _calls.pop(run, (batch, set()))
        _calls[run] = batch, (tables := tables if newest == batch else set())
        while len(_calls) > _MAX_RUNS:
            _calls.pop(next(iter(_calls)))
        if table in tables:
            raise InvalidInputError(
                f"second call of write_batch for one table in micro-batch {batch}: its rows would be skipped as a repeat; "
                "give each call its own app_id"
            )
        tables.add(table)
    try:
        yield
    except BaseException:
        tables.discard(table)
        raise
