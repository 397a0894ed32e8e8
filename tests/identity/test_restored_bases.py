"""A base table that is restored to a version before a compaction: reads raise, and there are two remedies."""

from __future__ import annotations

import shutil
from collections.abc import Callable
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
from lance_memwal.write.once import OnceAppender
from tests.harness.points import run_once_at
from tests.kit.identity import SCHEMA, in_another_process, make, overwrite, row, shown

SHARD = mw.shard_id_for(mw.Unsharded())


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
        with pytest.raises(mw.TableReplacedError, match=r"restore a later version.*keep_base"):
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


def test_verify_and_gc_name_the_remedies(tmp_path: Path) -> None:
    table = _restored(str(tmp_path / "t"))
    (problem,) = table.verify().problems
    assert problem.invariant == "V-7"
    assert "restore a later version" in problem.remedy
    assert "keep_base" in problem.remedy
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
@pytest.mark.parametrize("before", ["a compaction", "the index", "the index, append-only"])
def test_keep_base_accepts_the_loss(tmp_path: Path, before: str) -> None:
    uri = str(tmp_path / "t")
    compacted = before == "a compaction"
    table = _restored(uri) if compacted else _restored_to_before_the_index(uri, keyed=before == "the index")
    version, shards = lance.dataset(uri).version, table.shards()
    planned = table.repair(restored="keep_base")
    actions = 1 if compacted else 2
    assert [action.done for action in planned.actions] == [False] * actions
    assert planned.problems
    assert (lance.dataset(uri).version, table.shards()) == (version, shards)  # a dry run writes nothing
    done = table.repair(restored="keep_base", dry_run=False)
    assert [action.done for action in done.actions] == [True] * actions
    assert done.problems == []
    assert mw.open_table(uri).repair(restored="keep_base", dry_run=False).actions == ()
    _works_again(uri, [1, 2, 5] if compacted else [1, 3])


@pytest.mark.parametrize("index", [True, False])
def test_restoring_a_later_version_returns_all_rows(tmp_path: Path, index: bool) -> None:
    uri = str(tmp_path / "t")
    if index:
        _restored(uri)
    else:
        _restored_to_before_the_index(uri)
    latest = max(int(version["version"]) for version in lance.dataset(uri).versions()[:-1])
    lance.dataset(uri, version=latest).restore()
    _works_again(uri, [1, 2, 3, 4, 5] if index else [1, 2, 3])


def test_keep_base_repairs_an_append_only_table(tmp_path: Path) -> None:
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
    table.repair(restored="keep_base", dry_run=False)
    assert table.count_rows() == 2
    table.compact()
    assert table.count_rows() == 2


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
    table.repair(restored="keep_base", dry_run=False)
    assert shown(table) == [1, 2]


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


def test_the_command_line_accepts_the_loss(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    _restored(uri)
    assert CliRunner().invoke(app, ["repair", uri]).exit_code == 1
    planned = CliRunner().invoke(app, ["repair", uri, "--restored", "keep_base"])
    assert "run again with --apply" in planned.output
    assert CliRunner().invoke(app, ["repair", uri, "--restored", "keep_base", "--apply"]).exit_code == 0
    assert _ids(uri) == [1, 2, 5]


@pytest.mark.parametrize("value", ["both", "bring_back"])
def test_an_unknown_value_of_restored_is_refused(tmp_path: Path, value: str) -> None:
    table = _restored(str(tmp_path / "t"))
    with pytest.raises(mw.InvalidInputError, match="keep_base"):
        table.repair(restored=value)  # type: ignore[arg-type]


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


def test_without_a_decision_the_index_is_not_brought_back_over_missing_rows(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    broken = _restored_to_before_the_index(uri)
    report = broken.repair(dry_run=False)
    assert [action.done for action in report.actions] == [False]
    assert "restore a later version" in report.actions[0].what
    assert "keep_base" in report.actions[0].what
    assert "restored=" in next(p.remedy for p in report.problems if p.invariant == "V-11")
    with pytest.raises(mw.InvalidInputError):
        mw.open_table(uri)


def test_a_restore_before_anything_was_compacted_needs_no_decision(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    _generation(make(uri, 1), 2)
    lance.dataset(uri, version=1).restore()
    assert [a.done for a in mw.open_table(uri, for_repair=True).repair(dry_run=False).actions] == [True]
    assert _ids(uri) == [1, 2]


@pytest.mark.parametrize("way", [None, "keep_base"])
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


@pytest.mark.parametrize("way", [None, "keep_base"])
def test_compacted_rows_do_not_return_to_an_overwritten_base(tmp_path: Path, way: str | None) -> None:
    uri = str(tmp_path / "t")
    table = make(uri, 1)
    _generation(table, 2)
    table.compact()
    _generation(table, 3)
    overwrite(uri)
    report = mw.open_table(uri, for_repair=True).repair(dry_run=False, restored=way)  # type: ignore[arg-type]
    assert {action.done for action in report.actions} == {True}
    assert _ids(uri) == [3, 9]


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
    with pytest.raises(mw.TableReplacedError, match=r"restore a later version.*keep_base"):
        _ids(uri)
    (problem,) = mw.open_table(uri).verify().problems
    assert (problem.invariant, "keep_base" in problem.remedy) == ("V-7", True)
    mw.open_table(uri).repair(restored="keep_base", dry_run=False)
    _works_again(uri, [1, 3])


def test_verify_names_the_way_out_even_where_nothing_proves_a_restore(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    _newest_removed(uri)
    shutil.rmtree(Path(uri) / "_transactions")
    (problem,) = mw.open_table(uri).verify().problems
    assert (problem.invariant, "keep_base" in problem.remedy) == ("V-7", True)


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


COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])


def put_and_compact(table: mw.Table, *keys: int) -> None:
    for key in keys:
        with table.writer(compaction=None) as writer:
            writer.put([{"id": key, "v": "x"}])
    table.compact()


@pytest.fixture(params=["older", "none"])
def restored(tmp_path: Path, request: pytest.FixtureRequest) -> mw.Table:
    """A copy whose log is that of an earlier moment than its base table, or is not there."""
    table = mw.create_table(str(tmp_path / "t"), COLUMNS, primary_key="id", writer_defaults={"fsync": False})
    put_and_compact(table, 1, 2)
    if request.param == "older":
        shutil.copytree(tmp_path / "t" / "_mem_wal", tmp_path / "c" / "_mem_wal")
    put_and_compact(table, 3, 4)
    shutil.copytree(tmp_path / "t", tmp_path / "c", ignore=shutil.ignore_patterns("_mem_wal"), dirs_exist_ok=True)
    return mw.open_table(str(tmp_path / "c"))


def test_a_writer_is_refused_and_reads_go_on(restored: mw.Table) -> None:
    assert restored.count_rows() == 4
    with restored.writer() as writer, pytest.raises(mw.TableReplacedError, match="older state than the base table"):
        writer.put([{"id": 5, "v": "lost"}])
    with pytest.raises(mw.TableReplacedError):
        restored.shard_writer()
    assert restored.count_rows() == 4


def test_a_sink_is_refused(restored: mw.Table) -> None:
    (shard,) = restored.details().compacted
    with pytest.raises(mw.TableReplacedError):
        OnceAppender(restored.uri).claim(shard)
