"""A base table that is restored to before a compaction: reads say so, and there are two honest ways out."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance.mem_wal import CompactedSsTable
from typer.testing import CliRunner

import lance_memwal as mw
from lance_memwal import crash_points
from lance_memwal.cli import app
from lance_memwal.testing.clocks import SkippingClock
from tests.harness.points import run_once_at
from tests.kit.identity import SCHEMA, in_another_process, make, overwrite, row, shown

SHARD = mw.shard_id_for(mw.Unsharded())


@pytest.fixture(autouse=True)
def _no_hook_stays() -> Iterator[None]:
    yield
    crash_points.install(None)


def _generation(table: mw.Table, *ids: int) -> None:
    with table.shard_writer() as writer:
        for number in ids:
            writer.put(row(number))


def _restored(uri: str, *, fresh: bool = True) -> mw.Table:
    """Base rows 1 and 2; generations 1 and 2 (rows 3 and 4) compacted and given up; maybe row 5 in generation 3."""
    table = make(uri, 1, 2)
    before = lance.dataset(uri).version
    for number in (3, 4):
        _generation(table, number)
        table.compact()
    if fresh:
        _generation(table, 5)
    lance.dataset(uri, version=before).restore()
    return table


READS: list[Callable[[mw.Table], object]] = [
    shown,
    lambda table: table.count_rows(),
    lambda table: table.get(3),
    lambda table: table.lookup([1, 3]),
    lambda table: table.scan(consistency="flushed").to_table(),
    lambda table: table.scan(filter="id = 4").to_table(),
    lambda table: table.compact(),
]


@pytest.mark.repro("reads-06", "writer-17")
@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("read", READS)
def test_no_read_silently_misses_rows(tmp_path: Path, read: Callable[[mw.Table], object], fresh: bool) -> None:
    table = _restored(str(tmp_path / "t"), fresh=fresh)
    for handle in (table, mw.open_table(table.uri)):
        with pytest.raises(mw.TableReplacedError, match=r"keep_base.*bring_back"):
            read(handle)


def test_writers_stop_because_a_mark_went_back(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table, clock = make(uri, 1), SkippingClock()
    before = lance.dataset(uri).version
    writer = mw.ShardWriter.open(uri, clock=clock, shard_id=SHARD)
    writer.put(row(2))
    writer.force_seal_active()
    writer.wait_for_flush_drain()
    table.compact()
    clock.sleep(61)
    writer.put(row(3))  # it has seen the mark
    lance.dataset(uri, version=before).restore()
    clock.sleep(61)
    with pytest.raises(mw.TableReplacedError, match="older state"):
        writer.put(row(4))
    with pytest.raises(mw.TableReplacedError, match="older state"):
        writer.close()


def test_verify_and_gc_name_both_ways_out(tmp_path: Path) -> None:
    table = _restored(str(tmp_path / "t"))
    (problem,) = table.verify().problems
    assert problem.invariant == "V-7"
    assert "keep_base" in problem.remedy
    assert "bring_back" in problem.remedy
    assert list(table.gc(grace_seconds=0).refused) == [SHARD]


def _works_again(uri: str, expected: list[int]) -> None:
    table = mw.open_table(uri)
    assert shown(table) == expected
    assert table.verify().problems == []
    _generation(table, 6)
    table.compact()
    report = table.gc(grace_seconds=0)
    assert report.refused == {}
    assert shown(table) == sorted([*expected, 6])
    assert table.verify().problems == []
    probe = f"import lance_memwal as mw; print(sorted(mw.open_table({uri!r}).scan().to_table()['id'].to_pylist()))"
    assert in_another_process(probe).strip() == str(sorted([*expected, 6]))


@pytest.mark.repro("reads-06", "writer-17")
@pytest.mark.parametrize(("way", "expected"), [("keep_base", [1, 2, 5]), ("bring_back", [1, 2, 3, 4, 5])])
def test_after_either_way_everything_works_again(tmp_path: Path, way: str, expected: list[int]) -> None:
    uri = str(tmp_path / "t")
    table = _restored(uri)
    version, shards = lance.dataset(uri).version, table.shards()
    planned = table.repair(restored=way)  # type: ignore[arg-type]
    assert [action.done for action in planned.actions] == [False]
    assert planned.problems
    assert (lance.dataset(uri).version, table.shards()) == (version, shards)  # a dry run writes nothing
    done = table.repair(restored=way, dry_run=False)  # type: ignore[arg-type]
    assert [action.done for action in done.actions] == [True]
    assert done.problems == []
    assert table.repair(restored=way, dry_run=False).actions == ()  # type: ignore[arg-type]
    _works_again(uri, expected)


@pytest.mark.parametrize(("way", "expected"), [("keep_base", 2), ("bring_back", 4)])
def test_an_append_only_table_is_repaired_too(tmp_path: Path, way: str, expected: int) -> None:
    uri = str(tmp_path / "t")
    columns = pa.schema([("id", pa.int64()), ("v", pa.string())])
    data = pa.table({"id": [1, 2], "v": ["a", "b"]}, schema=columns)
    table = mw.create_table(uri, data, sharding=mw.Unsharded(), writer_defaults={"fsync": False})
    before = lance.dataset(uri).version
    _generation(table, 3, 4)
    table.compact()
    lance.dataset(uri, version=before).restore()
    with pytest.raises(mw.TableReplacedError):
        table.count_rows()
    table.repair(restored=way, dry_run=False)  # type: ignore[arg-type]
    assert table.count_rows() == expected
    table.compact()
    assert table.count_rows() == expected


def test_a_restore_to_between_two_compactions_gives_up_the_later_one_only(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = make(uri, 1)
    _generation(table, 2)
    table.compact()
    before = lance.dataset(uri).version
    _generation(table, 3)
    table.compact()
    lance.dataset(uri, version=before).restore()
    with pytest.raises(mw.TableReplacedError, match="generation 2 "):
        shown(table)
    table.repair(restored="bring_back", dry_run=False)
    assert shown(table) == [1, 2, 3]


def test_a_generation_that_is_gone_cannot_be_brought_back(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = _restored(uri)
    manifests = mw.ShardManifestStore(uri, SHARD)
    first = next(m.sstables[0] for v in manifests.list_versions() if (m := manifests.read_version(v)).sstables)
    shutil.rmtree(Path(uri) / "_mem_wal" / SHARD / first.path)
    report = table.repair(restored="bring_back", dry_run=False)
    assert [action.done for action in report.actions] == [False]
    assert "cannot be brought back" in report.actions[0].what
    assert report.problems
    table.repair(restored="keep_base", dry_run=False)
    assert shown(table) == [1, 2, 5]


def test_the_manifest_that_listed_a_generation_must_be_there_to_bring_it_back(tmp_path: Path) -> None:
    """A directory alone may be an attempt that was never published."""
    uri = str(tmp_path / "t")
    table = _restored(uri)
    manifests = mw.ShardManifestStore(uri, SHARD)
    for version in manifests.list_versions()[:-1]:
        (Path(uri) / "_mem_wal" / SHARD / "manifest" / f"{version:064b}"[::-1]).with_suffix(".binpb").unlink()
    report = table.repair(restored="bring_back", dry_run=False)
    assert {action.done for action in report.actions} == {False}
    assert "no retained manifest" in report.actions[0].what


def test_old_versions_that_are_cleaned_up_do_not_hide_it(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = _restored(uri)
    lance.dataset(uri).cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    with pytest.raises(mw.TableReplacedError):
        shown(mw.open_table(uri))
    table.repair(restored="keep_base", dry_run=False)
    assert shown(table) == [1, 2, 5]


def test_a_restore_that_gives_up_nothing_is_no_alarm(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = make(uri, 1)
    _generation(table, 2)
    table.compact()
    before = lance.dataset(uri).version
    lance.dataset(uri).delete("id = 1")
    _generation(table, 3)
    assert shown(table) == [2, 3]
    lance.dataset(uri, version=before).restore()
    assert shown(table) == [1, 2, 3]
    table.compact()
    assert shown(table) == [1, 2, 3]
    assert table.verify().problems == []


def test_a_generation_that_is_still_listed_is_folded_again(tmp_path: Path) -> None:
    """The compactor died between its commit and its trim: nothing is missing, whatever the base is restored to."""
    uri = str(tmp_path / "t")
    table = make(uri, 1)
    before = lance.dataset(uri).version
    _generation(table, 2)

    class DiedError(Exception):
        pass

    def die() -> None:
        raise DiedError

    run_once_at("compact.before_trim", die)
    with pytest.raises(DiedError):
        table.compact()
    crash_points.install(None)
    lance.dataset(uri, version=before).restore()
    assert shown(table) == [1, 2]
    table.compact()
    assert shown(table) == [1, 2]


def _drain(uri: str) -> None:
    def update(latest: mw.ShardManifest) -> mw.ShardManifest:
        return replace(latest, version=latest.version + 1, sstables=())

    mw.ShardManifestStore(uri, SHARD).commit_maintenance(update)


@pytest.mark.parametrize("marks", [True, False])
def test_a_list_that_another_compactor_emptied_is_no_alarm(tmp_path: Path, marks: bool) -> None:
    uri = str(tmp_path / "t")
    table = make(uri, 1)
    _generation(table, 2)
    rows = pa.table({"id": [2], "v": ["x"]}, schema=SCHEMA)
    builder = lance.dataset(uri).merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    if marks:
        builder = builder.mark_sstables_as_compacted([CompactedSsTable(SHARD, 1)])
    builder.execute(rows)
    _drain(uri)
    lance.dataset(uri).create_scalar_index("v", "BTREE")
    lance.dataset(uri).optimize.compact_files()
    assert shown(table) == [1, 2]
    _generation(table, 3)
    assert shown(mw.open_table(uri)) == [1, 2, 3]


@pytest.mark.parametrize("point", ["compact.before_manifest", "compact.after_commit", "compact.after_trim"])
def test_a_read_beside_a_compaction_never_takes_it_for_a_restore(tmp_path: Path, point: str) -> None:
    uri = str(tmp_path / "t")
    table = make(uri, 1)
    _generation(table, 2)
    table.compact()
    stale = mw.open_table(uri)
    assert shown(stale) == [1, 2]
    _generation(table, 3)
    seen: list[list[int]] = []
    run_once_at(point, lambda: seen.append(shown(stale)))
    table.compact()
    assert seen == [[1, 2, 3]]


def test_an_enabled_table_adopts_shards_without_missing_what_they_gave_up(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = make(uri, 1)
    _generation(table, 2)
    table.compact()
    _generation(table, 3)
    lance.dataset(uri).drop_index("__lance_mem_wal")
    again = mw.enable(uri, sharding=mw.Unsharded(), adopt_shards=True)
    assert again.details().compacted == {SHARD: 1}
    assert shown(again) == [1, 2, 3]
    again.compact()
    assert again.verify().problems == []
    assert again.gc(grace_seconds=0).refused == {}
    assert shown(again) == [1, 2, 3]


def test_the_command_line_offers_both_ways(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    _restored(uri)
    assert CliRunner().invoke(app, ["repair", uri]).exit_code == 1
    planned = CliRunner().invoke(app, ["repair", uri, "--restored", "bring_back"])
    assert "run again with --apply" in planned.output
    assert CliRunner().invoke(app, ["repair", uri, "--restored", "bring_back", "--apply"]).exit_code == 0
    assert shown(mw.open_table(uri)) == [1, 2, 3, 4, 5]


def test_another_way_is_refused(tmp_path: Path) -> None:
    table = _restored(str(tmp_path / "t"))
    with pytest.raises(mw.InvalidInputError, match="keep_base"):
        table.repair(restored="both")  # type: ignore[arg-type]


# ------------------------------------------------------------------------------- restored to before the MemWAL index


def _restored_to_before_the_index(uri: str, *, keyed: bool = True) -> mw.Table:
    """Base row 1; generation 1 (row 2) compacted and given up; row 3 in generation 2; the index is gone."""
    if keyed:
        table = make(uri, 1)
    else:
        data = pa.table({"id": [1], "v": ["a"]})
        table = mw.create_table(uri, data, sharding=mw.Unsharded(), writer_defaults={"fsync": False})
    _generation(table, 2)
    table.compact()
    _generation(table, 3)
    lance.dataset(uri, version=1).restore()
    return mw.open_table(uri, for_repair=True)


def _ids(uri: str) -> list[int]:
    return shown(mw.open_table(uri))


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize(("way", "expected"), [("keep_base", [1, 3]), ("bring_back", [1, 2, 3])])
def test_the_decision_counts_where_the_index_was_restored_away(
    tmp_path: Path, way: str, expected: list[int], keyed: bool
) -> None:
    uri = str(tmp_path / "t")
    broken = _restored_to_before_the_index(uri, keyed=keyed)
    version, shards = lance.dataset(uri).version, broken.shards()
    planned = broken.repair(restored=way)  # type: ignore[arg-type]
    assert [action.done for action in planned.actions] == [False, False]
    assert (lance.dataset(uri).version, broken.shards()) == (version, shards)
    done = broken.repair(restored=way, dry_run=False)  # type: ignore[arg-type]
    assert [action.done for action in done.actions] == [True, True]
    assert done.problems == []
    _works_again(uri, expected)


def test_without_a_decision_the_index_is_not_brought_back_over_missing_rows(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    broken = _restored_to_before_the_index(uri)
    report = broken.repair(dry_run=False)
    assert [action.done for action in report.actions] == [False]
    assert "keep_base" in report.actions[0].what
    assert "bring_back" in report.actions[0].what
    assert "restored=" in next(p.remedy for p in report.problems if p.invariant == "V-11")
    with pytest.raises(mw.InvalidInputError):
        mw.open_table(uri)


def test_what_cannot_be_brought_back_leaves_the_index_away(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    broken = _restored_to_before_the_index(uri)
    manifests = mw.ShardManifestStore(uri, SHARD)
    first = next(m.sstables[0] for v in manifests.list_versions() if (m := manifests.read_version(v)).sstables)
    shutil.rmtree(Path(uri) / "_mem_wal" / SHARD / first.path)
    report = broken.repair(restored="bring_back", dry_run=False)
    assert [action.done for action in report.actions] == [False]
    assert "cannot be brought back" in report.actions[0].what
    with pytest.raises(mw.InvalidInputError):
        mw.open_table(uri)
    broken.repair(restored="keep_base", dry_run=False)
    assert _ids(uri) == [1, 3]


def test_a_repair_that_died_after_listing_again_is_finished_by_the_next(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    broken = _restored_to_before_the_index(uri)

    class DiedError(Exception):
        pass

    def die() -> None:
        raise DiedError

    run_once_at("repair.before_index", die)
    with pytest.raises(DiedError):
        broken.repair(restored="bring_back", dry_run=False)
    crash_points.install(None)
    with pytest.raises(mw.InvalidInputError):
        mw.open_table(uri)
    broken.repair(dry_run=False)  # nothing is left to decide
    assert _ids(uri) == [1, 2, 3]


def test_a_restore_before_anything_was_compacted_needs_no_decision(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    _generation(make(uri, 1), 2)
    lance.dataset(uri, version=1).restore()
    assert [a.done for a in mw.open_table(uri, for_repair=True).repair(dry_run=False).actions] == [True]
    assert _ids(uri) == [1, 2]


@pytest.mark.parametrize("way", [None, "bring_back"])
def test_an_index_that_was_only_dropped_comes_back_with_its_marks(tmp_path: Path, way: str | None) -> None:
    uri = str(tmp_path / "t")
    table = make(uri, 1)
    _generation(table, 2)
    table.compact()
    _generation(table, 3)
    lance.dataset(uri).drop_index("__lance_mem_wal")
    dropped = lance.dataset(uri).version
    lance.dataset(uri).delete("id = 1")
    lance.dataset(uri, version=dropped).restore()
    broken = mw.open_table(uri, for_repair=True)
    assert len(broken.repair(dry_run=False, restored=way).actions) == 1  # type: ignore[arg-type]
    assert mw.open_table(uri).details().compacted[SHARD] == 1
    assert _ids(uri) == [1, 2, 3]


@pytest.mark.parametrize(("way", "expected"), [(None, [3, 9]), ("keep_base", [3, 9]), ("bring_back", [2, 3, 9])])
def test_compacted_rows_return_to_an_overwritten_base_only_if_they_are_asked_for(
    tmp_path: Path, way: str | None, expected: list[int]
) -> None:
    uri = str(tmp_path / "t")
    table = make(uri, 1)
    _generation(table, 2)
    table.compact()
    _generation(table, 3)
    overwrite(uri)
    report = mw.open_table(uri, for_repair=True).repair(dry_run=False, restored=way)  # type: ignore[arg-type]
    assert {action.done for action in report.actions} == {True}
    assert _ids(uri) == expected


def test_an_index_that_pylance_makes_after_the_restore_does_not_hide_it(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    _restored_to_before_the_index(uri)
    lance.dataset(uri).delete("id = 77")
    lance.dataset(uri).initialize_mem_wal(unsharded=True)
    with pytest.raises(mw.TableReplacedError):
        _ids(uri)


# ---------------------------------------------------------------------------------- a newest version that is removed


def _newest_removed(uri: str, *, keyed: bool = True) -> mw.Table:
    """Base row 1; generation 1 (row 2) compacted into a version that was torn and then removed; row 3 is fresh."""
    if keyed:
        table = make(uri, 1)
    else:
        data = pa.table({"id": [1], "v": ["a"]})
        table = mw.create_table(uri, data, sharding=mw.Unsharded(), writer_defaults={"fsync": False})
    _generation(table, 2)
    table.compact()
    _generation(table, 3)
    newest = min((Path(uri) / "_versions").glob("*.manifest"))
    newest.write_bytes(b"")
    (problem,) = (p for p in mw.open_table(uri, for_repair=True).verify().problems if p.invariant == "V-11")
    assert "restored=" in problem.remedy
    newest.unlink()
    return table


@pytest.mark.parametrize("keyed", [True, False])
def test_a_newest_version_that_was_removed_is_told_from_a_drained_list(tmp_path: Path, keyed: bool) -> None:
    uri = str(tmp_path / "t")
    _newest_removed(uri, keyed=keyed)
    with pytest.raises(mw.TableReplacedError, match=r"keep_base.*bring_back"):
        _ids(uri)
    (problem,) = mw.open_table(uri).verify().problems
    assert (problem.invariant, "bring_back" in problem.remedy) == ("V-7", True)
    mw.open_table(uri).repair(restored="bring_back", dry_run=False)
    _works_again(uri, [1, 2, 3])


def test_verify_names_the_way_out_even_where_nothing_proves_a_restore(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    _newest_removed(uri)
    shutil.rmtree(Path(uri) / "_transactions")
    (problem,) = mw.open_table(uri).verify().problems
    assert (problem.invariant, "bring_back" in problem.remedy) == ("V-7", True)


def test_an_attempt_at_listed_generations_is_no_alarm_beside_a_drained_list(tmp_path: Path) -> None:
    """Generation 1 was drained without a mark; a compactor of generation 2 has written its transaction and no more."""
    uri = str(tmp_path / "t")
    table = make(uri, 1)
    _generation(table, 2)
    lance.dataset(uri).insert(pa.table({"id": [2], "v": ["x"]}, schema=SCHEMA))
    _drain(uri)
    _generation(table, 3)
    builder = lance.dataset(uri).merge_insert("id").when_not_matched_insert_all()
    builder.mark_sstables_as_compacted([CompactedSsTable(SHARD, 2)]).execute(
        pa.table({"id": [3], "v": ["x"]}, schema=SCHEMA)
    )
    min((Path(uri) / "_versions").glob("*.manifest")).unlink()
    assert list((Path(uri) / "_transactions").glob(f"{lance.dataset(uri).version}-*.txn"))
    assert _ids(uri) == [1, 2, 3]
