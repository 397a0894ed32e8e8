"""A manifest that a listing showed to be the newest is answered for without one, and never beyond what is proven."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.store import paths
from lance_memwal.store.location import Location, resolve
from lance_memwal.store.metering import Recorder

SHARD = "aaaaaaaa-0000-4000-8000-000000000001"


class Reader:
    """A store of manifests whose listings are counted; it trusts the version that it read."""

    def __init__(self, place: Path) -> None:
        self._recorder = Recorder()
        self.store = ShardManifestStore(resolve(place, metrics=self._recorder), SHARD)
        newest = self.store.read_latest()
        assert newest is not None
        self.store.sight(newest)
        assert self.store.is_newest(newest.version)
        self._listings()

    def _listings(self) -> int:
        found = self._recorder.snapshot().get("list_names")
        self._recorder.reset()
        return 0 if found is None else found.count

    def look(self, version: int) -> tuple[bool, int]:
        """Whether a version is the newest, and how often that needed a listing."""
        return self.store.is_newest(version), self._listings()


@pytest.fixture
def writer(tmp_path: Path) -> ShardManifestStore:
    store = ShardManifestStore(tmp_path, SHARD, fsync=False)
    store.claim_epoch()
    return store


def bump(store: ShardManifestStore) -> None:
    store.commit_update(1, lambda m: replace(m, version=m.version + 1, wal_entry_position_last_seen=m.version))


def test_what_did_not_move_is_not_listed(writer: ShardManifestStore, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    assert [reader.look(1) for _ in range(3)] == [(True, 0)] * 3


def test_every_new_version_is_found(writer: ShardManifestStore, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    bump(writer)
    assert not reader.look(1)[0]
    newest = reader.store.read_latest()
    assert newest is not None
    assert newest.version == 2


def remove(location: Location, *versions: int) -> None:
    for version in versions:
        location.store.delete(paths.manifest_path(SHARD, version))


def test_versions_that_collection_removed_are_not_taken_for_the_end(writer: ShardManifestStore, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    for _ in range(4):
        bump(writer)
    remove(writer.location, 1, 2)  # the next one is gone, but so is the trusted one
    assert reader.look(1) == (False, 0)  # the object itself says no


def test_another_object_of_the_same_version_is_not_trusted(writer: ShardManifestStore, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    path = paths.manifest_path(SHARD, 1)
    data = writer.location.store.get(path)
    for _ in range(3):
        bump(writer)
    remove(writer.location, 1, 2)
    writer.location.store.put_new(path, data)  # somebody who slept fills the slot again, with the same bytes
    assert reader.look(1) == (False, 0)  # the object itself says no
