"""A generation on an object store: written by us, read by the reference, looked up by us.

The reference's point lookup is left out: it forgets the storage options when it opens a generation.
"""

from __future__ import annotations

from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.mem_wal import LsmScanner, ShardSnapshot

from lance_memwal.errors import ObjectNotFoundError
from lance_memwal.lance.base import BaseTable
from lance_memwal.sstable.sidecar import PkSidecar, WantedKeys
from lance_memwal.sstable.write import write_sstable
from lance_memwal.store.location import resolve
from lance_memwal.types import SsTable
from tests.kit.flush_peer import key_field

SHARD = "7a2f3c64-55a1-4d0e-9c44-0f6b2f9d1c10"
SCHEMA = pa.schema([pa.field("gone", pa.int8()), key_field("id", pa.string()), pa.field("v", pa.int32())])


@pytest.fixture(params=["s3_table", "azure_table"])
def table(request: pytest.FixtureRequest) -> tuple[str, dict[str, str]]:
    place: tuple[str, dict[str, str]] = request.getfixturevalue(request.param)
    uri, options = place
    rows = pa.Table.from_pylist([{"id": "a", "v": 1}, {"id": "b", "v": 2}], schema=SCHEMA)
    dataset = lance.write_dataset(rows, uri, storage_options=options)
    dataset.drop_columns(["gone"])
    dataset.initialize_mem_wal()
    return place


def test_a_generation_is_written_read_and_looked_up(table: tuple[str, dict[str, str]]) -> None:
    uri, options = table
    location = resolve(uri, options)
    base = BaseTable.open(location)
    assert base is not None
    assert base.field_ids == (1, 2)
    assert base.details is not None
    rows = {"id": ["b", "c", "b", "a"], "v": [3, 4, 5, None], "_tombstone": [False, False, False, True]}
    sstable = write_sstable(
        location,
        SHARD,
        1,
        pa.table(rows, schema=pa.schema([("id", pa.string()), ("v", pa.int32()), ("_tombstone", pa.bool_())])),
        schema=base.columns,
        storage_version=base.data_storage_version,
        fsync=True,
    )
    snapshot = ShardSnapshot(SHARD).with_current_generation(2).with_sstable(1, sstable.path)
    dataset = lance.dataset(uri, storage_options=options)
    found: list[dict[str, Any]] = LsmScanner.from_snapshots(dataset, [snapshot]).to_table().to_pylist()
    assert sorted(found, key=lambda row: row["id"]) == [{"id": "b", "v": 5}, {"id": "c", "v": 4}]
    sidecar = PkSidecar(location, SHARD, sstable)
    assert sidecar.offsets_of(WantedKeys.of([pa.array(["a", "b", "c", "d"])])).tolist() == [3, 2, 1, -1]
    assert sidecar.might_contain(WantedKeys.of([pa.array(["a", "b", "c", "nothing"])])).tolist() == [
        True,
        True,
        True,
        False,
    ]


def test_absence_is_reported_as_absence(table: tuple[str, dict[str, str]]) -> None:
    uri, options = table
    assert BaseTable.open(resolve(f"{uri}-nothing", options)) is None
    sidecar = PkSidecar(resolve(uri, options), SHARD, SsTable(1, "00000000_gen_1"))
    with pytest.raises(ObjectNotFoundError):
        sidecar.offsets_of(WantedKeys.of([pa.array(["a"])]))
    assert sidecar.might_contain(WantedKeys.of([pa.array(["a"])])).tolist() == [True]
