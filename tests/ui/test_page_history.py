"""What happened to a table, as the page tells it: logs, manifests, the timeline."""

from __future__ import annotations

from pathlib import Path

import pytest

import lance_memwal as mw
from lance_memwal.log.reading import list_positions
from lance_memwal.store import paths
from tests.kit.pages import Page, lived_in, page_of, rows


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return page_of(mw.create_table(str(tmp_path_factory.mktemp("history") / "t"), rows(0), primary_key="id"))


def test_the_timeline_has_takeovers_flushes_and_compactions_in_order(tmp_path: Path) -> None:
    with lived_in(tmp_path / "t") as table:
        told = page_of(table).get("/api/timeline")
    kinds = [event["kind"] for event in told["events"] if event["kind"] != "base"]
    assert kinds == ["takeover", "flush", "compaction", "trim", "takeover", "flush", "flush"]
    flushes = [(event["generations"], event["rows"]) for event in told["events"] if event["kind"] == "flush"]
    assert flushes == [([1], 5), ([2], 15), ([3], 10)]
    (compaction,) = [event for event in told["events"] if event["kind"] == "compaction"]
    assert (compaction["generations"], "+0 rows" in compaction["text"]) == ([1], True)
    assert [event["epoch"] for event in told["events"] if event["kind"] == "takeover"] == [1, 2]
    times = [event["time_ms"] for event in told["events"]]
    assert times == sorted(times)
    assert told["left_out"] == 0


def test_what_the_bounds_leave_out_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lance_memwal.ui.browsing._EVENTS_PER_SHARD", 2)
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
        ("/api/timeline", {"shard": "%00"}),
    ],
)
def test_addresses_that_make_no_sense_are_told_so(empty: Page, path: str, parameters: dict[str, str]) -> None:
    status, kind, _ = empty.problem("GET", path, params=parameters)
    assert (status, kind) == (400, "InvalidInputError")
