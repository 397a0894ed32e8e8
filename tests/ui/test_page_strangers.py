"""Who is refused by the page: other sites, names and users, and whoever wants to change something; and the command that
serves it.
"""

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path
from typing import Any

import httpx
import pytest

import lance_memwal as mw
from lance_memwal.cli import main
from lance_memwal.store.location import resolve
from lance_memwal.ui.app import make_app
from lance_memwal.ui.gate import HEADERS, MAX_BODY_BYTES, hosts_of, is_loopback
from lance_memwal.ui.running import link_of
from tests.kit.pages import HOST, TOKEN, Page, page_of, rows

QUERY = {"kind": "scan"}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    place = tmp_path_factory.mktemp("strangers") / "t"
    return page_of(mw.create_table(str(place), rows(1), primary_key="id"), every_seconds=60.0)


@pytest.mark.parametrize("host", ["evil.example:8470", "127.0.0.1", "127.0.0.1:80", "127.0.0.1:8470.evil.example", ""])
@pytest.mark.parametrize("path", ["/", "/app.js", "/api/look"])
def test_a_name_that_only_leads_here_is_refused(page: Page, host: str, path: str) -> None:
    assert page.problem("GET", path, headers={"host": host})[0] == 421


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://127.0.0.1:8470", f"http://{HOST}.evil.example"]
)
def test_other_sites_are_refused(page: Page, origin: str) -> None:
    for method, path in (("GET", "/"), ("GET", "/api/look"), ("POST", "/api/query"), ("OPTIONS", "/api/query")):
        assert page.problem(method, path, headers={"origin": origin}, json=QUERY)[0] == 403
    answer = page.ask("GET", "/api/look", headers={"origin": f"http://{HOST}"})
    assert answer.status_code == 200
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_data_is_for_the_page_alone_even_with_a_token_while_the_page_may_be_linked_to(page: Page) -> None:
    other = {"sec-fetch-site": "cross-site"}
    assert page.problem("GET", "/api/look", headers=other)[0] == 403
    assert page.ask("GET", "/", headers=other).status_code == 200


@pytest.mark.parametrize("token", ["", "wrong", TOKEN.upper(), TOKEN + "0"])
def test_data_needs_the_token(page: Page, token: str) -> None:
    given = {"x-memwal-token": token}
    for path in ("/api/look", "/api/table", "/api/log", "/api/nothing"):
        answer = page.ask("GET", path, headers={**given, "cookie": f"token={TOKEN}", "authorization": TOKEN})
        assert answer.status_code == 401
    assert page.ask("POST", "/api/query", headers=given, json=QUERY).status_code == 401
    assert page.ask("GET", "/", headers=given).status_code == 200  # the page holds no data


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "POST", "OPTIONS", "TRACE", "MERGE"])
def test_nothing_can_be_changed(page: Page, method: str) -> None:
    for path in ("/", "/api/look", "/api/table"):
        assert page.problem(method, path)[0] == 405


def test_queries_are_small_json(page: Page) -> None:
    assert page.problem("POST", "/api/query", content=b"kind=scan", headers={"content-type": "text/plain"})[0] == 415
    large = json.dumps({"kind": "sql", "sql": "x" * MAX_BODY_BYTES})
    assert page.problem("POST", "/api/query", content=large, headers={"content-type": "application/json"})[0] == 413

    async def chunks() -> Any:
        yield b"{}"

    kind = {"content-type": "application/json"}
    assert page.problem("POST", "/api/query", content=chunks(), headers=kind)[0] == 411
    for body in (b"[]", b"{", b"\xff", b"[" * 5000):
        assert page.problem("POST", "/api/query", content=body, headers=kind)[0] == 400


def test_every_answer_forbids_what_is_not_ours(page: Page) -> None:
    answers = [
        page.ask("GET", "/"),
        page.ask("GET", "/style.css"),
        page.ask("GET", "/api/look"),
        page.ask("GET", "/api/look", headers={"host": "evil.example"}),
        page.ask("GET", "/nothing"),
        page.ask("POST", "/api/query", json={"kind": "nothing"}),
    ]
    for answer in answers:
        for name, value in HEADERS.items():
            assert answer.headers[name] == value
        assert "set-cookie" not in answer.headers
        assert "server" not in answer.headers
    policy = HEADERS["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy


@pytest.mark.parametrize(
    "path", ["/../pyproject.toml", "/%2e%2e/app.py", "/page/index.html", "/app.py", "//etc/passwd"]
)
def test_nothing_but_the_page_is_served_from_disk(page: Page, path: str) -> None:
    assert page.ask("GET", path).status_code == 404


def test_websockets_are_not_spoken(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), rows(1), primary_key="id")
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    app = make_app(table, hosts=[HOST], token=TOKEN)
    asyncio.run(app({"type": "websocket", "path": "/", "headers": []}, receive, send))
    assert sent == []


def test_no_answer_holds_credentials(tmp_path: Path) -> None:
    secrets = {"aws_secret_access_key": "SeCrEt-1", "aws_session_token": "SeCrEt-2"}
    place = resolve(str(tmp_path / "t"), secrets)
    table = mw.create_table(place, rows(1), primary_key="id")
    with table.writer(fsync=False) as writer:
        writer.put(rows(2))
    page, shard = page_of(table), table.shards()[0].shard_id
    asked = [
        "/",
        "/api/table",
        "/api/look",
        "/api/timeline",
        f"/api/log?shard={shard}",
        f"/api/manifests?shard={shard}",
    ]
    texts = [page.ask("GET", path).text for path in asked]
    texts += [page.ask("POST", "/api/query", json=q).text for q in (QUERY, {"kind": "sql", "sql": "select * from u"})]
    assert not [text for text in texts if "SeCrEt" in text or TOKEN in text]


def test_loopback_is_what_only_this_machine_reaches() -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "127.9.9.9")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "10.0.0.1", "::", "example.org")] == [False] * 4
    assert "localhost:1" in hosts_of("127.0.0.1", 1)
    assert hosts_of("10.0.0.1", 1) == ["10.0.0.1:1"]
    assert hosts_of("10.0.0.1", 80) == ["10.0.0.1:80", "10.0.0.1"]  # browsers leave the port of HTTP out
    assert link_of("::1", 5, "abc") == "http://[::1]:5/#token=abc"


def test_the_page_brings_everything_and_makes_no_markup_of_data() -> None:
    files = {
        item.name: item.read_text(encoding="utf-8")
        for item in resources.files("lance_memwal.ui").joinpath("page").iterdir()
    }
    assert {"index.html", "style.css", "app.js"} <= set(files)
    for name, text in files.items():
        outside = [link for link in re.findall(r"https?://[^\s\"'`<]+", text) if "www.w3.org/2000/svg" not in link]
        assert outside == [], name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            name
        )
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=", files["index.html"])


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
