"""The process that is killed while it compacts and collects."""

from __future__ import annotations

import traceback
from multiprocessing.connection import Connection

import lance_memwal as mw
from tests.harness.kill_points import kill_at


def maintain(uri: str, point: str | None, count: int, memory_bytes: int, pipe: Connection) -> None:
    """Compact and collect, and die the `count`-th time that `point` is reached; without a point, when killed."""
    if point is not None:
        kill_at(point, count)
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
