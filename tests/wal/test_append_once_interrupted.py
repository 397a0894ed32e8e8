"""Ctrl-C anywhere in an append: it is in the log or it is not, and a repeat of its transaction never writes it twice."""

from __future__ import annotations

import itertools
from collections import Counter
from functools import partial
from pathlib import Path

import pyarrow as pa

import lance_memwal as mw
from lance_memwal.write.joining import Patience, Sink
from lance_memwal.write.once import OnceAppender
from tests.kit.interrupts import Interrupter, interrupted_everywhere
from tests.kit.writers import in_thread

SHARD = mw.shard_id_for(mw.Unsharded())


def row(number: int) -> list[pa.RecordBatch]:
    return [pa.record_batch({"id": pa.array([number], pa.int64())})]


def test_a_transaction_that_was_interrupted_anywhere_is_in_the_log_once(tmp_path: Path) -> None:
    """What the process knew of the log was at the entry already, and its transactions were not: it was written again."""
    uri = str(tmp_path / "t")
    append_only = pa.schema([pa.field("id", pa.int64())])  # a second copy is seen
    mw.create_table(uri, append_only, sharding=mw.Unsharded(), writer_defaults={"fsync": False})
    sink, fresh = Sink(OnceAppender(uri)), OnceAppender(uri)
    sink.append(SHARD, row(0), txn=("app", 0))
    for at in itertools.count(1):
        interrupter = Interrupter(at, ("lance_memwal/write/once.py",))
        interrupted = interrupter.run(partial(sink.append, SHARD, row(at), txn=("app", at)))
        again = sink.append(SHARD, row(at), txn=("app", at))
        assert again.skipped or interrupted
        known = sink.appender.known_tail(SHARD)
        read = fresh.catch_up(sink.claims[SHARD])
        if known is not None and known.last_position == read.last_position:  # else it finds that out when it appends
            found = [(t.entries, t.run.generation, t.run.batches) for t in (known, read)]
            assert found[0] == found[1], interrupter.where
        if not interrupted:
            break
    assert at > 40, "the trace did not see the append"
    ids = mw.open_table(uri).scan().to_table().column("id").to_pylist()
    assert Counter(ids) == dict.fromkeys(range(at + 1), 1)


def test_an_interrupt_anywhere_leaves_the_shard_to_other_threads(tmp_path: Path) -> None:
    """It came as the turn was had, which then nobody gave back: every other thread waited until its patience ended."""
    uri = str(tmp_path / "t")
    mw.create_table(uri, pa.schema([pa.field("id", pa.int64())]), writer_defaults={"fsync": False})
    sink = Sink(OnceAppender(uri), patience=Patience(wait_seconds=1.0))
    sink.append(SHARD, row(0), txn=("app", 0))

    def check(where: str) -> None:
        try:
            in_thread(lambda: sink.append(SHARD, row(0), txn=("app", 0))).result()
        except mw.ConflictError as error:
            raise AssertionError(where) from error

    traced = ("write/joining.py", "process/turns.py")
    assert interrupted_everywhere(lambda: sink.append(SHARD, row(0), txn=("app", 0)), check, *traced) > 10
