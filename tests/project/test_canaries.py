"""Credentials of a table, tokens of its owners and of its page are in nothing that anybody is told; of commands see
`test_command_canaries.py`, of Spark `tests/spark/test_spark_canaries.py`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.canaries import CANARY, refuse_canaries

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
        [sys.executable, "-W", "always", str(CHILD)],
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
    refuse_canaries(told[kind], least=100)
