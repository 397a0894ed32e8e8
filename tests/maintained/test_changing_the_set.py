"""The maintained set of a live table changes, and nothing else does: rows, marks, other people's commits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import lancedb
import numpy as np
import pyarrow as pa
import pytest
from lance.mem_wal import CompactedSsTable

import lance_memwal as mw
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.commit import commit_details
from lance_memwal.lance.hand_made import hand_commit_is_safe
from lance_memwal.testing.clocks import SkippingClock
from tests.kit.maintained import (
    DIM,
    SETTINGS,
    flush,
    index_names,
    memtable_indexes,
    rows,
    sstables,
    table_with_indexes,
)

ALL = ["n_btree", "t_fts", "v_ann"]
SHARD = mw.shard_id_for(mw.Unsharded())


def test_a_live_writer_follows_the_new_set(tmp_path: Path) -> None:
    table = table_with_indexes(tmp_path, ["n_btree"])
    with table.shard_writer(SHARD, **SETTINGS) as writer:
        writer.put(rows([200]))
        assert memtable_indexes(writer) == ["n_btree"]
        for choice, expected in [
            ("all", ALL),
            (["t_fts"], ["t_fts"]),
            (None, []),
            (["v_ann", "n_btree"], ["n_btree", "v_ann"]),
        ]:
            details = table.maintain_indexes(choice)
            assert details.maintain_all_indexes is (choice == "all")
            assert sorted(details.maintained_indexes) == expected
            flush(writer)
            writer.put(rows([201]))
            flush(writer)
            assert index_names(sstables(table, writer)[-1]) == expected
            writer.put(rows([202]))
            assert memtable_indexes(writer) == expected
    assert table.count_rows() == 103
    assert table.verify().ok


def test_what_does_not_fit_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    table = table_with_indexes(tmp_path)
    table.dataset.create_scalar_index("x", "BITMAP", name="x_bitmap")
    version = table.dataset.version
    for names, reason in [(["none"], "no index"), (["x_bitmap"], "no mirror"), ("some", "'all'")]:
        with pytest.raises(mw.InvalidInputError, match=reason):
            table.maintain_indexes(names)
    table.maintain_indexes("all")  # as it is
    assert table.dataset.version == version


def test_only_the_details_of_the_entry_change(tmp_path: Path) -> None:
    table = table_with_indexes(tmp_path)
    before = table.base
    table.maintain_indexes(["t_fts"])
    after = table.base
    assert after.version == before.version + 1
    assert after.fragment_messages == before.fragment_messages
    assert {entry.name: entry.raw for entry in after.index_entries if entry.name in ALL} == {
        entry.name: entry.raw for entry in before.index_entries if entry.name in ALL
    }
    old, new = before.need_details(), after.need_details()
    assert (new.compacted, new.index_catchup, new.sharding_specs) == (
        old.compacted,
        old.index_catchup,
        old.sharding_specs,
    )
    assert new.writer_config_defaults == old.writer_config_defaults
    dataset = lance.dataset(table.uri)
    dataset.validate()
    assert dataset.mem_wal_index_details()["maintained_indexes"] == ["t_fts"]
    assert dataset.to_table().num_rows == 100


def _append(dataset: lance.LanceDataset) -> None:
    dataset.insert(rows([900]).cast(dataset.schema))


def _delete(dataset: lance.LanceDataset) -> None:
    dataset.delete("id = 5")


def _update(dataset: lance.LanceDataset) -> None:
    dataset.update({"x": "1.5"}, where="id = 6")


def _mark(dataset: lance.LanceDataset) -> None:
    merging = dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    merging.mark_sstables_as_compacted([CompactedSsTable(SHARD, 1)]).execute(rows([7]).cast(dataset.schema))


def _optimize(dataset: lance.LanceDataset) -> None:
    dataset.optimize.optimize_indices()


def _create_index(dataset: lance.LanceDataset) -> None:
    dataset.create_scalar_index("x", "BTREE", name="x_btree")


def _compact_files(dataset: lance.LanceDataset) -> None:
    dataset.optimize.compact_files()


@pytest.mark.parametrize("commit", [_append, _delete, _update, _mark, _optimize, _create_index, _compact_files])
def test_commits_of_lance_that_began_before_land_on_top(
    tmp_path: Path, commit: Callable[[lance.LanceDataset], None]
) -> None:
    table = table_with_indexes(tmp_path)
    with table.shard_writer(SHARD, **SETTINGS) as writer:
        writer.put(rows([300]))
    lance.dataset(table.uri).insert(rows([800]).cast(table.dataset.schema))
    stale = lance.dataset(table.uri)
    table.maintain_indexes(["t_fts"])
    commit(stale)
    details = table.details()
    assert (details.maintained_indexes, details.maintain_all_indexes) == (("t_fts",), False)
    assert details.compacted == ({SHARD: 1} if commit is _mark else {})
    lance.dataset(table.uri).validate()


def test_marks_survive_changes_beside_compactions(tmp_path: Path) -> None:
    table = table_with_indexes(tmp_path)
    failures: list[BaseException] = []

    def change() -> None:
        try:
            for number in range(12):
                mw.open_table(table.uri).maintain_indexes([ALL[number % 3]] if number % 2 else "all")
        except BaseException as error:
            failures.append(error)

    changing = threading.Thread(target=change)
    changing.start()
    with table.shard_writer(SHARD, **SETTINGS) as writer:
        for number in range(8):
            writer.put(rows([500 + number]))
            flush(writer)
            table.compact()
    changing.join(60)
    assert failures == []
    assert table.details().compacted == {SHARD: 8}
    assert table.count_rows() == lance.dataset(table.uri).count_rows() == 108


def test_a_version_that_somebody_else_committed_is_never_overwritten(tmp_path: Path) -> None:
    table = table_with_indexes(tmp_path)
    stale = BaseTable.need(table.location)
    lance.dataset(table.uri).delete("id = 1")
    with pytest.raises(mw.ConflictError):
        commit_details(stale, stale.need_details(), SkippingClock(), fsync=False)
    assert lance.dataset(table.uri).count_rows() == 99
    left = [
        path.name for path in (Path(table.uri) / "_transactions").iterdir() if path.name.startswith(f"{stale.version}-")
    ]
    assert len(left) == 1  # that of the delete


def test_a_table_with_stable_row_ids_changes_its_set_too(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    lance.write_dataset(rows(range(50)), uri, enable_stable_row_ids=True).create_scalar_index(
        "n", "BTREE", name="n_btree"
    )
    table = mw.enable(uri, primary_key="id", writer_defaults={"fsync": False})
    assert hand_commit_is_safe(table.base.manifest)
    ids = lance.dataset(uri).to_table(with_row_id=True)["_rowid"].to_pylist()
    table.maintain_indexes([])
    table.maintain_indexes(["n_btree"])
    assert lance.dataset(uri).to_table(with_row_id=True)["_rowid"].to_pylist() == ids
    lance.dataset(uri).insert(rows([60]).cast(table.dataset.schema))
    assert max(lance.dataset(uri).to_table(with_row_id=True)["_rowid"].to_pylist()) == 50
    lance.dataset(uri).validate()


def test_names_follow_the_indexes_when_a_writer_opens(tmp_path: Path) -> None:
    """LanceDB 0.40 knows only the list: an index that was made after the table must be in it."""
    place = tmp_path / "db"
    table = mw.create_table(
        str(place / "t.lance"), rows(range(300)), primary_key="id", writer_defaults={"fsync": False}
    )
    assert table.details().maintained_indexes == ()
    table.dataset.create_index("v", "IVF_FLAT", name="v_ann", num_partitions=2)
    with table.writer(compaction=None) as writer:
        assert table.details().maintained_indexes == ("v_ann",)
        version = table.dataset.version
        writer.put(rows([1_000]))
    with table.writer(compaction=None):
        assert table.dataset.version == version
    theirs: Any = lancedb.connect(str(place)).open_table("t")
    found = theirs.search(np.eye(DIM, dtype=np.float32)[0] * 1_000).limit(1).to_arrow()
    assert found["id"].to_pylist() == [1_000]
    peer: Any = lance.dataset(table.uri).mem_wal_writer(SHARD)
    peer.put(pa.table(rows([1_001])).cast(table.dataset.schema))
    peer.close()
    assert table.count_rows() == 302
    table.dataset.drop_index("v_ann")
    table.maintain_indexes("all")
    assert table.details().maintained_indexes == ()


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64(), pa.float16()], ids=str)
def test_lancedb_and_pylance_write_a_table_whatever_its_vectors_are(tmp_path: Path, kind: pa.DataType) -> None:
    """LanceDB 0.40 opens no writer if the list names an index of vectors that are not of 32 bits: "all" does not."""
    key = {"lance-schema:unenforced-primary-key": "true"}
    schema = pa.schema([pa.field("id", pa.int64(), False, key), ("v", pa.list_(kind, DIM))])
    values = pa.array(np.random.default_rng(0).normal(size=300 * DIM).astype(kind.to_pandas_dtype()), kind)
    data = pa.table([pa.array(range(300)), pa.FixedSizeListArray.from_arrays(values, DIM)], schema=schema)
    dataset = lance.write_dataset(data, str(tmp_path / "t.lance"))
    dataset.create_index("v", "IVF_FLAT", name="v_ann", num_partitions=2)
    table = mw.enable(dataset.uri, writer_defaults={"fsync": False})
    assert table.details().maintained_indexes == (("v_ann",) if kind == pa.float32() else ())
    theirs: Any = lancedb.connect(str(tmp_path)).open_table("t")
    theirs.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(data.slice(0, 5))
    theirs.close_lsm_writers()
    with lance.dataset(table.uri).mem_wal_writer(SHARD) as peer:
        peer.put(data.slice(5, 5))
    assert table.count_rows() == 300
    assert table.compact().waiting_for_indexes == {"v_ann": 2}  # by the flag, it is maintained all the same
