"""Every way to read, now and as of then, compared with the model."""

import asyncio
import time
from datetime import UTC, datetime
from typing import Any

import lance
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from datafusion import SessionContext

import lance_memwal as mw
from lance_memwal.engines.sql import register
from tests.harness.shard_audit import merged_rows
from tests.machine.life import MachineLife, in_order
from tests.machine.model import FILTERS, Moment, Row
from tests.machine.setup import BLOB

__all__: list[str] = []

_APART_SECONDS = 0.02


def scan(life: MachineLife, where: str | None, columns: list[str] | None) -> None:
    found = life.table.scan(columns, filter=where).to_table()
    assert found.schema.names == (columns or life.table.schema.names)
    life.tell("rows", in_order(found.to_pylist(), found.schema.names))
    life.same(found, life.model.matching(where), columns)


def page(life: MachineLife, where: str | None, limit: int, offset: int, descending: bool) -> None:
    """An order that tells all rows apart by their version; equal ones do not matter."""
    order = ["-v"] if descending else ["v"]
    found = life.table.scan(["v"], filter=where, order_by=order, limit=limit, offset=offset).to_table()
    life.tell("page", found.column("v").to_pylist())
    values = sorted((row["v"] for row in life.model.matching(where)), reverse=descending)
    assert found.column("v").to_pylist() == values[offset : offset + limit]
    some = life.table.scan(["v"], filter=where, limit=limit, offset=offset).to_table()
    assert some.num_rows == len(values[offset : offset + limit])


def count(life: MachineLife, where: str | None) -> None:
    found = life.table.count_rows(where)
    life.tell("count", found)
    assert found == len(life.model.matching(where))


def query(life: MachineLife, where: str | None) -> None:
    found = life.table.sql(f"select count(*) as c, sum(v) as total from t where {where or 'true'}").to_pylist()[0]
    life.tell("query", found)
    values = [row["v"] for row in life.model.matching(where)]
    assert (found["c"], found["total"] or 0) == (len(values), sum(values))


def query_with_names(life: MachineLife, where: str | None) -> None:
    """The table in a session of DataFusion, as a pyarrow dataset, and in Polars; each reads the newest state."""
    context = SessionContext()
    register(context, "named", life.table.to_dataset())
    rows = life.model.matching(where)
    (found,) = context.sql(f"select count(*) as c from named where {where or 'true'}").to_pylist()
    assert found["c"] == len(rows)
    dataset, names = life.table.to_dataset(), ["v", "s"]
    assert dataset.count_rows() == len(life.model.rows)
    expression = None if where is None else pc.field("v") > 40
    over = life.model.matching(None if where is None else "v > 40")
    life.same(dataset.to_table(columns=names, filter=expression), over, names)
    frame = mw.polars.scan(life.table).select(names)
    life.same((frame if where is None else frame.filter(pl.col("v") > 40)).collect().to_arrow(), over, names)


def read_as(life: MachineLife, where: str | None) -> None:
    """Every form in which a scan can be had."""
    rows, names = life.model.matching(where), ["v", "s"]
    reader = life.writer or life.table
    scan = reader.scan(names, filter=where)
    assert scan.schema.names == names
    assert scan.plan().columns == ("v", "s")
    assert life.uri in scan.explain()
    life.same(pa.Table.from_batches(scan.to_batches(), scan.schema), rows, names)
    life.same(scan.to_reader().read_all(), rows, names)
    life.same(scan.to_polars().to_arrow(), rows, names)
    assert sorted(scan.to_pandas()["v"]) == sorted(row["v"] for row in rows)
    assert scan.count_rows() == reader.count_rows(where) == len(rows)
    if where is None:
        life.same(life.table.to_arrow(), rows)
        assert sorted(life.table.to_pandas()["v"]) == sorted(row["v"] for row in rows)
        assert life.table.head(4).num_rows == min(4, len(life.table))


def read_async(life: MachineLife, numbers: list[int], where: str | None) -> None:
    """Reads that do not hold up the event loop."""

    async def read() -> None:
        life.same(await life.table.aio.scan(filter=where), life.model.matching(where))
        found = await life.table.aio.search([1.0, 1.0], column="vec", k=3, metric="l2")
        _nearest(found.to_pylist(), list(life.model.rows.values()), 1, 3)
        if life.kind.key:
            there = {key: life.model.rows[key] for key in map(life.kind.key_of, numbers) if key in life.model.rows}
            life.same(await life.table.aio.lookup(life.named(numbers)), there.values())
            row = await life.table.aio.get(life.named(numbers)[0])
            assert (row is None) == (life.kind.key_of(numbers[0]) not in there)

    asyncio.run(read())


def read_elsewhere(life: MachineLife, where: str | None) -> None:
    life.make_durable()
    found = life.elsewhere.ask("scan", life.uri, filter=where)
    life.tell("rows elsewhere", in_order(found.to_pylist(), found.schema.names))
    life.same(found, life.model.matching(where))


def merge_by_hand(life: MachineLife) -> None:
    """Tiers of the one shard, read as plain datasets and merged by a dict, and the scan of its own writer."""
    if (
        life.writer is None
        or not isinstance(life.table.sharding, mw.Unsharded)
        or life.configuration.compaction is not None
    ):
        return
    for shard in life.writer.shard_writers.values():
        if isinstance(shard, mw.ShardWriter):
            life.make_durable()
            life.same(merged_rows(shard, life.uri), life.model.rows.values())
            life.same(shard.scan().to_table(), life.model.rows.values())


def get(life: MachineLife, number: int) -> None:
    (given,), row = life.named([number]), life.model.rows.get(life.kind.key_of(number))
    life.tell("row", in_order([got] if (got := life.table.get(given)) else [], life.table.schema.names))
    for reader in (life.table, life.writer):
        found = row if reader is None else reader.get(given)
        assert (found is None) == (row is None)
        if row is not None and found is not None:
            assert in_order([found], life.table.schema.names) == in_order([row], life.table.schema.names)


def blob(life: MachineLife, number: int) -> None:
    """The bytes of a blob, whole and from somewhere inside, whoever asks."""
    (given,), row = life.named([number]), life.model.rows.get(life.kind.key_of(number))
    for reader in (life.table, life.writer):
        if reader is not None:
            _same_blob(reader.get_blob(given, BLOB), None if row is None else row[BLOB])


def _same_blob(found: mw.BlobFile | None, wanted: bytes | None) -> None:
    assert (found is None) == (wanted is None)
    if found is not None and wanted is not None:
        with found:
            assert (found.size(), found.read()) == (len(wanted), wanted)
            assert found.seek(len(wanted) // 2) == found.tell()
            assert found.read(5) == wanted[len(wanted) // 2 :][:5]


def lookup(life: MachineLife, numbers: list[int], outside: bool) -> None:
    keys, named = [life.kind.key_of(number) for number in numbers], life.named(numbers)
    if outside:
        life.make_durable()
        found = life.elsewhere.ask("lookup", life.uri, named)
    else:
        found = (life.writer or life.table).lookup(named)
    live = [life.model.rows[key] for key in dict.fromkeys(keys) if key in life.model.rows]
    life.tell("rows of keys", in_order(found.to_pylist(), life.model.columns))
    life.same(found, live)
    with_dead = life.table.lookup(named, with_tombstones=True).to_pylist()
    assert in_order([row for row in with_dead if not row["_tombstone"]], life.model.columns) == in_order(
        live, life.model.columns
    )
    dead = [tuple(row[name] for name in life.kind.names) for row in with_dead if row["_tombstone"]]
    assert len(set(dead)) == len(dead)
    assert set(dead) <= set(keys) - life.model.rows.keys()


# -------------------------------------------------------------------------------------------------------------- searching


def near(life: MachineLife, x: int, k: int, where: str | None) -> None:
    reader = life.writer or life.table
    found = reader.search([float(x), 1.0], column="vec", k=k, filter=where, metric="l2").to_pylist()
    life.tell("distances", [round(row["_distance"], 3) for row in found])
    _nearest(found, life.model.matching(where), x, k)


def _nearest(found: list[Row], rows: list[Row], x: int, k: int) -> None:
    """The distances are the smallest; which of equal ones come is nobody's business, but each is a row."""
    distances = sorted((row["vec"][0] - x) ** 2 + (row["vec"][1] - 1) ** 2 for row in rows if row["vec"] is not None)
    assert [round(row["_distance"], 3) for row in found] == [round(d, 3) for d in distances[:k]]
    values = [(row["v"], row["s"]) for row in rows]
    assert all((row["v"], row["s"]) in values for row in found)


def find(life: MachineLife, word: str, where: str | None) -> None:
    if "by_t" not in life.indexes:
        return
    found = life.table.search(text=word, column="t", k=1_000, filter=where)
    having = [row for row in life.model.matching(where) if row["t"] is not None and word in row["t"].split()]
    life.tell("rows with a word", in_order(found.to_pylist(), life.model.columns))
    life.same(found, having)


def near_or_found(life: MachineLife, x: int, word: str, where: str | None) -> None:
    """Both rankings fused: every row has its place in one of them, and a place in both is worth more."""
    if "by_t" not in life.indexes:
        return
    having = {row["v"] for row in life.model.matching(where) if row["t"] is not None and word in row["t"].split()}
    rows = [row for row in life.model.matching(where) if row["vec"] is not None or row["v"] in having]
    found = life.table.search([float(x), 1.0], text=word, k=1_000, filter=where, metric="l2")
    life.tell("rows near or with a word", in_order(found.to_pylist(), life.model.columns))
    life.same(found, rows)
    relevance = [(row["v"], row["_relevance"]) for row in found.to_pylist()]
    assert [got for _, got in relevance] == sorted((got for _, got in relevance), reverse=True)
    least, most = 0.9999 / (60 + len(rows)), 2.0001 / 61
    assert all((least if v not in having else 2 * least) <= got <= most for v, got in relevance)


# -------------------------------------------------------------------------------------------------------------------- time


def snapshot(life: MachineLife) -> None:
    """A snapshot that was written down, and read again."""
    life.make_durable()
    storage, taken = life.storage(), life.table.snapshot()
    again = mw.Snapshot.parse(str(taken))
    assert again == taken
    life.model.remember(again, storage, kept=False)


def checkpoint(life: MachineLife) -> None:
    life.make_durable()
    life.checkpoints += 1
    storage, name = life.storage(), f"moment-{life.checkpoints}"
    life.table.checkpoints.create(name)
    life.model.remember(name, storage, kept=True)


def remember_the_time(life: MachineLife) -> None:
    """A time with nothing just before or after it: entries and versions carry milliseconds."""
    life.make_durable()
    storage = life.storage()
    time.sleep(_APART_SECONDS)
    life.model.remember(datetime.now(UTC), storage, kept=False)
    time.sleep(_APART_SECONDS)


def drop_checkpoint(life: MachineLife, which: int) -> None:
    kept = [moment for moment in life.model.moments if moment.kept]
    if kept:
        moment = kept[which % len(kept)]
        life.table.checkpoints.drop(moment.at)
        life.model.forget(moment)
        assert moment.at not in {checkpoint.name for checkpoint in life.table.checkpoints.list()}


def look_back(life: MachineLife, which: int) -> None:
    """Every read of a moment says what it said then, or that it is gone, where nobody promised to keep it and somebody has
    collected since."""
    moment = life.model.moment(which)
    if moment is None:
        return
    try:
        _compare_view(life, moment)
    except mw.CollectedError:
        assert moment.passed, moment.at
        assert not moment.kept, moment.at
        life.model.forget(moment)


def _compare_view(life: MachineLife, moment: Moment) -> None:
    view, columns = life.table.at(moment.at), moment.columns
    rows = list(moment.rows.values())
    assert (tuple(view.schema.names), view.primary_key) == (columns, life.kind.names)
    seen = in_order(view.scan().to_table().to_pylist(), columns)
    life.tell("rows of then", seen)
    assert seen == in_order(rows, columns)
    assert in_order(view.to_arrow().to_pylist(), columns) == in_order(rows, columns)
    assert sorted(view.to_pandas()["v"]) == sorted(row["v"] for row in rows)
    assert (len(view), view.head(3).num_rows) == (len(rows), min(3, len(rows)))
    for where, test in FILTERS.items():
        assert view.count_rows(where) == sum(test(row) for row in rows)
    _nearest(view.search([3.0, 1.0], column="vec", k=4, metric="l2").to_pylist(), rows, 3, 4)
    if not life.kind.key:
        return
    keys = list(moment.rows)[:3]
    named: list[Any] = keys if len(life.kind.key) > 1 else [key[0] for key in keys]
    wanted = [moment.rows[key] for key in keys]
    assert in_order(view.lookup(named).to_pylist(), columns) == in_order(wanted, columns)
    assert in_order([view.get(key) or {} for key in named], columns) == in_order(wanted, columns)
    for key, row in zip(named, wanted, strict=True):
        if life.kind.has_blobs:
            _same_blob(view.get_blob(key, BLOB), row[BLOB])


def look_back_to_a_version(life: MachineLife, back: int) -> None:
    """A version of the base table is what plain Lance shows."""
    versions = [item["version"] for item in life.table.dataset.versions()]
    version = versions[max(0, len(versions) - 1 - back)]
    plain = lance.dataset(life.uri, version=version).to_table()
    seen = life.table.at(version).scan().to_table()
    assert in_order(seen.to_pylist(), plain.schema.names) == in_order(plain.to_pylist(), plain.schema.names)
