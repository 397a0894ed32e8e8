"""Engines over a table: datasets of pyarrow and DuckDB, Polars, and tables of LanceDB."""

import datetime
import operator
import pickle
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import duckdb
import lancedb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

import lance_memwal as mw
from lance_memwal.engines.dataset import TableDataset
from lance_memwal.engines.polars_source import polars_source
from lance_memwal.read.scan import Scan
from lance_memwal.read.tiers import Consistency
from lance_memwal.rows.filter import FilterLike, RowFilter, pushdown
from tests.kit.engine_tables import CONDITIONS, NAN, ROWS, SCHEMA, row, table_in_all_tiers
from tests.kit.tables import compact_everything


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[mw.Table]:
    uri = str(tmp_path_factory.mktemp("dataset") / "t")
    with table_in_all_tiers(uri, sharding=mw.Bucket("id", 4)) as made:
        yield made


@pytest.fixture
def asked(table: mw.Table) -> tuple[TableDataset, list[tuple[object, str]]]:
    """The table as a dataset, and what is asked of it."""
    noted: list[tuple[object, str]] = []

    def scan(columns: object, condition: FilterLike | None) -> Scan:
        noted.append((columns, str(condition)))
        return table.scan(columns, condition)  # type: ignore[arg-type]

    return TableDataset(lambda: table.schema, scan), noted


def ids(rows: list[tuple[int, ...]]) -> list[int]:
    return sorted(found[0] for found in rows)


@pytest.mark.parametrize("condition", CONDITIONS)
def test_duckdb_finds_the_rows_that_it_finds_in_memory(table: mw.Table, condition: str) -> None:
    t, plain = table.to_dataset(), ROWS
    question = f"select id from {{}} where {condition}"
    assert ids(duckdb.sql(question.format("t")).fetchall()) == ids(duckdb.sql(question.format("plain")).fetchall())
    assert t is not plain


def test_duckdb_pushes_columns_and_filters_down(asked: tuple[TableDataset, list[tuple[object, str]]]) -> None:
    t, noted = asked
    assert duckdb.sql("select count(*) from t where id between 50 and 52 and city in ('b', 'c')").fetchall() == [(2,)]
    assert t.count_rows() == ROWS.num_rows
    (columns, condition), _ = noted
    assert columns == ["id"]
    assert "id >= 50" in condition
    assert "is_in(city" in condition


def test_a_dashboard_sees_rows_that_come_while_it_is_open(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id")
    t = table.to_dataset()
    assert isinstance(t, TableDataset)
    with table.writer(fsync=False) as writer:
        for number in range(3):
            writer.put(pa.Table.from_pylist([row(number)], SCHEMA))
            assert duckdb.sql("select count(*) from t").fetchall() == [(number + 1,)]
        writer.delete([1])
        assert duckdb.sql("select id from t order by id").fetchall() == [(0,), (2,)]


def test_everything_that_a_dataset_of_pyarrow_can_do_is_done_or_refused(table: mw.Table) -> None:
    ours, plain = table.to_dataset(), ds.dataset(ROWS)
    some = pc.field("id") < 5
    assert isinstance(ours, ds.Dataset)
    assert ours.schema == table.schema
    assert ours.count_rows(filter=some) == plain.count_rows(filter=some) == 5
    assert ours.filter(some).count_rows() == 5
    assert ours.filter(some).to_table(filter=pc.field("id") > 2).num_rows == 2
    assert ours.head(3).num_rows == 3
    assert ours.head(0).num_rows == 0
    assert ours.take([0, 1], columns=["id"]).num_rows == 2
    assert sum(batch.num_rows for batch in ours.to_batches(batch_size=7)) == ROWS.num_rows
    assert max(batch.num_rows for batch in ours.to_batches(batch_size=7)) == 7
    assert sum(found.record_batch.num_rows for found in ours.scanner().scan_batches()) == ROWS.num_rows
    doubled = {"twice": pc.field("id") * 2}
    assert sorted(ours.to_table(columns=doubled).column(0).to_pylist()) == [2 * n for n in range(60)]
    assert ours.scanner(columns=doubled).projected_schema.names == ["twice"]
    assert ours.scanner(columns=["city"]).projected_schema == pa.schema([("city", pa.string())])
    assert ours.sort_by([("id", "descending")]).head(1).column("id").to_pylist() == [59]
    names = pa.table({"city": ["a"], "name": ["Aachen"]})
    assert ours.join(ds.dataset(names), "city", join_type="inner").count_rows() == 15
    assert pa.table(ours).num_rows == ROWS.num_rows
    (fragment,) = ours.get_fragments(some)
    assert fragment.count_rows() == fragment.to_table(columns=["id"]).num_rows == 5
    assert fragment.physical_schema == ours.schema
    assert ours.partition_expression.equals(pc.scalar(True))
    with pytest.raises(mw.InvalidInputError, match="cannot be replaced"):
        ours.replace_schema(SCHEMA)
    missing = {name for name in dir(ds.Dataset) if not name.startswith("_")} - set(vars(TableDataset))
    assert not missing, "pyarrow would crash in them"


def test_a_dataset_can_be_sent_to_another_process(table: mw.Table) -> None:
    sent = pickle.loads(pickle.dumps(table.to_dataset(consistency="flushed")))
    assert sent.count_rows() == 55


@pytest.mark.parametrize(
    ("condition", "sql"),
    [
        (pc.field("city").isin(["a", "it's"]), "`city` in ('a', 'it''s')"),
        (pc.field("city").isin(["a"]) & (pc.field("n") > 3), "(`city` in ('a')) and (`n` > 3)"),
        ((pc.field("n") == 1) | pc.field("n").isin([2]), "`n` in (1, 2)"),
        ((pc.field("n") == 1) | (pc.field("city") < "b"), "(`n` in (1)) or (`city` < 'b')"),
        (~pc.field("city").isin(["a"]), "not (`city` in ('a') and `city` is not null)"),
        (pc.field("n") != 1, "not (`n` in (1))"),
        (~((pc.field("n") == 1) & pc.field("city").is_null()), "not ((`n` in (1)) and (`city` is null))"),
    ],
)
def test_lance_evaluates_an_expression_that_sql_can_say(condition: pc.Expression, sql: str) -> None:
    shared = pushdown(RowFilter(condition, SCHEMA))
    assert (shared.told, shared.late) == (sql, None)


@pytest.mark.parametrize(
    ("condition", "sql"),
    [
        (pc.if_else(pc.field("n").is_valid(), pc.field("n").isin([1]), pa.scalar(None, pa.bool_())), "`n` in (1)"),
        (pc.field("city").isin(["a"]) & (pc.field("x") > 1.0), "`city` in ('a')"),
        ((pc.field("n") == 1) | (pc.field("x") > 1.0), None),
        (~((pc.field("n") == 1) & (pc.field("x") > 1.0)), None),
        (pc.field("city").isin(["a", None]), None),
        (pc.field("x").isin([1.0]), None),
        (pc.field("n") + 1 == 2, None),
    ],
)
def test_of_other_expressions_lance_evaluates_conditions_on_columns(condition: pc.Expression, sql: str | None) -> None:
    shared = pushdown(RowFilter(condition, SCHEMA))
    assert shared.told == sql
    assert shared.late is not None


@pytest.mark.parametrize("join", [operator.or_, operator.and_])
def test_an_expression_of_thousands_of_conditions_is_applied(tmp_path: Path, join: Any) -> None:
    table = mw.create_table(str(tmp_path / "t"), ROWS, primary_key="id")
    condition = reduce(join, [(pc.field("id") > n % 30) | (pc.field("n") == n) for n in range(1_000)])
    assert pushdown(RowFilter(condition, SCHEMA)).late is None
    expected = ROWS.filter(condition).column("id").to_pylist()
    assert 0 < len(expected) < ROWS.num_rows
    assert sorted(table.scan(["id"], condition).to_table().column("id").to_pylist()) == sorted(expected)


@pytest.mark.parametrize("rounds", [150, 1_000])
def test_an_expression_that_nests_too_deep_for_lance_is_applied(tmp_path: Path, rounds: int) -> None:
    table = mw.create_table(str(tmp_path / "t"), ROWS, primary_key="id")
    condition = pc.field("id") == 7
    for n in range(rounds):
        condition = (condition | (pc.field("n") == -n - 1)) & (pc.field("id") < 100 + n)
    assert table.scan(["id"], condition).to_table().column("id").to_pylist() == [7]


def test_shards_in_which_no_row_can_match_are_not_read(table: mw.Table) -> None:
    scan = table.scan(["id"], pc.field("id").isin([7]) & (pc.field("n") == 0))
    assert "pruned" in scan.explain()
    assert scan.to_table().column("id").to_pylist() == [7]


def test_a_name_with_a_line_break_gives_no_demands() -> None:
    schema = pa.schema([("a", pa.int64()), ("b'\nliteral: '0", pa.int64())])
    assert RowFilter(pc.field("a").isin([1]), schema).predicates() == []


# `mw.polars.scan`: lazy frames over fresh rows, with Polars' own rules for NaN and null.

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
def polars_table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[mw.Table]:
    with table_in_all_tiers(str(tmp_path_factory.mktemp("polars") / "t"), sharding=mw.Bucket("id", 3)) as made:
        yield made


@pytest.mark.parametrize("predicate", PREDICATES, ids=str)
@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
def test_polars_finds_the_rows_that_it_finds_in_memory(polars_table: mw.Table, predicate: pl.Expr, engine: str) -> None:
    def found(frame: pl.LazyFrame) -> list[int]:
        return sorted(frame.filter(predicate).select("id").collect(engine=engine)["id"].to_list())  # type: ignore[call-overload]

    assert found(mw.polars.scan(polars_table)) == found(pl.from_arrow(ROWS).lazy())  # type: ignore[union-attr]


def test_columns_rows_and_order_are_those_of_the_table(polars_table: mw.Table) -> None:
    frame = mw.polars.scan(polars_table)
    assert frame.collect().sort("id").equals(pl.from_arrow(ROWS), null_equal=True)  # type: ignore[arg-type]
    assert frame.select("city", "id").collect().columns == ["city", "id"]
    assert frame.select(pl.len()).collect().item() == 60
    assert frame.filter(ID >= 0).head(7).collect().height == 7
    assert frame.head(0).collect().height == 0
    assert mw.polars.scan(polars_table.uri, consistency="flushed").select(pl.len()).collect().item() == 55


@pytest.mark.parametrize("kind", [pa.struct([("u", pa.uuid())]), pa.list_(pa.json_())], ids=str)
def test_polars_scans_a_table_with_nested_extension_types(tmp_path: Path, kind: pa.DataType) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("x", kind)])
    table = mw.create_table(str(tmp_path / "t"), schema, primary_key="id")
    with table.writer(fsync=False) as writer:
        writer.put({"id": [1, 2]}, missing="null")
    assert mw.polars.scan(table).filter(ID > 1).select("id").collect()["id"].to_list() == [2]


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
def test_scan_is_told_predicate_demands(polars_table: mw.Table, predicate: pl.Expr, told: pc.Expression | None) -> None:
    noted = Noted(polars_table)
    polars_source(noted, "fresh").filter(predicate).select("id").collect()
    ((columns, condition),) = noted.asked
    assert str(condition) == str(told)
    assert set(columns) == {"id", *predicate.meta.root_names()}


class Noted:
    """A table that notes which scans are made of it."""

    def __init__(self, polars_table: mw.Table) -> None:
        self.asked: list[tuple[Any, Any]] = []
        self._table = polars_table

    @property
    def schema(self) -> pa.Schema:
        return self._table.schema

    def scan(self, columns: Any, filter: Any, limit: int | None = None, *, consistency: Consistency) -> mw.Scan:  # noqa: A002
        self.asked.append((columns, filter))
        return self._table.scan(columns, filter, limit, consistency=consistency)


DOCS = pa.table(
    {"id": [1, 2], "text": ["one", "two"]},
    pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())]),
)


def test_a_table_of_lancedb_takes_small_writes_and_lancedb_sees_them_when_compacted(tmp_path: Path) -> None:
    theirs = lancedb.connect(tmp_path).create_table("docs", DOCS)
    table = mw.from_lancedb(theirs, primary_key="id")
    with table.writer(fsync=False) as writer:
        writer.put([{"id": 2, "text": "zwei"}, {"id": 3, "text": "drei"}])
        assert table.get(2) == {"id": 2, "text": "zwei"}
    compact_everything(table)
    theirs.checkout_latest()
    assert theirs.to_arrow().sort_by("id").column("text").to_pylist() == ["one", "zwei", "drei"]


def test_an_append_only_table_that_lancedb_wrote_last_is_compacted(tmp_path: Path) -> None:
    theirs = lancedb.connect(tmp_path).create_table("docs", DOCS)
    table = mw.from_lancedb(theirs)
    with table.writer(fsync=False) as writer:
        writer.put([{"id": 3, "text": "three"}])
    theirs.checkout_latest()
    theirs.add([{"id": 4, "text": "four"}])
    compact_everything(table)
    theirs.checkout_latest()
    assert theirs.count_rows() == 4
    theirs.delete("id = 1")
    assert sorted(table.dataset.to_table().column("id").to_pylist()) == [2, 3, 4]


def test_a_table_that_has_a_write_path_is_opened(tmp_path: Path) -> None:
    theirs = lancedb.connect(tmp_path).create_table("docs", DOCS)
    mw.from_lancedb(theirs, primary_key="id", sharding=mw.Bucket("id", 2))
    again = mw.from_lancedb(lancedb.connect(tmp_path).open_table("docs"))
    assert again.primary_key == ["id"]
    assert again.sharding == mw.Bucket("id", 2)
    assert mw.from_lancedb(theirs, primary_key=["id"]).primary_key == ["id"]
    with pytest.raises(mw.InvalidInputError, match="already"):
        mw.from_lancedb(theirs, primary_key="text")
    with pytest.raises(mw.InvalidInputError, match="already"):
        mw.from_lancedb(theirs, sharding=mw.Manual())


def test_what_is_no_table_of_a_directory_is_refused() -> None:
    with pytest.raises(mw.InvalidInputError, match="not str"):
        mw.from_lancedb("docs")
