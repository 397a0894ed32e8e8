"""A location: one key per table however it is spelled, child URIs that Lance opens, and no secrets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_memwal.clock import SystemClock
from lance_memwal.errors import InvalidInputError
from lance_memwal.store import memory
from lance_memwal.store.location import Location, resolve
from lance_memwal.store.metering import Recorder
from lance_memwal.store.retry import RetryPolicy
from lance_memwal.testing import FaultScript

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


@pytest.mark.parametrize("uri", _NO_TABLE)
def test_a_uri_that_names_no_table_is_refused(uri: str) -> None:
    with pytest.raises(InvalidInputError):
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


@pytest.mark.parametrize("uri", [None, 5, b"path", ""], ids=repr)
def test_what_is_no_uri_is_refused(uri: Any) -> None:
    with pytest.raises(InvalidInputError, match="needs a URI or a path"):
        resolve(uri)
