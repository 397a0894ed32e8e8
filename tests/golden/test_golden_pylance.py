"""What pylance 14 wrote stays readable, and our manifests and details are its bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from lance_memwal.lance.details import decode_details, encode_details
from lance_memwal.log.invariants import check_manifest_transition
from lance_memwal.log.manifest_codec import decode_manifest, encode_manifest
from lance_memwal.store import paths
from lance_memwal.types import ShardManifest, ShardStatus
from tests.kit.manifests import manifest_faults

GOLDEN = Path(__file__).resolve().parent / "pylance"
PK_SHARD = "11111111-2222-4333-8444-555555555555"
APPEND_SHARD = "66666666-7777-4888-9999-aaaaaaaaaaaa"
MANIFESTS = sorted(GOLDEN.rglob("*/manifest/*.binpb"))
DETAILS = sorted((GOLDEN / "details").glob("*.binpb"))


def manifests(table: str, shard_id: str) -> list[ShardManifest]:
    found = []
    for file in (GOLDEN / table / paths.manifest_dir(shard_id)).glob("*.binpb"):
        version = paths.parse_manifest_name(file.name)
        found.append(decode_manifest(file.read_bytes(), expected_version=version, expected_shard_id=shard_id))
    return sorted(found, key=lambda manifest: manifest.version)


def test_the_golden_files_are_all_there_and_small() -> None:
    assert len(MANIFESTS) == 9
    assert len(DETAILS) == 8
    assert sum(file.stat().st_size for file in GOLDEN.rglob("*") if file.is_file()) < 200_000


@pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: f"{file.parts[-5]}-{file.name[:4]}")
def test_a_manifest_of_pylance_is_encoded_byte_for_byte(file: Path) -> None:
    data = file.read_bytes()
    assert encode_manifest(decode_manifest(data)) == data


def test_the_life_of_a_shard_reads_as_it_was_lived() -> None:
    life = [
        (m.version, m.writer_epoch, m.replay_after_wal_entry_position, m.current_generation, len(m.sstables))
        for m in manifests("pk_table", PK_SHARD)
    ]
    claims_and_last_seen = [(3, 2, 2, 2, 1), (4, 2, 2, 2, 1)], [(6, 3, 5, 3, 2), (7, 3, 5, 3, 2)]
    assert life[:2] == [(1, 1, 0, 1, 0), (2, 1, 2, 2, 1)]
    assert (life[2:4], life[5:]) == claims_and_last_seen
    assert life[4] == (5, 2, 5, 3, 2)


def test_the_newest_manifest_lists_generations_that_exist_with_their_counts() -> None:
    newest = manifests("pk_table", PK_SHARD)[-1]
    assert newest.status is ShardStatus.ACTIVE
    assert [(s.generation, s.physical_rows, s.primary_key_bytes) for s in newest.sstables] == [(1, 3, 24), (2, 3, 24)]
    for sstable in newest.sstables:
        assert (GOLDEN / "pk_table" / paths.sstable_dir(PK_SHARD, sstable.path) / "data").is_dir()


def test_an_append_only_shard_records_no_key_bytes() -> None:
    newest = manifests("append_table", APPEND_SHARD)[-1]
    assert newest.shard_spec_id == 1
    assert [(s.physical_rows, s.primary_key_bytes) for s in newest.sstables] == [(8, None)]


@pytest.mark.parametrize(("table", "shard"), [("pk_table", PK_SHARD), ("append_table", APPEND_SHARD)])
def test_our_rules_accept_every_step_that_pylance_took(table: str, shard: str) -> None:
    history = manifests(table, shard)
    for old, new in zip([None, *history], history, strict=False):
        check_manifest_transition(old, new)
        assert manifest_faults(new) == []


@pytest.mark.parametrize("file", DETAILS, ids=lambda file: file.stem)
def test_details_of_pylance_are_encoded_byte_for_byte(file: Path) -> None:
    data = file.read_bytes()
    assert encode_details(decode_details(data)) == data


@pytest.mark.parametrize("file", DETAILS, ids=lambda file: file.stem)
def test_details_made_from_values_alone_have_the_bytes_of_pylance_up_to_the_order_of_maps(file: Path) -> None:
    details = decode_details(file.read_bytes())
    fresh = encode_details(replace(details, raw=b""))
    assert decode_details(fresh) == details
    assert sorted(fresh) == sorted(file.read_bytes())
    if not details.writer_config_defaults:
        assert fresh == file.read_bytes()


def test_details_say_how_each_table_was_initialised() -> None:
    found = {file.stem: decode_details(file.read_bytes()) for file in DETAILS}
    assert (found["default"].maintain_all_indexes, found["default"].num_shards) == (True, 0)
    assert found["maintained_none"].maintain_all_indexes is False
    assert found["maintained_list"].maintained_indexes == ("by_id",)
    assert (found["unsharded"].num_shards, found["bucket"].num_shards, found["identity"].num_shards) == (1, 4, 0)
    options = found["writer_options"].writer_config_defaults
    assert (options["max_memtable_rows"], options["durable_write"], len(options)) == ("500", "false", 13)
    done = found["compacted_and_caught_up"]
    assert done.compacted == {PK_SHARD: 3, APPEND_SHARD: 3}
    assert done.index_catchup == {"by_id": {PK_SHARD: 3, APPEND_SHARD: 3}}


def test_the_wal_of_a_shard_holds_rows_tombstones_and_sentinels() -> None:
    entries = {}
    for file in (GOLDEN / "pk_table" / paths.wal_dir(PK_SHARD)).iterdir():
        with pa.ipc.open_stream(file.read_bytes()) as reader:
            metadata = {key.decode(): value.decode() for key, value in (reader.schema.metadata or {}).items()}
            entries[paths.parse_entry_name(file.name) or 0] = (metadata, reader.read_all())
    assert sorted(entries) == [1, 2, 3, 4, 5, 6, 7, 8]
    sentinels = [position for position, (metadata, _) in sorted(entries.items()) if "fence_sentinel" in metadata]
    assert sentinels == [3, 6]
    assert entries[2][1]["_tombstone"].to_pylist() == [True]
    assert [entries[p][1]["id"].to_pylist() for p in (1, 2, 4, 5, 7, 8)] == [[2, 3], [1], [4, 5], [4], [6], [7]]
    assert entries[8][0] == {"writer_epoch": "3", "generation": "3"}
