"""Engines with one classic bug each: the harness must find every one of them."""

from dataclasses import replace
from functools import partialmethod
from multiprocessing.connection import Connection
from typing import Any

from tests.harness.shard_crash import ShardLife, live
from tests.harness.table_life import live_table
from tests.harness.table_shapes import TableLife


def appends_a_repeat_again(life: TableLife, pipe: Connection) -> None:
    """A transaction that is there already is written once more."""
    from lance_memwal.log.transactions import TransactionMap

    TransactionMap.is_repeat = lambda *_: False  # type: ignore[method-assign]
    live_table(life, pipe)


def forgets_transactions_when_it_opens(life: TableLife, pipe: Connection) -> None:
    """Who claims a shard knows of no transaction that was there before; it knows its own."""
    from lance_memwal.log import wal
    from lance_memwal.log.transactions import ShardTime, TransactionMap

    wal.read_transactions = lambda _manifests, _manifest, _positions, clock, **_: TransactionMap({}, ShardTime(clock))
    live_table(life, pipe)


def forgets_what_other_sinks_appended(life: TableLife, pipe: Connection) -> None:
    """A sink that comes to a shard knows of no transaction that was there before; it knows its own."""
    from lance_memwal.log.transactions import ShardTime, TransactionMap
    from lance_memwal.write import once

    def take(self: Any, claim: Any, tail: Any, entry: Any, footer: Any) -> None:
        known = tail.transactions
        tail.transactions = TransactionMap({}, known.time)
        honest(self, claim, tail, entry, footer)
        tail.transactions = known

    honest = once.OnceAppender._take_footer
    once.OnceAppender._take_footer = take  # type: ignore[method-assign]
    once.read_transactions = lambda *given, **_: TransactionMap({}, ShardTime(given[3]))
    live_table(life, pipe)


def loses_races_against_nobody(life: TableLife, pipe: Connection) -> None:
    """A compaction says that somebody else was faster, and nobody was."""
    from lance_memwal.errors import ConflictError
    from lance_memwal.table.table import Table

    def compact(self: Any, **_: Any) -> Any:
        raise ConflictError("somebody was faster")

    Table.compact = compact  # type: ignore[method-assign]
    live_table(life, pipe)


def is_fenced_by_nobody(life: TableLife, pipe: Connection) -> None:
    """A writer that all others sleep beside says that one of them has taken over."""
    from lance_memwal.errors import FencedError
    from lance_memwal.table_writer import TableWriter

    def put(self: Any, *_: Any, **__: Any) -> Any:
        raise FencedError(1, 2, "by nobody")

    if not life.alone and life.ending == "linger":  # the last of a round
        TableWriter.put = put  # type: ignore[method-assign]
    live_table(life, pipe)


def erases_what_an_update_leaves_out(life: TableLife, pipe: Connection) -> None:
    """Columns that a partial update does not give become null."""
    from lance_memwal.table_writer import TableWriter

    def update(self: Any, data: Any = None, **options: Any) -> Any:
        return honest(self, data, **options) if data is None else self.put(data, missing="null")

    honest = TableWriter.update
    TableWriter.update = update  # type: ignore[method-assign]
    live_table(life, pipe)


def collects_what_others_need(life: TableLife, pipe: Connection) -> None:
    """Collection asks neither checkpoints nor consumers."""
    from lance_memwal.upkeep import gc
    from lance_memwal.upkeep.pins import Pins

    gc.read_pins = lambda *_: Pins()
    live_table(life, pipe)


def acknowledges_after_a_takeover(life: TableLife, pipe: Connection) -> None:
    """A writer that finds its place in the log taken says that all is well."""
    from lance_memwal.errors import FencedError
    from lance_memwal.log.wal import ShardLog

    def append(self: Any, data: bytes) -> Any:
        try:
            return honest(self, data)
        except FencedError:
            self.next_position += 1
            return None

    honest = ShardLog.append
    ShardLog.append = append  # type: ignore[method-assign]
    live_table(life, pipe)


def keeps_moments_without_the_log(life: TableLife, pipe: Connection) -> None:
    """A checkpoint lacks what is in the log alone, from its birth on."""
    from lance_memwal.table.table import Table

    def snapshot(self: Any) -> Any:
        found = honest(self)
        return replace(found, shards=tuple(replace(shard, tip=shard.cursor) for shard in found.shards))

    honest = Table.snapshot
    Table.snapshot = snapshot  # type: ignore[method-assign]
    live_table(life, pipe)


def searches_what_is_flushed_alone(life: TableLife, pipe: Connection) -> None:
    """A search does not see the log."""
    from lance_memwal.table.table import Table

    Table.search = partialmethod(Table.search, consistency="flushed")  # type: ignore[assignment]
    live_table(life, pipe)


def takes_over_what_is_flushed_alone(life: TableLife, pipe: Connection) -> None:
    """Who takes a table over reads it as it was flushed, and builds on that."""
    from lance_memwal.table.table import Table

    if not life.shows:
        Table.scan = partialmethod(Table.scan, consistency="flushed")  # type: ignore[assignment]
    live_table(life, pipe)


# Engines with a classic bug each, for the child process: the harness must call every one of them out.


def acknowledges_before_the_log(life: ShardLife, pipe: Connection) -> None:
    """A durable put returns although nothing was written."""
    from lance_memwal.write.group_commit import GroupCommit

    def lie(self: Any, put: Any) -> Any:
        if len(self.pending) > 6:
            return honest(self, put)
        rows = put.fit(put.batches, put.fill, put.size_bytes)
        self.entries.encode_rows(rows)
        return self.insert(rows, None)[0]

    honest = GroupCommit.write
    GroupCommit.write = lie  # type: ignore[method-assign]
    live(life, pipe)


def moves_the_cursor_too_far(life: ShardLife, pipe: Connection) -> None:
    """The commit of a generation takes the cursor to the tip, past generations that are not published."""
    from lance_memwal.write import flush

    honest = flush.publish

    def publish(manifests: Any, epoch: int, sstable: Any, covered_position: int) -> Any:
        return honest(manifests, epoch, sstable, covered_position + 3)

    flush.publish = publish
    live(life, pipe)


def publishes_without_a_sidecar(life: ShardLife, pipe: Connection) -> None:
    """The manifest lists a generation whose filter does not exist."""
    from lance_memwal.store import paths
    from lance_memwal.write import flush

    honest = flush.publish

    def publish(manifests: Any, epoch: int, sstable: Any, covered_position: int) -> Any:
        manifests.location.store.delete(paths.bloom_path(manifests.shard_id, sstable.path))
        return honest(manifests, epoch, sstable, covered_position)

    flush.publish = publish
    live(life, pipe)


def forgets_the_tail(life: ShardLife, pipe: Connection) -> None:
    """Open starts with an empty memtable."""
    from lance_memwal.write import life as engine

    engine.replay = lambda *_: None
    live(life, pipe)


def replays_what_is_published(life: ShardLife, pipe: Connection) -> None:
    """The cursor lags and replay does not skip published generations, so rows are there twice."""
    from lance_memwal.write import flush, replay

    def publish(manifests: Any, epoch: int, sstable: Any, covered_position: int) -> Any:
        return honest(manifests, epoch, sstable, covered_position - 1)

    def unflushed(opened: Any) -> Any:
        return read(replace(opened, manifest=replace(opened.manifest, current_generation=1)))

    honest, flush.publish = flush.publish, publish
    read, replay.unflushed_of = replay.unflushed_of, unflushed
    live(life, pipe)


def writes_half_a_put(life: ShardLife, pipe: Connection) -> None:
    """A put of several batches is made of several puts."""
    from lance_memwal.shard_writer import ShardWriter

    honest = ShardWriter.put

    def put(self: Any, data: Any, *, txn: Any = None) -> Any:
        for batch in data[:-1]:
            honest(self, batch)
        return honest(self, data[-1], txn=txn)

    ShardWriter.put = put  # type: ignore[method-assign]
    live(life, pipe)
