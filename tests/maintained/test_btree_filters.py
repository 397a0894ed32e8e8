"""Filters of memtables use BTree indexes, say so, and return the same rows as without them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import lance_memwal as mw
from lance_memwal.memtable.index import Equals, In, IsNotNull, IsNull, Range
from lance_memwal.rows.sql import parse
from tests.harness.profile import scaled
from tests.kit.maintained import SETTINGS, rows

COLUMNS = ["id", "v", "t", "n", "x"]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("n = 3", [("n", Equals(3))]),
        ("3 = n", [("n", Equals(3))]),
        ("N >= -3", [("n", Range(lower=-3))]),
        ("5 > n", [("n", Range(upper=5, upper_inclusive=False))]),
        ("n IN (1, -2,3)", [("n", In((1, -2, 3)))]),
        ("n is null", [("n", IsNull())]),
        ("n IS NOT NULL AND x < 1.5", [("n", IsNotNull()), ("x", Range(upper=1.5, upper_inclusive=False))]),
        ("n between 2 and 4 and t = 'it''s'", [("n", Range(2, 4)), ("t", Equals("it's"))]),
        ("(n = 1 AND (x > 2))", [("n", Equals(1)), ("x", Range(lower=2, lower_inclusive=False))]),
        ("`n` = 1 AND t LIKE 'a%'", [("n", Equals(1))]),
        ('t = "a and b"', [("t", Equals("a and b"))]),
        ("n = 1 OR n = 2", []),
        ("(n = 1 OR n = 2) AND x = 1", [("x", Equals(1))]),
        ("NOT n = 1 AND x = 2", [("x", Equals(2))]),
        ("case when n = 1 and x = 2 and n = 3 then true else true end", []),
        ("n = 1 + 1", []),
        ("n + 1 = 2", []),
        ("abs(n) = 1", []),
        ("n = 1 -- and x = 2", []),
        ("n = 1 /* and */ and x = 2", []),
        ("t = e'a'", []),
        ("n <> 1", []),
        ("n != 1 and n = 2", [("n", Equals(2))]),
        ("n not between 1 and 2 and x = 3", [("x", Equals(3))]),
        ("n not in (1, 2)", []),
        ("n = null", []),
        ("n in (1, null)", []),
        ("s.n = 1", []),
        ("n = 1 = true", []),
        ("n = cast('1' as int)", []),
        ("", []),
    ],
)
def test_only_what_the_top_level_conjunction_certainly_says_is_used(sql: str, expected: list[object]) -> None:
    assert parse(sql).predicates(COLUMNS) == expected


def indexed_and_plain(path: Path) -> tuple[mw.ShardWriter, mw.ShardWriter]:
    """Two writers with the same rows, updates and deletes: one with BTree indexes, one without."""
    made = []
    for name, indexes in (("plain", ()), ("indexed", [mw.BTreeIndex(c) for c in ("id", "n", "t", "x")])):
        table = mw.create_table(str(path / name), rows(range(1)), primary_key="id")
        writer = mw.ShardWriter.open(table.dataset.uri, indexes=indexes, **SETTINGS)
        writer.put(rows(range(100)))
        writer.put(rows(range(50, 150)))
        writer.delete(range(0, 150, 7))
        made.append(writer)
    return made[1], made[0]


def random_filter(chance: random.Random) -> str:
    def atom() -> str:
        column = chance.choice(["id", "n", "x", "t"])
        if chance.random() < 0.15:
            return f"{column} is {chance.choice(['', 'not '])}null"
        if column == "t":
            return chance.choice(["t = 'row number{}'", "t > 'row number{}'", "t in ('row number{}')"]).format(
                chance.randrange(150)
            )
        low = chance.randrange(40) / 4 if column == "x" and chance.random() < 0.5 else chance.randrange(-5, 160)
        shape = chance.choice(["{c} = {a}", "{c} < {a}", "{a} <= {c}", "{c} between {a} and {b}", "{c} in ({a}, {b})"])
        return shape.format(c=column, a=low, b=low + chance.randrange(30))

    parts = [atom() for _ in range(chance.randint(1, 3))]
    return chance.choice([" AND ", " and ", " OR "]).join(parts)


@pytest.mark.scaled
def test_random_filters_select_the_same_rows_with_and_without_indexes(tmp_path: Path) -> None:
    indexed, plain = indexed_and_plain(tmp_path)
    chance = random.Random(5)
    used = 0
    for _ in range(scaled(ci=150, prove=5_000)):
        sql = random_filter(chance)
        expected = sorted(plain.scan().filter(sql).to_table().column("id").to_pylist())
        assert sorted(indexed.scan().filter(sql).to_table().column("id").to_pylist()) == expected, sql
        assert sorted(indexed.lsm_scan(filter=sql).to_table().column("id").to_pylist()) == sorted(
            plain.lsm_scan(filter=sql).to_table().column("id").to_pylist()
        ), sql
        used += "BTree index" in indexed.scan().filter(sql).explain()
    assert used > 30
    indexed.close()
    plain.close()


def test_explain_names_the_index_that_a_filter_uses(tmp_path: Path) -> None:
    indexed, plain = indexed_and_plain(tmp_path)
    assert "BTree index n_idx on n, id_idx on id" in indexed.lsm_scan(filter="n = 3 and id < 50").explain()
    assert "BTree index n_idx on n" in indexed.scan().filter("n is null").explain()
    for sql in ("n = 3 or id = 1", "n = 1 + 1", "v is null"):
        assert "BTree index" not in indexed.lsm_scan(filter=sql).explain()
    assert "BTree" not in plain.lsm_scan(filter="n = 3").explain()
    indexed.close()
    plain.close()


def test_a_filter_with_an_index_still_decides_recency_first(tmp_path: Path) -> None:
    """Lesson 23, with the index in the way: the newer row that does not match hides the older one that does."""
    indexed, plain = indexed_and_plain(tmp_path)
    for writer in (indexed, plain):
        writer.put(rows([14]).set_column(3, "n", [[99]]).cast(rows([1]).schema))
        assert writer.scan().filter("n = 4 and id = 14").count_rows() == 0
        assert writer.scan().filter("n = 99").count_rows() == 1
        writer.close()
