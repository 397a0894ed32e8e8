"""What a compaction did, as values.

Owns `CompactionReport`, `ShardCompaction` and `Progress`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from lance_memwal.rows.notebook import html_of_report

Progress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True, slots=True)
class ShardCompaction:
    """What compaction folded of one shard: generations `first` to `last`, and how many the manifest no longer lists."""

    shard_id: str
    first: int
    last: int
    trimmed: int = 0

    @property
    def generations(self) -> int:
        """How many generations were folded."""
        return max(0, self.last - self.first + 1)


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """One call of `Table.compact`. `rows_written` and `rows_deleted` are rows handed to the base table, `size_bytes` the bytes of
    the compacted SSTables on storage.

    `waiting_for_indexes` says per index how many compacted generations stay listed until it is brought up to date.
    `in_log_only` names the shards with rows that no SSTable holds yet, so that this call could not fold them, and says why.
    """

    shards: tuple[ShardCompaction, ...] = ()
    rows_written: int = 0
    rows_deleted: int = 0
    size_bytes: int = 0
    commits: int = 0
    conflicts: int = 0
    base_version: int = 0
    waiting_for_indexes: dict[str, int] = field(default_factory=dict)
    in_log_only: dict[str, str] = field(default_factory=dict)
    seconds: float = field(default=0.0, compare=False)

    @property
    def generations(self) -> int:
        """Generations folded in all shards."""
        return sum(shard.generations for shard in self.shards)

    def _repr_html_(self) -> str:
        return html_of_report(self)
