"""The manifest between memwal and pylance: each builds on the versions of the other, byte for byte."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_memwal import FencedError, ShardManifest, ShardManifestStore, ShardStatus, SsTable, WalAppender
from lance_memwal.lance.base import BaseTable
from lance_memwal.log.manifest_codec import decode_manifest, encode_manifest
from lance_memwal.sstable.write import write_sstable
from lance_memwal.store import paths
from lance_memwal.store.location import Location, resolve
from tests.kit.logs import SHARD, lance_table, manifests_at, place, read_all, rows


def peer(uri: str) -> Any:
    return lance.dataset(uri).mem_wal_writer(SHARD)


def peer_ids(writer: Any) -> list[int]:
    return sorted(writer.lsm_scanner().to_table().column("id").to_pylist())


def history(location: Location) -> list[tuple[ShardManifest, bytes]]:
    """Every version, decoded and as it is on storage."""
    found = []
    for version in manifests_at(location).list_versions():
        data = location.store.get(paths.manifest_path(SHARD, version))
        found.append((decode_manifest(data, expected_version=version, expected_shard_id=SHARD), data))
    return found


def flush_by_hand(uri: str, generation: int, table: pa.Table, epoch: int, cursor: int) -> ShardManifest:
    """Write a generation and commit it, as a flush does."""
    location = resolve(uri)
    base = BaseTable.open(location)
    assert base is not None
    sstable = write_sstable(
        location,
        SHARD,
        generation,
        table.append_column(pa.field("_tombstone", pa.bool_(), nullable=False), [[False] * table.num_rows]),
        schema=base.columns,
        storage_version=base.data_storage_version,
        fsync=False,
    )

    def update(manifest: ShardManifest) -> ShardManifest:
        return replace(
            manifest,
            version=manifest.version + 1,
            sstables=(*manifest.sstables, sstable),
            current_generation=generation + 1,
            replay_after_wal_entry_position=cursor,
            wal_entry_position_last_seen=max(cursor, manifest.wal_entry_position_last_seen),
        )

    return ShardManifestStore(uri, SHARD, fsync=False).commit_update(epoch, update)


def test_pylance_claims_on_top_of_our_claims_and_every_version_has_the_same_bytes_in_both(tmp_path: Path) -> None:
    uri = lance_table(tmp_path)
    store = ShardManifestStore(uri, SHARD)
    for epoch in (1, 2, 3):
        assert store.claim_epoch()[0] == epoch
    peer(uri).close()
    versions = history(place(tmp_path))
    assert [m.writer_epoch for m, _ in versions][:4] == [1, 2, 3, 4]
    assert all(encode_manifest(manifest) == data for manifest, data in versions)
    ours, theirs = versions[2][0], versions[3][0]
    assert theirs == replace(ours, version=4, writer_epoch=4), "a claim of pylance is a claim of ours"


def test_pylance_finds_our_newest_version_through_our_hint_and_without_it(tmp_path: Path) -> None:
    for hint in (b'{"version":8}', b'{"version":1}', b"garbage", None):
        directory = tmp_path / repr(hint)
        directory.mkdir()
        uri = lance_table(directory)
        store = ShardManifestStore(uri, SHARD)
        for _ in range(8):
            store.claim_epoch()
        location = place(directory)
        path = paths.manifest_hint_path(SHARD)
        assert location.store.get(path) == b'{"version":8}'
        location.store.delete(path)
        if hint is not None:
            location.store.put(path, hint)
        peer(uri).close()
        latest = store.read_latest()
        assert latest is not None
        assert latest.writer_epoch == 9


def test_pylance_opens_a_shard_after_our_flush_and_reads_every_row_once(tmp_path: Path) -> None:
    uri = lance_table(tmp_path)
    writer = WalAppender.open(uri, SHARD, fsync=False)
    writer.append(rows(1, 2))
    writer.append(rows(3))
    flush_by_hand(uri, 1, pa.Table.from_batches([rows(1, 2, 3)]), 1, 2)
    writer = WalAppender.open(uri, SHARD, fsync=False)
    writer.append(rows(4))
    with peer(uri) as reader:
        assert peer_ids(reader) == [1, 2, 3, 4]
        reader.put(rows(5))
    latest = ShardManifestStore(uri, SHARD).read_latest()
    assert latest is not None
    assert [sstable.generation for sstable in latest.sstables] == [1, 2]
    with peer(uri) as reader:
        assert peer_ids(reader) == [1, 2, 3, 4, 5]


def test_a_generation_that_we_published_is_not_replayed_again_by_pylance(tmp_path: Path) -> None:
    """Rows of a table without a key would be there twice."""
    uri = lance_table(tmp_path, pa.schema([("id", pa.int64())]))
    writer = WalAppender.open(uri, SHARD, fsync=False)
    writer.append(pa.table({"id": [1, 2]}))
    flush_by_hand(uri, 1, pa.table({"id": [1, 2]}), 1, 1)
    peer(uri).close()
    latest = ShardManifestStore(uri, SHARD).read_latest()
    assert latest is not None
    assert [sstable.physical_rows for sstable in latest.sstables] == [2]


def test_we_build_on_the_flushes_of_pylance(tmp_path: Path) -> None:
    uri = lance_table(tmp_path)
    with peer(uri) as writer:
        writer.put(rows(1, 2))
    store = ShardManifestStore(uri, SHARD)
    theirs = store.read_latest()
    assert theirs is not None
    assert (theirs.writer_epoch, theirs.current_generation, theirs.replay_after_wal_entry_position) == (1, 2, 1)
    writer = WalAppender.open(uri, SHARD, fsync=False)
    writer.append(rows(3))
    assert [entry.generation for entry in read_all(uri) if entry.batches] == [1, 2]
    flush_by_hand(uri, 2, pa.Table.from_batches([rows(3)]), 2, 3)
    with peer(uri) as reader:
        assert peer_ids(reader) == [1, 2, 3]
    assert all(encode_manifest(manifest) == data for manifest, data in history(place(tmp_path)))


def test_a_trim_of_ours_fences_nobody_and_pylance_flushes_on_top_of_it(tmp_path: Path) -> None:
    uri = lance_table(tmp_path)
    with peer(uri) as writer:
        writer.put(rows(1))
    with peer(uri) as writer:
        writer.put(rows(2))
        trimmed = ShardManifestStore(uri, SHARD).commit_maintenance(
            lambda m: replace(m, version=m.version + 1, sstables=())
        )
        assert trimmed.writer_epoch == 2
        writer.put(rows(3))
    latest = ShardManifestStore(uri, SHARD).read_latest()
    assert latest is not None
    assert (latest.writer_epoch, [sstable.generation for sstable in latest.sstables]) == (2, [2])


def test_pylance_refuses_a_shard_that_we_sealed(tmp_path: Path) -> None:
    uri = lance_table(tmp_path)
    store = ShardManifestStore(uri, SHARD)
    store.claim_epoch()
    store.commit_update(1, lambda m: replace(m, version=m.version + 1, status=ShardStatus.SEALED))
    with pytest.raises(OSError, match="sealed"):
        peer(uri)


def test_our_commits_are_fenced_by_the_open_of_pylance(tmp_path: Path) -> None:
    uri = lance_table(tmp_path)
    store = ShardManifestStore(uri, SHARD)
    epoch, _ = store.claim_epoch()
    with peer(uri), pytest.raises(FencedError) as error:
        store.commit_update(epoch, lambda m: replace(m, version=m.version + 1, wal_entry_position_last_seen=1))
    assert error.value.current_epoch == 2


def test_pylance_keeps_the_identity_that_we_gave_a_shard(tmp_path: Path) -> None:
    uri = lance_table(tmp_path, bucket_column="id", num_buckets=2)
    store = ShardManifestStore(uri, SHARD)
    first = ShardManifest(1, SHARD, 1, (("bucket", b"\1\0\0\0"),), current_generation=1)
    place(tmp_path).store.put_new(paths.manifest_path(SHARD, 1), encode_manifest(first))
    peer(uri).close()
    latest = store.read_latest()
    assert latest is not None
    assert (latest.shard_spec_id, latest.shard_field_entries, latest.writer_epoch) == (1, (("bucket", b"\1\0\0\0"),), 1)


def test_numbers_beyond_32_bits_mean_the_same_to_both(tmp_path: Path) -> None:
    uri = lance_table(tmp_path)
    location = place(tmp_path)
    large = ShardManifest(
        3,
        SHARD,
        writer_epoch=1 << 40,
        replay_after_wal_entry_position=1 << 41,
        wal_entry_position_last_seen=(1 << 41) + 1,
        current_generation=1 << 35,
    )
    for version in (1, 2, 3):
        data = encode_manifest(replace(large, version=version))
        location.store.put_new(paths.manifest_path(SHARD, version), data)
    peer(uri).close()
    versions = history(location)
    assert versions[3][0] == replace(large, version=4, writer_epoch=(1 << 40) + 1)
    assert all(encode_manifest(manifest) == data for manifest, data in versions)


def test_an_sstable_without_counts_is_read_by_pylance(tmp_path: Path) -> None:
    uri = lance_table(tmp_path)
    WalAppender.open(uri, SHARD, fsync=False).append(rows(1))
    committed = flush_by_hand(uri, 1, pa.Table.from_batches([rows(1)]), 1, 1)
    bare = tuple(SsTable(sstable.generation, sstable.path) for sstable in committed.sstables)
    data = encode_manifest(replace(committed, version=committed.version + 1, sstables=bare))
    place(tmp_path).store.put_new(paths.manifest_path(SHARD, committed.version + 1), data)
    with peer(uri) as reader:
        assert peer_ids(reader) == [1]
