"""Processes that share a table: what they do, in functions that a child process runs."""

from __future__ import annotations

import os
import signal
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import lance_memwal as mw
from lance_memwal import crash_points


def append_ids(uri: str, acks: str, name: int, threads: int, stop: str, pipe: Connection) -> None:
    """Append ids that nobody else has, until the file `stop` is there; acknowledged ones are lines of `acks`."""
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


def own_and_put(uri: str, rows: list[dict[str, Any]], settings: dict[str, str], pipe: Connection) -> None:
    """Own the table by a put, say so, and wait to be killed; each SIGUSR1 puts once more and says what became of it.

    `settings` are variables of its environment.
    """
    os.environ.update(settings)
    writer = mw.open_table(uri).writer(shared=True)
    again = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: again.set())
    writer.put(rows)
    pipe.send(("owned", sorted(writer.owned_shards)))
    while True:
        if again.wait(0.05):
            again.clear()
            try:
                writer.put([{**row, "id": row["id"] + 1000} for row in rows])
                pipe.send(("put", sorted(writer.owned_shards)))
            except Exception as error:
                pipe.send(("error", type(error).__name__))


def exclusive_puts(uri: str, pipe: Connection) -> None:
    """Write without sharing, flush at SIGUSR1, and stay open until killed."""
    asked = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: asked.set())
    with mw.open_table(uri).writer() as writer:
        writer.put([{"id": 1, "v": "a"}])
        pipe.send(("put",))
        while not asked.wait(0.05):
            pass
        writer.flush()
        pipe.send(("flushed",))
        time.sleep(60)


def die_before_answers(uri: str, marker: str, hidden: str | None, pipe: Connection) -> None:
    """Own the table, and die between the commit of the first forwarded put and its answer.

    `hidden`: where the shard lies then; a link to itself is in its place, so that nobody can look for an owner.
    """
    writer = mw.open_table(uri).writer(shared=True)
    writer.put([{"id": 0, "v": "owner"}])

    def die(point: str) -> None:
        if point == "serve.before_answer" and Path(marker).exists():
            if hidden is not None:
                [shard] = writer.owned_shards
                place = Path(uri, "_mem_wal", shard)
                place.rename(hidden)
                place.symlink_to(place)
            os.kill(os.getpid(), signal.SIGKILL)

    crash_points.install(die)
    pipe.send(("owned",))
    time.sleep(60)


def serve_requests(uri: str, name: int, requests: int, pipe: Connection) -> None:
    """A worker of a web server: it opens the table after the fork, and each request puts one row and reads it back."""
    failed = []
    with mw.open_table(uri).writer(shared=True) as writer:
        for number in range(requests):
            key = name * 1000 + number
            try:
                writer.put([{"id": key, "v": "request"}])
                if writer.get(key) != {"id": key, "v": "request"}:
                    failed.append("a row that was acknowledged is not seen")
            except Exception as error:
                failed.append(f"{type(error).__name__}: {error}")
        pipe.send((failed, len(writer.owned_shards)))
        pipe.close()


def put_for(uri: str, name: int, threads: int, seconds: float, shared: bool, begin: str, pipe: Connection) -> None:
    """Put single rows in threads for some time, once the file `begin` is there; says how many were acknowledged."""
    with mw.open_table(uri).writer(shared=shared) as writer:
        writer.put([{"id": name << 40, "v": "first"}])
        counts = [0] * threads
        pipe.send(("ready",))
        while not os.path.exists(begin):
            time.sleep(0.005)
        end = time.monotonic() + seconds

        def work(thread: int) -> None:
            while time.monotonic() < end:
                counts[thread] += 1
                writer.put([{"id": (name << 40) + (thread << 32) + counts[thread], "v": "x"}])

        workers = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        pipe.send((sum(counts),))
