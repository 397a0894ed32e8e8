"""What a put acknowledged is in every read that starts afterwards, through every freeze, flush and commit."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path

import pytest

from lance_memwal import ShardWriter
from tests.harness.profile import scaled
from tests.kit.own_keys import KIND, Findings, Scribe

PUTS = 1_000


def new_writer(tmp_path: Path, name: str, *, durable: bool) -> ShardWriter:
    uri = str(tmp_path / name)
    KIND.create(uri)
    return ShardWriter.open(uri, shard_id=str(uuid.uuid4()), fsync=False, durable_write=durable, max_memtable_batches=2)


@pytest.mark.scaled
@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("durable", [True, False], ids=["durable", "not durable"])
def test_a_thousand_puts_into_memtables_of_two_batches_are_all_read_back_at_once(
    durable: bool, threads: int, tmp_path: Path
) -> None:
    # Every read meets every generation, so the thousand puts go to several shards unless there is time for one.
    shards = scaled(ci=25, prove=1)
    findings: list[Findings] = []
    flushes = 0
    for shard in range(shards):
        writer = new_writer(tmp_path, f"table-{shard}", durable=durable)
        scribes = [Scribe(writer, thread, shard) for thread in range(threads)]
        workers = [threading.Thread(target=work, args=(scribe, PUTS // shards // threads)) for scribe in scribes]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
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
