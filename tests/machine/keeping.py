"""What happens to a table besides writes and reads: its writers come and go, and somebody looks after it."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pytest

import lance_memwal as mw
from tests.kit.tables import compact_shard, trim_shard
from tests.machine.life import MachineLife

__all__: list[str] = []


def seal(life: MachineLife) -> None:
    for shard in life.writer.shard_writers.values() if life.writer else ():
        if isinstance(shard, mw.ShardWriter):
            shard.force_seal_active()


def flush(life: MachineLife) -> None:
    life.open().flush()


def close(life: MachineLife) -> None:
    life.stop()


def crash(life: MachineLife) -> None:
    life.stop("abort")


def take_over(life: MachineLife, numbers: list[int]) -> None:
    """Another writer claims the shards; the old one lives on, and its memtables must not be believed."""
    life.make_durable()
    old, life.writer = life.writer, None
    rows = life.rows(numbers)
    life.writer = life.new_writer(mw.open_table(life.uri))
    life.writer.put(rows)
    life.put_in_model(rows)
    if old is None:
        return
    fenced = life.writer.shard_writers.keys() & old.shard_writers.keys() if life.configuration.durable else ()
    for shard_id in fenced:
        with pytest.raises(mw.FencedError):
            old.shard_writers[shard_id].put(life.arrow([life.kind.row(0, -1)]).to_batches(), missing="null")
    for shard_id in old.shard_writers.keys() - life.writer.shard_writers.keys():
        old.shard_writers[shard_id].close()
    life.zombies.append(old)


def share(life: MachineLife, numbers: list[int]) -> None:
    """A writer that shares its shards, for one put."""
    life.leave()
    rows = life.rows(numbers)
    with life.new_writer(shared=True) as writer:
        writer.put(rows)
    life.put_in_model(rows)


def reopen(life: MachineLife) -> None:
    life.table.close()
    life.table = mw.open_table(life.uri)


def flush_tails(life: MachineLife) -> None:
    life.stop()
    life.table.flush(idle_seconds=0)


def compact(life: MachineLife, most: int | None) -> None:
    life.table.compact(max_generations=most)
    life.fresh.clear()


def compact_half(life: MachineLife, trim: bool) -> None:
    """A compaction that ends before generations are forgotten; or only that they are."""
    for shard in life.table.shards():
        if trim:
            trim_shard(life.uri, shard.shard_id)
        elif life.configuration.compaction is None:
            compact_shard(life.uri, shard.shard_id, trim=False)
    life.fresh.clear()


def collect(life: MachineLife) -> None:
    life.table.gc(grace_seconds=0)


def maintain(life: MachineLife) -> None:
    life.table.maintain(versions=timedelta(0), grace_seconds=0)
    life.fresh.clear()


def settle(life: MachineLife) -> None:
    life.make_durable()
    assert life.table.settle(60, idle_seconds=0).converged
    life.fresh.clear()


def merge_files(life: MachineLife) -> None:
    """Lance rewrites its files. Beside others who commit it would be refused, and its caller would try again."""
    if life.configuration.compaction is None:
        life.table.dataset.optimize.compact_files()


def optimize(life: MachineLife) -> None:
    """Lance brings its indexes up to date; see `merge_files`."""
    if life.configuration.compaction is None:
        life.table.dataset.optimize.optimize_indices()


def add_column(life: MachineLife) -> None:
    life.stop()
    name = f"e{life.added}"
    life.added += 1
    life.table.dataset.add_columns(pa.field(name, pa.int64()))
    life.model.columns.append(name)
    for row in life.model.rows.values():
        row[name] = None


def drop_column(life: MachineLife) -> None:
    more = [name for name in life.model.columns if name.startswith("e")]
    if more:
        life.leave()  # a tail whose column is dropped, and forgotten by clean-up, is not written to any more
        life.table.dataset.drop_columns(more[:1])
        life.model.columns.remove(more[0])
        for row in life.model.rows.values():
            row.pop(more[0], None)


def verify(life: MachineLife) -> None:
    report = life.table.verify()
    assert report.ok, report.problems
