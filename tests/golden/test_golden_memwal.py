"""What memwal wrote once stays readable, to the same values."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from golden import make_memwal_golden
from lance_memwal import ShardManifest, ShardStatus, SsTable, WalEntry
from lance_memwal.log.entry import decode_entry
from lance_memwal.log.manifest_codec import decode_manifest, encode_manifest
from lance_memwal.types import EntryFooter, EntryTransaction, SeenTransaction, Transaction

GOLDEN = Path(__file__).resolve().parent / "memwal"
SHARD = "12345678-9abc-4def-8123-456789abcdef"
SEEN = {
    "orders": SeenTransaction(41, 1_700_000_000_000, "query-1"),
    "café": SeenTransaction(9_223_372_036_854_775_807, 1, None),
}
ORDERS = Transaction("orders", 41, "query-1")
FIRST_LAYOUT = EntryFooter(txns=(EntryTransaction(ORDERS, 0, None),), seen=SEEN)  # the map holds the transaction
TXNS = (EntryTransaction(ORDERS, 0, 1), EntryTransaction(Transaction("memwal:client", 7), 1, 2))
TIMED = EntryFooter(table="0123abcd", written_ms=1_700_000_000_001)
BULK = SsTable(4, "00c0ffee_gen_4", 4096, 10, None)
NOT_WRITTEN_ANY_MORE = {"entry_with_txn"}
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
    "entry_with_txn": (3, 2, False, FIRST_LAYOUT, [[(4, "name-4", False)]]),
    "entry_with_map": (3, 2, False, EntryFooter(seen=SEEN), [[(5, "name-5", False)]]),
    "entry_with_time": (3, 2, False, TIMED, [[(6, "name-6", False)]]),
    "entry_with_txns": (3, 2, False, TIMED._replace(txns=TXNS), THREE_ROWS),
    "entry_with_txns_and_map": (3, 2, False, TIMED._replace(txns=TXNS, seen=SEEN), THREE_ROWS),
    "entry_with_delta": (3, 2, False, TIMED._replace(delta=SEEN), [[(6, "name-6", False)]]),
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
