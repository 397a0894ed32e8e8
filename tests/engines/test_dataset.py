"""`Table.to_dataset()`: what engines push down selects the rows that they would have selected themselves."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

import lance_memwal as mw
from lance_memwal.engines.dataset import TableDataset
from lance_memwal.read.scan import Scan
from lance_memwal.rows.filter import FilterLike, RowFilter, pushdown
from tests.kit.conditions import CONDITIONS
from tests.kit.engine_tables import ROWS, SCHEMA, row, table_in_all_tiers


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
    ("condition", "told"),
    [
        (pc.field("city").isin(["a", "it's"]), "`city` in ('a', 'it''s')"),
        (pc.field("city").isin(["a"]) & (pc.field("n") > 3), "`city` in ('a') and `n` > 3"),
        (pc.if_else(pc.field("n").is_valid(), pc.field("n").isin([1]), pa.scalar(None, pa.bool_())), "`n` in (1)"),
        ((pc.field("n") == 1) | pc.field("n").isin([2]), "`n` in (1, 2)"),
        (pc.field("city").isin(["a"]) & (pc.field("x") > 1.0), "`city` in ('a')"),
        (pc.field("city").isin(["a", None]), None),
        (pc.field("x").isin([1.0]), None),
        (pc.field("n") + 1 == 2, None),
        (~pc.field("city").isin(["a"]), None),
    ],
)
def test_lance_is_told_what_an_expression_demands(condition: pc.Expression, told: str | None) -> None:
    shared = pushdown(RowFilter(condition, SCHEMA))
    assert shared.told == told
    assert shared.late is not None


def test_shards_in_which_no_row_can_match_are_not_read(table: mw.Table) -> None:
    scan = table.scan(["id"], pc.field("id").isin([7]) & (pc.field("n") == 0))
    assert "pruned" in scan.explain()
    assert scan.to_table().column("id").to_pylist() == [7]


def test_a_name_with_a_line_break_gives_no_demands() -> None:
    schema = pa.schema([("a", pa.int64()), ("b'\nliteral: '0", pa.int64())])
    assert RowFilter(pc.field("a").isin([1]), schema).predicates() == []
