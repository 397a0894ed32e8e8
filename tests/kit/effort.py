"""What work costs, in a unit that other work of the machine does not change much: the processor time of this process.

Owns `cpu_seconds`. A limit in seconds still means another thing on another machine: a test compares two of these, of work that it
does itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["cpu_seconds"]


def cpu_seconds(work: Callable[[], object], *, tries: int = 1, clock: Callable[[], float] = time.process_time) -> float:
    """The processor seconds of `work`, the fewest of some tries; `time.thread_time` counts those of this thread alone."""

    def once() -> float:
        started = clock()
        work()
        return clock() - started

    return min(once() for _ in range(tries))
