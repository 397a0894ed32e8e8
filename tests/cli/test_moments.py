"""`--at`, `snapshot`, `diff` and `checkpoints` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lance_memwal as mw
from lance_memwal.cli import main


def said(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> str:
    assert main([str(argument) for argument in arguments]) == status
    captured = capsys.readouterr()
    return captured.out if status == 0 else captured.err


def objects(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def rename(uri: Path) -> None:
    with mw.open_table(str(uri)).writer() as writer:
        writer.put([{"id": 1, "name": "other words", "vec": [9.0, 9.0]}])
        writer.delete([2])


def test_reads_as_of_a_snapshot(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    then = said(capsys, "snapshot", table).strip()
    rename(table)
    assert len(objects(said(capsys, "scan", table, "--json"))) == 4
    assert len(objects(said(capsys, "scan", table, "--at", then, "--json"))) == 5
    assert objects(said(capsys, "scan", table, "--at", then, "--count", "--json")) == [{"rows": 5}]
    assert objects(said(capsys, "get", table, 1, "--at", then, "--json"))[0]["name"] == "name1 common"
    found = objects(said(capsys, "search", table, "-v", "[2, 0]", "-k", 1, "--at", then, "--json"))
    assert [row["id"] for row in found] == [2]
    assert "no checkpoint" in said(capsys, "get", table, 1, "--at", "nothing", status=1)
    assert "--flushed" in said(capsys, "scan", table, "--at", then, "--flushed", status=2)


def test_checkpoints_are_created_listed_and_dropped(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = objects(said(capsys, "checkpoints", "create", table, "before", "--lifetime-days", 2, "--json"))[0]
    assert made["name"] == "before"
    assert made["expires"] is not None
    rename(table)
    mw.open_table(str(table)).gc(grace_seconds=0)
    assert [item["name"] for item in objects(said(capsys, "checkpoints", "list", table, "--json"))] == ["before"]
    assert "before" in said(capsys, "checkpoints", "list", table)
    assert objects(said(capsys, "get", table, 2, "--at", "before", "--json"))[0]["id"] == 2
    now = said(capsys, "snapshot", table).strip()
    changes = objects(said(capsys, "diff", table, "before", now, "--json"))
    assert sorted((str(item["_op"]), item["id"]) for item in changes) == [("delete", 2), ("update", 1)]
    assert len(objects(said(capsys, "diff", table, "before", now, "--before", "--json"))) == 3
    said(capsys, "checkpoints", "drop", table, "before")
    assert said(capsys, "checkpoints", "list", table, "--json") == ""
    assert "no checkpoint" in said(capsys, "checkpoints", "drop", table, "before", status=1)
