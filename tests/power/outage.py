"""Power fails at every instant of a recorded life: what the disk may hold must be a table with all that was acknowledged.

Owns `record_life` (a process with `recorder.c` below it) and `Outages` (states of the disk, and their judge). A trace is
used only if playing all of it gives the very files that the process left.
"""

from __future__ import annotations

import filecmp
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lance_memwal.errors import CorruptDataError, MemWalError
from lance_memwal.table import open_table
from tests.harness.crash_tables import TableKind
from tests.harness.oracle import Oracle, Write
from tests.power.disk import FATES, Disk, Kind, Record, read_trace

__all__ = ["Outage", "Outages", "record_life"]

_HERE = Path(__file__).parent
_CHILD_SECONDS = 120
_EFFECTS = frozenset({Kind.NAMED, Kind.RENAMED, Kind.REMOVED, Kind.WROTE, Kind.SYNCED, Kind.MARK})


def record_life(place: Path, seed: int, writes: int, bug: str = "none") -> Outages:
    """Run one life in a process of its own, with one of the bugs of `power_child` perhaps; what it did to its disk."""
    library, root, trace = place / "recorder.so", place / "disk", place / "trace"
    compiler = ["gcc", "-O1", "-shared", "-fPIC", "-o", str(library), str(_HERE / "recorder.c"), "-ldl", "-lpthread"]
    subprocess.run(compiler, check=True, timeout=_CHILD_SECONDS)
    root.mkdir()
    environment = {**os.environ, "LD_PRELOAD": str(library), "POWER_ROOT": str(root), "POWER_TRACE": str(trace)}
    command = [sys.executable, "-m", "tests.power.power_child", str(root / "table"), str(seed), str(writes), bug]
    done = subprocess.run(
        command,
        env=environment,
        cwd=_HERE.parents[1],
        timeout=_CHILD_SECONDS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    outages = Outages(root, place / "after", tuple(read_trace(trace)))
    outages.check_trace()
    return outages


@dataclass(frozen=True, slots=True)
class Outage:
    """Power fails after `records` records; of what was not synced, `fate` decides."""

    records: int
    fate: str
    seed: int = 0


@dataclass(frozen=True)
class Outages:
    """The outages of one recorded life."""

    root: Path
    place: Path
    trace: tuple[Record, ...]

    def check_trace(self) -> None:
        """An error unless the records explain every file that the process left."""
        self._restore(Outage(len(self.trace), "everything"))
        differ = _differences(self.root, self.place)
        assert not differ, f"the trace is not whole: {differ[:5]}"

    def all(self, seed: int = 0) -> Iterator[Outage]:
        """Every instant, with every fate."""
        alone = False
        for count, record in enumerate(self.trace, 1):
            if record.kind == Kind.MARK and record.said[0] in ("created", "others", "ours"):
                alone = record.said[0] != "others"  # what Lance alone leaves is Lance's
            if alone and record.kind in _EFFECTS:
                for fate in FATES:
                    yield Outage(count, fate, seed)

    def promised(self) -> Iterator[Outage]:
        """Right after each acknowledgement, with nothing on the disk that was not synced."""
        for count, record in enumerate(self.trace, 1):
            if record.kind == Kind.MARK and record.said[0] in ("created", "returned", "closed"):
                yield Outage(count, "nothing more")

    def judge(self, outage: Outage) -> list[str]:
        """What is wrong with the table after this outage."""
        self._restore(outage)
        broken = self._open(outage)
        if broken and broken[0].startswith(CorruptDataError.__name__) and self._take_back_the_newest_version():
            return self._open(outage)
        return broken

    def _take_back_the_newest_version(self) -> bool:
        """What the page of errors tells people to do about a version that Lance committed, and did not sync."""
        newest = min(self.place.glob("table/_versions/*.manifest"))
        return newest.rename(self.place / newest.name).exists()

    def _open(self, outage: Outage) -> list[str]:
        kind, oracle = TableKind("integer"), self._oracle(outage.records)
        try:
            table = open_table(str(self.place / "table"))
            broken = oracle.check(kind.rows_of(table.to_arrow()))
            if broken:
                return [str(item) for item in broken]
            with table.writer() as writer:  # recovery: the log is replayed, flushed and written to
                writer.put(kind.batch_of([0], 1_000_000), missing="null")
            oracle.issued(0, Write(1_000_000, (0,)))
            oracle.returned(0, durable=True)
            return [str(item) for item in oracle.check(kind.rows_of(open_table(table.uri).to_arrow()))]
        except MemWalError as error:
            return [f"{type(error).__name__}: {error}"]

    def _oracle(self, records: int) -> Oracle:
        oracle = Oracle()
        for record in self.trace[:records]:
            match record.said if record.kind == Kind.MARK else [""]:
                case ["issued", number, keys, deletes]:
                    oracle.issued(0, Write(number, tuple(keys), deletes))
                case ["returned"]:
                    oracle.returned(0, durable=True)
        return oracle

    def _restore(self, outage: Outage) -> None:
        shutil.rmtree(self.place, ignore_errors=True)
        disk, fate = Disk(str(self.root)), FATES[outage.fate]
        for record in self.trace[: outage.records]:
            disk.play(record)
        disk.write(self.place, fate, random.Random(f"{outage.seed}/{outage.records}"))


def _differences(left: Path, right: Path) -> list[str]:
    compared = filecmp.dircmp(left, right, ignore=[])
    _, differ, odd = filecmp.cmpfiles(left, right, compared.common_files, shallow=False)
    found = [str(left / name) for name in (*compared.left_only, *compared.right_only, *differ, *odd)]
    return found + [text for name in compared.common_dirs for text in _differences(left / name, right / name)]
