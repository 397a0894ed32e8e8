"""The processes of a soak: shared writers, an intruder, a keeper, a reader, a follower of the feed.

Owns what each of them does, and says to the parent. Each runs until its stop file is there, or until it is killed. Times are
those of `time.monotonic`, which processes of a machine share.
"""

import os
import random
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import lance
import numpy as np
import pyarrow as pa

import lance_memwal as mw
from lance_memwal.lance.base import BaseTable
from lance_memwal.store.location import resolve
from lance_memwal.testing import FaultKind, FaultPlan, FaultScript
from tests.kit.log_life import Kind, Write

CONSUMER = "soak"
NUMBERS_PER_LIFE = 10_000_000
_FAULTS = frozenset(kind for kind in FaultKind if kind.keeps_contract and not kind.value.startswith("crash"))
_ROWS_PER_PUT = 20
_CACHE_BYTES = 64 << 20  # soon full, so that growth beyond it shows
_INTRUSION_SECONDS = 1.0
_TRIES = 20
_AGAIN_SECONDS = 0.05
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SoakLife:
    """What one process is told: its table, its keys, the numbers of its writes, and how often it does something."""

    uri: str
    stop: str
    seed: int
    keys: range
    first_number: int
    per_second: float
    fault_rate: float = 0.0
    keep_seconds: float = 30.0

    def open(self) -> mw.Table:
        """The table; through a store that fails now and then, if this life has faults."""
        if not self.fault_rate:
            return mw.open_table(self.uri)
        script = FaultScript(FaultPlan(rate=self.fault_rate, kinds=_FAULTS, seed=self.seed))
        location = resolve(self.uri, wrap=script.wrap)
        return mw.Table(location, BaseTable.need(location))

    def persist(self, call: Callable[[], T], pipe: Connection) -> T:
        """What `call` returns; a store that fails now and then does not fail for ever."""
        for _ in range(_TRIES - 1):
            try:
                return call()
            except mw.MemWalError as error:
                if not self.fault_rate:
                    raise
                _refused(pipe, error)
                time.sleep(_AGAIN_SECONDS)
        return call()

    @property
    def stopped(self) -> bool:
        return os.path.exists(self.stop)

    def beats(self) -> Any:
        """Comes back `per_second` times a second, until the stop."""
        due = time.monotonic()
        while not self.stopped:
            due = max(due + 1 / self.per_second, time.monotonic())
            yield
            time.sleep(max(0.0, due - time.monotonic()))


def _named(error: mw.MemWalError) -> str:
    return f"{type(error).__name__}: {error}"


def _refused(pipe: Connection, error: mw.MemWalError) -> None:
    pipe.send(("refused", _named(error)))


def _guarded(work: Callable[[SoakLife, Connection], None]) -> Callable[[SoakLife, Connection], None]:
    @wraps(work)  # by whose name processes find it
    def guarded(life: SoakLife, pipe: Connection) -> None:
        mw.set_cache_bytes(_CACHE_BYTES)
        try:
            work(life, pipe)
            pipe.send(("ended",))
        except BaseException:
            pipe.send(("broken", traceback.format_exc()))

    return guarded


# --------------------------------------------------------------------------------------------------------------- writers


class _Hand:
    """Makes random writes through one writer after the other, and tells of each before and after."""

    def __init__(self, life: SoakLife, pipe: Connection, **options: Any) -> None:
        self._life, self._pipe, self._options = life, pipe, options
        self._draw = random.Random(life.seed)
        self._number = life.first_number
        self._table: mw.Table | None = None
        self._writer: mw.TableWriter | None = None

    def once(self) -> None:
        """One write; after an error the next one is made by a new writer."""
        draw = self._draw.random()
        keys = tuple(sorted(self._draw.sample(self._life.keys, _ROWS_PER_PUT)))
        if draw < 0.65:
            self._make("put", keys, lambda writer, number: writer.put(rows_of(keys, number)))
        elif draw < 0.75:
            self._make("delete", keys[:5], lambda writer, _: writer.delete(list(keys[:5]), count=draw < 0.7))
        elif draw < 0.85:
            some = [{"id": key} for key in keys]
            self._make("update", keys, lambda writer, number: self._change_present(writer, some, number))
        elif draw < 0.93:
            named = ", ".join(map(str, keys))
            self._make("update", keys, lambda w, number: w.update(where=f"id in ({named})", set={"n": str(number)}))
        else:
            named = ", ".join(map(str, keys[:3]))
            self._make("delete", keys[:3], lambda writer, _: writer.delete(where=f"id in ({named})"))

    @staticmethod
    def _change_present(writer: mw.TableWriter, some: list[dict[str, int]], number: int) -> None:
        there = writer.lookup([row["id"] for row in some], ["id"]).column("id").to_pylist()
        if there:
            writer.update([{"id": key, "n": number} for key in there])

    def _make(self, kind: Kind, keys: tuple[int, ...], call: Callable[[mw.TableWriter, int], object]) -> None:
        self._number += 1
        writer = self._open()
        began = time.monotonic()
        self._pipe.send(("issued", Write(self._number, kind, keys, began)))
        try:
            call(writer, self._number)
        except mw.MemWalError as error:
            self._pipe.send(("failed", self._number, time.monotonic(), _named(error)))
            self.abort()
        else:
            ended = time.monotonic()
            self._pipe.send(("acked", self._number, ended, kind, 1000 * (ended - began)))

    def _open(self) -> mw.TableWriter:
        if self._writer is None:
            self._writer = self._life.persist(self._new_writer, self._pipe)
        return self._writer

    def _new_writer(self) -> mw.TableWriter:
        self._table = self._table or self._life.open()
        return self._table.writer(**self._options)

    def abort(self) -> None:
        """Leave the writer as a crash would."""
        if self._writer is not None:
            self._writer.abort()
        self._writer = None

    def close(self) -> None:
        """End well. A store that fails, or a claim of somebody who began before ours, may prevent it: the log has the rows."""
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                writer.close()
            except mw.MemWalError as error:
                if not self._life.fault_rate and not isinstance(error, mw.FencedError):
                    raise
                writer.abort()


@_guarded
def write(life: SoakLife, pipe: Connection) -> None:
    """A shared writer: puts, updates, deletes."""
    hand = _Hand(life, pipe, shared=True)
    for _ in life.beats():
        hand.once()
    hand.close()


@_guarded
def intrude(life: SoakLife, pipe: Connection) -> None:
    """Takes all shards for a second, whoever has them, and leaves."""
    hand = _Hand(life, pipe, compaction=None)
    until = time.monotonic() + _INTRUSION_SECONDS
    for _ in life.beats():
        hand.once()
        if time.monotonic() > until:
            break
    hand.close()


# ------------------------------------------------------------------------------------------------- upkeep, reads, changes


@_guarded
def keep(life: SoakLife, pipe: Connection) -> None:
    table = life.persist(life.open, pipe)
    for _ in life.beats():
        began = time.monotonic()
        try:
            table.maintain(versions=timedelta(seconds=life.keep_seconds), grace_seconds=life.keep_seconds)
        except mw.MemWalError as error:
            _refused(pipe, error)
        else:
            pipe.send(("maintained", time.monotonic() - began))


@_guarded
def read(life: SoakLife, pipe: Connection) -> None:
    """Gets, look-ups, searches, counts, and now and then all rows; the parent judges what it saw."""
    table, draw = life.persist(life.open, pipe), random.Random(life.seed)
    queries = np.random.default_rng(life.seed)
    for count, _ in enumerate(life.beats()):
        keys = draw.sample(life.keys, 20)
        _read_some(table, pipe, keys, queries.normal(size=DIM).astype(np.float32))
        if count % 10 == 0:
            began = time.monotonic()
            try:
                seen = numbers_of(table.scan(["id", "n", "t"]).to_table())
            except mw.MemWalError as error:
                _refused(pipe, error)
            else:
                pipe.send(("scanned", seen, began, time.monotonic()))


def _read_some(table: mw.Table, pipe: Connection, keys: list[int], query: Any) -> None:
    _told(pipe, "get", keys[:1], lambda: [row for row in [table.get(keys[0])] if row is not None])
    _told(pipe, "lookup", keys, lambda: table.lookup(keys).to_pylist())
    _told(pipe, "vector", [], lambda: table.search(vector=query, k=10).to_pylist())
    _told(pipe, "text", [], lambda: table.search(text=f"word{keys[0] % 500}", k=10).to_pylist())


def _told(pipe: Connection, kind: str, keys: list[int], call: Callable[[], list[dict[str, Any]]]) -> None:
    """`keys` are those that were asked for; a search gives only rows. What it cost is time of the processor, all threads of
    this process together, which says the same on a busy machine."""
    worked, began = time.process_time(), time.monotonic()
    try:
        rows = call()
    except mw.MemWalError as error:
        _refused(pipe, error)
        return
    ended, cost = time.monotonic(), 1000 * (time.process_time() - worked)
    seen = {row["id"]: row["n"] for row in rows}
    pipe.send(("read", kind, seen, keys or list(seen), began, ended, cost))


@_guarded
def follow(life: SoakLife, pipe: Connection) -> None:
    """A consumer of the feed, which commits what it told, and begins at its place again after an error. It ends when it is
    killed."""
    while True:
        consumer = life.persist(lambda: life.open().consumers.open(CONSUMER), pipe)
        try:
            for batch in consumer:
                kept = [batch.column(name).to_pylist() for name in ("id", "n", "_op")]
                pipe.send(("changes", [(key, None if op == "d" else n) for key, n, op in zip(*kept, strict=True)]))
                consumer.commit()
        except mw.MemWalError as error:
            _refused(pipe, error)


# The table that soaks: its columns, its indexes, and its rows.
#
# A row carries the number of the write that made it, and its own key once more in its text, so that a mixed-up row
# shows.

DIM = 16
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("n", pa.int64()),
        pa.field("t", pa.string()),
        pa.field("v", pa.list_(pa.float32(), DIM)),
    ]
)
_SETTINGS = {"fsync": False, "max_memtable_rows": 1_000, "stats_log_interval_ms": None}


def make_table(place: Path, rows: int, shards: int) -> mw.Table:
    """The table before the load: `rows` rows of write number 0, a BTree, a text and a vector index."""
    dataset = lance.write_dataset(rows_of(range(rows), 0), str(place))
    dataset.create_scalar_index("n", "BTREE", name="by_n")
    dataset.create_scalar_index("t", "INVERTED", name="by_text")
    dataset.create_index("v", "IVF_FLAT", name="by_vector", num_partitions=8)
    return mw.enable(str(place), primary_key="id", sharding=mw.Bucket("id", shards), writer_defaults=_SETTINGS)


def rows_of(keys: Any, number: int) -> pa.Table:
    ids = np.fromiter(keys, np.int64)
    vectors = np.random.default_rng([number, len(ids)]).normal(size=(len(ids), DIM)).astype(np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIM)
    texts = [f"key{key} word{(key + number) % 500} turn{number % 7}" for key in ids.tolist()]
    return pa.table([pa.array(ids), pa.array(np.full(len(ids), number)), pa.array(texts), column], schema=SCHEMA)


def numbers_of(found: pa.Table) -> dict[int, int]:
    """The write of every row, by key; an error if a row is mixed up, or a key is there twice."""
    rows = found.select(["id", "n", "t"]).to_pylist()
    mixed = [row for row in rows if not row["t"].startswith(f"key{row['id']} ")]
    assert not mixed, f"rows with the text of another key: {mixed[:3]}"
    seen = {row["id"]: row["n"] for row in rows}
    assert len(seen) == len(rows), "a key is there twice"
    return seen
