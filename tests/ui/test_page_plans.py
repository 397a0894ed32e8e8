"""The plan of a query, as the page draws it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import lance_memwal as mw
from tests.kit.pages import Page, lived_in, page_of, rows


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with lived_in(tmp_path / "t") as table:
        yield page_of(table)


def test_the_plan_says_what_was_read_superseded_and_answered(page: Page) -> None:
    (plan,) = page.query(kind="scan", limit=1000)["plans"]
    (shard,) = plan["shards"]
    told = [(t["tier"], t["rows"], t["superseded"], t["tombstones"], t["answered"]) for t in shard["tiers"]]
    assert told == [
        ("memtable", 8, 1, 1, 6),  # 24 to 29 live; 30 was put, then deleted
        ("sstable", 10, 1, None, 9),  # 15 to 24, of which 24 is newer in memory
        ("sstable", 15, 5, None, 10),  # 5 to 19, of which 15 to 19 are newer in the other
    ]
    base = plan["base"]
    assert (base["rows"], base["superseded"], base["answered"]) == (10, 5, 5)
    assert sum(part["superseded"] for part in base["fragments"]) == 5
    assert sum(part["answered"] for part in base["fragments"]) == 5
    assert "newest row per (id)" in plan["text"]


def test_the_plan_of_a_get_leaves_other_shards_out(tmp_path: Path) -> None:
    with lived_in(tmp_path / "t", sharding=mw.Bucket("id", 3)) as table:
        page = page_of(table)
        (plan,) = page.query(kind="get", key="7")["plans"]
        assert (plan["shards_in_all"], plan["pruned_in_all"]) == (1, 2)
        found = page.query(kind="scan", limit=1000, columns="city")
        (plan,) = found["plans"]
        assert [column["name"] for column in found["columns"]] == ["city"]
        assert (plan["shards_in_all"], plan["pruned_in_all"], plan["limit"]) == (3, 0, 1000)
        fresh = sum(tier["answered"] for shard in plan["shards"] for tier in shard["tiers"])
        assert (plan["base"]["answered"], fresh) == (5, 25)


def test_the_plan_of_sql_has_every_scan(page: Page) -> None:
    plans = page.query(kind="sql", sql="select count(*) from t a join t b on a.id = b.id where a.city = 'Oslo'")[
        "plans"
    ]
    assert len(plans) == 2
    assert any("city" in (plan["filter"] or "") for plan in plans)


def test_a_table_without_a_key_has_plans_too(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), pa.Table.from_pylist([{"n": 1}] * 3))
    with table.writer(fsync=False) as writer:
        writer.put([{"n": 2}])
        (plan,) = page_of(table).query(kind="scan")["plans"]
    assert [tier["answered"] for shard in plan["shards"] for tier in shard["tiers"]] == [1]
    assert (plan["base"]["superseded"], plan["base"]["answered"]) == (0, 3)
    assert page_of(table).problem("POST", "/api/query", json={"kind": "get", "key": "1"})[0] == 400


def test_fragments_that_an_index_leaves_out_are_told(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), rows(0), primary_key="id")
    for number in range(1, 4):
        table.dataset.insert(rows(number))
    table.create_index("id")
    page = page_of(table)
    (plan,) = page.query(kind="scan", filter="id = 2")["plans"]
    base = plan["base"]
    assert (base["fragments_read"], base["fragments_in_all"]) == (1, 4)
    assert [part["read"] for part in base["fragments"]] == [False, False, True, False]
    (plan,) = page.query(kind="scan")["plans"]
    assert [part["read"] for part in plan["base"]["fragments"]] == [True] * 4
    (plan,) = page.query(kind="scan", limit=1)["plans"]
    assert plan["base"]["fragments_read"] in (None, 4)  # it ends before the base table does, unless Lance read ahead
