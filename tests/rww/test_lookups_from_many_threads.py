"""Threads that look keys up at the same time share the readers of SSTables, and each gets its own rows."""

from __future__ import annotations

import random
import threading
import uuid
from pathlib import Path

from lance_memwal import ShardWriter
from tests.kit.own_keys import KIND

KEYS = 2_000
THREADS = 4


def test_lookups_of_four_threads_in_one_flushed_generation_all_find_their_rows(tmp_path: Path) -> None:
    uri, shard_id = str(tmp_path / "table"), str(uuid.uuid4())
    KIND.create(uri)
    with ShardWriter.open(uri, shard_id=shard_id, fsync=False) as writer:
        writer.put(KIND.batch_of(range(KEYS), 1))
    failures: list[str] = []

    def look(writer: ShardWriter, thread: int) -> None:
        draw = random.Random(thread)
        for _ in range(100):
            keys = draw.sample(range(KEYS), 20)
            try:
                found = sorted(row.key for row in KIND.rows_of(writer.lookup(keys)))
            except Exception as error:
                failures.append(repr(error))
                return
            if found != sorted(keys):
                failures.append(f"looked for {keys}, found {found}")

    with ShardWriter.open(uri, shard_id=shard_id, fsync=False) as reader:
        threads = [threading.Thread(target=look, args=(reader, i)) for i in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
