"""The same filter text selects the same rows in memory and in a Lance dataset."""

import datetime as dt
import decimal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lance_memwal import InvalidInputError
from lance_memwal.rows.filter import RowFilter
from tests.harness.profile import scaled
from tests.kit.writers import in_thread

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("Name", pa.string()),
        pa.field("score", pa.float64()),
        pa.field("flag", pa.bool_()),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us")),
        pa.field("atz", pa.timestamp("us", "UTC")),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("raw", pa.binary()),
        pa.field("tags", pa.list_(pa.string())),
        pa.field(
            "where", pa.struct([("x", pa.int64()), ("Label", pa.string()), ("in", pa.struct([("deep", pa.int64())]))])
        ),
        pa.field("two words", pa.int32()),
        pa.field("order", pa.int16()),
        pa.field("U64", pa.uint64()),
        pa.field("f32", pa.float32()),
        pa.field("ls", pa.large_string()),
        pa.field("kind", pa.dictionary(pa.int32(), pa.string())),
        pa.field("select", pa.int64()),
    ]
)
NAMES = [None, "alice", "Bob", "it's", 'a"b', "x%y", "ALICE", "日本", ""]


def row(i: int) -> dict[str, Any]:
    known = i % 7 != 6
    return {
        "id": i,
        "Name": NAMES[i % 9],
        "score": [1.5, -0.0, float("nan"), None, 2.0, float("inf")][i % 6],
        "flag": [True, False, None][i % 3],
        "day": dt.date(2024, 1, 1) + dt.timedelta(days=i) if known else None,
        "at": dt.datetime(2024, 1, 1, i) if known else None,
        "atz": dt.datetime(2024, 1, 1, i, tzinfo=dt.UTC) if known else None,
        "price": decimal.Decimal(i) / 4 if known else None,
        "raw": [b"", b"ab", None, b"\x00\xff"][i % 4],
        "tags": [None, [], ["a"], ["a", "b", None]][i % 4],
        "where": None if i % 5 == 4 else {"x": i, "Label": "pq"[i % 2], "in": {"deep": i * 2} if i % 3 else None},
        "two words": i if known else None,
        "order": i if known else None,
        "U64": 2**64 - 1 if i == 3 else i,
        "f32": i / 3,
        "ls": str(i),
        "kind": ["k0", "k1", None][i % 3],
        "select": i % 4,
    }


TABLE = pa.Table.from_pylist([row(i) for i in range(24)], schema=SCHEMA)

SAME = """
id = 5 | id == 5 | id != 5 | id <> 5 | 5 < id | id=5 | id>5and id<8 | id = -5 | -id < -5 | id in (1, 2, 99)
id between 3 and 7 | id not between 3 and 7 | id not in (1, 2, 99) | ID = 5 | Id BETWEEN 5 AND 6 | id in (1, null)
id not in (1, null) | id = null | id != null | id > 3 and id < 10 or id = 20 | id > 3 and (id < 10 or id = 20)
not id > 3 | id + 1 = 5 | id * 2 > 30 | id % 3 = 0 | id / 2 = 3 | abs(id - 10) < 3 | true | false | 1 = 1
name = 'alice' | NAME = 'alice' | Name = 'alice' | `Name` = 'alice' | Name = "alice" | Name = 'it''s' | Name = "it's"
Name = 'a"b' | Name = "a""b" | Name = '' | Name = '日本' | Name > 'B' | Name || 'x' = 'Bobx' | concat(Name, 'x') = 'Bobx'
Name like 'a%' | Name like 'A%' | Name ilike 'a%' | Name not like 'a%' | Name like 'x\\%y' | Name like '_ob'
lower(Name) = 'alice' | upper(Name) = 'ALICE' | length(Name) = 5 | starts_with(Name, 'al') | contains(Name, 'li')
regexp_match(Name, '^a.*e$') | regexp_match(Name, 'LICE') | NOT regexp_match(Name, 'l') | regexp_like(Name, 'l')
NOT (regexp_match(Name, 'l')) | regexp_match(Name, 'l') is not null | regexp_match(Name, 'l') is null
id > 3 and (regexp_match(Name, 'l') or id = 5) | array_length(regexp_match(Name, 'l')) = 1 | Regexp_Match(Name, 'l') and flag
regexp_match (Name, '(l)') | not regexp_match(Name, 'a') or regexp_match(Name, 'b')
Name is null | Name is not null | Name IS NOT NULL AND NOT (Name = 'Bob') | coalesce(Name, 'none') = 'none'
flag | not flag | NOT flag | flag = true | flag = false | flag != true | flag is true | flag is not true | flag is null
flag and id > 3 | flag or id > 20 | score > 1 | score = 1.5 | score < 2 | score is null | isnan(score) | score > 1e0
score >= -0.0 | f32 > 2.5 | f32 = 1 | price > 2 | day = date '2024-01-05' | day >= cast('2024-01-10' as date)
at > timestamp '2024-01-01 05:00:00' | at = timestamp '2024-01-01T05:00:00' | at < cast('2024-01-01 03:00:00' as timestamp)
atz > timestamp '2024-01-01 05:00:00' | date_part('hour', at) = 5 | date_trunc('day', at) = timestamp '2024-01-01'
raw = x'6162' | raw = X'00FF' | raw is null | array_has(tags, 'a') | array_contains(tags, 'b') | array_length(tags) = 3
array_has_any(tags, make_array('b', 'z')) | tags is null | where.x = 5 | WHERE.x = 5 | `where`.x = 5 | `where`.`x` = 5
where.Label = 'p' | where.in.deep = 4 | `where`.`in`.`deep` = 4 | where is null | `two words` = 3 | `two words` > 3 and id < 10
order = 3 | `order` = 3 | select = 2 | `select` = 2 | U64 = 18446744073709551615 | U64 > 3 | u64 = 3 | ls = '5' | ls > '5'
kind = 'k1' | kind in ('k0', 'x') | kind is null | cast(id as string) = '5' | cast(ls as bigint) = 5 | nullif(id, 5) is null
id = 5 AND TRUE | id is distinct from 5 | 'id' = 'id'
"""
FILTERS = [text.strip() for line in SAME.strip().splitlines() for text in line.split(" | ")]
REFUSED = """
nosuch = 1 | id = | (id = 5 | 'abc | nosuchfunc(id) | flag = 'x' | id + Name = 3 | count(*) > 0 | sum(id) > 3
`nosuch` = 1 | where.nosuch = 1 | where.x.y = 1 | id | Name | id; drop table x | id in (select 1)
"""
BAD = [text.strip() for line in REFUSED.strip().splitlines() for text in line.split(" | ")]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> lance.LanceDataset:
    return lance.write_dataset(TABLE, str(tmp_path_factory.mktemp("parity") / "t"))


def ours(text: Any, table: pa.Table = TABLE) -> list[int]:
    found: list[int] = RowFilter(text, table.schema).apply(table).column("id").to_pylist()
    return found


def theirs(dataset: lance.LanceDataset, text: Any) -> list[int]:
    found: list[int] = dataset.to_table(columns=["id"], filter=text).column("id").to_pylist()
    return found


@pytest.mark.parametrize("text", FILTERS)
def test_the_same_filter_selects_the_same_rows(dataset: lance.LanceDataset, text: str) -> None:
    assert ours(text) == theirs(dataset, text)


def test_the_list_of_filters_tells_rows_apart(dataset: lance.LanceDataset) -> None:
    """A parity of empty answers would prove nothing."""
    answers = {tuple(theirs(dataset, text)) for text in FILTERS}
    assert len(answers) > 60
    assert sum(0 < len(answer) < TABLE.num_rows for answer in answers) > 55


@pytest.mark.parametrize("text", BAD)
def test_what_lance_refuses_is_refused_as_invalid_input(dataset: lance.LanceDataset, text: str) -> None:
    with pytest.raises(InvalidInputError, match="filter"):
        ours(text)
    with pytest.raises((ValueError, OSError)):
        theirs(dataset, text)


@pytest.mark.parametrize("text", ["", "   ", "\n"])
def test_an_empty_filter_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="empty"):
        RowFilter(text, SCHEMA)


@pytest.mark.parametrize("text", ["id = 5)", "id = 5 id", "id = 5; select 1", "id = 5, id = 6", "id = 5) or (id = 6"])
def test_text_behind_the_filter_is_refused_and_not_ignored(text: str) -> None:
    with pytest.raises(InvalidInputError):
        ours(text)


EXPRESSIONS: list[Callable[[], pc.Expression]] = [
    lambda: pc.field("id") > 5,
    lambda: (pc.field("id") > 5) & (pc.field("Name") == "alice"),
    lambda: pc.field("flag"),
    lambda: ~pc.field("flag"),
    lambda: pc.field("Name").is_null(),
    lambda: pc.field("id").isin([1, 5, 77]),
    lambda: pc.field("day") > dt.date(2024, 1, 5),
]


@pytest.mark.parametrize("number", range(len(EXPRESSIONS)))
def test_expressions_select_the_same_rows(dataset: lance.LanceDataset, number: int) -> None:
    expression = EXPRESSIONS[number]()
    assert ours(expression) == theirs(dataset, expression)


@pytest.mark.parametrize(
    "expression",
    [pc.field("id") + 1, pc.field("name"), pc.field("id") == "x", pc.field("nope") > 1],
    ids=str,
)
def test_an_expression_that_cannot_be_applied_is_refused_as_invalid_input(expression: pc.Expression) -> None:
    with pytest.raises(InvalidInputError, match="the filter cannot be applied"):
        RowFilter(expression, pa.schema([("id", pa.int64()), ("name", pa.string())]))


def test_a_filter_knows_the_columns_that_it_names() -> None:
    assert sorted(RowFilter("NAME = 'id' and where.x > `two words`", SCHEMA).columns) == ["Name", "two words", "where"]
    assert RowFilter("1 = 1", SCHEMA).columns == []


def test_rows_keep_their_order_and_their_schema() -> None:
    table = pa.concat_tables([TABLE.slice(12), TABLE.slice(0, 12)])
    found = RowFilter("id >= 0", SCHEMA).apply(table)
    assert found.column("id").to_pylist() == [*range(12, 24), *range(12)]
    assert found.schema.equals(table.schema)


def test_an_empty_table_stays_empty_with_its_schema() -> None:
    found = RowFilter("id > 3", SCHEMA).apply(TABLE.slice(0, 0))
    assert found.num_rows == 0
    assert found.schema.equals(SCHEMA)


def test_filters_of_several_threads_do_not_disturb_each_other() -> None:

    def work(key: int) -> None:
        for _ in range(20):
            assert ours(f"id = {key}") == [key]

    for call in [in_thread(partial(work, key)) for key in range(6)]:
        call.result()


SMALL = pa.schema(
    [pa.field("id", pa.int64()), pa.field("n", pa.int64()), pa.field("t", pa.string()), pa.field("b", pa.bool_())]
)
LEAVES = st.one_of(
    st.builds(lambda op, k: f"n {op} {k}", st.sampled_from(["=", "!=", "<", "<=", ">", ">="]), st.integers(-3, 3)),
    st.builds(
        lambda op, s: f"t {op} '{s}'", st.sampled_from(["=", "<>", "<", ">="]), st.sampled_from(["", "a", "b", "ab"])
    ),
    st.builds(lambda s: f"t like '{s}'", st.sampled_from(["a%", "%b", "_", "%"])),
    st.builds(lambda ks: f"n in ({', '.join(map(str, ks))})", st.lists(st.integers(-3, 3), min_size=1, max_size=3)),
    st.sampled_from(
        ["b", "b = false", "n is null", "t is not null", "b is not true", "n % 2 = 0", "n between -1 and 1"]
    ),
)
CONDITIONS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda a, b: f"({a}) and ({b})", inner, inner),
        st.builds(lambda a, b: f"({a}) or ({b})", inner, inner),
        st.builds(lambda a: f"not ({a})", inner),
    ),
    max_leaves=6,
)
ROWS = st.lists(
    st.tuples(
        st.none() | st.integers(-3, 3),
        st.none() | st.sampled_from(["", "a", "b", "ab", "A"]),
        st.none() | st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


@pytest.mark.scaled
@settings(
    max_examples=scaled(ci=40, prove=2_000),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(rows=ROWS, texts=st.lists(CONDITIONS, min_size=1, max_size=4))
def test_random_filters_select_the_same_rows_of_random_tables(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[Any, Any, Any]], texts: list[str]
) -> None:
    table = pa.Table.from_pylist([{"id": i, "n": n, "t": t, "b": b} for i, (n, t, b) in enumerate(rows)], schema=SMALL)
    dataset = lance.write_dataset(table, str(tmp_path_factory.mktemp("random") / "t"))
    for text in texts:
        assert ours(text, table) == theirs(dataset, text), text


def test_parity_is_about_paths_too(tmp_path: Path) -> None:
    """A column whose name holds a quote, a dot or a backtick."""
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("a b", pa.int64()), pa.field('say "x"', pa.int64())])
    table = pa.table({"id": [1, 2], "a b": [1, 2], 'say "x"': [5, 6]}, schema=schema)
    dataset = lance.write_dataset(table, str(tmp_path / "t"))
    for text in ("`a b` = 2", '`say "x"` = 6'):
        assert ours(text, table) == theirs(dataset, text) == [2]
