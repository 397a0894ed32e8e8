"""`Table.create_index`: an index of the base table that Lance makes, and that fresh tiers mirror."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_memwal as mw
from tests.kit.tables import FAST, create

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("t", pa.string()),
        ("n", pa.int64()),
        ("v", pa.list_(pa.float32(), 4)),
    ]
)


def rows(start: int, count: int) -> list[dict[str, Any]]:
    vectors = np.random.default_rng(start).random((count, 4), dtype=np.float32)
    return [
        {"id": start + i, "t": f"word{start + i} red", "n": (start + i) % 7, "v": vectors[i].tolist()}
        for i in range(count)
    ]


@pytest.fixture
def table(tmp_path: Path) -> mw.Table:
    return create(str(tmp_path / "t"), SCHEMA)


@pytest.mark.parametrize(
    ("asked", "index_type", "expected"),
    [
        ("n", None, "BTree"),
        ("t", None, "BTree"),
        ("t", "fts", "Inverted"),
        ("t", "INVERTED", "Inverted"),
        ("n", "bitmap", "Bitmap"),
        ("v", None, "IVF_HNSW_SQ"),
        ("v", "IVF_FLAT", "IVF_FLAT"),
        (mw.BTreeIndex("n"), None, "BTree"),
        (mw.FtsIndex("t", stem=False), None, "Inverted"),
        (mw.HnswIndex("v", metric="cosine"), None, "IVF_HNSW_SQ"),
    ],
    ids=str,
)
def test_it_is_made_by_lance_and_mirrored(table: mw.Table, asked: Any, index_type: str | None, expected: str) -> None:
    with table:
        table.add(rows(0, 40))
        table.compact(flush=True)
        made = table.create_index(asked, index_type)
        column = asked if isinstance(asked, str) else asked.column
        assert (made.name, made.index_type, made.columns, made.rows) == (f"{column}_idx", expected, (column,), 40)
        assert made.maintained is (expected != "Bitmap")
        assert table.list_indices() == [made]
        assert f"{column}_idx" in {index.name for index in lance.dataset(table.uri).describe_indices()}
        table.add(rows(40, 10))
        table.close()
        assert table.count_rows("n = 3") == 7
        assert table.search(text="word45", column="t")["id"].to_pylist()[0] == 45
        assert table.search(rows(40, 10)[5]["v"], k=1)["id"].to_pylist() == [45]


def test_a_vector_index_is_made_of_fresh_rows_too(table: mw.Table) -> None:
    with table:
        table.add(rows(0, 300))
        made = table.create_index("v", "IVF_PQ", metric="cosine", num_partitions=2, num_sub_vectors=2)
        assert (made.rows, made.maintained) == (300, True)
        table.add(rows(300, 10))
        found = table.search(rows(300, 10)[3]["v"], k=3)  # by the metric of the index
        assert found["id"].to_pylist()[0] == 303
        assert found["_distance"].to_pylist()[0] == pytest.approx(0, abs=1e-6)


def test_a_table_that_names_its_indexes_names_the_new_one(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), SCHEMA, maintained_indexes=None)
    assert table.create_index("n").maintained
    assert table.create_index("t", "FTS", name="texts").maintained
    assert not table.create_index("n", "BITMAP", name="bits").maintained
    assert table.details().maintained_indexes == ("n_idx", "texts")
    table.drop_index("n_idx")
    assert table.details().maintained_indexes == ("texts",)
    assert [index.name for index in table.list_indices()] == ["bits", "texts"]
    with table.writer(**FAST) as writer:
        writer.put(rows(0, 3))
        assert table.search(text="word1")["id"].to_pylist()[0] == 1


def test_an_index_is_replaced_or_not(table: mw.Table) -> None:
    with table:
        table.add(rows(0, 3))
        table.create_index("t", "BTREE")
        with pytest.raises(mw.InvalidInputError, match="'t_idx'"):
            table.create_index("t", "FTS", replace=False)
        assert table.create_index("t", "FTS").index_type == "Inverted"
        assert len(table.list_indices()) == 1


@pytest.mark.parametrize(
    ("asked", "options", "why"),
    [
        ("nope", {}, "'nope' is not in the table"),
        ("n", {"index_type": "IVF_PQ"}, "index_type must be one of"),
        ("v", {"index_type": "BTREE"}, "index_type must be one of"),
        ("n", {"index_type": 3}, "index_type"),
        (3, {}, "column"),
        (mw.FtsIndex("n"), {}, "cannot have a full-text index"),
        (mw.BTreeIndex("n"), {"index_type": "BTREE"}, "give an index, or a column"),
        ("v", {"index_type": "IVF_PQ"}, "creating the index 'v_idx': num_partitions and num_sub_vectors"),
        ("n", {"replace": 1}, "replace"),
    ],
)
def test_what_cannot_be_is_refused(table: mw.Table, asked: Any, options: dict[str, Any], why: str) -> None:
    with pytest.raises(mw.InvalidInputError, match=why):
        table.create_index(asked, **options)
    assert table.list_indices() == []


def test_an_index_that_is_not_there_cannot_be_dropped(table: mw.Table) -> None:
    with pytest.raises(mw.InvalidInputError, match="no index 'x'; its indexes: none"):
        table.drop_index("x")


def test_it_is_made_beside_a_writer(table: mw.Table) -> None:
    with table.writer(**FAST) as writer:
        writer.put(rows(0, 20))
        table.create_index("t", "FTS")
        table.create_index("v")
        writer.put(rows(20, 20))
        assert table.search(text="word25")["id"].to_pylist()[0] == 25
        assert len(table) == 40
    assert table.verify().ok


def test_optimize_brings_what_was_added_into_the_base_table_and_its_indexes(table: mw.Table) -> None:
    with table:
        table.add(rows(0, 20))
        table.create_index("t", "FTS")
        table.add(rows(20, 20))
        report = table.optimize()
        assert report.indexes == ("t_idx",)
        assert table.dataset.count_rows() == 40
        assert [index.rows for index in table.list_indices()] == [40]
        table.add(rows(40, 1))
        assert len(table) == 41
