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
    def writer(self) -> Any:
        """The public writer; None if it takes no writes."""
        ...

    def capture(self) -> InMemoryMemTables | None:
        """Active and frozen memtables together; None if it has none to show (closed, WAL-only)."""
        ...

    def publish(self, timeout_seconds: float) -> None:
        """Turn everything that was written so far into SSTables; raises why it could not, after so many seconds."""
        ...

    def leave(self, deadline: float) -> None:
        """Let no other thread begin anything, until `deadline` (`monotonic`) at the latest: the program ends."""
        ...


class Keeper(Protocol):
    """Who has put shards away that are still its own: no memory, no background work, but an epoch."""

    def keeps(self, shard_id: str, epoch: int) -> bool:
        """Whether it owns the shard under this epoch or a later one, without a writer that is open."""
        ...

    def write(self, shard_id: str, call: Callable[[Any], T]) -> T:
        """The result of `call` with the writer of the shard, which is opened again."""
        ...

    def publish_kept(self, timeout_seconds: float, shards: Collection[str] | None) -> dict[str, str]:
        """Turn the rows of what it keeps (None: all of it) into SSTables; says of which shards it did not, and why.

        Each may take `timeout_seconds`.
        """
        ...


_lock = threading.RLock()  # reentrant: a signal handler may look or close in the middle of another call
_tables: dict[str, dict[str, list[weakref.ref[LiveShard]]]] = {}  # by the key of the table and the id of the shard
_ids: dict[str, frozenset[str]] = {}  # those of `_tables`, as far as somebody has asked for them
_keepers: dict[str, weakref.WeakSet[Keeper]] = {}


def register(table_key: str, shard: LiveShard) -> None:
    """Let readers of the table find `shard`."""
    run_in_child(_forget_in_child)
    at_exit(_leave_all)
    with _lock:
        _ids.pop(table_key, None)
        known = _tables.setdefault(table_key, {}).setdefault(shard.shard_id, [])
        known[:] = [ref for ref in known if ref() is not None]
        known.append(weakref.ref(shard))


def forget(table_key: str, shard: LiveShard) -> None:
    """Remove `shard`; unknown is fine."""
    with _lock:
        _ids.pop(table_key, None)
        shards = _tables.get(table_key, {})
        known = shards.get(shard.shard_id, [])
        known[:] = [ref for ref in known if ref() is not None and ref() is not shard]
        if not known:
            shards.pop(shard.shard_id, None)
        if not shards:
            _tables.pop(table_key, None)


def find(table_key: str, shard_id: str) -> LiveShard | None:
    """The registered writer of the highest epoch, the newest of equal ones (a table made anew at its place), if any."""
    if not _tables:  # nor has anybody asked for news of forks
        return None
    with _lock:
        shards = [shard for ref in _tables.get(table_key, {}).get(shard_id, ()) if (shard := ref()) is not None]
    return max(reversed(shards), key=lambda shard: shard.epoch, default=None)


def ids_of(table_key: str) -> frozenset[str]:
    """The shards of the table that have registered writers, or had some that were dropped."""
    with _lock:
        found = _ids.get(table_key)
        if found is None:
            found = _ids[table_key] = frozenset(_tables.get(table_key, ()))
        return found


def count_of(table_key: str) -> int:
    """How many shards `ids_of` has."""
    return len(_tables.get(table_key, ()))


def all_of(table_key: str) -> list[LiveShard]:
    """Every registered writer of the table."""
    if not _tables:
        return []
    with _lock:
        known = _tables.get(table_key, {}).values()
        return [shard for refs in known for ref in refs if (shard := ref()) is not None]


def keep(table_key: str, keeper: Keeper) -> None:
    """Let claims spare what `keeper` has put away."""
    run_in_child(_forget_in_child)
    with _lock:
        for empty in [key for key, found in _keepers.items() if not found]:
            del _keepers[empty]
        _keepers.setdefault(table_key, weakref.WeakSet()).add(keeper)


def keepers_of(table_key: str) -> list[Keeper]:
    """Everybody who may have put shards of the table away."""
    with _lock:
        return list(_keepers.get(table_key, ()))


def writer_of(table_key: str, shard_id: str, epoch: int) -> Callable[[Callable[[Any], T]], T] | None:
    """What calls a function with the writer of this process that owns the shard under this epoch or a later one, if any."""
    found = find(table_key, shard_id)
    writer = None if found is None or found.epoch < epoch else found.writer
    if writer is not None:
        return partial(_called, writer)
    keeper = next((each for each in keepers_of(table_key) if each.keeps(shard_id, epoch)), None)
    return None if keeper is None else partial(keeper.write, shard_id)


def _called(writer: Any, call: Callable[[Any], T]) -> T:
    return call(writer)


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
