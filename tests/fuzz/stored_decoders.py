"""Decoders of what stands beside the log: records, cursors, maps, names, remembered deletes and staged rows.

Each function takes the bytes of one object, or of one text in it, and asks everything that the engine asks of it.
"""

import json
import struct
import zlib
from typing import Any

SHARD = "00112233-4455-4677-8899-aabbccddeeff"
_CURSOR = f"c1,0a1b2c3d,{SHARD}=17,11112233-4455-4677-8899-aabbccddeeff=20+500"
_SNAPSHOT = "memwal1:0a1b2c3d:7:ABEiM0RVRneImaq7zN3u_w.3.17.20"


class OneObject:
    """A store that holds the same bytes under every name, and lists one record."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def get(self, path: str) -> bytes:
        return self.data

    def get_range(self, path: str, start: int, length: int) -> bytes:
        return self.data[start : start + length]

    def get_tail(self, path: str, length: int) -> bytes:
        return self.data[-length:] if length else b""

    def list_names(self, prefix: str) -> list[str]:
        return ["1.json"]

    def list(self, prefix: str) -> list[Any]:
        from lance_memwal.store.port import ObjectMeta

        return [ObjectMeta(f"{prefix}/one", len(self.data), 1)]


def _location(data: bytes) -> Any:
    from lance_memwal.store.location import Location
    from lance_memwal.store.metering import Recorder

    store: Any = OneObject(data)
    return Location("memory://fuzz", store, store, None, Recorder(""), True, None, "memory://fuzz")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


# -------------------------------------------------------------------------------------------------------------- moments


def cursor(data: bytes) -> None:
    from lance_memwal.feed.cursor import Cursor

    found = Cursor.parse(_text(data))
    assert Cursor.parse(str(found)) == found


def cursor_corpus() -> list[bytes]:
    return [_CURSOR.encode(), b"c1,-", f"{_CURSOR}/300/{_SNAPSHOT}".encode()]


def snapshot(data: bytes) -> None:
    from lance_memwal.read.snapshot import Snapshot

    found = Snapshot.parse(_text(data))
    assert Snapshot.parse(str(found)) == found


def snapshot_corpus() -> list[bytes]:
    return [_SNAPSHOT.encode(), b"memwal1:-:0"]


# -------------------------------------------------------------------------------------------------------------- records


def consumer_record(data: bytes) -> None:
    from lance_memwal.upkeep import consumer_records

    found = consumer_records.consumer_record(_location(data), "name")
    assert found is not None
    assert consumer_records.ConsumerFloors.of([found]).needs(SHARD, 18) in (True, False)


def consumer_record_corpus() -> list[bytes]:
    value = {"format": 1, "state": "active", "table": "0a", "reader": "r", "epoch": 3, "ms": 1_700_000_000_000}
    more = {"max_age_ms": 86_400_000, "cursor": _CURSOR, "shards": {SHARD: 17}, "snapshot": None}
    begun = value | more | {"snapshot": _SNAPSHOT, "begins": True}
    return [json.dumps(value | more).encode(), json.dumps(begun).encode()]


def checkpoint_record(data: bytes) -> None:
    from lance_memwal.upkeep import checkpoint_records

    found = checkpoint_records.checkpoint_record(_location(data), "name")
    assert found is not None
    assert found.is_too_old(1) in (True, False)


def checkpoint_record_corpus() -> list[bytes]:
    value = {"format": 1, "state": "active", "table": None, "snapshot": _SNAPSHOT, "created_ms": 1, "by": "u"}
    return [json.dumps(value | {"expires_ms": expires}).encode() for expires in (None, 5)]


def floor_record(data: bytes) -> None:
    from lance_memwal.log.shards import Floor

    floor = Floor(_location(data), SHARD)
    assert 0 <= floor.position() <= floor.announced()
    assert floor.manifest() >= 0


def floor_record_corpus() -> list[bytes]:
    return [b'{"announced":19,"by":"u","manifest":3,"position":17}', b'{"position":0}']


# ------------------------------------------------------------------------------------------------ texts of the base table


def compaction_marks(data: bytes) -> None:
    from types import SimpleNamespace

    from lance_memwal.lance import marks

    manifest = SimpleNamespace(schema_metadata=lambda: {marks.METADATA_KEY: data})
    base: Any = SimpleNamespace(manifest=manifest, details=SimpleNamespace(compacted={}))
    assert all(number > 0 for number in marks.compacted(base).values())


def compaction_marks_corpus() -> list[bytes]:
    return [json.dumps({SHARD: 17, "11112233-4455-4677-8899-aabbccddeeff": 2}).encode()]


def merge_setting(data: bytes) -> None:
    from lance_memwal.errors import InvalidInputError
    from lance_memwal.rows.merging import stored_merge

    try:
        stored_merge(_text(data), {"id": 0, "seq": 3})
    except InvalidInputError as error:  # the column was dropped: a user put the table into that state
        if "dropped" not in str(error):
            raise


def merge_setting_corpus() -> list[bytes]:
    return [b'{"kind": "first_row"}', b'{"kind": "last_write", "field": 3, "remember_deletes_ms": 86400000}']


def lance_transaction(data: bytes) -> None:
    from lance_memwal.lance.transaction import parse_transaction

    parse_transaction(data)


def lance_transaction_corpus() -> list[bytes]:
    from lance_memwal.lance import wire
    from lance_memwal.lance.transaction import UPDATE

    shard = wire.join([wire.bytes_field(1, bytes.fromhex(SHARD.replace("-", "")))])
    mark = wire.join([wire.bytes_field(1, shard), wire.varint_field(2, 7)])
    update = wire.join([wire.bytes_field(5, mark), wire.bytes_field(5, mark)])
    return [wire.join([wire.varint_field(1, 3), wire.bytes_field(2, b"uuid"), wire.bytes_field(UPDATE, update)])]


# --------------------------------------------------------------------------------------------------- remembered deletes


def remembered_deletes(data: bytes) -> None:
    import pyarrow as pa

    from lance_memwal.process.cache import CACHE
    from lance_memwal.rows.schema import TableSchema
    from lance_memwal.sstable.deletes import remembered_deletes

    CACHE.clear()
    columns = pa.schema([pa.field("id", pa.int64(), nullable=False), ("seq", pa.int64())])
    found = remembered_deletes(_location(data), SHARD, TableSchema(columns, ("id",)), "seq", since_ms=0)
    found.find([pa.array([1, 2, 3], pa.int64())])


def remembered_deletes_corpus() -> list[bytes]:
    return [_with_checksum(_deletes_stream())]


def deletes_behind_a_true_checksum(data: bytes) -> None:
    remembered_deletes(_with_checksum(data))


def deletes_stream_corpus() -> list[bytes]:
    return [_deletes_stream()]


def _with_checksum(stream: bytes) -> bytes:
    return stream + struct.pack("<I", zlib.crc32(stream)) + b"MWALDEL1"


def _deletes_stream() -> bytes:
    import pyarrow as pa

    return _stream_of(pa.table({"k0": pa.array([1, 2, 5], pa.int64()), "sequence": pa.array([7, 8, None], pa.int64())}))


def _stream_of(table: Any) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


# ------------------------------------------------------------------------------------------------------- names, streams


def object_name(data: bytes) -> None:
    """A name that a listing gave: what it names has a path, and the path that name."""
    from lance_memwal.errors import CorruptDataError
    from lance_memwal.lance import manifest, transaction
    from lance_memwal.store import paths

    name = _text(data)
    numbers = [
        (paths.parse_entry_name(name), lambda number: paths.wal_entry_path(SHARD, number)),
        (paths.parse_manifest_name(name), lambda number: paths.manifest_path(SHARD, number)),
        (paths.parse_owner_name(name), lambda epoch: f"/memwal_owner_{epoch}.json"),
        (paths.parse_record_name(name), lambda number: paths.record_path("records", number)),
    ]
    for number, path_of in numbers:
        assert number is None or path_of(number).endswith(f"/{name}") or name.startswith("memwal_owner_0")
    generation, version = paths.parse_sstable_name(name), manifest.parse_version_name(name)
    assert generation is None or paths.sstable_dir(SHARD, name).endswith(name)
    assert version is None or 0 <= version < 1 << 64
    found = [number for number, _ in numbers] + [generation, version, transaction.read_version_of(name)]
    found += [paths.is_roll_up_name(name) or None, paths.parse_table_name(name)]
    if all(one is None for one in found):
        raise CorruptDataError("the name of nothing")


def object_name_corpus() -> list[bytes]:
    from lance_memwal.lance import manifest
    from lance_memwal.store import paths

    some = [
        paths.wal_entry_path(SHARD, 17),
        paths.manifest_path(SHARD, 3),
        "memwal_owner_7.json",
        paths.record_path("records", 5),
        paths.sstable_dir(SHARD, "00c0ffee_gen_4"),
        f"{paths.roll_up_dir(SHARD)}/1-20-0123456789abcdef.bin",
        manifest.version_path(7),
        manifest.old_version_path(7),
        "_transactions/3-0a1b.txn",
        paths.warehouse_table(["sales"], "orders"),
    ]
    return [path.rpartition("/")[2].encode() for path in some]


def staged_rows(data: bytes) -> None:
    """What a task of Spark left on storage for the commit: keys, or rows of a shard."""
    from lance_memwal.rows.ipc_frames import read_stream

    for batch in read_stream(data, "a piece of staged rows").to_batches():
        batch.serialize()


def staged_rows_corpus() -> list[bytes]:
    import pyarrow as pa

    nested = pa.array([{"a": 1, "b": ["x", None]}, None])
    coded = pa.array(["a", "b"]).dictionary_encode()
    return [
        _stream_of(pa.table({"key": pa.array([1, 2, 5], pa.int64())})),
        _stream_of(pa.table({"id": [1, 2], "s": nested, "d": coded, "_tombstone": [False, True]})),
    ]
