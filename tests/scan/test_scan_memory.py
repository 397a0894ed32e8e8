"""A scan streams: its memory is bounded by read-ahead and batches, not by the table."""

from __future__ import annotations

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

DIMENSION = 128
LIMIT_MB = 320
TABLE_MB = scaled(ci=700, prove=5 * LIMIT_MB)
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), False, {"lance-schema:unenforced-primary-key": "true"}),
        pa.field("vector", pa.list_(pa.float32(), DIMENSION)),
    ]
)
READER = """
import resource, sys
import lance_memwal as mw
table = mw.open_table(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rows = sum(batch.num_rows for batch in table.scan())
print(rows, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def rows(total: int) -> Iterator[pa.RecordBatch]:
    rng = np.random.default_rng(3)
    for start in range(0, total, 8192):
        count = min(8192, total - start)
        vectors = pa.array(rng.random(count * DIMENSION, dtype=np.float32))
        columns = [pa.array(np.arange(start, start + count)), pa.FixedSizeListArray.from_arrays(vectors, DIMENSION)]
        yield pa.record_batch(columns, schema=SCHEMA)


@pytest.mark.scaled
def test_a_scan_of_a_table_larger_than_its_limit_stays_within_the_limit(tmp_path: Path) -> None:
    uri, total = str(tmp_path / "t"), TABLE_MB * 1024 * 1024 // (DIMENSION * 4)
    lance.write_dataset(pa.RecordBatchReader.from_batches(SCHEMA, rows(total)), uri, max_rows_per_file=100_000)
    writer = mw.enable(uri).shard_writer(fsync=False)
    writer.put({"id": [1, 2, total], "vector": [[0.0] * DIMENSION] * 3})
    done = subprocess.run([sys.executable, "-c", READER, uri], capture_output=True, text=True, timeout=110, check=True)
    seen, grown_mb = map(int, done.stdout.split())
    assert seen == total + 1
    assert grown_mb < LIMIT_MB
    writer.abort()
