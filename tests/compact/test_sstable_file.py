"""A generation is read from its data file where that is all there is to it, and from its dataset everywhere else."""

from __future__ import annotations

from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.file import LanceFileWriter

import lance_memwal as mw
from lance_memwal.errors import CorruptDataError, ObjectNotFoundError
from lance_memwal.lance.deletions import encode_deletions
from lance_memwal.rows.schema import TableSchema
from lance_memwal.sstable.fold import Generation
from lance_memwal.sstable.read import SsTableReader
from lance_memwal.sstable.stored_rows import DataFile
from lance_memwal.store import paths
from lance_memwal.types import SsTable

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


class Made:
    """One generation with keys 0 to 9, of which 3 and 4 were put twice and 5 was deleted."""

    def __init__(self, place: Path, schema: pa.Schema = SCHEMA) -> None:
        self.table = mw.create_table(str(place), schema, primary_key="id", sharding=mw.Unsharded())
        with self.table.writer(compaction=None, fsync=False) as writer:
            writer.put({"id": range(10), "v": ["a"] * 10})
            writer.put({"id": [3, 4], "v": ["b"] * 2})
            writer.delete([5])
        self.shard_id = self.table.shards()[0].shard_id
        manifest = mw.ShardManifestStore(str(place), self.shard_id).read_latest()
        assert manifest is not None
        self.sstable: SsTable = manifest.sstables[0]
        self.directory = place / paths.sstable_dir(self.shard_id, self.sstable.path)

    @property
    def schema(self) -> TableSchema:
        return self.table.base.columns

    def reader(self) -> SsTableReader:
        return SsTableReader(self.table.location, self.shard_id, self.sstable)

    def file(self) -> DataFile | None:
        return self.reader().stored.data_file

    def rows(self) -> list[tuple[int, str, bool]]:
        generation = Generation([self.reader()], self.schema, keep=True)
        generation.load()
        batches = [batch for batch, _ in generation.chosen(None)]
        table = pa.Table.from_batches(batches)
        flags = generation.flags.tolist()
        return sorted(zip(table["id"].to_pylist(), table["v"].to_pylist(), flags, strict=True))


EXPECTED = sorted(
    [(k, "a", False) for k in (0, 1, 2, 6, 7, 8, 9)] + [(3, "b", False), (4, "b", False), (5, None, True)]
)


@pytest.mark.parametrize("batch_rows", [1, 2, 5, 13, 1000])
def test_replaced_rows_are_left_out_in_batches_of_any_size(tmp_path: Path, batch_rows: int) -> None:
    made = Made(tmp_path / "t")
    file = made.file()
    assert file is not None
    assert file.physical_rows == 13
    parts = list(made.reader().batches(made.schema, ["id"], None, batch_rows))
    found = pa.Table.from_batches([batch for batch, _ in parts])
    assert sorted(found["id"].to_pylist()) == list(range(10))
    assert found.schema.names == ["id", "_tombstone"]
    offsets = np.concatenate([offsets for _, offsets in parts]).tolist()
    assert offsets == [0, 1, 2, *range(6, 13)]
    assert max(batch.num_rows for batch, _ in parts) <= batch_rows


def test_the_newest_version_counts_and_rows_are_the_same_by_both_ways(tmp_path: Path) -> None:
    made = Made(tmp_path / "t")
    assert made.file() is not None
    assert made.rows() == EXPECTED
    lance.dataset(made.directory).delete("id = 9")
    assert made.rows() == EXPECTED[:-1]


def test_a_version_whose_name_is_not_known_is_left_to_lance(tmp_path: Path) -> None:
    made = Made(tmp_path / "t")
    (manifest,) = (made.directory / "_versions").glob("*.manifest")
    manifest.rename(manifest.with_name("1.manifest"))  # as datasets named them that were created long ago
    assert made.file() is None
    assert made.rows() == EXPECTED


def test_a_dictionary_column_is_left_to_lance(tmp_path: Path) -> None:
    kind = pa.dictionary(pa.int32(), pa.string())
    made = Made(tmp_path / "t", pa.schema([("id", pa.int64()), ("v", kind)]))
    assert made.file() is None
    assert made.rows() == EXPECTED


def test_two_fragments_are_left_to_lance(tmp_path: Path) -> None:
    made = Made(tmp_path / "t")
    more = pa.table({"id": [50], "v": ["c"], "_tombstone": [False]}, schema=lance.dataset(made.directory).schema)
    lance.write_dataset(more, made.directory, mode="append")
    assert made.file() is None
    assert made.rows() == sorted([*EXPECTED, (50, "c", False)])


@pytest.mark.parametrize("offsets", [[3], [3, 4, 5, 6], [3, 13]])
def test_a_deletion_vector_that_contradicts_the_manifest_is_corrupt(tmp_path: Path, offsets: list[int]) -> None:
    made = Made(tmp_path / "t")
    (vector,) = (made.directory / "_deletions").glob("*.bin")
    vector.write_bytes(encode_deletions(np.array(offsets)))
    with pytest.raises(CorruptDataError) as caught:
        made.rows()
    assert caught.value.path is not None
    assert caught.value.path.endswith(".bin")


def test_a_data_file_with_another_number_of_rows_is_corrupt(tmp_path: Path) -> None:
    made = Made(tmp_path / "t")
    (path,) = (made.directory / "data").iterdir()
    rows = lance.dataset(made.directory).to_table()
    with LanceFileWriter(str(path), rows.schema) as writer:
        writer.write_batch(rows)
    with pytest.raises(CorruptDataError, match="10 rows where 13 are listed"):
        made.rows()


@pytest.mark.parametrize("part", ["_versions", "data", "_deletions"])
def test_a_generation_of_which_a_part_was_collected_is_gone(tmp_path: Path, part: str) -> None:
    made = Made(tmp_path / "t")
    for path in (made.directory / part).iterdir():
        path.unlink()
    with pytest.raises(ObjectNotFoundError):
        made.rows()
