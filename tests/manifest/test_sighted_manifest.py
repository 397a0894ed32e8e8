"""What an appender asks of a manifest that it trusts: two requests, a fence, and nothing that a commit builds on (RFC 0023)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import lance_memwal as mw
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.store.location import Location, resolve
from lance_memwal.store.metering import Recorder
from lance_memwal.types import ShardManifest

SHARD = mw.shard_id_for(mw.Unsharded())


@pytest.fixture
def location(tmp_path: Path) -> Location:
    return resolve(str(tmp_path), metrics=Recorder())


@pytest.fixture
def trusting(location: Location) -> ShardManifestStore:
    """A store that has seen version 1 as the newest."""
    store = ShardManifestStore(location, SHARD)
    store.claim_epoch()
    store.sight(store.check_fenced(1))
    assert store.is_newest(1)
    return store


def others_claim(location: Location) -> ShardManifest:
    return ShardManifestStore(location, SHARD).claim_epoch()[1]


def test_a_manifest_that_did_not_move_costs_two_requests_and_no_listing(
    location: Location, trusting: ShardManifestStore
) -> None:
    location.metrics.reset()
    assert trusting.check_fenced(1).version == 1
    assert {kind: stats.count for kind, stats in location.metrics.snapshot().items()} == {"get": 1, "head": 1}
    assert trusting.is_newest(1)
    assert "list_names" not in location.metrics.snapshot()


def test_nothing_is_trusted_that_no_listing_has_shown_as_the_newest(location: Location) -> None:
    store = ShardManifestStore(location, SHARD)
    store.claim_epoch()
    store.sight(store.check_fenced(1))
    others_claim(location)
    with pytest.raises(mw.FencedError):
        store.check_fenced(1)


def test_a_newer_version_is_seen(location: Location, trusting: ShardManifestStore) -> None:
    others_claim(location)
    assert not trusting.is_newest(1)
    with pytest.raises(mw.FencedError):
        trusting.check_fenced(1)


def test_a_commit_builds_on_what_was_read_and_not_on_what_is_trusted(
    location: Location, trusting: ShardManifestStore
) -> None:
    location.metrics.reset()
    made = trusting.commit_update(1, lambda latest: replace(latest, version=2, wal_entry_position_last_seen=7))
    assert made.version == 2
    assert location.metrics.snapshot()["get"].count >= 1
    assert trusting.check_fenced(1) == made
