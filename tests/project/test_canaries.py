"""Credentials of a table, tokens of its owners and of its page are in nothing that anybody is told."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.cli_process import run

CANARY = "CaNaRy7f3a"
CHILD = Path(__file__).with_name("canary_child.py")
KINDS = ("reprs", "plans", "reports", "metrics", "errors", "pages", "objects", "traces", "logs")
pytestmark = pytest.mark.xdist_group("s3")


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
        [sys.executable, "-W", "ignore", str(CHILD)],
        input=json.dumps({"uri": uri, "options": options, "canary": CANARY}),
        env=os.environ | {"LANCE_MEMWAL_TOKEN": f"{CANARY}-token-of-owners"},
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
    assert sum(map(len, told[kind])) > 100, "a kind that says nothing hides nothing"
    spellings = [CANARY, base64.b64encode(CANARY.encode()).decode()[:10]]
    leaks = [text for text in told[kind] if any(word in text for word in spellings)]
    assert not leaks, leaks[0][max(0, leaks[0].find(CANARY) - 300) :][:700]


@pytest.mark.parametrize("command", [["stats"], ["verify"], ["scan", "--debug", "--filter", "no such"]])
def test_no_credential_is_in_what_a_command_prints(
    told: dict[str, list[str]], canaries: tuple[str, dict[str, str]], command: list[str]
) -> None:
    uri, options = canaries
    given = [text for name, value in options.items() for text in ("-o", f"{name}={value}")]
    done = run(command[0], uri, *command[1:], *given, status=1 if "--filter" in command else 0)
    assert CANARY not in done.stdout + done.stderr
