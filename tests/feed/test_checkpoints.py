"""Checkpoints: what one needs stays, whatever collection and clean-up do; without one there is an error, never a wrong
answer.
"""

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import crash_points
from lance_memwal.feed.checkpoints import create_checkpoint, drop_checkpoint
from lance_memwal.lance.base import BaseTable
from lance_memwal.log.shards import Floor
from lance_memwal.read.snapshot import SnapshotShard
from lance_memwal.store import paths
from lance_memwal.store.location import resolve
from lance_memwal.table import newest_base
from lance_memwal.testing.clocks import SkippingClock
from lance_memwal.upkeep.gc import Collector
from lance_memwal.upkeep.pins import read_pins
from tests.kit.tables import nothing_kept

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
SHARD = mw.shard_id_for(mw.Unsharded())
HOUR = timedelta(hours=1)
NOW = timedelta(0)


@pytest.fixture
def table(tmp_path: Path) -> mw.Table:
    """Row 1 in the base table, 2 in an SSTable, 3 in the log alone."""
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", writer_defaults={"fsync": False})
    put(table, [1])
    table.compact()
    put(table, [2])
    put(table, [3], flush=False)
    return table


def put(table: mw.Table, numbers: list[int], value: str = "old", *, flush: bool = True) -> None:
    writer = table.shard_writer(SHARD)
    writer.put(pa.table({"id": numbers, "v": [value] * len(numbers)}, schema=SCHEMA))
    writer.close() if flush else writer.abort()


@contextmanager
def watched(handler: Callable[[str], None]) -> Iterator[None]:
    crash_points.install(handler)
    try:
        yield
    finally:
        crash_points.install(None)


def rows(view: mw.Table | mw.TableView) -> dict[int, str]:
    found = view.scan().to_table()
    return dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))


def live_on(table: mw.Table, times: int = 4) -> None:
    """Everything that a moment needs is superseded, compacted, trimmed and collected."""
    for number in range(times):
        put(table, [1, 2, 3, 10 + number], "new")
        table.compact()
    table.maintain(versions=NOW, grace_seconds=0)


THEN = {1: "old", 2: "old", 3: "old"}


def test_a_checkpoint_keeps_its_moment(table: mw.Table) -> None:
    made = table.checkpoints.create("before-import")
    live_on(table)
    assert rows(table.at("before-import")) == THEN
    assert rows(table.at(made.snapshot)) == THEN
    assert table.at("before-import").get(3) == {"id": 3, "v": "old"}
    assert [checkpoint.name for checkpoint in table.checkpoints.list()] == ["before-import"]
    assert table.verify().ok


def test_what_a_dropped_checkpoint_kept_goes(table: mw.Table) -> None:
    snapshot = table.checkpoints.create("a").snapshot
    live_on(table)
    kept = table.gc(grace_seconds=0).objects_left
    table.checkpoints.drop("a")
    assert table.checkpoints.list() == []
    table.maintain(versions=NOW, grace_seconds=0)
    assert table.gc(grace_seconds=0).objects_left < kept
    assert lance.dataset(table.uri).tags.list() == {}
    with pytest.raises(mw.InvalidInputError, match="no checkpoint 'a'"):
        table.at("a")
    with pytest.raises(mw.CollectedError):
        table.at(snapshot).count_rows()
    assert table.checkpoints.create("a").snapshot == table.snapshot()


def test_a_snapshot_without_a_name_lives_for_the_grace_period(table: mw.Table) -> None:
    snapshot = table.snapshot()
    for number in range(4):
        put(table, [1, 2, 3, 10 + number], "new")
        table.compact()
    table.maintain(versions=HOUR, grace_seconds=3600)
    assert rows(table.at(snapshot)) == THEN
    table.gc(grace_seconds=0)
    with pytest.raises(mw.CollectedError):
        table.at(snapshot)


def test_several_checkpoints_keep_what_each_needs(table: mw.Table) -> None:
    moments = {}
    for number in range(5):
        moments[f"c{number}"] = rows(table)
        table.checkpoints.create(f"c{number}")
        put(table, [1, 20 + number], f"v{number}", flush=number % 2 == 0)
        table.compact()
        table.gc(grace_seconds=0)
    live_on(table)
    for name, then in moments.items():
        assert rows(table.at(name)) == then
    for name in ("c1", "c3"):
        table.checkpoints.drop(name)
    live_on(table)
    assert {name: rows(table.at(name)) for name in ("c0", "c2", "c4")} == {n: moments[n] for n in ("c0", "c2", "c4")}


def test_a_part_of_a_checkpoint_is_kept_with_it(table: mw.Table) -> None:
    earlier = table.snapshot()
    put(table, [4], flush=False)
    table.checkpoints.create("later")
    live_on(table)
    later = table.at("later").snapshot
    same_manifest = {s.shard_id: s.manifest_version for s in earlier.shards} == {
        s.shard_id: s.manifest_version for s in later.shards
    }
    if same_manifest:
        assert rows(table.at(earlier)) == THEN
    else:
        with pytest.raises(mw.CollectedError):
            table.at(earlier)


def test_lances_own_clean_up_leaves_a_checkpoint(table: mw.Table) -> None:
    table.checkpoints.create("a")
    put(table, [1], "new")
    table.compact()
    with pytest.raises(OSError, match="tagged"):
        lance.dataset(table.uri).cleanup_old_versions(older_than=NOW, delete_unverified=True)
    lance.dataset(table.uri).cleanup_old_versions(
        older_than=NOW, delete_unverified=True, error_if_tagged_old_versions=False
    )
    assert rows(table.at("a")) == THEN


def test_a_checkpoint_whose_version_somebody_removed_says_so(table: mw.Table) -> None:
    table.checkpoints.create("a")
    lance.dataset(table.uri).tags.delete("memwal-a")
    put(table, [1], "new")
    table.compact()
    lance.dataset(table.uri).cleanup_old_versions(older_than=NOW, delete_unverified=True)
    with pytest.raises(mw.CollectedError):
        table.at("a")
    table.gc(grace_seconds=0)
    assert table.count_rows() == 3


# -------------------------------------------------------------------------------------------------------------- names


def test_a_name_is_taken_until_it_is_dropped(table: mw.Table) -> None:
    table.checkpoints.create("a")
    with pytest.raises(mw.InvalidInputError, match="already"):
        table.checkpoints.create("a")
    table.checkpoints.drop("a")
    table.checkpoints.create("a")
    with pytest.raises(mw.InvalidInputError, match="known: a"):
        table.checkpoints.drop("b")


_REFUSED = ["", "a/b", "..", "a..b", "a.", "a.lock", "12", "2026-01-01", "20260101T10", "memwal1:x", 7]
_WORDS = ["latest", "earliest", "snapshot", "now", "Latest", "NOW"]


@pytest.mark.parametrize("name", [*_REFUSED, *_WORDS])
def test_a_name_with_another_meaning_is_refused(table: mw.Table, name: str) -> None:
    with pytest.raises(mw.InvalidInputError):
        table.checkpoints.create(name)
    assert table.checkpoints.list() == []


@pytest.mark.parametrize(
    "place", ["Größe", "a#b", "100%", "x%20y", "q?v=1", "日本/t", "[x]^`|<>/t#", "with space/it's", 'quo"te\\~']
)
def test_a_checkpoint_leaves_nothing_next_to_the_table(tmp_path: Path, place: str) -> None:
    table = mw.create_table(str(tmp_path / place), SCHEMA, primary_key="id", writer_defaults={"fsync": False})
    put(table, [1])
    table.checkpoints.create("first")
    table.dataset.tags.delete("memwal-first")
    table.maintain(grace_seconds=0)  # sets the tag again
    assert "memwal-first" in table.dataset.tags.list()
    put(table, [1], "new")
    table.compact()
    assert rows(table.at("first")) == {1: "old"}
    table.checkpoints.drop("first")
    assert table.dataset.tags.list() == {}
    top, *below = Path(place).parts
    assert [path.name for path in tmp_path.iterdir()] == [top]
    assert [path.name for path in (tmp_path / top).iterdir()] == below or not below


@pytest.mark.parametrize("lifetime", [NOW, timedelta(seconds=-1), 5])
def test_a_lifetime_is_a_span_of_time(table: mw.Table, lifetime: timedelta) -> None:
    with pytest.raises(mw.InvalidInputError):
        table.checkpoints.create("a", lifetime=lifetime)


def test_a_checkpoint_of_a_table_that_was_here_before_is_none(table: mw.Table) -> None:
    table.checkpoints.create("a")
    kept = Path(table.uri).with_name("kept")
    shutil.move(Path(table.uri) / paths.CHECKPOINTS_DIR, kept)
    shutil.rmtree(table.uri)
    anew = mw.create_table(table.uri, SCHEMA, primary_key="id")
    shutil.move(kept, Path(table.uri) / paths.CHECKPOINTS_DIR)
    assert anew.checkpoints.list() == []
    with pytest.raises(mw.InvalidInputError):
        anew.at("a")
    anew.checkpoints.create("a")
    assert rows(anew.at("a")) == {}


# ------------------------------------------------------------------------------------------------------------- expiry


def test_a_checkpoint_ends_with_the_first_collection_after_its_lifetime(table: mw.Table) -> None:
    clock = SkippingClock()
    base = BaseTable.need(resolve(table.uri))
    made = create_checkpoint(lambda: base, table.snapshot, "a", HOUR, clock)
    assert made.expires is not None
    assert made.expires - made.created == HOUR
    put(table, [1, 2, 3], "new")
    table.compact()
    clock.sleep(3500)
    Collector(table.location, lambda: newest_base(table), clock).run(grace_seconds=0)
    assert rows(table.at("a")) == THEN
    clock.sleep(200)
    Collector(table.location, lambda: newest_base(table), clock).run(grace_seconds=0)
    assert table.checkpoints.list() == []
    assert lance.dataset(table.uri).tags.list() == {}
    with pytest.raises(mw.CollectedError, match="lifetime"):
        table.changes(start="a")
    with pytest.raises(mw.CollectedError, match="lifetime"):
        table.at("a")
    table.checkpoints.create("a")
    assert rows(table.at("a")) == {1: "new", 2: "new", 3: "new"}


# ---------------------------------------------------------------------------------------------------- crashes and races


def test_a_crash_between_record_and_tag_loses_nothing(table: mw.Table) -> None:
    class Crash(BaseException):
        pass

    def crash(point: str) -> None:
        if point == "checkpoint.after_record":
            raise Crash

    with watched(crash), pytest.raises(Crash):
        table.checkpoints.create("a")
    assert lance.dataset(table.uri).tags.list() == {}
    put(table, [1], "new")
    table.compact()
    table.gc(grace_seconds=0)
    assert set(lance.dataset(table.uri).tags.list()) == {"memwal-a"}, "collection puts the tag where it belongs"
    live_on(table)
    assert rows(table.at("a")) == THEN


def test_a_tag_that_was_left_over_goes(table: mw.Table) -> None:
    lance.dataset(table.uri).tags.create("memwal-gone", 1)
    lance.dataset(table.uri).tags.create("mine", 1)
    table.gc(grace_seconds=0)
    assert set(lance.dataset(table.uri).tags.list()) == {"mine"}


@pytest.mark.parametrize(
    "point",
    ["gc.proposed", "gc.announced", "gc.before_floor", "gc.after_floor", "gc.before_entry", "gc.before_sstable"],
)
def test_a_checkpoint_that_is_made_while_collection_runs_is_whole(table: mw.Table, point: str) -> None:
    """At any moment of a collection; the snapshot may be from before it began."""
    early = table.snapshot()
    taken: list[mw.Snapshot] = []
    put(table, [1, 2, 3], "new")
    table.compact()
    now = rows(table)

    def take() -> mw.Snapshot:
        taken.append(early if not taken else table.snapshot())
        return taken[-1]

    reached: list[mw.Checkpoint] = []

    def create(at: str) -> None:
        if at == point and not reached:
            reached.append(create_checkpoint(lambda: newest_base(table), take, "a", None))

    with watched(create):
        table.gc(grace_seconds=0)
    assert reached, "the collection had nothing to do"
    live_on(table)
    assert rows(table.at("a")) == (THEN if reached[0].snapshot == early else now)
    assert (reached[0].snapshot == early) == (point == "gc.proposed")


def test_a_checkpoint_that_collection_always_outran_is_none(table: mw.Table) -> None:
    old = table.snapshot()
    live_on(table)
    with pytest.raises(mw.ConflictError, match="checkpoint 'a'"):
        create_checkpoint(lambda: newest_base(table), lambda: old, "a", None)
    assert table.checkpoints.list() == []
    assert table.verify().ok
    assert table.checkpoints.create("a").name == "a"


def test_an_object_that_came_late_into_an_emptied_slot_is_no_answer(table: mw.Table) -> None:
    snapshot = table.snapshot()
    (shard,) = snapshot.shards
    saved = {p: table.location.store.get(p) for p in _needed(shard)}
    put(table, [1, 2, 3], "new")
    for number in range(4):
        put(table, [10 + number], "new")
    table.compact()
    table.gc(grace_seconds=0)
    assert Floor(table.location, SHARD).manifest() > shard.manifest_version
    for path, data in saved.items():  # as a writer that slept through it might
        if path not in {item.path for item in table.location.store.list(paths.shard_dir(SHARD))}:
            table.location.store.put(path, data)
    with pytest.raises(mw.CollectedError):
        table.at(snapshot)


def _needed(shard: SnapshotShard) -> list[str]:
    entries = [paths.wal_entry_path(SHARD, position) for position in range(shard.cursor + 1, shard.tip + 1)]
    return [paths.manifest_path(SHARD, shard.manifest_version), *entries]


def test_two_who_create_one_name_do_not_both_win(table: mw.Table) -> None:
    outcome: list[str] = []

    def take() -> mw.Snapshot:
        if not outcome:
            outcome.append("first")
            table.checkpoints.create("a")
        return table.snapshot()

    with pytest.raises(mw.ConflictError):
        create_checkpoint(lambda: newest_base(table), take, "a", None)
    assert [checkpoint.name for checkpoint in table.checkpoints.list()] == ["a"]


def test_verify_names_a_checkpoint_of_which_something_is_missing(table: mw.Table) -> None:
    table.checkpoints.create("a")
    live_on(table)
    assert table.verify().ok
    assert table.gc(grace_seconds=0).pinned > 0
    (kept,) = read_pins(newest_base(table)).of(SHARD).sstables
    shutil.rmtree(Path(table.uri) / paths.sstable_dir(SHARD, kept))
    with nothing_kept():
        report = table.verify()
        with pytest.raises(mw.CollectedError):
            table.at("a").count_rows()
    assert [(problem.invariant, "'a'" in problem.what) for problem in report.problems] == [("V-13", True)]
    table.checkpoints.drop("a")
    assert table.verify().ok


@pytest.mark.parametrize("text", ['{"format": 1}', "{", '{"format": 1, "state": "active", "snapshot": "memwal1:x"}'])
def test_a_record_that_is_damaged_stops_collection_until_it_is_dropped(table: mw.Table, text: str) -> None:
    table.checkpoints.create("a")
    (Path(table.uri) / paths.CHECKPOINTS_DIR / "a" / "1.json").write_text(text)
    put(table, [1], "new")
    table.compact()
    before = {item.path for item in table.location.store.list(paths.MEM_WAL_DIR)}
    with pytest.raises(mw.CorruptDataError, match=r"checkpoints/a/1\.json"):
        table.gc(grace_seconds=0)
    assert before <= {item.path for item in table.location.store.list(paths.MEM_WAL_DIR)}
    assert [problem.invariant for problem in table.verify().problems] == ["V-13"]
    table.checkpoints.drop("a")
    assert table.verify().ok
    assert table.gc(grace_seconds=0).objects


def test_stray_files_are_no_checkpoints(table: mw.Table) -> None:
    table.checkpoints.create("a")
    (Path(table.uri) / paths.CHECKPOINTS_DIR / ".DS_Store").write_bytes(b"x")
    (Path(table.uri) / paths.CHECKPOINTS_DIR / "a" / "notes.txt").write_bytes(b"x")
    (Path(table.uri) / paths.CHECKPOINTS_DIR / "empty").mkdir()
    (Path(table.uri) / paths.CHECKPOINTS_DIR / "file.txt").write_bytes(b"x")
    live_on(table)
    assert [checkpoint.name for checkpoint in table.checkpoints.list()] == ["a"]
    assert rows(table.at("a")) == THEN
    assert table.verify().ok


def test_pins_name_what_a_checkpoint_needs(table: mw.Table) -> None:
    assert read_pins(newest_base(table)).shards == {}
    snapshot = table.checkpoints.create("a").snapshot
    pins = read_pins(newest_base(table))
    (shard,) = snapshot.shards
    kept = pins.of(SHARD)
    assert snapshot.base_version in pins.base_versions
    assert kept.oldest_manifest == shard.manifest_version
    assert len(kept.sstables) == 1, "of the two generations one is in the base table"
    assert [kept.keeps_entry(p) for p in (shard.cursor, shard.cursor + 1, shard.tip, shard.tip + 1)] == [
        False,
        True,
        True,
        False,
    ]
    drop_checkpoint(newest_base(table), "a")
    assert read_pins(newest_base(table)).shards == {}


def test_collection_goes_on_while_another_process_drops_checkpoints(table: mw.Table) -> None:
    """Lance lists tags and then reads each: one that is gone by then was an error of the collection."""
    names = [f"tag-{number}" for number in range(4)]
    over = threading.Event()

    def come_and_go() -> None:
        tags = lance.dataset(table.uri).tags
        while not over.is_set():
            for name in names:
                tags.create(name, 1)
            for name in names:
                tags.delete(name)
            over.wait(0.005)

    other = threading.Thread(target=come_and_go)
    other.start()
    try:
        for _ in range(60):
            table.gc()
    finally:
        over.set()
        other.join()


def test_a_name_that_is_not_there_cannot_be_dropped_beside_a_damaged_record(table: mw.Table) -> None:
    table.checkpoints.create("a")
    (Path(table.uri) / paths.CHECKPOINTS_DIR / "a" / "1.json").write_text("{")
    with pytest.raises((mw.InvalidInputError, mw.CorruptDataError)):
        table.checkpoints.drop("b")
    assert not (Path(table.uri) / paths.CHECKPOINTS_DIR / "b").exists()


# An entry that is there and damaged is told of as damage, below the cursor, too: nobody is sent away to load again.

_SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.int64())])
_SHARD = mw.shard_id_for(mw.Unsharded())


def counted_rows(*keys: int) -> list[dict[str, int]]:
    return [{"id": key, "value": key} for key in keys]


def cut(table: Path, position: int) -> None:
    entry = table / paths.wal_entry_path(_SHARD, position)
    entry.write_bytes(entry.read_bytes()[:-40])


def test_a_checkpoint_whose_entry_is_damaged_was_not_collected(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), _SCHEMA, primary_key="id")
    with table.writer(compaction=None) as writer:
        writer.put(counted_rows(1))
        table.checkpoints.create("then")
        writer.flush()
        cut(tmp_path / "t", 1)
        with pytest.raises(mw.CorruptDataError, match="damaged"):
            table.at("then").scan().to_table()
