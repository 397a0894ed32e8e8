"""Owners that are asked how they are.

Owns `AskedOwners`. Invariants:

1. Whoever asks changes nothing: no shard is claimed, and nothing is written.
2. An owner that is not served, is out of reach, or does not answer in time tells nothing; that is no error.
3. An owner that is known is asked without a look at storage; so is an epoch that has none, since it is announced before it
   is claimed.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.errors import MemWalError
from lance_memwal.process.deadline import Deadline
from lance_memwal.serve.caller import RemoteShard
from lance_memwal.serve.numbers import OwnerNumbers
from lance_memwal.serve.record import Owner, OwnerRecords
from lance_memwal.serve.shared_shard import is_near
from lance_memwal.serve.wire import Request
from lance_memwal.store.location import Location

_LOG = logging.getLogger(__name__)
_PATIENCE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class OwnerSight:
    """An owner, and what it says."""

    owner: Owner
    numbers: OwnerNumbers


@dataclass(frozen=True, slots=True)
class _Known:
    """Who answers for an epoch; None: nobody does."""

    epoch: int
    owner: Owner | None = None
    remote: RemoteShard | None = None


class AskedOwners:
    """The served owners of one table's shards, as somebody who looks on asks them."""

    def __init__(self, location: Location, table_id: str | None, clock: Clock = SYSTEM_CLOCK) -> None:
        self._location = location
        self._table_id = table_id
        self._clock = clock
        self._known: dict[str, _Known] = {}

    def ask(self, shard_id: str, epoch: int) -> OwnerSight | None:
        """What the owner of a shard under this epoch says; None if nobody answers for it."""
        try:
            known = self._known.get(shard_id)
            if known is None or known.epoch != epoch:
                known = self._known[shard_id] = self._find(shard_id, epoch)
            if known.owner is None or known.remote is None:
                return None
            told = known.remote.perform(Request("numbers"), None, Deadline(self._clock, _PATIENCE_SECONDS))
            return OwnerSight(known.owner, OwnerNumbers.heard(told))
        except MemWalError as error:
            _LOG.debug("owner says nothing [shard=%s, why=%s]", shard_id, error)
            self._known.pop(shard_id, None)
            return None

    def _find(self, shard_id: str, epoch: int) -> _Known:
        owner = None if self._table_id is None else OwnerRecords(self._location, shard_id).find(epoch)
        if owner is None or self._table_id is None or not is_near(owner):
            return _Known(epoch)
        return _Known(epoch, owner, RemoteShard(owner, self._table_id, shard_id, epoch))
