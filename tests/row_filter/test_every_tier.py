"""Filters in every tier: the rows of plain Lance, values and placeholders, and filters that fail."""

import datetime as dt
import decimal
import math
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_memwal as mw
from lance_memwal.memtable.index.btree import BTreeMemIndex, is_indexable
from lance_memwal.rows.filter import RowExpressions, RowFilter, pushdown
from lance_memwal.rows.sharding import route
from lance_memwal.rows.sql import Range, parse
from tests.harness.profile import scaled
from tests.kit import filters as filter_kit
from tests.kit.filters import COLUMNS, Answer, in_every_tier, lance_ids, listed, selected_ids

ROWS = filter_kit.rows()
ALL = list(dict.fromkeys(filter_kit.filters()))
TOLD = """
f32 = 0.1 | f32 > 0.3 | f32 in (0.1, 0.3) | f16 = 0.1 | st.a = 0 | st.B = '' | st.a is null | not (st.a = 1) | sn.a = 0
sn.s is null | json_get_int(j, 'a') = 1 | json_exists(j, '$.a') | timestamp is null or timestamp > 1 | date = 1 | in = 1
any is not null | any <> 1 | current_date is not null | current_time is null
all = 1 | f64 >= 0.0 | f64 = 0.0 | i8 = 300 | u8 = -1 | dec = 1.5 | s = 5 | l is null | `two words` = 1 | UPPER = 1
"""


def differences(answers: dict[str, list[Answer]], expected: list[Answer], texts: list[str]) -> list[str]:
    return [
        f"{text}: {tier} says {found}, Lance {wanted}"
        for tier, all_found in answers.items()
        for text, found, wanted in zip(texts, all_found, expected, strict=True)
        if found != wanted
    ]


@pytest.mark.repro("reads-03")
@pytest.mark.scaled
def test_every_operator_selects_the_rows_of_plain_lance_in_every_tier(tmp_path: Path) -> None:
    texts = [*filter_kit.listed(TOLD), *ALL[:: scaled(ci=61, prove=1)]]
    dataset = lance.write_dataset(ROWS, str(tmp_path / "plain"))
    expected = [lance_ids(dataset, text) for text in texts]
    answers = in_every_tier(
        str(tmp_path / "t"),
        ROWS,
        lambda table: [selected_ids(lambda text=text: table.scan(["id"], text).to_table()) for text in texts],  # type: ignore[misc]
    )
    assert differences(answers, expected, texts) == []
    some = [answer for answer in expected if answer != "refused" and 0 < len(answer) < ROWS.num_rows]
    assert len(some) > len(texts) // 3, "answers that are all or nothing prove little"


@pytest.mark.scaled
def test_every_operator_selects_the_rows_of_plain_lance_in_memory(tmp_path: Path) -> None:
    dataset = lance.write_dataset(ROWS, str(tmp_path / "plain"))
    texts = ALL[1 :: scaled(ci=37, prove=1)]
    found = [selected_ids(lambda text=text: RowFilter(text, ROWS.schema).apply(ROWS)) for text in texts]  # type: ignore[misc]
    assert differences({"memory": found}, [lance_ids(dataset, text) for text in texts], texts) == []


@pytest.mark.parametrize("text", filter_kit.listed(filter_kit.REFUSED))
def test_what_lance_reads_otherwise_from_tier_to_tier_is_refused(tmp_path: Path, text: str) -> None:
    table = mw.create_table(str(tmp_path / "t"), ROWS.select(["id", "s"]), primary_key="id", sharding=mw.Unsharded())
    plain_rows = lance.dataset(table.uri).to_table(filter=text)
    assert plain_rows.num_rows >= 0  # Lance takes it
    with pytest.raises(mw.InvalidInputError, match="filter"):
        table.scan(filter=text)


NAMES = "i8 i64 u64 b s ls bin dec d32 ts tz t64 f32 f64 dic timestamp Upper"
PLAIN = ROWS.select(["id", *NAMES.split(), "two words"])


def expressions() -> list[pc.Expression]:
    """Questions of pyarrow that Lance would answer otherwise, in part, if it were told them."""
    found = []
    for column in filter_kit.COLUMNS:
        if column.name not in PLAIN.schema.names:
            continue
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        field, value, last = pc.field(column.name), *(pa.scalar(column.values[at], kind) for at in (0, -1))
        one, with_null, both = (pa.array(values, kind) for values in ([value], [value, None], [value, last]))
        found += [field == value, ~(field == value), field > value, ~(field <= value), field.is_null(), field != field]
        found += [field.isin(one), ~field.isin(one), field.isin(with_null), field.isin(one).is_null(), field != last]
        found += [(field == value) | (pc.field("id") > 20), (field == value) & pc.field("b"), field.isin([None])]
        found += [(field == value) & pc.field("i64").isin([0, 1]), field.isin(one) & (pc.field("id") >= 3)]
        found += [~(field.isin(one) | (pc.field("id") > 20)), ~((field != value) & (pc.field("i8") > 0))]
        found += [
            pc.if_else(field.is_valid(), field.isin(both), pa.scalar(None, pa.bool_())),
            pc.if_else(field.is_valid(), ~field.isin(both), True),
        ]
        found += [(field == value) | (field == last) | field.isin(one), pc.scalar(value) < field]
    number = pc.field("i8")
    return [*found, number + 1 > 1, number * 2 == 10, number > 1.5, number == pc.field("i64"), pc.field("f64") > 0]


def test_pyarrow_expressions_mean_what_pyarrow_makes_of_them_in_every_tier(tmp_path: Path) -> None:
    asked_for = expressions()
    texts = [str(expression) for expression in asked_for]

    def by_pyarrow(expression: pc.Expression) -> Answer:
        try:
            return sorted(PLAIN.filter(expression).column("id").to_pylist())
        except pa.ArrowException:
            return "refused"

    answers = in_every_tier(
        str(tmp_path / "t"),
        PLAIN,
        lambda table: [selected_ids(lambda e=e: table.scan(["id"], e).to_table()) for e in asked_for],  # type: ignore[misc]
    )
    assert differences(answers, [by_pyarrow(e) for e in asked_for], texts) == []


# Columns with these names are not what the words mean where they are not quoted.
WORDS = """
null is null | true is not null | and not between 1 and 1 | and not in (1) | true = 1 | `true` = 1 | not = 1 | `not` = 1
i8 = 0 | i8 in (0, 127) and id > 3 | s = 'a' | s in ('a', '') | i64 = 0 | ts = 0 | `null` is null
date = 1 | in = 1 | in in (1) | `in` in (1) | between = 1 | like = 1 and id > 3 | is is null
"""


@pytest.mark.scaled
def test_what_indexes_and_shards_leave_out_the_filter_does_not_select(tmp_path: Path) -> None:
    """Every row that Lance selects is among the rows of the index, and of the shards that are not pruned."""
    dataset = lance.write_dataset(ROWS, str(tmp_path / "plain"))
    indexes = {}
    for field in ROWS.schema:
        if is_indexable(field.type):
            indexes[field.name] = index = BTreeMemIndex(field.name, field.name, field.type)
            index.insert(pa.record_batch([ROWS.column(field.name).combine_chunks()], names=[field.name]), 0)
    shards = {}
    for name in ("i8", "i64", "s", "d32", "ts", "timestamp", "true"):
        sharding = mw.Bucket(name, 16)
        batch = ROWS.select(["id", name]).combine_chunks().to_batches()[0]
        shards[name] = sharding, {i: s for s, part in route(batch, sharding) for i in part.column(0).to_pylist()}
    used = pruned = 0
    for text in [*filter_kit.listed(WORDS), *ALL[:: scaled(ci=17, prove=1)]]:
        selected = lance_ids(dataset, text)
        demands = [(c, p) for c, p in parse(text).predicates(ROWS.schema.names) if c in indexes]
        if selected == "refused" or not demands:
            continue
        for column, predicate in demands:
            if isinstance(predicate, Range) and pa.types.is_floating(ROWS.schema.field(column).type):
                predicate = Range(predicate.lower, predicate.upper)
            with suppress(mw.InvalidInputError):
                assert set(selected) <= set(indexes[column].positions(predicate, ROWS.num_rows).tolist()), text
                used += 1
        for column, (sharding, shard_of) in shards.items():
            values = parse(text).values(column, ROWS.schema.names)
            named = None if values is None else sharding.shards_for(values, ROWS.schema.field(column).type)
            if named is not None:
                assert {shard_of[row] for row in selected} <= named, text  # type: ignore[index]
                pruned += 1
    assert used > 20
    assert pruned > 5


@pytest.mark.parametrize(
    "text",
    [
        f"id > {' + '.join(['1'] * 1500)}",
        f"id{' is null' * 600}",
        f"id{' between 1 and 2' * 600}",
        f"id = {'(' * 20}{' + 1)'.join(['1' + ' + 1' * 100] * 20)} + 1)",
    ],
    ids=["sum", "is null", "between", "in parentheses"],
)
def test_a_term_that_lance_cannot_nest_is_refused_and_does_not_end_the_process(text: str) -> None:
    with pytest.raises(mw.InvalidInputError, match="parts"):
        RowFilter(text, ROWS.schema)


@pytest.mark.parametrize(
    "text",
    [
        " or ".join(f"id = {n}" for n in range(1500)),
        " and ".join(f"id between {-n} and {1000 + n}" for n in range(200)),
        f"id in ({', '.join(map(str, range(1500)))})",
        f"id > {' + '.join(['1'] * 200)}",
    ],
    ids=["or", "and", "in", "sum"],
)
def test_a_long_filter_of_short_terms_is_applied(text: str) -> None:
    rows = pa.table({"id": pa.array([-5_000, 5, 900], pa.int64())})
    told = lance.write_dataset(rows, "memory://").to_table(filter=text)
    assert RowFilter(text, rows.schema).apply(rows).to_pylist() == told.to_pylist()


# `mw.where`: values in filters, of every type of column and in every tier.

UTC = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
WHERE_NAMES = "i8 i16 i32 i64 u8 u32 u64 f16 f32 f64 dec d256 b s ls bin lbin fsb d32 d64 ts tss tsn tz tzb t64 dur dic"
TYPES = {column.name: column for column in COLUMNS if f" {column.name} " in f" {WHERE_NAMES} "}
SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), *((name, column.type) for name, column in TYPES.items())]
)


def rows() -> pa.Table:
    """Row 0 has nulls, row n the value n of each column, from its first again after its last."""
    arrays = [pa.array(range(8), pa.int64())]
    for column in TYPES.values():
        values = [None, *(column.values[n % len(column.values)] for n in range(7))]
        arrays.append(pa.array(values, _plain(column.type)).cast(column.type))
    return pa.table(arrays, schema=SCHEMA)


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_usable(value: Any) -> bool:
    """NaN and the two zeros: their comparison is Lance's own."""
    return (not isinstance(value, float) and not hasattr(value, "dtype")) or (not math.isnan(value) and value != 0)


def test_a_value_has_the_type_of_its_column_in_every_tier(tmp_path: Path) -> None:
    table_rows = rows()
    questions, expected = [], []
    for name in TYPES:
        values = table_rows.column(name).to_pylist()
        for value in [value for value in dict.fromkeys(values) if value is not None and _is_usable(value)]:
            questions.append(mw.where(f"`{name}` = ?", value))
            expected.append([n for n, held in enumerate(values) if held == value])
    assert len(questions) > 50

    def ask(table: mw.Table) -> list[Any]:
        return [selected_ids(lambda q=question: table.scan(["id"], q).to_table()) for question in questions]  # type: ignore[misc]

    for tier, found in in_every_tier(str(tmp_path / "t"), table_rows, ask).items():
        wrong = [(q, f, e) for q, f, e in zip(questions, found, expected, strict=True) if f != e]
        assert wrong == [], tier


@pytest.mark.parametrize(
    ("question", "ids"),
    [
        (mw.where("id in (?, ?) or i32 = ?", 1, 2, 5), [1, 2, 3, 6]),
        (mw.where("id between ? and ? and not (id = :skip)", 1, 4, skip=2), [1, 3, 4]),
        (mw.where("id not between :low and :high", low=1, high=6), [0, 7]),
        (mw.where("? < id and :top >= id", 4, top=6), [5, 6]),
        (mw.where("ID = ? /* ? :x */ -- ?", 3), [3]),
        (mw.where("s like ?", "it%"), [4]),
        (mw.where("s = ?", "x' or true or 'x' = 'x"), []),
        (mw.where("upper(s) = ?", "IT'S"), [4]),
        (mw.where("s = '?' or id = ?", 2), [2]),
        (mw.where("id = :n or id = :n + 1", n=2), [2, 3]),
        (mw.where("i32::string = :text", text="5"), [3, 6]),
        (mw.where("tz = ?", UTC), [1, 3, 5, 7]),
        (mw.where("tz = ?", pa.scalar(UTC)), [1, 3, 5, 7]),
        (mw.where("f64 = ? and f32 = ?", 0.3, 0.3), [7]),
        (mw.where("id == ?", 4), [4]),
    ],
)
def test_placeholders_stand_wherever_a_value_may(question: Any, ids: list[int]) -> None:
    found = RowFilter(question, SCHEMA).apply(rows()).column("id").to_pylist()
    assert found == ids


def test_a_field_of_a_struct_gives_the_type() -> None:
    nested = pa.table({"meta": [{"at": dt.date(2024, 1, 1), "Id": 1}, {"at": dt.date(2024, 1, 2), "Id": 2}]})
    assert RowFilter(mw.where("meta.at > ?", dt.date(2024, 1, 1)), nested.schema).mask(nested).tolist() == [False, True]


@pytest.mark.parametrize(
    ("text", "values", "named", "reason"),
    [
        ("id = ?", (), {}, "1 placeholders"),
        ("id = 1", (1,), {}, "0 placeholders"),
        ("id = :a", (), {}, r"names the values \['a'\]"),
        ("id = 1", (), {"a": 1}, r"these are given: \['a'\]"),
        ("s like '%?%'", (1,), {}, "0 placeholders"),
        (5, (), {}, "SQL text, not int"),
    ],
)
def test_placeholders_must_match_values(text: Any, values: tuple[Any, ...], named: dict[str, Any], reason: str) -> None:
    with pytest.raises(mw.InvalidInputError, match=reason):
        mw.where(text, *values, **named)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("id = ?", "1"),
        ("id = ?", 1.5),
        ("id = ?", True),
        ("i8 = ?", 300),
        ("s = ?", 5),
        ("b = ?", 1),
        ("d32 = ?", "2024-01-01"),
        ("d32 = ?", dt.datetime(2024, 1, 1)),
        ("ts = ?", UTC),
        ("ts = ?", 5),
        ("tz = ?", dt.datetime(2024, 1, 1)),
        ("tss = ?", dt.datetime(2024, 1, 1, 0, 0, 0, 5)),
        ("dec = ?", decimal.Decimal("1.505")),
        ("fsb = ?", b"abc"),
        ("t64 = ?", 5),
        ("id = ?", object()),
        ("id = ?", None),
    ],
)
def test_a_value_that_its_column_cannot_hold_is_refused(text: str, value: Any) -> None:
    with pytest.raises(mw.InvalidInputError, match=r"the value of '\?'"):
        RowFilter(mw.where(text, value), SCHEMA)


def test_a_placeholder_without_a_value_is_refused(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), pa.table({"id": [1, 2], "title": ["a?b", "c"]}), primary_key="id")
    with pytest.raises(mw.InvalidInputError, match=r"\? without a value; use where"):
        table.scan(filter="id = ?")
    assert table.scan(filter="title like '%?%'").to_table().column("id").to_pylist() == [1]


def test_every_call_that_takes_a_filter_takes_values(tmp_path: Path) -> None:
    uuids = pa.array([uuid.UUID(int=n).bytes for n in range(6)], pa.binary(16))
    data = pa.table({"id": range(6), "n": range(6), "u": pa.ExtensionArray.from_storage(pa.uuid(), uuids)})
    table = mw.create_table(str(tmp_path / "t"), data.schema, primary_key="id", sharding=mw.Bucket("id", 4))
    with table.writer(fsync=False, compaction=None) as writer:
        writer.put(data)
        assert "pruned" in table.scan(filter=mw.where("id = ?", 3)).explain()
        for value in (uuid.UUID(int=3), str(uuid.UUID(int=3))):
            assert table.scan(filter=mw.where("u = ?", value)).to_table().column("id").to_pylist() == [3]
        assert table.count_rows(mw.where("n > :n", n=3)) == 2
        assert table.to_dataset().to_table(filter=mw.where("n > ?", 4)).num_rows == 1
        with pytest.raises(mw.InvalidInputError, match="takes pyarrow expressions"):
            table.to_dataset().filter(pc.field("n") > 1).to_table(filter=mw.where("n > ?", 4))
        assert sum(batch.num_rows for batch in table.changes(until="now", filter=mw.where("n < ?", 2))) == 2
        writer.put(data.slice(0, 1).set_column(1, "n", pa.array([9])), where=mw.where("excluded.n < ?", 5))
        assert writer.update(where=mw.where("n = ?", 1), values={"n": 7}).matched == 1
        assert writer.delete(where=mw.where("n in (?, ?)", 4, 5)).matched == 2
        assert sorted(table.to_arrow().column("n").to_pylist()) == [0, 2, 3, 7]


def test_verbs_of_a_table_take_values(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), pa.table({"id": [1, 2, 3], "n": [1, 2, 3]}), primary_key="id")
    with table:
        assert table.update(where=mw.where("n = ?", 1), values={"n": 5}).matched == 1
        assert table.delete(where=mw.where("n = :n", n=2)).matched == 1
        assert sorted(table.to_arrow().column("n").to_pylist()) == [3, 5]


# Filters and expressions whose error names a value of a row: they raise, and Lance evaluates the rest.

FAILING_ROWS = pa.table(
    {
        "id": pa.array(range(12), pa.int64()),
        "i": pa.array([None, *range(11)], pa.int32()),
        "s": [None, *map(str, range(11))],
        "l": [[], None, *[[str(n), None] for n in range(10)]],
        "j": pa.ExtensionArray.from_storage(pa.json_(), pa.array([None, *[f'{{"a":"{n}"}}' for n in range(11)]])),
        "ts": pa.array(range(12), pa.timestamp("us")),
        "f": pa.array(range(12), pa.float32()),
    },
    schema=pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("i", pa.int32()),
            ("s", pa.string()),
            ("l", pa.list_(pa.string())),
            ("j", pa.json_()),
            ("ts", pa.timestamp("us")),
            ("f", pa.float32()),
        ]
    ),
)
PUSHED_WHOLE = """
id = 5 | s = 'a' | s in ('a', 'b', 'c', 'd') | s like 'a%' and id > 3 | not (s = 'a' or s is null) | lower(s) = 'a'
length(s) > 3 | starts_with(s, 'a') | contains(s, 'a') | contains_tokens(s, 'a') | regexp_match(s, '^a')
regexp_like(s, '^a') | array_has(l, 'a') | array_contains(l, 'a') | array_has_any(l, ['a', 'b']) | l[1] = 'a'
json_get_int(j, 'a') = 1 | json_extract(j, '$.a') = '1' | json_exists(j, '$.a') | i = id | cast(i as bigint) = 5
cast(cast(i as string) as int) = 5 | s = 'a' and i = id | date_trunc('day', ts) = timestamp '2024-01-01' | f > 0.5
try_cast(s as int) = 10 | cast(ts as date) = date '2024-01-01' | date_part('hour', ts) = 5 | abs(f) < 1
"""
PUSHED_IN_PART = {
    "cast(s as int) = 5": None,
    "cast(s as int) = 5 or id = 1": None,
    "not (id > 3 and s > i)": None,
    "id > 3 and cast(s as int) < 9": "id > 3",
    "S is not null and (`id` in (4, 5) and id = s) and f >= 0": "S is not null and `id` in ( 4 , 5 ) and f >= 0",
    "s between '1' and '7' and s::int < 5": "s between '1' and '7'",
    "cast(l[1] as int) = 3": None,
    "cast(lower(s) as smallint) in (1, 2, 12)": None,
    "cast(json_get_string(j, 'a') as int) > 7 and 20 > id": "20 > id",
    "regexp_match('7', s)": None,
    "cast(s as int) >= 0": None,
    "cast(s as int) < 0": None,
}


def test_an_error_that_names_a_nul_does_not_crash_the_process() -> None:
    child = subprocess.run([sys.executable, "-m", "tests.row_filter.nul_child"], capture_output=True, text=True)
    answers = child.stdout.splitlines()
    assert child.returncode == 0, answers[-1:]
    assert len(answers) > 1_000
    assert [answer for answer in answers if not answer.endswith(": refused")] == []


@pytest.mark.parametrize("text", listed(PUSHED_WHOLE))
def test_a_filter_with_safe_errors_reaches_lance_whole(text: str) -> None:
    shared = pushdown(RowFilter(text, FAILING_ROWS.schema))
    assert (shared.told, shared.late) == (text, None)


@pytest.mark.parametrize(("text", "pushed"), PUSHED_IN_PART.items())
def test_of_any_other_filter_the_simple_conditions_reach_lance(text: str, pushed: str | None) -> None:
    shared = pushdown(RowFilter(text, FAILING_ROWS.schema))
    assert shared.told == pushed
    assert shared.late is not None


def test_filters_with_casts_of_text_select_the_rows_of_lance_in_every_tier(tmp_path: Path) -> None:
    dataset = lance.write_dataset(FAILING_ROWS, str(tmp_path / "plain"))
    expected = {text: lance_ids(dataset, text) for text in PUSHED_IN_PART}
    answers = in_every_tier(
        str(tmp_path / "t"),
        FAILING_ROWS,
        lambda table: {
            text: selected_ids(lambda text=text: table.scan(filter=text).to_table()) for text in PUSHED_IN_PART
        },  # type: ignore[misc]
    )
    assert [tier for tier, found in answers.items() if found != expected] == []
    assert {len(found) for found in expected.values()} >= {0, 1, 2, 11}


def test_expressions_keep_order_types_and_documents() -> None:
    made = RowExpressions(
        {"s": "left(s, 1)", "j": "( `J` )", "i": "cast(s as int) + 1", "f": "null", "ts": "ts"}, FAILING_ROWS.schema
    ).evaluate(FAILING_ROWS)
    assert made.schema.names == ["s", "j", "i", "f", "ts"]
    assert made.column("j").equals(FAILING_ROWS.column("j"))
    assert made.column("i").to_pylist() == [None, *range(1, 12)]
    assert made.column("s").to_pylist() == [None, *map(str, range(10)), "1"]
    assert made.column("ts").equals(FAILING_ROWS.column("ts"))
    assert made.column("f").to_pylist() == [None] * 12


def test_an_expression_that_fails_is_refused() -> None:
    rows = FAILING_ROWS.set_column(2, "s", pa.array(["\0"] * 12))
    with pytest.raises(mw.InvalidInputError, match=r"'\\0' to value of Int32"):
        RowExpressions({"i": "cast(s as int)"}, FAILING_ROWS.schema).evaluate(rows)
