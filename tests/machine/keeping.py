"""What happens to a table besides writes and reads: its writers come and go, and somebody looks after it."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from lance.commit import CommitConflictError

import lance_memwal as mw
from tests.kit.tables import compact_everything, compact_shard, trim_shard
from tests.machine.life import MachineLife
from tests.machine.setup import added_column

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
    """A shared writer makes one put. It claims no shard that another writer has."""
    life.leave()
    rows = life.rows(numbers)
    with life.new_writer(shared=True) as writer:
        assert set(writer.stats()) == set()
        wrote = set(writer.put(rows).shards)
        assert set(writer.stats()) >= wrote
    life.put_in_model(rows)


def claim_by_hand(life: MachineLife) -> None:
    """An epoch that somebody took by the manifest is above all before, and below the next writer's."""
    life.stop()
    for shard in life.table.shards():
        store = mw.ShardManifestStore(life.uri, shard.shard_id)
        known = store.read_latest()
        assert known is not None
        epoch, manifest = store.claim_epoch(known.shard_spec_id)
        assert (epoch, store.read_latest()) == (manifest.writer_epoch, manifest)
        assert epoch > shard.epoch
        assert store.list_versions()[-1] == manifest.version
        store.check_fenced(epoch)
        with life.table.shard_writer(shard.shard_id) as writer:
            assert writer.epoch > epoch
            assert writer.manifest().writer_epoch == writer.epoch
        with pytest.raises(mw.FencedError):
            store.check_fenced(epoch)


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
    life.collected()


def maintain(life: MachineLife) -> None:
    life.table.maintain(versions=timedelta(0), grace_seconds=0)
    life.collected()
    life.fresh.clear()


def compact_all(life: MachineLife) -> None:
    life.make_durable()
    compact_everything(life.table)
    life.fresh.clear()


def merge_files(life: MachineLife) -> None:
    """Lance rewrites its files. Beside others who commit it would be refused, and its caller would try again."""
    if life.configuration.compaction is None:
        life.table.dataset.optimize.compact_files()


def optimize(life: MachineLife) -> None:
    """Lance brings its indexes up to date; see `merge_files`."""
    if life.configuration.compaction is None:
        life.table.dataset.optimize.optimize_indices()


def _try_again(commit: Callable[[], Any]) -> None:
    """Let Lance commit beside a compaction, which may come first."""
    for _ in range(20):
        try:
            commit()
        except CommitConflictError:
            continue
        return
    raise AssertionError("somebody else always came first")


def evolve(life: MachineLife, numbers: list[int], adds: bool) -> None:
    """A writer lives on while columns come and go."""
    rows = life.rows(numbers)
    writer = life.open()
    writer.put(rows)
    life.put_in_model(rows)
    more = [name for name in life.model.columns if name.startswith("e")]
    if adds or not more:
        column = added_column(life.added)
        life.added += 1
        _try_again(lambda: life.table.dataset.add_columns(column))
        life.model.add_column(column.name)
    else:
        _try_again(lambda: life.table.dataset.drop_columns(more[:1]))
        life.model.drop_column(more[0])
    writer.evolve_schema()
    assert all(shard.schema.names == life.table.schema.names for shard in writer.shard_writers.values())
    rows = life.rows(numbers)
    writer.put(rows)
    life.put_in_model(rows)


def change_indexes(life: MachineLife, which: int) -> None:
    """An index goes, or comes again; answers stay."""
    if not life.indexes or life.configuration.compaction is not None:
        return
    assert {index.name for index in life.table.indexes.list()} == life.indexes
    name = sorted(life.indexes)[which % len(life.indexes)]
    life.indexes.remove(name)
    life.table.indexes.drop(name)
    assert {index.name for index in life.table.indexes.list()} == life.indexes
    life.check()
    if which % 2 or name == "by_t":
        life.make_index(name)


def maintain_indexes(life: MachineLife, names: str | None) -> None:
    """What memtables and SSTables mirror is nobody's business but theirs."""
    chosen = names if names in (None, "all") else [name for name in life.indexes if name == names]
    details = life.table.indexes.maintain(chosen)
    assert details.maintain_all_indexes == (chosen == "all")
    assert chosen == "all" or sorted(details.maintained_indexes) == sorted(chosen or ())


def drop(life: MachineLife, numbers: list[int]) -> None:
    """The table is gone with all that knew it, and another one is there: nothing of the old one is taken for its own."""
    life.stop()
    for writer in life.zombies:
        writer.abort()
    life.zombies.clear()
    old = [moment.at for moment in life.model.moments if isinstance(moment.at, mw.Snapshot)]
    life.table.drop(force=True)
    with pytest.raises(mw.InvalidInputError):
        mw.open_table(life.uri)
    life.make_anew(numbers)
    assert (life.table.checkpoints.list(), life.table.consumers.list(), life.table.shards()) == ([], [], [])
    for snapshot in old:
        with pytest.raises(mw.TableReplacedError):
            life.table.at(snapshot)


def add_column(life: MachineLife) -> None:
    life.stop()
    column = added_column(life.added)
    life.added += 1
    life.table.dataset.add_columns(column)
    life.model.add_column(column.name)


def drop_column(life: MachineLife) -> None:
    more = [name for name in life.model.columns if name.startswith("e")]
    if more:
        life.leave()  # a tail whose column is dropped, and forgotten by clean-up, is not written to any more
        life.table.dataset.drop_columns(more[:1])
        life.model.drop_column(more[0])


def verify(life: MachineLife) -> None:
    report = life.table.verify()
    assert report.ok, report.problems


def repair(life: MachineLife, for_repair: bool) -> None:
    """Nothing is wrong, so nothing is done."""
    life.stop()
    table = mw.open_table(life.uri, for_repair=True) if for_repair else life.table
    report = table.repair(dry_run=False)
    assert not report.problems, report
    assert not report.actions, report


def look_at_numbers(life: MachineLife) -> None:
    stats = life.table.stats()
    life.tell("live rows", stats.live_rows)
    assert stats.live_rows == len(life.model.rows)
    assert {shard.shard_id for shard in stats.shards} == {shard.shard_id for shard in life.table.shards()}
    assert {info.name for info in stats.consumers} == life.model.mirrors.keys()
    assert life.table.stats(live_rows=False, collectable=False).live_rows is None
    assert (life.table.merge, life.table.primary_key) == (life.kind.merge, life.kind.names)
    assert life.table.sharding == life.configuration.sharding(life.kind)
    assert life.table.uri == life.uri
    assert life.table.details().num_shards == life.table.sharding.num_shards
    if life.writer is not None:
        assert life.writer.stats().keys() == life.writer.shard_writers.keys()
    for shard_id, applications in life.table.transactions().items():
        life.same_transactions(applications, shard_id)
