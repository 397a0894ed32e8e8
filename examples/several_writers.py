"""Several writer processes on one table: each owns its shards, a reader sees all of them, a takeover is clean.

Run: `python examples/several_writers.py`
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa

import lance_memwal as mw

REGIONS = ("eu", "us", "ap")
SCHEMA = pa.schema([("region", pa.string()), ("id", pa.int64()), ("value", pa.int64())])


def write(uri: str, region: str) -> None:
    """One process: all rows of one region go to one shard, which this process owns."""
    shard_id = mw.shard_id_for(mw.Identity("region"), region)
    with mw.open_table(uri).shard_writer(shard_id) as writer:
        for start in range(0, 500, 50):
            ids = range(start, start + 50)
            writer.put({"region": [region] * 50, "id": list(ids), "value": [i * i for i in ids]})
    print(f"{region}: done with epoch {writer.epoch}")


def main() -> None:
    """Start a process per region, then read the whole table."""
    with tempfile.TemporaryDirectory() as directory:
        uri = str(Path(directory) / "regions")
        table = mw.create_table(uri, SCHEMA, primary_key=["region", "id"], sharding=mw.Identity("region"))
        commands = [[sys.executable, __file__, uri, region] for region in REGIONS]
        processes = [subprocess.Popen(command) for command in commands]  # noqa: S603
        if any(process.wait(120) for process in processes):
            raise SystemExit("a writer failed")
        print(f"{table.count_rows()} rows in {len(table.shards())} shards")
        print(table.get(("eu", 7)))
        write(uri, "eu")  # a second writer takes the shard over: the epoch grows, nothing is lost or doubled
        print(f"{table.count_rows()} rows after the takeover")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        write(sys.argv[1], sys.argv[2])
    else:
        main()
