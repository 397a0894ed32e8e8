"""`memwal changes`, `consumers`, `checkpoints`, `diff` and blobs on the command line."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import lance_memwal as mw
from lance_memwal.cli import main
from tests.kit.blobs import SCHEMA as BLOBS
from tests.kit.blobs import blob_rows
from tests.kit.cli_process import COMMAND, answer
from tests.kit.cli_process import rows as json_rows
from tests.kit.cli_process import run as run_command

Run = Callable[..., tuple[str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs one command in this process: the start of a process costs more than all of these commands."""

    def call(*arguments: object, status: int = 0) -> tuple[str, str]:
        assert main([str(argument) for argument in arguments]) == status
        found = capsys.readouterr()
        return found.out, found.err

    return call


def rows(run: Run, *arguments: object) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(*arguments, "--json")[0].splitlines()]


def cursor_of(text: str) -> str:
    found = re.search(r"--start '([^']+)'", text.replace("\n", ""))
    assert found is not None
    return found.group(1)


def test_changes_prints_every_change_and_where_to_go_on(table: Path, run: Run) -> None:
    opened = mw.open_table(str(table))
    first = rows(run, "changes", table)
    assert [(row["_op"], row["id"], row["_position"]) for row in first] == [("u", n, 1) for n in range(5)]
    cursor = cursor_of(run("changes", table, "--json")[1])
    with opened.writer() as writer:
        writer.delete([3])
    assert [(row["_op"], row["id"]) for row in rows(run, "changes", table, "--start", cursor)] == [("d", 3)]
    assert [row["_op"] for row in rows(run, "changes", table, "--start", cursor, "--before")] == ["delete"]
    assert "name1" in run("changes", table, "--start", "snapshot", "--where", "id < 2")[0]
    assert "--until" in run("changes", table, "--follow", "--until", "now", status=1)[1]
    assert "earliest" in run("changes", table, "--start", "nowhere", status=1)[1]


def test_changes_follow_prints_what_comes(table: Path) -> None:
    command = [*COMMAND, "changes", str(table), "--follow", "--json", "--start", "latest", "--count", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        with mw.open_table(str(table)).writer() as writer:
            number = 100
            while process.poll() is None:  # it sees those that come after it has started
                writer.put({"id": [number], "name": ["x"], "vec": [[0, 0]]})
                number += 1
        found = [json.loads(line) for line in process.stdout]
    assert process.returncode == 0
    assert len(found) >= 2
    assert all(row["_op"] == "u" and row["id"] >= 100 for row in found)


def test_a_consumer_keeps_its_place_and_can_be_listed_and_dropped(table: Path, run: Run) -> None:
    assert len(rows(run, "changes", table, "--consumer", "sync")) == 5
    assert rows(run, "changes", table, "--consumer", "sync") == []
    (found,) = rows(run, "consumers", table)
    assert (found["name"], found["state"], found["lag_entries"]) == ("sync", "active", 0)
    assert "sync" in run("consumers", table)[0]
    assert "sync is 0 log entries behind" in run("stats", table)[1]
    run("consumers", table, "--drop", "sync")
    assert rows(run, "consumers", table) == []
    assert "no consumer" in run("consumers", table, "--drop", "sync", status=1)[1]


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


def test_blobs_are_put_from_files_and_shown_by_their_size(tmp_path: Path) -> None:
    uri, data = tmp_path / "t", tmp_path / "a.parquet"
    mw.create_table(str(uri), BLOBS, writer_defaults={"fsync": False})
    image = bytes(range(256)) * 5000
    pq.write_table(blob_rows({1: image, 2: None}), data)
    assert answer("put", uri, data)["rows"] == 2
    assert sorted((row["id"], row["image"]) for row in json_rows("scan", uri)) == [
        (1, {"position": None, "size": len(image)}),
        (2, None),
    ]
    assert answer("get", uri, 1)["image"]["size"] == len(image)
    assert str(len(image)) in run_command("get", uri, 1).stdout
    assert len(run_command("wal", "show", uri, 1).stdout) < 4000
    asked = [*COMMAND, "get", str(uri), "1", "--blob", "image"]
    assert subprocess.run(asked, capture_output=True, check=True).stdout == image
    refused = run_command("get", uri, 2, "--blob", "image", status=1)
    assert "null" in refused.stderr
    assert json.loads(run_command("scan", uri, "--count", "--json").stdout) == {"rows": 2}
