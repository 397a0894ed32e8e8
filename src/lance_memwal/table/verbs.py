"""The shared writer that a table keeps for its own write verbs.

Entry point: `KeptWriter`.

1. The writer is shared: it owns no shard and never fences a live writer. It is opened by the first write.
2. It follows the table. If rows do not fit the columns that it knows, and the table has other columns now, it tries again.
3. If the table was dropped or re-created, one write raises `TableReplacedError`. The next write opens a new writer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from lance_memwal.errors import ClosedError, InvalidInputError, TableReplacedError
from lance_memwal.lance.base import NewestBase
from lance_memwal.process.forking import close_in_child
from lance_memwal.rows.sharding import Manual
from lance_memwal.table_writer import TableWriter, follow_columns, is_closed
from lance_memwal.write.request import Write, apply_to
from lance_memwal.write.results import WriteResult


class KeptWriter:
    """One shared writer of a table. Threads may share it."""

    def __init__(self, newest: NewestBase, open_shared: Callable[[], TableWriter]) -> None:
        """`open_shared` opens a shared writer."""
        self._newest = newest
        self._open_shared = open_shared
        self.orphan()
        close_in_child(self)

    def orphan(self) -> None:
        """Begin without a writer: at the start, and in a forked child."""
        self._lock = threading.RLock()  # reentrant: a signal handler may write
        self._writer: TableWriter | None = None

    def apply(self, write: Write) -> WriteResult:
        """Apply a write; again if the writer was closed before it, or did not know the columns of the table."""
        while True:
            writer = self._opened()
            try:
                return apply_to(writer, write)
            except TableReplacedError:
                self.close()
                raise
            except ClosedError:  # another thread called `close`; nothing was written
                if not is_closed(writer):
                    raise
            except InvalidInputError:
                if not follow_columns(writer):
                    raise

    def close(self) -> None:
        """Close the writer; the next write opens another one."""
        with self._lock:
            writer, self._writer = self._writer, None
        if writer is not None:
            try:
                writer.close()
            except TableReplacedError:
                writer.abort()  # the rows went with the table

    def _opened(self) -> TableWriter:
        with self._lock:
            if self._writer is None or is_closed(self._writer):
                if isinstance(self._newest.with_index().sharding, Manual):
                    raise InvalidInputError(
                        "a table with manual shards has no default shard: use Table.shard_writer(shard_id)"
                    )
                self._writer = self._open_shared()
            return self._writer
