"""The writer that a table keeps for its write verbs.

Owns `KeptWriter`. Invariants:

1. It shares: a verb goes to whoever owns a shard, and fences no living writer.
2. It is opened by the first verb, and closed by `close` or after a minute without one. What a verb acknowledged is durable
   before that.
3. It follows the table. A verb that does not fit the columns which the writer knows looks at those of now, and is tried again
   if they are others. Once the table is another one, one verb says so, and the next one writes to that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from lance_memwal.errors import InvalidInputError, TableReplacedError, WriterPoisonedError
from lance_memwal.lance.base import NewestBase
from lance_memwal.process.held import Held
from lance_memwal.rows.sharding import Manual
from lance_memwal.table_writer import TableWriter
from lance_memwal.write.request import Write, apply_to
from lance_memwal.write.results import WriteResult

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

    def apply(self, write: Write) -> WriteResult:
        """Apply a write, a second time if its first attempt did not know a column of the table."""
        with self._held.use() as writer:
            try:
                return apply_to(writer, write)
            except (TableReplacedError, WriterPoisonedError):
                self._held.close()  # at the end of this use; the next verb opens another one
                raise
            except InvalidInputError:
                if not writer.follow_columns():
                    raise
            return apply_to(writer, write)

    def close(self) -> None:
        """Close the writer, once no verb runs; the next verb opens another one."""
        self._held.close()

    def _open(self) -> TableWriter:
        if isinstance(self._newest.with_index().sharding, Manual):
            raise InvalidInputError(
                "rows of a table with manual shards go to the shard that you name: use Table.shard_writer(shard_id)"
            )
        return self._open_shared()


def _close(writer: TableWriter) -> None:
    try:
        writer.close()
    except (
        TableReplacedError,
        WriterPoisonedError,
    ) as error:  # what was acknowledged is in the log, or went with the table
        writer.abort()
        _LOG.info("aborted the writer of the table's verbs: %s", error)
