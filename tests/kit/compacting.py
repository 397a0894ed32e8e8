"""Compaction beside writers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import lance_memwal as mw


@contextmanager
def compacting(table: mw.Table) -> Iterator[None]:
    """Flush and compact beside the writers; what goes wrong there is raised at the end."""
    over, broken = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            while not over.wait(0.5):
                table.flush()
                table.compact()
        except BaseException as error:
            broken.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(120)
    assert broken == []
