"""Text indexes of immutable rows, kept between searches.

Owns `TextCache`. Invariant: it holds at most its limit of bytes; the least recently used index goes first.

Called by: row sources.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from memwal.index import Analyzer, FtsMemIndex

__all__ = ["SHARED_TEXTS", "TextCache"]

DEFAULT_BYTES = 1 << 30


class TextCache:
    """Text indexes by what they were made of."""

    def __init__(self, limit_bytes: int = DEFAULT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, ...], FtsMemIndex] = OrderedDict()

    def index(self, key: tuple[str, ...], analyzer: Analyzer, build: Callable[[], FtsMemIndex]) -> FtsMemIndex:
        """The kept index, or a new one that is kept if it fits."""
        slot = (*key, repr(analyzer))
        with self._lock:
            found = self._kept.get(slot)
            if found is not None:
                self._kept.move_to_end(slot)
                return found
        made = build()
        with self._lock:
            self._kept[slot] = made
            held = sum(index.size_bytes for index in self._kept.values())
            while held > self._limit_bytes and self._kept:
                _, oldest = self._kept.popitem(last=False)
                held -= oldest.size_bytes
        return made

    @property
    def size_bytes(self) -> int:
        """Bytes held now."""
        with self._lock:
            return sum(index.size_bytes for index in self._kept.values())


SHARED_TEXTS = TextCache()
