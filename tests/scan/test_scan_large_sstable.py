"""A scan streams an SSTable that is too large to be kept: its memory is not that of the SSTable."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import lance_memwal as mw
from tests.harness.profile import scaled

DIMENSION = 128
LIMIT_MB = 320
GENERATION_MB = scaled(ci=600, prove=4 * LIMIT_MB)
SCHEMA = pa.schema([("id", pa.int64()), ("vector", pa.list_(pa.float32(), DIMENSION))])
READER = """
import resource, sys
import lance_memwal as mw
table = mw.open_table(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
ids = [number for batch in table.scan() for number in batch.column("id").to_pylist()[::1000]]
print(len(ids), sum(ids), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.scaled
def test_a_scan_of_a_generation_larger_than_its_limit_stays_within_the_limit(tmp_path: Path) -> None:
    uri, total = str(tmp_path / "t"), GENERATION_MB * 1024 * 1024 // (DIMENSION * 4)
    defaults = {"fsync": False, "max_entry_bytes": 1 << 20}  # a larger put becomes a generation of its own
    table = mw.create_table(uri, SCHEMA, primary_key="id", sharding=mw.Unsharded(), writer_defaults=defaults)
    vectors = pa.array(np.random.default_rng(3).random(total * DIMENSION, dtype=np.float32))
    with table.writer(compaction=None) as writer:
        rows = [np.arange(total), pa.FixedSizeListArray.from_arrays(vectors, DIMENSION)]
        writer.put(pa.table(rows, schema=table.schema))
    assert [info.generations for info in table.shards()] == [(1,)]
    done = subprocess.run([sys.executable, "-c", READER, uri], capture_output=True, text=True, timeout=110, check=True)
    seen, _, grown_mb = map(int, done.stdout.split())
    assert seen >= total // 1000
    assert mw.open_table(uri).count_rows() == total
    assert grown_mb < LIMIT_MB
