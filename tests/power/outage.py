"""Power fails at an instant of a recorded life: what the disk may hold must be a table with all that was acknowledged.

Owns `record_life` (a process with `recorder.c` below it) and `Outages` (states of the disk, and their judge). A trace is
used only if playing all of it gives the very files that the process left.
"""

from __future__ import annotations

import filecmp
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from lance_memwal.errors import CorruptDataError, InvalidInputError, MemWalError
from lance_memwal.table import open_table
from tests.power.disk import REORDERED, Disk, Kind, Record, read_trace
from tests.power.promises import PowerRows, Promises

_HERE = Path(__file__).parent
_CHILD_SECONDS = 120
_MANIFEST = re.compile(r"/table/_versions/\d+\.manifest$|/manifest/[01]+\.binpb$")
_VERSION = re.compile(r"/table/_versions/\d+\.manifest$")
_EFFECTS = frozenset({Kind.NAMED, Kind.RENAMED, Kind.REMOVED, Kind.WROTE, Kind.SYNCED, Kind.MARK})


def record_life(place: Path, seed: int, bug: str = "none", *, story: str = "live") -> Outages:
    """Run one life, or a short story of one, in a process of its own, with one of `BUGS` perhaps; what it did to its disk."""
    library, root, trace = place / "recorder.so", place / "disk", place / "trace"
    compiler = ["gcc", "-O1", "-shared", "-fPIC", "-o", str(library), str(_HERE / "recorder.c"), "-ldl", "-lpthread"]
    subprocess.run(compiler, check=True, timeout=_CHILD_SECONDS)
    root.mkdir()
    environment = {**os.environ, "LD_PRELOAD": str(library), "POWER_ROOT": str(root), "POWER_TRACE": str(trace)}
    command = [sys.executable, "-m", "tests.power.power_child", str(root / "table"), str(seed), story, bug]
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
    outages = Outages(root, place / "after", tuple(read_trace(trace)), PowerRows(seed))
    outages.check_trace()
    return outages


@dataclass(frozen=True, slots=True)
class Outage:
    """Power fails after `records` records; of what was not synced, `fate` decides."""

    records: int
    fate: str
    seed: int = 0


@dataclass
class Outages:
    """The outages of one recorded life; those of later instants are cheaper if they come after those of earlier ones."""

    root: Path
    place: Path
    trace: tuple[Record, ...]
    rows: PowerRows
    _disk: Disk | None = None
    _played: int = 0

    def check_trace(self) -> None:
        """An error unless the records explain every file that the process left."""
        self._restore(Outage(len(self.trace), "everything"))
        differ = _differences(self.root, self.place)
        assert not differ, f"the trace is not whole: {differ[:5]}"

    def instants(self) -> Iterator[int]:
        """After every effect, as long as the table is there and ours: the number of records until then."""
        alone = False
        for count, record in enumerate(self.trace, 1):
            alone = _is_alone(record, before=alone)
            if alone and record.kind in _EFFECTS:
                yield count

    def all(self, fates: Iterable[str], seeds: Iterable[int] = (0,)) -> Iterator[Outage]:
        """Every instant, with each of these fates; those that draw do so once per seed."""
        fates, seeds = list(fates), list(seeds)
        for count in self.instants():
            for fate in fates:
                for seed in seeds if fate in REORDERED else seeds[:1]:
                    yield Outage(count, fate, seed)

    def promised(self) -> Iterator[Outage]:
        """Right after each acknowledgement, with nothing on the disk that was not synced."""
        for count, record in enumerate(self.trace, 1):
            if record.kind == Kind.MARK and record.said[0] in ("created", "returned", "closed"):
                yield Outage(count, "nothing more")

    def named(self) -> Iterator[Outage]:
        """Right after each manifest, of the base table or of a shard, got its name, with no byte that was not synced."""
        alone = False
        for count, record in enumerate(self.trace, 1):
            alone = _is_alone(record, before=alone)
            if alone and record.kind == Kind.NAMED and _MANIFEST.search(record.path):
                yield Outage(count, "names without bytes")

    def named_before_synced(self) -> list[str]:
        """The versions of the base table that got their name while bytes of data files were not synced."""
        files: dict[str, int] = {}
        dirty: set[int] = set()
        found = []
        alone = False
        for record in self.trace:
            alone = _is_alone(record, before=alone)
            match record.kind:
                case Kind.WROTE:
                    dirty.add(record.file)
                case Kind.SYNCED:
                    dirty.discard(record.file)
                case Kind.RENAMED if record.path in files:
                    files[record.data.decode()] = files.pop(record.path)
                case Kind.NAMED:
                    files[record.path] = record.file
                    data = {file for path, file in files.items() if "/table/data/" in path}
                    if alone and _VERSION.search(record.path) and data & dirty:
                        found.append(record.path.rpartition("/")[2])
        return found

    def judge(self, outage: Outage) -> list[str]:
        """What is wrong with the table after this outage."""
        self._restore(outage)
        while True:
            try:
                table = open_table(str(self.place / "table"))
                broken = Promises(self.rows, self.trace[: outage.records]).broken(table)
                # Lance's data has no checksum, and is not synced before its version has a name: `named_before_synced`
                if not broken or outage.fate not in REORDERED or not self._take_back_the_newest_version(outage):
                    return broken
            except MemWalError as error:
                if not self._may_be_torn(outage, error) or not self._take_back_the_newest_version(outage):
                    return [f"{type(error).__name__}: {error}"]

    @staticmethod
    def _may_be_torn(outage: Outage, error: MemWalError) -> bool:
        """Whether an error may be that of a version whose bytes are not there. Lance's manifests have no checksum: one that lost
        bytes in its middle may say that there is no index of ours."""
        return isinstance(error, CorruptDataError) or (
            outage.fate in REORDERED and isinstance(error, InvalidInputError) and "no MemWAL index" in str(error)
        )

    def _take_back_the_newest_version(self, outage: Outage) -> bool:
        """What the page of errors tells people to do about a version that Lance committed in a call that had not ended.

        Never about one of ours, which was synced before it got its name, nor about one of a call that returned, or of plain
        Lance before that call.
        """
        newest = min(self.place.glob("table/_versions/*.manifest"))
        if outage.records >= self._lances.get(newest.name, 0):
            return False
        return newest.rename(self.place / newest.name).exists()

    @cached_property
    def _lances(self) -> dict[str, int]:
        """The versions that Lance named, each with the number of the record at which the call that made it had ended, or
        for plain Lance the next one.

        Lance writes a manifest beside its place, under the same name with a number; ours have no name before.
        """
        found: dict[str, int] = {}
        running: list[str] = []
        for count, record in enumerate(self.trace, 1):
            name, staged, _ = record.path.rpartition("/")[2].partition(".manifest#")
            if record.kind == Kind.NAMED and staged:
                running.append(f"{name}.manifest")
            if record.kind == Kind.MARK and record.said[0] in ("created", "returned"):
                found |= dict.fromkeys(running, count)
                running.clear()
        return found

    def _restore(self, outage: Outage) -> None:
        shutil.rmtree(self.place, ignore_errors=True)
        if self._disk is None or self._played > outage.records:
            self._disk, self._played = Disk(str(self.root)), 0
        for record in self.trace[self._played : outage.records]:
            self._disk.play(record)
        self._played = outage.records
        self._disk.write(self.place, outage.fate, random.Random(f"{outage.seed}/{outage.records}"))


def _is_alone(record: Record, *, before: bool) -> bool:
    """Whether the table is there, and ours: what plain Lance leaves is Lance's."""
    if record.kind == Kind.MARK and record.said[0] in ("created", "others", "ours"):
        return bool(record.said[0] != "others")
    return before


def _differences(left: Path, right: Path) -> list[str]:
    compared = filecmp.dircmp(left, right, ignore=[])
    _, differ, odd = filecmp.cmpfiles(left, right, compared.common_files, shallow=False)
    found = [str(left / name) for name in (*compared.left_only, *compared.right_only, *differ, *odd)]
    return found + [text for name in compared.common_dirs for text in _differences(left / name, right / name)]
