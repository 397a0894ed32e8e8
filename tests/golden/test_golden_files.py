"""What memwal, and pylance in several versions, wrote once stays readable, to the same values and bytes."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from golden import make_memwal_golden
from golden.make_pylance_versions import DELETES, SCHEMAS, expected
from golden.make_pylance_versions import SHARD as VERSION_SHARD
from lance_memwal import SsTable, WalEntry
from lance_memwal.lance.details import decode_details, encode_details
from lance_memwal.log.entry import decode_entry
from lance_memwal.log.invariants import check_manifest_transition
from lance_memwal.log.manifest_codec import decode_manifest, encode_manifest
from lance_memwal.store import paths
from lance_memwal.types import (
    BaseMark,
    EntryFooter,
    EntryTransaction,
    SeenTransaction,
    ShardManifest,
    ShardStatus,
    Transaction,
)
from tests.kit.golden_tables import GOLDEN as VERSIONS
from tests.kit.golden_tables import POSITIONAL_VERSIONS, PYLANCE_VERSIONS, pylance_table, shown
from tests.kit.logs import manifest_faults

GOLDEN = Path(__file__).resolve().parent / "memwal"
SHARD = "12345678-9abc-4def-8123-456789abcdef"
SEEN = {
    "orders": SeenTransaction(41, 1_700_000_000_000, "query-1"),
    "café": SeenTransaction(9_223_372_036_854_775_807, 1, None),
}
ORDERS = Transaction("orders", 41, "query-1")
TXNS = (EntryTransaction(ORDERS, 0, 1), EntryTransaction(Transaction("memwal:client", 7), 1, 2))
TIMED = EntryFooter(table="0123abcd", written_ms=1_700_000_000_001)
BULK = SsTable(4, "00c0ffee_gen_4", 4096, 10, None)
NOT_WRITTEN_ANY_MORE = {"entry_with_delta"}  # readers ignore the key
THREE_ROWS = [[(n, f"name-{n}", False) for n in (7, 8, 9)]]
AT = datetime(1970, 1, 1, tzinfo=UTC)
# Per entry: epoch, generation, sentinel, footer, rows per batch.
ENTRIES: dict[str, tuple[Any, ...]] = {
    "entry": (3, 2, False, EntryFooter(), [[(1, "name-1", False), (2, "name-2", False), (3, None, True)]]),
    "entry_of_two_batches": (
        3,
        2,
        False,
        EntryFooter(),
        [[(1, "name-1", False)], [(2, "name-2", False), (1, None, True)]],
    ),
    "entry_with_map": (3, 2, False, EntryFooter(seen=SEEN), [[(5, "name-5", False)]]),
    "entry_with_time": (3, 2, False, TIMED, [[(6, "name-6", False)]]),
    "entry_with_base": (3, 2, False, TIMED._replace(base=BaseMark(17)), [[(6, "name-6", False)]]),
    "entry_with_fragments": (3, 2, False, TIMED._replace(base=BaseMark(17, 4)), [[(6, "name-6", False)]]),
    "entry_with_txns": (3, 2, False, TIMED._replace(txns=TXNS), THREE_ROWS),
    "entry_with_txns_and_map": (3, 2, False, TIMED._replace(txns=TXNS, seen=SEEN), THREE_ROWS),
    "entry_with_delta": (3, 2, False, TIMED, [[(6, "name-6", False)]]),
    "entry_of_many_types": (
        1,
        1,
        False,
        EntryFooter(),
        [
            [
                (
                    "ab"[n % 2],
                    Decimal(n * 25) / 100,
                    [float(n), -1.0],
                    [{"k": "x", "v": n}, None],
                    AT + timedelta(microseconds=n),
                    False,
                )
                for n in range(4)
            ]
        ],
    ),
    "sentinel": (4, None, True, EntryFooter(), []),
    "sentinel_with_map": (5, None, True, EntryFooter(seen=SEEN), []),
    "sentinel_with_time": (5, None, True, TIMED._replace(seen={}), []),
    "mark": (6, None, False, EntryFooter(seen=SEEN), []),
    "seal": (6, None, False, TIMED._replace(seen=SEEN, seal=3), []),
    "bulk": (6, None, False, TIMED._replace(seen=SEEN, txns=TXNS, bulk=BULK), []),
}
FIRST = SsTable(1, "00c0ffee_gen_1", 4096, 10, 80)
SECOND = SsTable(2, "0badf00d_gen_2")
MANIFESTS = {
    "claimed": ShardManifest(1, SHARD, writer_epoch=1),
    "flushed": ShardManifest(4, SHARD, 1, (("bucket", b"\3\0\0\0"),), 2, 7, 8, 3, (FIRST, SECOND)),
    "sealed": ShardManifest(9, SHARD, 0, (), 1 << 40, 1 << 50, 1 << 51, 2, (FIRST,), ShardStatus.SEALED),
}


def values(entry: WalEntry) -> tuple[Any, ...]:
    batches = [[tuple(row.values()) for row in batch.to_pylist()] for batch in entry.batches]
    return entry.writer_epoch, entry.generation, entry.is_sentinel, entry.footer, batches


def test_the_golden_files_are_those_that_are_spelled_here() -> None:
    assert {file.stem for file in (GOLDEN / "entries").iterdir()} == set(ENTRIES)
    assert {file.stem for file in (GOLDEN / "manifests").iterdir()} == set(MANIFESTS)


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_that_we_wrote_decodes_to_the_same_values_for_ever(name: str) -> None:
    data = (GOLDEN / "entries" / f"{name}.arrow").read_bytes()
    entry = decode_entry(data, 7)
    assert values(entry) == ENTRIES[name]
    assert (entry.position, entry.size_bytes) == (7, len(data))


@pytest.mark.parametrize("name", sorted(ENTRIES.keys() - NOT_WRITTEN_ANY_MORE))
def test_what_is_encoded_today_decodes_like_the_golden_entry(name: str) -> None:
    assert values(decode_entry(make_memwal_golden.entries()[name])) == ENTRIES[name]


@pytest.mark.parametrize("name", ENTRIES)
def test_a_reader_of_plain_arrow_streams_sees_the_same_rows(name: str) -> None:
    with pa.ipc.open_stream((GOLDEN / "entries" / f"{name}.arrow").read_bytes()) as reader:
        metadata = {key.decode(): value.decode() for key, value in (reader.schema.metadata or {}).items()}
        rows = [[tuple(row.values()) for row in batch.to_pylist()] for batch in reader]
    epoch, generation, sentinel, _, batches = ENTRIES[name]
    assert rows == batches
    known = {"writer_epoch": str(epoch), "generation": str(generation), "fence_sentinel": "true"}
    wanted = {"writer_epoch"} | ({"generation"} if generation else set()) | ({"fence_sentinel"} if sentinel else set())
    assert metadata == {key: known[key] for key in wanted}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_that_we_wrote_decodes_to_the_same_value_and_encodes_to_the_same_bytes_for_ever(name: str) -> None:
    data = (GOLDEN / "manifests" / f"{name}.binpb").read_bytes()
    assert decode_manifest(data) == MANIFESTS[name]
    assert encode_manifest(MANIFESTS[name]) == data


PYLANCE = Path(__file__).resolve().parent / "pylance"
PK_SHARD = "11111111-2222-4333-8444-555555555555"
APPEND_SHARD = "66666666-7777-4888-9999-aaaaaaaaaaaa"
PYLANCE_MANIFESTS = sorted(PYLANCE.rglob("*/manifest/*.binpb"))
DETAILS = sorted((PYLANCE / "details").glob("*.binpb"))


def manifests(table: str, shard_id: str) -> list[ShardManifest]:
    found = []
    for file in (PYLANCE / table / paths.manifest_dir(shard_id)).glob("*.binpb"):
        version = paths.parse_manifest_name(file.name)
        found.append(decode_manifest(file.read_bytes(), expected_version=version, expected_shard_id=shard_id))
    return sorted(found, key=lambda manifest: manifest.version)


def test_the_golden_files_are_all_there_and_small() -> None:
    assert len(PYLANCE_MANIFESTS) == 9
    assert len(DETAILS) == 8
    assert sum(file.stat().st_size for file in PYLANCE.rglob("*") if file.is_file()) < 200_000


@pytest.mark.parametrize("file", PYLANCE_MANIFESTS, ids=lambda file: f"{file.parts[-5]}-{file.name[:4]}")
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
        assert (PYLANCE / "pk_table" / paths.sstable_dir(PK_SHARD, sstable.path) / "data").is_dir()


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
    for file in (PYLANCE / "pk_table" / paths.wal_dir(PK_SHARD)).iterdir():
        with pa.ipc.open_stream(file.read_bytes()) as reader:
            metadata = {key.decode(): value.decode() for key, value in (reader.schema.metadata or {}).items()}
            entries[paths.parse_entry_name(file.name) or 0] = (metadata, reader.read_all())
    assert sorted(entries) == [1, 2, 3, 4, 5, 6, 7, 8]
    sentinels = [position for position, (metadata, _) in sorted(entries.items()) if "fence_sentinel" in metadata]
    assert sentinels == [3, 6]
    assert entries[2][1]["_tombstone"].to_pylist() == [True]
    assert [entries[p][1]["id"].to_pylist() for p in (1, 2, 4, 5, 7, 8)] == [[2, 3], [1], [4, 5], [4], [6], [7]]
    assert entries[8][0] == {"writer_epoch": "3", "generation": "3"}


# Tables of older and present pylance versions show the rows that were written, before and after flush and compaction.

# A kept base version shows the ids of these generations with the same names, so positions and ids are both possible.
UNCERTAIN = [(version, "readded") for version in POSITIONAL_VERSIONS]
CERTAIN = [pair for version in PYLANCE_VERSIONS for name in SCHEMAS if (pair := (version, name)) not in UNCERTAIN]


def test_there_is_a_small_archive_per_version() -> None:
    archives = sorted((VERSIONS / "pylance_versions").iterdir())
    assert [file.name.removesuffix(".tar.xz") for file in archives] == sorted(PYLANCE_VERSIONS)
    assert sum(file.stat().st_size for file in archives) < 200_000


@pytest.mark.parametrize(("version", "name"), CERTAIN)
def test_a_table_of_pylance_shows_its_rows_in_every_tier(version: str, name: str, tmp_path: Path) -> None:
    uri = pylance_table(version, name, tmp_path)
    table = mw.open_table(uri)
    assert shown(table) == expected(name)
    assert table.verify().ok
    check_keys(table, name)
    mw.ShardWriter.open(uri, shard_id=VERSION_SHARD).close()  # replays the log tail, and flushes it
    assert shown(mw.open_table(uri)) == expected(name)
    table = mw.open_table(uri)
    table.compact()
    assert shown(table) == expected(name)
    assert table.verify().ok
    check_keys(table, name)


def check_keys(table: mw.Table, name: str) -> None:
    """Point lookups show the same rows as the scan, and no deleted row."""
    if name == "append":
        return
    for row in expected(name):
        found = table.get(row["id"])
        assert found is not None
        assert {k: v for k, v in found.items() if k != "image"} == {k: v for k, v in row.items() if k != "image"}
    for key in (key for keys in DELETES.values() for key in keys):
        assert table.get(key) is None


@pytest.mark.parametrize(("version", "name"), UNCERTAIN)
def test_a_table_of_pylance_with_uncertain_columns_is_refused(version: str, name: str, tmp_path: Path) -> None:
    table = mw.open_table(pylance_table(version, name, tmp_path))
    for read in (lambda: table.scan().to_table(), lambda: table.get(2), table.compact):
        with pytest.raises(mw.UnsupportedFormatError, match="field ids"):
            read()
    assert {problem.invariant for problem in table.verify().problems} == {"V-12"}
