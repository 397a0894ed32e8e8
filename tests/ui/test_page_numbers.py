"""The page says what `stats` says, of every table."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.testing.clocks import SkippingClock
from lance_memwal.ui.looks import Looks
from tests.kit.pages import Page, lived_in, page_of, rows

DATA = ("/api/table", "/api/look", "/api/timeline")
OF_A_SHARD = ("/api/log", "/api/manifests")


@pytest.mark.parametrize("sharding", [mw.Unsharded(), mw.Bucket("id", 3)], ids=str)
def test_numbers_are_those_of_stats(tmp_path: Path, sharding: mw.Unsharded | mw.Bucket) -> None:
    with lived_in(tmp_path / "t", sharding=sharding) as table:
        look, stats = page_of(table).get("/api/look"), table.stats()
        assert look["stats"]["live_rows"] == stats.live_rows == table.count_rows() == 30
        names = ("base_version", "base_rows", "base_fragments", "base_bytes", "uncompacted_generations")
        more = ("uncompacted_rows", "uncompacted_bytes", "wal_lag_entries", "wal_lag_bytes")
        for name in (*names, *more):
            assert look["stats"][name] == getattr(stats, name), name
        told = {shard["shard_id"]: shard for shard in look["shards"]}
        assert set(told) == {shard.shard_id for shard in stats.shards}
        for shard in stats.shards:
            found = told[shard.shard_id]
            assert (found["epoch"], found["wal_tip"]) == (shard.epoch, shard.wal_tip)
            assert [(g["generation"], g["tier"], g["rows"]) for g in found["generations"]] == [
                (g.generation, g.tier, g.rows) for g in shard.generations
            ]
        assert look["tiers"]["sstable"]["rows"] == stats.uncompacted_rows
        assert look["tiers"]["memtable"]["rows"] == 8  # 24 to 30, and a delete


def test_samples_come_once_and_have_rates_from_the_second_on(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), rows(1), primary_key="id")
    page = page_of(table)
    first = page.get("/api/look")
    with table.writer(fsync=False) as writer:
        writer.put(rows(2))
        page.get("/api/look")
        writer.put(rows(3))
        look = page.get("/api/look", after=first["number"])
    assert [sample["number"] for sample in look["samples"]] == [2, 3]
    assert first["samples"][0]["entries"] is None
    assert look["samples"][1]["entries"] > 0
    assert look["samples"][1]["latency"]["list"] > 0
    assert look["rates"]["entries"] == look["samples"][1]["entries"]


def test_a_page_of_many_shards_is_a_part_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lance_memwal.ui.app._SHARDS_SHOWN", 2)
    with lived_in(tmp_path / "t", sharding=mw.Bucket("id", 3)) as table:
        page = page_of(table)
        look, rest = page.get("/api/look", order="id"), page.get("/api/look", **{"order": "id", "from": 2})
        assert (look["shards_in_all"], len(look["shards"]), len(rest["shards"])) == (3, 2, 1)
        ids = [shard["shard_id"] for shard in look["shards"] + rest["shards"]]
        assert ids == [shard.shard_id for shard in table.stats().shards]


def _everything(page: Page, table: mw.Table) -> dict[str, str]:
    """Every address with its answer."""
    found = {path: page.ask("GET", path).text for path in DATA}
    for shard in table.shards():
        found |= {path: page.ask("GET", path, params={"shard": shard.shard_id}).text for path in OF_A_SHARD}
        found["/api/entry"] = page.ask("GET", "/api/entry", params={"shard": shard.shard_id, "position": 1}).text
        found["/api/manifest"] = page.ask("GET", "/api/manifest", params={"shard": shard.shard_id, "version": 1}).text
    return found


@pytest.mark.parametrize("keyed", [True, False], ids=["with a key", "append-only"])
def test_every_address_answers_for_an_empty_table(tmp_path: Path, keyed: bool) -> None:
    options = {"primary_key": "id"} if keyed else {}
    table = mw.create_table(str(tmp_path / "t"), rows().schema, **options)
    page = page_of(table)
    for path in DATA:
        page.get(path)
    look = page.get("/api/look")
    assert (look["stats"]["live_rows"], look["shards"], look["oldest_lag_ms"]) == (0, [], None)
    assert page.query(kind="scan")["rows"] == []
    assert page.query(kind="sql", sql="select count(*) from t")["rows"] == [[0]]
    with table.writer(fsync=False):
        pass
    assert page.get("/api/look")["stats"]["live_rows"] == 0


def test_every_address_answers_for_a_table_in_all_tiers(tmp_path: Path) -> None:
    with lived_in(tmp_path / "t") as table:
        answers = _everything(page_of(table), table)
        assert len(answers) == 7
        assert all(not text.startswith('{"error"') for text in answers.values()), answers


def test_hostile_names_and_values_stay_data(tmp_path: Path) -> None:
    evil = '<img src=x onerror="alert(1)">'
    schema = pa.schema([pa.field("id", pa.string(), nullable=False), (evil, pa.string())])
    table = mw.create_table(str(tmp_path / evil.replace("/", "")), schema, primary_key="id")
    with table.writer(fsync=False) as writer:
        writer.put([{"id": "</script><script>alert(1)</script>", evil: "\u2028'\"\x00\x1b[31m"}])
    page = page_of(table)
    facts = page.ask("GET", "/api/table")
    assert facts.headers["content-type"] == "application/json"
    assert facts.json()["columns"][1]["name"] == evil
    assert page.query(kind="scan")["rows"] == [["</script><script>alert(1)</script>", "\u2028'\"\x00\x1b[31m"]]


def test_a_table_that_is_gone_is_told_in_words_and_may_come_back(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), rows(1), primary_key="id")
    page = page_of(table)
    page.get("/api/look")
    mw.open_table(str(tmp_path / "t")).drop()
    status, kind, text = page.problem("GET", "/api/look")
    assert (status // 100 in (4, 5), kind.endswith("Error"), str(tmp_path / "t") in text) == (True, True, True)
    mw.create_table(str(tmp_path / "t"), rows(1, 2), primary_key="id")
    assert page.get("/api/look")["stats"]["live_rows"] == 2


def test_watching_never_becomes_the_load(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), rows(1), primary_key="id")
    clock = SkippingClock()
    looks = Looks(table, every_seconds=2.0, clock=clock)
    first = looks.newest()
    assert looks.newest() is first
    clock.sleep(2.1)
    assert looks.newest().sample.number == 2
    seen = list[int]()
    clock.sleep(2.1)
    threads = [threading.Thread(target=lambda: seen.append(looks.newest().sample.number)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(seen) == 3
