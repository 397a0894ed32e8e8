"""`memwal changes` and `memwal consumers`: what they print, and where to go on."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lance_memwal as mw
from lance_memwal.cli import main
from tests.kit.cli_process import COMMAND

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
    net = rows(run, "changes", table, "--net", "--columns", "id")
    assert sorted((row["id"], row["_op"]) for row in net) == [(0, "u"), (1, "u"), (2, "u"), (3, "d"), (4, "u")]
    assert "name1" in run("changes", table, "--start", "snapshot", "--where", "id < 2")[0]
    assert "no end" in run("changes", table, "--follow", "--until", "now", status=1)[1]
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
