"""A large base table below fresh rows is counted, scanned, asked and compacted in memory that does not grow with it.

The proof has 100M rows of two narrow columns and 1M fresh ones, and its process at most 2 GB; see `docs/design/reading.md`
for the figures.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_memwal as mw
from tests.harness.profile import scaled

BASE = scaled(ci=1_000_000, prove=100_000_000)
FRESH = BASE // 100
NEW = FRESH // 2  # of them; the others supersede rows of the base table
DEAD = 10
STEP = 1_000_000
LIMIT_MB = scaled(ci=480, prove=2048)
SECONDS = scaled(ci=100, prove=1500)
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.float32())])
READER = """
import json, sys, time
import lance_memwal as mw
uri, base, fresh, new = sys.argv[1], *map(int, sys.argv[2:])
table, told = mw.open_table(uri), {}

def peak_mb():  # of this program: what the system counts for a process begins with its parent
    (line,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    return int(line.split()[1]) >> 10

def step(name, work):
    began = time.monotonic()
    found = work()
    told[name] = [found, round(time.monotonic() - began, 2), peak_mb()]

def scanned():
    rows = total = 0
    for batch in table.scan(columns=["id"]).to_reader():
        rows, total = rows + batch.num_rows, total + int(batch.column(0).to_numpy().sum())
    return [rows, total]

step("count", table.count_rows)
step("scan", scanned)
step("get", lambda: [table.get(key) for key in (base - 1, base + new - 1, 3, 0, base + new)])
step("compact", lambda: table.compact().rows_written)
step("count after it", table.count_rows)
print(json.dumps(told))
"""


def batches(first: int, end: int) -> Iterator[pa.RecordBatch]:
    for start in range(first, end, STEP):
        ids = np.arange(start, min(start + STEP, end))
        yield pa.record_batch([pa.array(ids), pa.array(np.zeros(len(ids), np.float32))], schema=SCHEMA)


def sum_below(end: int) -> int:
    return end * (end - 1) // 2


@pytest.fixture
def uri(tmp_path: Path) -> Iterator[str]:
    """The base rows have the value 0, the fresh ones 1: half of them new keys, half keys of the base table."""
    place = tmp_path / "t"
    defaults = {"fsync": False}
    table = mw.create_table(str(place), SCHEMA, primary_key="id", sharding=mw.Unsharded(), writer_defaults=defaults)
    rows = pa.RecordBatchReader.from_batches(SCHEMA, batches(0, BASE)).cast(table.schema)
    lance.write_dataset(rows, table.uri, mode="append")
    kept = np.arange(0, BASE, BASE // (FRESH - NEW))
    fresh = np.random.default_rng(5).permutation(np.concatenate([np.arange(BASE, BASE + NEW), kept]))
    with mw.open_table(str(place)).writer(compaction=None) as writer:
        for part in np.array_split(fresh, 10):
            writer.put(pa.record_batch([pa.array(part), pa.array(np.ones(len(part), np.float32))], schema=SCHEMA))
            writer.flush()
        writer.delete(list(range(DEAD)))
    yield str(place)
    for path in sorted(place.rglob("*"), reverse=True):  # more than a gigabyte, of the proof
        path.rmdir() if path.is_dir() else path.unlink()


@pytest.mark.scaled
@pytest.mark.timeout(2 * SECONDS)
def test_reads_and_a_compaction_of_a_large_table_have_bounded_memory(uri: str) -> None:
    arguments = [sys.executable, "-c", READER, uri, str(BASE), str(FRESH), str(NEW)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    print(told)
    live = BASE + NEW - DEAD
    assert told["count"][0] == told["count after it"][0] == live
    assert told["scan"][0] == [live, sum_below(BASE + NEW) - sum_below(DEAD)]
    wanted = [{"id": BASE - 1, "v": 0.0}, {"id": BASE + NEW - 1, "v": 1.0}, None, None, None]
    assert told["get"][0] == wanted
    assert told["compact"][0] == FRESH - 1, "0 is dead"
    assert max(peak_mb for _, _, peak_mb in told.values()) <= LIMIT_MB, told
