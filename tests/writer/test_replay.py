"""Replay: exactly the rows of the tail, in bounded memory, nothing twice, never silently short."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import CorruptDataError, FencedError, UnavailableError
from lance_memwal.log.entry import EntryEncoder
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.manifest_codec import encode_manifest
from lance_memwal.rows.schema import TableSchema
from lance_memwal.sstable.target import ShardTarget
from lance_memwal.store import paths
from lance_memwal.store.location import resolve
from lance_memwal.types import TOMBSTONE_FIELD
from tests.kit.writers import (
    BLOOM,
    KEYED,
    SHARD,
    UNKEYED,
    WAL,
    base_table,
    contents,
    entries,
    everything,
    flushed,
    in_thread,
    open_writer,
    row_entries,
    rows,
    scanned,
    watched,
)


def wal_file(root: Path, position: int) -> Path:
    return root / paths.wal_entry_path(SHARD, position)


def unflushed_shard(root: Path, puts: int, schema: pa.Schema = KEYED, **settings: Any) -> None:
    """A shard whose flushes never worked, so that all its generations are in the tail."""
    store, location = watched(root)
    store.fail("put", BLOOM)
    writer = open_writer(location, schema, **settings)
    for k in range(puts):
        writer.put(rows([k], f"v{k}", schema))
    writer.abort()
    assert flushed(root) == {}


def test_every_acknowledged_row_comes_back_exactly_once(tmp_path: Path) -> None:
    """Lesson 1: a restarted writer began with an empty memtable."""
    writer = open_writer(tmp_path)
    random = np.random.default_rng(7)
    model: dict[int, str] = {}
    for i in range(400):
        keys = random.choice(200, 5, replace=False).tolist()
        if i % 10 == 9:
            writer.delete(keys)
            for key in keys:
                model.pop(key, None)
        else:
            writer.put(rows(keys, str(i)))
            model.update(dict.fromkeys(keys, str(i)))
    writer.abort()
    for _ in range(3):  # reopening again and again gives the same answer
        writer = open_writer(tmp_path)
        assert scanned(writer) == model
        assert writer.memtable_stats().row_count == 2000
        writer.abort()


def test_replayed_rows_are_durable_and_not_appended_again(tmp_path: Path) -> None:
    """Lesson 11: replay appended the rows a second time."""
    writer = open_writer(tmp_path)
    writer.put(rows([1]))
    writer.abort()
    writer = open_writer(tmp_path)
    stats = writer.memtable_stats()
    assert (stats.pending_wal_row_count, stats.max_flushed_batch_position) == (0, 0)
    writer.close()
    assert len(row_entries(tmp_path)) == 1
    assert writer.stats().wal_flush_count == 0
    assert len(flushed(tmp_path)[1]) == 1


def test_generations_in_the_tail_are_flushed_as_they_were_and_memory_holds_one(tmp_path: Path) -> None:
    unflushed_shard(tmp_path, 10, max_memtable_batches=3)
    held: list[int] = []
    original = ShardTarget.write_sstable

    def counted(self: ShardTarget, shard_id: str, config: Any, clock: Any, generation: int, table: pa.Table) -> Any:
        held.append(table.num_rows)
        return original(self, shard_id, config, clock, generation, table)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ShardTarget, "write_sstable", counted)
        writer = open_writer(tmp_path)
    assert held == [3, 3, 3]
    stats = writer.memtable_stats()
    assert (stats.generation, stats.row_count, stats.frozen_count) == (4, 1, 0)
    assert {g: [r["id"] for r in found] for g, found in flushed(tmp_path).items()} == {
        1: [0, 1, 2],
        2: [3, 4, 5],
        3: [6, 7, 8],
    }
    assert everything(writer, tmp_path) == {k: f"v{k}" for k in range(10)}
    manifest = writer.manifest()
    assert (manifest.current_generation, manifest.replay_after_wal_entry_position) == (4, 9)
    writer.put(rows([100]))
    writer.abort()
    with open_writer(tmp_path) as writer:
        assert len(everything(writer, tmp_path)) == 11


def test_a_memtable_ends_only_where_the_generation_number_changes(tmp_path: Path) -> None:
    unflushed_shard(tmp_path, 10)
    with open_writer(tmp_path, max_memtable_batches=3) as writer:  # the limits now are not those of then
        assert (writer.memtable_stats().generation, writer.memtable_stats().row_count) == (1, 10)


def test_a_crash_during_the_flush_of_a_replay_loses_nothing(tmp_path: Path) -> None:
    unflushed_shard(tmp_path, 10, max_memtable_batches=3)
    store, location = watched(tmp_path)
    store.fail("put", "_gen_2/" + BLOOM, 1)
    with pytest.raises(UnavailableError):
        open_writer(location)
    assert list(flushed(tmp_path)) == [1]
    with open_writer(tmp_path) as writer:
        assert everything(writer, tmp_path) == {k: f"v{k}" for k in range(10)}


def test_entries_of_flushed_generations_are_skipped_wherever_the_cursor_stands(tmp_path: Path) -> None:
    """Lesson 2: an append-only table showed rows twice after a restart."""
    table = base_table(tmp_path / "t", UNKEYED)
    writer = table.shard_writer(SHARD, fsync=False)
    writer.put(rows([1], schema=UNKEYED))
    writer.put(rows([2], schema=UNKEYED))
    writer.force_seal_active()
    writer.wait_for_flush_drain()
    writer.put(rows([3], schema=UNKEYED))
    writer.abort()
    manifests = ShardManifestStore(table.uri, SHARD)
    manifests_dir = tmp_path / "t" / paths.manifest_dir(SHARD)
    newest = manifests.read_latest()
    assert newest is not None
    assert newest.replay_after_wal_entry_position == 2
    lagging = replace(newest, version=newest.version + 1, replay_after_wal_entry_position=0)
    (manifests_dir / paths.manifest_path(SHARD, lagging.version).rsplit("/", 1)[1]).write_bytes(
        encode_manifest(lagging)
    )
    with table.shard_writer(SHARD, fsync=False) as writer:  # as another implementation may leave it
        assert writer.memtable_scanner().to_table().column("id").to_pylist() == [3]
        assert sorted(writer.scan().to_table().column("id").to_pylist()) == [1, 2, 3]


def test_replay_starts_at_the_cursor_even_if_no_sstable_is_listed(tmp_path: Path) -> None:
    """Lesson 2: an external compactor drains the list; that says nothing about the log."""
    writer = open_writer(tmp_path, UNKEYED)
    writer.put(rows([1], schema=UNKEYED))
    writer.close()
    ShardManifestStore(str(tmp_path), SHARD).commit_maintenance(
        lambda m: replace(m, version=m.version + 1, sstables=())
    )
    with open_writer(tmp_path, UNKEYED) as writer:
        assert writer.memtable_scanner().count_rows() == 0
        writer.put(rows([2], schema=UNKEYED))
        assert writer.memtable_stats().generation == 2


@pytest.mark.parametrize("damage", ["gap", "cut", "flip", "empty"])
def test_a_damaged_or_missing_entry_is_an_error_that_names_its_position(tmp_path: Path, damage: str) -> None:
    """Lesson E1.7: entries behind a missing one were silently dropped."""
    writer = open_writer(tmp_path)
    for k in range(5):
        writer.put(rows([k]))
    writer.abort()
    good = wal_file(tmp_path, 3).read_bytes()
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 4
    wal_file(tmp_path, 3).unlink()
    if damage != "gap":
        wal_file(tmp_path, 3).write_bytes({"cut": good[:-9], "flip": bytes(flipped), "empty": b""}[damage])
    with pytest.raises(CorruptDataError) as caught:
        open_writer(tmp_path)
    assert caught.value.position == 3
    wal_file(tmp_path, 3).write_bytes(good)
    with open_writer(tmp_path) as writer:
        assert set(scanned(writer)) == set(range(5))


def test_a_higher_epoch_in_the_log_aborts_replay_with_a_fence_error(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    writer = open_writer(tmp_path)
    writer.put(rows([1]))
    writer.abort()
    held = store.hold("get", WAL)
    opening = in_thread(lambda: open_writer(location))  # has claimed, placed its sentinel, and looked at the manifest
    held.wait_reached()
    encoder = EntryEncoder(TableSchema.from_arrow(KEYED).wal, 9, 1)
    batch = rows([7]).append_column(TOMBSTONE_FIELD, pa.array([False]))
    sleeping = wal_file(tmp_path, 1)
    sleeping.write_bytes(encoder.encode([batch]))
    held.open()
    with pytest.raises(FencedError, match=r"WAL replay aborted") as caught:
        opening.result()
    assert "fenced" in str(caught.value)
    assert caught.value.current_epoch == 9


def test_entries_without_a_generation_number_belong_to_the_current_one(tmp_path: Path) -> None:
    """As Lance 13 writes them."""
    with open_writer(tmp_path) as writer:
        writer.put(rows([0], "old"))
    schema = TableSchema.from_arrow(KEYED).wal.with_metadata({"writer_epoch": "1"})
    for position, key in ((2, 1), (3, 2)):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as stream:
            stream.write_batch(
                pa.record_batch([pa.array([key]), pa.array(["thirteen"]), pa.array([False])], schema=schema)
            )
        wal_file(tmp_path, position).write_bytes(sink.getvalue().to_pybytes())
    with open_writer(tmp_path) as writer:
        assert writer.memtable_stats().generation == 2
        assert scanned(writer) == {1: "thirteen", 2: "thirteen"}
        writer.put(rows([3]))
        assert everything(writer, tmp_path) == {0: "old", 1: "thirteen", 2: "thirteen", 3: "a"}
    assert list(flushed(tmp_path)) == [1, 2]


def test_a_generation_number_that_falls_or_skips_is_corruption(tmp_path: Path) -> None:
    for name, numbers in {"falls": (2, 1), "skips": (1, 3), "starts too high": (3,)}.items():
        root = tmp_path / name
        open_writer(root).abort()
        schema = TableSchema.from_arrow(KEYED).wal
        wal_file(root, 1).parent.mkdir(parents=True, exist_ok=True)
        for position, generation in enumerate(numbers, 1):
            batch = rows([position]).append_column(TOMBSTONE_FIELD, pa.array([False]))
            wal_file(root, position).write_bytes(EntryEncoder(schema, 1, generation).encode([batch]))
        with pytest.raises(CorruptDataError):
            open_writer(root)


def test_the_cursor_moves_with_the_sstable_and_covers_exactly_its_entries(tmp_path: Path) -> None:
    writer = open_writer(tmp_path, max_memtable_batches=3)
    for k in range(3):
        writer.put(rows([k]))
    writer.wait_for_flush_drain()
    writer.put(rows([3]))
    manifest = writer.manifest()
    assert (manifest.current_generation, manifest.replay_after_wal_entry_position) == (2, 3)
    writer.abort()
    with open_writer(tmp_path) as writer:
        assert scanned(writer) == {3: "a"}


def test_sentinels_and_marks_in_the_tail_are_no_rows(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    writer.put(rows([1]))
    for _ in range(4):
        writer.abort()
        writer = open_writer(tmp_path)
    writer.put(rows([2]))
    writer.abort()
    assert sum(entry.is_sentinel for entry in entries(tmp_path)) == 4
    with open_writer(tmp_path) as writer:
        assert scanned(writer) == {1: "a", 2: "a"}


# ------------------------------------------------------------------------------- generations larger than memory

SMALL = {"max_unflushed_memtable_bytes": 4000}


@pytest.mark.parametrize("schema", [KEYED, UNKEYED], ids=["keyed", "unkeyed"])
def test_a_generation_too_big_for_memory_is_streamed_into_one_sstable(tmp_path: Path, schema: pa.Schema) -> None:
    unflushed_shard(tmp_path, 60, schema)
    writer = open_writer(tmp_path, schema, **SMALL)
    assert list(flushed(tmp_path)) == [1]
    assert sorted(row["id"] for row in flushed(tmp_path)[1]) == list(range(60))
    assert (writer.memtable_stats().generation, writer.memtable_stats().row_count) == (2, 0)
    assert writer.manifest().replay_after_wal_entry_position == row_entries(tmp_path)[-1].position
    writer.put(rows([100], "new", schema))
    assert writer.memtable_scanner().count_rows() == 1
    writer.close()
    assert set(flushed(tmp_path)) == {1, 2}


def test_a_streamed_generation_holds_the_newest_row_of_every_key_and_its_tombstones(tmp_path: Path) -> None:
    base_table(tmp_path)
    writer = open_writer(tmp_path, None)
    for k in range(90):
        writer.put(rows([k % 30], f"v{k}"))
    writer.delete([3, 4])
    writer.abort()
    open_writer(tmp_path, None, **SMALL).abort()
    found = mw.open_table(str(tmp_path)).scan().to_table()
    assert contents(found) == {k: f"v{60 + k}" for k in range(30) if k not in (3, 4)}
    manifest = ShardManifestStore(resolve(str(tmp_path)), SHARD).read_latest()
    assert manifest is not None
    [sstable] = manifest.sstables
    assert (sstable.generation, sstable.physical_rows) == (1, 92)
    dataset = lance.dataset(f"{tmp_path}/{paths.sstable_dir(SHARD, sstable.path)}")
    assert len(dataset.get_fragments()) == 1
    assert dataset.count_rows() == 30


def test_generations_before_and_after_a_streamed_one_stay_apart(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    store.fail("put", BLOOM)
    writer = open_writer(location)
    for count in (2, 60, 3):
        for k in range(count):
            writer.put(rows([100 * count + k]))
        writer.force_seal_active()
    writer.put(rows([7]))
    writer.abort()
    writer = open_writer(tmp_path, **SMALL)
    assert {g: len(found) for g, found in flushed(tmp_path).items()} == {1: 2, 2: 60, 3: 3}
    assert set(scanned(writer)) == {7}
    writer.close()


def test_the_memory_of_replay_is_bounded(tmp_path: Path) -> None:
    schema = pa.schema([KEYED.field("id"), ("data", pa.binary())])
    writer = open_writer(tmp_path, schema, fsync=False, max_memtable_size=1 << 40)
    data = np.random.default_rng(1).bytes(1 << 20)
    for k in range(240):
        writer.put(pa.record_batch([[k], [data]], schema=schema))
    writer.abort()
    child = (
        "import resource, sys, lance_memwal\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024\n"
        "import lance, pyarrow as pa\n"
        "before = peak()\n"
        "schema = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(sys.argv[3])))\n"
        "lance_memwal.ShardWriter.open(sys.argv[1], schema, shard_id=sys.argv[2], fsync=False,\n"
        "    max_unflushed_memtable_bytes=20_000_000).close()\n"
        "print(peak() - before)\n"
    )
    encoded = schema.serialize().to_pybytes().hex()
    done = subprocess.run(
        [sys.executable, "-c", child, str(tmp_path), SHARD, encoded],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert int(done.stdout) < 160, "240 MB of log were in memory at once"
    assert len(flushed(tmp_path)[1]) == 240
