"""An object store that is far away: an S3 service on loopback, in a process of its own, that counts requests and answers
late.

Owns `Service`. The wait is before the request is looked at, and each request waits for itself: many at once wait
together, as they do on a network. What the service itself takes comes on top (a few milliseconds, one request after
the other), so that at 10 ms the figures say less than at 50 and 200.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any
from urllib.request import Request, urlopen

_BUCKET = "bucket"
_DEADLINE_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Service:
    """A service that runs, with a bucket."""

    endpoint: str
    _pipe: Connection

    @property
    def options(self) -> dict[str, str]:
        """The storage options of tables on it, for us and for Lance alike."""
        return {
            "aws_access_key_id": "nobody",
            "aws_secret_access_key": "nothing",
            "aws_region": "us-east-1",
            "aws_endpoint": self.endpoint,
            "allow_http": "true",
        }

    def uri(self, name: str) -> str:
        """The address of a table."""
        return f"s3://{_BUCKET}/{name}"

    def seen(self) -> Counter[str]:
        """All requests so far, by kind."""
        return Counter(self._ask(None))

    def answer_after(self, milliseconds: float) -> None:
        """Let every request from now on wait so long."""
        self._ask(milliseconds / 1000)

    def _ask(self, question: float | None) -> Any:
        self._pipe.send(question)
        if not self._pipe.poll(_DEADLINE_SECONDS):
            raise RuntimeError("the object store of the benchmarks does not answer")
        return self._pipe.recv()


@contextmanager
def running_service(milliseconds: float = 0) -> Iterator[Service]:
    """A service for as long as the block runs."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there,), daemon=True)
    process.start()
    try:
        if not here.poll(_DEADLINE_SECONDS):
            raise RuntimeError("the object store of the benchmarks does not start")
        service = Service(here.recv(), here)
        with urlopen(Request(f"{service.endpoint}/{_BUCKET}", method="PUT"), timeout=30):
            pass
        service.answer_after(milliseconds)
        yield service
    finally:
        process.terminate()
        process.join()


def _kind_of_request(environ: Mapping[str, Any]) -> str:
    method, query = environ["REQUEST_METHOD"], environ.get("QUERY_STRING", "")
    if method == "DELETE" or (method == "POST" and "delete" in query):
        return "delete"
    if method == "GET" and "list-type" in query:
        return "list"
    return "get" if method in ("GET", "HEAD") else "put"


def _serve(pipe: Connection) -> None:
    """The service; answers questions on the pipe: a number is a new wait, None asks for the counts."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    moto, turn, seen = DomainDispatcherApplication(create_backend_app), threading.Lock(), Counter[str]()
    wait_seconds = 0.0

    def counted(environ: Any, start_response: Any) -> list[bytes]:
        time.sleep(wait_seconds)
        with turn:  # moto shares a file position between requests for one object
            seen[_kind_of_request(environ)] += 1
            return [b"".join(moto(environ, start_response))]

    class Silent(MotoRequestHandler):
        def log(self, *_: object) -> None:
            pass

    server = make_server("127.0.0.1", 0, counted, threaded=True, request_handler=Silent)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    pipe.send(f"http://127.0.0.1:{server.server_port}")
    while True:
        question = pipe.recv()
        if question is not None:
            wait_seconds = question
        with turn:
            pipe.send(dict(seen))
