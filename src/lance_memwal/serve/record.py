"""Where the owner of a shard is reached.

Owns `Owner` and `OwnerRecords`: `_mem_wal/{shard}/memwal_owner_{epoch}.json`, `{"address", "host", "pid",
"started_ms"}`.
Invariants:

1. The record of an epoch is announced before the epoch is claimed: no served epoch is ever without one. Whoever won the
   epoch is its author, and replaces what somebody who did not win it left there.
2. It is never changed in place, and says nothing secret. On local disks nobody else can read it (0600), from a moment after
   its creation on: stores know nothing of modes.
3. A record is a hint: what it says is believed once the owner itself has answered for that epoch.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass

from lance_memwal.errors import ObjectExistsError, ObjectNotFoundError
from lance_memwal.serve.endpoint import is_for_other_hosts, is_of_this_host
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.store.sequenced import is_count


@dataclass(frozen=True, slots=True)
class Owner:
    """How an owner is reached: its address, the host and the process that it runs in, and since when."""

    address: str
    host: str
    pid: int
    started_ms: int


class OwnerRecords:
    """The records of one shard."""

    def __init__(self, location: Location, shard_id: str) -> None:
        self._location = location
        self._shard_id = shard_id

    def find(self, epoch: int) -> Owner | None:
        """The owner under this epoch; None if it has none, or one that cannot be understood."""
        try:
            value = json.loads(self._location.store.get(paths.owner_path(self._shard_id, epoch)))
            owner = Owner(value["address"], value["host"], value["pid"], value["started_ms"])
        except (ObjectNotFoundError, ValueError, KeyError, TypeError, RecursionError):
            return None
        texts, numbers = (owner.address, owner.host), (owner.pid, owner.started_ms)
        if not all(isinstance(text, str) for text in texts) or not all(map(is_count, numbers)):
            return None
        return owner if is_of_this_host(owner.address) or is_for_other_hosts(owner.address) else None

    def announce(self, epoch: int, owner: Owner) -> bool:
        """Create the record of an epoch; False if somebody else's is there."""
        path = paths.owner_path(self._shard_id, epoch)
        try:
            self._location.store.put_new(path, json.dumps(asdict(owner)).encode())
        except ObjectExistsError:
            return self.find(epoch) == owner
        if self._location.root_path is not None:
            try:
                os.chmod(f"{self._location.root_path}/{path}", 0o600)
            except FileNotFoundError:  # replaced by the owner of the epoch
                return False
        return True

    def replace(self, epoch: int, owner: Owner) -> None:
        """Let the record of an epoch be this one, whatever was there."""
        while not self.announce(epoch, owner):
            self.remove(epoch)

    def remove(self, epoch: int) -> None:
        """Remove the record of an epoch."""
        self._location.store.delete(paths.owner_path(self._shard_id, epoch))

    def remove_below(self, epoch: int) -> None:
        """Remove the records of earlier epochs: nobody can own the shard under them any more."""
        for name in self._location.store.list_names(paths.shard_dir(self._shard_id)):
            found = paths.parse_owner_name(name)
            if found is not None and found < epoch:
                self.remove(found)
