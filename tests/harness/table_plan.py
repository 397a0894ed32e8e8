"""What one life over a whole table is told to do.

Owns `TableLife`, which the parent draws and the process lives, `Attempt` and `Repeat`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.harness.table_shapes import Shape, Shown

__all__ = ["STREAM", "Attempt", "Repeat", "TableLife"]

STREAM: Final = "stream"
"""The application of all sinks: each goes on counting where the one before ended."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A transaction as somebody tries it: version `version` of `app`, with rows that say `number`, at `keys` of every shard."""

    app: str
    version: int
    number: int
    keys: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Repeat:
    """An attempt to make again, with rows that say another number.

    The shards that are known to have the transaction (`held`), and those that show rows of the attempt now, must skip it and keep
    their rows; all others must take it.
    """

    attempt: Attempt
    held: frozenset[str]


@dataclass(frozen=True, slots=True)
class TableLife:
    """One life. `kill_at` and `stop_at` are a point and a count; `ending` is what follows the last write.

    `mode` is own, retake, shared, sink or upkeep. Of several processes at once each has its `part` of the keys; sinks that are
    twins (`twin`) make the same appends. One that does not show what it finds may know what is `settled` of it. An upkeep life
    that `collects` does so with every step, after it made something to collect; `beside_shared` writers it claims no log, since
    they would wait a minute for one that stopped with it. `retired` are added columns that were dropped, or nearly;
    `checkpoints` what each must show; one that is `alone` has no other process beside it, not even a stopped one. `repeats` are
    transactions of before, to be made again before anything else.
    """

    uri: str
    shape: Shape
    seed: int
    name: int
    first_number: int
    mode: str = "own"
    threads: int = 1
    writes: int = 30
    part: int = 0
    parts: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    kill_at: tuple[str, int] | None = None
    stop_at: tuple[str, int] | None = None
    twin: int = 0
    alone: bool = True
    shows: bool = True
    consumes: bool = True
    changes_columns: bool = False
    settled: Mapping[int, Shown] | None = None
    collects: bool = False
    beside_shared: bool = False
    may_be_fenced: bool = False
    retired: frozenset[int] = frozenset()
    next_column: int = 0
    checkpoints: Mapping[str, int] = field(default_factory=dict)
    repeats: tuple[Repeat, ...] = ()
    ending: str = "linger"

    @property
    def own_numbers(self) -> int:
        """The number of its first write of its own, after those of `repeats`."""
        return self.first_number + len(self.repeats)

    @property
    def is_alone(self) -> bool:
        """Whether nobody else does anything with the table: no other process, and no other thread of this one."""
        return self.alone and self.threads == 1
