"""Ending or stopping a process at a named point of the engine's order of effects.

Owns the list of points and the handlers for `lance_memwal.crash_points`. A handler counts how often its point is reached and acts
the n-th time: the process kills itself (nothing is flushed, no handler runs, as in a real crash) or stops itself
(every thread, until it is continued). `obey_points` also tells which points a process comes to.
"""

import os
import signal
import threading
from collections.abc import Callable
from typing import Final, TypeAlias

from lance_memwal import crash_points

Handler: TypeAlias = Callable[[str], None]
OPEN_POINTS: Final = ("open.after_claim", "open.after_sentinel", "replay.before_insert")
PUT_POINTS: Final = ("wal.before_put", "wal.after_put", "put.before_ack")
FLUSH_POINTS: Final = (
    "flush.before_write",
    "flush.after_data",
    "flush.before_dataset",
    "flush.before_commit",
    "flush.after_commit",
)
KEYED_FLUSH_POINTS: Final = ("flush.before_sidecar",)
BULK_POINTS: Final = ("bulk.before_mark", "bulk.before_commit", "bulk.after_commit")
RESOLVE_POINTS: Final = ("resolve.before_insert",)
COMPACT_POINTS_OF: Final = {
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
}
"""By the way in which a compaction commits: fragments of a table with a key, Lance's own merge, appends."""
COMPACT_POINTS: Final = tuple(dict.fromkeys(point for points in COMPACT_POINTS_OF.values() for point in points))
ONCE_POINTS: Final = (
    "once.before_look",
    "once.before_put",
    "once.after_put",
    "once.before_help",
    "once.before_commit",
    "once.before_seal",
    "once.before_mark",
    "once.after_commit",
)
GC_POINTS: Final = (
    "gc.proposed",
    "gc.announced",
    "gc.before_floor",
    "gc.after_floor",
    "gc.before_hint",
    "gc.after_hint",
    "gc.before_entry",
    "gc.before_manifest",
    "gc.before_sstable",
    "gc.before_orphan",
    "gc.after_delete",
)
OTHER_POINTS: Final = ("checkpoint.after_record", "close.before_mark", "compact.after_deletes", "park.before_stop")
ANY_POINT: Final = "any"
"""The n-th point that is reached, whichever it is."""
POINTS: Final = (
    *OPEN_POINTS,
    *PUT_POINTS,
    *FLUSH_POINTS,
    *KEYED_FLUSH_POINTS,
    *BULK_POINTS,
    *RESOLVE_POINTS,
    *COMPACT_POINTS,
    *ONCE_POINTS,
    *GC_POINTS,
    *OTHER_POINTS,
)


def act_at(point: str, count: int, action: Callable[[], None]) -> None:
    """Run `action` in whichever thread reaches `point` for the `count`-th time from now on."""
    crash_points.install(_counted(point, count, lambda _: action()))


def _counted(point: str, count: int, action: Callable[[str], None]) -> Handler:
    """A handler that acts the `count`-th time; the action is told which point was reached."""
    if point not in (*POINTS, ANY_POINT):
        raise ValueError(f"{point!r} is no point of the engine; known: {', '.join(POINTS)}")
    if count < 1:
        raise ValueError(f"a point is reached for the first time as number 1, not {count}")
    lock = threading.Lock()
    left = count

    def handler(reached: str) -> None:
        nonlocal left
        if point not in (reached, ANY_POINT):
            return
        with lock:
            left -= 1
            due = left == 0
        if due:
            action(reached)

    return handler


def kill_at(point: str, count: int = 1) -> None:
    """Let this process die by SIGKILL when it reaches `point` for the `count`-th time."""
    act_at(point, count, _die)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop() -> None:
    # Sent to this thread, so that it takes no further step; a signal to the process may stop another one first.
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def stop_at(point: str, count: int = 1, *, before: Callable[[], None] | None = None) -> None:
    """Let this process stop by SIGSTOP at `point`; `before` runs right before, to tell somebody."""

    def stop() -> None:
        if before is not None:
            before()
        _stop()

    act_at(point, count, stop)


def obey_points(
    say: Callable[..., None], *, kill_at: tuple[str, int] | None = None, stop_at: tuple[str, int] | None = None
) -> None:
    """Let this process say which points it comes to, each once ("reached"), and die or stop where it is told to.

    Right before it says where it "dies" or "stops".
    """
    reached: set[str] = set()

    def note(point: str) -> None:
        if point not in reached:
            reached.add(point)
            say("reached", point)

    def end(point: str) -> None:
        say("dies", point)
        _die()

    def stop(point: str) -> None:
        say("stops", point)
        _stop()

    handlers = [note, *(_counted(*at, action) for at, action in ((kill_at, end), (stop_at, stop)) if at is not None)]

    def handle(point: str) -> None:
        for handler in handlers:
            handler(point)

    crash_points.install(handle)
