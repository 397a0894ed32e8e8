"""What the writer of one shard does by itself, and what it and its log say of themselves."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import islice

import pyarrow as pa

import lance_memwal as mw
from tests.machine.life import MachineLife, in_order
from tests.machine.model import FILTERS, Row
from tests.machine.setup import BLOB
from tests.machine.writing import routed

__all__: list[str] = []

_SECONDS = 60


def _open(life: MachineLife, shard_id: str, how: str = "put") -> mw.ShardWriter:
    """A writer of one shard, by the table or by itself."""
    if how == "put":
        return life.table.shard_writer(shard_id, **life.configuration.settings)
    return mw.ShardWriter.open(life.uri, shard_id=shard_id, **life.configuration.settings)


def _part(rows: list[Row], batch: pa.RecordBatch) -> list[Row]:
    """The rows that a batch holds."""
    versions = set(batch.column("v").to_pylist())
    return [row for row in rows if row["v"] in versions]


def shard_puts(life: MachineLife, numbers: list[int], how: str) -> None:
    """Rows that the caller routed."""
    life.stop()
    rows = life.rows(numbers)
    for shard_id, batch in routed(life, rows):
        part = _part(rows, batch)
        with _open(life, shard_id, how) as writer:
            result = _put(writer, batch, how if life.kind.merge is None else "put")
            assert result.written == len(part) - life.put_in_model(part)
            writer.check_fenced()
            assert writer.wal_stats().next_wal_entry_position >= 1
            assert writer.stats().put_count == writer.stats_handle().snapshot().put_count == 1
            assert writer.backpressure_stats().total_count >= 0
            life.same_transactions({app: seen.version for app, seen in writer.transactions().items()}, shard_id)
            assert (writer.shard_id, writer.config.shard_id) == (shard_id, shard_id)
        assert writer.closed


def _put(writer: mw.ShardWriter, batch: pa.RecordBatch, how: str) -> mw.WriteResult:
    async def put() -> mw.WriteResult:
        return await writer.put_async(batch)

    if how == "async":
        return asyncio.run(put())
    if how == "nowait":
        ack = writer.put_nowait(batch)
        ack.wait(_SECONDS)
        assert ack.durable
        result: mw.WriteResult = ack.result
        return result
    return writer.put(batch)


def shard_deletes(life: MachineLife, numbers: list[int], how: str) -> None:
    """Keys that the caller routed."""
    life.stop()
    for shard_id, batch in routed(life, life.rows(numbers)):
        keys = [tuple(key.values()) for key in batch.select(life.kind.names).to_pylist()]
        with _open(life, shard_id) as writer:
            _delete(writer, batch.select(life.kind.names), how)
            life.model.delete(keys)
            assert writer.lookup(batch.select(life.kind.names)).num_rows == 0
            assert writer.get(dict(zip(life.kind.names, keys[0], strict=True))) is None
    life.fresh |= set(numbers)


def _delete(writer: mw.ShardWriter, keys: pa.RecordBatch, how: str) -> None:
    async def delete() -> None:
        await writer.delete_async(keys)

    if how == "async":
        asyncio.run(delete())
    elif how == "nowait":
        writer.delete_nowait(keys).wait(_SECONDS)
    else:
        writer.delete(keys)


def shard_changes(life: MachineLife, numbers: list[int]) -> None:
    """The verbs of a shard that look rows up: insert what is absent, update what is there, compare and set."""
    life.stop()
    rows = life.rows(numbers)
    for shard_id, batch in routed(life, rows):
        keys = batch.select(life.kind.names).to_pylist()
        with _open(life, shard_id) as writer:
            writer.delete(keys)
            life.model.delete([tuple(key.values()) for key in keys])
            writer.insert(batch)
            life.put_in_model(_part(rows, batch))
            life.version += 1
            changed = [key | {"v": life.version, "s": "set"} for key in keys[:1]]
            assert writer.update(changed).matched == 1
            life.put_in_model(changed)
            old = life.model.rows[tuple(keys[0].values())]
            assert not writer.compare_and_set(keys[0], None, None)
            assert writer.compare_and_set(keys[0], old, old | {"s": "compared"})
            life.model.write([old | {"s": "compared"}])
            _read_one(life, writer, keys[0])


def _read_one(life: MachineLife, writer: mw.ShardWriter, key: Row) -> None:
    row = life.model.rows[tuple(key.values())]
    found = writer.get(key)
    assert found is not None
    assert in_order([found], writer.schema.names) == in_order([row], writer.schema.names)
    if life.kind.has_blobs:
        blob = writer.get_blob(key, BLOB)
        assert (None if blob is None else blob.read()) == row[BLOB]


def memtables(life: MachineLife, where: str | None, x: int) -> None:
    """What a writer has in memory is a part of the table, and every way to ask for it agrees."""
    for writer in life.writer.shard_writers.values() if life.writer else ():
        writer.wait_for_flush_drain(_SECONDS)
        captured = writer.in_memory_memtable_refs()
        assert not captured.frozen
        assert captured.active.num_rows == writer.active_memtable_ref().num_rows == writer.memtable_stats().row_count
        rows = writer.scan().to_table().to_pylist()
        now = Counter(in_order(life.model.rows.values(), ["v", "s", "q"]))
        assert Counter(in_order(rows, ["v", "s", "q"])) <= now
        met = [row for row in rows if FILTERS[where](row)]
        some = writer.scan() if where is None else writer.scan().filter(where)
        assert some.count_rows() == len(met)
        assert life.uri in some.explain()
        values = sorted(row["v"] for row in met)
        assert some.project(["v"]).order_by(["v"]).limit(3).to_table().column("v").to_pylist() == values[:3]
        near = writer.scan().nearest("vec", [float(x), 1.0], 3, metric="l2").to_table().column("_distance").to_pylist()
        distances = sorted((row["vec"][0] - x) ** 2 + (row["vec"][1] - 1) ** 2 for row in rows if row["vec"])
        assert [round(got, 3) for got in near] == [round(wanted, 3) for wanted in distances[:3]]
        found = writer.scan().full_text_search("t", "common").to_table().num_rows
        assert found == sum(row["t"] is not None for row in rows)


def read_the_log(life: MachineLife) -> None:
    """Entries come one after the other, under epochs that grow, and hold nothing that nobody wrote."""
    life.make_durable()
    for shard in life.table.shards():
        tailer = mw.WalTailer(life.uri, shard.shard_id)
        first, end = tailer.first_position(), tailer.next_position()
        entries = [tailer.read_entry(position) for position in range(first, end)]
        assert tailer.read_entry(end) is None
        told = [(entry.position, entry.writer_epoch) for entry in islice(tailer.follow(first), end - first)]
        assert told == [(entry.position, entry.writer_epoch) for entry in entries if entry is not None]
        assert [position for position, _ in told] == list(range(first, end))
        assert [epoch for _, epoch in told] == sorted(epoch for _, epoch in told)
        assert all(epoch <= shard.epoch for _, epoch in told)
        rows = [row for entry in entries if entry is not None for part in entry.batches for row in part.to_pylist()]
        assert len(rows) == sum(entry.num_rows for entry in entries if entry is not None)
        newest = {entry.txn.app: entry.txn.version for entry in entries if entry is not None and entry.txn is not None}
        life.same_transactions(newest, shard.shard_id, whole=False)
        assert {row["v"] for row in rows if not row.get("_tombstone")} <= life.model.written
