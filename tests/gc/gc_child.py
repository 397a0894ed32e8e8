"""A writer that is stopped in the middle of a put, and says what became of it when it is continued."""

from __future__ import annotations

import traceback
from multiprocessing.connection import Connection

from lance_memwal.errors import FencedError, MemWalError
from lance_memwal.shard_writer import ShardWriter
from tests.harness.kill_points import stop_at


def put_and_stop(uri: str, shard_id: str, point: str, pipe: Connection) -> None:
    """Acknowledge one put, stop at `point` of the second, and tell its outcome."""
    try:
        writer = ShardWriter.open(uri, shard_id=shard_id, fsync=False)
        writer.put({"id": [1], "v": ["acknowledged"]})
        stop_at(point, before=lambda: pipe.send(("stopping",)))
        if point.startswith("flush"):
            writer.force_seal_active()
            writer.wait_for_flush_drain(20.0)
        else:
            writer.put({"id": [2], "v": ["from the grave"]})
        pipe.send(("acknowledged",))
    except FencedError:
        pipe.send(("fenced",))
    except MemWalError:
        pipe.send(("failed", traceback.format_exc()))
