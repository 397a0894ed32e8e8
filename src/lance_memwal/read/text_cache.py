"""What searches derive from immutable rows, kept between searches: text indexes, vectors with their norms.

Owns `TextCache`. Invariants:

1. A key says which bytes on storage the value was made of: files that never change, deletion vectors by their file, columns
   by their id or place there. Names, version numbers and counts mean something else after a rename or a restore.
2. It holds at most its limit of bytes; the least recently used goes first.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol, TypeVar, cast

from lance_memwal.memtable.index import Analyzer, FtsMemIndex

__all__ = ["SHARED_TEXTS", "TextCache"]

DEFAULT_BYTES = 1 << 30


class _Sized(Protocol):
    @property
    def size_bytes(self) -> int: ...


T = TypeVar("T", bound=_Sized)


class TextCache:
    """Derived values by what they were made of."""

    def __init__(self, limit_bytes: int = DEFAULT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.RLock()
        self._kept: OrderedDict[tuple[str, ...], _Sized] = OrderedDict()

    def index(self, key: tuple[str, ...], analyzer: Analyzer, build: Callable[[], FtsMemIndex]) -> FtsMemIndex:
        """The kept text index, or a new one that is kept if it fits."""
        return self.derived((*key, repr(analyzer)), build)

    def derived(self, key: tuple[str, ...], build: Callable[[], T]) -> T:
        """The kept value of `key`, or a new one that is kept if it fits."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return cast(T, found)
        made = build()
        with self._lock:
            self._kept[key] = made
            held = sum(value.size_bytes for value in list(self._kept.values()))
            while held > self._limit_bytes and self._kept:
                _, oldest = self._kept.popitem(last=False)
                held -= oldest.size_bytes
        return made

    @property
    def size_bytes(self) -> int:
        """Bytes held now."""
        with self._lock:
            return sum(value.size_bytes for value in self._kept.values())


SHARED_TEXTS = TextCache()
