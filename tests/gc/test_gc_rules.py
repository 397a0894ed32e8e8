"""Collection removes what is proven dead, after the grace period, and nothing else."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.log.entry import decode_entry
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.reading import list_positions
from lance_memwal.log.tailer import WalTailer
from lance_memwal.store import paths
from lance_memwal.store.location import resolve
from lance_memwal.store.port import ObjectStore
from lance_memwal.store.wrap import WrappedStore
from lance_memwal.upkeep.gc import Collector
from tests.harness.profile import scaled

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


def make(place: Path, key: str | None = "id") -> mw.Table:
    return mw.create_table(
        str(place), SCHEMA, primary_key=key, sharding=mw.Unsharded(), writer_defaults={"fsync": False}
    )


def shard_of(table: mw.Table) -> str:
    return table.shards()[0].shard_id


def fill(table: mw.Table, generations: int, takeovers: int = 1, rows: int = 3) -> None:
    for turn in range(takeovers):
        with table.writer(compaction=None) as writer:
            for number in range(generations):
                start = (turn * generations + number) * rows
                writer.put({"id": list(range(start, start + rows)), "v": [f"{turn}-{number}"] * rows})
                writer.flush()


def objects(table: mw.Table) -> set[str]:
    return {item.path for item in resolve(table.uri).store.list(paths.MEM_WAL_DIR)}


def age(table: mw.Table, seconds: float) -> None:
    """Let everything below the shards look that much older."""
    then = time.time() - seconds
    for path in objects(table):
        os.utime(Path(table.uri) / path, (then, then))


# ------------------------------------------------------------------------------------------------------- what goes


@pytest.mark.scaled
@pytest.mark.timeout(300)
@pytest.mark.parametrize("key", ["id", None])
def test_what_is_left_is_a_constant_and_one_sentinel_per_takeover(tmp_path: Path, key: str | None) -> None:
    generations, takeovers = scaled(ci=10, prove=50), 4
    table = make(tmp_path / "t", key)
    fill(table, generations, takeovers)
    rows = table.count_rows()
    assert len(objects(table)) > generations * takeovers * 5
    table.compact()
    report = table.gc(grace_seconds=0)
    sentinels = takeovers - 1
    assert len(objects(table)) <= 7 + sentinels, "one of them is the floor"
    assert report.objects_left == len(objects(table))
    assert table.count_rows() == rows == lance.dataset(table.uri).count_rows()
    assert table.verify().ok


def test_a_dry_run_names_what_a_real_one_removes_and_removes_nothing(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    fill(table, 6)
    table.compact()
    before = objects(table)
    planned = table.gc(dry_run=True, grace_seconds=0)
    assert objects(table) == before
    done = table.gc(grace_seconds=0)
    assert {item.path for item in planned.objects} == {item.path for item in done.objects} == before - objects(table)
    assert planned.size_bytes == done.size_bytes > 0
    assert done.count("entry") == 6  # the newest entry, which stays, is the mark that the writer left
    assert done.count("manifest") > 0


def test_nothing_goes_within_the_grace_period(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    fill(table, 6)
    table.compact()
    before = objects(table)
    assert table.gc().objects == ()
    assert objects(table) == before
    age(table, 3601)
    assert table.gc().count("sstable") > 0


def test_the_grace_period_begins_when_a_thing_becomes_unneeded_not_when_it_is_made(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    fill(table, 6)
    age(table, 7200)
    table.compact()  # the manifest that no longer lists the SSTables is new
    report = table.gc()
    assert report.count("sstable") == 0
    assert report.count("entry") > 0  # these were flushed two hours ago


def test_old_staging_goes_and_new_staging_stays(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    store = resolve(table.uri).store
    for name in ("old", "new"):
        store.put(f"{paths.STAGE_DIR}/{name}", b"rows")
    then = time.time() - 7200
    os.utime(Path(table.uri) / paths.STAGE_DIR / "old", (then, then))
    assert [item.path for item in table.gc(grace_seconds=0).objects] == [f"{paths.STAGE_DIR}/old"]
    assert store.list_names(paths.STAGE_DIR) == ["new"]


def test_a_failed_attempt_goes_only_once_its_generation_is_published(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    fill(table, 2)
    store, shard = resolve(table.uri).store, shard_of(table)
    for name in ("deadbeef_gen_2", "deadbeef_gen_3"):
        store.put(paths.bloom_path(shard, name), b"x")
    report = table.gc(grace_seconds=0)
    assert [item.path for item in report.objects if item.kind == "orphan"] == [
        paths.bloom_path(shard, "deadbeef_gen_2")
    ]
    assert "deadbeef_gen_3" in store.list_names(paths.shard_dir(shard))
    assert table.count_rows() == 6


def test_an_empty_directory_goes_once_its_generation_is_published(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    fill(table, 2)
    shard = Path(table.uri) / paths.shard_dir(shard_of(table))
    for name in ("deadbeef_gen_1", "deadbeef_gen_2/data", "deadbeef_gen_3"):
        (shard / name).mkdir(parents=True)
    before = table.gc(grace_seconds=0, dry_run=True)
    report = table.gc(grace_seconds=0)
    assert before.objects == report.objects
    gone = [item.path.rpartition("/")[2] for item in report.objects if item.kind == "orphan"]
    assert gone == ["deadbeef_gen_1", "deadbeef_gen_2"]
    assert sorted(path.name for path in shard.glob("deadbeef*")) == ["deadbeef_gen_3"]
    assert report.objects_left == len([path for path in shard.rglob("*") if path.is_file()])
    assert table.gc().count("orphan") == 0


# ------------------------------------------------------------------------------------------------------- what stays


def test_sentinels_and_the_newest_entry_stay(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    fill(table, 3, takeovers=3)
    table.compact()
    table.gc(grace_seconds=0)
    shard, location = shard_of(table), resolve(table.uri)
    positions = list_positions(location, shard)
    assert len(positions) == 3
    entries = [decode_entry(location.store.get(paths.wal_entry_path(shard, p)), p) for p in positions]
    assert [entry.is_sentinel for entry in entries] == [True, True, False]
    assert positions[-1] == 14  # nine puts, two sentinels, and a mark per close
    assert WalTailer(location, shard).next_position() == 15


def test_the_newest_entry_with_a_transaction_map_stays_below_entries_of_others(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    shard = "aa48498d-ac91-59e2-8452-69f46010ace2"
    with table.shard_writer(shard) as writer:
        writer.put({"id": [1], "v": ["a"]}, txn=("app", 3))
    peer: Any = lance.dataset(table.uri).mem_wal_writer(shard)
    for number in range(5):
        peer.put(pa.table({"id": [number], "v": ["peer"]}, schema=table.schema))
    peer.close()
    table.compact()
    table.gc(grace_seconds=0)
    assert table.transactions()[shard] == {"app": 3}
    with table.shard_writer(shard) as again:
        assert again.put({"id": [1], "v": ["b"]}, txn=("app", 3)).skipped


def test_uncompacted_generations_and_the_tail_stay(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    with table.writer(compaction=None) as writer:
        for number in range(4):
            writer.put({"id": [number], "v": ["x"]})
            writer.flush()
        writer.put({"id": [99], "v": ["tail"]})
        table.compact(max_generations=2)
        report = table.gc(grace_seconds=0)
        assert report.count("sstable") > 0
        assert sorted(row["id"] for row in mw.open_table(table.uri).scan().to_table().to_pylist()) == [0, 1, 2, 3, 99]
        writer.abort()
    assert sorted(table.scan().to_table()["id"].to_pylist()) == [0, 1, 2, 3, 99]


def test_an_index_that_lags_keeps_its_sstables_until_it_catches_up(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    fill(table, 2)
    table.compact()
    table.dataset.create_scalar_index("v", "BTREE")
    table.gc(grace_seconds=0)
    with table.writer(compaction=None) as writer:
        writer.put({"id": [500], "v": ["late"]})
    table.compact()
    report = table.gc(grace_seconds=0)
    assert (report.count("sstable"), report.waiting) == (0, 1)
    report = table.gc(grace_seconds=0, optimize_indices=True)
    assert report.count("sstable") > 0
    assert report.waiting == 0
    assert table.scan(filter="v = 'late'").count_rows() == 1


def test_a_shard_with_a_fault_is_refused_whole(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    fill(table, 5)
    table.compact(max_generations=2)
    shard = shard_of(table)
    last = list_positions(resolve(table.uri), shard)[-1]
    path = Path(table.uri) / paths.wal_entry_path(shard, last)
    path.write_bytes(path.read_bytes()[:-20])
    before = objects(table)
    report = table.gc(grace_seconds=0)
    assert list(report.refused) == [shard]
    assert objects(table) == before
    assert report.objects == ()


def test_a_table_that_lost_its_index_is_refused(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    fill(table, 3)
    lance.write_dataset(table.schema.empty_table(), table.uri, mode="overwrite")
    before = objects(table)
    with pytest.raises(mw.InvalidInputError, match="no MemWAL index"):
        table.gc(grace_seconds=0)
    assert objects(table) == before


class _Ordered(WrappedStore):
    """A store that writes down puts and deletes."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.calls: list[tuple[str, str]] = []

    def put(self, path: str, data: bytes, *, sync: bool = False) -> None:
        self.calls.append(("put", path))
        super().put(path, data, sync=sync)

    def delete(self, path: str) -> None:
        self.calls.append(("delete", path))
        super().delete(path)


def test_the_manifests_that_stay_have_no_gap_whatever_their_times_say(tmp_path: Path) -> None:
    """From the hint on, pylance looks for newer versions one after the other, and takes a gap for the end."""
    table = make(tmp_path / "t")
    fill(table, 4, takeovers=2)
    manifests = ShardManifestStore(table.uri, shard_of(table))
    versions = manifests.list_versions()
    now = time.time()
    for version in versions:
        seconds = 7200 if version != versions[2] else 0  # as after a copy of one object
        path = Path(table.uri) / paths.manifest_path(shard_of(table), version)
        os.utime(path, (now - seconds, now - seconds))
    table.gc(grace_seconds=3600)
    left = manifests.list_versions()
    assert left == versions[versions.index(left[0]) :], "a gap"
    assert left[0] == versions[2]
    age(table, 7200)
    table.gc(grace_seconds=3600)
    left = manifests.list_versions()
    assert left == versions[versions.index(left[0]) :]
    assert len(left) < len(versions) - 2


def test_the_hint_is_right_before_the_first_manifest_goes(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    fill(table, 6)
    shard = shard_of(table)
    hint = Path(table.uri) / paths.manifest_hint_path(shard)
    hint.write_text('{"version":1}')
    ordered: list[_Ordered] = []

    def wrap(store: ObjectStore) -> ObjectStore:
        ordered.append(_Ordered(store))
        return ordered[0]  # type: ignore[return-value]

    location = resolve(table.uri, wrap=wrap)
    Collector(location, lambda: table.base).run(grace_seconds=0)
    calls = ordered[0].calls
    gone = [
        i for i, (what, path) in enumerate(calls) if what == "delete" and path.startswith(paths.manifest_dir(shard))
    ]
    assert gone
    assert calls.index(("put", paths.manifest_hint_path(shard))) < gone[0]
    newest = ShardManifestStore(location, shard).list_versions()[-1]
    assert hint.read_text() == f'{{"version":{newest}}}'


# ------------------------------------------------------------------------------------------------------- who reads


def test_a_slow_reader_within_the_grace_period_sees_its_snapshot(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    fill(table, 8)
    scan = table.scan()
    expected = scan.count_rows()
    batches = scan.to_batches()
    first = next(batches)
    table.compact()
    table.gc()
    assert first.num_rows + sum(batch.num_rows for batch in batches) == expected
    assert table.scan().count_rows() == expected


def test_a_scan_that_begins_before_collection_and_reads_after_it_starts_again(tmp_path: Path) -> None:
    table = mw.open_table(make(tmp_path / "t").uri)
    fill(table, 4)
    scan = mw.open_table(table.uri).scan()
    table.compact()
    table.gc(grace_seconds=0)
    assert scan.to_table().num_rows == 12


def test_pylance_opens_writes_and_reads_a_collected_shard(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    shard = "aa48498d-ac91-59e2-8452-69f46010ace2"
    for turn in range(3):
        with table.shard_writer(shard, max_memtable_rows=4) as writer:
            for number in range(10):
                writer.put({"id": [number, 100 + turn], "v": [f"{turn}"] * 2})
    table.compact()
    assert table.gc(grace_seconds=0).count("entry") > 0
    peer: Any = lance.dataset(table.uri).mem_wal_writer(shard)
    peer.put(pa.table({"id": [0, 7777], "v": ["peer", "peer"]}, schema=table.schema))
    rows = {row["id"]: row["v"] for row in peer.lsm_scanner().to_table().to_pylist()}
    peer.close()
    assert (rows[0], rows[7777], rows[1], len(rows)) == ("peer", "peer", "2", 14)
    assert {row["id"]: row["v"] for row in table.scan().to_table().to_pylist()} == rows
    assert table.verify().ok
