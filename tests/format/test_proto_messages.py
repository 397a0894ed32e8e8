"""The messages of the shard manifest are those of their `.proto` file, in any release of protobuf."""

from __future__ import annotations

from base64 import b85decode
from pathlib import Path

from lance_memwal.lance.proto import mem_wal_pb2
from tools.compile_proto import compiled


def test_the_descriptor_is_that_of_the_proto_file(tmp_path: Path) -> None:
    assert b85decode(mem_wal_pb2.DESCRIPTOR_BYTES) == compiled(tmp_path), "run tools/compile_proto.py"


def test_optional_numbers_are_there_or_not() -> None:
    known = mem_wal_pb2.SsTable(generation=3, physical_rows=0)
    read = mem_wal_pb2.SsTable.FromString(known.SerializeToString())
    assert read.HasField("physical_rows")
    assert not read.HasField("in_memory_bytes")
