"""Classic bugs, put in on purpose: the sweep must find each of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from lance_memwal.clock import SYSTEM_CLOCK
from lance_memwal.errors import ObjectExistsError, UnavailableError
from lance_memwal.log import reading, wal
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.transactions import ShardTime, TransactionMap
from lance_memwal.log.wal import ShardLog
from lance_memwal.store import paths
from lance_memwal.store.own import put_or_find
from lance_memwal.store.port import ObjectStore
from lance_memwal.testing import FaultKind
from tests.kit.log_life import sweep
from tests.kit.single_faults import no_damage, single_faults

Patch = pytest.MonkeyPatch


def error_taken_for_success(patch: Patch) -> None:
    def put(store: ObjectStore, path: str, data: bytes, **options: Any) -> bytes | None:
        try:
            return put_or_find(store, path, data, **options)
        except UnavailableError:
            return None

    patch.setattr(wal, "put_or_find", put)


def retry_at_the_next_position(patch: Patch) -> None:
    honest = ShardLog._persist

    def persist(self: ShardLog, data: bytes, position: int, **options: Any) -> int:
        try:
            self._store.put_new(paths.wal_entry_path(self.shard_id, position), data)
        except UnavailableError:
            return honest(self, data, position + 1, **options)
        except ObjectExistsError:
            return honest(self, data, position, **options)
        return position

    patch.setattr(ShardLog, "_persist", persist)


def whatever_exists_taken_for_ours(patch: Patch) -> None:
    def put(store: ObjectStore, path: str, data: bytes, **options: Any) -> bytes | None:
        with contextlib.suppress(ObjectExistsError):
            store.put_new(path, data, **options)
        return None

    patch.setattr(wal, "put_or_find", put)


def no_sentinel(patch: Patch) -> None:
    patch.setattr(ShardLog, "place_sentinel", lambda self, transactions, **_: self.next_position)


def map_forgotten_in_a_takeover(patch: Patch) -> None:
    patch.setattr(reading, "read_transactions", lambda *_, **__: TransactionMap({}, ShardTime(SYSTEM_CLOCK)))


def manifests_read_once(patch: Patch) -> None:
    patch.setattr(ShardManifestStore, "_read_twice", ShardManifestStore.read_version)


def epoch_claimed_without_a_version(patch: Patch) -> None:
    def claim(self: ShardManifestStore, spec_id: int = 0) -> Any:
        claimed = self._next_claim(self.read_latest(), spec_id)
        self._create(claimed, make_directory=True)
        return claimed.writer_epoch, claimed

    patch.setattr(ShardManifestStore, "claim_epoch", claim)


BUGS: dict[Callable[[Patch], None], tuple[FaultKind, str]] = {
    error_taken_for_success: (FaultKind.ERROR_BEFORE, "is not there"),
    retry_at_the_next_position: (FaultKind.ERROR_AFTER, "times"),
    whatever_exists_taken_for_ours: (FaultKind.DELAY, "a fenced owner acknowledged"),
    no_sentinel: (FaultKind.DELAY, "a fenced owner acknowledged"),
    map_forgotten_in_a_takeover: (FaultKind.DELAY, "was written again"),
    manifests_read_once: (FaultKind.BIT_FLIP, "did not grow by claims alone"),
    epoch_claimed_without_a_version: (FaultKind.LIST_MISSES, "epochs do not grow"),
}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: str(bug.__name__))
def test_the_sweep_finds_a_bug_that_was_put_in(bug: Callable[[Patch], None], monkeypatch: Patch) -> None:
    kind, told = BUGS[bug]
    bug(monkeypatch)
    plans = single_faults(kind, draws=24)
    broken = (line for plan in plans for line in sweep(iter([plan]), intact=no_damage)[1])
    assert any(told in line for line in broken)
