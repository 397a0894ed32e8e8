"""Write the golden files of the peer: small tables with shards, made by pylance alone.

Owns `tests/golden/pylance`. Run by hand, once per peer version whose bytes we promise to read:

    python tests/golden/make_golden.py

Names inside are random, so a new run gives other files; the committed ones are the contract. Everything is made through
the public API of pylance, nothing of memwal is used. What lies there:

    pk_table/      primary key `id`; one shard: epochs 1 to 3, two generations (the second with a deletion vector and a
                   sidecar), a tombstone, fence sentinels, and a WAL tail that nobody flushed
    append_table/  no primary key; one shard with a dictionary, a decimal, a vector and a list column, one generation
    details/       `MemWalIndexDetails` bytes per way of initialising a table
"""

import glob
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from lance.mem_wal import CompactedSsTable

TARGET = Path(__file__).resolve().parent / "pylance"
PK_SHARD = "11111111-2222-4333-8444-555555555555"
APPEND_SHARD = "66666666-7777-4888-9999-aaaaaaaaaaaa"
KEY = {"lance-schema:unenforced-primary-key": "true"}
PK_SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata=KEY),
        pa.field("val", pa.float32()),
        pa.field("name", pa.string()),
    ]
)
APPEND_SCHEMA = pa.schema(
    [
        pa.field("kind", pa.dictionary(pa.int32(), pa.string())),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("vector", pa.list_(pa.float32(), 4)),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("at", pa.timestamp("us", tz="UTC")),
    ]
)


def pk_rows(ids: list[int], mark: str) -> pa.Table:
    columns = {"id": ids, "val": [float(i) for i in ids], "name": [f"{mark}{i}" for i in ids]}
    return pa.table(columns, schema=PK_SCHEMA)


def append_rows(count: int) -> pa.Table:
    rows = [
        {"kind": "ab"[i % 2], "price": Decimal(i) / 4, "vector": [float(i)] * 4, "tags": ["x"] * (i % 3), "at": i}
        for i in range(count)
    ]
    return pa.Table.from_pylist(rows, schema=APPEND_SCHEMA)


def make_pk_table(root: Path) -> None:
    path = str(root / "pk_table")
    lance.write_dataset(pk_rows([1, 2], "base-"), path).initialize_mem_wal()
    writer = lance.dataset(path).mem_wal_writer(PK_SHARD)
    writer.put(pk_rows([2, 3], "first-"))
    writer.delete(pa.table({"id": [1]}, schema=pa.schema([PK_SCHEMA.field("id")])))
    writer.close()
    writer = lance.dataset(path).mem_wal_writer(PK_SHARD)
    writer.put(pk_rows([4, 5], "second-"))
    writer.put(pk_rows([4], "newer-"))
    writer.close()
    # A process that ends without close leaves a WAL tail behind.
    subprocess.run([sys.executable, __file__, "leave-tail", path], check=True)


def leave_tail(path: str) -> None:
    writer = lance.dataset(path).mem_wal_writer(PK_SHARD)
    writer.put(pk_rows([6], "tail-"))
    writer.put(pk_rows([7], "tail-"))
    os._exit(0)


def make_append_table(root: Path) -> None:
    path = str(root / "append_table")
    lance.write_dataset(append_rows(2), path).initialize_mem_wal(unsharded=True)
    writer = lance.dataset(path).mem_wal_writer(APPEND_SHARD)
    writer.put(append_rows(3))
    writer.put(append_rows(5))
    writer.close()


def make_details(root: Path) -> None:
    ways: dict[str, dict[str, Any]] = {
        "default": {},
        "maintained_none": {"maintained_indexes": []},
        "maintained_list": {"maintained_indexes": ["by_id"]},
        "unsharded": {"unsharded": True},
        "bucket": {"bucket_column": "id", "num_buckets": 4},
        "identity": {"identity_column": "name"},
        "writer_options": {"max_memtable_rows": 500, "durable_write": False},
    }
    target = TARGET / "details"
    target.mkdir()
    for name, options in ways.items():
        path = str(root / name)
        dataset = lance.write_dataset(pk_rows([1, 2], "base-"), path)
        if name == "maintained_list":
            dataset.create_scalar_index("id", "BTREE", name="by_id")
            dataset = lance.dataset(path)
        dataset.initialize_mem_wal(**options)
        (target / f"{name}.binpb").write_bytes(details_bytes(path))
    path = str(root / "unsharded")
    for shard in (PK_SHARD, APPEND_SHARD):
        merge = lance.dataset(path).merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        merge.mark_sstables_as_compacted([CompactedSsTable(shard, 3)]).execute(pk_rows([1], "merged-"))
    lance.dataset(path).create_scalar_index("id", "BTREE", name="by_id")
    (target / "compacted_and_caught_up.binpb").write_bytes(details_bytes(path))


def details_bytes(table: str) -> bytes:
    """The details in the newest manifest of a table, cut out by hand: what pylance has no call for."""
    newest = min(glob.glob(f"{table}/_versions/*.manifest"), key=lambda p: int(Path(p).stem))
    data = Path(newest).read_bytes()
    manifest_at = struct.unpack("<Q", data[-16:-8])[0]
    size = struct.unpack("<I", data[manifest_at : manifest_at + 4])[0]
    section_at = field(data[manifest_at + 4 : manifest_at + 4 + size], 6, default=0)
    size = struct.unpack("<I", data[section_at : section_at + 4])[0]
    for number, entry in fields(data[section_at + 4 : section_at + 4 + size]):
        if number == 1 and field(entry, 3) == b"__lance_mem_wal":
            found: bytes = field(field(entry, 6), 2, default=b"")
            return found
    raise LookupError(table)


def fields(data: bytes) -> list[tuple[int, Any]]:
    at, found = 0, []
    while at < len(data):
        key, at = varint(data, at)
        value: Any
        if key & 7 == 0:
            value, at = varint(data, at)
        else:
            size, at = varint(data, at) if key & 7 == 2 else ({1: 8, 5: 4}[key & 7], at)
            value, at = data[at : at + size], at + size
        found.append((key >> 3, value))
    return found


def field(data: bytes, wanted: int, *, default: Any = None) -> Any:
    return next((value for number, value in fields(data) if number == wanted), default)


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at


def main() -> None:
    shutil.rmtree(TARGET, ignore_errors=True)
    TARGET.mkdir()
    make_pk_table(TARGET)
    make_append_table(TARGET)
    with tempfile.TemporaryDirectory() as scratch:
        make_details(Path(scratch))
    (TARGET / "VERSION").write_text(f"pylance {lance.__version__}\n")
    size = sum(path.stat().st_size for path in TARGET.rglob("*") if path.is_file())
    print(f"wrote {size} bytes to {TARGET}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["leave-tail"]:
        leave_tail(sys.argv[2])
    main()
