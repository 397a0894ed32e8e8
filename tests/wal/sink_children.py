"""Processes that write one table beside each other: what they do, in functions that a child process runs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import pyarrow as pa

import lance_memwal as mw
from lance_memwal.write.once import OnceAppender
from lance_memwal.write.table_appender import TableAppender, TakeoverPolicy

SHARD = mw.shard_id_for(mw.Unsharded())
_PATIENCE = TakeoverPolicy(wait_seconds=60, idle_seconds=1.5)
_LARGE = 50  # every so many appends is one that becomes a generation


def _rows(number: int) -> list[pa.RecordBatch]:
    value = "x" * 20_000 if number % _LARGE == 0 else ""
    return [pa.record_batch({"id": pa.array([number], pa.int64()), "v": [value]})]


def _until(stop: str, acks: str, name: int, write: Callable[[int], None], pipe: Connection) -> None:
    """Write ids that nobody else has until the file `stop` is there; acknowledged ones are lines of `acks`."""
    file, number, errors = os.open(acks, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 0, []
    while not os.path.exists(stop) and not errors:
        number += 1
        try:
            write((name << 32) + number)
        except mw.FencedError:
            continue
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
        else:
            os.write(file, b"%d\n" % ((name << 32) + number))
    pipe.send(("done", errors))


def append_ids(uri: str, acks: str, name: int, stop: str, pipe: Connection) -> None:
    """A sink: no append of it may fail."""
    sink = TableAppender(OnceAppender(uri, max_entry_bytes=8192), policy=_PATIENCE)
    _until(stop, acks, name, lambda number: _unused(sink.append(SHARD, _rows(number))), pipe)


def take_over(uri: str, number: int, pipe: Connection) -> None:
    """A sink that waits for nobody whom it cannot see: one append."""
    TableAppender(OnceAppender(uri), policy=TakeoverPolicy(20, 0.0)).append(SHARD, [pa.record_batch({"id": [number]})])
    pipe.send("taken")


def write_ids(uri: str, acks: str, name: int, stop: str, pipe: Connection) -> None:
    """A writer that comes and goes."""
    table = mw.open_table(uri)

    def write(number: int) -> None:
        with table.shard_writer() as writer:
            writer.put(_rows(number))
        time.sleep(0.2)

    _until(stop, acks, name, write, pipe)


def keep_tidy(uri: str, stop: str, pipe: Connection) -> None:
    """Flush, compact and collect, all the time."""
    table, errors = mw.open_table(uri), []
    while not os.path.exists(stop) and not errors:
        try:
            table.flush()
            table.compact()
            table.gc(grace_seconds=0)
        except mw.ConflictError:
            continue
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
        time.sleep(0.05)
    pipe.send(("done", errors))


def _unused(_: Any) -> None:
    return None
