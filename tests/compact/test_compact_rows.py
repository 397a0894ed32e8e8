"""Compaction changes where rows are, never what they are, whatever happened before, and streams in bounded memory."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lance_memwal as mw
from lance_memwal.compact.run import Compactor
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.store.location import resolve
from lance_memwal.store.port import ObjectStore
from lance_memwal.store.wrap import WrappedStore
from lance_memwal.table import newest_base
from tests.harness.profile import scaled
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
    told: list[tuple[str, int, int]] = []
    report = kept.table.compact(memory_bytes=1, progress=lambda *words: told.append(words))
    assert report.commits >= 6
    assert [done for _, done, _ in told] == [*range(1, 7)]
    assert told[-1][1] == told[-1][2]
    assert kept.plain() == kept.expected


@pytest.mark.parametrize("kind", ["key", "append"])
def test_several_shards_share_one_commit_and_a_second_call_makes_none(tmp_path: Path, kind: str) -> None:
    kept = Kept(tmp_path / "t", kind)
    kept.generations(2)
    report = kept.table.compact()
    assert (len(report.shards), report.commits) == (2, 1)
    assert sorted(kept.table.details().compacted.values()) == [2, 2]
    version = kept.table.dataset.version
    assert kept.table.compact().commits == 0
    assert kept.table.dataset.version == version


def test_only_the_oldest_generations_of_the_named_shards_are_folded(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "t", "key")
    kept.generations(5)
    with pytest.raises(mw.InvalidInputError, match="no shard"):
        kept.table.compact(shards=["00000000-0000-4000-8000-000000000000"])
    chosen = kept.table.shards()[0].shard_id
    report = kept.table.compact(shards=[chosen], max_generations=2)
    assert [(shard.shard_id, shard.first, shard.last) for shard in report.shards] == [(chosen, 1, 2)]
    assert [info.generations for info in kept.table.shards()] == [(3, 4, 5), (1, 2, 3, 4, 5)]
    assert kept.shown() == kept.expected


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


def calls_of_a_compaction(kept: Kept) -> list[tuple[str, str]]:
    watched: list[_Watched] = []

    def wrap(store: ObjectStore) -> ObjectStore:
        watched.append(_Watched(store))
        return watched[0]  # type: ignore[return-value]

    location = resolve(kept.uri, wrap=wrap)
    Compactor(location, lambda: newest_base(kept.table).__class__.open(location)).run()  # type: ignore[arg-type,return-value]
    assert ShardManifestStore(location, kept.table.shards()[0].shard_id).read_latest().sstables == ()  # type: ignore[union-attr]
    return watched[0].calls


@pytest.mark.parametrize("kind", ["key", "append"])
def test_the_compacted_version_is_synced_before_the_manifest_forgets(tmp_path: Path, kind: str) -> None:
    kept = Kept(tmp_path / "t", kind, fsync=True)
    kept.generations(2)
    kept.table.compact()
    kept.generations(1)
    data_before = {path.name for path in (tmp_path / "t" / "data").iterdir()}
    calls = calls_of_a_compaction(kept)
    first_trim = next(i for i, (what, path) in enumerate(calls) if what == "create" and "_mem_wal" in path)
    synced = {path for what, path in calls[:first_trim] if what == "sync"}
    created = {path for what, path in calls[:first_trim] if what == "create"}  # these are synced as they are made
    new_data = {f"data/{path.name}" for path in (tmp_path / "t" / "data").iterdir() if path.name not in data_before}
    assert new_data
    assert new_data <= synced or "data" in synced
    version = kept.table.dataset.version
    assert f"_versions/{2**64 - 1 - version}.manifest" in synced | created or "_versions" in synced


def test_without_fsync_nothing_is_synced(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "t", "key")
    kept.generations(1)
    assert [call for call in calls_of_a_compaction(kept) if call[0] == "sync"] == []


@pytest.mark.parametrize(
    ("way", "keyed"),
    [("by hand", True), ("by hand", False), ("with row ids", True), ("with row ids", False), ("by Lance", True)],
)
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


SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])
KEYS = st.lists(st.integers(0, 7), min_size=1, max_size=4, unique=True)
STEPS = st.one_of(
    st.tuples(st.just("put"), KEYS),
    st.tuples(st.just("put"), KEYS),
    st.tuples(st.just("delete"), KEYS),
    st.tuples(st.just("flush"), st.none()),
    st.tuples(st.just("compact"), st.sampled_from([1, 2, None])),
    st.tuples(st.just("gc"), st.none()),
    st.tuples(st.just("reopen"), st.booleans()),
    st.tuples(st.just("base_update"), KEYS),
    st.tuples(st.just("base_delete"), KEYS),
    st.tuples(st.just("base_append"), st.none()),
)


class History:
    """A table with one shard beside a model of its tiers: base, generations, and what is not flushed yet."""

    def __init__(self, place: str, *, key: bool) -> None:
        self.key = key
        self.table = mw.create_table(
            place, SCHEMA, primary_key="id" if key else None, sharding=mw.Unsharded(), writer_defaults={"fsync": False}
        )
        self.writer = self.table.writer(compaction=None)
        self.number = 0
        self.base: list[tuple[int, int | None]] = []
        self.generations: list[list[tuple[int, int | None]]] = []
        self.active: list[tuple[int, int | None]] = []

    def run(self, steps: list[tuple[str, Any]]) -> None:
        for name, value in steps:
            self.number += 1
            getattr(self, name)(value)
            assert self.shown(self.table.scan().to_table()) == self.expected()
        self.flush(None)
        self.compact(None)
        assert self.shown(self.table.scan().to_table()) == self.expected()
        assert self.shown(lance.dataset(self.table.uri).to_table()) == self.expected()
        assert self.table.verify().problems == []
        self.writer.close()

    # ------------------------------------------------------------------------------------------------------ the model

    def expected(self) -> list[tuple[int, int]]:
        tiers = [self.base, *self.generations, self.active]
        return self.fold([row for tier in tiers for row in tier])

    def fold(self, rows: list[tuple[int, int | None]]) -> list[tuple[int, int]]:
        if not self.key:
            return sorted((k, v) for k, v in rows if v is not None)
        return sorted((k, v) for k, v in dict(rows).items() if v is not None)

    def shown(self, table: pa.Table) -> list[tuple[int, int]]:
        return sorted(zip(table["id"].to_pylist(), table["v"].to_pylist(), strict=True))

    # ------------------------------------------------------------------------------------------------------ the steps

    def put(self, keys: list[int]) -> None:
        self.writer.put({"id": keys, "v": [self.number] * len(keys)})
        self.active += [(k, self.number) for k in keys]

    def delete(self, keys: list[int]) -> None:
        if self.key:
            self.writer.delete(keys)
            self.active += [(k, None) for k in keys]

    def flush(self, _: None) -> None:
        self.writer.flush()
        if self.active:
            self.generations.append(self.active)
            self.active = []

    def compact(self, most: int | None) -> None:
        count = len(self.generations) if most is None else min(most, len(self.generations))
        report = self.table.compact(max_generations=most)
        assert report.generations == count
        for generation in self.generations[:count]:
            self.base = list(self.fold(self.base + generation))
        del self.generations[:count]

    def gc(self, _: None) -> None:
        assert self.table.gc(grace_seconds=0).refused == {}

    def reopen(self, cleanly: bool) -> None:
        if cleanly:
            self.flush(None)
            self.writer.close()
        else:
            self.writer.abort()
        self.table = mw.open_table(self.table.uri)
        self.writer = self.table.writer(compaction=None)
        self.writer.put([])
        if self.active:  # the next open replays them
            self.writer.put({"id": [99], "v": [self.number]})
            self.active.append((99, self.number))

    def base_update(self, keys: list[int]) -> None:
        names = ", ".join(map(str, keys))
        self.table.dataset.update({"v": str(self.number)}, where=f"id in ({names})")
        self.base = [(k, self.number if k in keys else v) for k, v in self.base]

    def base_delete(self, keys: list[int]) -> None:
        names = ", ".join(map(str, keys))
        self.table.dataset.delete(f"id in ({names})")
        self.base = [(k, v) for k, v in self.base if k not in keys]

    def base_append(self, _: None) -> None:
        rows = pa.table({"id": [1000 + self.number], "v": [self.number]}, schema=self.table.schema)
        lance.write_dataset(rows, self.table.uri, mode="append")
        self.base.append((1000 + self.number, self.number))


@pytest.mark.scaled
@pytest.mark.timeout(900)
@pytest.mark.parametrize("key", [True, False])
def test_rows_before_compaction_are_rows_after_it_and_rows_of_plain_lance(key: bool) -> None:
    @settings(
        max_examples=scaled(ci=12, prove=150),
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(st.lists(STEPS, min_size=3, max_size=18))
    def check(steps: list[tuple[str, Any]]) -> None:
        with tempfile.TemporaryDirectory() as place:
            History(str(Path(place) / "t"), key=key).run(steps)

    check()


DIMENSION = 128
LIMIT_MB = 320
GENERATION_MB = scaled(ci=600, prove=4 * LIMIT_MB)
WIDE = pa.schema([("id", pa.int64()), ("vector", pa.list_(pa.float32(), DIMENSION))])
COMPACTOR = """
import resource, sys
import lance_memwal as mw
table = mw.open_table(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
report = table.compact(memory_bytes=64 << 20)
print(report.rows_written, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.scaled
@pytest.mark.parametrize("key", ["id", None])
def test_a_generation_larger_than_the_limit_is_streamed(tmp_path: Path, key: str | None) -> None:
    uri, total = str(tmp_path / "t"), GENERATION_MB * 1024 * 1024 // (DIMENSION * 4)
    defaults = {"fsync": False, "max_entry_bytes": 1 << 20}  # a larger put becomes a generation of its own
    table = mw.create_table(uri, WIDE, primary_key=key, sharding=mw.Unsharded(), writer_defaults=defaults)
    vectors = pa.array(np.random.default_rng(3).random(total * DIMENSION, dtype=np.float32))
    with table.writer(compaction=None) as writer:
        rows = [np.arange(total), pa.FixedSizeListArray.from_arrays(vectors, DIMENSION)]
        writer.put(pa.table(rows, schema=table.schema))
    assert [info.generations for info in table.shards()] == [(1,)]
    done = subprocess.run(
        [sys.executable, "-c", COMPACTOR, uri], capture_output=True, text=True, timeout=110, check=True
    )
    written, grown_mb = map(int, done.stdout.split())
    assert written == lance.dataset(uri).count_rows() == total
    assert grown_mb < LIMIT_MB
