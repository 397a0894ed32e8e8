"""No command prints, logs or serves a credential that it was given: every command has a case here, or the tests fail."""

import base64
import json
import logging
import re
import subprocess
import sys
import traceback
import urllib.request
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
import typer

import lance_memwal as mw
from lance_memwal.cli import app, main
from tests.kit.canaries import CANARY, CREDENTIALS, refuse_canaries
from tests.kit.cli_process import Staying

pytestmark = pytest.mark.xdist_group("s3")
WITHOUT_CREDENTIALS = {"demo", "bench"}  # they take no storage options
T, S = "{table}", "{started}"  # the first case of a command does its work, others fail
ENDING: dict[str, tuple[list[str], ...]] = {
    "create": (["{made}", "-c", "id:int64", "-p", "id"], [T, "-c", "id:int64", "--debug"]),
    "enable": (["{plain}"],),
    "put": ([T, "{file}"], [T, "{file}.none", "--debug"]),
    "update": ([T, "-w", "id = 1", "--set", "v='b'"], [T, "-w", "no such", "--set", "v=1", "--debug"]),
    "delete": ([T, "2"], [T, "x", "--debug"]),
    "scan": ([T], [T, "--filter", "no such", "--debug"]),
    "head": ([T],),
    "get": ([T, "1"], [T, "99", "--debug"]),
    "search": ([T, "--text", "a", "--column", "v"], [T, "--vector", "[1]", "--debug"]),
    "diff": ([T, S, "{snapshot}"], [T, S, "none", "--debug"]),
    "snapshot": ([T],),
    "changes": ([T, "--consumer", "mirror"], [T, "--start", "none", "--debug"]),
    "consumers": ([T], [T, "--drop", "none", "--debug"]),
    "check-store": (["{place}"],),
    "tables": (["{place}"],),
    "schema": ([T],),
    "shards": ([T], [T, "--json"]),
    "stats": ([T], [T, "--json"]),
    "top": ([T, "--once", "--every-seconds", "0.1"],),
    "manifest": ([T], [T, "--json"]),
    "wal list": ([T],),
    "wal show": ([T, "2"], [T, "9999", "--debug"]),
    "wal follow": ([T, "--from", "1", "--count", "2"],),
    "checkpoints create": ([T, "then"],),
    "checkpoints list": ([T],),
    "checkpoints drop": ([T, "then"], [T, "none", "--debug"]),
    "flush": ([T],),
    "compact": ([T],),
    "maintain": ([T],),
    "gc": ([T],),
    "verify": ([T],),
    "repair": ([T],),
}
STAYING = {"ui": ["--port", "0"], "exporter": ["--port", "0"]}


def commands() -> dict[str, Any]:
    """Every command by its whole name, from the parser."""
    found: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    groups = {name: getattr(command, "commands", None) for name, command in found.items()}
    return {
        f"{name} {part}".strip(): command
        for name, parts in groups.items()
        for part, command in (parts or {"": found[name]}).items()
    }


@dataclass(frozen=True)
class Place:
    """A table whose every credential is a canary, and what the commands need besides."""

    names: dict[str, str]
    given: list[str]

    def arguments(self, command: str, typed: list[str]) -> list[str]:
        return [*command.split(), *(text.format(**self.names) for text in typed), *self.given]


@pytest.fixture(scope="module")
def place(s3_location_options: tuple[str, dict[str, str]], tmp_path_factory: pytest.TempPathFactory) -> Place:
    prefix, options = s3_location_options
    named = {name: value for name, value in CREDENTIALS.items() if name.startswith("aws")}
    options, uri = options | named, f"{prefix}/commands"
    file = tmp_path_factory.mktemp("commands") / "rows.jsonl"
    file.write_text('{"id": 7, "v": "g"}\n')
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
    table = mw.create_table(f"{uri}/t", schema, primary_key="id", storage_options=options)
    started = str(table.snapshot())
    with table.writer(compaction=None) as writer:
        writer.put([{"id": n, "v": "a"} for n in range(5)])
        writer.flush()
        writer.put([{"id": 5, "v": "a"}])
    plain = pa.table({"id": pa.array([1], pa.int64()), "v": ["a"]})
    lance.write_dataset(plain, f"{uri}/plain", storage_options=options)
    names = {"place": uri, "table": f"{uri}/t", "made": f"{uri}/made", "plain": f"{uri}/plain", "file": str(file)}
    given = [text for name, value in options.items() for text in ("-o", f"{name}={value}")]
    return Place(names | {"started": started, "snapshot": str(table.snapshot())}, given)


@pytest.fixture
def told_by(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Callable[[list[str]], list[str]]:
    """All that a command says: output, log, warnings, and with --debug the errors with all that they came from."""

    def run(arguments: list[str]) -> list[str]:
        raised: list[str] = []
        caplog.clear()
        with caplog.at_level(logging.DEBUG), warnings.catch_warnings(record=True) as warned:
            try:
                main(arguments)
            except Exception as error:
                raised = ["".join(traceback.format_exception(error, chain=True)), repr(error), repr(vars(error))]
        out, err = capfd.readouterr()
        return [out, err, caplog.text, *raised, *(str(item.message) for item in warned)]

    return run


def test_every_command_that_takes_credentials_has_a_case() -> None:
    taking = {name for name, command in commands().items() if "storage_option" in {p.name for p in command.params}}
    assert set(commands()) - taking == WITHOUT_CREDENTIALS
    assert taking == ENDING.keys() | STAYING.keys(), "give the new command a case: what it prints is looked through"


@pytest.mark.parametrize("command", ENDING)
def test_no_command_prints_a_credential(place: Place, told_by: Callable[[list[str]], list[str]], command: str) -> None:
    told = [text for typed in ENDING[command] for text in told_by(place.arguments(command, typed))]
    refuse_canaries(told, least=10)


@pytest.mark.parametrize("command", [*ENDING, *STAYING])
def test_no_error_prints_a_credential(place: Place, told_by: Callable[[list[str]], list[str]], command: str) -> None:
    typed = ENDING[command][0] if command in ENDING else [T, *STAYING[command]]
    twice = ["-o", f"secret_access_key={CANARY}-other"]
    told = told_by([*place.arguments(command, typed), *twice, "--debug"])
    assert "given twice" in "".join(told)
    refuse_canaries(told)


def asked(place: str, token: str = "") -> str:
    request = urllib.request.Request(place, headers={"X-Memwal-Token": token})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return f"{answer.headers}{answer.read().decode()}"


@pytest.mark.parametrize("command", STAYING)
def test_no_credential_is_in_what_a_command_serves(place: Place, command: str) -> None:
    running = Staying(*place.arguments(command, [T, *STAYING[command]]), "--json")
    line = running.line()
    where, _, token = json.loads(line)["serves"].partition("#token=")
    paths = ("", "app.js", "api/table", "api/look", "api/timeline") if command == "ui" else ("",)
    told = [line, *(asked(where + path, token) for path in paths)]
    assert re.search("live_rows|lance_mem_wal_table_up", "".join(told))
    refuse_canaries([*told, running.end()], least=50)


# Credentials of a table, and the token of its page, are in nothing that anybody is told; of Spark see
# `tests/spark/test_spark_canaries.py`.

CHILD = Path(__file__).with_name("canary_child.py")
KINDS = ("reprs", "plans", "reports", "metrics", "errors", "pages", "objects", "traces", "logs")


@pytest.fixture(scope="module")
def canaries(s3_location_options: tuple[str, dict[str, str]]) -> tuple[str, dict[str, str]]:
    """A place whose every credential is a canary; the service asks for none in particular."""
    prefix, options = s3_location_options
    secrets = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
    return f"{prefix}/canaries", options | {name: f"{CANARY}-{name}" for name in secrets}


@pytest.fixture(scope="module")
def told(canaries: tuple[str, dict[str, str]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """All that a life of a table tells, by kind."""
    uri, options = canaries
    done = subprocess.run(
        [sys.executable, "-W", "always", str(CHILD)],
        input=json.dumps({"uri": uri, "options": options, "canary": CANARY}),
        cwd=tmp_path_factory.mktemp("canaries"),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    found: dict[str, list[str]] = json.loads(done.stdout)
    return {**found, "logs": [*found["logs"], done.stderr]}


@pytest.mark.parametrize("kind", KINDS)
def test_no_credential_is_in_what_is_told(told: dict[str, list[str]], kind: str) -> None:
    refuse_canaries(told[kind], least=100)


# A canary is seen however it is told: as it is, and in base64 behind any number of bytes, as Basic authentication has
# it.

AROUND = "a text that says something, and ends with "


@pytest.mark.parametrize("user", ["", "u", "us", "use"])
@pytest.mark.parametrize("rest", ["", "-", "-more"])
def test_a_canary_behind_a_user_in_base64_is_seen(user: str, rest: str) -> None:
    told = base64.b64encode(f"{user}:{CANARY}{rest}".encode()).decode()
    with pytest.raises(AssertionError):
        refuse_canaries([AROUND + told])


def test_a_canary_as_it_is_is_seen_and_a_text_without_one_passes() -> None:
    refuse_canaries([AROUND])
    with pytest.raises(AssertionError):
        refuse_canaries([f"{AROUND}{CANARY}"])
