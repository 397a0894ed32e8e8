"""Overload, and a full disk: what gives way, and that all is well afterwards.

Owns `overload` and `full_disk`; each makes a table of its own, and returns what broke in words (nothing: it held) beside its
figures. `Storm` judges the figures of an overload; times and memory only after `JUDGED_SECONDS`. The full disk is a small tmpfs
where one can be mounted, else a store that says so.
"""

from __future__ import annotations

import errno
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

import lance_memwal as mw
from lance_memwal import crash_points
from lance_memwal.lance.base import BaseTable
from lance_memwal.store.files import unavailable
from lance_memwal.store.location import resolve
from lance_memwal.store.wrap import WrappedStore
from lance_memwal.testing.clocks import SkippingClock
from tests.kit.tables import compact_everything
from tests.soak.figures import JUDGED_SECONDS, percentile, status_of

_SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("payload", pa.binary())])
_ROW_BYTES = 4_096
_ROWS_PER_PUT = 16
_LIMIT = 8 << 20
_MEMTABLE = 2 << 20
_THREADS = 4
_DISK_MIB = 64
_REFUSALS = 2
_MIB = 1 << 20
_PATIENCE_SECONDS = 60.0  # for the first put that waits, on a machine where all of them are slow


@dataclass(slots=True)
class Outcome:
    """The figures of an episode, and the promises that it broke."""

    name: str
    figures: dict[str, Any] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    def need(self, held: bool, what: str) -> None:
        """Note `what` as broken unless it held."""
        if not held:
            self.broken.append(f"{self.name}: {what}; {self.figures}")

    def __str__(self) -> str:
        return f"{self.name}: " + ", ".join(f"{name} {value}" for name, value in self.figures.items())


def _rows(first: int, count: int) -> pa.Table:
    payload = [key.to_bytes(8, "little", signed=True) * (_ROW_BYTES // 8) for key in range(first, first + count)]
    return pa.table([pa.array(range(first, first + count), pa.int64()), pa.array(payload)], schema=_SCHEMA)


# --------------------------------------------------------------------------------------------------------------- overload


@dataclass(frozen=True, slots=True)
class Storm:
    """The figures of an overload."""

    seconds: float
    rows: int
    waited: int
    most_bytes: int
    grown_mib: float
    before_ms: float
    after_ms: float
    lost: int = 0
    invented: int = 0

    def broken(self) -> list[str]:
        """The promises that it broke. Times and the memory of a whole process say something only after a long run."""
        most = _LIMIT + _MEMTABLE + _THREADS * _ROWS_PER_PUT * _ROW_BYTES * 2
        long = self.seconds >= JUDGED_SECONDS
        needs = {
            "no put waited, so it was no overload": self.waited > 0,
            "memtables grew past their limit": self.most_bytes <= most,
            "memory grew": not long or self.grown_mib < 20 * _LIMIT / _MIB,
            "puts stayed slow afterwards": not long or self.after_ms <= 3 * self.before_ms + 10,
            f"{self.lost} acknowledged rows are lost, {self.invented} are invented": not (self.lost or self.invented),
        }
        return [what for what, held in needs.items() if not held]


def overload(place: Path, seconds: float) -> Outcome:
    """Puts that come faster than flushes wait for them: memory is bounded, and later puts are as fast as before."""
    table = mw.create_table(str(place), _SCHEMA, primary_key="id", writer_defaults={"fsync": False})
    sizes = {"max_memtable_size": _MEMTABLE, "max_unflushed_memtable_bytes": _LIMIT}
    with table.writer(compaction=None, stats_log_interval_ms=None, **sizes) as writer:
        before = _calm(writer, -1_000)
        (shard,) = writer.shard_writers.values()
        assert isinstance(shard, mw.ShardWriter)
        memory = status_of("self", "VmRSS")
        with _slow_flushes():
            made, most = _storm(writer, shard, seconds)
        writer.flush()
        after = _calm(writer, -2_000)
        waits = shard.backpressure_stats()
    grown = (status_of("self", "VmRSS") - memory) / 1024
    keys = set().union(*made)
    there = set(table.scan(["id"], filter="id >= 0").to_table().column("id").to_pylist())
    lost, invented = len(keys - there), len(there - keys)
    storm = Storm(seconds, len(keys), waits.total_count, most, grown, before, after, lost, invented)
    outcome = Outcome("overload", asdict(storm))
    for what in storm.broken():
        outcome.need(False, what)
    return outcome


def _calm(writer: mw.TableWriter, first: int) -> float:
    """The median of some puts that nobody disturbs, in milliseconds."""
    times = []
    for number in range(30):
        began = time.monotonic()
        writer.put(_rows(first + number, 1))
        times.append(1000 * (time.monotonic() - began))
    return percentile(times, 50)


@contextmanager
def _slow_flushes() -> Iterator[None]:
    def slow(point: str) -> None:
        if point == "flush.before_write":
            time.sleep(0.3)

    crash_points.install(slow)
    try:
        yield
    finally:
        crash_points.install(None)


def _storm(writer: mw.TableWriter, shard: mw.ShardWriter, seconds: float) -> tuple[list[range], int]:
    """As many puts as threads can make, until one had to wait; returns the keys that were acknowledged, and the most bytes
    seen in memtables."""
    began, keys = time.monotonic(), [range(0)] * _THREADS

    def goes_on() -> bool:
        none_waited = shard.backpressure_stats().total_count == 0
        return time.monotonic() < began + (max(seconds, _PATIENCE_SECONDS) if none_waited else seconds)

    def put(number: int) -> None:
        first = end = number * 10_000_000
        while goes_on():
            writer.put(_rows(end, _ROWS_PER_PUT))
            end += _ROWS_PER_PUT
            keys[number] = range(first, end)

    threads = [threading.Thread(target=put, args=(number,)) for number in range(_THREADS)]
    for thread in threads:
        thread.start()
    most = 0
    while any(thread.is_alive() for thread in threads):
        now = shard.memtable_stats()
        most = max(most, now.estimated_size + now.frozen_bytes)
        time.sleep(0.01)
    return keys, most


# -------------------------------------------------------------------------------------------------------------- full disk


def full_disk(place: Path, *, mount: bool = True) -> Outcome:
    """A full disk refuses writes by a typed error and loses nothing; with space again, everything goes on."""
    outcome = Outcome("full disk")
    place.mkdir()
    with _small_disk(place, mount=mount) as disk:
        outcome.figures["kind"] = disk.kind
        table = disk.create(place / "t")
        keys = _until_full(disk, table, outcome)
        _look_after(outcome, "maintain on the full disk", table.maintain)
        seen = set(table.scan(["id"]).to_table().column("id").to_pylist())
        outcome.need(keys <= seen, f"{len(keys - seen)} acknowledged rows are gone while the disk is full")
        disk.free()
        with table.writer(compaction=None) as writer:
            writer.put(_rows(-100, 10))
            writer.flush()
        table.maintain()
        seen = set(table.scan(["id"], filter="id >= 0").to_table().column("id").to_pylist())
        outcome.need(keys <= seen, f"{len(keys - seen)} acknowledged rows are lost")
        outcome.need(table.count_rows("id < 0") == 10, "rows after the disk had space are not there")
        outcome.need(table.verify().ok, f"verify: {table.verify().problems[:3]}")
        compact_everything(table)
        outcome.figures |= {"rows": len(keys), "rows beyond": len(seen - keys)}
    return outcome


def _until_full(disk: _Disk, table: mw.Table, outcome: Outcome) -> set[int]:
    """Put until it is refused, and a few times more; returns the keys that were acknowledged."""
    keys: set[int] = set()
    errors: list[str] = []
    for attempt in range(_REFUSALS):
        writer: mw.TableWriter | None = None
        try:
            writer = table.writer(compaction=None, max_memtable_size=_MEMTABLE, stats_log_interval_ms=None)
            for number in range(2_000):
                first = attempt * 1_000_000 + number * _ROWS_PER_PUT
                writer.put(_rows(first, _ROWS_PER_PUT))
                keys.update(range(first, first + _ROWS_PER_PUT))
                disk.fill(number, writer)
        except mw.MemWalError as error:
            errors.append(type(error).__name__)
        finally:
            if writer is not None:
                writer.abort()
    outcome.figures["errors"] = errors
    outcome.need(len(errors) == _REFUSALS, "the disk took everything")
    return keys


def _look_after(outcome: Outcome, what: str, call: Callable[[], object]) -> None:
    try:
        call()
    except mw.MemWalError as error:
        outcome.figures[what] = type(error).__name__
    else:
        outcome.figures[what] = "done"


class _Disk:
    """A tmpfs with a ballast that goes when space is wanted."""

    kind = "tmpfs"

    def __init__(self, place: Path) -> None:
        self._ballast = place / "ballast"
        self._ballast.write_bytes(bytes(_DISK_MIB * _MIB * 3 // 4))

    def create(self, place: Path) -> mw.Table:
        return mw.create_table(str(place), _SCHEMA, primary_key="id", writer_defaults={"fsync": False})

    def fill(self, number: int, writer: mw.TableWriter) -> None:
        """It fills by itself."""

    def free(self) -> None:
        self._ballast.unlink()


class _Full(WrappedStore):
    """A store that creates nothing while it is full."""

    full = False

    def around(self, kind: str, call: Callable[..., Any], path: str, *rest: Any, **options: Any) -> Any:
        if self.full and kind in ("put", "put_new", "make_directory"):
            raise unavailable("write", path, OSError(errno.ENOSPC, "No space left on device"), ambiguous=False)
        return call(path, *rest, **options)


class _ToldDisk(_Disk):
    """A store that says that there is no space."""

    kind = "store"

    def __init__(self, place: Path) -> None:
        self._stores: list[_Full] = []

    def _wrap(self, store: Any) -> _Full:
        self._stores.append(_Full(store))
        return self._stores[-1]

    def create(self, place: Path) -> mw.Table:
        super().create(place)
        location = resolve(str(place), wrap=self._wrap, clock=SkippingClock())  # no retry makes space
        return mw.Table(location, BaseTable.need(location))

    def fill(self, number: int, writer: mw.TableWriter) -> None:
        if number == 50:
            writer.flush()  # so that there is something to maintain
        elif number == 100:
            self._set(True)

    def free(self) -> None:
        self._set(False)

    def _set(self, full: bool) -> None:
        for store in self._stores:
            store.full = full


@contextmanager
def _small_disk(place: Path, *, mount: bool) -> Iterator[_Disk]:
    command = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_MIB}m", "none", str(place)]
    if not mount or subprocess.run(command, capture_output=True, check=False).returncode:
        yield _ToldDisk(place)
        return
    try:
        yield _Disk(place)
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
