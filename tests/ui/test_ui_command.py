"""`memwal ui`: the command that serves the page."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

import lance_memwal as mw
from lance_memwal.cli import main
from tests.kit.pages import rows


@pytest.mark.timeout(60)
def test_the_command_serves_the_page_until_it_is_stopped(tmp_path: Path) -> None:
    uri = mw.create_table(str(tmp_path / "t"), rows(1, 2), primary_key="id").uri
    command = [sys.executable, "-m", "lance_memwal", "ui", uri, "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            place, _, token = json.loads(process.stdout.readline())["serves"].partition("#token=")
            assert place.startswith("http://127.0.0.1:")
            assert len(token) == 32

            def ask(path: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
                asked = urllib.request.Request(place.rstrip("/") + path, headers=dict(headers))
                try:
                    with urllib.request.urlopen(asked, timeout=30) as answer:
                        assert answer.headers["server"] is None
                        return answer.status, answer.read()
                except urllib.error.HTTPError as error:
                    return error.code, error.read()

            assert b"app.js" in ask("/", {})[1]
            assert ask("/api/look", {})[0] == 401
            assert ask("/api/look", {"X-Memwal-Token": token, "Host": "evil.example"})[0] == 421
            status, body = ask("/api/look", {"X-Memwal-Token": token})
            assert (status, json.loads(body)["stats"]["live_rows"]) == (200, 2)
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr is not None
        assert process.stderr.read() == ""


@pytest.mark.timeout(60)
def test_a_query_that_is_open_when_it_is_stopped_is_given_up(tmp_path: Path) -> None:
    uri = mw.create_table(str(tmp_path / "t"), rows(1, 2), primary_key="id").uri
    command = [sys.executable, "-m", "lance_memwal", "ui", uri, "--port", "0", "--json"]
    endless = {"kind": "sql", "sql": "select sum(value) from generate_series(1, 1000000000000)"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        place, _, token = json.loads(process.stdout.readline())["serves"].partition("#token=")
        with (
            httpx.Client(base_url=place, headers={"x-memwal-token": token}, timeout=30) as page,
            ThreadPoolExecutor(1) as one,
        ):
            asked = one.submit(page.post, "/api/query", json=endless)
            time.sleep(1.0)  # it runs for ever
            process.send_signal(signal.SIGINT)
            assert (asked.result().status_code, asked.result().json()["error"]["text"]) == (
                499,
                "the query was cancelled",
            )
        assert process.wait(30) == 130
        assert process.stderr.read() == ""


def test_what_is_missing_or_taken_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["ui", str(tmp_path / "nothing")]) == 1
    assert "there is no table" in capsys.readouterr().err
    uri = mw.create_table(str(tmp_path / "t"), rows(1), primary_key="id").uri
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["ui", uri, "--port", str(taken.getsockname()[1])]) == 1
    assert "name another address or port" in capsys.readouterr().err
    assert main(["ui", uri, "--host", "x" * 70]) == 1  # no name of DNS is so long
    assert "name another address or port" in capsys.readouterr().err
    for every in ("0.0.0.0", "::", "", "0", "0x0", "::0", "0:0::0", "::ffff:0.0.0.0"):
        assert main(["ui", uri, "--host", every]) == 1
        assert "name the one address" in capsys.readouterr().err, every
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["ui", uri]) == 1
    assert "pip install 'lance-memwal[ui]'" in capsys.readouterr().err


def test_help_says_what_it_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ui", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "Show a table in a web page" in told
    assert "--every-seconds" in told
