"""What plain pylance and LanceDB do to the same table in between, and read of it."""

from __future__ import annotations

from typing import Any

import lance
import lancedb

import lance_memwal as mw
from tests.harness.shard_rows import peer_rows
from tests.kit.tables import upsert_base
from tests.machine.keeping import settle
from tests.machine.life import MachineLife
from tests.machine.writing import routed

__all__: list[str] = []


def peer_writes(life: MachineLife, numbers: list[int], deletes: bool) -> None:
    """The peer's writer takes its turn on every shard that the rows belong to."""
    life.stop()
    rows = life.rows(numbers)
    for shard_id, batch in routed(life, rows):
        peer: Any = lance.dataset(life.uri).mem_wal_writer(shard_id, durable_write=True, max_wal_buffer_size=1)
        peer.put(batch)
        if deletes:
            peer.delete(batch.select(life.kind.names))
        peer.close()
    life.put_in_model(rows)
    if deletes:
        life.model.delete([life.kind.key_of(number) for number in numbers])


def lance_writes(life: MachineLife, numbers: list[int]) -> None:
    """A later change of the base table wins over generations that it holds already, listed or not."""
    settle(life)
    rows = life.rows(numbers)
    upsert_base(life.uri, life.arrow(rows))
    life.model.write_past_the_log(rows)


def lance_writes_below(life: MachineLife, numbers: list[int]) -> None:
    """A change of the base table below a fresh row, or below a tombstone, is not seen."""
    below = [number for number in numbers if number in life.fresh]
    if below and life.configuration.compaction is None:
        version = life.version
        upsert_base(life.uri, life.arrow([life.kind.row(number, -7) for number in below]))
        life.version = version


def lancedb_writes(life: MachineLife, numbers: list[int]) -> None:
    """LanceDB puts rows where everything is in the base table."""
    settle(life)
    life.stop()
    rows = life.rows(numbers)
    theirs: Any = lancedb.connect(life.directory).open_table("t")
    for _, batch in routed(life, rows):
        theirs.close_lsm_writers()
        builder = theirs.merge_insert(life.kind.names).when_matched_update_all().when_not_matched_insert_all()
        builder.execute(life.arrow([]).from_batches([batch]))
    theirs.close_lsm_writers()
    life.put_in_model(rows)


def peer_reads(life: MachineLife) -> None:
    """Pylance's reader over base table and SSTables of a settled table."""
    settle(life)
    life.same(lance.dataset(life.uri).to_table(), life.model.rows.values())
    shards = [shard.shard_id for shard in life.table.shards()]
    if life.model.is_past_the_log:
        return  # its reader takes a listed generation that was compacted for newer than a later change of the base table
    if len(shards) == 1 and isinstance(life.table.sharding, mw.Unsharded):
        life.same(peer_rows(life.uri, shards[0]), life.model.rows.values())
