"""What a write did.

Owns `WriteResult`, of one shard, and `RoutedResult`, of all shards that a write went to.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa


class WriteResult(NamedTuple):
    """What a write did in one shard.

    `batch_positions` number the batches of this writer, after those that it replayed when it was opened: one for each batch
    that the caller gave and of which rows were written, regardless of how the log holds
    them. `written` counts rows and tombstones. `rejected` are the
    keys of the rows that a condition or the table's merge rejected; None if there are none. `matched` counts the live rows
    that a delete or an update found, if the caller asked for that. `skipped`: the transaction was already applied, and
    nothing was written.
    """

    batch_positions: range
    skipped: bool = False
    written: int = 0
    rejected: pa.Table | None = None
    matched: int | None = None


class RoutedResult(dict[str, WriteResult]):
    """What a write did, by shard, and in all."""

    __slots__ = ()

    @property
    def skipped(self) -> bool:
        """Whether its transaction was there already in every shard that it went to."""
        return bool(self) and all(result.skipped for result in self.values())

    @property
    def written(self) -> int:
        """Rows and tombstones that were written."""
        return sum(result.written for result in self.values())

    @property
    def rejected(self) -> pa.Table | None:
        """The keys of the rows that were kept out; None if there are none."""
        parts = [result.rejected for result in self.values() if result.rejected is not None]
        return pa.concat_tables(parts) if parts else None

    @property
    def matched(self) -> int | None:
        """The live rows that a delete or an update met; None if nobody asked."""
        return None


class CountedResult(RoutedResult):
    """What a write did of which the caller asked what it met; maybe in no shard."""

    __slots__ = ()

    @property
    def matched(self) -> int:
        """The live rows that it met."""
        return sum(result.matched or 0 for result in self.values())
