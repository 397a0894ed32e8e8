"""Directories in memory, where a sync costs nothing: for tables whose processes die by signals, not by a loss of power.

Owns `memory_directory`. Where the machine has no file system in memory with room, it is a directory like any other.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

__all__ = ["memory_directory"]

_MEMORY: Final = Path("/dev/shm")
_ROOM_BYTES: Final = 1 << 30


@contextmanager
def memory_directory() -> Iterator[Path]:
    """An empty directory; whatever is there in the end is removed."""
    has_room = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _ROOM_BYTES
    with tempfile.TemporaryDirectory(
        prefix="memwal-", dir=_MEMORY if has_room else None, ignore_cleanup_errors=True
    ) as place:
        yield Path(place)
