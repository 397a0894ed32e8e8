"""The cloud store over the wire: what each answer of a service means, one request per call, and no secret told.

The service is a small HTTP server that answers as it is told, because no emulator fails on demand.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from obstore.store import AzureStore, S3Store

from lance_memwal.errors import InvalidInputError, MemWalError, ObjectExistsError, ObjectNotFoundError, UnavailableError
from lance_memwal.store.cloud_options import parse_target
from lance_memwal.store.location import Location, resolve
from lance_memwal.store.port import PutResult
from lance_memwal.testing.clocks import SkippingClock

_OPTIONS = {
    "aws_access_key_id": "AKIDSECRET",
    "aws_secret_access_key": "TOPSECRET",
    "aws_session_token": "TOKENSECRET",
    "aws_region": "us-east-1",
    "allow_http": "true",
    "timeout": "2s",
}
_OBJECT_HEADERS = {"ETag": '"1"', "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"}


class Answer:
    """One answer; `stores` lets the object appear although the answer says otherwise, `cut` ends it too early."""

    def __init__(self, status: int, body: str = "", *, stores: bool = False, cut: bool = False) -> None:
        self.status = status
        self.body = body.encode()
        self.stores = stores
        self.cut = cut


class Service:
    """An S3 of one bucket that gives the next planned answer, or the right one if none is planned."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.planned: list[Answer] = []
        self.requests: list[tuple[str, str]] = []
        self.headers: list[dict[str, str]] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                service.answer(self)

            do_PUT = do_GET = do_HEAD = do_DELETE = do_POST = answer  # noqa: N815 - http.server asks for these

            def log_message(self, *args: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def location(self, **options: str) -> Location:
        endpoint = f"http://127.0.0.1:{self.server.server_port}"
        return resolve("s3://bucket/table", {**_OPTIONS, "aws_endpoint": endpoint, **options}, clock=SkippingClock())

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        path = request.path.partition("?")[0]
        self.requests.append((request.command, request.path))
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        answer = self.planned.pop(0) if self.planned else self.right_answer(request.command, path, body)
        if answer.stores:
            self.objects.setdefault(path, body)
        request.send_response(answer.status)
        for name, value in _OBJECT_HEADERS.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(answer.body) + answer.cut))
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(answer.body)
        if answer.cut:
            request.close_connection = True

    def right_answer(self, command: str, path: str, body: bytes) -> Answer:
        if command == "PUT":
            return Answer(412 if path in self.objects else 200, stores=True)
        if path not in self.objects:
            return Answer(404, "<Error><Code>NoSuchKey</Code></Error>")
        return Answer(200, self.objects[path].decode())


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    yield service
    service.close()


def failure(service: Service, answer: Answer) -> MemWalError:
    """The error of a create-only put that gets `answer`, and of no further request."""
    service.planned = [answer]
    before = len(service.requests)
    with pytest.raises(MemWalError) as failed:
        service.location().store_once.put_new("wal/1", b"ours")
    assert len(service.requests) == before + 1, "the adapter must not retry by itself"
    return failed.value


@pytest.mark.parametrize("status", [412, 304])
def test_a_failed_precondition_means_that_the_object_exists(service: Service, status: int) -> None:
    assert isinstance(failure(service, Answer(status)), ObjectExistsError)


def test_a_create_only_put_is_one_conditional_request(service: Service) -> None:
    assert service.location().store_once.put_new("wal/1", b"ours") is PutResult.CREATED
    assert service.requests == [("PUT", "/bucket/table/wal/1")]
    assert service.headers[0]["if-none-match"] == "*"


def test_conditional_puts_cannot_be_switched_off(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    service.location(aws_conditional_put="disabled").store_once.put_new("wal/1", b"ours")
    assert service.headers[0]["if-none-match"] == "*"


@pytest.mark.parametrize(
    ("status", "code", "retryable", "ambiguous"),
    [
        (409, "ConditionalRequestConflict", True, False),
        (400, "RequestTimeout", True, False),
        (400, "InvalidRequest", False, False),
        (401, "InvalidToken", False, False),
        (403, "AccessDenied", False, False),
        (404, "NoSuchBucket", False, False),
        (301, "PermanentRedirect", False, False),
        (429, "SlowDown", True, False),
        (500, "InternalError", True, True),
        (501, "NotImplemented", False, True),
        (503, "SlowDown", True, True),
    ],
)
def test_what_a_refused_put_means(service: Service, status: int, code: str, retryable: bool, ambiguous: bool) -> None:
    error = failure(service, Answer(status, f"<Error><Code>{code}</Code></Error>"))
    assert isinstance(error, UnavailableError)
    assert (error.retryable, error.ambiguous) == (retryable, ambiguous)
    assert "wal/1" in str(error)


def test_an_unreachable_service_is_retryable_and_certainly_had_no_effect(service: Service) -> None:
    location = service.location()
    service.close()
    with pytest.raises(UnavailableError) as failed:
        location.store_once.put_new("wal/1", b"ours")
    assert failed.value.retryable
    assert not failed.value.ambiguous


def test_a_put_whose_answer_was_lost_is_recognised(service: Service) -> None:
    service.planned = [Answer(500, stores=True)]
    assert service.location().store.put_new("wal/1", b"ours") is PutResult.RECOGNISED
    assert [method for method, _ in service.requests] == ["PUT", "PUT", "GET"]


def test_a_conflict_with_a_request_in_flight_is_tried_again(service: Service) -> None:
    service.planned = [Answer(409, "<Error><Code>ConditionalRequestConflict</Code></Error>")]
    assert service.location().store.put_new("wal/1", b"ours") is PutResult.CREATED


def test_only_a_missing_key_is_absence(service: Service) -> None:
    store = service.location().store_once
    for read in (store.get, store.head):
        with pytest.raises(ObjectNotFoundError):
            read("wal/1")
    service.planned = [Answer(404), Answer(404, "<Error><Code>NoSuchBucket</Code></Error>")]
    with pytest.raises(UnavailableError):
        store.head("wal/1")
    for status, code in ((404, "NoSuchBucket"), (403, "AccessDenied"), (500, "InternalError")):
        for read in (store.get, lambda path: store.get_range(path, 0, 1), lambda path: store.get_tail(path, 1)):
            service.planned = [Answer(status, f"<Error><Code>{code}</Code></Error>")]
            with pytest.raises(UnavailableError):
                read("wal/1")
        for list_below in (store.list, store.list_names):
            service.planned = [Answer(status, f"<Error><Code>{code}</Code></Error>")]
            with pytest.raises(UnavailableError):
                list_below("wal")


def test_a_body_that_ends_too_early_is_a_failure_and_not_a_short_object(service: Service) -> None:
    service.planned = [Answer(200, "only a part", cut=True)]
    with pytest.raises(UnavailableError) as failed:
        service.location().store_once.get("wal/1")
    assert failed.value.retryable


def test_a_missing_object_is_deleted_with_success(service: Service) -> None:
    service.planned = [Answer(404, "<Error><Code>NoSuchKey</Code></Error>")]
    service.location().store_once.delete("wal/1")
    assert service.requests == [("DELETE", "/bucket/table/wal/1")]


def test_no_error_tells_what_the_service_said_or_what_we_sent(service: Service) -> None:
    body = (
        "<Error><Code>SignatureDoesNotMatch</Code><AWSAccessKeyId>AKIDSECRET</AWSAccessKeyId>"
        "<CanonicalRequest>x-amz-security-token:TOKENSECRET</CanonicalRequest></Error>"
    )
    errors = [failure(service, Answer(403, body)), failure(service, Answer(500, body))]
    service.planned = [Answer(503, body)]
    with pytest.raises(UnavailableError) as failed:
        service.location().store_once.list("wal")
    errors.append(failed.value)
    for error in errors:
        assert "code=SignatureDoesNotMatch" in str(error)
        told = "".join(traceback.format_exception(error))
        assert "SECRET" not in told
        assert "list-type" not in told
        assert error.__context__ is None


_READ_BY = {"s3": S3Store, "az": AzureStore}


@pytest.mark.parametrize(
    ("uri", "options", "config"),
    [
        ("s3://b/t", {"AWS_REGION": "r", "Aws_Endpoint_Url": "e"}, {"region": "r", "endpoint": "e"}),
        ("s3://b/t", {"region": "r", "endpoint": "e", "token": "t"}, {"region": "r", "endpoint": "e", "session_token": "t"}),
        ("s3://b--use1-az4--x-s3/t", {}, {"s3_express": "true"}),
        ("az://c/t", {"account_name": "a", "access_key": "aGk="}, {"account_name": "a", "account_key": "aGk="}),
        ("az://c/t", {"account_name": "a", "AZURE_STORAGE_SAS_TOKEN": "s=1"}, {"account_name": "a", "sas_key": "s=1"}),
        ("az://c/t", {"azure_storage_use_emulator": "true"}, {"use_emulator": "true"}),
        ("abfss://c@a.dfs.core.windows.net/t", {}, {"account_name": "a"}),
        ("abfss://c@a.dfs.core.windows.net/t", {"azure_storage_account_name": "b"}, {"account_name": "b"}),
    ],
)  # fmt: skip
def test_options_mean_what_they_mean_to_lance(uri: str, options: dict[str, str], config: dict[str, str]) -> None:
    options = {**options, "download_retry_count": "3", "client_max_retries": "9", "new_table_enable_v2": "true"}
    target = parse_target(uri, options)
    told = {name: value for name, value in target.config if name not in ("timeout", "connect_timeout")}
    read: dict[str, str] = dict(_READ_BY[target.scheme](target.bucket, config=told).config)
    ours = ("bucket", "container_name", "conditional_put", "disable_bulk_delete")
    assert {name: value for name, value in read.items() if name not in ours} == config


def test_google_options_mean_what_they_mean_to_lance() -> None:
    target = parse_target("gs://b/t", {"google_service_account": "/f", "google_storage_token": "t"})
    told = dict(target.config)
    assert (told["google_service_account"], told["bearer_token"]) == ("/f", "t")
    assert "google_storage_token" not in told


def test_an_option_that_nobody_knows_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="aws_regoin"):
        resolve("s3://bucket/table", {"aws_regoin": "us-east-1"})


def test_conditional_puts_stay_on_whatever_the_options_say() -> None:
    told = dict(parse_target("s3://b/t", {"AWS_Conditional_Put": "disabled", "disable_bulk_delete": "false"}).config)
    assert (told["conditional_put"], told["disable_bulk_delete"]) == ("etag", "true")
    assert "AWS_Conditional_Put" not in told


def test_options_of_the_http_client_replace_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    def client_options(**options: str) -> dict[str, str]:
        config = parse_target("s3://b/t", options).config
        return {name.lower(): value for name, value in config if name not in ("conditional_put", "disable_bulk_delete")}

    found = client_options(timeout="5s", ALLOW_HTTP="true", aws_allow_http="true")
    assert found == {"timeout": "5s", "allow_http": "true", "connect_timeout": "10s"}
    monkeypatch.setenv("AWS_TIMEOUT", "7s")
    assert client_options() == {"connect_timeout": "10s"}


def test_what_the_options_do_not_say_comes_from_the_environment(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it, and what the HTTP client needs as well."""
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_ENDPOINT", f"http://127.0.0.1:{service.server.server_port}")
    for name in ("aws_access_key_id", "aws_secret_access_key", "aws_region"):
        monkeypatch.setenv(name.upper(), _OPTIONS[name])
    store = resolve("s3://bucket/of-the-environment", clock=SkippingClock()).store
    assert store.put_new("a", b"1") is PutResult.CREATED
    assert service.requests == [("PUT", "/bucket/of-the-environment/a")]


def test_an_option_with_two_values_is_refused() -> None:
    with pytest.raises(ValueError, match="given twice"):
        parse_target("s3://b/t", {"region": "one", "aws_region": "two"})


@pytest.mark.parametrize("options", [{"google_skip_signature": "true"}, {"google_storage_token": "token"}])
def test_a_google_location_opens_without_a_request(options: dict[str, str]) -> None:
    location = resolve("gs://bucket/table", options)
    assert location.key == "gs://bucket/table"
    assert location.child_uri("_mem_wal/x") == "gs://bucket/table/_mem_wal/x"


_FORKED = """
import os, sys
from lance_memwal.errors import UnavailableError
from lance_memwal.store.location import resolve
options = dict(pair.split("=", 1) for pair in sys.argv[2:])
resolve(sys.argv[1], options).store.put_new("a", b"1")
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
try:
    resolve(sys.argv[1], options).store.get("a")
except UnavailableError as error:
    print(error, error.retryable, flush=True)
os._exit(0)
"""


def test_a_forked_child_is_told_at_once_instead_of_hanging(
    s3_table: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    uri, options = s3_table
    command = [sys.executable, "-c", _FORKED, uri, *(f"{name}={value}" for name, value in options.items())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path)
    assert "forked" in done.stdout
    assert "spawn" in done.stdout
    assert done.stdout.rstrip().endswith("False")
