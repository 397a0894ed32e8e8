"""Counters and timings, by kind of call.

Owns the `Metrics` port and an in-process recorder. Invariants:

1. Recording never raises and never blocks on I/O.
2. Nothing is recorded per row.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol

from lance_memwal.process.forking import close_in_child

__all__ = ["CallStats", "Metrics", "Recorder"]


@dataclass(frozen=True, slots=True)
class CallStats:
    """Calls of one kind: how many, how many failed, seconds and bytes in all, the slowest."""

    count: int = 0
    errors: int = 0
    seconds: float = 0.0
    size_bytes: int = 0
    max_seconds: float = 0.0


class Metrics(Protocol):
    """Where measured calls go."""

    def record(self, kind: str, seconds: float, size_bytes: int = 0, *, failed: bool = False) -> None:
        """Add one call of `kind`."""
        ...


class Recorder:
    """Keeps totals per kind in memory; `snapshot` is consistent per kind."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant: a signal handler may use the store, too
        close_in_child(self)
        self._totals: dict[str, list[float]] = {}

    def record(self, kind: str, seconds: float, size_bytes: int = 0, *, failed: bool = False) -> None:
        """Add one call of `kind`."""
        with self._lock:
            totals = self._totals.get(kind)
            if totals is None:
                totals = self._totals[kind] = [0, 0, 0.0, 0, 0.0]
            totals[0] += 1
            totals[1] += failed
            totals[2] += seconds
            totals[3] += size_bytes
            if seconds > totals[4]:
                totals[4] = seconds

    def orphan(self) -> None:
        """Go on in a forked child, whoever held the lock."""
        self._lock = threading.RLock()

    def snapshot(self) -> dict[str, CallStats]:
        """Totals so far, by kind."""
        with self._lock:
            return {
                kind: CallStats(int(t[0]), int(t[1]), t[2], int(t[3]), t[4]) for kind, t in sorted(self._totals.items())
            }

    def reset(self) -> None:
        """Start again from zero."""
        with self._lock:
            self._totals.clear()
