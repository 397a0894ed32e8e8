"""What compaction costs beside one plain merge of the same rows, and what is left of 200 generations afterwards.

The peer of the compaction is the cheapest way to get the same rows into the same table by hand: one `merge_insert` of
rows that somebody already de-duplicated in memory. Ours reads 200 SSTables, finds the newest row of every key, replaces
rows, records the progress, syncs nothing (both sides) and trims the manifest. The peer of the scan after compaction and
collection is a scan of the plain dataset. The three ways of the append-only case: ours is one commit with the mark, the
peer appends the rows, which are in memory already.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
import time
from functools import cache, partial
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import lance_memwal as mw
from benchmarks.harness import Bench, Case, Sample, base_directory

GENERATIONS = 200
_ROWS = 10_000  # a tenth of what a memtable holds by default
_FEW_ROWS = 2_000  # here opening files is most of the work
_ROUNDS = 5


def cases() -> list[Case]:
    """The cases of this module."""
    return [
        Case("compact 200 generations, by key", partial(compact, True), merge, goal=0.8, unit="rows/s", rounds=_ROUNDS),
        Case(
            "compact 200 small generations, by key",
            partial(compact, True, rows=_FEW_ROWS),
            partial(merge, rows=_FEW_ROWS),
            goal=None,
            unit="rows/s",
            rounds=_ROUNDS,
        ),
        Case(
            "compact 200 generations, append-only",
            partial(compact, False),
            append,
            goal=None,
            unit="rows/s",
            rounds=_ROUNDS,
        ),
        Case("scan after compaction and collection", scan, plain_scan, goal=1.1, unit="ms", rounds=7),
    ]


@cache
def _template(keyed: bool, rows: int) -> Path:
    """A table with 200 generations; two thirds of their rows replace rows of a base that is twice as large."""
    place = Path(tempfile.mkdtemp(prefix="memwal-bench-template-", dir=base_directory()))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    schema = pa.schema([("id", pa.int64()), ("value", pa.float64()), ("name", pa.string())])
    table = mw.create_table(
        str(place / "table"),
        schema,
        primary_key="id" if keyed else None,
        sharding=mw.Unsharded(),
        writer_defaults={"fsync": False},
    )
    lance.write_dataset(_rows(table, np.arange(GENERATIONS * rows * 2)), table.uri, mode="append")
    rng = np.random.default_rng(5)
    with table.writer(compaction=None, max_memtable_rows=1 << 30) as writer:
        for _ in range(GENERATIONS):
            ids = rng.choice(GENERATIONS * rows * 3, rows, replace=False)
            writer.put(_rows(table, ids))
            writer.flush()
    return place / "table"


def _rows(table: mw.Table, ids: np.ndarray) -> pa.Table:
    names = [f"row number {number}" for number in ids.tolist()]
    return pa.table({"id": ids, "value": ids.astype(np.float64), "name": names}, schema=table.schema)


def _copy(bench: Bench, keyed: bool, rows: int = _ROWS) -> mw.Table:
    place = Path(bench.directory) / "table"
    shutil.copytree(_template(keyed, bench.scale(rows, 100)), place)
    return mw.open_table(str(place))


def compact(keyed: bool, bench: Bench, *, rows: int = _ROWS) -> Sample:
    """Fold everything with `Table.compact`."""
    table = _copy(bench, keyed, rows)
    start = time.perf_counter()
    report = table.compact()
    seconds = time.perf_counter() - start
    assert report.generations == GENERATIONS
    return Sample(report.rows_written / seconds)


def merge(bench: Bench, *, rows: int = _ROWS) -> Sample:
    """Merge the same rows, de-duplicated and in memory, with one call of Lance."""
    table = _copy(bench, True, rows)
    report = mw.open_table(table.uri).scan(with_generation=True).to_table()
    fresh = report.filter(pc.greater(report["_memtable_gen"], 0)).drop_columns(["_memtable_gen"])
    dataset = lance.dataset(table.uri)
    start = time.perf_counter()
    dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(fresh)
    return Sample(fresh.num_rows / (time.perf_counter() - start))


def append(bench: Bench) -> Sample:
    """Append the same rows, in memory, with one call of Lance."""
    table = _copy(bench, False)
    report = table.scan(with_generation=True).to_table()
    rows = report.filter(pc.greater(report["_memtable_gen"], 0)).drop_columns(["_memtable_gen"])
    start = time.perf_counter()
    lance.write_dataset(rows, table.uri, mode="append")
    return Sample(rows.num_rows / (time.perf_counter() - start))


def _collected(bench: Bench) -> mw.Table:
    table = _copy(bench, True)
    table.compact()
    table.gc(grace_seconds=0)
    left = sum(path.is_file() for path in (Path(bench.directory) / "table" / "_mem_wal").rglob("*"))
    assert left <= 8, f"{left} objects are left of {GENERATIONS} generations"
    return mw.open_table(table.uri)


def scan(bench: Bench) -> Sample:
    """Scan through the merged read path."""
    table = _collected(bench)
    return _fastest(lambda: table.scan().to_table())


def plain_scan(bench: Bench) -> Sample:
    """Scan the dataset."""
    table = _collected(bench)
    dataset = lance.dataset(table.uri)
    return _fastest(lambda: dataset.to_table())


def _fastest(read: object) -> Sample:
    seconds = []
    for _ in range(8):
        start = time.perf_counter()
        read()  # type: ignore[operator]
        seconds.append(time.perf_counter() - start)
    return Sample(min(seconds) * 1e3)  # the one that others disturbed least
