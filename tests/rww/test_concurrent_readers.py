"""Reads during writes: all that was acknowledged before a read began is in it, and time never runs backwards."""

from __future__ import annotations

import random
import threading
import uuid
from functools import partial
from pathlib import Path

import pytest
from writing_child import DELETED, KEYS, writes

import lance_memwal as mw
from lance_memwal import ShardWriter
from tests.harness.processes import Child, start
from tests.harness.profile import scaled
from tests.kit.own_keys import KIND, Findings, Scribe
from tests.kit.writers import SECONDS, in_thread


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
            seen = {row.key: row.number for row in KIND.rows_of(writer.scan().to_table())}
            for key in range(KEYS):
                shown = seen.get(key, 0)
                if shown < max(floor[key], newest[key]):
                    wrong.append(f"key {key}: {shown} after {floor[key]} was acknowledged and {newest[key]} was seen")
                newest[key] = max(newest[key], shown)
            reads += 1

    readers = [in_thread(read) for _ in range(2)]
    number = 0
    try:
        while (reads < scaled(ci=120, prove=1_000) or number < 100) and not wrong:
            number += 1
            writer.put(KIND.batch_of([number % KEYS], number))
            acknowledged[number % KEYS] = number
            if number % 50 == 0:  # a generation costs every later read; let the readers keep up
                writer.wait_for_flush_drain()
                before = reads
                while reads < before + 4 and all(reader.running for reader in readers):
                    done.wait(0.001)
    finally:
        done.set()
        for reader in readers:
            reader.result(4 * SECONDS)
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
            numbers = [row.number for row in KIND.rows_of(writer.scan().to_table())]
            if len(set(numbers)) > 1 or len(numbers) not in (0, KEYS):
                torn.append(numbers)
            reads += 1

    reader = in_thread(read)
    for number in range(1, 200):
        writer.put([KIND.batch_of(range(3), number), KIND.batch_of(range(3, KEYS), number)])
    done.set()
    reader.result(4 * SECONDS)
    writer.close()
    assert torn == []
    assert reads > 0


PUTS = 1_000


def new_writer(tmp_path: Path, name: str, *, durable: bool) -> ShardWriter:
    uri = str(tmp_path / name)
    KIND.create(uri)
    return ShardWriter.open(uri, shard_id=str(uuid.uuid4()), fsync=False, durable_write=durable, max_memtable_batches=2)


@pytest.mark.scaled
@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("durable", [True, False], ids=["durable", "not durable"])
def test_thousand_puts_into_small_memtables_are_read_back(durable: bool, threads: int, tmp_path: Path) -> None:
    # Every read meets every generation, so the thousand puts go to several shards unless there is time for one.
    shards = scaled(ci=25, prove=1)
    findings: list[Findings] = []
    flushes = 0
    for shard in range(shards):
        writer = new_writer(tmp_path, f"table-{shard}", durable=durable)
        scribes = [Scribe(writer, thread, shard) for thread in range(threads)]
        workers = [in_thread(partial(work, scribe, PUTS // shards // threads)) for scribe in scribes]
        for worker in workers:
            worker.result(4 * SECONDS)
        writer.close()
        flushes += writer.stats().memtable_flush_count
        findings += [scribe.findings for scribe in scribes]
    assert [wrong for found in findings for wrong in found.wrong] == []
    assert sum(found.reads for found in findings) == 2 * PUTS
    assert flushes >= PUTS // 3, "the memtables did not rotate"


def work(scribe: Scribe, puts: int) -> None:
    for _ in range(puts):
        try:
            scribe.write_and_read()
        except Exception as error:
            scribe.findings.damaged.append(repr(error))
            raise


def hear_so_far(child: Child, newest: dict[int, int]) -> bool:
    """Take what the writer has said by now, one to twenty messages; whether the last of them was that of its last put."""
    for number in range(20):  # however slow reads are beside writes, there are some
        message = child.receive(0 if number else 30)
        assert message is not None or number, "the writer is silent"
        if message is None or message == ("last put",):
            return message is not None
        newest[message[0]] = message[1]
    return False


@pytest.mark.scaled
def test_what_another_process_acknowledged_is_in_every_scan_that_starts_afterwards(tmp_path: Path) -> None:
    uri, shard_id = str(tmp_path / "table"), str(uuid.uuid4())
    KIND.create(uri)
    child = start(writes, uri, shard_id, scaled(ci=200, prove=2_000))
    table = mw.open_table(uri)
    newest: dict[int, int] = {}
    reads, ended = 0, False
    while not ended:
        ended = hear_so_far(child, newest)
        rows = KIND.rows_of(table.scan().to_table())
        seen = {row.key: row.number for row in rows}
        assert len(seen) == len(rows), "a key is there twice"
        missed = {key: number for key, number in newest.items() if key not in DELETED and seen.get(key, 0) < number}
        assert missed == {}, f"acknowledged, but only {seen} is shown"
        reads += 1
    assert child.receive(30) == ("deleted",)
    last = {row.key: row.number for row in KIND.rows_of(table.scan().to_table())}
    assert last == {key: number for key, number in newest.items() if key not in DELETED}
    assert len(newest) == KEYS
    assert reads >= 3
    child.wait(30)


MANY_KEYS = 2_000
THREADS = 4


def test_lookups_of_four_threads_in_one_flushed_generation_all_find_their_rows(tmp_path: Path) -> None:
    uri, shard_id = str(tmp_path / "table"), str(uuid.uuid4())
    KIND.create(uri)
    with ShardWriter.open(uri, shard_id=shard_id, fsync=False) as writer:
        writer.put(KIND.batch_of(range(MANY_KEYS), 1))
    failures: list[str] = []

    def look(writer: ShardWriter, thread: int) -> None:
        draw = random.Random(thread)
        for _ in range(100):
            keys = draw.sample(range(MANY_KEYS), 20)
            try:
                found = sorted(row.key for row in KIND.rows_of(writer.lookup(keys)))
            except Exception as error:
                failures.append(repr(error))
                return
            if found != sorted(keys):
                failures.append(f"looked for {keys}, found {found}")

    with ShardWriter.open(uri, shard_id=shard_id, fsync=False) as reader:
        threads = [in_thread(partial(look, reader, i)) for i in range(THREADS)]
        for thread in threads:
            thread.result(4 * SECONDS)
    assert failures == []
