"""What a worker process holds while it runs a task: 312 MB of logs were 735 MB in each of them."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.spark.data_source import MemWalSource

SHARDS, PUTS, PUT_ROWS, ROW_BYTES = 8, 78, 4000, 1000
_MIB = 1 << 20
_TASK = """
import json, pickle, sys
import lance_memwal.spark.source

def peak():  # of this program: what the system counts for a process begins with its parent
    (line,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024

reader, part = pickle.loads(open(sys.argv[1], "rb").read())
before, rows = peak(), 0
for batch in reader.read(part):
    rows += batch.num_rows
print(json.dumps({"rows": rows, "grown": peak() - before}))
"""


def in_a_worker(tmp_path: Path, reader: Any, part: Any) -> dict[str, int]:
    """What a process of its own that runs one task reads, and how far its memory grows."""
    sent = tmp_path / "task"
    sent.write_bytes(pickle.dumps((reader, part)))
    done = subprocess.run([sys.executable, "-c", _TASK, str(sent)], capture_output=True, text=True, check=True)
    found: dict[str, int] = json.loads(done.stdout)
    return found


@pytest.mark.prove
def test_a_worker_holds_keys_of_all_logs_and_rows_of_its_own(tmp_path: Path, uri: str) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
    sharding, fast = mw.Bucket("id", SHARDS), {"fsync": False, "max_memtable_size": 1 << 30}
    base = {"id": list(range(100_000)), "text": ["base"] * 100_000}
    table = mw.create_table(
        uri, pa.table(base, schema=schema), primary_key="id", sharding=sharding, writer_defaults=fast
    )
    late, fresh = table.writer(compaction=None), PUTS * PUT_ROWS
    for start in range(50_000, 50_000 + fresh, PUT_ROWS):
        late.put({"id": list(range(start, start + PUT_ROWS)), "text": ["x" * ROW_BYTES] * PUT_ROWS})
    late.abort()
    logs = fresh * ROW_BYTES
    assert logs > 300 * 10**6
    source = MemWalSource({"path": uri})
    reader: Any = source.reader(source.schema())
    found = [(part.value, in_a_worker(tmp_path, reader, part)) for part in reader.partitions()]
    assert sum(seen["rows"] for _, seen in found) == 50_000 + fresh
    grown = [(len(part.fragments), len(part.shards), seen["grown"] // _MIB) for part, seen in found]
    print(f"{logs // _MIB} MiB of logs; fragments, shards and MiB of each task: {grown}")
    for part, seen in found:
        own = logs * len(part.shards) / SHARDS
        assert seen["grown"] < 2.5 * own + 128 * _MIB
        assert len(part.shards) <= 2  # 64 MiB are reached
