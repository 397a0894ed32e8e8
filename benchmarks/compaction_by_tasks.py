"""What a compaction by tasks costs beside one in one process: `python -m benchmarks.compaction_by_tasks`.

Owns the comparison. There is no Spark in it: tasks run one after the other, in line, so that the seconds of CPU say what is done
twice, or for nothing. Spark adds the start of two stages. Narrow rows, eight fragments, four shards; a tenth of the base is
folded into it, half of that with new keys.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import lance
import pyarrow as pa

import lance_memwal as mw
from benchmarks.bench_spark import SCHEMA, table_at
from benchmarks.harness import base_directory
from lance_memwal.lance.base import BaseTable
from lance_memwal.spark.distributed import distributed_compactor
from lance_memwal.spark.stages import Job
from lance_memwal.store.location import resolve

_MEMORY_BYTES = 1 << 30
_PUT_ROWS = 50_000


def in_line(arguments: Sequence[str], work: Callable[[str], str]) -> list[str]:
    """What Spark does with tasks, without Spark."""
    return [work(argument) for argument in arguments]


def by_tasks(uri: str) -> None:
    """Both stages and the commit."""
    location = resolve(uri)
    job = Job(uri, _MEMORY_BYTES, fsync=False)
    distributed_compactor(job, in_line, location, lambda: BaseTable.need(location)).run()


def in_one_process(uri: str) -> None:
    """One merge."""
    mw.open_table(uri).compact()


def make(place: Path, rows: int) -> pa.Table:
    """A base of `rows`, and generations above it; what the table must hold in the end."""
    ids = pa.array(range(rows + rows // 20), pa.int64())
    data = pa.table({"id": ids, "n": ids.cast(pa.int32()), "x": ids.cast(pa.float64())}, schema=SCHEMA)
    table = table_at(place, keyed=True)
    lance.write_dataset(data.slice(0, rows), str(place), mode="append", max_rows_per_file=rows // 8)
    with table.writer(compaction=None) as writer:
        for start in range(rows - rows // 20, data.num_rows, _PUT_ROWS):
            writer.put(data.slice(start, _PUT_ROWS))
    return data


def measure(rows: int, root: Path) -> None:
    """Print a line of the table."""
    data, cells = make(root / "table", rows), [f"{rows:,}"]
    for way in (in_one_process, by_tasks):
        place = root / way.__name__
        shutil.copytree(root / "table", place)
        began = time.process_time()
        way(str(place))
        cells.append(f"{time.process_time() - began:.2f}")
        if lance.dataset(str(place)).count_rows() != data.num_rows:
            raise AssertionError(f"{way.__name__} lost or repeated rows")
    print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print the seconds of CPU of both ways at some sizes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[500_000, 2_000_000, 8_000_000])
    print("| rows of the base | one process | by tasks |\n|---|---|---|")
    for rows in parser.parse_args().rows:
        root = Path(tempfile.mkdtemp(prefix="memwal-bench-", dir=base_directory()))
        try:
            measure(rows, root)
        finally:
            shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
