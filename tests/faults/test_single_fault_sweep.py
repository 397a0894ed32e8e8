"""One, two and many faults of a store in the life of a log: nothing is lost, doubled or invented; and the sweep finds
bugs that were put in.
"""

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from lance_memwal.clock import SYSTEM_CLOCK
from lance_memwal.errors import ObjectExistsError, UnavailableError
from lance_memwal.log import wal
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.transactions import ShardTime, TransactionMap
from lance_memwal.log.wal import ShardLog
from lance_memwal.store import paths
from lance_memwal.store.port import ObjectStore
from lance_memwal.store.sequenced import put_or_find
from lance_memwal.testing import FaultKind, FaultPlan
from tests.harness.profile import scaled
from tests.kit.log_life import new_life, record, sweep, verdict
from tests.kit.table_faults import SINGLE_KINDS as KINDS
from tests.kit.table_faults import no_damage, single_faults

CRASHES = {FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER}


def test_the_life_without_faults_acknowledges_everything_and_fences_the_stale_owner() -> None:
    life = new_life(FaultPlan())
    life.run()
    assert verdict(life, intact=True) == []
    assert life.oracle.acknowledged == {1: (1, 1), 2: (2, 1), 3: (3, 1), 4: (5, 2), 5: (6, 2)}
    assert life.oracle.refused == ["fenced: FencedError"]
    kinds = {call.kind for call in life.script.calls}
    assert kinds == {"put_new", "put", "get", "list_names", "make_directory"}, (
        "nothing is deleted, so no delete can be lost"
    )


@pytest.mark.scaled
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.value))
def test_no_single_fault_loses_doubles_or_invents_an_entry(kind: FaultKind) -> None:
    plans = list(single_faults(kind))
    assert plans
    met, broken = sweep(iter(plans), intact=no_damage)
    assert not broken, "\n".join(broken[:5])
    assert met == len(plans), "every planned fault was met"


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind.keeps_contract and kind not in CRASHES], ids=lambda kind: str(kind.value)
)
def test_a_single_fault_that_keeps_the_contract_of_a_store_is_not_seen_by_users(kind: FaultKind) -> None:
    for name, plan in single_faults(kind, draws=1, lateness=(2,)):
        life = new_life(plan)
        life.run()
        assert life.oracle.refused == ["fenced: FencedError"], name
        assert len(life.oracle.acknowledged) == 5, name


GENTLE = [kind for kind in KINDS if kind.keeps_contract]


def pairs(count: int, seed: int) -> Iterator[tuple[str, FaultPlan]]:
    """Two faults at two calls of the life; the second may hit another call than recorded, which the first led to."""
    draw = random.Random(seed)
    calls = record().calls
    anywhere = [
        kind for kind in KINDS if all(kind.applies_to(call) for call in ("put_new", "put", "get", "list_names"))
    ]
    for number in range(count):
        first = draw.choice(calls)
        kind = draw.choice([k for k in KINDS if k.applies_to(first.kind)])
        second = draw.randrange(first.index + 1, len(calls) + 4)
        other = draw.choice(anywhere)
        plan = FaultPlan(at={first.index: kind, second: other}, seed=number, late_after_calls=draw.randrange(8))
        yield f"pair {number} of seed {seed}: {plan.at}", plan


def storms(count: int, seed: int, kinds: Sequence[FaultKind]) -> Iterator[tuple[str, FaultPlan]]:
    draw = random.Random(seed)
    for number in range(count):
        rate = draw.choice((0.05, 0.1, 0.2, 0.4))
        late = draw.randrange(8)
        plan = FaultPlan(rate=rate, kinds=frozenset(kinds), seed=seed * 1_000_003 + number, late_after_calls=late)
        yield f"storm {number} of seed {seed}, rate {rate}", plan


@pytest.mark.scaled
@pytest.mark.parametrize("seed", [1, 2])
def test_no_two_faults_lose_double_or_invent_an_entry(seed: int) -> None:
    count = scaled(ci=100, prove=5_000)
    met, broken = sweep(pairs(count, seed), intact=no_damage)
    assert not broken, "\n".join(broken[:5])
    assert met == count


@pytest.mark.scaled
@pytest.mark.parametrize(("seed", "kinds"), [(1, GENTLE), (2, GENTLE), (3, KINDS)], ids=["1", "2", "with damage"])
def test_no_storm_of_faults_loses_an_entry_without_saying_so(seed: int, kinds: Sequence[FaultKind]) -> None:
    count = scaled(ci=100, prove=5_000)
    met, broken = sweep(storms(count, seed, kinds), intact=lambda script: False)
    assert not broken, "\n".join(broken[:5])
    assert met > count // 2


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
    patch.setattr(wal, "read_transactions", lambda *_, **__: TransactionMap({}, ShardTime(SYSTEM_CLOCK)))


def manifests_read_once(patch: Patch) -> None:
    patch.setattr(ShardManifestStore, "_read_twice", ShardManifestStore.read_version)


def epoch_claimed_without_a_version(patch: Patch) -> None:
    def claim(self: ShardManifestStore, spec_id: int = 0) -> Any:
        claimed = self._next_claim(spec_id, self.read_latest())
        self._is_created(claimed, make_directory=True)
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
    plans = single_faults(kind, draws=40)
    broken = (line for plan in plans for line in sweep(iter([plan]), intact=no_damage)[1])
    assert any(told in line for line in broken)
