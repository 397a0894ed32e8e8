"""What work costs, in units that other work of the machine does not change much: processor time, and calls.

Owns `cpu_seconds` and `calls_of`. A limit in seconds still means another thing on another machine: a test compares two of these,
of work that it does itself. Calls are the same everywhere, but say nothing of what a call costs.
"""

import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any


def cpu_seconds(work: Callable[[], object], *, tries: int = 1, clock: Callable[[], float] = time.process_time) -> float:
    """The processor seconds of `work`, the fewest of some tries; `time.thread_time` counts those of this thread alone."""

    def once() -> float:
        started = clock()
        work()
        return clock() - started

    return min(once() for _ in range(tries))


def calls_of(work: Callable[[], object]) -> int:
    """How many functions `work` calls in this thread, those of C too; a generator counts for each of its items."""
    count = 0

    def seen(_frame: FrameType, event: str, _given: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count
