"""Scans of memtables: recency before filter and limit, tombstones never seen, projections, one capture per scanner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_memwal import InvalidInputError
from lance_memwal.memtable.memtable import InMemoryMemTables, MemTable
from lance_memwal.read.memory import winners
from lance_memwal.read.memory_scan import MemTableScanner
from lance_memwal.read.tiers import Tiers
from lance_memwal.rows.schema import TableSchema
from lance_memwal.store.location import resolve

PK = {b"lance-schema:unenforced-primary-key": b"true"}
COLUMNS = pa.schema(
    [pa.field("id", pa.int64(), nullable=False, metadata=PK), pa.field("v", pa.string()), pa.field("n", pa.int64())]
)
KEYED = TableSchema.from_arrow(COLUMNS)
UNKEYED = TableSchema.from_arrow(pa.schema([column.remove_metadata() for column in COLUMNS]))
Write = tuple[int, str | None]  # a None value is a delete


def memtables(generations: Sequence[Sequence[Write]], schema: TableSchema = KEYED) -> InMemoryMemTables:
    tables, number = [], 0
    for generation, writes in enumerate(generations, 1):
        table = MemTable(schema, generation, 0, 0)
        for key, value in writes:
            row = pa.record_batch(
                [pa.array([key]), pa.array([value], pa.string()), pa.array([number])], schema=schema.nullable
            )
            table.append(row, pa.array([value is None]) if value is None else None)
            number += 1
        tables.append(table.capture())
    return InMemoryMemTables(tables[-1], tuple(tables[:-1]), "shard", 1)


def scan(generations: Sequence[Sequence[Write]], schema: TableSchema = KEYED) -> MemTableScanner:
    return MemTableScanner(Tiers.of_memory(resolve("nowhere"), schema, memtables(generations, schema)))


def pairs(table: pa.Table) -> dict[int, str]:
    return {row["id"]: row["v"] for row in table.to_pylist()}


def test_the_newest_row_wins_over_generations() -> None:
    assert pairs(scan([[(1, "a"), (2, "a")], [(1, "b")], [(3, "c")]]).to_table()) == {1: "b", 2: "a", 3: "c"}


def test_a_newer_row_that_does_not_match_still_hides_the_older_one_that_does() -> None:
    """Lesson 23: the filter ran before recency was decided."""
    data: list[list[Write]] = [[(1, "match"), (2, "match")], [(1, "other")]]
    assert pairs(scan(data).filter("v = 'match'").to_table()) == {2: "match"}
    assert pairs(scan([[(1, "match"), (1, "other")]]).filter("v = 'match'").to_table()) == {}


def test_a_tombstone_hides_older_rows_and_never_counts() -> None:
    data: list[list[Write]] = [[(1, "a"), (2, "a")], [(1, None)], [(3, "c"), (4, None)]]
    assert pairs(scan(data).to_table()) == {2: "a", 3: "c"}
    assert scan(data).count_rows() == 2
    assert scan(data).limit(2).to_table().num_rows == 2, "a limit is filled from live rows"


def test_limits_apply_after_the_filter() -> None:
    """Lesson 25: hidden rows used up the limit."""
    data: list[list[Write]] = [[(k, "x" if k % 2 else "y") for k in range(10)]]
    assert len(pairs(scan(data).filter("v = 'x'").limit(3).to_table())) == 3
    assert scan(data).limit(0).to_table().num_rows == 0
    assert scan(data).limit(100).to_table().num_rows == 10


def test_projection_returns_exactly_the_columns_asked_for() -> None:
    """Lesson E1.9: the key came along unasked."""
    table = scan([[(1, "a")]]).project(["v"]).to_table()
    assert table.schema.names == ["v"]
    assert scan([[(1, "a")]]).project(["n", "id"]).filter("v = 'a'").to_table().schema.names == ["n", "id"]


def test_several_filters_must_all_be_true() -> None:
    """Lesson E1.9: a second filter silently replaced the first."""
    data: list[list[Write]] = [[(k, "x" if k % 2 else "y") for k in range(10)]]
    assert set(pairs(scan(data).filter("v = 'x'").filter("id > 4").to_table())) == {5, 7, 9}


def test_filters_may_be_expressions() -> None:
    data: list[list[Write]] = [[(1, "a"), (2, "b")]]
    assert pairs(scan(data).filter(pc.field("v") == "b").to_table()) == {2: "b"}


def test_a_scanner_can_be_run_again_and_gives_the_same() -> None:
    scanner = scan([[(1, "a")], [(2, "b")]]).filter("id > 0")
    assert scanner.to_table().equals(scanner.to_table())


def test_what_cannot_be_scanned_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="'w' is not in the table"):
        scan([[(1, "a")]]).project(["w"])
    bad: tuple[Any, ...] = (-1, None, 1.5, True)
    for limit in bad:
        with pytest.raises(InvalidInputError, match="limit must be an integer"):
            scan([[(1, "a")]]).limit(limit)
    for columns in ("v", ["v", "v"]):
        with pytest.raises(InvalidInputError, match="columns"):
            scan([[(1, "a")]]).project(columns)
    with pytest.raises(InvalidInputError):
        scan([[(1, "a")]]).filter("v = ").to_table()
    with pytest.raises(InvalidInputError, match="not int"):
        scan([[(1, "a")]]).filter(7)  # type: ignore[arg-type]


def test_an_empty_writer_scans_to_an_empty_table_with_the_columns() -> None:
    table = scan([[]]).to_table()
    assert table.num_rows == 0
    assert table.schema.names == COLUMNS.names
    assert scan([[]]).filter("id = 1").project(["v"]).limit(1).to_table().schema.names == ["v"]


def test_every_row_of_a_table_without_a_key_is_scanned() -> None:
    data: list[list[Write]] = [[(1, "a"), (1, "a")], [(1, "b")]]
    assert scan(data, UNKEYED).count_rows() == 3


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 5), st.none() | st.sampled_from("xyz")), max_size=8), min_size=1, max_size=5
    )
)
def test_scans_agree_with_a_dict(generations: list[list[Write]]) -> None:
    model: dict[int, str | None] = {}
    for writes in generations:
        model.update(dict(writes))
    live = {key: value for key, value in model.items() if value is not None}
    assert pairs(scan(generations).to_table()) == live
    assert pairs(scan(generations).filter("v = 'x'").to_table()) == {k: v for k, v in live.items() if v == "x"}
    newest = [ref.table().filter(pa.array(mask)) for ref, mask in winners(memtables(generations).ascending)]
    assert sorted(key for table in newest for key in table.column("id").to_pylist()) == sorted(model)
