"""What one life over a whole table is told to do.

Owns `TableLife`, which the parent draws and the process lives, and `Retry`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.harness.table_shapes import Shape, Shown

__all__ = ["Retry", "TableLife"]


@dataclass(frozen=True, slots=True)
class Retry:
    """A transaction of which nobody knows whether it landed: the next life makes it again."""

    app: str
    number: int
    keys: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TableLife:
    """One life. `kill_at` and `stop_at` are a point and a count; `ending` is what follows the last write.

    `mode` is own, retake, shared, sink or upkeep. Of several processes at once each has its `part` of the keys; sinks that are
    twins (`twin`) make the same appends. One that does not show what it finds may know what is `settled` of it. An upkeep life
    that `collects` does so with every step, after it made something to collect; `beside_shared` writers it claims no log, since
    they would wait a minute for one that stopped with it. `retired` are added columns that were dropped, or nearly;
    `checkpoints` what each must show.
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
    retries: tuple[Retry, ...] = ()
    ending: str = "linger"
