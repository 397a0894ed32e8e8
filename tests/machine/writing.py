"""Every way to write, done to the table and to the model."""

import asyncio
from typing import Any

import pytest

import lance_memwal as mw
from lance_memwal.write.once import OnceAppender
from tests.machine.life import MachineLife
from tests.machine.model import FILTERS, Row

__all__: list[str] = []

_SECONDS = 60


def _refused(result: Any, life: MachineLife) -> list[tuple[Any, ...]]:
    found = result.rejected
    return [] if found is None else sorted(tuple(row[name] for name in life.kind.names) for row in found.to_pylist())


def put(life: MachineLife, numbers: list[int], parts: int) -> None:
    rows = life.rows(numbers)
    size = -(-len(rows) // parts)
    result = life.open().put(life.arrow(rows).to_batches(max_chunksize=size))
    refused = life.put_in_model(rows)
    assert result.written == len(rows) - refused == result.to_dict()["written"]
    assert result.to_dict()["shards"] == {shard_id: done.to_dict() for shard_id, done in result.shards.items()}


def put_nowait(life: MachineLife, numbers: list[int]) -> None:
    rows = life.rows(numbers)
    if life.kind.merge is None:
        ack = life.open().put_nowait(rows)
        assert ack.wait(_SECONDS).written == len(rows)
        assert ack.durable
        life.put_in_model(rows)


def put_async(life: MachineLife, numbers: list[int]) -> None:
    """Several tasks, one after the other so that the order is known; then `async with` closes."""

    async def write(writer: mw.TableWriter) -> None:
        for number in numbers:
            rows = life.rows([number])
            done = await writer.aio.put(rows)
            assert done.written == len(rows) - life.put_in_model(rows)

    async def write_and_close() -> None:
        async with life.new_writer() as writer:
            await write(writer)

    if life.writer is None:
        asyncio.run(write_and_close())
    else:
        asyncio.run(write(life.writer))


def put_once(life: MachineLife, numbers: list[int]) -> None:
    rows, txn = life.rows(numbers), ("machine", life.version)
    if life.kind.merge is not None:  # what a merge keeps out leaves no transaction
        return
    for shard_id in life.open().put(rows, txn=txn).shards:
        life.model.note_transaction(shard_id, *txn)
    life.put_in_model(rows)
    assert life.open().put(rows, txn=txn).skipped
    with pytest.raises(mw.InvalidInputError):
        life.open().put(rows, txn=("machine", life.version - len(rows)))


def put_again(life: MachineLife, number: int, times: int) -> None:
    """The same row several times: with a key it is there once, without one as often as it was put."""
    rows = life.rows([number]) * times
    life.open().put(rows)
    life.put_in_model(rows)


def put_many(life: MachineLife, count: int) -> None:
    """So many rows that they are no entry of the log, but a generation of their own."""
    life.stop()
    rows = life.rows([number % 12 for number in range(count)])
    life.open(max_entry_bytes=200).put(rows)
    life.put_in_model(rows)
    life.stop()


def put_of_the_table(life: MachineLife, numbers: list[int]) -> None:
    """The verbs of the table itself; they share, so nobody else may hold the shards. Manual shards must be named."""
    life.leave()
    rows = life.rows(numbers)
    if isinstance(life.table.sharding, mw.Manual):
        with pytest.raises(mw.InvalidInputError):
            life.table.put(rows)
        with life.table.shard_writer() as writer:
            writer.put(rows)
    else:
        life.table.put(rows)
    life.put_in_model(rows)
    life.table.close()


def put_late(life: MachineLife, numbers: list[int], back: int) -> None:
    """Rows that come later than newer ones."""
    rows = [row | {"q": row["q"] - back} for row in life.rows(numbers)]
    result = life.open().put(rows)
    assert result.written == len(rows) - life.put_in_model(rows)


def delete(life: MachineLife, numbers: list[int]) -> None:
    keys, named = [life.kind.key_of(number) for number in numbers], life.named(numbers)
    if isinstance(life.kind.merge, mw.LastWrite):
        life.version += 1
        life.open().delete(named, sequence=life.version)
        life.model.noted |= dict.fromkeys(keys, life.version)
        life.model.delete(keys)
    else:
        assert life.open().delete(named, count=True).matched == life.model.delete(keys)
    life.fresh |= set(numbers)


def delete_nowait(life: MachineLife, numbers: list[int], waits: bool) -> None:
    """Deletes that do not wait, by a future or by the event loop."""
    if isinstance(life.kind.merge, mw.LastWrite):
        return
    writer, named = life.open(), life.named(numbers)

    async def delete_async() -> None:
        await writer.aio.delete(named)

    if waits:
        ack = writer.delete_nowait(named)
        assert ack.wait(_SECONDS).written == len(named)
        assert ack.durable
    else:
        asyncio.run(delete_async())
    life.model.delete([life.kind.key_of(number) for number in numbers])
    life.fresh |= set(numbers)


# ------------------------------------------------------------------------------------------------------- only without merge


def insert(life: MachineLife, numbers: list[int]) -> None:
    rows = life.rows(numbers)
    there = [row for row in rows if life.model.key_of(row) in life.model.rows]
    free = [row for row in rows if row not in there]
    if there:
        with pytest.raises(mw.InvalidInputError):
            life.open().insert(there)
    if free:
        life.open().insert(free)
        life.put_in_model(free)


def put_absent(life: MachineLife, numbers: list[int]) -> None:
    rows = life.rows(numbers)
    result = life.open().put(rows, if_absent=True)
    assert _refused(result, life) == life.model.write(rows, lambda _, old: old is None)


def put_larger(life: MachineLife, numbers: list[int], back: int) -> None:
    rows = [row | {"q": row["q"] - back} for row in life.rows(numbers)]

    def larger(row: Row, old: Row | None) -> bool:
        return old is None or (old["q"] is not None and row["q"] > old["q"])

    result = life.open().put(rows, where="excluded.q > q")
    assert _refused(result, life) == life.model.write(rows, larger)


def _parts(life: MachineLife, numbers: list[int], columns: list[str]) -> list[Row]:
    return [{name: row[name] for name in [*life.kind.names, *columns]} for row in life.rows(numbers)]


def keep(life: MachineLife, numbers: list[int], columns: list[str]) -> None:
    rows = _parts(life, numbers, columns)
    assert life.open().put(rows, missing="keep").rejected is None
    life.put_in_model(rows)


def keep_where(life: MachineLife, numbers: list[int]) -> None:
    rows = _parts(life, numbers, ["v", "s"])
    result = life.open().put(rows, missing="keep", where="s = 'even'")
    assert _refused(result, life) == life.model.write(rows, lambda _, old: old is None or old["s"] == "even")


def update(life: MachineLife, numbers: list[int]) -> None:
    """Absent keys are refused by themselves: a write is atomic per shard, and others would not know of the refusal."""
    rows = _parts(life, numbers, ["v", "s"])
    absent = [row for row in rows if life.model.key_of(row) not in life.model.rows]
    there = [row for row in rows if row not in absent]
    if absent:
        with pytest.raises(mw.InvalidInputError):
            life.open().update(absent)
    if there:
        assert life.open().update(there).matched == len({life.model.key_of(row) for row in there})
        life.put_in_model(there)


def update_where(life: MachineLife, where: str | None) -> None:
    condition = where or "true"
    met = [row for row in life.model.rows.values() if FILTERS[where](row)]
    result = life.open().update(where=condition, set={"v": "v + 1000", "s": "'set'"})
    assert (result.matched, result.written) == (len(met), len(met))
    life.model.write([row | {"v": row["v"] + 1000, "s": "set"} for row in met])


def delete_where(life: MachineLife, where: str | None) -> None:
    gone = [life.model.key_of(row) for row in life.model.matching(where)]
    assert life.open().delete(where=where or "true").matched == len(gone)
    life.model.delete(gone)


def update_of_the_table(life: MachineLife, numbers: list[int]) -> None:
    life.leave()
    keys, named = [life.kind.key_of(number) for number in numbers], life.named(numbers)
    life.table.delete(named)
    life.model.delete(keys)
    rows = life.rows(numbers)
    life.table.insert(rows)
    life.put_in_model(rows)
    parts = _parts(life, numbers, ["v", "s"])
    assert life.table.update(parts).matched == len(parts)
    life.put_in_model(parts)
    life.table.close()


def compare_and_set(life: MachineLife, number: int, right: bool, gone: bool) -> None:
    (new,) = life.rows([number])
    key = life.model.key_of(new)
    old = life.model.rows.get(key)
    expected = old if right else new
    given = key if len(key) > 1 else key[0]
    assert life.open().compare_and_set(given, expected, None if gone else new) is right
    if right and gone:
        life.model.delete([key])
    elif right:
        life.model.write([new])


def append_once(life: MachineLife, numbers: list[int]) -> None:
    """What sinks do: a claim that travels, and rows that are written once however often they are sent."""
    life.stop()
    rows, txn = life.rows(numbers), ("sink", life.version)
    appender = OnceAppender(life.uri)
    for shard_id, batch in routed(life, rows):
        claim = appender.claim(shard_id)
        assert not appender.append(claim, [batch], txn=txn).skipped
        assert appender.append(claim, [batch], txn=txn).skipped
        life.model.note_transaction(shard_id, *txn)
    life.put_in_model(rows)


def append(life: MachineLife, numbers: list[int]) -> None:
    life.stop()
    rows = life.rows(numbers)
    for shard_id, batch in routed(life, rows):
        appender = mw.WalAppender.open(life.uri, shard_id)
        next_position = appender.next_position
        assert appender.append([batch]) == next_position
        appender.check_fenced()
        assert mw.WalAppender.open(life.uri, appender.shard_id).epoch > appender.epoch
        with pytest.raises(mw.FencedError):
            appender.check_fenced()
    life.put_in_model(rows)


def routed(life: MachineLife, rows: list[Row]) -> list[Any]:
    (batch,) = life.arrow(rows).combine_chunks().to_batches()
    sharding, schema = life.table.sharding, life.table.schema
    found = mw.route(batch, sharding, schema)
    for shard_id, part in found:
        named = [] if sharding.column is None else part.column(sharding.column)[:1].to_pylist()
        kind = None if sharding.column is None else schema.field(sharding.column).type
        assert mw.shard_id_for(sharding, *named, kind=kind) == shard_id
    return found
