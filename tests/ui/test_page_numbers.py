"""The page says what `stats` says, of every table, what happened to it, and what a query read."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.log.reading import list_positions
from lance_memwal.store import paths
from lance_memwal.testing.clocks import SkippingClock
from lance_memwal.ui.looks import Looks
from tests.kit.pages import Page, lived_in, page_of, rows
from tests.kit.writers import in_thread

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
    clock.sleep(2.1)
    calls = [in_thread(lambda: looks.newest().sample.number) for _ in range(8)]
    assert max(call.result() for call in calls) == 3


# What happened to a table, as the page tells it: logs, manifests, the timeline.


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return page_of(mw.create_table(str(tmp_path_factory.mktemp("history") / "t"), rows(0), primary_key="id"))


def test_the_timeline_has_takeovers_flushes_and_compactions_in_order(tmp_path: Path) -> None:
    with lived_in(tmp_path / "t") as table:
        told = page_of(table).get("/api/timeline")
    kinds = [event["kind"] for event in told["events"] if event["kind"] != "base"]
    assert kinds == ["takeover", "flush", "compaction", "trim", "takeover", "flush", "flush"]
    flushes = [(event["text"].split()[1], event["rows"]) for event in told["events"] if event["kind"] == "flush"]
    assert flushes == [("1", 5), ("2", 15), ("3", 10)]
    (compaction,) = [event for event in told["events"] if event["kind"] == "compaction"]
    assert compaction["text"] == "generations up to 1 went into the base table (+0 rows)"
    takeovers = [event["text"] for event in told["events"] if event["kind"] == "takeover"]
    assert takeovers == ["epoch 1 opened the shard", "epoch 2 took over"]
    times = [event["time_ms"] for event in told["events"]]
    assert times == sorted(times)
    assert told["left_out"] == 0


def test_what_the_bounds_leave_out_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lance_memwal.ui.timeline._VERSIONS", 2)
    with lived_in(tmp_path / "t") as table:
        told = page_of(table).get("/api/timeline")
        manifests = len(table.stats().shards) and table.stats().shards[0].manifests
    assert told["left_out"] >= 1
    assert [event["kind"] for event in told["events"] if event["kind"] != "compaction"][-2:] == ["flush", "flush"]
    assert manifests > 2


def test_manifests_come_with_what_they_changed(tmp_path: Path) -> None:
    with lived_in(tmp_path / "t") as table:
        page, (shard,) = page_of(table), table.shards()
        told = page.get("/api/manifests", shard=shard.shard_id)
        versions = [manifest["version"] for manifest in told["manifests"]]
        assert versions == sorted(versions, reverse=True) == list(range(told["count"], 0, -1))
        newest = {change["what"]: change for change in told["manifests"][0]["changes"]}
        assert newest["current_generation"] == {"what": "current_generation", "before": 3, "after": 4}
        assert (newest["sstable"]["before"], newest["sstable"]["after"]["generation"]) == (None, 3)
        first = {change["what"] for change in told["manifests"][-1]["changes"]}
        assert "writer_epoch" in first
        whole = page.get("/api/manifest", shard=shard.shard_id, version=versions[0], against=1)
        assert (whole["against"], whole["manifest"]["version"]) == (1, versions[0])
        assert {change["what"] for change in whole["changes"]} >= {"writer_epoch", "current_generation", "sstable"}
        status, kind, _ = page.problem("GET", "/api/manifest", params={"shard": shard.shard_id, "version": 99})
        assert (status, kind) == (400, "InvalidInputError")


def test_the_log_comes_in_pages_and_entries_with_their_rows(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), rows(0), primary_key="id")
    with table.writer(fsync=False) as writer:
        for number in range(60):
            writer.put(rows(number))
        writer.delete([3])
        page, (shard,) = page_of(table), table.shards()
        newest = page.get("/api/log", shard=shard.shard_id)
        positions = [entry["position"] for entry in newest["entries"]]
        assert (len(positions), positions[0], newest["older"]) == (50, newest["last"], newest["count"] - 50)
        rest = page.get("/api/log", shard=shard.shard_id, before=positions[-1])
        assert [entry["position"] for entry in rest["entries"]] == list(range(positions[-1] - 1, 0, -1))
        told = page.get("/api/entry", shard=shard.shard_id, position=newest["last"])
        assert [column["name"] for column in told["columns"]][-1] == "_tombstone"
        assert (told["rows"][0][0], told["rows"][0][-1], told["written_ms"] > 0) == (3, True, True)


def test_a_damaged_entry_is_shown_as_one(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), rows(0), primary_key="id")
    with table.writer(fsync=False) as writer:
        writer.put(rows(1))
        writer.put(rows(2))
    (shard,) = table.shards()
    first = list_positions(table.location, shard.shard_id)[0]
    damaged = tmp_path / "t" / paths.wal_entry_path(shard.shard_id, first)
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 0xFF
    damaged.write_bytes(data)
    page = page_of(table)
    entries = {entry["position"]: entry for entry in page.get("/api/log", shard=shard.shard_id)["entries"]}
    assert entries[first]["kind"] == "damaged"
    assert entries[first + 1]["kind"] == "rows"
    status, kind, text = page.problem("GET", "/api/entry", params={"shard": shard.shard_id, "position": first})
    assert (status, kind) == (500, "CorruptDataError")
    assert f"position={first}" in text


@pytest.mark.parametrize(
    ("path", "parameters"),
    [
        ("/api/log", {}),
        ("/api/log", {"shard": "../../etc"}),
        ("/api/log", {"shard": "5f1c7d1e-0a52-4f0b-9a35-3f3a1f6c2b10", "before": "x"}),
        ("/api/manifest", {"shard": "5f1c7d1e-0a52-4f0b-9a35-3f3a1f6c2b10"}),
        ("/api/entry", {"shard": "5f1c7d1e-0a52-4f0b-9a35-3f3a1f6c2b10", "position": "-1"}),
        ("/api/entry", {"shard": "5f1c7d1e-0a52-4f0b-9a35-3f3a1f6c2b10", "position": "1" * 30}),
        ("/api/entry", {"shard": "5f1c7d1e-0a52-4f0b-9a35-3f3a1f6c2b10", "position": "0"}),
        ("/api/look", {"order": "x"}),
    ],
)
def test_addresses_that_make_no_sense_are_told_so(empty: Page, path: str, parameters: dict[str, str]) -> None:
    status, kind, _ = empty.problem("GET", path, params=parameters)
    assert (status, kind) == (400, "InvalidInputError")


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
    table.indexes.create("id")
    page = page_of(table)
    (plan,) = page.query(kind="scan", filter="id = 2")["plans"]
    base = plan["base"]
    assert (base["fragments_read"], base["fragments_in_all"]) == (1, 4)
    assert [part["read"] for part in base["fragments"]] == [False, False, True, False]
    (plan,) = page.query(kind="scan")["plans"]
    assert [part["read"] for part in plan["base"]["fragments"]] == [True] * 4
    (plan,) = page.query(kind="scan", limit=1)["plans"]
    assert plan["base"]["fragments_read"] in (None, 4)  # it ends before the base table does, unless Lance read ahead
