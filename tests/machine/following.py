"""What changed since then: consumers, feeds from a moment on, and two moments compared."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from tests.machine.life import MachineLife, in_order
from tests.machine.model import FILTERS, Mirror, Moment, Row

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
    consumer = life.table.consumer(name, until="now", before=before)
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
    assert {info.name: info.state for info in life.table.consumers()} == dict.fromkeys(mirrors, "active")
    with pytest.raises(mw.InvalidInputError):
        life.table.drop_consumer("nobody")
    if drop and mirrors:
        name = min(mirrors)
        life.table.drop_consumer(name)
        del mirrors[name]
        assert {info.name for info in life.table.consumers()} == mirrors.keys()


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
        for batch in life.table.changes(start=moment.at, until="now", net=bool(life.kind.key)):
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
