"""Until nothing fresh is left: everything that was written becomes rows of the base table.

Owns `settle`. Invariants:

1. Converged means that at one moment no shard had a row that the base table had not: neither in its log nor in an SSTable.
2. No living writer is fenced. Those of this process are asked to flush; a log that nobody of this process owns is claimed
   once it is idle for long enough, and waited for until then.
3. It ends: when nothing is fresh, or at its deadline. What is left then is in the report.
"""

from __future__ import annotations

from collections.abc import Callable

from lance_memwal.clock import SYSTEM_CLOCK, BackOff, Clock
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.marks import compacted
from lance_memwal.log.shards import newest_manifests
from lance_memwal.process.deadline import Deadline
from lance_memwal.upkeep.reports import SettleReport
from lance_memwal.upkeep.tails import flush_live, in_log_only

__all__ = ["settle"]

_LONGEST_SECONDS = 900.0
_BACK_OFF = BackOff(0.05, 2.0)


def settle(
    newest_base: Callable[[], BaseTable],
    flush: Callable[[], dict[str, str]],
    compact: Callable[[], int],
    timeout_seconds: float | None,
    clock: Clock = SYSTEM_CLOCK,
) -> SettleReport:
    """Flush and compact until nothing fresh is left, or until the time is over; None: a quarter of an hour.

    `flush` says of which shards it left the log alone, and why; `compact` how many generations it folded.
    """
    started = clock.monotonic()
    deadline = Deadline(clock, _LONGEST_SECONDS if timeout_seconds is None else timeout_seconds)
    location = newest_base().location
    rounds = generations = 0
    while True:
        busy = flush_live(location, max(0.1, deadline.left_seconds))
        busy |= flush()
        generations += compact()
        rounds += 1
        left = _fresh(newest_base)
        if not left or not deadline.left_seconds:
            why = {shard_id: busy.get(shard_id, what) for shard_id, what in left.items()}
            return SettleReport(not left, rounds, generations, why, clock.monotonic() - started)
        clock.sleep(min(deadline.left_seconds, _BACK_OFF.seconds(min(rounds, 8), clock.random())))


def _fresh(newest_base: Callable[[], BaseTable]) -> dict[str, str]:
    """The shards with rows that the base table has not. SSTables are looked at before the base: rows only move down."""
    before = newest_base()
    left = {
        shard_id: f"{entries} entries are in its log only"
        for shard_id, entries in in_log_only(before.location, tag=before.tag).items()
    }
    manifests = list(newest_manifests(before.location))
    marks = compacted(newest_base())
    for manifest in manifests:
        waiting = manifest.above(marks.get(manifest.shard_id, 0))
        if waiting:
            left.setdefault(manifest.shard_id, f"{len(waiting)} generations are not compacted")
    return left
