"""Owning a shard: what every kind of writer does first.

Owns `claim_log`, the one way to an owned log, and `ShardClaim`, the right to append that may travel to other processes.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from lance_memwal.clock import Clock
from lance_memwal.config import WriterConfig
from lance_memwal.lance.identity import TableWatch
from lance_memwal.log.manifest import ShardManifestStore, SightedManifests
from lance_memwal.log.understood import KnownColumns
from lance_memwal.log.wal import OpenedLog, PersistPolicy, open_log
from lance_memwal.rows.schema import TableSchema
from lance_memwal.store.location import Location


@dataclass(frozen=True, slots=True)
class ShardClaim:
    """The right to append to one shard, in a joint epoch, until somebody claims a higher one; may be pickled."""

    shard_id: str
    epoch: int
    table_id: str | None = None


def manifests_of(location: Location, shard_id: str | uuid.UUID, config: WriterConfig, clock: Clock) -> SightedManifests:
    """The manifest of a shard, for a writer with these settings."""
    scanned = config.manifest_scan_batch_size
    return SightedManifests(location, shard_id, scan_batch_size=scanned, fsync=config.fsync, clock=clock)


def claim_log(
    manifests: ShardManifestStore,
    config: WriterConfig,
    schema: TableSchema | None,
    watch: TableWatch | None,
    spec_id: int,
    clock: Clock,
    *,
    joint: bool = False,
) -> OpenedLog:
    """Own the log of a shard: a new epoch, its predecessor fenced. `schema` and `watch` are None without a base table."""
    known = KnownColumns(manifests.location, schema)
    policy = PersistPolicy.of(config)
    return open_log(manifests, spec_id=spec_id, policy=policy, watch=watch, known=known, joint=joint, clock=clock)
