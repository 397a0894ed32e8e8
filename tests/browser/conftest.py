"""A headless Chromium of this machine, a page in it, and the server that it shows."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import uvicorn
from playwright.sync_api import Browser, Page, sync_playwright

import lance_memwal as mw
from lance_memwal.ui.app import make_app
from lance_memwal.ui.gate import bind, hosts_of
from lance_memwal.ui.running import link_of
from tests.kit.pages import TOKEN

_NAMES = ("chromium", "chromium-browser", "google-chrome")
Show = Callable[[mw.Table], AbstractContextManager[str]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--screenshots", help="keep the pictures of the page in this directory")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    found = next((path for path in map(shutil.which, _NAMES) if path), None)
    assert found, f"no Chromium on this machine: install one of {', '.join(_NAMES)}"
    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=[*root, "--disable-gpu"])
        yield browser
        browser.close()


class Watched:
    """A page, and everything that went wrong in it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.problems: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda said: self.problems.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("dialog", lambda dialog: self.problems.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: self.asked.append(request.url))


@pytest.fixture
def watched(browser: Browser) -> Iterator[Watched]:
    """A page that must have nothing to complain about, and asks nobody but its own server."""
    context = browser.new_context(
        viewport={"width": 1280, "height": 900}, color_scheme="light", reduced_motion="reduce"
    )
    context.set_default_timeout(20_000)
    found = Watched(context.new_page())
    yield found
    context.close()
    assert found.problems == []
    assert [url for url in found.asked if not url.startswith("http://127.0.0.1:")] == []


@contextmanager
def serving(table: mw.Table) -> Iterator[str]:
    """The link to the page of a table."""
    with bind("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        app = make_app(table, hosts=hosts_of("127.0.0.1", port), token=TOKEN, every_seconds=0.4)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on", ws="none"))
        listening.listen()
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            yield link_of("127.0.0.1", port, TOKEN)
        finally:
            server.should_exit = True
            thread.join(20)


@pytest.fixture
def show(watched: Watched) -> Show:
    """Serves the page of a table; the page is left before its server ends."""

    @contextmanager
    def shown(table: mw.Table) -> Iterator[str]:
        with serving(table) as link:
            yield link
            watched.page.goto("about:blank")

    return shown


@pytest.fixture
def show_until_it_ends() -> Show:
    """Serves the page of a table, and leaves the page alone when it ends."""
    return serving


@pytest.fixture
def pictures(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where pictures go: a directory that was named, else one that goes away."""
    named = request.config.getoption("--screenshots")
    place = Path(named) if named else tmp_path
    place.mkdir(parents=True, exist_ok=True)
    return place
