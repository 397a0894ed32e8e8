"""LanceDB 0.40 finds every fresh row by its vector and by its text, at every moment that it can look at.

An index of the base table covers compacted rows only after somebody brought it up to date. Until then LanceDB finds them
in the SSTables, so these stay listed. What LanceDB cannot do: read the log of another writer. Before a flush it finds the
rows that it wrote itself, on the connection that wrote them.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import lancedb
import numpy as np
import pyarrow as pa
import pytest

import lance_memwal as mw

DIM = 8
FRESH = range(5_000, 5_100)
KEY = {"lance-schema:unenforced-primary-key": "true"}
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata=KEY),
        pa.field("v", pa.list_(pa.float32(), DIM)),
        pa.field("t", pa.string()),
    ]
)


def rows(numbers: range, seed: int = 0) -> pa.Table:
    vectors = np.random.default_rng([seed, numbers.start]).normal(size=(len(numbers), DIM)).astype(np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIM)
    texts = [f"word{number} of many" for number in numbers]
    return pa.table([pa.array(numbers, pa.int64()), column, pa.array(texts)], schema=SCHEMA)


def indexed(place: Path, maintained: Any) -> mw.Table:
    """2,000 rows with a vector and a text index."""
    uri = str(place / "t.lance")
    dataset = lance.write_dataset(rows(range(2_000)), uri)
    dataset.create_index("v", "IVF_FLAT", name="v_ann", num_partitions=4)
    dataset.create_scalar_index("t", "INVERTED", name="t_fts")
    return mw.enable(uri, maintained_indexes=maintained, writer_defaults={"fsync": False})


def found(place: Path, wanted: pa.Table, connection: Any = None) -> tuple[int, int]:
    """How many of the rows LanceDB finds first by their exact vector, and by the word that only they have."""
    table: Any = lancedb.connect(str(place)).open_table("t") if connection is None else connection
    vectors = np.array(wanted["v"].to_pylist(), np.float32)
    by_vector = by_text = 0
    for number, vector in zip(wanted["id"].to_pylist(), vectors, strict=True):
        nearest = table.search(vector).limit(1).to_arrow()
        by_vector += nearest["id"].to_pylist() == [number]
        matching = table.search(f"word{number}", query_type="fts", fts_columns="t").limit(1).to_arrow()
        by_text += matching["id"].to_pylist() == [number]
    return by_vector, by_text


@pytest.mark.parametrize(
    ("maintained", "number"), [(["v_ann", "t_fts"], 100), ("all", 20)], ids=["the listed", "all indexes"]
)
def test_lancedb_finds_every_fresh_row_after_flush_compact_gc_and_maintain(
    tmp_path: Path, maintained: Any, number: int
) -> None:
    table, fresh = indexed(tmp_path, maintained), rows(FRESH[:number])
    everything = (number, number)
    with table.writer(compaction=None) as writer:
        writer.put(fresh)
        writer.flush()
        assert found(tmp_path, fresh) == everything
    table.compact()
    assert found(tmp_path, fresh) == everything
    table.gc(grace_seconds=0)
    assert found(tmp_path, fresh) == everything
    assert table.stats().waiting_for_indexes == {"t_fts": 1, "v_ann": 1}
    table.maintain(versions=timedelta(0), grace_seconds=0)
    assert found(tmp_path, fresh) == everything
    assert table.stats().waiting_for_indexes == {}
    assert [shard.generations for shard in table.shards()] == [()]
    assert table.count_rows() == lance.dataset(table.uri).count_rows() == 2_000 + number


def test_rows_that_lancedb_wrote_are_found_before_and_after_our_compaction(tmp_path: Path) -> None:
    table, fresh = indexed(tmp_path, "all"), rows(FRESH[:40])
    theirs: Any = lancedb.connect(str(tmp_path)).open_table("t")
    theirs.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(fresh)
    assert found(tmp_path, fresh, theirs) == (40, 40)
    theirs.close_lsm_writers()
    flushed = found(tmp_path, fresh)  # the graph in LanceDB's own SSTable is an approximation
    table.compact()
    assert found(tmp_path, fresh) == flushed
    table.gc(grace_seconds=0)
    assert found(tmp_path, fresh) == flushed
    table.gc(grace_seconds=0, optimize_indices=True)
    assert found(tmp_path, fresh) == (40, 40)
