"""What the engine asks of Lance, as tests that whatever stands in for it passes too (`lance_memwal.lance.door`)."""

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import ShardWriter
from lance_memwal.compact.run import Compactor
from lance_memwal.errors import ObjectNotFoundError
from lance_memwal.lance.base import BaseTable, NewestBase
from lance_memwal.lance.door import lance_at
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.read.reader import Reader
from lance_memwal.sstable.read import SsTableReader
from lance_memwal.sstable.sidecar import WantedKeys
from lance_memwal.store.location import Location
from lance_memwal.types import SsTable
from lance_memwal.upkeep.gc import Collector
from lance_memwal.upkeep.verify import verify_table

SHARD = mw.shard_id_for(mw.Unsharded())
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("value", pa.int64())])


def rows(ids: list[int], value: int) -> pa.Table:
    return pa.table({"id": ids, "value": [value] * len(ids)}, schema=SCHEMA)


class LanceSuite:
    """A subclass gives `location`: an empty table with the columns of `SCHEMA`, `id` its key, in one shard."""

    @pytest.fixture
    def location(self) -> Location:
        raise NotImplementedError

    @pytest.fixture
    def sstable(self, location: Location) -> SsTable:
        """One generation: the key 1 twice, and a tombstone for 3."""
        with ShardWriter.open(location) as writer:
            writer.put(rows([1, 2, 3], 1))
            writer.put(rows([1], 2))
            writer.delete([3])
        manifest = ShardManifestStore(location, SHARD).read_latest()
        assert manifest is not None
        return manifest.sstables[0]

    # ------------------------------------------------------------------------------------------------------- files

    def test_a_file_gives_back_its_rows_by_range_and_by_number(self, location: Location) -> None:
        writer = lance_at(location).writer("data/some.lance", SCHEMA, version="2.0")
        for batch in rows(list(range(10)), 7).to_batches(max_chunksize=4):
            writer.write_batch(batch)
        writer.add_schema_metadata("pages", "3")
        writer.close()
        reader = lance_at(location).reader("data/some.lance")
        assert reader.num_rows() == 10
        assert reader.metadata().schema.metadata[b"pages"] == b"3"
        assert reader.read_all().to_table().column("id").to_pylist() == list(range(10))
        assert reader.read_range(3, 4, batch_size=2).to_table().column("id").to_pylist() == [3, 4, 5, 6]
        assert [batch.num_rows for batch in reader.read_range(0, 10, batch_size=4).to_batches()] == [4, 4, 2]
        assert reader.take_rows([1, 8]).to_table().column("id").to_pylist() == [1, 8]
        assert lance_at(location).reader("data/some.lance", ["value"]).read_all().to_table().schema.names == ["value"]

    def test_what_is_not_there_is_an_error(self, location: Location) -> None:
        with pytest.raises((OSError, ValueError)):
            lance_at(location).reader("data/none.lance").read_all().to_table()
        with pytest.raises((OSError, ValueError)):
            lance_at(location).dataset("none")

    # ---------------------------------------------------------------------------------------------------- SSTables

    def test_an_sstable_holds_the_newest_row_of_every_key(self, location: Location, sstable: SsTable) -> None:
        base = BaseTable.need(location)
        reader = SsTableReader(location, SHARD, sstable)
        table, offsets = reader.all_rows(base.columns)
        found = dict(zip(table.column("id").to_pylist(), table.column("value").to_pylist(), strict=True))
        assert found == {1: 2, 2: 1, 3: None}
        assert table.column("_tombstone").to_pylist() == [False, False, True]
        assert offsets.tolist() == [1, 3, 4]
        keys, at = reader.entries()
        assert (keys.to_pylist(), at.tolist()) == ([1, 2, 3], [3, 1, 4])
        wanted = WantedKeys.of([pa.array([2, 9], pa.int64())])
        assert reader.locate(wanted).tolist() == [1, -1]
        assert reader.take(base.columns, offsets[:1], ["value"]).column("value").to_pylist() == [1]

    # -------------------------------------------------------------------------------------------------------- base

    def test_the_base_table_says_what_it_is(self, location: Location) -> None:
        base = BaseTable.need(location)
        assert base.primary_key == ("id",)
        assert base.column_ids == {"id": 0, "value": 1}
        assert base.details is not None
        assert base.dataset.count_rows() == 0
        assert base.refresh() is base
        assert base.tags() == {}
        assert BaseTable.find(location, base.version + 7) is None

    def test_rows_go_through_all_tiers(self, location: Location, sstable: SsTable) -> None:
        newest = NewestBase(BaseTable.need(location))
        before = newest()
        report = Compactor(location, newest).run()
        assert (report.rows_written, report.rows_deleted) == (2, 1)
        with ShardWriter.open(location) as writer:
            writer.put(rows([2, 5], 3))
            writer.delete([1])
        Compactor(location, newest).run()
        after = newest()
        assert after.version == before.version + 2
        assert before.dataset.count_rows() == 0
        assert after.dataset.count_rows() == 2
        assert after.dataset.scanner(columns=["id"], with_row_address=True).to_table().num_rows == 2
        found = Reader(newest).scan().to_table().sort_by("id").to_pydict()
        assert found == {"id": [2, 5], "value": [3, 3]}
        assert Reader(newest).lookup([5, 1]).to_pydict() == {"id": [5], "value": [3]}
        assert not Collector(location, newest).run(grace_seconds=0).refused
        assert verify_table(newest).problems == []
        with pytest.raises(ObjectNotFoundError):
            SsTableReader(location, SHARD, sstable).stored.open()
