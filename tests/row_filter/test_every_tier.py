"""The same filter selects the same rows in every tier: those that plain Lance selects of the same rows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_memwal as mw
from lance_memwal.memtable.index.btree import BTreeMemIndex, is_indexable
from lance_memwal.rows.filter import RowFilter
from lance_memwal.rows.sharding import route
from lance_memwal.rows.sql import Range, parse
from tests.harness.profile import scaled
from tests.kit import filters as filter_kit
from tests.kit.caches import nothing_kept

SETTINGS: dict[str, Any] = {"fsync": False, "stats_log_interval_ms": None}
ROWS = filter_kit.rows()
ALL = list(dict.fromkeys(filter_kit.filters()))
TOLD = """
f32 = 0.1 | f32 > 0.3 | f32 in (0.1, 0.3) | f16 = 0.1 | st.a = 0 | st.B = '' | st.a is null | not (st.a = 1) | sn.a = 0
sn.s is null | json_get_int(j, 'a') = 1 | json_exists(j, '$.a') | timestamp is null or timestamp > 1 | date = 1 | in = 1
any is not null | any <> 1 | current_date is not null | current_time is null
all = 1 | f64 >= 0.0 | f64 = 0.0 | i8 = 300 | u8 = -1 | dec = 1.5 | s = 5 | l is null | `two words` = 1 | UPPER = 1
"""
Answer = list[int] | str


def asked(read: Callable[[], pa.Table]) -> Answer:
    try:
        return sorted(read().column("id").to_pylist())
    except mw.InvalidInputError:
        return "refused"


def plain(dataset: lance.LanceDataset, text: str) -> Answer:
    try:
        return sorted(dataset.to_table(columns=["id"], filter=text).column("id").to_pylist())
    except (ValueError, OSError, RuntimeError):
        return "refused"


def in_every_tier(uri: str, rows: pa.Table, ask: Callable[[mw.Table], Any]) -> dict[str, Any]:
    """What `ask` says while all `rows` are in one tier, then in the next."""
    table = mw.create_table(uri, rows.schema, primary_key="id", sharding=mw.Unsharded())
    indexes = [mw.BTreeIndex(field.name) for field in rows.schema if is_indexable(field.type)]
    answers = {}
    with table.shard_writer(**SETTINGS) as first:
        shard = first.shard_id
    writer = mw.ShardWriter.open(uri, shard_id=shard, indexes=indexes, **SETTINGS)
    half = rows.num_rows // 2
    writer.put(rows.slice(0, half))
    writer.put(rows.slice(half))
    answers["memtable with BTree indexes"] = ask(table)
    writer.abort()
    answers["tail of the log"] = ask(table)
    table.shard_writer(**SETTINGS).close()
    answers["SSTable"] = ask(table)
    with nothing_kept():
        answers["SSTable that is not kept"] = ask(table)
    table.compact()
    answers["base table"] = ask(table)
    assert lance.dataset(uri).count_rows() == rows.num_rows
    return answers


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
    expected = [plain(dataset, text) for text in texts]
    answers = in_every_tier(
        str(tmp_path / "t"),
        ROWS,
        lambda table: [asked(lambda text=text: table.scan(["id"], text).to_table()) for text in texts],  # type: ignore[misc]
    )
    assert differences(answers, expected, texts) == []
    some = [answer for answer in expected if answer != "refused" and 0 < len(answer) < ROWS.num_rows]
    assert len(some) > len(texts) // 3, "answers that are all or nothing prove little"


@pytest.mark.scaled
def test_every_operator_selects_the_rows_of_plain_lance_in_memory(tmp_path: Path) -> None:
    dataset = lance.write_dataset(ROWS, str(tmp_path / "plain"))
    texts = ALL[1 :: scaled(ci=37, prove=1)]
    found = [asked(lambda text=text: RowFilter(text, ROWS.schema).apply(ROWS)) for text in texts]  # type: ignore[misc]
    assert differences({"memory": found}, [plain(dataset, text) for text in texts], texts) == []


@pytest.mark.parametrize("text", filter_kit.listed(filter_kit.REFUSED))
def test_what_lance_reads_otherwise_from_tier_to_tier_is_refused(tmp_path: Path, text: str) -> None:
    table = mw.create_table(str(tmp_path / "t"), ROWS.select(["id", "s"]), primary_key="id", sharding=mw.Unsharded())
    plain_rows = lance.dataset(table.uri).to_table(filter=text)
    assert plain_rows.num_rows >= 0  # Lance takes it
    with pytest.raises(mw.InvalidInputError, match="filter"):
        table.scan(filter=text)


PLAIN = ROWS.select(["id", "i8", "i64", "b", "s", "bin", "d32", "ts", "tz", "f32", "f64", "timestamp"])


def expressions() -> list[pc.Expression]:
    """Questions of pyarrow that Lance would answer otherwise, in part, if it were told them."""
    found = []
    for column in filter_kit.COLUMNS:
        if column.name not in PLAIN.schema.names:
            continue
        field, value = pc.field(column.name), column.values[0]
        found += [field == value, ~(field == value), field > value, ~(field <= value), field.is_null(), field != field]
        found += [field.isin([value]), ~field.isin([value]), field.isin([value, None]), field.isin([value]).is_null()]
        found += [(field == value) | (pc.field("id") > 20), (field == value) & pc.field("b"), field.isin([None])]
        found += [(field == value) & pc.field("i64").isin([0, 1]), field.isin([value]) & (pc.field("id") >= 3)]
        listed = field.isin([value, column.values[-1]])
        found += [
            pc.if_else(field.is_valid(), listed, pa.scalar(None, pa.bool_())),
            pc.if_else(field.is_valid(), ~listed, True),
        ]
        found += [(field == value) | (field == column.values[-1]) | field.isin([value]), pc.scalar(value) < field]
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
        lambda table: [asked(lambda e=e: table.scan(["id"], e).to_table()) for e in asked_for],  # type: ignore[misc]
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
        selected = plain(dataset, text)
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
