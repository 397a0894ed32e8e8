"""The cache of the process, as tests want it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lance_memwal.process.cache import CACHE

__all__ = ["nothing_kept"]


@contextmanager
def nothing_kept() -> Iterator[None]:
    """Nothing that is read is kept, until the end of the block."""
    limit = CACHE.limit_bytes
    CACHE.limit_bytes = 0
    try:
        yield
    finally:
        CACHE.limit_bytes = limit
