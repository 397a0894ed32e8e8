"""What a table must still do after all its lives.

Owns `finish_table`.
"""

from __future__ import annotations

import faulthandler
import random
import signal
from multiprocessing.connection import Connection
from typing import Any

import lance
import pyarrow as pa

import lance_memwal as mw
from tests.harness.shard_rows import peer_snapshot
from tests.harness.table_looks import check_checkpoints, consume, show, tell, without
from tests.harness.table_plan import TableLife
from tests.harness.voice import Voice, tell_failure

__all__ = ["finish_table"]


def finish_table(life: TableLife, pipe: Connection) -> None:
    """Show that a table which went through all this is whole: every reader, every tier, every promise."""
    voice = Voice(pipe)
    faulthandler.register(signal.SIGUSR1)
    try:
        _finish(life, voice)
        voice.say("done")
    except BaseException:
        tell_failure(voice)


def _finish(life: TableLife, voice: Voice) -> None:
    table, shape = mw.open_table(life.uri), life.shape
    show(table, life, voice, every_blob=True)
    check_checkpoints(table, life.checkpoints)
    _verify(table, voice)
    with table.writer(fsync=False, compaction=None) as writer:
        writer.put(shape.schema.empty_table(), missing="null")
        writer.flush()
    show(table, life, voice)
    table.flush(idle_seconds=0, force=True)
    if shape.has_key and not shape.has_blobs and not any(name[0] == "x" for name in table.schema.names):
        _tell_read(_peer(table), life, table, voice)
    table.compact()
    _tell_read(lance.dataset(life.uri).to_table(), life, table, voice)
    _verify(table, voice)
    consume(table, shape, voice, random.Random(life.seed))
    voice.say("consumed")
    table.gc(grace_seconds=0)
    table.maintain(grace_seconds=0)
    check_checkpoints(table, life.checkpoints)
    _verify(table, voice)
    show(mw.open_table(life.uri), life, voice, every_blob=True)


def _tell_read(rows: pa.Table, life: TableLife, table: mw.Table, voice: Voice) -> None:
    """Tell rows that somebody else's reader gave."""
    tell([without(row, life.retired) for row in life.shape.rows_of(rows)], life, table, voice)


def _peer(table: mw.Table) -> pa.Table:
    """The rows as pylance's own reader shows them."""
    from lance.mem_wal import LsmScanner

    snapshots = [peer_snapshot(table.uri, info.shard_id) for info in table.shards()]
    if not snapshots:
        return table.dataset.to_table()
    scanner: Any = LsmScanner.from_snapshots(table.dataset, snapshots)
    read: pa.Table = scanner.to_table()
    return read


def _verify(table: mw.Table, voice: Voice) -> None:
    voice.say("verified", [str(problem) for problem in table.verify().problems])
