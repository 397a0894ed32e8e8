"""Every way to read, now and as of then, compared with the model."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import lance

import lance_memwal as mw
from tests.harness.shard_rows import merged_rows
from tests.kit.feeds import apply
from tests.machine.life import MachineLife, in_order
from tests.machine.model import FILTERS, Moment, Row

__all__: list[str] = []

CONSUMER = "machine"
_APART_SECONDS = 0.02


def scan(life: MachineLife, where: str | None, columns: list[str] | None) -> None:
    found = life.table.scan(columns, filter=where).to_table()
    assert found.schema.names == (columns or life.table.schema.names)
    life.same(found, life.model.matching(where), columns)


def page(life: MachineLife, where: str | None, limit: int, offset: int, descending: bool) -> None:
    """An order that tells all rows apart by their version; equal ones do not matter."""
    order = ["-v"] if descending else ["v"]
    found = life.table.scan(["v"], filter=where, order_by=order, limit=limit, offset=offset).to_table()
    values = sorted((row["v"] for row in life.model.matching(where)), reverse=descending)
    assert found.column("v").to_pylist() == values[offset : offset + limit]
    some = life.table.scan(["v"], filter=where, limit=limit, offset=offset).to_table()
    assert some.num_rows == len(values[offset : offset + limit])


def count(life: MachineLife, where: str | None) -> None:
    assert life.table.count_rows(where) == len(life.model.matching(where))


def query(life: MachineLife, where: str | None) -> None:
    found = life.table.sql(f"select count(*) as c, sum(v) as total from t where {where or 'true'}").to_pylist()[0]
    values = [row["v"] for row in life.model.matching(where)]
    assert (found["c"], found["total"] or 0) == (len(values), sum(values))


def read_elsewhere(life: MachineLife, where: str | None) -> None:
    life.make_durable()
    life.same(life.elsewhere.ask("scan", life.uri, filter=where), life.model.matching(where))


def merge_by_hand(life: MachineLife) -> None:
    """Tiers of the one shard, read as plain datasets and merged by a dict, and the scan of its own writer."""
    if life.writer is None or life.configuration.buckets or life.configuration.compaction is not None:
        return
    for shard in life.writer.shard_writers.values():
        if isinstance(shard, mw.ShardWriter):
            life.make_durable()
            life.same(merged_rows(shard, life.uri), life.model.rows.values())
            life.same(shard.lsm_scan().to_table(), life.model.rows.values())


def get(life: MachineLife, number: int) -> None:
    key = life.kind.key_of(number)
    given = key if len(key) > 1 else key[0]
    row = life.model.rows.get(key)
    assert life.table.get(given) == (None if row is None else {name: row[name] for name in life.table.schema.names})


def lookup(life: MachineLife, numbers: list[int], outside: bool) -> None:
    keys = [life.kind.key_of(number) for number in numbers]
    named: list[Any] = keys if len(life.kind.key) > 1 else [key[0] for key in keys]
    if outside:
        life.make_durable()
        found = life.elsewhere.ask("lookup", life.uri, named)
    else:
        found = life.table.lookup(named)
    life.same(found, [life.model.rows[key] for key in dict.fromkeys(keys) if key in life.model.rows])


# -------------------------------------------------------------------------------------------------------------- searching


def near(life: MachineLife, x: int, k: int, where: str | None) -> None:
    found = life.table.search([float(x), 1.0], column="vec", k=k, filter=where, metric="l2").to_pylist()
    _nearest(found, life.model.matching(where), x, k)


def _nearest(found: list[Row], rows: list[Row], x: int, k: int) -> None:
    """The distances are the smallest; which of equal ones come is nobody's business, but each is a row."""
    distances = sorted((row["vec"][0] - x) ** 2 + (row["vec"][1] - 1) ** 2 for row in rows if row["vec"] is not None)
    assert [round(row["_distance"], 3) for row in found] == [round(d, 3) for d in distances[:k]]
    values = [(row["v"], row["s"]) for row in rows]
    assert all((row["v"], row["s"]) in values for row in found)


def find(life: MachineLife, word: str, where: str | None) -> None:
    if not life.configuration.indexes:
        return
    found = life.table.search(text=word, column="t", k=1_000, filter=where)
    having = [row for row in life.model.matching(where) if row["t"] is not None and word in row["t"].split()]
    life.same(found, having)


# -------------------------------------------------------------------------------------------------------------------- time


def snapshot(life: MachineLife) -> None:
    life.make_durable()
    life.model.remember(life.table.snapshot(), kept=False)


def checkpoint(life: MachineLife) -> None:
    life.make_durable()
    life.named += 1
    name = f"moment-{life.named}"
    life.table.checkpoint_create(name)
    life.model.remember(name, kept=True)


def remember_the_time(life: MachineLife) -> None:
    """A time with nothing just before or after it: entries and versions carry milliseconds."""
    life.make_durable()
    time.sleep(_APART_SECONDS)
    life.model.remember(datetime.now(UTC), kept=False)
    time.sleep(_APART_SECONDS)


def drop_checkpoint(life: MachineLife, which: int) -> None:
    kept = [moment for moment in life.model.moments if moment.kept]
    if kept:
        moment = kept[which % len(kept)]
        life.table.checkpoint_drop(moment.at)
        life.model.moments.remove(moment)
        assert moment.at not in {checkpoint.name for checkpoint in life.table.checkpoints()}


def _moment(life: MachineLife, which: int) -> Moment | None:
    return life.model.moments[which % len(life.model.moments)] if life.model.moments else None


def look_back(life: MachineLife, which: int) -> None:
    """Every read of a moment says what it said then, or that it is gone, where nobody promised to keep it."""
    moment = _moment(life, which)
    if moment is None:
        return
    try:
        _compare_view(life, moment)
    except mw.CollectedError:
        assert not moment.kept, moment.at
        life.model.moments.remove(moment)


def _compare_view(life: MachineLife, moment: Moment) -> None:
    view = life.table.at(moment.at)
    rows = list(moment.rows.values())
    assert in_order(view.scan().to_table().to_pylist(), moment.columns) == in_order(rows, moment.columns)
    for where, test in FILTERS.items():
        assert view.count_rows(where) == sum(test(row) for row in rows)
    _nearest(view.search([3.0, 1.0], column="vec", k=4, metric="l2").to_pylist(), rows, 3, 4)
    if life.kind.key:
        keys = list(moment.rows)[:3]
        named: list[Any] = keys if len(life.kind.key) > 1 else [key[0] for key in keys]
        found = view.lookup(named).to_pylist()
        assert in_order(found, moment.columns) == in_order([moment.rows[key] for key in keys], moment.columns)


def look_back_to_a_version(life: MachineLife, back: int) -> None:
    """A version of the base table is what plain Lance shows."""
    versions = [item["version"] for item in life.table.dataset.versions()]
    version = versions[max(0, len(versions) - 1 - back)]
    plain = lance.dataset(life.uri, version=version).to_table()
    seen = life.table.at(version).scan().to_table()
    assert in_order(seen.to_pylist(), plain.schema.names) == in_order(plain.to_pylist(), plain.schema.names)


def diff(life: MachineLife, which: int) -> None:
    """What differs between then and now, net."""
    moment = _moment(life, which)
    if moment is None or moment.columns != tuple(life.model.columns):
        return
    life.make_durable()
    now, then = life.model.rows, moment.rows
    wanted = dict.fromkeys(now.keys() - then.keys(), "insert") | dict.fromkeys(then.keys() - now.keys(), "delete")
    wanted |= {key: "update" for key in now.keys() & then.keys() if now[key] != then[key]}
    try:
        rows = life.table.diff(moment.at, life.table.snapshot()).to_pylist()
    except mw.CollectedError:
        assert not moment.kept
        return
    assert {tuple(row[name] for name in life.kind.names): row["_op"] for row in rows} == wanted
    assert len(rows) == len(wanted)


# ----------------------------------------------------------------------------------------------------------------- changes


def follow(life: MachineLife) -> None:
    """A consumer, whose place is kept however often the table is collected, has all that was written to the log."""
    life.make_durable()
    if life.mirror is None:
        life.mirror = {}
        life.model.followed = {key: row["v"] for key, row in life.model.rows.items()}
        life.model.foreign.clear()
    state: dict[Any, Any] = {key: {"v": v} for key, v in life.mirror.items()}
    consumer = life.table.consumer(CONSUMER, until="now")
    for batch in consumer:
        apply(state, batch, life.kind.names)
        consumer.commit()
    life.mirror = {key: row["v"] for key, row in state.items()}
    ours = {key: v for key, v in life.mirror.items() if key not in life.model.foreign}
    assert ours == {key: v for key, v in life.model.followed.items() if key not in life.model.foreign}


def changes_since(life: MachineLife, which: int) -> None:
    """A moment, and the last change of every key since then, are now."""
    moment = _moment(life, which)
    if moment is None:
        return
    life.make_durable()
    state: dict[Any, Any] = {key: {"v": row["v"]} for key, row in moment.rows.items()}
    try:
        for batch in life.table.changes(start=moment.at, until="now", net=True):
            apply(state, batch, life.kind.names)
    except mw.CollectedError:
        return  # only a consumer keeps the log
    keys = (state.keys() | life.model.rows.keys()) - life.model.foreign
    now = {key: row["v"] for key, row in life.model.rows.items()}
    assert {key: state[key]["v"] for key in keys if key in state} == {key: now[key] for key in keys if key in now}
