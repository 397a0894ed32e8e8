"""Random lives of tables: every change comes exactly once, and the answer asked later equals the answer recorded then."""

import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.feed.changes import ChangeFeed, Request
from lance_memwal.lance.base import NewestBase
from lance_memwal.table import newest_base
from lance_memwal.testing.clocks import SkippingClock
from tests.harness.profile import scaled
from tests.kit.busy_life import KINDS, BusyLife, Moment, answers, make_table
from tests.kit.feeds import apply
from tests.kit.tables import create, keyed

SCHEMA = keyed(pa.field("v", pa.int64()))
KEYS = 60


class FeedLife:
    """A table, what was acknowledged of it per key, and what it holds."""

    def __init__(self, table: mw.Table, seed: int) -> None:
        self.table = table
        self.random = random.Random(seed)
        self.changes: dict[int, list[tuple[str, int | None]]] = {}
        self.rows: dict[int, int] = {}
        self.number = 0
        self.writer = self._open()

    def _open(self) -> mw.TableWriter:
        return self.table.writer(max_entry_bytes=2048, compaction=None)

    def put(self) -> None:
        self._put(self.random.sample(range(KEYS), self.random.randint(1, 8)))

    def put_many(self) -> None:
        """So many rows that they become generations of their own."""
        self._put(list(range(1000, 1000 + self.random.randint(400, 700))) + self.random.sample(range(KEYS), 5))

    def _put(self, ids: list[int]) -> None:
        values = [self.number + n for n in range(len(ids))]
        self.number += len(ids)
        self.writer.put({"id": ids, "v": values})
        for key, value in zip(ids, values, strict=True):
            self.changes.setdefault(key, []).append(("u", value))
            self.rows[key] = value

    def delete(self) -> None:
        ids = self.random.sample(range(KEYS), self.random.randint(1, 4))
        self.writer.delete(ids)
        for key in ids:
            self.changes.setdefault(key, []).append(("d", None))
            self.rows.pop(key, None)

    def flush(self) -> None:
        self.writer.flush()

    def compact(self) -> None:
        self.table.compact()

    def collect(self) -> None:
        self.table.gc(grace_seconds=0)

    def take_over(self) -> None:
        """Another writer claims the shards; the old one is fenced."""
        old, self.writer = self.writer, self._open()
        self._put(list(range(KEYS)))  # opens every shard
        old.abort()

    def kill_writer(self) -> None:
        self.writer.abort()
        self.writer = self._open()

    def step(self) -> None:
        steps = [self.put] * 6 + [self.delete] * 3 + [self.flush, self.compact, self.collect] * 2
        self.random.choice([*steps, self.put_many, self.take_over, self.kill_writer])()


class Reader:
    """A consumer of a life that may be killed: what it applied since its last commit is then forgotten."""

    def __init__(self, life: FeedLife, name: str, **options: Any) -> None:
        self._life = life
        self._name = name
        self._options = options
        self.kept: list[dict[str, Any]] = []
        self._applied: list[dict[str, Any]] = []
        self._open()

    def _open(self) -> None:
        self._consumer = self._life.table.consumers.open(self._name, until="now", **self._options)
        self._batches = iter(self._consumer)

    def step(self) -> None:
        chance = self._life.random.random()
        if chance < 0.6:
            batch = next(self._batches, None)
            if batch is None:
                self.commit()
                self._open()  # up to what is there now
            else:
                self._applied += batch.to_pylist()
        elif chance < 0.8:
            self.commit()
        elif chance < 0.9:
            self._applied = []
            self._open()

    def commit(self) -> None:
        self._consumer.commit()
        self.kept += self._applied
        self._applied = []

    def finish(self) -> list[dict[str, Any]]:
        self._applied = []
        self._open()
        for batch in self._consumer:
            self._applied += batch.to_pylist()
        self.commit()
        return self.kept


def per_key(rows: list[dict[str, Any]]) -> dict[int, list[tuple[str, int | None]]]:
    found: dict[int, list[tuple[str, int | None]]] = {}
    for row in rows:
        found.setdefault(row["id"], []).append((row["_op"], row["v"]))
    return found


def with_images(changes: list[tuple[str, int | None]], before: int | None) -> list[tuple[str, int | None]]:
    """What a feed with images shows of the changes of one key that had the value `before`."""
    found: list[tuple[str, int | None]] = []
    for op, value in changes:
        if op == "u":
            found += [("insert", value)] if before is None else [("update_before", before), ("update_after", value)]
        elif before is not None:
            found.append(("delete", before))
        before = value
    return found


@pytest.mark.scaled
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(scaled(ci=3, prove=60)))
def test_every_change_comes_exactly_once_whatever_happens(tmp_path: Path, seed: int) -> None:
    table = create(str(tmp_path / "t"), SCHEMA, sharding=mw.Bucket("id", 3))
    life = FeedLife(table, seed)
    plain = Reader(life, "plain", start="earliest")
    for _ in range(10):
        life.step()
    began = {key: len(changes) for key, changes in life.changes.items()}
    rows_then = dict(life.rows)
    images = Reader(life, "images", start="latest", before=True)
    mirror = Reader(life, "mirror", start="snapshot")
    first = table.changes(start="latest").cursor
    table.consumers.open("held", start=first)
    for _ in range(scaled(ci=30, prove=80)):
        life.step()
        for reader in (plain, images, mirror):
            reader.step()
    assert per_key(plain.finish()) == life.changes
    expected = {
        key: with_images(changes[began.get(key, 0) :], rows_then.get(key)) for key, changes in life.changes.items()
    }
    assert per_key(images.finish()) == {key: found for key, found in expected.items() if found}
    state: dict[int, dict[str, int]] = {}
    for row in mirror.finish():
        apply(state, pa.RecordBatch.from_pylist([row]))
    assert {key: row["v"] for key, row in state.items()} == life.rows
    assert {row["id"]: row["v"] for row in table.scan().to_table().to_pylist()} == life.rows
    life.writer.close()
    assert table.verify().ok


@pytest.mark.parametrize("seed", range(2))
def test_images_are_right_when_their_snapshot_is_renewed(tmp_path: Path, seed: int) -> None:
    """An hour passes now and then, while some shards have changes that were not read yet."""
    table = create(str(tmp_path / "t"), SCHEMA, sharding=mw.Bucket("id", 3))
    life = FeedLife(table, seed)
    life.put()
    rows_then, began = dict(life.rows), {key: len(changes) for key, changes in life.changes.items()}
    clock = SkippingClock()
    feed = ChangeFeed(NewestBase(newest_base(table)), Request(before=True), "latest", None, clock=clock)
    batches, rows = iter(feed), list[dict[str, Any]]()
    first = feed.needed[0]

    def expected() -> dict[int, list[tuple[str, int | None]]]:
        found = {k: with_images(c[began.get(k, 0) :], rows_then.get(k)) for k, c in life.changes.items()}
        return {key: images for key, images in found.items() if images}

    for _ in range(40):
        life.random.choice([life.put, life.put, life.delete, life.put_many, life.flush, life.compact])()
        if life.random.random() < 0.2:
            clock.sleep(3600)
        if life.random.random() < 0.5 and len(rows) < sum(map(len, expected().values())):
            rows += next(batches).to_pylist()
    while len(rows) < sum(map(len, expected().values())):
        rows += next(batches).to_pylist()
    assert per_key(rows) == expected()
    assert feed.needed[0] != first, "another snapshot is in use"
    feed.stop()
    life.writer.close()


def test_diff_of_snapshots_is_last_change_per_key(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), SCHEMA, sharding=mw.Bucket("id", 3))
    life = FeedLife(table, 11)
    for _ in range(12):
        life.step()
    table.consumers.open("holds", start="latest")
    a = table.snapshot()
    for _ in range(25):
        life.random.choice([life.put, life.delete, life.put_many, life.flush])()
    b = table.snapshot()
    changed = {row["id"]: (row["_op"], row["v"]) for row in table.diff(a, b).to_pylist()}
    known = {row["id"]: row["v"] for row in table.at(a).scan().to_table().to_pylist()}
    last = {row["id"]: row for batch in table.changes(start=a, until=b) for row in batch.to_pylist()}
    found: dict[int, tuple[str, int | None]] = {}
    for key, row in last.items():
        if row["_op"] == "u":
            found[key] = ("update" if key in known else "insert", row["v"])
        elif key in known:
            found[key] = ("delete", known[key])
    assert found == changed
    life.writer.close()


# At random moments of a busy life the answer asked later equals the answer recorded then; collection may end a moment
# that nobody keeps, with an error, and never changes its answer.

NOW = timedelta(0)


def live(table: mw.Table, kind: str, seed: int, moments: int, between: int) -> list[Moment]:
    life, found, steps = BusyLife(table, kind, seed), [], []
    try:
        for number in range(moments):
            steps = [life.step() for _ in range(between)]
            found.append(life.moment(number, ", ".join(steps)))
        for _ in range(between):
            life.step()
    finally:
        life.close()
    return found


def check(table: mw.Table, moment: Moment, kind: str, by: object) -> None:
    now = answers(table.at(by), kind)  # type: ignore[arg-type]
    for name, said in moment.said.items():
        assert now[name] == said, f"{name} at {moment.name or moment.snapshot}, after {moment.step}"


@pytest.mark.scaled
@pytest.mark.parametrize("kind", KINDS)
def test_the_answer_asked_later_equals_the_answer_recorded_then(tmp_path: Path, kind: str) -> None:
    table = make_table(str(tmp_path / "t"), kind)
    moments = live(table, kind, seed=len(kind), moments=scaled(ci=3, prove=50), between=scaled(ci=6, prove=10))
    for moment in moments:
        check(table, moment, kind, moment.snapshot)
    collected = attack(table, moments, kind)
    assert collected, "an attack after which every moment is there is none"
    assert table.verify().ok


def attack(table: mw.Table, moments: list[Moment], kind: str) -> int:
    """Collect and clean up with every grace; returns how many moments ended."""
    ended = 0
    for grace_seconds in scaled(ci=(3600, 0), prove=(3600, 1, 0)):
        table.compact(flush=True)
        table.maintain(versions=NOW if grace_seconds == 0 else timedelta(days=1), grace_seconds=grace_seconds)
        ended = 0
        for moment in moments:
            if moment.name is not None:
                check(table, moment, kind, moment.name)
                assert table.at(moment.snapshot).count_rows() == len(moment.said["rows"])
                continue
            try:
                check(table, moment, kind, moment.snapshot)
            except mw.CollectedError:
                ended += 1
        assert not ended or grace_seconds < 3600
    return ended
