"""Locations, and the cloud store over the wire: one key per table, one request per call, what each answer means, no secrets.

The service is a small HTTP server that answers as it is told, because no emulator fails on demand.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from obstore.store import AzureStore, S3Store

from lance_memwal.clock import SystemClock
from lance_memwal.errors import InvalidInputError, MemWalError, ObjectExistsError, ObjectNotFoundError, UnavailableError
from lance_memwal.store import memory
from lance_memwal.store.cloud import parse_target
from lance_memwal.store.location import Location, resolve
from lance_memwal.store.metering import Recorder
from lance_memwal.store.port import PutResult
from lance_memwal.store.retry import RetryPolicy
from lance_memwal.testing import FaultScript
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


def test_a_create_only_put_is_one_request_and_always_conditional(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert service.location().store_once.put_new("wal/1", b"ours") is PutResult.CREATED
    assert service.requests == [("PUT", "/bucket/table/wal/1")]
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    service.location(aws_conditional_put="disabled").store_once.put_new("wal/2", b"ours")
    assert [headers["if-none-match"] for headers in service.headers] == ["*", "*"]


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


@pytest.mark.parametrize(
    ("answer", "result", "methods"),
    [
        (Answer(500, stores=True), PutResult.RECOGNISED, ["PUT", "PUT", "GET"]),
        (Answer(409, "<Error><Code>ConditionalRequestConflict</Code></Error>"), PutResult.CREATED, ["PUT", "PUT"]),
    ],
    ids=["lost answer", "request in flight"],
)
def test_put_is_retried_and_recognised(service: Service, answer: Answer, result: PutResult, methods: list[str]) -> None:
    service.planned = [answer]
    assert service.location().store.put_new("wal/1", b"ours") is result
    assert [method for method, _ in service.requests] == methods


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


def test_options_are_renamed_and_conditional_puts_stay_on() -> None:
    told = dict(parse_target("gs://b/t", {"google_service_account": "/f", "google_storage_token": "t"}).config)
    assert (told["google_service_account"], told["bearer_token"]) == ("/f", "t")
    assert "google_storage_token" not in told
    told = dict(parse_target("s3://b/t", {"AWS_Conditional_Put": "disabled", "disable_bulk_delete": "false"}).config)
    assert (told["conditional_put"], told["disable_bulk_delete"]) == ("etag", "true")
    assert "AWS_Conditional_Put" not in told


def test_an_unknown_option_or_one_with_two_values_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="aws_regoin"):
        resolve("s3://bucket/table", {"aws_regoin": "us-east-1"})
    with pytest.raises(ValueError, match="given twice"):
        parse_target("s3://b/t", {"region": "one", "aws_region": "two"})


def test_options_of_the_http_client_replace_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    def client_options(**options: str) -> dict[str, str]:
        config = parse_target("s3://b/t", options).config
        return {name.lower(): value for name, value in config if name not in ("conditional_put", "disable_bulk_delete")}

    found = client_options(timeout="5s", ALLOW_HTTP="true", aws_allow_http="true")
    assert found == {"timeout": "5s", "allow_http": "true", "connect_timeout": "10s"}
    monkeypatch.setenv("AWS_TIMEOUT", "7s")
    assert client_options() == {"connect_timeout": "10s"}


def test_missing_options_come_from_the_environment(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it, and what the HTTP client needs as well."""
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_ENDPOINT", f"http://127.0.0.1:{service.server.server_port}")
    for name in ("aws_access_key_id", "aws_secret_access_key", "aws_region"):
        monkeypatch.setenv(name.upper(), _OPTIONS[name])
    store = resolve("s3://bucket/of-the-environment", clock=SkippingClock()).store
    assert store.put_new("a", b"1") is PutResult.CREATED
    assert service.requests == [("PUT", "/bucket/of-the-environment/a")]


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


def test_forked_child_raises_at_once(s3_table: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    uri, options = s3_table
    command = [sys.executable, "-c", _FORKED, uri, *(f"{name}={value}" for name, value in options.items())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path)
    assert "forked" in done.stdout
    assert "spawn" in done.stdout
    assert done.stdout.rstrip().endswith("False")


_SECRETS = {
    "aws_access_key_id": "AKIDSECRET",
    "aws_secret_access_key": "TOPSECRET",
    "aws_session_token": "TOKENSECRET",
    "aws_region": "us-east-1",
}


def test_every_spelling_of_a_local_table_has_the_same_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "my table"
    table.mkdir()
    (tmp_path / "link").symlink_to(table)
    monkeypatch.chdir(tmp_path)
    spellings = [
        table,
        str(table),
        f"{table}/",
        "my table",
        "./x/../my table",
        table.as_uri(),
        f"file://localhost{tmp_path}/my%20table",
        f"FILE://{tmp_path}/my%20table",
        f"file:{tmp_path}/my%20table",
        tmp_path / "link",
    ]
    locations = [resolve(spelling) for spelling in spellings]
    assert {location.key for location in locations} == {str(table)}
    assert {location.dataset_uri for location in locations} == {str(table)}
    assert {id(location.store) for location in locations} == {id(locations[0].store)}


@pytest.mark.parametrize("name", ["plain", "with space", "question?mark", "hash#tag", "percent%20sign", "colon:x"])
def test_plain_paths_are_literal_for_us_and_for_lance(tmp_path: Path, name: str) -> None:
    location = resolve(tmp_path / name)
    lance.write_dataset(pa.table({"a": [1]}), location.dataset_uri)
    lance.write_dataset(pa.table({"a": [1]}), location.child_uri("_mem_wal/x"))
    assert os.listdir(tmp_path) == [name]
    assert "_versions" in location.store.list_names("")
    assert "_versions" in location.store.list_names("_mem_wal/x")


def test_child_uris_keep_the_query_part_behind_the_path() -> None:
    location = resolve("s3://bucket/table/?ddbTableName=locks", _SECRETS)
    assert location.child_uri("_mem_wal/s/g_gen_1") == "s3://bucket/table/_mem_wal/s/g_gen_1?ddbTableName=locks"
    assert resolve("s3://bucket", _SECRETS).child_uri("x") == "s3://bucket/x"
    assert resolve("s3://bucket/a%20b", _SECRETS).child_uri("c d") == "s3://bucket/a%20b/c%20d"


@pytest.mark.parametrize("path", ["", "/x", "../x", "a/../../x", "a//b", "a/"])
def test_a_child_uri_cannot_lead_out_of_the_table(tmp_path: Path, path: str) -> None:
    for location in (resolve(tmp_path), resolve("s3://bucket/table", _SECRETS)):
        with pytest.raises(InvalidInputError):
            location.child_uri(path)


def test_cloud_keys_tell_places_apart_and_spellings_not() -> None:
    def key(uri: str, **options: str) -> str:
        return resolve(uri, {**_SECRETS, **options}).key

    assert key("s3://bucket/table") == key("s3://bucket/table/") == key("S3://bucket/table?x=1")
    assert key("s3://bucket/table") != key("s3://bucket/table", aws_endpoint="https://elsewhere.example:9000")
    azure = {"azure_storage_account_name": "acct", "azure_storage_account_key": "c2VjcmV0"}
    one = resolve("az://container/table", azure)
    other = resolve("abfss://container@acct.dfs.core.windows.net/table", {"account_key": "c2VjcmV0"})
    assert one.key == other.key
    assert one.key != resolve("az://container/table", {**azure, "azure_storage_account_name": "acct2"}).key


def test_no_secret_is_in_the_words_of_a_location() -> None:
    options = {**_SECRETS, "aws_endpoint": "https://user:PASSWORDSECRET@host.example:9000"}
    location = resolve("s3://bucket/table?sig=SIGSECRET", options)
    words = [repr(location), str(location), location.describe(), location.key, repr(location.store)]
    words += [repr(location.store_once), f"{location!r}"]
    for text in words:
        assert "SECRET" not in text
        assert "s3://bucket/table" in text
    assert location.storage_options == options


def test_options_that_do_not_fit_are_refused_without_being_shown() -> None:
    options = {"azure_storage_account_name": "acct", "azure_storage_account_key": "!!!KEYSECRET"}
    with pytest.raises(InvalidInputError, match="storage options do not fit az://") as refused:
        resolve("az://container/table", options)
    chain = [refused.value, refused.value.__cause__, refused.value.__context__]
    assert not any("SECRET" in str(error) for error in chain)


@pytest.mark.parametrize("uri", ["ftp://host/table", "s3a://bucket/table", "http://host/x", "foo+bar://x/y"])
def test_an_unknown_scheme_is_answered_with_the_known_ones(uri: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        resolve(uri)
    for known in ("file://", "memory://", "s3://", "gs://", "az://", "abfss://"):
        assert known in str(refused.value)


_NO_TABLE = ["", "nul\0", "s3://", "s3:///table", "s3://bucket/../x", "s3://bucket/a//b", "s3://bucket/a#b"]
_NO_TABLE += ["s3://user:pw@bucket/t", "memory://", "memory://x/../y", "memory://x?y", "file://host/t", "file:relative"]


@pytest.mark.parametrize("uri", [None, 5, b"path", *_NO_TABLE], ids=repr)
def test_a_uri_that_names_no_table_is_refused(uri: Any) -> None:
    with pytest.raises(
        InvalidInputError, match="needs a URI or a path" if not isinstance(uri, str) or not uri else None
    ):
        resolve(uri, _SECRETS)


def test_a_store_is_shared_until_somebody_asks_for_its_own(tmp_path: Path) -> None:
    shared = resolve(tmp_path)
    assert resolve(str(tmp_path)) is shared
    assert resolve(tmp_path, {"x": "1"}) is not shared
    for own in (
        resolve(tmp_path, metrics=Recorder()),
        resolve(tmp_path, policy=RetryPolicy()),
        resolve(tmp_path, clock=SystemClock()),
        resolve(tmp_path, wrap=FaultScript().wrap),
    ):
        assert own is not shared
        assert own.store is not shared.store
        assert own.key == shared.key


def test_tables_in_one_bucket_share_a_client() -> None:
    one = resolve("s3://bucket/one", _SECRETS, metrics=Recorder())
    two = resolve("s3://bucket/two", dict(reversed(_SECRETS.items())), metrics=Recorder())
    clients = {id(location.store_once.inner._client) for location in (one, two)}  # type: ignore[attr-defined]
    assert len(clients) == 1


def test_metrics_are_those_that_were_given(tmp_path: Path) -> None:
    metrics = Recorder()
    location = resolve(tmp_path, metrics=metrics)
    location.store.put_new("a", b"12")
    location.store_once.get("a")
    assert location.metrics is metrics
    assert sorted(metrics.snapshot()) == ["get", "put_new"]


def test_a_location_is_a_value_that_nobody_changes(tmp_path: Path) -> None:
    location = resolve(tmp_path, {"key": "value"})
    with pytest.raises(AttributeError):
        location.uri = "elsewhere"  # type: ignore[misc]
    assert not hasattr(location, "__dict__")
    assert (location.is_local, location.root_path) == (True, str(tmp_path))
    assert isinstance(location, Location)


def test_memory_tables_live_under_one_name_and_lance_reads_them() -> None:
    one, two = resolve("memory://location-test/a"), resolve("memory://location-test/b")
    assert one.key == "memory://location-test/a"
    lance.write_dataset(pa.table({"a": [1, 2]}), one.dataset_uri)
    lance.write_dataset(pa.table({"a": [3]}), one.child_uri("_mem_wal/x"))
    assert lance.dataset(one.child_uri("_mem_wal/x")).count_rows() == 1
    assert "_versions" in one.store.list_names("")
    assert two.store.list("") == []
    memory.reset("location-test")
    assert one.store.list("") == []
    one.store.put_new("wal/1", b"still usable")
    assert resolve("memory://location-test/a").store.get("wal/1") == b"still usable"
    memory.reset()
    assert one.store.list("") == []


_MEMORY_LIFE = """
import os, sys
from lance_memwal.store.location import resolve
location = resolve("memory://life")
location.store.put_new("a", b"1")
child = os.fork()
if child == 0:
    resolve("memory://of-the-child").store.put_new("b", b"2")
    print(resolve("memory://of-the-child").root_path, resolve("memory://life").store.get("a").decode(), flush=True)
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print(location.root_path, location.store.get("a").decode(), flush=True)
"""


def test_a_memory_table_ends_with_the_process_that_made_it_and_not_with_its_child() -> None:
    done = subprocess.run([sys.executable, "-c", _MEMORY_LIFE], capture_output=True, text=True, timeout=60, check=True)
    (child_root, seen_by_child), (root, seen) = (line.split() for line in done.stdout.splitlines())
    assert (seen_by_child, seen) == ("1", "1")
    assert child_root != root
    assert not os.path.exists(child_root)
    assert not os.path.exists(root)
