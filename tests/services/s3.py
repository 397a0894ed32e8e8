"""S3 for tests: moto's server as a process of its own, with one bucket."""

import json
import sys
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from .process import running

_BUCKET = "memwal-tests"
# One request at a time: moto shares a file position between requests for one object, so a read that overlaps its put
# could come back short, which S3 never does. The application of S3 alone: to find out at every request which service is meant
# takes longer than the request.
_SERVER = """
import json
import threading
from collections import Counter
from urllib.parse import parse_qs
from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

moto = create_backend_app("s3")
turn, counted = threading.Lock(), Counter()

def count(environ):
    # The table is the first part below the bucket, in the path or in the prefix of a listing.
    query = parse_qs(environ.get("QUERY_STRING", ""))
    lists = "list-type" in query
    place = query.get("prefix", [""])[0] if lists else environ["PATH_INFO"].lstrip("/").partition("/")[2]
    table, _, below = place.partition("/")
    counted[table, "LIST" if lists else environ["REQUEST_METHOD"], below] += 1

def one_at_a_time(environ, start_response):
    with turn:
        table = environ["PATH_INFO"].removeprefix("/memwal-requests/")
        if table != environ["PATH_INFO"]:
            found = [[method, below, number] for (name, method, below), number in counted.items() if name == table]
            start_response("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(found).encode()]
        count(environ)
        return [b"".join(moto(environ, start_response))]

server = make_server("127.0.0.1", 0, one_at_a_time, threaded=True, request_handler=MotoRequestHandler)
print(f"ready http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
"""


@contextmanager
def s3_service() -> Iterator[str]:
    """An S3 service that knows no bucket but `memwal-tests`; its address."""
    with running([sys.executable, "-c", _SERVER], r"ready (http://\S+)") as ready:
        endpoint = ready.group(1)
        request = urllib.request.Request(f"{endpoint}/{_BUCKET}", method="PUT")
        with urllib.request.urlopen(request, timeout=30):
            pass
        yield endpoint


def options_of(endpoint: str) -> tuple[str, dict[str, str]]:
    """A URI of the service to put tables under, and the storage options for it, for memwal and Lance alike."""
    options = {
        "aws_access_key_id": "memwal-tests",
        "aws_secret_access_key": "memwal-tests-secret",
        "aws_region": "us-east-1",
        "aws_endpoint": endpoint,
        "allow_http": "true",
    }
    return f"s3://{_BUCKET}", options


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    with s3_service() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def s3_location_options(s3_endpoint: str) -> tuple[str, dict[str, str]]:
    """A URI to put tables under, and the storage options for it."""
    return options_of(s3_endpoint)


@pytest.fixture
def s3_requests(s3_endpoint: str) -> Callable[[str], Counter[tuple[str, str]]]:
    """How many requests of each method and place the table at a URI has seen so far, Lance's own included."""

    def counted(uri: str) -> Counter[tuple[str, str]]:
        with urllib.request.urlopen(f"{s3_endpoint}/memwal-requests/{uri.rpartition('/')[2]}", timeout=30) as answer:
            return Counter({(method, below): number for method, below, number in json.load(answer)})

    return counted


@pytest.fixture
def s3_table(s3_location_options: tuple[str, dict[str, str]]) -> tuple[str, dict[str, str]]:
    """The URI of a table that nobody else uses, and its storage options."""
    prefix, options = s3_location_options
    return f"{prefix}/{uuid.uuid4().hex}", options
