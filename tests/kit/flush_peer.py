"""A base table and the same rows flushed twice: by us and by the reference."""

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from lance.mem_wal import LsmPointLookupPlanner, LsmScanner, ShardSnapshot

from lance_memwal.lance.base import BaseTable
from lance_memwal.rows.schema import TableSchema
from lance_memwal.sstable.write import write_sstable
from lance_memwal.store.location import Location, resolve
from lance_memwal.types import SsTable

KEY = {"lance-schema:unenforced-primary-key": "true"}


def key_field(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False, metadata=KEY)


def schema_of(base: BaseTable) -> TableSchema:
    """The columns of a base table, with the metadata of its schema, which the reference writes too."""
    return TableSchema(base.schema, base.primary_key, base.columns.field_ids)


class Tables:
    """One base table, and the generations beside it."""

    def __init__(
        self, root: Path, schema: pa.Schema, *, drop: Sequence[str] = (), storage: str = "2.1", rows: Any = ()
    ) -> None:
        self.uri = str(root / "table")
        first = pa.Table.from_pylist(list(rows), schema=schema)
        dataset = lance.write_dataset(first, self.uri, data_storage_version=storage)
        if drop:
            dataset.drop_columns(list(drop))
        dataset.initialize_mem_wal()
        self.location: Location = resolve(self.uri)
        opened = BaseTable.open(self.location)
        assert opened is not None
        self.base = opened
        self.schema = schema_of(opened)
        self.shard = str(uuid.uuid4())

    def rows(self, live: Sequence[dict[str, Any]], deleted: Sequence[dict[str, Any]] = ()) -> pa.Table:
        """Live rows, then tombstones, in the schema that a generation has."""
        made = [{**row, "_tombstone": False} for row in live] + [{**key, "_tombstone": True} for key in deleted]
        return pa.Table.from_pylist(made, schema=self.schema.memory)

    def write(self, table: Any, *, generation: int = 1, **options: Any) -> SsTable:
        """Our flush."""
        return write_sstable(
            self.location,
            self.shard,
            generation,
            table,
            schema=self.schema,
            storage_version=self.base.data_storage_version,
            fsync=False,
            **options,
        )

    def directory(self, sstable: SsTable) -> Path:
        return Path(self.uri, "_mem_wal", self.shard, sstable.path)

    def peer(self, live: Sequence[dict[str, Any]], deleted: Sequence[dict[str, Any]] = ()) -> Path:
        """The reference's flush of the same rows in another shard: its directory."""
        shard = str(uuid.uuid4())
        dataset = lance.dataset(self.uri)
        with dataset.mem_wal_writer(shard) as writer:
            writer.put(pa.Table.from_pylist(list(live), schema=dataset.schema))
            if deleted:
                keys = pa.schema([self.base.schema.field(name) for name in self.base.primary_key])
                writer.delete(pa.Table.from_pylist(list(deleted), schema=keys))
        (found,) = Path(self.uri, "_mem_wal", shard).glob("*_gen_*")
        return found

    def snapshot(self, *sstables: SsTable) -> ShardSnapshot:
        snapshot = ShardSnapshot(self.shard).with_current_generation(1 + max(s.generation for s in sstables))
        for sstable in sstables:
            snapshot = snapshot.with_sstable(sstable.generation, sstable.path)
        return snapshot

    def scan(self, *sstables: SsTable) -> list[dict[str, Any]]:
        """What the reference reads from the base table and our generations."""
        scanner = LsmScanner.from_snapshots(lance.dataset(self.uri), [self.snapshot(*sstables)])
        rows: list[dict[str, Any]] = scanner.to_table().to_pylist()
        return sorted(rows, key=lambda row: [row[name] for name in self.base.primary_key])

    def look_up(self, key: dict[str, Any], *sstables: SsTable) -> list[dict[str, Any]]:
        """What the reference's point lookup finds."""
        columns = [pa.array([key[name]], self.base.schema.field(name).type) for name in self.base.primary_key]
        wanted = columns[0] if len(columns) == 1 else pa.StructArray.from_arrays(columns, list(self.base.primary_key))
        planner = LsmPointLookupPlanner(lance.dataset(self.uri), [self.snapshot(*sstables)])
        found: list[dict[str, Any]] = planner.plan_lookup(wanted).to_table().to_pylist()
        return found
