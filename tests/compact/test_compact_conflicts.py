"""Compactions that overlap, race a busy writer, are killed or meet lost answers: nothing counts twice or comes back."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from compact_child import maintain

import lance_memwal as mw
from lance_memwal.compact.run import Compactor
from lance_memwal.errors import ObjectExistsError
from lance_memwal.lance import commit
from lance_memwal.lance.base import BaseTable, NewestBase
from lance_memwal.lance.marks import COUNTER_SHARD
from lance_memwal.store.location import resolve
from lance_memwal.store.wrap import WrappedStore
from tests.harness.deaths import KILLED
from tests.harness.kill_points import COMPACT_POINTS_OF, GC_POINTS
from tests.harness.points import run_once_at
from tests.harness.processes import start
from tests.harness.profile import scaled
from tests.kit.compaction import Kept, by_lance_only, unheld_files, with_key

OVERLAPS = [
    ("key", "compact.chosen"),
    ("key", "compact.after_fragments"),
    ("key", "compact.before_manifest"),
    ("merge", "compact.chosen"),
    ("merge", "compact.before_delete"),
    ("merge", "compact.after_delete"),
    ("merge", "compact.before_upsert"),
    ("append", "compact.chosen"),
    ("append", "compact.after_fragments"),
    ("append", "compact.before_manifest"),
    ("stable", "compact.chosen"),
    ("stable", "compact.after_fragments"),
    ("stable", "compact.before_manifest"),
]


@pytest.mark.parametrize(("kind", "point"), OVERLAPS)
@pytest.mark.parametrize("first_does", [1, 2, 4])
def test_a_compaction_that_was_overtaken_starts_over(tmp_path: Path, kind: str, point: str, first_does: int) -> None:
    kept = Kept(tmp_path / "t", kind, seed=first_does)
    kept.generations(4)
    other = mw.open_table(kept.uri)
    happened = run_once_at(point, lambda: other.compact(max_generations=first_does))
    report = kept.table.compact()
    assert happened
    assert report.conflicts >= 1 or first_does == 4  # the same commit by somebody else is as good as our own
    assert kept.shown() == kept.expected
    assert kept.plain() == kept.expected


def _deleted_in_the_third(uri: str) -> mw.Table:
    """Key 1 is put in generation 1 and deleted in generation 3; the base table has never seen it.

    Its features rule the hand-made commit out: Lance merges.
    """
    schema = with_key(pa.schema([("id", pa.int64()), ("v", pa.int64())]))
    lance.write_dataset(schema.empty_table(), uri, **by_lance_only(uri))
    table = mw.enable(uri, sharding=mw.Unsharded())
    with table.writer(compaction=None) as writer:
        for step, action in enumerate([lambda: None, lambda: None, lambda: writer.delete([1])]):
            writer.put({"id": [1, 100 + step] if step == 0 else [100 + step], "v": [step] * (2 if step == 0 else 1)})
            action()
            writer.flush()
    return table


def _overtake(table: mw.Table) -> list[int]:
    """Generations 1 and 2 are compacted by another one between the passes of a compaction of 1 to 3."""
    other = mw.open_table(table.uri)
    happened = run_once_at("compact.before_upsert", lambda: other.compact(max_generations=2))
    table.compact()
    assert happened
    return sorted(lance.dataset(table.uri).to_table()["id"].to_pylist())


def test_a_deleted_key_does_not_come_back_when_compactions_overlap(tmp_path: Path) -> None:
    table = _deleted_in_the_third(str(tmp_path / "t"))
    assert 1 not in _overtake(table)


def test_the_commit_number_is_what_keeps_it_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the protection off (no number is proposed) Lance lets both commits in, and a deleted key returns.

    Key 100 is left out of the first compaction so that the two touch different rows.
    """
    table = _deleted_in_the_third(str(tmp_path / "t"))
    real = commit._merge

    def without_number(base: object, build: object, rows: object, marks: dict[str, int] | None) -> None:
        kept = None if marks is None else {s: n for s, n in marks.items() if s != COUNTER_SHARD}
        real(base, build, rows, kept)  # type: ignore[arg-type]

    monkeypatch.setattr(commit, "_merge", without_number)
    fold = _only_new_rows(monkeypatch)
    assert 1 in _overtake(table)
    assert fold


def _only_new_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let the overtaken compaction write only the row of generation 3, as if 1 and 2 had been deletes elsewhere."""
    from lance_memwal.compact import run

    calls: list[int] = []
    real = run.merge_rows

    def narrowed(base: object, deletes: object, upserts: object, marks: dict[str, int]) -> object:
        calls.append(max(marks.values()))
        if calls == [3]:
            third = pa.record_batch([pa.array([102]), pa.array([2])], schema=base.schema)  # type: ignore[attr-defined]
            return real(base, deletes, lambda: iter([third]), marks)  # type: ignore[arg-type]
        return real(base, deletes, upserts, marks)  # type: ignore[arg-type]

    monkeypatch.setattr(run, "merge_rows", narrowed)
    return calls


class _StoppedError(Exception):
    """The compactor ends here."""


def _stop() -> None:
    raise _StoppedError


KEYS = 20_000


def _schema(key: pa.DataType) -> pa.Schema:
    return with_key(pa.schema([("id", key), ("v", pa.string())]))


def _ids(key: pa.DataType, numbers: range) -> pa.Array:
    return pa.array([f"key{number:09d}" for number in numbers]) if key == pa.string() else pa.array(numbers, key)


def _table(place: Path, key: pa.DataType) -> mw.Table:
    """Every second row of the base is replaced by what waits for a compaction, and as many are new."""
    schema = _schema(key)
    rows = pa.table([_ids(key, range(KEYS)), ["old"] * KEYS], schema=schema)
    lance.write_dataset(rows, str(place), max_rows_per_file=KEYS // 100)
    table = mw.enable(str(place), sharding=mw.Unsharded(), writer_defaults={"fsync": False})
    with table.writer(compaction=None) as writer:
        writer.put(pa.table([_ids(key, range(0, 2 * KEYS, 2)), ["new"] * KEYS], schema=schema))
    return table


@contextmanager
def _committing(commit: Callable[[int], object], wait_seconds: float) -> Iterator[list[int]]:
    """Somebody who commits, waits and commits; the list tells how often."""
    done, stop = [], threading.Event()

    def run() -> None:
        while not stop.wait(wait_seconds):
            try:
                commit(len(done))
            except OSError:  # Lance gave up a commit that lost too often
                continue
            done.append(len(done))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield done
    finally:
        stop.set()
        thread.join()


@pytest.mark.repro("reads-07")
@pytest.mark.parametrize("key", [pa.int64(), pa.string()])
def test_a_compaction_gets_through_beside_a_plain_writer(tmp_path: Path, key: pa.DataType) -> None:
    table = _table(tmp_path / "t", key)
    schema = _schema(key)

    def commit(number: int) -> None:
        odd = 2 * number + 1
        name = f"'key{odd:09d}'" if key == pa.string() else str(odd)
        if number % 3 == 0:
            lance.dataset(table.uri).delete(f"id = {name}")
        elif number % 3 == 1:
            lance.dataset(table.uri).update({"v": "'updated'"}, where=f"id = {name}")
        else:
            rows = pa.table([_ids(key, range(10 * KEYS + number, 10 * KEYS + number + 1)), ["direct"]], schema=schema)
            lance.write_dataset(rows, table.uri, mode="append")

    with _committing(commit, 0.01) as commits:
        assert table.compact().generations == 1
        while len(commits) < 6:
            assert not threading.Event().wait(0.01)
    found = lance.dataset(table.uri).to_table()
    assert len(found["id"].unique()) == found.num_rows
    values = found["v"].to_pylist()
    assert values.count("new") == KEYS
    assert values.count("direct") == len([n for n in commits if n % 3 == 2])
    assert values.count("old") + values.count("updated") == KEYS // 2 - len([n for n in commits if n % 3 == 0])
    left = unheld_files(table.uri)
    assert {
        name for name in left if not name.endswith(".arrow")
    } == set()  # such vectors are Lance's, of changes that lost


@pytest.mark.parametrize("point", ["compact.after_fragments", "compact.before_manifest"])
def test_a_compaction_that_fails_before_its_commit_takes_its_files_along(tmp_path: Path, point: str) -> None:
    table = _table(tmp_path / "t", pa.int64())
    happened = run_once_at(point, _stop)
    with pytest.raises(_StoppedError):
        table.compact()
    assert happened
    assert unheld_files(table.uri) == set()
    run_once_at("compact.before_manifest", lambda: mw.open_table(table.uri).compact())
    assert table.compact().conflicts == 1, "another one overtook it"
    assert unheld_files(table.uri) == set()
    assert lance.dataset(table.uri).count_rows() == KEYS // 2 + KEYS


NOT_HERE = {"gc.before_orphan"}  # these lives leave nothing of the kind


@pytest.mark.scaled
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", COMPACT_POINTS_OF)
def test_killed_compactions_and_collections_lose_and_double_nothing(tmp_path: Path, kind: str) -> None:
    wanted = scaled(ci=15, prove=70)
    points = [*COMPACT_POINTS_OF[kind], *(point for point in GC_POINTS if point not in NOT_HERE)]
    died_at: Counter[str] = Counter()
    draw = random.Random(7)
    kept, life = _kept(tmp_path / "t0", kind, 0), 0
    while sum(died_at.values()) < wanted or not set(points) <= set(died_at):
        life += 1
        assert life < 3 * wanted, f"these points are never reached: {set(points) - set(died_at)}"
        rare = min(points, key=lambda point: died_at[point])
        _one_life(kept, draw, None if life % 6 == 0 else rare, died_at)
        if life % 8 == 0:
            _finish(kept)
            kept = _kept(tmp_path / f"t{life}", kind, life)
    _finish(kept)


def _kept(place: Path, kind: str, seed: int) -> Kept:
    kept = Kept(place, kind, seed=seed)
    kept.generations(1)
    kept.table.compact()
    return kept


def _finish(kept: Kept) -> None:
    kept.table.compact()
    assert kept.plain() == kept.expected
    assert kept.shown() == kept.expected


def _one_life(kept: Kept, draw: random.Random, point: str | None, died_at: Counter[str]) -> None:
    """Write, then let a child maintain the table and die, while the writer lives; compare everything afterwards."""
    with kept.table.writer(compaction=None) as writer:
        for _ in range(draw.randint(1, 3)):
            kept.write(writer)
            writer.flush()
        kept.write(writer)  # not flushed: in the log and in memory only
        memory_bytes = draw.choice((1, 1 << 20))
        child = start(maintain, kept.uri, point, 1 if point is None else draw.choice((1, 1, 2)), memory_bytes)
        if point is None:
            child.receive(10.0)
            child.receive(draw.random() * 0.1)
            child.kill()
        failure = _hear(child)
        if child.wait(30.0) == KILLED:
            died_at[point or "anywhere"] += 1
        assert failure is None, failure
        assert kept.shown() == kept.expected
        kept.write(writer)
        report = kept.table.verify()
        assert report.ok, report.problems
    assert kept.shown() == kept.expected


def _hear(child: object) -> str | None:
    failure = None
    while True:
        try:
            message = child.receive(30.0)  # type: ignore[attr-defined]
        except EOFError:
            return failure
        if message is None:
            return "nothing was heard for 30 seconds"
        if message[0] == "failed":
            failure = message[1]


class _Forgetful(WrappedStore):
    """The first create below `prefix` is answered with "exists already".

    It took effect, and a retry below us hid the answer; or not, and two requests were in each other's way.
    """

    prefix = ""
    takes_effect = True

    def around(self, kind: str, call: Callable[..., Any], path: str, *rest: Any, **options: Any) -> Any:
        if kind != "put_new" or not self.prefix or not path.startswith(self.prefix):
            return call(path, *rest, **options)
        self.prefix = ""
        if self.takes_effect:
            call(path, *rest, **options)
        raise ObjectExistsError(path)


@pytest.mark.parametrize("takes_effect", [True, False])
@pytest.mark.parametrize("prefix", ["_transactions/", "_deletions/", "_versions/"])
def test_a_file_that_exists_already_does_not_fail_a_compaction(tmp_path: Path, prefix: str, takes_effect: bool) -> None:
    uri = str(tmp_path / "t")
    rows = pa.table({"id": [1, 2], "value": [1, 1]})
    table = mw.create_table(uri, rows, primary_key="id", sharding=mw.Unsharded())
    with table.writer() as writer:
        writer.put(pa.table({"id": [2, 3], "value": [2, 2]}))
    stores: list[_Forgetful] = []

    def wrap(store: Any) -> Any:
        stores.append(_Forgetful(store))
        return stores[0]

    location = resolve(uri, wrap=wrap)
    newest = NewestBase(BaseTable.need(location))
    stores[0].prefix, stores[0].takes_effect = prefix, takes_effect
    Compactor(location, newest).run()
    assert stores[0].prefix == ""
    assert table.scan().to_table().sort_by("id").to_pydict() == {"id": [1, 2, 3], "value": [1, 2, 2]}
