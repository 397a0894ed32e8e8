"""Very many shards, of which only the manifests exist: listed, counted and read in memory that hardly grows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.log.manifest_codec import encode_manifest
from lance_memwal.store import paths
from lance_memwal.types import ShardManifest
from tests.harness.profile import scaled

SCHEMA = pa.schema(
    [pa.field("tenant", pa.int32(), False), pa.field("id", pa.int64(), False), pa.field("v", pa.int64())]
)
MIB = 1 << 20


def resident_bytes() -> int:
    """Pages of this process in memory that no file backs."""
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith("RssAnon")).split()[1]) << 10


def with_manifests(table: mw.Table, shards: int) -> None:
    """Give the table so many shards that were claimed and never written to."""
    tenants = pa.record_batch({"tenant": pa.array(range(shards), pa.int32())})
    for shard_id, _ in mw.route(tenants, table.sharding):
        manifest = ShardManifest(version=1, shard_id=shard_id, shard_spec_id=1, writer_epoch=1)
        table.location.store.put_new(paths.manifest_path(shard_id, 1), encode_manifest(manifest))


@pytest.mark.scaled
def test_thousands_of_shards_are_listed_counted_and_read_in_bounded_memory(tmp_path: Path) -> None:
    shards = scaled(ci=400, prove=10_000)
    limit_bytes = 24 * MIB + 8_000 * shards
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key=["tenant", "id"], sharding=mw.Identity("tenant"))
    with_manifests(table, shards)
    with table.writer(fsync=False, compaction=None) as writer:
        writer.put([{"tenant": tenant, "id": 1, "v": tenant} for tenant in range(3)])
    before = resident_bytes()

    def grown(call: Callable[[], object], expected: object) -> None:
        assert call() == expected
        assert resident_bytes() - before <= limit_bytes

    grown(lambda: len(table.shards()), shards)
    grown(table.count_rows, 3)
    grown(lambda: table.scan().to_table().num_rows, 3)
    grown(lambda: table.get((2, 1)), {"tenant": 2, "id": 1, "v": 2})
    grown(lambda: table.get((shards - 1, 1)), None)
