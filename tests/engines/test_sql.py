"""`Table.sql`: SQL that only reads, with the answers of DataFusion; and filters of every engine on times of day."""

import datetime as dt
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from datafusion import SessionContext

import lance_memwal as mw
from lance_memwal.engines.sql import register
from tests.kit.engine_tables import CONDITIONS, ROWS, SCHEMA, row, table_in_all_tiers


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[mw.Table]:
    with table_in_all_tiers(str(tmp_path_factory.mktemp("sql") / "t")) as made:
        yield made


@pytest.mark.parametrize("condition", CONDITIONS)
def test_sql_finds_the_rows_that_datafusion_finds_in_memory(table: mw.Table, condition: str) -> None:
    context = SessionContext()
    context.from_arrow(ROWS, "t")
    question = f"select id from t where {condition} order by id"
    assert table.sql(question).to_pylist() == context.sql(question).to_arrow_table().to_pylist()


def test_groups_and_joins_over_fresh_rows(table: mw.Table) -> None:
    counted = table.sql("select city, count(*) as n from t group by 1 order by 1 nulls last")
    assert counted.to_pylist() == [{"city": c, "n": 15} for c in ("a", "b", "c", None)]
    names = pa.table({"city": ["a"], "name": ["Aachen"]})
    joined = table.sql("select name, max(id) as m from t join names using (city) group by 1", names=names)
    assert joined.to_pylist() == [{"name": "Aachen", "m": 57}]
    assert table.sql("select count(*) as n from t a join other b using (id)", other=table).to_pylist() == [{"n": 60}]


@pytest.mark.parametrize(
    "statement",
    [
        "copy t to '{0}/stolen.csv'",
        "copy (select 1) to '{0}/stolen.parquet' stored as parquet",
        "explain analyze copy t to '{0}/stolen.csv'",
        "create external table z stored as csv location '{0}/secret.csv'",
        "create table z as select 1",
        "create view z as select 1",
        "drop table t",
        "insert into t (id) values (1)",
        "delete from t",
        "update t set n = 1",
        "set datafusion.execution.batch_size = 1",
        "prepare p as select 1",
        "select 1; copy t to '{0}/stolen.csv'",
        "select * from '{0}/secret.csv'",
        "select * from information_schema.df_settings",
    ],
)
def test_a_query_cannot_touch_the_host(table: mw.Table, tmp_path: Path, statement: str) -> None:
    (tmp_path / "secret.csv").write_text("a\n1\n")
    with pytest.raises(mw.InvalidInputError, match="query"):
        table.sql(statement.format(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["secret.csv"]
    assert table.count_rows() == ROWS.num_rows


def test_one_query_sees_one_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = mw.create_table(str(tmp_path / "t"), pa.Table.from_pylist([row(1)], SCHEMA), primary_key="id")
    captures = []
    capture = table._reader.capture
    monkeypatch.setattr(table._reader, "capture", lambda *a, **k: captures.append(1) or capture(*a, **k))
    assert table.sql("select count(*) as n from t a join t b using (id) join t c using (id)").to_pylist() == [{"n": 1}]
    assert len(captures) == 1


def test_a_wrong_query_says_what_is_wrong(table: mw.Table) -> None:
    with pytest.raises(mw.InvalidInputError, match="citty"):
        table.sql("select citty from t")
    with pytest.raises(mw.InvalidInputError, match="SQL text"):
        table.sql(1)  # type: ignore[arg-type]
    with pytest.raises(mw.InvalidInputError, match="names is no table"):
        table.sql("select 1", names=7)


def test_an_error_of_the_table_keeps_its_type(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id")
    with table.writer(fsync=False, compaction=None) as writer:
        writer.put(pa.Table.from_pylist([row(1)], SCHEMA))
    (data,) = (tmp_path / "t" / "_mem_wal").glob("*/*_gen_*/data/*.lance")
    data.write_bytes(b"no rows")
    with pytest.raises(mw.CorruptDataError):
        table.sql("select * from t")


def test_a_context_of_the_user_reads_the_newest_rows(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id")
    context = SessionContext()
    register(context, "orders", table.to_dataset())
    with table.writer(fsync=False) as writer:
        for number in (1, 2):
            writer.put(pa.Table.from_pylist([row(number)], SCHEMA))
            counted = context.sql("select count(*) as n from orders where x is null or x > -1").to_arrow_table()
            assert counted.to_pylist() == [{"n": number}]


def test_a_query_that_nests_too_deep_is_refused_and_does_not_end_the_process(table: mw.Table) -> None:
    with pytest.raises(mw.InvalidInputError, match="parts"):
        table.sql(f"select {' + '.join(['1'] * 12_000)}")
    (row,) = table.sql(f"select {' + '.join(['1'] * 200)} as n").to_pylist()
    assert row == {"n": 200}
    branches = " ".join(f"when {n} = 1 then 0" for n in range(2, 400))
    assert table.sql(f"select case {branches} else 5 end as n").to_pylist() == [{"n": 5}]


def test_a_query_at_which_datafusion_panics_is_an_error_like_others(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), pa.table({"id": range(3_000)}), primary_key="id")
    joined = "select count(*) from t a, t b, t c where a.id + b.id + c.id < 1 and a.id < 3 and b.id < 3 and c.id < 3"
    with pytest.raises(mw.InvalidInputError, match="query"):
        table.sql(joined, memory_bytes=1_000)


def test_texts_that_nest_too_deep_are_refused_and_do_not_end_the_process() -> None:
    child = subprocess.run([sys.executable, "-m", "tests.engines.texts_child"], capture_output=True, text=True)
    assert child.returncode == 0, child.stdout.splitlines()[-1:]
    answers = child.stdout.splitlines()
    assert len(answers) > 25
    assert [answer for answer in answers if not answer.endswith(": refused")] == []


@pytest.mark.parametrize(
    "text",
    [
        f"select count(*) as n from t where {' or '.join(f'id = {n}' for n in range(500))}",
        f"select count(*) as n from t where id in ({', '.join(map(str, range(5_000)))})",
        "select count(*) as n from t where lpad(replace(replace(city, '-', ' '), 'a', 'bb'), 8, '0') is not null or city is null",
        "select count(*) as n from t where date'2026-01-01' > date '2025-01-01' /* isn't it */ -- don't ask",
        "select count(*) as n from t where '$$ /* /*' = '$$ /* /*' and array_length(range(0, 100)) = 100",
        f"with {', '.join(f'c{n} as (select {n} as x)' for n in range(30))} select count(*) as n from t, c1, c2",
    ],
)
def test_honest_texts_stay_within_the_bounds(table: mw.Table, text: str) -> None:
    assert table.sql(text).to_pylist() == [{"n": ROWS.num_rows}]


KINDS = {"s": pa.time32("s"), "ms": pa.time32("ms"), "us": pa.time64("us"), "ns": pa.time64("ns")}
TIMES = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        *KINDS.items(),
        ("opens", pa.struct([("at", pa.time64("us")), ("until", pa.list_(pa.time32("s")))])),
        ("breaks", pa.list_(pa.time64("ns"))),
        ("city", pa.string()),
        ("x", pa.float64()),
        ("v", pa.list_(pa.float32(), 2)),
    ]
)
TEN = dt.time(10)
EARLY, LATE, IN_B = [2, 3], [4, 5, 6], [3, 5]


def _row(number: int) -> dict[str, Any]:
    time = None if number < 2 else dt.time(6 + 2 * (number - 1))
    return {
        "id": number,
        **dict.fromkeys(KINDS, time),
        "opens": {"at": time, "until": [time]},
        "breaks": [time],
        "city": "ab"[number % 2] if number > 2 else None,
        "x": float(number),
        "v": [float(number), 0.0],
    }


TIME_ROWS = [_row(number) for number in range(7)]


@pytest.fixture(scope="module")
def time_table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[mw.Table]:
    made = mw.create_table(str(tmp_path_factory.mktemp("times") / "t"), TIMES, primary_key="id")
    with made.writer(fsync=False, compaction=None) as writer:
        writer.put(pa.Table.from_pylist(TIME_ROWS[:3], TIMES))
        writer.flush()
        made.compact()
        writer.put(pa.Table.from_pylist(TIME_ROWS[3:5], TIMES))
        writer.flush()
        writer.put(pa.Table.from_pylist(TIME_ROWS[5:], TIMES))
        yield made


def ids(rows: Any) -> list[int]:
    return sorted(rows.column("id").to_pylist() if isinstance(rows, pa.Table) else rows)


def duck(time_table: mw.Table, condition: str) -> list[int]:
    t = time_table.to_dataset()
    assert t is not None
    return ids([found[0] for found in duckdb.sql(f"select id from t where {condition}").fetchall()])


@pytest.mark.parametrize(
    "find",
    [
        lambda table: table.scan(filter=pc.field("city") == "b").to_table(),
        lambda table: table.scan(filter=(pc.field("city") == "b") & (pc.field("id") < 9)).to_table(),
        lambda table: table.scan(filter="city = 'b'").to_table(),
        lambda table: table.to_dataset().to_table(filter=pc.field("city").isin(["b"])),
        lambda table: table.search([5.0, 0.0], filter=pc.field("city") == "b"),
        lambda table: pa.table({"id": duck(table, "city = 'b'")}),
        lambda table: mw.polars.scan(table).filter(pl.col("city") == "b").collect().to_arrow(),
        lambda table: table.sql("select id from t where city = 'b' and x > 0"),
        lambda table: table.at(table.snapshot()).scan(filter=pc.field("city") == "b").to_table(),
        lambda table: pa.Table.from_batches(table.changes(until="now", filter=pc.field("city") == "b")),
    ],
)
def test_filters_on_other_columns_select_their_rows(time_table: mw.Table, find: Callable[[mw.Table], pa.Table]) -> None:
    assert ids(find(time_table)) == IN_B


@pytest.mark.parametrize("column", KINDS)
def test_expressions_compare_times(time_table: mw.Table, column: str) -> None:
    value = pa.scalar(TEN, KINDS[column])
    field = pc.field(column)
    late = field > value
    assert ids(time_table.scan(filter=late).to_table()) == LATE
    assert ids(time_table.scan(filter=late & (pc.field("city") == "b")).to_table()) == [5]
    assert ids(time_table.to_dataset().to_table(filter=field <= value)) == EARLY
    assert ids(time_table.scan(filter=field.isin([TEN])).to_table()) == [3]
    assert ids(time_table.scan(filter=field.is_null()).to_table()) == [0, 1]
    assert time_table.count_rows(late) == 3


def test_expressions_compare_times_in_structs(time_table: mw.Table) -> None:
    assert ids(time_table.scan(filter=pc.field("opens", "at") > TEN).to_table()) == LATE
    assert ids(time_table.scan(filter=pc.list_element(pc.field("breaks"), 0) == TEN).to_table()) == [3]


@pytest.mark.parametrize(("column", "kind"), [("s", "Time32(Second)"), ("ns", "Time64(Nanosecond)")])
def test_sql_text_compares_times(time_table: mw.Table, column: str, kind: str) -> None:
    assert ids(time_table.scan(filter=f"{column} > arrow_cast('10:00:00', '{kind}')").to_table()) == LATE
    assert ids(time_table.scan(filter="opens.at is null").to_table()) == [0, 1]


@pytest.mark.parametrize("column", ["s", "ms", "us", "opens.at"])
def test_duckdb_compares_times(time_table: mw.Table, column: str) -> None:
    assert duck(time_table, f"{column} > time '10:00:00'") == LATE
    assert duck(time_table, f"{column} > time '10:00:00' and city = 'b'") == [5]


@pytest.mark.parametrize("column", KINDS)
def test_polars_compares_times(time_table: mw.Table, column: str) -> None:
    found = mw.polars.scan(time_table).filter((pl.col(column) > TEN) & (pl.col("id") < 6)).collect()
    assert ids(found.to_arrow()) == [4, 5]


@pytest.mark.parametrize("column", KINDS)
def test_datafusion_compares_times(time_table: mw.Table, column: str) -> None:
    assert ids(time_table.sql(f"select id from t where cast({column} as time) > time '10:00:00'")) == LATE
    assert ids(time_table.sql("select id from t where ns > time '10:00:00' and city = 'b'")) == [5]


def test_a_comparison_that_datafusion_refuses_names_the_types(time_table: mw.Table) -> None:
    with pytest.raises(mw.InvalidInputError, match=r"Time64\(µs\) > Time64\(ns\)"):
        time_table.sql("select id from t where us > time '10:00:00'")
