"""Every back end does what the port promises, and Lance works with the options of the service fixtures."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from lance_memwal.store import memory
from lance_memwal.store.local import LocalStore
from lance_memwal.store.location import resolve
from lance_memwal.store.port import ObjectStore
from lance_memwal.testing import FaultScript, StoreSuite


class TestLocalStore(StoreSuite):
    race_keys = 300

    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return LocalStore(tmp_path / "table")


class TestLocalStoreWithoutAnonymousFiles(StoreSuite):
    race_keys = 300

    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return LocalStore(tmp_path / "table", use_tmpfile=False)


class TestMemoryStore(StoreSuite):
    @pytest.fixture
    def store(self) -> Iterator[ObjectStore]:
        yield resolve("memory://store-suite/table").store_once
        memory.reset("store-suite")


class TestS3Store(StoreSuite):
    @pytest.fixture
    def store(self, s3_table: tuple[str, dict[str, str]]) -> ObjectStore:
        return resolve(*s3_table).store_once


class TestAzureStore(StoreSuite):
    @pytest.fixture
    def store(self, azure_table: tuple[str, dict[str, str]]) -> ObjectStore:
        return resolve(*azure_table).store_once


class TestStoreThroughAllLayers(StoreSuite):
    """Metering, retries and a script without faults change nothing."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return resolve(tmp_path / uuid.uuid4().hex, wrap=FaultScript().wrap).store


def test_the_local_suite_ran_with_anonymous_files_where_the_kernel_has_them(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put_new("wal/one", b"1")
    assert os.listdir(tmp_path) == ["wal"], "a staging directory shows that the fallback was used"


@pytest.mark.parametrize("service", ["s3_table", "azure_table"])
def test_lance_writes_and_reads_datasets_where_the_location_says(service: str, request: pytest.FixtureRequest) -> None:
    uri, options = request.getfixturevalue(service)
    location = resolve(uri, options)
    for target in (location.dataset_uri, location.child_uri("_mem_wal/generation")):
        lance.write_dataset(pa.table({"a": [1, 2]}), target, storage_options=dict(location.storage_options or {}))
        lance.write_dataset(
            pa.table({"a": [3]}), target, storage_options=dict(location.storage_options or {}), mode="append"
        )
        found = lance.dataset(target, storage_options=dict(location.storage_options or {})).to_table()
        assert found.column("a").to_pylist() == [1, 2, 3]
    below = location.store.list_names("_mem_wal")
    assert below == ["generation"]
    assert "_versions" in location.store.list_names("_mem_wal/generation")
