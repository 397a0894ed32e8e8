"""Whatever moment of a maintenance a process dies in, the table shows the same rows and the next call finishes the work."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import lance
import pytest

import lance_memwal as mw
from tests.harness.profile import scaled
from tests.kit.maintained import SETTINGS, flush, rows, table_with_indexes

SHARD = mw.shard_id_for(mw.Unsharded())
CHILD = """
import sys
from datetime import timedelta
import lance_memwal as mw
table = mw.open_table(sys.argv[1])
print("ready", flush=True)
while True:
    table.maintain(versions=timedelta(0), grace_seconds=0)
"""


@pytest.mark.scaled
def test_a_killed_maintenance_loses_nothing(tmp_path: Path) -> None:
    table, number = table_with_indexes(tmp_path), 1_000
    expected = set(range(100))
    chance = random.Random(7)
    for _ in range(scaled(ci=2, prove=60)):
        with table.shard_writer(SHARD, **SETTINGS) as writer:
            for _ in range(scaled(ci=4, prove=10)):
                writer.put(rows(range(number, number + 5)))
                writer.delete([number])
                flush(writer)
                expected |= set(range(number + 1, number + 5))
                number += 5
        child = subprocess.Popen([sys.executable, "-c", CHILD, table.uri], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(chance.uniform(0, 0.6))  # the moment is what is tried
        child.kill()
        child.wait()
        child.stdout.close()
        assert set(table.scan(columns=["id"]).to_table()["id"].to_pylist()) == expected
        assert table.verify().ok
        table.compact()  # one file per round and more
    report = table.maintain()
    assert report.postponed == {}
    assert table.stats().waiting_for_indexes == {}
    assert lance.dataset(table.uri).count_rows() == len(expected)
    assert table.search(text=f"number{number - 1}", k=1)["id"].to_pylist() == [number - 1]
    lance.dataset(table.uri).validate()
