"""`mw.polars.scan`: lazy frames over fresh rows, with Polars' own rules for NaN and null."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_memwal as mw
from lance_memwal.engines.polars_source import polars_source
from lance_memwal.lance.base import BaseTable
from lance_memwal.read.tiers import Consistency
from tests.kit.engine_tables import NAN, ROWS, SCHEMA, row, table_in_all_tiers

CITY, N, X, ID = pl.col("city"), pl.col("n"), pl.col("x"), pl.col("id")
NOON = datetime.datetime(2026, 1, 2, 12, tzinfo=datetime.UTC)
PREDICATES = [
    X > 0.5,
    X == NAN,
    ~(X > 0.5),
    X.is_nan() | N.is_null(),
    CITY.is_in(["a", "b"]),
    ~CITY.is_in(["a"]),
    N.is_in([1, None]),
    N.is_in([1, None], nulls_equal=True),
    (ID > 20) & (CITY == "a") & (X > 1),
    (N > 3) | (CITY == "b"),
    (N > 3) | CITY.str.starts_with("a"),
    pl.lit(5) < N,
    N.is_between(2, 4, closed="left"),
    N.is_not_null() & CITY.is_null(),
    pl.col("ok") | (N == 1),
    pl.col("day") >= datetime.date(2026, 2, 1),
    pl.col("day").is_in([datetime.date(2026, 2, 1)]),
    pl.col("moment") < NOON,
    pl.col("u") > 2**64 - 20,
    pl.col("d") > 20,
    N + 1 > 4,
    N > 2.5,
    CITY.eq_missing(None),
]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[mw.Table]:
    with table_in_all_tiers(str(tmp_path_factory.mktemp("polars") / "t"), sharding=mw.Bucket("id", 3)) as made:
        yield made


@pytest.mark.parametrize("predicate", PREDICATES, ids=str)
@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
def test_polars_finds_the_rows_that_it_finds_in_memory(table: mw.Table, predicate: pl.Expr, engine: str) -> None:
    def found(frame: pl.LazyFrame) -> list[int]:
        return sorted(frame.filter(predicate).select("id").collect(engine=engine)["id"].to_list())  # type: ignore[call-overload]

    assert found(mw.polars.scan(table)) == found(pl.from_arrow(ROWS).lazy())  # type: ignore[union-attr]


def test_columns_rows_and_order_are_those_of_the_table(table: mw.Table) -> None:
    frame = mw.polars.scan(table)
    assert frame.collect().sort("id").equals(pl.from_arrow(ROWS), null_equal=True)  # type: ignore[arg-type]
    assert frame.select("city", "id").collect().columns == ["city", "id"]
    assert frame.select(pl.len()).collect().item() == 60
    assert frame.filter(ID >= 0).head(7).collect().height == 7
    assert frame.head(0).collect().height == 0
    assert mw.polars.scan(table.uri, consistency="flushed").select(pl.len()).collect().item() == 55


def test_a_collected_frame_is_of_its_moment(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id")
    frame = mw.polars.scan(table).select(pl.len())
    with table.writer(fsync=False) as writer:
        for number in (1, 2):
            writer.put(pa.Table.from_pylist([row(number)], SCHEMA))
            assert frame.collect().item() == number


@pytest.mark.parametrize(
    ("predicate", "told"),
    [
        ((ID > 20) & (X > 1.0), pc.field("id") > 20),
        (CITY == "a", pc.field("city") == "a"),
        (ID.is_between(1, 5, closed="right"), (pc.field("id") > 1) & (pc.field("id") <= 5)),
        ((ID == 1) | (CITY == "a"), (pc.field("id") == 1) | (pc.field("city") == "a")),
        (X > 1.0, None),
        ((ID == 1) | (X > 1.0), None),
        (CITY.str.starts_with("a"), None),
        (ID.is_null() & (CITY != "a"), None),
    ],
    ids=str,
)
def test_a_scan_is_told_what_a_predicate_demands(
    table: mw.Table, predicate: pl.Expr, told: pc.Expression | None
) -> None:
    noted = Noted(table)
    polars_source(noted, "fresh").filter(predicate).select("id").collect()
    ((columns, condition),) = noted.asked
    assert str(condition) == str(told)
    assert set(columns) == {"id", *predicate.meta.root_names()}


class Noted:
    """A table that notes which scans are made of it."""

    def __init__(self, table: mw.Table) -> None:
        self.asked: list[tuple[Any, Any]] = []
        self._table = table

    @property
    def base(self) -> BaseTable:
        return self._table.base

    def scan(self, columns: Any, filter: Any, limit: int | None = None, *, consistency: Consistency) -> mw.Scan:  # noqa: A002
        self.asked.append((columns, filter))
        return self._table.scan(columns, filter, limit, consistency=consistency)
