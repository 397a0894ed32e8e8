"""What changed since then: consumers, feeds from a moment on, and two moments compared."""

import asyncio
from collections import Counter
from itertools import islice
from typing import Any

import lance
import lancedb
import pyarrow as pa
import pytest

import lance_memwal as mw
from tests.harness.shard_audit import peer_rows
from tests.kit.tables import upsert_base
from tests.machine.keeping import compact_all
from tests.machine.life import MachineLife, in_order
from tests.machine.model import FILTERS, Mirror, Moment, Row
from tests.machine.setup import BLOB
from tests.machine.writing import routed

__all__: list[str] = []

_SHOWN = ("v", "s", "q")


def _key(life: MachineLife, row: Row, rows: dict[Any, Row]) -> tuple[Any, ...]:
    """The key of a change; without one every row has a number of its own."""
    return tuple(row[name] for name in life.kind.names) if life.kind.key else (len(rows),)


def _play(life: MachineLife, mirror: Mirror, batch: pa.RecordBatch) -> None:
    """Let the mirror follow; what a change says of the row before is what the mirror has."""
    rows = mirror.rows
    for change in batch.to_pylist():
        key, op = _key(life, change, rows), change["_op"]
        known, old = key not in mirror.foreign, rows.get(key)
        if op == "insert":
            assert old is None or not known, change
        if op in ("update_before", "delete") and known:
            assert old is not None, change
            assert [old[name] for name in _SHOWN] == [change[name] for name in _SHOWN]
        if op in ("d", "delete"):
            rows.pop(key, None)
        else:
            assert op in ("u", "insert", "update_before", "update_after"), change
            rows[key] = change


def _same_as_now(life: MachineLife, mirror: Mirror) -> None:
    """The mirror is the table, but for keys that somebody changed past the log."""
    now = life.model.rows
    if not life.kind.key:
        assert Counter(row["v"] for row in mirror.rows.values()) == Counter(row["v"] for row in now.values())
        return
    mirror.foreign = {key for key in mirror.foreign if mirror.rows.get(key, {}).get("v") != now.get(key, {}).get("v")}
    ours = {key: row["v"] for key, row in mirror.rows.items() if key not in mirror.foreign}
    assert ours == {key: row["v"] for key, row in now.items() if key not in mirror.foreign}


def _tell_mirror(life: MachineLife, what: str, mirror: Mirror) -> None:
    rows = [row for key, row in mirror.rows.items() if key not in mirror.foreign]
    life.tell(what, in_order(rows, ["v", "s", "q"]))


def follow(life: MachineLife, before: bool) -> None:
    """A consumer, whose place is kept however often the table is collected, has all that was written to the log."""
    life.make_durable()
    name = "with-before" if before else "plain"
    consumer = life.table.consumers.open(name, until="now", before=before)
    mirror = life.model.mirrors.setdefault(name, Mirror())
    assert consumer.schema.names[: len(life.model.columns)] == life.table.schema.names
    for batch in consumer:
        _play(life, mirror, batch)
        consumer.commit()
        assert mw.Cursor.parse(str(consumer.cursor)) == consumer.committed
    _same_as_now(life, mirror)
    _tell_mirror(life, name, mirror)
    assert consumer.lag() == 0
    consumer.stop()
    assert list(consumer) == []


def consumers(life: MachineLife, drop: bool) -> None:
    """Exactly those that followed are known; one that is dropped begins anew."""
    mirrors = life.model.mirrors
    assert {info.name: info.state for info in life.table.consumers.list()} == dict.fromkeys(mirrors, "active")
    with pytest.raises(mw.InvalidInputError):
        life.table.consumers.drop("nobody")
    if drop and mirrors:
        name = min(mirrors)
        life.table.consumers.drop(name)
        del mirrors[name]
        assert {info.name for info in life.table.consumers.list()} == mirrors.keys()


def changes_since(life: MachineLife, which: int) -> None:
    """A moment, and the last change of every key since then, are now."""
    moment = life.model.moment(which)
    if moment is None:
        return
    life.make_durable()
    mirror = Mirror(dict(moment.rows), set(moment.foreign))
    if not life.kind.key:
        mirror.rows = dict(enumerate(moment.rows.values()))  # type: ignore[arg-type]
    try:
        for batch in life.table.changes(start=moment.at, until="now"):
            _play(life, mirror, batch)
    except mw.CollectedError:
        assert moment.passed, moment.at  # only a consumer keeps the log
        return
    _same_as_now(life, mirror)
    _tell_mirror(life, "changes since", mirror)


def changes_in_parts(life: MachineLife, which: int, where: str | None) -> None:
    """A feed that is left and gone on with tells what a whole one tells, and a filter takes rows out, but no deletes."""
    moment = life.model.moment(which)
    if moment is None:
        return
    life.make_durable()
    try:
        whole = life.table.changes(start=moment.at, until="now")
        assert whole.schema.names[: len(life.model.columns)] == life.table.schema.names
        told, end = _by_shard(life, [row for batch in whole for row in batch.to_pylist()]), whole.cursor
        assert whole.lag() == 0
        first = life.table.changes(start=moment.at, until=end)
        begun = next(iter(first), None)
        first.stop()
        rest = life.table.changes(start=str(first.cursor), until=str(end))
        parts = [] if begun is None else begun.to_pylist()
        parts += [row for batch in rest for row in batch.to_pylist()]
        some = life.table.changes(start=moment.at, until=end, filter=where)
        met = _by_shard(life, [row for batch in some for row in batch.to_pylist()])
    except mw.CollectedError:
        assert moment.passed, moment.at
        return
    life.tell("net changes", _net(life, told))
    assert _by_shard(life, parts) == told
    assert mw.Cursor.parse(str(end)) == end
    assert all(end.positions[shard] >= position for shard, position in first.cursor.positions.items())
    wanted = {s: [row for row in rows if row[0] == "d" or FILTERS[where](row[2])] for s, rows in told.items()}
    assert met == {shard: rows for shard, rows in wanted.items() if rows}


def _by_shard(life: MachineLife, changes: list[Row]) -> dict[str, list[tuple[Any, ...]]]:
    found: dict[str, list[tuple[Any, ...]]] = {}
    for row in changes:
        key = tuple(row[name] for name in life.kind.names)
        found.setdefault(row["_shard"], []).append((row["_op"], key, {name: row[name] for name in _SHOWN}))
    return found


def _net(life: MachineLife, told: dict[str, list[tuple[Any, ...]]]) -> list[Any]:
    """The last change of every key, or all rows where there is none: what a feed comes to, however rows are spread."""
    changes = [change for rows in told.values() for change in rows]
    last = {change[1]: change for change in changes}
    return sorted(last.values() if life.kind.key else changes, key=repr)


def diff(life: MachineLife, which: int, before: bool) -> None:
    """What differs between then and now, net."""
    moment = life.model.moment(which)
    if moment is None or moment.columns != tuple(life.model.columns):
        return
    life.make_durable()
    try:
        rows = life.table.diff(moment.at, life.table.snapshot(), before=before).to_pylist()
    except mw.CollectedError:
        assert moment.passed, moment.at
        assert not moment.kept, moment.at
        return
    life.tell("differences", in_order(rows, [*life.kind.names, "v", "s", "q", "_op"]))
    if life.kind.key:
        wanted = Counter(_differences(life, moment, before=before))
        assert Counter((tuple(row[name] for name in life.kind.names), row["_op"]) for row in rows) == wanted
    else:
        now, then = (Counter(row["v"] for row in side.rows.values()) for side in (life.model, moment))
        assert Counter(row["v"] for row in rows) == now - then
        assert {row["_op"] for row in rows} <= {"insert"}


def _differences(life: MachineLife, moment: Moment, *, before: bool) -> list[tuple[Any, str]]:
    now, then = life.model.rows, moment.rows
    found = [(key, "insert") for key in now.keys() - then.keys()]
    found += [(key, "delete") for key in then.keys() - now.keys()]
    for key in now.keys() & then.keys():
        if now[key] != then[key]:
            found += [(key, "update_before"), (key, "update_after")] if before else [(key, "update")]
    return found


_SECONDS = 60


def _open(life: MachineLife, shard_id: str, how: str = "put") -> mw.ShardWriter:
    """A writer of one shard, by the table or by itself."""
    if how == "put":
        return life.table.shard_writer(shard_id, **life.configuration.settings)
    return mw.ShardWriter.open(life.uri, shard_id=shard_id, **life.configuration.settings)


def _part(rows: list[Row], batch: pa.RecordBatch) -> list[Row]:
    versions = set(batch.column("v").to_pylist())
    return [row for row in rows if row["v"] in versions]


def shard_puts(life: MachineLife, numbers: list[int], how: str) -> None:
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
        return await writer.aio.put(batch)

    if how == "async":
        return asyncio.run(put())
    if how == "nowait":
        ack = writer.put_nowait(batch)
        result = ack.wait(_SECONDS)
        assert ack.durable
        return result
    return writer.put(batch)


def shard_deletes(life: MachineLife, numbers: list[int], how: str) -> None:
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
        await writer.aio.delete(keys)

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
        rows = writer.memtable_scanner().to_table().to_pylist()
        now = Counter(in_order(life.model.rows.values(), ["v", "s", "q"]))
        assert Counter(in_order(rows, ["v", "s", "q"])) <= now
        met = [row for row in rows if FILTERS[where](row)]
        some = writer.memtable_scanner() if where is None else writer.memtable_scanner().filter(where)
        assert some.count_rows() == len(met)
        assert life.uri in some.explain()
        values = sorted(row["v"] for row in met)
        assert some.project(["v"]).order_by(["v"]).limit(3).to_table().column("v").to_pylist() == values[:3]
        near = (
            writer.memtable_scanner()
            .nearest("vec", [float(x), 1.0], 3, metric="l2")
            .to_table()
            .column("_distance")
            .to_pylist()
        )
        distances = sorted((row["vec"][0] - x) ** 2 + (row["vec"][1] - 1) ** 2 for row in rows if row["vec"])
        assert [round(got, 3) for got in near] == [round(wanted, 3) for wanted in distances[:3]]
        found = writer.memtable_scanner().full_text_search("t", "common").to_table().num_rows
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


# What plain pylance and LanceDB do to the same table in between, and read of it.


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
    compact_all(life)
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
    compact_all(life)
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
    compact_all(life)
    life.same(lance.dataset(life.uri).to_table(), life.model.rows.values())
    shards = [shard.shard_id for shard in life.table.shards()]
    if life.model.is_past_the_log:
        return  # its reader takes a listed generation that was compacted for newer than a later change of the base table
    if len(shards) == 1 and isinstance(life.table.sharding, mw.Unsharded):
        life.same(peer_rows(life.uri, shards[0]), life.model.rows.values())
