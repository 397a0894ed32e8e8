"""Functions that child processes run on a table that they share."""

from __future__ import annotations

import os
import signal
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import pyarrow as pa

import lance_memwal as mw
from lance_memwal import crash_points


def append_ids(uri: str, acks: str, name: int, threads: int, stop: str, pipe: Connection) -> None:
    """Append unique ids until the file `stop` exists. Each acknowledged id is a line of the file `acks`."""
    writer = mw.open_table(uri).writer(shared=True)
    file = os.open(acks, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    errors: list[str] = []

    def work(thread: int) -> None:
        number = 0
        while not os.path.exists(stop):
            number += 1
            key = ((name * 100 + thread) << 32) + number
            try:
                writer.put([{"id": key, "v": f"{name}"}])
            except Exception as error:
                errors.append(f"{type(error).__name__}: {error}")
                return
            os.write(file, b"%d\n" % key)

    workers = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    pipe.send(("done", errors))
    writer.close()
    pipe.send(("closed",))


def create_at(uri: str, schema: pa.Schema, at_seconds: float, key: int, pipe: Connection) -> None:
    """Create the table at a time, or open the one of another process, and put one row."""
    time.sleep(max(0.0, at_seconds - time.time()))
    try:
        table = mw.create_table(uri, schema, primary_key="id", exist_ok=True)
        with table.writer(shared=True) as writer:
            writer.put([{"id": key, "v": "first"}])
        pipe.send(("created",))
    except Exception as error:
        pipe.send((type(error).__name__, str(error)))


def put_on_signal(uri: str, rows: list[dict[str, Any]], pipe: Connection) -> None:
    """Put rows, report it, and stay open until killed. Each SIGUSR1 puts them again with ids that are 1,000 higher."""
    signalled = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: signalled.set())
    writer = mw.open_table(uri).writer(shared=True)
    writer.put(rows)
    pipe.send(("put",))
    step = 0
    while True:
        if signalled.wait(0.05):
            signalled.clear()
            step += 1000
            try:
                writer.put([{**row, "id": row["id"] + step} for row in rows])
                pipe.send(("put",))
            except Exception as error:
                pipe.send((type(error).__name__, str(error)))


def own_until_signal(uri: str, pipe: Connection) -> None:
    """Write with an exclusive writer, close it at SIGUSR1, and stay alive until killed."""
    signalled = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: signalled.set())
    with mw.open_table(uri).writer() as writer:
        writer.put([{"id": 1, "v": "exclusive"}])
        pipe.send(("put",))
        signalled.wait()
    pipe.send(("closed",))
    time.sleep(60)


def serve_requests(uri: str, name: int, requests: int, pipe: Connection) -> None:
    """A worker of a web server. It opens the table after the fork. Each request puts one row and reads it."""
    failed = []
    with mw.open_table(uri).writer(shared=True) as writer:
        for number in range(requests):
            key = name * 1000 + number
            try:
                writer.put([{"id": key, "v": "request"}])
                if writer.get(key) != {"id": key, "v": "request"}:
                    failed.append("an acknowledged row is not visible")
            except Exception as error:
                failed.append(f"{type(error).__name__}: {error}")
    pipe.send((failed,))


def put_applications(uri: str, count: int, name: int, pipe: Connection) -> None:
    """Put one row in a transaction of each application; report those that this process wrote."""
    with mw.open_table(uri).writer(shared=True) as writer:
        done = [writer.put([{"id": n, "v": f"{name}"}], txn=(f"app-{n}", 1)) for n in range(1, count + 1)]
    pipe.send(([n for n, result in enumerate(done, 1) if not result.skipped],))


def increment(uri: str, times: int, pipe: Connection) -> None:
    """Add 1 to row 0 by compare-and-set, `times` times; report the number of lost races."""
    lost = 0
    with mw.open_table(uri).writer(shared=True) as writer:
        for _ in range(times):
            while True:
                row = writer.get(0)
                assert row is not None
                if writer.compare_and_set(0, row, {"id": 0, "v": str(int(row["v"]) + 1)}):
                    break
                lost += 1
    pipe.send((lost,))


def die_at(uri: str, point: str, rows: list[dict[str, Any]], txn: tuple[str, int], pipe: Connection) -> None:
    """Put rows in a transaction and die by SIGKILL when the write reaches `point`."""
    writer = mw.open_table(uri).writer(shared=True)
    writer.put([{"id": 0, "v": "before"}])
    pipe.send(("ready",))

    def die(reached: str) -> None:
        if reached == point:
            os.kill(os.getpid(), signal.SIGKILL)

    crash_points.install(die)
    writer.put(rows, txn=txn)


def end_with_queued_rows(uri: str, ending: str, pipe: Connection) -> None:
    """Queue rows that no thread appends yet, then close, abort or just end the program."""
    writer = mw.open_table(uri).writer(shared=True, commit_linger_ms=100)
    writer.put([{"id": 1, "v": "durable"}])
    ack = writer.put_nowait([{"id": 2, "v": "queued"}])
    if ending != "program ends":
        getattr(writer, ending)()
    pipe.send((ack.durable,))
