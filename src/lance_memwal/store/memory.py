"""Tables of one process: `memory://name`, for tests and try-outs.

Owns a private temporary directory per name, so that Lance datasets below it work like anywhere else. Invariants:

1. The same name is the same directory in the whole process, and in children forked from it.
2. A directory is removed when the process that created it ends, never by a forked child.
3. `reset` empties a directory but keeps it, so that open stores and locations stay valid.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading

from lance_memwal.errors import InvalidInputError
from lance_memwal.process.background import at_exit
from lance_memwal.process.forking import run_in_child

_lock = threading.RLock()
_roots: dict[str, tuple[str, int]] = {}


def memory_root(name: str) -> str:
    """The directory behind `memory://name`, created at the first call."""
    if not name:
        raise InvalidInputError("memory:// needs a name, as in memory://demo")
    run_in_child(_renew_lock)
    at_exit(_remove_all, after_threads=True)
    with _lock:
        if name not in _roots:
            path = os.path.realpath(tempfile.mkdtemp(prefix="memwal-memory-"))
            _roots[name] = (path, os.getpid())
        return _roots[name][0]


def reset(name: str | None = None) -> None:
    """Empty the tables below `name`, or below every name."""
    with _lock:
        for known, (path, _) in _roots.items():
            if name is None or known == name:
                _empty(path)


def _empty(path: str) -> None:
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)


def _remove_all(_deadline: float) -> None:
    for path, creator in _roots.values():
        if creator == os.getpid():
            shutil.rmtree(path, ignore_errors=True)


def _renew_lock() -> None:
    """A child forked while another thread held the lock must not wait for that thread."""
    global _lock
    _lock = threading.RLock()
