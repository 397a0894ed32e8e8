"""Compaction changes where rows are, never what they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.compact.run import Compactor
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.store.location import resolve
from lance_memwal.store.port import ObjectStore
from lance_memwal.store.wrap import WrappedStore
from tests.kit.compaction import KINDS, Kept, as_rows, by_lance_only
from tests.kit.writers import wait_for


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_the_same_before_and_after_and_in_plain_lance(tmp_path: Path, kind: str) -> None:
    kept = Kept(tmp_path / "t", kind)
    kept.generations(4)
    assert kept.shown() == kept.expected
    report = kept.table.compact()
    assert report.generations == 8
    assert kept.shown() == kept.expected
    assert kept.plain() == kept.expected
    assert [info.generations for info in kept.table.shards()] == [(), ()]


@pytest.mark.parametrize("kind", KINDS)
def test_a_small_memory_limit_takes_more_commits_and_gives_the_same_rows(tmp_path: Path, kind: str) -> None:
    kept = Kept(tmp_path / "t", kind)
    kept.generations(3)
    report = kept.table.compact(memory_bytes=1)
    assert report.commits >= 6
    assert kept.plain() == kept.expected


@pytest.mark.parametrize("kind", ["key", "append"])
def test_several_shards_share_one_commit(tmp_path: Path, kind: str) -> None:
    kept = Kept(tmp_path / "t", kind)
    kept.generations(2)
    report = kept.table.compact()
    assert (len(report.shards), report.commits) == (2, 1)
    assert sorted(kept.table.details().compacted.values()) == [2, 2]


def test_compacting_twice_does_nothing_the_second_time(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "t", "append")
    kept.generations(2)
    kept.table.compact()
    version = kept.table.dataset.version
    assert kept.table.compact().commits == 0
    assert kept.table.dataset.version == version


def test_updates_of_the_base_after_compaction_win(tmp_path: Path) -> None:
    table = mw.create_table(
        str(tmp_path / "t"),
        pa.schema([("id", pa.int64()), ("v", pa.string())]),
        primary_key="id",
        sharding=mw.Unsharded(),
    )
    with table.writer() as writer:
        writer.put({"id": [1, 2], "v": ["sstable", "sstable"]})
    table.compact()
    table.dataset.update({"v": "'base'"}, where="id = 1")
    table.dataset.delete("id = 2")
    assert table.scan().to_table().to_pylist() == [{"id": 1, "v": "base"}]
    assert table.get(2) is None


def test_only_the_oldest_generations_of_the_named_shards_are_folded(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "t", "key")
    kept.generations(5)
    chosen = kept.table.shards()[0].shard_id
    report = kept.table.compact(shards=[chosen], max_generations=2)
    assert [(shard.shard_id, shard.first, shard.last) for shard in report.shards] == [(chosen, 1, 2)]
    assert [info.generations for info in kept.table.shards()] == [(3, 4, 5), (1, 2, 3, 4, 5)]
    assert kept.shown() == kept.expected


def test_a_shard_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "t", "key")
    with pytest.raises(mw.InvalidInputError, match="no shard"):
        kept.table.compact(shards=["00000000-0000-4000-8000-000000000000"])


def test_progress_is_told_until_nothing_is_left(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "t", "key")
    kept.generations(2)
    told: list[tuple[str, int, int]] = []
    kept.table.compact(memory_bytes=1, progress=lambda *words: told.append(words))
    assert [done for _, done, _ in told] == [1, 2, 3, 4]
    assert told[-1][1] == told[-1][2]


def test_tombstones_alone_are_marked_with_the_delete(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "t", "key")
    kept.generations(2)
    kept.table.compact()
    with kept.table.writer() as writer:
        writer.delete(list(range(60)))
    report = kept.table.compact()
    assert (report.commits, report.rows_written, report.rows_deleted) == (1, 0, 60)
    assert kept.plain() == as_rows(pa.table({}))
    assert kept.table.compact().commits == 0


def test_a_live_writer_goes_on_and_is_not_fenced(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "t", "key")
    with kept.table.writer(compaction=None) as writer:
        for _ in range(3):
            kept.write(writer, puts=2)
            writer.flush()
            kept.write(writer)
            epochs = {shard: w.epoch for shard, w in writer.shard_writers.items()}
            kept.table.compact()
            assert as_rows(writer.scan().to_table()) == kept.expected
        assert {shard: w.epoch for shard, w in writer.shard_writers.items()} == epochs
    kept.table.compact()
    assert kept.plain() == kept.expected


def test_a_live_pylance_writer_goes_on_and_its_generations_are_folded(tmp_path: Path) -> None:
    key = {"lance-schema:unenforced-primary-key": "true"}
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False, metadata=key), pa.field("v", pa.string())])
    uri = str(tmp_path / "t")
    lance.write_dataset(schema.empty_table(), uri).initialize_mem_wal()
    peer: Any = lance.dataset(uri).mem_wal_writer("11111111-2222-4333-8444-555555555555", max_memtable_rows=4)
    table = mw.open_table(uri)
    for start in range(0, 24, 4):
        peer.put(pa.table({"id": range(start, start + 4), "v": [f"v{start}"] * 4}, schema=schema))
    wait_for(lambda: sum(len(info.generations) for info in table.shards()) >= 4)
    assert table.compact().generations >= 4
    peer.put(pa.table({"id": [0, 100], "v": ["new", "new"]}, schema=schema))
    peer.close()
    table.compact()
    rows = {row["id"]: row["v"] for row in lance.dataset(uri).to_table().to_pylist()}
    assert len(rows) == 25
    assert (rows[0], rows[100], rows[5]) == ("new", "new", "v4")


def test_the_transaction_of_a_large_put_outlives_its_generation(tmp_path: Path) -> None:
    """The mark that a large put leaves in the log carries its transaction."""
    table = mw.create_table(
        str(tmp_path / "t"),
        pa.schema([("id", pa.int64()), ("v", pa.string())]),
        primary_key="id",
        sharding=mw.Unsharded(),
    )
    with table.shard_writer(max_entry_bytes=1000) as writer:
        writer.put({"id": list(range(50)), "v": ["bulk"] * 50}, txn=("loader", 7))
        table.compact()
        assert writer.manifest().sstables == ()
        assert table.details().compacted == {writer.shard_id: 1}
        assert table.count_rows() == 50
    table.gc(grace_seconds=0)
    assert table.transactions()[writer.shard_id] == {"loader": 7}
    with table.shard_writer() as again:
        assert again.put({"id": [2], "v": ["y"]}, txn=("loader", 7)).skipped


def test_keys_that_several_shards_hold_are_folded_once(tmp_path: Path) -> None:
    table = mw.create_table(
        str(tmp_path / "t"),
        pa.schema([("id", pa.int64()), ("zone", pa.int64())]),
        primary_key="id",
        sharding=mw.Bucket("zone", 4),
        allow_keys_across_shards=True,
    )
    with table.writer() as writer:
        for zone in range(8):
            writer.put({"id": [1, 2, 10 + zone], "zone": [zone] * 3})
    table.compact()
    assert sorted(lance.dataset(table.uri).to_table()["id"].to_pylist()) == [1, 2, *range(10, 18)]


class _Watched(WrappedStore):
    """A store that writes down which objects were synced and created."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.calls: list[tuple[str, str]] = []

    def put_new(self, path: str, data: bytes, *, sync: bool = False, make_directory: bool = True) -> Any:
        self.calls.append(("create", path))
        return super().put_new(path, data, sync=sync, make_directory=make_directory)

    def sync_tree(self, prefix: str) -> None:
        self.calls.append(("sync", prefix))
        super().sync_tree(prefix)


@pytest.mark.parametrize("kind", ["key", "append", "append_in_two"])
def test_the_compacted_version_is_synced_before_the_manifest_forgets(tmp_path: Path, kind: str) -> None:
    kept = Kept(tmp_path / "t", kind, fsync=True)
    kept.generations(2)
    kept.table.compact()
    kept.generations(1)
    watched: list[_Watched] = []

    def wrap(store: ObjectStore) -> ObjectStore:
        watched.append(_Watched(store))
        return watched[0]  # type: ignore[return-value]

    location = resolve(kept.uri, wrap=wrap)
    data_before = {path.name for path in (tmp_path / "t" / "data").iterdir()}
    Compactor(location, lambda: kept.table.base.__class__.open(location)).run()  # type: ignore[arg-type,return-value]
    calls = watched[0].calls
    first_trim = next(i for i, (what, path) in enumerate(calls) if what == "create" and "_mem_wal" in path)
    synced = {path for what, path in calls[:first_trim] if what == "sync"}
    created = {path for what, path in calls[:first_trim] if what == "create"}  # these are synced as they are made
    new_data = {f"data/{path.name}" for path in (tmp_path / "t" / "data").iterdir()} - {
        f"data/{n}" for n in data_before
    }
    assert new_data
    assert new_data <= synced or "data" in synced
    version = kept.table.dataset.version
    assert f"_versions/{2**64 - 1 - version}.manifest" in synced | created or "_versions" in synced


def test_without_fsync_nothing_is_synced(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "t", "key")
    kept.generations(1)
    watched: list[_Watched] = []

    def wrap(store: ObjectStore) -> ObjectStore:
        watched.append(_Watched(store))
        return watched[0]  # type: ignore[return-value]

    location = resolve(kept.uri, wrap=wrap)
    Compactor(location, lambda: kept.table.base.__class__.open(location)).run()  # type: ignore[arg-type,return-value]
    assert [call for call in watched[0].calls if call[0] == "sync"] == []
    assert ShardManifestStore(location, kept.table.shards()[0].shard_id).read_latest().sstables == ()  # type: ignore[union-attr]


@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "append-only"])
@pytest.mark.parametrize("way", ["by hand", "with row ids", "by Lance"])
def test_small_dictionaries_of_several_generations_stay_readable(tmp_path: Path, keyed: bool, way: str) -> None:
    """Lance writes a file whose dictionary has more values than its indices can count, and never reads it again."""
    kind = pa.dictionary(pa.int8(), pa.string())
    key = {"lance-schema:unenforced-primary-key": "true"} if keyed else None
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False, metadata=key), ("c", kind)])
    uri = str(tmp_path / "table")
    features = by_lance_only(uri) if way == "by Lance" else {"enable_stable_row_ids": way == "with row ids"}
    lance.write_dataset(schema.empty_table(), uri, **features)
    table = mw.enable(uri, sharding=mw.Unsharded())
    expected = {}
    for generation in range(3):
        rows = {100 * generation + i: f"{generation}-{i}" for i in range(100)}
        with table.writer(compaction=None, fsync=False) as writer:
            writer.put(pa.record_batch([pa.array(rows), pa.array(rows.values(), kind)], schema=schema))
        expected |= rows
    table.compact()
    shown = lance.dataset(uri).to_table()
    assert dict(zip(shown["id"].to_pylist(), shown["c"].to_pylist(), strict=True)) == expected
    assert table.verify().ok
