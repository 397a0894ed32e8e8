"""Every table has an id of its own, from its first commit on, and no commit loses it."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.config import WriterConfig
from tests.kit.identity import SCHEMA, make, overwrite, row, shown

ID = "memwal.table_id"


def _id(table: mw.Table) -> str | None:
    return table.details().writer_config_defaults.get(ID)


def test_two_tables_have_two_ids_also_where_the_settings_were_copied(tmp_path: Path) -> None:
    one = make(str(tmp_path / "one"))
    stored = one.details().writer_config_defaults
    copied = {ID: stored[ID], "max_memtable_rows": 9}
    two = mw.create_table(str(tmp_path / "two"), SCHEMA, sharding=mw.Unsharded(), writer_defaults=copied)
    assert len({_id(one), _id(two), None}) == 3
    assert WriterConfig.from_defaults(stored).fsync is False


def test_enable_gives_an_id_and_an_overwritten_table_gets_another(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    lance.write_dataset(pa.table({"id": [1], "v": ["a"]}, schema=SCHEMA), uri)
    first = _id(mw.enable(uri, sharding=mw.Unsharded()))
    overwrite(uri)
    second = _id(mw.enable(uri, sharding=mw.Unsharded()))
    assert first
    assert second not in (None, first)


@pytest.mark.parametrize("key", ["id", None])
@pytest.mark.parametrize("row_ids", [False, True])
def test_no_commit_of_ours_or_of_lance_loses_the_id(tmp_path: Path, key: str | None, row_ids: bool) -> None:
    uri = str(tmp_path / "t")
    columns = SCHEMA if key else pa.schema([("id", pa.int64()), ("v", pa.string())])
    rows = pa.table({"id": [1, 2], "v": ["a", "b"]}, schema=columns)
    lance.write_dataset(rows, uri, enable_stable_row_ids=row_ids)
    table = mw.enable(uri, sharding=mw.Unsharded())
    first = _id(table)
    for number in range(3):
        with table.shard_writer() as writer:
            writer.put(row(10 + number))
        assert table.compact().generations == 1
        lance.dataset(uri).insert(rows)
    lance.dataset(uri).create_scalar_index("v", "BTREE")
    lance.dataset(uri).optimize.optimize_indices()
    lance.dataset(uri).optimize.compact_files()
    lance.dataset(uri).delete("id = 2")
    lance.dataset(uri).update_config({"owner": "blue"})
    table.gc(grace_seconds=0, optimize_indices=True)
    table.repair(dry_run=False)
    assert _id(table) == first


def test_a_table_that_pylance_initialised_gets_its_id_when_it_is_first_written(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    dataset = lance.write_dataset(pa.table({"id": [1], "v": ["a"]}, schema=SCHEMA), uri)
    dataset.initialize_mem_wal(unsharded=True)
    before = lance.dataset(uri).version
    table = mw.open_table(uri)
    assert shown(table) == [1]
    table.verify()
    assert lance.dataset(uri).version == before  # reading writes nothing
    one, two = table.writer(compaction=None), mw.open_table(uri).writer(compaction=None)
    given = lance.dataset(uri).config()[ID]
    one.put(row(2))
    one.close()
    two.put(row(3))
    two.close()
    mw.WalAppender.open(uri, mw.shard_id_for(mw.Unsharded()))
    assert lance.dataset(uri).config() == {ID: given}
    assert lance.dataset(uri).version == before + 1
    assert shown(table) == [1, 2, 3]
    table.compact()
    assert lance.dataset(uri).config() == {ID: given}


def test_a_writer_of_a_table_that_pylance_initialised_stops_after_an_overwrite(tmp_path: Path) -> None:
    """The configuration, and the id in it, survive an overwrite: what tells is the entry that is gone."""
    uri = str(tmp_path / "t")
    lance.write_dataset(pa.table({"id": [1], "v": ["a"]}, schema=SCHEMA), uri).initialize_mem_wal(unsharded=True)
    writer = mw.open_table(uri).writer(compaction=None)
    writer.put(row(2))
    overwrite(uri)
    assert ID in lance.dataset(uri).config()
    with pytest.raises(mw.TableReplacedError):
        writer.close()


def test_pylance_writes_beside_the_id(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = make(uri, 1)
    shard_id = mw.shard_id_for(mw.Unsharded())
    with table.shard_writer() as writer:
        writer.put(row(2))
    peer = lance.dataset(uri).mem_wal_writer(shard_id)
    peer.put(pa.table({"id": [3], "v": ["peer"]}, schema=SCHEMA))
    peer.close()
    assert shown(table) == [1, 2, 3]
    table.compact()
    assert shown(table) == [1, 2, 3]
