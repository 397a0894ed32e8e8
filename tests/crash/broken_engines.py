"""Engines with a classic bug each, for the child process: the harness must call every one of them out."""

from __future__ import annotations

from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from tests.harness.crash_child import ShardLife, live


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
