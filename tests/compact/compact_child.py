"""The process that is killed while it compacts and collects."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from multiprocessing.connection import Connection

import lance_memwal as mw
from lance_memwal import crash_points

COMPACT_POINTS = {
    "key": (
        "compact.chosen",
        "compact.after_fragments",
        "compact.before_manifest",
        "compact.after_commit",
        "compact.before_trim",
        "compact.after_trim",
    ),
    "merge": (
        "compact.chosen",
        "compact.before_delete",
        "compact.after_delete",
        "compact.before_upsert",
        "compact.after_commit",
        "compact.before_trim",
        "compact.after_trim",
    ),
    "append": (
        "compact.chosen",
        "compact.after_fragments",
        "compact.before_manifest",
        "compact.after_commit",
        "compact.before_trim",
        "compact.after_trim",
    ),
    "append_in_two": (
        "compact.chosen",
        "compact.after_fragments",
        "compact.between_commits",
        "compact.after_commit",
        "compact.before_trim",
    ),
}
GC_POINTS = (
    "gc.proposed",
    "gc.announced",
    "gc.before_floor",
    "gc.after_floor",
    "gc.before_entry",
    "gc.before_sstable",
    "gc.before_hint",
    "gc.after_hint",
    "gc.before_manifest",
    "gc.after_delete",
)


def maintain(uri: str, point: str | None, count: int, memory_bytes: int, pipe: Connection) -> None:
    """Compact and collect, and die the `count`-th time that `point` is reached; without a point, when killed."""
    lock, left = threading.Lock(), count

    def handler(reached: str) -> None:
        nonlocal left
        if reached == point:
            with lock:
                left -= 1
                due = left == 0
            if due:
                os.kill(os.getpid(), signal.SIGKILL)

    crash_points.install(handler)
    try:
        table = mw.open_table(uri)
        pipe.send(("started",))
        table.compact(memory_bytes=memory_bytes)
        report = table.gc(grace_seconds=0)
        if report.refused:
            pipe.send(("failed", str(report.refused)))
        pipe.send(("done",))
    except BaseException:
        pipe.send(("failed", traceback.format_exc()))
        raise SystemExit(1) from None
