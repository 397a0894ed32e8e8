"""The store and the Lance of simulated lives do what the real ones do: the same suites, over both."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import lance_memwal as mw
from lance_memwal.store.location import Location, resolve
from lance_memwal.store.metering import Recorder
from lance_memwal.store.port import ObjectStore
from lance_memwal.testing import StoreSuite
from tests.kit.lance_suite import SCHEMA, LanceSuite
from tests.simulation.lance import MemoryLance
from tests.simulation.store import MemoryObjects
from tests.simulation.world import empty_table


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class TestMemoryObjects(StoreSuite):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return MemoryObjects(_now_ms)


class TestLance(LanceSuite):
    @pytest.fixture
    def location(self, tmp_path: Path) -> Location:
        uri = str(tmp_path / "t")
        mw.create_table(uri, SCHEMA, primary_key="id", sharding=mw.Unsharded(), writer_defaults={"fsync": False})
        return resolve(uri)


class TestMemoryLance(LanceSuite):
    @pytest.fixture
    def location(self, tmp_path: Path) -> Location:
        store = empty_table(keyed=True).copy(_now_ms)
        key = f"stands-in-{tmp_path.name}"
        names = iter(f"file-{number}" for number in range(1_000))
        return Location(
            uri=f"/{key}",
            store=store,
            store_once=store,
            storage_options=None,
            metrics=Recorder(""),
            is_local=True,
            root_path=f"/{key}",
            key=key,
            lance=MemoryLance(store, lambda: next(names)),
        )
