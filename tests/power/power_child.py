"""The process whose power fails: one life of a table on a disk, with what it says and all its effects in the trace.

The life writes, deletes, flushes, loads in bulk, compacts, collects, maintains, merges the files of the base, adds a
column with plain Lance and opens the table anew, in an order that the seed draws. `bug` breaks one of the orders that
power loss is about, to see whether an outage shows it.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa

import lance_memwal as mw
from lance_memwal.lance.base import BaseTable
from tests.harness.crash_tables import TableKind
from tests.power.disk import mark

KEYS = 40


class _Told:
    """Says in the trace what is begun and what returned."""

    def __init__(self) -> None:
        self._trace = os.open(os.environ["POWER_TRACE"], os.O_WRONLY | os.O_APPEND)

    def say(self, *said: Any) -> None:
        os.write(self._trace, mark(*said))


class _Life:
    """One table and its chores."""

    def __init__(self, uri: str, seed: int) -> None:
        self.draw, self.told, self.kind = random.Random(seed), _Told(), TableKind("integer")
        settings = {"max_memtable_rows": self.draw.choice((20, 60)), "max_memtable_batches": self.draw.choice((8, 20))}
        if seed % 2:  # as tables that only Lance can commit to
            BaseTable.takes_hand_commit = property(lambda _base: False)  # type: ignore[assignment]
        self.table = mw.create_table(uri, self.kind.schema, writer_defaults=settings)
        self.told.say("created")
        self.number = 0

    def run(self, writes: int) -> None:
        """Three writers, one after the other."""
        for turn in range(3):
            with self.table.writer(max_entry_bytes=4_000) as writer:
                for _ in range(writes // 3):
                    self._write(writer)
                    if self.draw.random() < 0.25:
                        self.draw.choice(self._chores(writer))()
            if turn == 1:
                self._let_others_write()
        self.told.say("closed")

    def _let_others_write(self) -> None:
        """Plain Lance changes the base, and syncs nothing: it is durable, as are all rows, once somebody writes again."""
        self.told.say("others")
        self.table.dataset.optimize.compact_files()
        self.table.dataset.add_columns(pa.schema([pa.field("more", pa.int32())]))
        self.table = mw.open_table(self.table.uri)
        with self.table.writer() as writer:
            self._write(writer)
        self.told.say("ours")

    def _chores(self, writer: Any) -> list[Callable[[], object]]:
        return [
            writer.flush,
            self.table.compact,
            lambda: self.table.gc(grace_seconds=0),
            lambda: self.table.maintain(grace_seconds=0),
        ]

    def _write(self, writer: Any) -> None:
        self.number += 1
        keys = self.draw.sample(range(KEYS), self.draw.choice((1, 1, 2, 5, 40)))
        deletes = self.draw.random() < 0.15
        self.told.say("issued", self.number, keys, deletes)
        if deletes:
            writer.delete(self.kind.keys_of(keys))
        else:
            writer.put(self.kind.batch_of(keys, self.number), missing="null")
        self.told.say("returned")


def _no_sync_of_the_log() -> None:
    from lance_memwal.store import local

    local.LocalStore._link_anonymous = _unsynced(local.LocalStore._link_anonymous)  # type: ignore[method-assign]


def _unsynced(honest: Callable[..., None]) -> Callable[..., None]:
    return lambda self, directory, name, data, _flush: honest(self, directory, name, data, None)


def _no_sync_of_names() -> None:
    from lance_memwal.store import files

    files.Syncer.names = lambda *_: None  # type: ignore[assignment, method-assign]


def _no_sync_of_sstables() -> None:
    from lance_memwal.sstable import write

    honest = write.write_sstable
    target = sys.modules["lance_memwal.sstable.target"]
    target.write_sstable = lambda *given, **named: honest(*given, **{**named, "fsync": False})  # type: ignore[attr-defined]


def _no_sync_before_a_trim() -> None:
    from lance_memwal.compact import trim

    trim.syncs = lambda _base: False


def _no_sync_of_the_new_table() -> None:
    BaseTable.make_durable = lambda _base: None  # type: ignore[method-assign]


BUGS = {
    "none": lambda: None,
    "no sync of the log": _no_sync_of_the_log,
    "no sync of names": _no_sync_of_names,
    "no sync of SSTables": _no_sync_of_sstables,
    "no sync before a trim": _no_sync_before_a_trim,
    "no sync of the new table": _no_sync_of_the_new_table,
}


def main(uri: str, seed: str, writes: str, bug: str) -> None:
    import lance_memwal.table.table  # noqa: F401 - so that bugs find every module

    BUGS[bug]()
    _Life(uri, int(seed)).run(int(writes))
    os.mkdir(f"{uri}/the end")  # one more record, before which the recorder looks for the names of all files


if __name__ == "__main__":
    main(*sys.argv[1:])
