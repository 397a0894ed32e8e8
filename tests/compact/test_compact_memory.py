"""A compaction streams: its memory is bounded by its limit and by what Lance needs to write, not by the SSTables."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_memwal as mw
from tests.harness.profile import scaled

DIMENSION = 128
LIMIT_MB = 320
GENERATION_MB = scaled(ci=600, prove=4 * LIMIT_MB)
SCHEMA = pa.schema([("id", pa.int64()), ("vector", pa.list_(pa.float32(), DIMENSION))])
COMPACTOR = """
import resource, sys
import lance_memwal as mw
table = mw.open_table(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
report = table.compact(memory_bytes=64 << 20)
print(report.rows_written, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.scaled
@pytest.mark.parametrize("key", ["id", None])
def test_a_generation_larger_than_the_limit_is_streamed(tmp_path: Path, key: str | None) -> None:
    uri, total = str(tmp_path / "t"), GENERATION_MB * 1024 * 1024 // (DIMENSION * 4)
    defaults = {"fsync": False, "max_entry_bytes": 1 << 20}  # a larger put becomes a generation of its own
    table = mw.create_table(uri, SCHEMA, primary_key=key, sharding=mw.Unsharded(), writer_defaults=defaults)
    vectors = pa.array(np.random.default_rng(3).random(total * DIMENSION, dtype=np.float32))
    with table.writer(compaction=None) as writer:
        rows = [np.arange(total), pa.FixedSizeListArray.from_arrays(vectors, DIMENSION)]
        writer.put(pa.table(rows, schema=table.schema))
    assert [info.generations for info in table.shards()] == [(1,)]
    done = subprocess.run(
        [sys.executable, "-c", COMPACTOR, uri], capture_output=True, text=True, timeout=110, check=True
    )
    written, grown_mb = map(int, done.stdout.split())
    assert written == lance.dataset(uri).count_rows() == total
    assert grown_mb < LIMIT_MB
