"""A web server with four workers writes one table: no request fails, whichever worker it meets."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import lance_memwal as mw

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
REQUESTS = 60


@contextmanager
def served(uri: str, workers: int) -> Iterator[str]:
    """The example service under uvicorn; gives its address once it answers, and ends it as an operator does."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(128)
        command = [sys.executable, "-m", "uvicorn", "--app-dir", str(EXAMPLES), "fastapi_service:app"]
        server = subprocess.Popen(
            [*command, "--workers", str(workers), "--fd", str(listening.fileno()), "--log-level", "warning"],
            env={**os.environ, "EVENTS_TABLE": uri},
            pass_fds=[listening.fileno()],
        )
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    try:
        wait_for_answer(address, server)
        yield address
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) in (0, -signal.SIGTERM)
    finally:
        server.kill()
        server.wait()


def wait_for_answer(address: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 90
    while True:
        try:
            if httpx.get(f"{address}/events/0", timeout=5).status_code == 404:
                return
        except httpx.HTTPError:
            pass
        assert server.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)


def put(address: str, number: int) -> tuple[int, Any]:
    """One request over a connection of its own, so that the kernel chooses the worker."""
    answer = httpx.put(f"{address}/events", json={"id": number, "user": "u", "amount": 1.5}, timeout=60)
    return answer.status_code, answer.json() if answer.status_code == 200 else answer.text


@pytest.mark.timeout(240)
def test_sixty_requests_to_four_workers_have_no_errors(tmp_path: Path) -> None:
    uri = str(tmp_path / "events")
    with served(uri, 4) as address, ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(lambda number: put(address, number), range(1, REQUESTS + 1)))
        assert Counter(status for status, _ in answers) == {200: REQUESTS}, answers
        assert {told["written"] for _, told in answers} == {1}
        assert len({told["worker"] for _, told in answers}) > 1, "one worker answered all requests: nothing was shown"
        seen = list(clients.map(lambda n: httpx.get(f"{address}/events/{n}", timeout=60), range(1, REQUESTS + 1)))
        assert [answer.json()["id"] for answer in seen] == list(range(1, REQUESTS + 1))
    table = mw.open_table(uri)
    assert table.count_rows() == REQUESTS
    assert table.verify().ok
