"""A shard writer that is put away while nobody writes to its shard, and taken up again where it stopped.

Owns `Parked` and `opened_again`. Invariants:

1. What is parked is durable: readers find it in the log, or in SSTables if the log would take long to read again.
2. A parked shard keeps its epoch, its next position and its transactions. It is taken up without a claim and without a
   sentinel, after a look at the manifest: a shard that somebody claimed meanwhile is lost (`FencedError`).
"""

from __future__ import annotations

from dataclasses import dataclass

from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.transactions import TransactionMap
from lance_memwal.log.wal import OpenedLog, ShardLog
from lance_memwal.write.stats import StatsHandle

__all__ = ["LONGEST_TAIL_BYTES", "LONGEST_TAIL_ENTRIES", "Parked", "opened_again"]

LONGEST_TAIL_ENTRIES = 64
LONGEST_TAIL_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Parked:
    """What remains of a writer that is put away; `owes_flush`: the log holds rows that are in no SSTable yet."""

    log: ShardLog
    transactions: TransactionMap
    stats: StatsHandle
    owes_flush: bool


def opened_again(parked: Parked, manifests: ShardManifestStore) -> OpenedLog:
    """The log of a parked shard, as an open would give it; `FencedError` if another writer claimed the shard."""
    manifest = manifests.check_fenced(parked.log.epoch)
    end = parked.log.next_position
    return OpenedLog(parked.log, manifest, manifest.replay_after_wal_entry_position + 1, end, parked.transactions)
