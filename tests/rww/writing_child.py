"""A process that writes and tells what was acknowledged, for readers in another one."""

from __future__ import annotations

from multiprocessing.connection import Connection

from lance_memwal import ShardWriter
from tests.kit.own_keys import KIND

KEYS = 10
DELETED = (3, 4)


def writes(uri: str, shard_id: str, puts: int, pipe: Connection) -> None:
    """Put `puts` rows over a few keys, telling each key and number once it is acknowledged; delete two at the end."""
    writer = ShardWriter.open(uri, shard_id=shard_id, fsync=False, max_memtable_batches=4)
    for number in range(1, puts + 1):
        writer.put(KIND.batch_of([number % KEYS], number))
        pipe.send((number % KEYS, number))
    pipe.send(("last put",))
    writer.delete(list(DELETED))
    pipe.send(("deleted",))
    writer.abort()
