"""Bytes between memwal and pylance: manifests that build on each other, features of newer writers, and statistics of
text indexes.
"""

import struct
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from benchmarks.texts import Texts
from lance_memwal import FencedError, ShardManifest, ShardManifestStore, ShardStatus, SsTable, WalAppender
from lance_memwal.lance import manifest as lm
from lance_memwal.lance import wire
from lance_memwal.lance.base import BaseTable
from lance_memwal.log.manifest_codec import decode_manifest, encode_manifest
from lance_memwal.memtable.index import CorpusStats, FtsIndex
from lance_memwal.read.text_index import TextIndex
from lance_memwal.sstable.write import write_sstable
from lance_memwal.store import paths
from lance_memwal.store.location import Location, resolve
from lance_memwal.table import newest_base
from tests.kit.logs import SHARD, lance_table, manifests_at, place, read_all, rows
from tests.kit.text_peer import ANALYZERS, corpus


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


# Datasets with features of newer writers: read through Lance where Lance knows them, else "not understood", never
# "damaged".

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
FLAGS = [128, 256, 512, 1024, 2048, 4096, 8192]


def set_reader_flag(path: Path, flag: int) -> None:
    """Rewrite a manifest of Lance, which ends with the place of its message."""
    data = path.read_bytes()
    manifest = lm.parse_lance_manifest(data)
    others = [field for field in manifest.message if field.number != lm.READER_FLAGS]
    body = wire.join([*others, wire.varint_field(lm.READER_FLAGS, manifest.reader_flags | flag)])
    (start,) = struct.unpack("<Q", data[-16:-8])
    path.write_bytes(data[:start] + struct.pack("<I", len(body)) + body + struct.pack("<Q", start) + data[-8:])


def newest_manifest(dataset: Path) -> Path:
    return min((dataset / "_versions").glob("*.manifest"))  # numbers count down


def lance_reads(dataset: Path) -> bool:
    try:
        return lance.dataset(str(dataset)).count_rows() >= 0
    except (ValueError, OSError):
        return False


def make(uri: Path) -> mw.Table:
    table = mw.create_table(str(uri), SCHEMA, primary_key="id", writer_defaults={"fsync": False})
    with table.shard_writer() as writer:
        writer.put([{"id": i, "text": f"word{i} common"} for i in range(6)])
    table.compact()
    with table.shard_writer() as writer:
        writer.put([{"id": i, "text": "fresh common"} for i in range(4, 9)])
    return table


@pytest.mark.parametrize("flag", FLAGS)
def test_a_generation_is_never_read_behind_the_back_of_lance(tmp_path: Path, flag: int) -> None:
    uri = tmp_path / "t"
    make(uri)
    (generation,) = uri.glob("_mem_wal/*/*_gen_2")
    set_reader_flag(newest_manifest(generation), flag)
    table = mw.open_table(str(uri))
    reads = (lambda: table.scan().to_table(), lambda: table.get(8), table.compact)
    if lance_reads(generation):
        assert table.count_rows() == 9
        assert table.get(8) == {"id": 8, "text": "fresh common"}
        return
    for read in reads:
        with pytest.raises(mw.UnsupportedFormatError, match=f"reader flags {flag}"):
            read()


@pytest.mark.parametrize("flag", FLAGS)
def test_a_base_table_with_features_that_lance_does_not_know_is_not_called_damaged(tmp_path: Path, flag: int) -> None:
    uri = tmp_path / "t"
    make(uri)
    lance.dataset(str(uri)).create_scalar_index("text", "INVERTED")
    expected = sorted(mw.open_table(str(uri)).search(text="common", k=20)["id"].to_pylist())
    set_reader_flag(newest_manifest(uri), flag)
    if not lance_reads(uri):
        with pytest.raises(mw.UnsupportedFormatError, match=f"reader flags {flag}"):
            mw.open_table(str(uri))
        return
    table = mw.open_table(str(uri))
    assert not newest_base(table).takes_hand_commit
    assert table.count_rows() == 9
    assert sorted(table.search(text="common", k=20)["id"].to_pylist()) == expected == list(range(9))


# The statistics of Lance's text index follow from its scores. These tests fail on the day that Lance scores in
# another way.

TEXT = pa.list_(pa.string())


def derived(dataset: lance.LanceDataset, options: dict[str, Any], terms: Iterable[str]) -> CorpusStats | None:
    """The statistics of the index on `t`, for some terms."""
    analyzer = FtsIndex("t", **options).build(pa.schema([("t", pa.string())])).analyzer
    index = TextIndex.find(BaseTable.need(resolve(dataset.uri)), "t", analyzer)
    assert index is not None
    return index.stats(terms)


def counted(texts: pa.Array, options: dict[str, Any]) -> CorpusStats:
    """The statistics of some texts, for their first terms and one that they lack."""
    index = FtsIndex("t", **options).build(pa.schema([("t", texts.type)]))
    index.insert(pa.record_batch([texts], names=["t"]), 0)
    return index.stats([*index.analyzer.documents(texts).terms[:60], "nosuchterm"], len(texts))


def dataset_of(path: Path, texts: pa.Array, options: dict[str, Any], **how: Any) -> lance.LanceDataset:
    dataset = lance.write_dataset(pa.table([texts], names=["t"]), str(path / "t"), **how)
    lists = {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}
    dataset.create_scalar_index("t", "INVERTED", name="t_fts", **lists)
    return dataset


@pytest.mark.parametrize("analyzer", ANALYZERS)
def test_frequencies_and_the_average_length_are_exact(tmp_path: Path, analyzer: str) -> None:
    """Lance cannot search some terms alone: n-grams of several words, the stem of a whole text, and the Turkish I."""
    options, texts = ANALYZERS[analyzer], pa.array(corpus(7, 600), pa.string())
    expected = counted(texts, options)
    found = derived(dataset_of(tmp_path, texts, options), options, expected.doc_freq)
    assert found is not None
    assert (found.doc_count, found.total_tokens) == (expected.doc_count, expected.total_tokens)
    assert found.doc_freq == {term: expected.doc_freq[term] for term in found.doc_freq}
    assert len(found.doc_freq) >= len(expected.doc_freq) * (0.3 if "ngram" in analyzer else 0.9)


def test_they_are_those_of_all_segments_and_deleted_rows_still_count(tmp_path: Path) -> None:
    texts = pa.array([text for text in corpus(7, 900) if text], pa.string())
    dataset = dataset_of(tmp_path, texts[:500], {}, max_rows_per_file=100)
    lance.write_dataset(pa.table([texts[500:]], names=["t"]), dataset.uri, mode="append")
    dataset = lance.dataset(dataset.uri)
    dataset.optimize.optimize_indices(num_indices_to_merge=0)
    dataset.delete("_rowid % 7 = 3")
    assert len(dataset.describe_indices()[0].segments) == 2
    expected = counted(texts, {})
    known = {term: count for term, count in expected.doc_freq.items() if term != "i\u0307stanbul"}
    assert derived(dataset, {}, known) == CorpusStats(expected.doc_count, expected.total_tokens, known)


def test_they_are_exact_over_several_partitions_and_rows_of_one_length(tmp_path: Path) -> None:
    make = Texts(2_000)
    texts = make.rows(0, 20_000, 1)["t"].combine_chunks()
    options = {"stem": False, "remove_stop_words": False}
    dataset = dataset_of(tmp_path, texts, {**options, "memory_limit": 1})
    assert len(list(tmp_path.glob("t/_indices/*/part_*_docs.lance"))) > 1
    expected = counted(texts, options)
    assert derived(dataset, options, expected.doc_freq) == expected


def test_they_are_exact_if_all_rows_have_one_length(tmp_path: Path) -> None:
    words = corpus(3, 600, ["amber", "cedar", "otter", "fox"])
    texts = pa.array([f"{one} quick" for one in " ".join(filter(None, words)).split()[:300]])
    expected = counted(texts, {})
    assert derived(dataset_of(tmp_path, texts, {}), {}, expected.doc_freq) == expected


def test_a_list_of_strings_is_one_document(tmp_path: Path) -> None:
    words = corpus(3, 900, ["amber", "cedar", "otter", "quick fox"])
    texts = pa.array([words[i : i + 1 + i % 3] for i in range(0, 900, 3)], TEXT)
    expected = counted(texts, {})
    assert derived(dataset_of(tmp_path, texts, {}), {}, expected.doc_freq) == expected
