"""What a write did: `WriteResult` in all, `ShardWrite` in one shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lance_memwal.rows.text_values import to_plain


@dataclass(frozen=True, slots=True, repr=False)
class ShardWrite:
    """What a write did in one shard.

    Attributes:
        positions: Numbers of the written batches. A writer numbers the batches of its callers, starting with those that it
            replayed when it was opened, regardless of how the log holds them.
        written: Rows and tombstones that were written.
        matched: Live rows that an update or a delete found, if it counts them.
        rejected: Keys of the rows that a condition or the table's merge rejected; None if there are none.
        skipped: Whether the transaction was already applied. Then nothing was written.
    """

    positions: range
    written: int = 0
    matched: int | None = None
    rejected: pa.Table | None = None
    skipped: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the values as JSON can hold them; `rejected` is a list of keys."""
        return {"positions": [self.positions.start, self.positions.stop], **_plain(self)}

    def __repr__(self) -> str:
        return f"ShardWrite({_shown(self, f'positions={self.positions}')})"


@dataclass(frozen=True, slots=True, repr=False)
class WriteResult:
    """What a write did, in all shards that it went to.

    Attributes:
        written: Rows and tombstones that were written.
        matched: Live rows that an update or a delete found; None if it does not count them. `delete` counts them with
            `where=` or `count=True`.
        rejected: Keys of the rows that a condition or the table's merge rejected; None if there are none.
        skipped: Whether the transaction was already applied in every shard that the write went to. Then nothing was
            written.
        shards: The same per shard id.
    """

    written: int
    matched: int | None
    rejected: pa.Table | None
    skipped: bool
    shards: Mapping[str, ShardWrite]

    def to_dict(self) -> dict[str, Any]:
        """Return the values as JSON can hold them; `rejected` is a list of keys."""
        return {**_plain(self), "shards": {shard_id: done.to_dict() for shard_id, done in self.shards.items()}}

    def __repr__(self) -> str:
        return f"WriteResult({_shown(self)}, shards={len(self.shards)})"


def result_of(shards: Mapping[str, ShardWrite], *, counts: bool = False) -> WriteResult:
    """The sum over shards; `counts`: the write counts the live rows that it finds, even if it went to no shard."""
    each = shards.values()
    matched = [done.matched for done in each if done.matched is not None]
    rejected = [done.rejected for done in each if done.rejected is not None]
    return WriteResult(
        sum(done.written for done in each),
        sum(matched) if matched or (counts and not shards) else None,
        pa.concat_tables(rejected) if rejected else None,
        bool(shards) and all(done.skipped for done in each),
        shards,
    )


def joined(results: Sequence[WriteResult], *, counts: bool = False) -> WriteResult:
    """The sum of results of one write, each of other shards."""
    if len(results) == 1:
        return results[0]
    return result_of({name: done for result in results for name, done in result.shards.items()}, counts=counts)


def _plain(done: ShardWrite | WriteResult) -> dict[str, Any]:
    return {
        "written": done.written,
        "matched": done.matched,
        "rejected": None if done.rejected is None else to_plain(done.rejected.to_pylist()),
        "skipped": done.skipped,
    }


def _shown(done: ShardWrite | WriteResult, *first: str) -> str:
    """The values that say something, in one line."""
    rejected = None if done.rejected is None else done.rejected.num_rows
    values = {"matched": done.matched, "rejected": rejected, "skipped": done.skipped or None}
    others = [f"{name}={value}" for name, value in values.items() if value is not None]
    return ", ".join([*first, f"written={done.written}", *others])
