"""Readers beside a writer: what was acknowledged before a read began is in it, and time never runs backwards."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path

import pytest

from lance_memwal import ShardWriter
from tests.harness.profile import scaled
from tests.kit.own_keys import KIND

KEYS = 10


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "not durable"])
def test_a_reader_beside_rotating_memtables_never_sees_a_hole_or_an_older_value(durable: bool, tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    KIND.create(uri)
    writer = ShardWriter.open(
        uri, shard_id=str(uuid.uuid4()), fsync=False, durable_write=durable, max_memtable_batches=2
    )
    acknowledged = dict.fromkeys(range(KEYS), 0)
    wrong: list[str] = []
    done = threading.Event()
    reads = 0

    def read() -> None:
        nonlocal reads
        newest = dict.fromkeys(range(KEYS), 0)
        while not done.is_set():
            floor = dict(acknowledged)
            seen = {row.key: row.number for row in KIND.rows_of(writer.lsm_scan().to_table())}
            for key in range(KEYS):
                shown = seen.get(key, 0)
                if shown < max(floor[key], newest[key]):
                    wrong.append(f"key {key}: {shown} after {floor[key]} was acknowledged and {newest[key]} was seen")
                newest[key] = max(newest[key], shown)
            reads += 1

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    number = 0
    try:
        while (reads < scaled(ci=120, prove=1_000) or number < 100) and not wrong:
            number += 1
            writer.put(KIND.batch_of([number % KEYS], number))
            acknowledged[number % KEYS] = number
            if number % 50 == 0:  # a generation costs every later read; let the readers keep up
                writer.wait_for_flush_drain()
                before = reads
                while reads < before + 4 and all(reader.is_alive() for reader in readers):
                    done.wait(0.001)
    finally:
        done.set()
        for reader in readers:
            reader.join()
        writer.close()
    assert wrong == []
    assert reads >= 100
    assert number >= 100


def test_all_batches_of_a_put_become_visible_together(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    KIND.create(uri)
    writer = ShardWriter.open(uri, shard_id=str(uuid.uuid4()), fsync=False, max_memtable_batches=6)
    torn: list[list[int]] = []
    done = threading.Event()
    reads = 0

    def read() -> None:
        nonlocal reads
        while not done.is_set():
            numbers = [row.number for row in KIND.rows_of(writer.lsm_scan().to_table())]
            if len(set(numbers)) > 1 or len(numbers) not in (0, KEYS):
                torn.append(numbers)
            reads += 1

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(1, 200):
        writer.put([KIND.batch_of(range(3), number), KIND.batch_of(range(3, KEYS), number)])
    done.set()
    reader.join()
    writer.close()
    assert torn == []
    assert reads > 0
