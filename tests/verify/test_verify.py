"""Verify finds every kind of damage, says where it is, and finds none where there is none."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance.mem_wal import CompactedSsTable

import lance_memwal as mw
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.manifest_codec import encode_manifest
from lance_memwal.log.reading import list_positions
from lance_memwal.store import paths
from lance_memwal.store.location import resolve
from lance_memwal.types import ShardManifest

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
SHARD = "aa48498d-ac91-59e2-8452-69f46010ace2"


@pytest.fixture
def table(tmp_path: Path) -> mw.Table:
    """Three generations, of which one is compacted, a takeover, and a tail of three entries."""
    table = mw.create_table(
        str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=mw.Unsharded(), writer_defaults={"fsync": False}
    )
    with table.writer(compaction=None) as writer:
        for number in range(3):
            writer.put({"id": [number, 10 + number], "v": ["x", "y"]})
            writer.flush()
    table.compact(max_generations=1)
    writer = table.writer(compaction=None)
    for number in range(3):
        writer.put({"id": [100 + number], "v": ["tail"]})
    writer.abort()
    return table


def root(table: mw.Table) -> Path:
    return Path(table.uri)


def entry(table: mw.Table, at: int) -> Path:
    return root(table) / paths.wal_entry_path(SHARD, list_positions(resolve(table.uri), SHARD)[at])


def newest(table: mw.Table) -> ShardManifest:
    manifest = ShardManifestStore(table.uri, SHARD).read_latest()
    assert manifest is not None
    return manifest


def sstable(table: mw.Table) -> Path:
    return root(table) / paths.sstable_dir(SHARD, newest(table).sstables[0].path)


def commit(table: mw.Table, change: Callable[[ShardManifest], ShardManifest]) -> None:
    """Write the next manifest by hand, past every check."""
    manifest = change(replace(newest(table), version=newest(table).version + 1))
    path = root(table) / paths.manifest_path(SHARD, manifest.version)
    path.write_bytes(encode_manifest(manifest))


def test_a_sound_table_has_no_problems(table: mw.Table) -> None:
    report = table.verify()
    assert report.problems == []
    assert (report.shards, report.entries, report.sstables) == (1, 8, 2)


def _cut(table: mw.Table) -> None:
    path = entry(table, -1)
    path.write_bytes(path.read_bytes()[:-9])


def _empty(table: mw.Table) -> None:
    entry(table, -1).write_bytes(b"")


def _flip(table: mw.Table) -> None:
    data = bytearray(entry(table, -2).read_bytes())
    data[len(data) // 2] ^= 1
    entry(table, -2).write_bytes(bytes(data))


def _hole(table: mw.Table) -> None:
    entry(table, -2).unlink()


def _manifest_bytes(table: mw.Table) -> None:
    (root(table) / paths.manifest_path(SHARD, newest(table).version)).write_bytes(b"\xff\xff\xff")


def _no_manifest(table: mw.Table) -> None:
    shutil.rmtree(root(table) / paths.manifest_dir(SHARD))


def _lower_epoch(table: mw.Table) -> None:
    commit(table, lambda m: replace(m, writer_epoch=1))


def _cursor_falls(table: mw.Table) -> None:
    commit(table, lambda m: replace(m, replay_after_wal_entry_position=1))


def _skipped_generation(table: mw.Table) -> None:
    commit(table, lambda m: replace(m, current_generation=2, sstables=()))


def _forgotten_generation(table: mw.Table) -> None:
    commit(table, lambda m: replace(m, sstables=m.sstables[1:]))


def _marked_too_far(table: mw.Table) -> None:
    builder = lance.dataset(table.uri).merge_insert("id").when_not_matched_insert_all()
    builder.mark_sstables_as_compacted([CompactedSsTable(SHARD, 99)]).execute(table.schema.empty_table())


def _lost_sstable(table: mw.Table) -> None:
    shutil.rmtree(sstable(table))


def _lost_filter(table: mw.Table) -> None:
    (sstable(table) / "bloom_filter.bin").unlink()


def _lost_sidecar(table: mw.Table) -> None:
    shutil.rmtree(sstable(table) / "_pk_index")


def _foreign_sidecar(table: mw.Table) -> None:
    other = root(table) / paths.sstable_dir(SHARD, newest(table).sstables[1].path)
    shutil.rmtree(sstable(table) / "_pk_index")
    shutil.copytree(other / "_pk_index", sstable(table) / "_pk_index")


def _foreign_filter(table: mw.Table) -> None:
    other = root(table) / paths.sstable_dir(SHARD, newest(table).sstables[1].path)
    shutil.copy(other / "bloom_filter.bin", sstable(table) / "bloom_filter.bin")


def _lost_data(table: mw.Table) -> None:
    shutil.rmtree(sstable(table) / "data")


def _wrong_row_count(table: mw.Table) -> None:
    commit(table, lambda m: replace(m, sstables=(replace(m.sstables[0], physical_rows=77), *m.sstables[1:])))


def _overwritten(table: mw.Table) -> None:
    lance.write_dataset(table.schema.empty_table(), table.uri, mode="overwrite")


DAMAGE = [
    (_cut, "V-3"),
    (_empty, "V-3"),
    (_flip, "V-3"),
    (_hole, "V-4"),
    (_manifest_bytes, "V-1"),
    (_no_manifest, "V-1"),
    (_lower_epoch, "V-2"),
    (_lower_epoch, "V-5"),
    (_cursor_falls, "V-2"),
    (_cursor_falls, "V-10"),
    (_skipped_generation, "V-6"),
    (_forgotten_generation, "V-7"),
    (_marked_too_far, "V-9"),
    (_lost_sstable, "V-8"),
    (_lost_filter, "V-8"),
    (_lost_sidecar, "V-8"),
    (_foreign_sidecar, "V-8"),
    (_foreign_filter, "V-8"),
    (_lost_data, "V-8"),
    (_wrong_row_count, "V-8"),
    (_overwritten, "V-11"),
]


@pytest.mark.parametrize(("damage", "invariant"), DAMAGE)
def test_damage_is_found_and_named(table: mw.Table, damage: Callable[[mw.Table], None], invariant: str) -> None:
    damage(table)
    report = table.verify()
    assert not report.ok
    assert invariant in {problem.invariant for problem in report.problems}, report.problems
    for problem in report.problems:
        assert problem.where
        assert problem.what
        assert problem.remedy


def test_a_sound_table_stays_sound_beside_a_busy_writer(tmp_path: Path) -> None:
    table = mw.create_table(
        str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=mw.Unsharded(), writer_defaults={"fsync": False}
    )
    with table.writer(compaction=None, max_memtable_rows=5) as writer:
        for number in range(60):
            writer.put({"id": [number % 7], "v": [str(number)]})
            if number % 6 == 0:
                assert table.verify().problems == []
            if number % 20 == 19:
                table.compact()
                table.gc(grace_seconds=0)
