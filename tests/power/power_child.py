"""The process whose power fails: one life of a table on a disk, with what it says and all its effects in the trace.

The life writes (blobs, and transactions among it), deletes, flushes, loads in bulk, compacts, collects, maintains, keeps
checkpoints, follows the changes as a named consumer, lets plain Lance merge files of the base and add a column, and opens
the table anew, in an order that the seed draws. `bug` breaks one of the orders that power loss is about, to see whether an
outage shows it.
"""

import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pyarrow as pa

import lance_memwal as mw
from lance_memwal.lance.base import BaseTable
from lance_memwal.rows.sharding import ONE_SHARD
from tests.kit.feeds import apply
from tests.power.disk import mark
from tests.power.promises import BUGS, PowerRows

KEYS = 40
_WRITES = 15  # of each writer, beside that between two of them
_CHECKPOINTS = ("dawn", "noon", "dusk")


class _Told:
    """Says in the trace what is begun and what returned."""

    def __init__(self) -> None:
        self._trace = os.open(os.environ["POWER_TRACE"], os.O_WRONLY | os.O_APPEND)

    def say(self, *said: Any) -> None:
        os.write(self._trace, mark(*said))

    @contextmanager
    def around(self, *said: Any) -> Iterator[None]:
        """Say it before and after; what says the same word twice is promised by the second."""
        self.say("begins", *said)
        yield
        self.say("returned", *said)


class _Life:
    def __init__(self, uri: str, seed: int) -> None:
        self.draw, self.told, self.kind = random.Random(seed), _Told(), PowerRows(seed)
        self.only_lance = seed % 2 == 1  # as tables that only Lance can commit to
        if self.only_lance:
            BaseTable.takes_hand_commit = property(lambda _base: False)  # type: ignore[assignment]
        settings = {"max_memtable_rows": self.draw.choice((20, 60)), "max_memtable_batches": self.draw.choice((8, 20))}
        sharding = mw.Bucket("id", 2) if seed % 4 < 2 else ONE_SHARD
        self.table = mw.create_table(uri, self.kind.schema, sharding=sharding, writer_defaults=settings)
        self.told.say("created")
        self.number = 0
        self.rows: dict[int, int] = {}  # as the writes leave them
        self.mirror: dict[int, dict[str, int]] = {}  # as the consumer saw them
        self.kept: set[str] = set()

    def live(self) -> None:
        """Three writers, one after the other."""
        for turn in range(3):
            options = {"compaction": None} if self.only_lance else {}  # else no mark says who made a version
            with self.table.writer(max_entry_bytes=4_000, **options) as writer:
                for _ in range(_WRITES):
                    self._write(writer)
                    if self.draw.random() < 0.4:
                        name, chore = self.draw.choice(self._chores(writer))
                        with self.told.around(name):
                            chore()
                    if self.draw.random() < 0.2:
                        self.draw.choice((self._keep_or_drop, self._follow))()
            if turn == 1:
                self._let_others_write()
        self.told.say("closed")

    def stand_on_versions_of_lance(self) -> None:
        """What is kept names versions of the base that Lance made, and did not sync."""
        with self.table.writer(compaction=None) as writer:
            self._write(writer)
        with self.told.around("compact"):
            self.table.compact()
        self._change_config()
        self._keep_or_drop()
        self._change_config()
        self._follow()
        with self.told.around("index", "number_idx"):
            self.table.indexes.create("number", index_type="BITMAP", name="number_idx")  # not mirrored
        with self.table.writer(compaction=None) as writer:
            self._write(writer)
        with self.told.around("compact"):  # nothing is trimmed, since the index lags
            self.table.compact()
        with self.told.around("maintain"):
            self.table.maintain(grace_seconds=0, versions=timedelta(0))
        self.told.say("closed")

    def _change_config(self) -> None:
        """Plain Lance makes a version."""
        self.told.say("others")
        self.table.dataset.update_config({"changed": str(self.number)})
        self.told.say("ours")

    def _let_others_write(self) -> None:
        """Plain Lance changes the base, and syncs nothing: it is durable, as are all rows, once somebody writes again."""
        self.told.say("others")
        self.table.dataset.optimize.compact_files()
        self.table.dataset.add_columns(pa.schema([pa.field("more", pa.int32())]))
        self.table = mw.open_table(self.table.uri)
        with self.table.writer() as writer:
            self._write(writer)
        self.told.say("ours")

    def _chores(self, writer: Any) -> list[tuple[str, Callable[[], object]]]:
        at_once, never = timedelta(0), None
        versions = self.draw.choice((at_once, never))
        return [
            ("flush", writer.flush),
            ("compact", self.table.compact),
            ("gc", lambda: self.table.gc(grace_seconds=0)),
            ("maintain", lambda: self.table.maintain(grace_seconds=0, versions=versions)),
        ]

    def _write(self, writer: Any) -> None:
        self.number += 1
        keys = self.draw.sample(range(KEYS), self.draw.choice((1, 1, 2, 5, 40)))
        deletes = self.draw.random() < 0.15
        txn = ("job", self.number) if self.draw.random() < 0.3 else None
        batch = self.kind.keys_of(keys) if deletes else self.kind.batch_of(keys, self.number)
        routed = self.table.sharding.route(batch, self.table.schema)
        groups = {shard_id: part.column("id").to_pylist() for shard_id, part in routed}
        with self.told.around("write", self.number, groups, deletes, txn):
            if deletes:
                writer.delete(batch, txn=txn)
            else:
                writer.put(batch, txn=txn, missing="null")
        for key in keys:
            self.rows[key] = self.number
            if deletes:
                del self.rows[key]

    def _keep_or_drop(self) -> None:
        name = self.draw.choice(_CHECKPOINTS)
        if name in self.kept:
            self.kept.remove(name)
            with self.told.around("drop", name):
                self.table.checkpoints.drop(name)
            return
        self.kept.add(name)
        with self.told.around("keep", name, self.rows):
            self.table.checkpoints.create(name)

    def _follow(self) -> None:
        with self.told.around("follow", self._mirrored()):
            consumer = self.table.consumers.open("mirror", until="now", columns=["id", "number"])
        for batch in consumer:
            apply(self.mirror, batch)
        assert self._mirrored() == self.rows
        with self.told.around("follow", self._mirrored()):
            consumer.commit()

    def _mirrored(self) -> dict[int, int]:
        return {key: row["number"] for key, row in self.mirror.items()}


def main(uri: str, seed: str, story: str, bug: str) -> None:
    import lance_memwal.table.table  # noqa: F401 - so that bugs find every module

    BUGS[bug]()
    getattr(_Life(uri, int(seed)), story)()
    os.mkdir(f"{uri}/the end")  # one more record, before which the recorder looks for the names of all files


if __name__ == "__main__":
    main(*sys.argv[1:])
