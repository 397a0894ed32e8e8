"""`Table.sql`: SQL that only reads, with the answers that DataFusion gives for its own tables."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from datafusion import SessionContext

import lance_memwal as mw
from tests.kit.conditions import CONDITIONS
from tests.kit.engine_tables import ROWS, SCHEMA, row, table_in_all_tiers


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
    table.register(context, "orders")
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


def test_texts_that_ask_for_too_much_are_refused_and_do_not_end_the_process() -> None:
    child = subprocess.run([sys.executable, "-m", "tests.engines.texts_child"], capture_output=True, text=True)
    assert child.returncode == 0, child.stdout.splitlines()[-1:]
    answers = child.stdout.splitlines()
    assert len(answers) > 40
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


def test_functions_that_repeat_take_small_counts_in_filters(table: mw.Table) -> None:
    assert table.count_rows("lpad(city, 3, '0') = '00a'") == table.count_rows("city = 'a'") == 15
    with pytest.raises(mw.InvalidInputError, match="at most 10,000"):
        table.count_rows("lpad(city, 30000) = 'a'")
    with pytest.raises(mw.InvalidInputError, match="lpad"):
        table.count_rows("lpad(city, id) = 'a'")
