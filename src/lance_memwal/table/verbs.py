"""The verbs of a table itself: the writer that is kept for them, and how they understand what they are given.

Owns `KeptWriter`, `rows_or_filter` and `check_mode`. Invariants:

1. It shares: a verb goes to whoever owns a shard, and fences no living writer.
2. It is opened by the first verb, and closed by `close` or after a minute without one. What a verb acknowledged is durable
   before that.
3. It follows the table. A verb that does not fit the columns which the writer knows looks at those of now, and is tried again
   if they are others. Once the table is another one, one verb says so, and the next one writes to that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from lance_memwal.arguments import check_choice
from lance_memwal.errors import InvalidInputError, TableReplacedError, WriterPoisonedError
from lance_memwal.lance.base import NewestBase
from lance_memwal.process.held import Held
from lance_memwal.rows.filter import FilterLike
from lance_memwal.rows.ingest import reread
from lance_memwal.rows.sharding import Manual
from lance_memwal.table_writer import TableWriter, follow_columns
from lance_memwal.write.results import RoutedResult

EVERY_ROW = "true"
IDLE_SECONDS = 60.0
_LOG = logging.getLogger(__name__)


class KeptWriter:
    """One shared writer of a table, open while it is used. Threads may share it."""

    def __init__(
        self, newest: NewestBase, open_shared: Callable[[], TableWriter], idle_seconds: float = IDLE_SECONDS
    ) -> None:
        """`open_shared` opens a writer that shares its shards with other processes."""
        self._newest = newest
        self._open_shared = open_shared
        self._held = Held("the writer of the table", self._open, _close, idle_seconds=idle_seconds)

    def write(self, call: Callable[[TableWriter, Any], RoutedResult], data: Any = None) -> RoutedResult:
        """What `call` does with the writer and the rows or keys in `data`, which it may be given twice."""
        rows = reread(data)
        with self._held.use() as writer:
            try:
                return call(writer, rows)
            except (TableReplacedError, WriterPoisonedError):
                self._held.close()  # at the end of this use; the next verb opens another one
                raise
            except InvalidInputError:
                if not follow_columns(writer):
                    raise
            return call(writer, rows)

    def close(self) -> None:
        """Close the writer, once no verb runs; the next verb opens another one."""
        self._held.close()

    def _open(self) -> TableWriter:
        if isinstance(self._newest.with_index().sharding, Manual):
            raise InvalidInputError(
                "rows of a table with manual shards go to the shard that you name: use Table.shard_writer(shard_id)"
            )
        return self._open_shared()


def rows_or_filter(given: Any, where: FilterLike | None) -> tuple[Any, FilterLike | None]:
    """The rows or keys, and the filter: one text in their place is a filter, as other tables have it."""
    if not isinstance(given, str):
        return given, where
    if where is not None:
        raise InvalidInputError("two filters are given: one text alone is a filter; give one key as [key]")
    return None, given


def check_mode(mode: object) -> None:
    """Return only if this is how rows are added."""
    if mode == "overwrite":
        raise InvalidInputError(
            "add(mode='overwrite') would replace all rows, which is not one step here: delete('true') and add, or drop() "
            "and create_table"
        )
    check_choice("mode", mode, ("append",))


def _close(writer: TableWriter) -> None:
    try:
        writer.close()
    except (
        TableReplacedError,
        WriterPoisonedError,
    ) as error:  # what was acknowledged is in the log, or went with the table
        writer.abort()
        _LOG.info("aborted the writer of the table's verbs: %s", error)
