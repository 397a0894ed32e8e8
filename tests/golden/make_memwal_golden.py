"""Write the golden files of our own: entries, sentinels, marks and manifests as memwal lays them on storage.

Owns `tests/golden/memwal`. Run by hand when a layout is added:

    python tests/golden/make_memwal_golden.py

The committed files are the contract: what decodes them today must decode them for ever, to the same values. Files are never
replaced, only added; `test_golden_files.py` spells their values. `entry_with_delta` has a key that is no longer written, so it
cannot be made again.
"""

from decimal import Decimal
from pathlib import Path

import pyarrow as pa

from lance_memwal.log.entry import EntryEncoder, encode_mark, encode_sentinel
from lance_memwal.log.manifest_codec import encode_manifest
from lance_memwal.types import (
    TOMBSTONE_FIELD,
    BaseMark,
    EntryFooter,
    EntryTransaction,
    SeenTransaction,
    ShardManifest,
    ShardStatus,
    SsTable,
    Transaction,
)

TARGET = Path(__file__).resolve().parent / "memwal"
SHARD = "12345678-9abc-4def-8123-456789abcdef"
KEY = {"lance-schema:unenforced-primary-key": "true"}
SEEN = {
    "orders": SeenTransaction(41, 1_700_000_000_000, "query-1"),
    "café": SeenTransaction(9_223_372_036_854_775_807, 1, None),
}
FIELDS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata={**KEY, "lance:field_id": "0"}),
        pa.field("name", pa.string(), metadata={"lance:field_id": "1"}),
        TOMBSTONE_FIELD,
    ]
)
MANY_TYPES = pa.schema(
    [
        pa.field("kind", pa.dictionary(pa.int32(), pa.string())),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("vector", pa.list_(pa.float32(), 2)),
        pa.field("tags", pa.list_(pa.struct([("k", pa.string()), ("v", pa.int8())]))),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        TOMBSTONE_FIELD,
    ]
)


def batch(ids: list[int], deleted: list[bool]) -> pa.RecordBatch:
    names = [None if dead else f"name-{number}" for number, dead in zip(ids, deleted, strict=True)]
    return pa.RecordBatch.from_pydict({"id": ids, "name": names, "_tombstone": deleted}, schema=FIELDS)


def many_types() -> pa.RecordBatch:
    rows = [
        {
            "kind": "ab"[number % 2],
            "price": Decimal(number) / 4,
            "vector": [float(number), -1.0],
            "tags": [{"k": "x", "v": number}, None],
            "at": number,
            "_tombstone": False,
        }
        for number in range(4)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=MANY_TYPES)


def entries() -> dict[str, bytes]:
    encoder = EntryEncoder(FIELDS, 3, 2)
    txns = (
        EntryTransaction(Transaction("orders", 41, "query-1"), 0, 1),
        EntryTransaction(Transaction("memwal:client", 7), 1, 2),
    )
    timed = EntryFooter(table="0123abcd", written_ms=1_700_000_000_001)
    bulk = SsTable(4, "00c0ffee_gen_4", 4096, 10, None)
    return {
        "entry": encoder.encode([batch([1, 2, 3], [False, False, True])]),
        "entry_of_two_batches": encoder.encode([batch([1], [False]), batch([2, 1], [False, True])]),
        "entry_with_map": encoder.encode([batch([5], [False])], EntryFooter(seen=SEEN)),
        "entry_with_time": encoder.encode([batch([6], [False])], timed),
        "entry_with_base": encoder.encode([batch([6], [False])], timed._replace(base=BaseMark(17))),
        "entry_with_fragments": encoder.encode([batch([6], [False])], timed._replace(base=BaseMark(17, 4))),
        "entry_with_txns": encoder.encode([batch([7, 8, 9], [False] * 3)], timed._replace(txns=txns)),
        "entry_with_txns_and_map": encoder.encode(
            [batch([7, 8, 9], [False] * 3)], timed._replace(txns=txns, seen=SEEN)
        ),
        "entry_of_many_types": EntryEncoder(MANY_TYPES, 1, 1).encode([many_types()]),
        "sentinel": encode_sentinel(4),
        "sentinel_with_map": encode_sentinel(5, EntryFooter(seen=SEEN)),
        "sentinel_with_time": encode_sentinel(5, timed._replace(seen={})),
        "mark": encode_mark(6, EntryFooter(seen=SEEN)),
        "seal": encode_mark(6, timed._replace(seen=SEEN, seal=3)),
        "bulk": encode_mark(6, timed._replace(seen=SEEN, txns=txns, bulk=bulk)),
    }


def manifests() -> dict[str, bytes]:
    first = SsTable(1, "00c0ffee_gen_1", 4096, 10, 80)
    second = SsTable(2, "0badf00d_gen_2")
    values = {
        "claimed": ShardManifest(1, SHARD, writer_epoch=1),
        "flushed": ShardManifest(4, SHARD, 1, (("bucket", b"\3\0\0\0"),), 2, 7, 8, 3, (first, second)),
        "sealed": ShardManifest(9, SHARD, 0, (), 1 << 40, 1 << 50, 1 << 51, 2, (first,), ShardStatus.SEALED),
    }
    return {name: encode_manifest(manifest) for name, manifest in values.items()}


def main() -> None:
    for folder, suffix, files in (("entries", "arrow", entries()), ("manifests", "binpb", manifests())):
        (TARGET / folder).mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            path = TARGET / folder / f"{name}.{suffix}"
            if path.exists():
                print(f"kept  {path.name}")
            else:
                path.write_bytes(data)
                print(f"wrote {path.name} ({len(data)} bytes)")


if __name__ == "__main__":
    main()
