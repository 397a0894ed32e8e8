"""A search is restricted to the rows that a scan with the same filter shows, whatever the filter and the tier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_memwal as mw

SETTINGS: dict[str, Any] = {"fsync": False, "stats_log_interval_ms": None}
NAN = float("nan")
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("f", pa.float64()),
        pa.field("half", pa.float32()),
        pa.field("u", pa.uint32()),
        pa.field("text", pa.string()),
        pa.field("st", pa.struct([("a", pa.int32())])),
        pa.field("v", pa.list_(pa.float32(), 4)),
    ]
)
ROWS = [
    {
        "id": i,
        "f": [1.0, NAN, None, -1.0, -NAN][i % 5],
        "half": [0.1, NAN, None, 0.3][i % 4],
        "u": i,
        "text": f"word w{i}",
        "st": None if i % 7 == 6 else {"a": i},
        "v": [float(i), 1.0, 0.0, 0.0],
    }
    for i in range(40)
]
FILTERS = {
    "a comparison that NaN fails": pc.field("f") > 0,
    "unsigned": pc.field("u") > 20,
    "a field of a struct": pc.field("st", "a") > 30,
    "a function that Lance cannot be told": pc.utf8_length(pc.field("text")) > 7,
    "one that Lance is told": pc.field("id") < 10,
    "both": (pc.field("f") > 0) & (pc.field("id") < 30),
    "SQL with NaN": "f > 0",
    "SQL with a literal of another width": "half = 0.1",
    "SQL with a field of null structs": "st.a is null",
}


def found(table: mw.Table, question: Any) -> dict[str, list[int]]:
    """The rows that a scan and each kind of search find."""
    ways = {
        "scan": table.scan(filter=question).to_table(),
        "vector": table.search(vector=[0.0] * 4, k=100, filter=question),
        "text": table.search(text="word", column="text", k=100, filter=question),
        "hybrid": table.search(vector=[0.0] * 4, text="word", k=100, filter=question),
    }
    return {way: sorted(answer.column("id").to_pylist()) for way, answer in ways.items()}


@pytest.mark.repro("reads-08")
@pytest.mark.parametrize("question", FILTERS.values(), ids=FILTERS.keys())
def test_a_search_with_a_filter_finds_the_rows_of_the_scan_in_every_tier(tmp_path: Path, question: Any) -> None:
    rows = pa.Table.from_pylist(ROWS, schema=SCHEMA)
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=mw.Unsharded())
    writer = table.shard_writer(**SETTINGS)
    writer.put(rows)
    in_memory = found(table, question)
    writer.close()
    in_sstable = found(table, question)
    table.compact()
    in_base = found(table, question)
    assert lance.dataset(table.uri).count_rows() == len(ROWS)
    expected = in_memory["scan"]
    assert 0 < len(expected) < len(ROWS)
    for tier in (in_memory, in_sstable, in_base):
        assert tier == dict.fromkeys(in_memory, expected)


def test_a_filter_that_lance_is_not_told_keeps_what_fresh_tiers_hide_out_of_the_nearest(tmp_path: Path) -> None:
    """The base table is then searched by us: rows that were replaced or deleted since must not take a place."""
    rows = pa.Table.from_pylist(ROWS, schema=SCHEMA)
    table = mw.create_table(str(tmp_path / "t"), rows, primary_key="id", sharding=mw.Unsharded())
    with table.writer(**SETTINGS) as writer:
        writer.delete([0])
        writer.put([{**ROWS[5], "f": -1.0}])
        nearest = table.search(vector=[0.0] * 4, k=2, filter=pc.field("f") > 0)
    assert nearest.column("id").to_pylist() == [10, 15]
    assert nearest.column("_distance").to_pylist() == [101.0, 226.0]
    assert nearest.column("text").to_pylist() == ["word w10", "word w15"]
