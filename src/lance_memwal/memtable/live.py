"""The writers that live in this process, so that reads of a table find their memtables by themselves, and claims spare them.

Owns registries of weak references: of shards that are open, and of keepers of shards that are put away. Invariants:

1. The registry keeps no writer alive.
2. A forked child knows none of them.
3. When the program ends, no thread but the last one is inside a write.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Protocol, TypeVar

from lance_memwal.memtable.memtable import InMemoryMemTables
from lance_memwal.process.background import at_exit
from lance_memwal.process.forking import run_in_child

T = TypeVar("T")


class LiveShard(Protocol):
    """What a reader needs of a writer in its own process."""

    @property
    def epoch(self) -> int:
        """The epoch under which it writes."""
        ...

    @property
    def shard_id(self) -> str:
        """The shard that it writes."""
        ...

    @property
    def is_writing(self) -> bool:
        """Whether it takes writes."""
        ...

    @property
    def is_owned(table_key: str, shard_id: str, epoch: int) -> bool:
    """Whether a writer of this process owns the shard under this epoch or a later one, open or put away."""
    found = find(table_key, shard_id)
    if found is not None and found.epoch >= epoch:
        return True
    return any(keeper.keeps(shard_id, epoch) for keeper in keepers_of(table_key))


def _forget_in_child() -> None:
    global _lock
    _lock = threading.RLock()
    _tables.clear()
    _ids.clear()
    _keepers.clear()


def _leave_all(deadline: float) -> None:
    for table_key in list(_tables):
        for shard in all_of(table_key):
            shard.leave(deadline)
