"""Indexes of the base table that have no counterpart in memory: answers beside fresh rows are those without them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("color", pa.string()),
        ("labels", pa.list_(pa.string())),
        ("title", pa.string()),
        ("size", pa.int64()),
        ("doc", pa.string()),
    ]
)
INDEXES = {"color": "BITMAP", "labels": "LABEL_LIST", "title": "NGRAM", "size": "ZONEMAP", "doc": "BLOOMFILTER"}
FILTERS = {
    "color": ["color = 'red'", "color in ('red', 'blue')", "color is null", "color != 'red'", "not color = 'red'"],
    "labels": [
        "array_has_any(labels, ['a', 'c'])",
        "array_has_all(labels, ['a', 'b'])",
        "array_contains(labels, 'b')",
    ],
    "title": ["contains(title, 'ppl')", "contains(title, 'banana') and id < 150", "title like '%cherr%'"],
    "size": ["size > 90", "size between 10 and 20", "size = 55", "size is null"],
    "doc": ["doc = 'doc 7'", "doc in ('doc 3', 'doc 4')"],
}
FRUIT = ["apple", "banana split", "cherry", "pineapple", "grape", None]


def row(i: int, rng: random.Random) -> dict[str, Any]:
    return {
        "id": i,
        "color": rng.choice(["red", "green", "blue", None]),
        "labels": rng.choice([None, [], ["a"], ["a", "b"], ["b", "c"], ["c"]]),
        "title": rng.choice(FRUIT),
        "size": rng.choice([None, *range(100)]),
        "doc": f"doc {rng.randint(0, 9)}",
    }


def answers(table: mw.Table, filters: list[str], **options: Any) -> dict[str, list[int]]:
    return {f: sorted(table.scan(["id"], f, **options).to_table()["id"].to_pylist()) for f in filters}


def without_indexes(rows: pa.Table, filters: list[str]) -> dict[str, list[int]]:
    plain = lance.write_dataset(rows, "memory://")
    return {f: sorted(plain.to_table(columns=["id"], filter=f)["id"].to_pylist()) for f in filters}


def uses_an_index(uri: str, asked: str) -> bool:
    return "ScalarIndexQuery" in lance.dataset(uri).scanner(filter=asked).explain_plan()


@pytest.mark.parametrize(("column", "maintained"), [*((column, "all") for column in INDEXES), ("color", None)])
def test_filters_find_the_same_rows_with_and_without_the_index(
    tmp_path: Path, column: str, maintained: str | None
) -> None:
    rng, uri, filters = random.Random(column), str(tmp_path / "t"), FILTERS[column]
    first = pa.Table.from_pylist([row(i, rng) for i in range(200)], SCHEMA)
    lance.write_dataset(first, uri, max_rows_per_file=80).create_scalar_index(column, INDEXES[column])
    table = mw.enable(uri, primary_key="id", maintained_indexes=maintained, writer_defaults={"fsync": False})
    assert uses_an_index(uri, filters[0])
    for stage in range(3):
        with table.shard_writer() as writer:
            writer.put([row(i, rng) for i in rng.sample(range(260), 60)])
            writer.delete(rng.sample(range(260), 15))
            expected = without_indexes(table.scan().to_table(), filters)
            assert answers(table, filters) == expected, f"memtable {stage}"
        fresh = mw.open_table(uri)
        assert answers(fresh, filters) == expected, f"SSTable {stage}"
        assert {f: table.count_rows(f) for f in filters} == {f: len(found) for f, found in expected.items()}
        table.compact()
        assert answers(mw.open_table(uri), filters) == expected, f"compacted {stage}"
        assert without_indexes(lance.dataset(uri).to_table(), filters) == expected
        plain = {f: sorted(lance.dataset(uri).to_table(["id"], f)["id"].to_pylist()) for f in filters}
        assert plain == expected, "plain Lance, with its index"
        if stage:
            lance.dataset(uri).optimize.optimize_indices()
            assert answers(mw.open_table(uri), filters) == expected, f"optimized {stage}"
            assert uses_an_index(uri, filters[0])
    with table.shard_writer() as writer:
        writer.put([row(i, rng) for i in rng.sample(range(300), 40)])
    expected = without_indexes(table.scan().to_table(), filters)
    table.maintain()
    assert answers(mw.open_table(uri), filters) == expected, "maintained"
    assert table.verify().ok
