"""Stores that an earlier version of this package wrote show the recorded rows, and take writes, compaction and collection."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lance_memwal as mw
from lance_memwal.process.cache import CACHE
from tests.kit.golden_tables import GOLDEN, unpack

STORES = sorted(file.stem for file in (GOLDEN / "memwal_stores").glob("*.json"))
KEYS = {"ledger": ("tenant", "number"), "rolled": ("key",), "events": ("n",), "crashed": ("id",)}

Open = Callable[[str], tuple[mw.Table, dict[str, Any]]]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Unpack a table of one version, and return it with its expected rows."""

    def opened(name: str) -> tuple[mw.Table, dict[str, Any]]:
        expected = json.loads((GOLDEN / "memwal_stores" / f"{request.param}.json").read_text())
        unpack(GOLDEN / "memwal_stores" / f"{request.param}.tar.xz", tmp_path, f"{name}/")
        return mw.open_table(str(tmp_path / name)), expected[name]

    return opened


def shown(rows: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Rows in key order, with UUIDs as text and JSON parsed; blobs are compared apart."""
    rows = [{column: _plain(column, value) for column, value in row.items() if column != "image"} for row in rows]
    return sorted(rows, key=lambda row: [row[column] for column in KEYS[name]])


def _plain(column: str, value: Any) -> Any:
    if column == "meta" and value is not None:
        return json.loads(value)
    return str(value) if column == "ref" and value is not None else value


def rows_of(table: mw.Table | mw.TableView, name: str) -> list[dict[str, Any]]:
    return shown(table.scan().to_table().to_pylist(), name)


def keys_of(rows: list[dict[str, Any]], name: str) -> list[Any]:
    """The keys of rows as point lookups take them."""
    columns = KEYS[name]
    return [row[columns[0]] if len(columns) == 1 else tuple(row[column] for column in columns) for row in rows]


def check_rows(table: mw.Table, name: str, expected: list[dict[str, Any]]) -> None:
    """Scan, count, point lookups and blobs show these rows."""
    assert rows_of(table, name) == shown(expected, name)
    assert table.count_rows() == len(expected)
    if name == "events":
        return
    keys = keys_of(expected, name)
    assert shown(table.lookup(keys).to_pylist(), name) == shown(expected, name)
    for key, row in list(zip(keys, expected, strict=True))[::7]:
        found = table.get(key)
        assert found is not None
        assert shown([found], name) == shown([row], name)
    for key, row in zip(keys, expected, strict=True):
        if "image" in row:
            blob = table.get_blob(key, "image")
            assert (blob and blob.read()) == (row["image"] and row["image"].encode())


def expected_after_claim(table: mw.Table, name: str, expected: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows after a claim. It publishes the bulk write that was announced in `crashed`, or gives it up: both are right."""
    is_published = name == "crashed" and table.get(5) is not None
    found: list[dict[str, Any]] = expected["rows_if_published" if is_published else "rows"]
    return found


@pytest.mark.parametrize("name", KEYS)
def test_a_table_shows_its_rows_before_and_after_flush_compaction_and_collection(store: Open, name: str) -> None:
    table, expected = store(name)
    check_rows(table, name, expected["rows"])
    assert table.verify().ok
    table.flush(force=True)
    rows = expected_after_claim(table, name, expected)
    check_rows(table, name, rows)
    table.compact()
    check_rows(table, name, rows)
    table.gc(grace_seconds=0)
    check_rows(table, name, rows)
    assert table.verify().ok


def test_roll_ups_of_an_earlier_version_are_ignored_and_collected(store: Open) -> None:
    table, expected = store("rolled")
    found = sorted(Path(table.uri).glob("_mem_wal/*/memwal_rollups/*.bin"))
    found[0].write_bytes(b"torn")
    stray = found[0].with_name("notes.txt")
    stray.write_text("not a roll-up")
    CACHE.clear()
    assert table.verify().problems == table.repair().problems == []
    check_rows(table, "rolled", expected["rows"])
    assert table.gc(grace_seconds=0, dry_run=True).count("rollup") == len(found)
    assert table.gc(grace_seconds=3600).count("rollup") == len(found) - 1, "one was written just now"
    assert table.gc(grace_seconds=0).count("rollup") == 1
    assert list(stray.parent.iterdir()) == [stray]
    CACHE.clear()
    check_rows(mw.open_table(table.uri), "rolled", expected["rows"])


def test_an_owner_record_of_an_earlier_version_is_collected_after_the_next_claim(store: Open) -> None:
    table, expected = store("rolled")
    [record] = Path(table.uri).glob("_mem_wal/*/memwal_owner_*.json")
    assert table.gc(grace_seconds=0).count("owner") == 0, "a process of the newest epoch may run"
    with table.shard_writer(record.parent.name):
        assert table.gc(grace_seconds=0, dry_run=True).count("owner") == 1
    os.utime(record)
    assert table.gc(grace_seconds=3600).count("owner") == 0, "its grace period has not passed"
    assert table.gc(grace_seconds=0).count("owner") == 1
    assert not record.exists()
    check_rows(table, "rolled", expected["rows"])


@pytest.mark.parametrize("name", KEYS)
def test_a_table_takes_writes_and_a_new_handle_reads_them(store: Open, name: str) -> None:
    table, expected = store(name)
    changed = [dict(row) for row in expected["rows"][:2]]
    if name == "ledger":
        changed = [{**row, "seq": 1000, "image": None} for row in changed]
    with table.writer() as writer:
        writer.put([row if name != "events" else {**row, "n": 1000 + row["n"]} for row in changed])
    rows, found = expected_after_claim(table, name, expected), rows_of(mw.open_table(table.uri), name)
    if name == "events":
        assert found == shown([*rows, *({**row, "n": 1000 + row["n"]} for row in changed)], name)
    else:
        assert found == shown([*changed, *rows[2:]], name)


@pytest.mark.parametrize("name", ["ledger", "events", "crashed"])
def test_the_change_feed_from_its_start_ends_at_the_rows(store: Open, name: str) -> None:
    table, expected = store(name)
    newest: dict[Any, dict[str, Any] | None] = {}
    for batch in table.changes(start="earliest", until="now"):
        for row in batch.to_pylist():
            [key] = keys_of([row], name)
            plain = {column: value for column, value in row.items() if not column.startswith("_")}
            newest[key] = plain if row["_op"] == "u" else None
    live = shown([row for row in newest.values() if row is not None], name)
    wanted = [r for r in expected["rows"] if keys_of([r], name)[0] in newest]
    assert live == shown(wanted, name)
    assert len(wanted) >= len(expected["rows"]) - 6  # the first rows of `ledger` came with its base table


def test_a_snapshot_feed_of_a_collected_log_gives_all_rows(store: Open) -> None:
    table, expected = store("rolled")
    rows = [row for batch in table.changes(start="snapshot", until="now") for row in batch.to_pylist()]
    assert shown([{"key": row["key"], "n": row["n"]} for row in rows], "rolled") == shown(expected["rows"], "rolled")


def test_filters_and_text_search_find_the_rows_of_every_tier(store: Open) -> None:
    table, expected = store("ledger")
    for word, keys in expected["words"].items():
        found = table.search(text=word, k=100).to_pylist()
        assert sorted([row["tenant"], row["number"]] for row in found) == keys
    for row in expected["rows"]:
        if row["total"] is not None:
            found = table.scan(filter=f"total = {row['total']}").to_table().to_pylist()
            assert keys_of([row], "ledger")[0] in keys_of(found, "ledger")


def test_a_checkpoint_shows_the_rows_of_its_time(store: Open) -> None:
    table, expected = store("ledger")
    at = rows_of(table.at("march"), "ledger")
    wanted = shown(expected["checkpoint"]["rows"], "ledger")
    assert at == [{column: value for column, value in row.items() if column in at[0]} for row in wanted]


def test_a_consumer_continues_after_its_last_commit(store: Open) -> None:
    table, expected = store("ledger")
    for name in ("billing", "fresh"):
        rows = [row for batch in table.consumers.open(name, until="now") for row in batch.to_pylist()]
        assert sorted({(row["tenant"], row["number"]) for row in rows}) == [
            tuple(key) for key in expected["after_billing"]
        ]


def test_a_transaction_of_the_store_is_not_applied_again(store: Open) -> None:
    table, expected = store("ledger")
    found = table.transactions().values()
    newest = {app: max(seen.get(app, 0) for seen in found) for app in expected["transactions"]}
    assert newest == expected["transactions"]
    shard_of = {app: shard for shard, seen in table.transactions().items() for app in seen}
    with table.shard_writer(shard_of["load"]) as writer:
        keys = [row for row in expected["rows"] if (row["tenant"], row["number"]) == ("south", 8)]
        writer.put([{**keys[0], "seq": 2000}], txn=("load", 7))
    assert rows_of(table, "ledger") == shown(expected["rows"], "ledger")


def test_an_unacknowledged_transaction_is_applied_once_when_it_is_retried(store: Open) -> None:
    table, expected = store("crashed")
    for _ in range(2):
        with table.shard_writer() as writer:
            writer.put(expected["rows_if_published"][-1:], txn=("load", 1))
        assert rows_of(table, "crashed") == shown(expected["rows_if_published"], "crashed")


def test_remembered_deletes_keep_late_rows_out(store: Open) -> None:
    table, expected = store("ledger")
    with table.writer(compaction=None) as writer:
        for tenant, number in expected["deleted"]:
            writer.put([{"tenant": tenant, "number": number, "seq": 1}], missing="null")
    assert rows_of(table, "ledger") == shown(expected["rows"], "ledger")


def test_the_store_holds_every_kind_of_object(store: Open) -> None:
    names = set()
    for name in KEYS:
        table, _ = store(name)
        names |= {part for path in Path(table.uri).rglob("*") for part in path.relative_to(table.uri).parts}
    kinds = ("memwal_rollups", "memwal_floor", "memwal_deletes", "memwal_quarantine", "memwal_consumers")
    assert names >= {*kinds, "memwal_checkpoints", "memwal_stage", "memwal_owner_2.json"}
