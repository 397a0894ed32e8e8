"""When a table is compacted by itself, and the task that does it.

Owns `CompactionPolicy`, `due_shards` and `Background`. Invariants:

1. A failed compaction, or update of indexes, is logged and tried again later; it never reaches a write.
2. A shard is looked at when this process published a generation of it, and when the oldest of those that wait reaches its
   age: whoever publishes looks, and in an epoch that is ours nobody else does. So a writer that is idle asks nothing of its
   shards. The base table is looked at now and then, since others compact, too, and generations may wait for an index.
3. The task ends when it is told to stop, within one compaction, and when the table is another one; it holds nothing
   that a writer waits for.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from lance_memwal.arguments import check_number, check_seconds
from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.compact.reports import CompactionReport
from lance_memwal.compact.run import DEFAULT_MEMORY_BYTES, Compactor
from lance_memwal.compact.trim import trim
from lance_memwal.errors import InvalidInputError, ObjectNotFoundError, TableReplacedError
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.marks import compacted
from lance_memwal.lance.optimize import optimize_indexes
from lance_memwal.log.shards import newest_manifests
from lance_memwal.process.background import Task, is_ending
from lance_memwal.sstable.catch_up import CatchUp
from lance_memwal.sstable.maintained import with_names
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.types import ShardManifest, SsTable

_LOG = logging.getLogger(__name__)
CHECKS_PER_BASE_LOOK = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPolicy:
    """A shard is compacted when it has this many uncompacted generations, bytes in them, or one of this age.

    The indexes of the base table are brought up to date when `max_waiting_generations` compacted ones wait for one of
    them; None: never.
    """

    max_generations: int = 16
    max_waiting_generations: int | None = 8
    max_bytes: int = 1 << 30
    max_age_seconds: float = 900.0
    check_interval_seconds: float = 10.0
    memory_bytes: int = DEFAULT_MEMORY_BYTES

    def __post_init__(self) -> None:
        for name in ("max_generations", "max_bytes", "memory_bytes"):
            check_number(name, getattr(self, name), least=1)
        if self.max_waiting_generations is not None:
            check_number("max_waiting_generations", self.max_waiting_generations, least=1)
        for name in ("max_age_seconds", "check_interval_seconds"):
            if check_seconds(name, getattr(self, name)) == 0:
                raise InvalidInputError(f"{name} must be above 0")


DEFAULT_COMPACTION = CompactionPolicy()


def due_shards(
    location: Location,
    base: BaseTable,
    policy: CompactionPolicy,
    clock: Clock,
    *,
    shards: Collection[str] | None = None,
) -> list[str]:
    """The shards that the policy wants compacted now."""
    manifests = newest_manifests(location, None if shards is None else sorted(shards))
    return due_of(location, manifests, compacted(base), policy, clock)


def due_of(
    location: Location,
    manifests: Iterable[ShardManifest],
    marks: Mapping[str, int],
    policy: CompactionPolicy,
    clock: Clock,
) -> list[str]:
    """The shards of these manifests that the policy wants compacted; `marks`: what the base table holds of each."""
    return [manifest.shard_id for manifest in manifests if _due_in(location, manifest, marks, policy, clock) <= 0]


def _due_in(
    location: Location, manifest: ShardManifest, marks: Mapping[str, int], policy: CompactionPolicy, clock: Clock
) -> float:
    """In how many seconds the policy wants the shard compacted, if nothing is published meanwhile."""
    pending = manifest.above(marks.get(manifest.shard_id, 0))
    if not pending:
        return math.inf
    if len(pending) >= policy.max_generations or sum(s.in_memory_bytes or 0 for s in pending) >= policy.max_bytes:
        return 0.0
    return policy.max_age_seconds - _age_seconds(location, manifest.shard_id, pending[0], clock)


def _age_seconds(location: Location, shard_id: str, sstable: SsTable, clock: Clock) -> float:
    try:
        modified_ms = location.store.head(paths.bloom_path(shard_id, sstable.path)).modified_ms
    except ObjectNotFoundError:
        return 0.0
    return (clock.now_ms() - modified_ms) / 1000


class Background:
    """Compacts the shards of one writer beside its writes; keeps no reference to the writer itself."""

    def __init__(
        self,
        policy: CompactionPolicy | None,
        location: Location,
        newest_base: Callable[[], BaseTable],
        shards: Callable[[], Mapping[str, int]],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Without a policy nothing ever runs. `shards`: each with a number that grows when a generation is published."""
        self._policy = policy
        self._location = location
        self._newest_base = newest_base
        self._shards = shards
        self._clock = clock
        self._task = Task("compact", self._clock)
        self._started = False
        self._next_at = 0.0
        self._may_wait = True  # whether a compacted generation may wait for an index
        self._owes_indexes = False  # whether that is to be looked at, or was and failed
        self._seen: dict[
            str, tuple[int, float]
        ] = {}  # what was published at the last look, and when its age makes it due
        self._base_version = -1
        self._base_look_at = 0.0

    def start(self) -> None:
        """Run from now on; once is enough."""
        if self._policy is not None and not self._started and not self._task.cancelled:
            self._started = True
            self._next_at = self._clock.monotonic() + self._pause(self._policy)
            self._task.start(self._run).poke()

    def stop(self) -> None:
        """Begin nothing new; may be called anywhere."""
        self._task.cancel()

    def join(self) -> None:
        """Return when nothing runs any more: after the compaction that runs now, if any, at most a minute."""
        self._task.stop()

    def orphan(self) -> None:
        """Be nothing in a forked child."""
        self._task.orphan()

    def _pause(self, policy: CompactionPolicy) -> float:
        return policy.check_interval_seconds * (0.75 + self._clock.random() / 2)

    def _run(self) -> float | None:
        policy = self._policy
        if policy is None:
            return None
        now = self._clock.monotonic()
        if now < self._next_at:
            return self._next_at - now
        try:
            self.look(policy, now)
        except TableReplacedError as error:
            _LOG.warning("background compaction ends: %s", error)
            self._task.cancel()
        except Exception as error:  # whatever it was, the writer goes on and the next round tries again
            if not self._task.cancelled and not is_ending():
                _LOG.warning(
                    "background compaction failed, it is tried again [table=%s]: %s", self._location.describe(), error
                )
        pause = self._pause(policy)
        self._next_at = self._clock.monotonic() + pause
        return pause

    def look(self, policy: CompactionPolicy, now: float) -> None:
        """Do what is due, and ask no store where nothing can be."""
        shards = self._shards()
        news = {
            s: n for s, n in shards.items() if (seen := self._seen.get(s)) is None or seen[0] != n or now >= seen[1]
        }
        if news:
            self._owes_indexes = True  # until that was done without an error
            self._compact(policy, news)
        elif now >= self._base_look_at and shards:
            version = self._base_version
            self._base_looked_at(self._newest_base(), policy, now)
            if version != self._base_version:
                self._may_wait = self._owes_indexes = True
        if self._owes_indexes:
            self.optimize_due(policy)
            self._owes_indexes = False

    def _base_looked_at(self, base: BaseTable, policy: CompactionPolicy, now: float) -> None:
        self._base_version = base.version
        self._base_look_at = now + policy.check_interval_seconds * CHECKS_PER_BASE_LOOK

    def compact_due(self, policy: CompactionPolicy) -> CompactionReport | None:
        """Look at all shards, and compact what the policy wants compacted now; None if that is nothing."""
        return self._compact(policy, self._shards())

    def _compact(self, policy: CompactionPolicy, shards: Mapping[str, int]) -> CompactionReport | None:
        due = self._due_of(policy, shards) if shards else []
        if not due or self._task.cancelled or is_ending():
            return None
        compactor = Compactor(self._location, self._newest_base, memory_bytes=policy.memory_bytes, clock=self._clock)
        self._may_wait = True
        return compactor.run(shards=due)

    def _due_of(self, policy: CompactionPolicy, shards: Mapping[str, int]) -> list[str]:
        """The shards that are due; of all others is noted when they will be."""
        base, now, due = self._newest_base(), self._clock.monotonic(), []
        self._base_looked_at(base, policy, now)
        marks = compacted(base)
        for manifest in newest_manifests(self._location, sorted(shards)):
            shard_id = manifest.shard_id
            seconds = _due_in(self._location, manifest, marks, policy, self._clock)
            if seconds <= 0:
                due.append(shard_id)
                self._seen.pop(shard_id, None)  # whatever becomes of it, it is looked at again
            else:
                self._seen[shard_id] = (shards[shard_id], now + seconds)
        return due

    def optimize_due(self, policy: CompactionPolicy) -> bool:
        """Bring the indexes up to date if the policy wants it, and let go what waited for them; whether that was done."""
        shards, most = list(self._shards()), policy.max_waiting_generations
        if not shards or most is None or not self._may_wait or self._task.cancelled or is_ending():
            return False
        base = self._newest_base()
        self._base_looked_at(base, policy, self._clock.monotonic())
        caught_up = CatchUp.of(base)
        names = sorted(shards) if caught_up.indexes else []
        manifests = {manifest.shard_id: manifest for manifest in newest_manifests(self._location, names)}
        longest = max(caught_up.waiting(manifests.values()).values(), default=0)
        self._may_wait = longest > 0
        if longest < most:
            return False
        newest, made = optimize_indexes(with_names(base, self._clock))
        trim(manifests, newest, self._newest_base, self._clock)
        return made
