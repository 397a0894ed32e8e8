"""What child processes do in the tests of stalled and forked writers."""

from __future__ import annotations

import os
from multiprocessing.connection import Connection

from lance_memwal import MemWalError, WalAppender
from tests.harness.kill_points import stop_at
from tests.kit.logs import rows


def append_and_stall(uri: str, shard_id: str, point: str, before: int, number: int, pipe: Connection) -> None:
    """Open, append `before` entries, and stop at `point` on the way to one more; tell what became of it."""
    if point.startswith("open."):
        stop_at(point, before=lambda: pipe.send(("stopping",)))
    try:
        appender = WalAppender.open(uri, shard_id)
        for earlier in range(before):
            appender.append(rows(earlier))
        if not point.startswith("open."):
            stop_at(point, before=lambda: pipe.send(("stopping",)))
        position = appender.append(rows(number))
    except MemWalError as error:
        pipe.send((type(error).__name__, str(error)))
        return
    pipe.send(("acknowledged", position))


def append_in_a_fork(uri: str, shard_id: str, pipe: Connection) -> None:
    """Open a log, fork, and append the same rows in parent and child; tell what each got."""
    appender = WalAppender.open(uri, shard_id)
    appender.append(rows(1))
    child = os.fork()
    if child == 0:
        try:
            try:
                told: tuple[str, object] = ("acknowledged", appender.append(rows(2)))
            except MemWalError as error:
                told = (type(error).__name__, str(error))
            pipe.send(("child", *told))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    pipe.send(("parent", "acknowledged", appender.append(rows(2))))
