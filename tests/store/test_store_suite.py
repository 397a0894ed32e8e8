"""Every back end does what the port promises: the shipped suite, on each of them."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

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
