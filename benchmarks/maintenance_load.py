"""`python -m benchmarks.maintenance_load`: a table that is written, read and maintained for some minutes, and a plot of it.

Owns the load, what is measured once a second, and the drawing. The table has 20,000 rows, a BTree, a text and a vector index;
one thread replaces rows at random, one calls `Table.maintain()` every few seconds, one reads. Everything that could grow is
counted: objects, versions of the base table, SSTables that wait, the time of a read.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa

import lance_memwal as mw
from benchmarks.harness import base_directory
from benchmarks.svg import END, opening
from lance_memwal.clock import SYSTEM_CLOCK

__all__ = ["Load", "Moment", "drawing", "halves", "main", "make_table"]

DIM = 16
ROWS = 20_000
ROWS_PER_PUT = 100
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("n", pa.int64()),
        pa.field("t", pa.string()),
        pa.field("v", pa.list_(pa.float32(), DIM)),
    ]
)


@dataclass(frozen=True, slots=True)
class Moment:
    """What the table looked like at one second."""

    seconds: float
    rows_written: int
    objects: int
    versions: int
    uncompacted: int
    waiting_for_indexes: int
    get_ms: float
    search_ms: float


def make_table(place: Path, rows: int = ROWS) -> mw.Table:
    """The table before the load, with its indexes."""
    dataset = lance.write_dataset(_rows(np.arange(rows), 0), str(place))
    dataset.create_scalar_index("n", "BTREE", name="by_n")
    dataset.create_scalar_index("t", "INVERTED", name="by_text")
    dataset.create_index("v", "IVF_FLAT", name="by_vector", num_partitions=8)
    defaults = {"fsync": False, "max_memtable_rows": 2_000, "stats_log_interval_ms": None}
    return mw.enable(str(place), primary_key="id", writer_defaults=defaults)


def _rows(keys: np.ndarray, turn: int) -> pa.Table:
    vectors = np.random.default_rng([turn, int(keys[0])]).normal(size=(len(keys), DIM)).astype(np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIM)
    texts = [f"word{key % 500} turn{turn % 7} key{key}" for key in keys.tolist()]
    return pa.table([pa.array(keys, pa.int64()), pa.array(keys % 100), pa.array(texts), column], schema=SCHEMA)


class Load:
    """Writes, maintains and measures one table until it is told to stop; the first failure ends it."""

    def __init__(self, table: mw.Table, *, maintain_every: float, keep_for: float, puts_per_second: float) -> None:
        self._table = table
        self._every = maintain_every
        self._keep_for = keep_for
        self._pace = 1 / puts_per_second
        self._rows = table.count_rows()
        self._stop = threading.Event()
        self._rows_written = 0
        self.moments: list[Moment] = []
        self.reports: list[mw.MaintenanceReport] = []
        self.failures: list[BaseException] = []

    def run(self, seconds: float) -> list[Moment]:
        """Everything at once for so long; returns a moment per second."""
        started = SYSTEM_CLOCK.monotonic()
        threads = [threading.Thread(target=self._guarded, args=(work,)) for work in (self._write, self._maintain)]
        for thread in threads:
            thread.start()
        while SYSTEM_CLOCK.monotonic() - started < seconds and not self.failures:
            self._stop.wait(1.0)
            self._guarded(lambda: self.moments.append(self._look(started)))
        self._stop.set()
        for thread in threads:
            thread.join()
        if self.failures:
            raise self.failures[0]
        return self.moments

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.failures.append(error)
            self._stop.set()

    def _write(self) -> None:
        random = np.random.default_rng(1)
        with self._table.writer(compaction=None) as writer:
            turn = 0
            while not self._stop.wait(self._pace):
                turn += 1
                writer.put(_rows(np.sort(random.choice(self._rows, ROWS_PER_PUT, replace=False)), turn))
                self._rows_written += ROWS_PER_PUT

    def _maintain(self) -> None:
        while not self._stop.wait(self._every):
            keep_for = timedelta(seconds=self._keep_for)
            self.reports.append(self._table.maintain(versions=keep_for, grace_seconds=self._keep_for))

    def _look(self, started: float) -> Moment:
        place = Path(self._table.uri)
        marks = self._table.details().compacted
        listed = [(shard.shard_id, number) for shard in self._table.shards() for number in shard.generations]
        kept = sum(number <= marks.get(shard_id, 0) for shard_id, number in listed)
        random = np.random.default_rng(len(self.moments))
        keys = random.integers(0, self._rows, 20).tolist()
        query = random.normal(size=DIM).astype(np.float32)
        return Moment(
            seconds=SYSTEM_CLOCK.monotonic() - started,
            rows_written=self._rows_written,
            objects=sum(len(files) for _, _, files in os.walk(place)),
            versions=sum(1 for _ in (place / "_versions").glob("*.manifest")),
            uncompacted=len(listed) - kept,
            waiting_for_indexes=kept,
            get_ms=statistics.median(_timed(partial(self._table.get, key)) for key in keys),
            search_ms=_timed(lambda: self._table.search(vector=query, k=10)),
        )


def _timed(call: Callable[[], object]) -> float:
    started = SYSTEM_CLOCK.monotonic()
    call()
    return 1000 * (SYSTEM_CLOCK.monotonic() - started)


def halves(moments: Sequence[Moment], name: str) -> tuple[float, float]:
    """The medians of one figure in the second and in the last quarter: equal where it does not grow."""
    values, quarter = [float(getattr(moment, name)) for moment in moments], max(1, len(moments) // 4)
    return statistics.median(values[quarter : 2 * quarter]), statistics.median(values[-quarter:])


# ------------------------------------------------------------------------------------------------------------ drawing

_PANELS = (
    ("objects", "objects below the table"),
    ("versions", "versions of the base table"),
    ("uncompacted", "SSTables that are not compacted"),
    ("waiting_for_indexes", "compacted SSTables that wait for an index"),
    ("get_ms", "one get, milliseconds (median of 20)"),
    ("search_ms", "one vector search, milliseconds"),
)
_WIDTH, _HEIGHT, _POINTS = 300, 90, 120


def drawing(moments: Sequence[Moment]) -> str:
    """A small picture of all figures over time, as SVG."""
    panels = [_panel(moments, *panel, at=number) for number, panel in enumerate(_PANELS)]
    size = 2 * (_WIDTH + 40), 3 * (_HEIGHT + 50)
    text = "Over time: " + "; ".join(title for _, title in _PANELS)
    return "\n".join(
        [*opening("maintenance", size, "A table that is written and maintained", text), *panels, f"{END}\n"]
    )


def _panel(moments: Sequence[Moment], name: str, title: str, *, at: int) -> str:
    left, top = 30 + (at % 2) * (_WIDTH + 40), 30 + (at // 2) * (_HEIGHT + 50)
    step = max(1, len(moments) // _POINTS)
    chosen = moments[::step]
    most = max(1.0, *(float(getattr(moment, name)) for moment in moments))
    end = moments[-1].seconds
    points = " ".join(
        f"{left + _WIDTH * m.seconds / end:.0f},{top + _HEIGHT * (1 - getattr(m, name) / most):.0f}" for m in chosen
    )
    return (
        f'<text class="mw-small" x="{left}" y="{top - 8}">{title} (top: {most:,.0f})</text>'
        f'<path class="mw-axis" d="M{left} {top}v{_HEIGHT}h{_WIDTH}"/>'
        f'<polyline class="mw-line" points="{points}"/>'
        f'<text class="mw-small" x="{left + _WIDTH}" y="{top + _HEIGHT + 14}" text-anchor="end">{end / 60:.1f} minutes</text>'
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the load and print what came of it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.maintenance_load", description=(__doc__ or "")[:80])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--every", type=float, default=5, help="seconds between two maintenances")
    parser.add_argument("--keep-for", type=float, default=30, help="seconds that old versions and objects stay")
    parser.add_argument("--puts-per-second", type=float, default=20)
    parser.add_argument("--svg", type=Path, help="draw the figures to this file")
    parser.add_argument("--dir", type=Path, help="work below this directory instead of tmpfs")
    options = parser.parse_args(arguments)
    place = (options.dir or base_directory()) / "memwal-maintenance-load"
    shutil.rmtree(place, ignore_errors=True)
    try:
        load = Load(
            make_table(place),
            maintain_every=options.every,
            keep_for=options.keep_for,
            puts_per_second=options.puts_per_second,
        )
        moments = load.run(options.seconds)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    for name, title in _PANELS:
        early, late = halves(moments, name)
        print(f"{title:45} second quarter {early:8.1f}   last quarter {late:8.1f}")
    longest = max((report.seconds for report in load.reports), default=0.0)
    print(f"{moments[-1].rows_written:,} rows written, {len(load.reports)} maintenances, the longest {longest:.1f} s")
    if options.svg is not None:
        options.svg.write_text(drawing(moments))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
