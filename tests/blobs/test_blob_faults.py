"""Faults at the range reads of blobs that another implementation put beside its log: none is lost, torn or swapped."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance.blob import blob_array, blob_field
from peer_child import blob_of

import lance_memwal as mw
from lance_memwal.errors import CorruptDataError
from lance_memwal.process.cache import CACHE
from lance_memwal.store.location import resolve
from lance_memwal.testing import FaultKind, FaultPlan, FaultScript, SimulatedCrash
from lance_memwal.testing.clocks import SkippingClock

ID = pa.field("id", pa.int64(), False, metadata={"lance-schema:unenforced-primary-key": "true"})
SHARD = mw.shard_id_for(mw.Unsharded(), None)
SIZES = {1: "4", 10: "20", 11: "150000", 12: "200000"}
# A wrong bit is left out: those files have no checksum, and neither has the entry for them.
KINDS = [kind for kind in FaultKind if kind.applies_to("get_range") and kind is not FaultKind.BIT_FLIP]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table in whose log pylance left blobs, small ones and large ones."""
    place = tmp_path_factory.mktemp("peer") / "t"
    schema = pa.schema([ID, blob_field("image"), ("n", pa.string())])
    rows = pa.Table.from_arrays([pa.array([1]), blob_array([blob_of(1, SIZES[1])]), pa.array(["1"])], schema=schema)
    lance.write_dataset(rows, str(place), data_storage_version="2.2").initialize_mem_wal(unsharded=True)
    child = Path(__file__).parent / "peer_child.py"
    puts = [f"{key}={size}" for key, size in SIZES.items() if key >= 10]
    done = subprocess.run(
        [sys.executable, str(child), "put", str(place), SHARD, *puts], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
    return place


@dataclass(frozen=True, slots=True)
class OneRange(FaultPlan):
    """The range read of this number meets a fault, whatever else is called meanwhile."""

    number: int = 0
    kind: FaultKind = FaultKind.SHORT_READ
    seen: Iterator[int] = field(default_factory=count)

    def fault(self, index: int, call: str) -> FaultKind | None:
        return self.kind if call == "get_range" and next(self.seen) == self.number else None


def live(place: Path, script: FaultScript) -> None:
    """One process: look at the log, take it over, write, flush, compact."""
    CACHE.clear()
    table = mw.open_table(resolve(str(place), clock=SkippingClock(), wrap=script.wrap))
    assert table.count_rows() >= len(SIZES)
    with table.shard_writer(fsync=False) as writer:
        writer.put([{"id": 13, "image": b"ours", "n": "13"}])
    table.compact()


def check(place: Path) -> None:
    CACHE.clear()
    table = mw.open_table(str(place))
    assert set(SIZES) <= set(table.scan().to_table().column("id").to_pylist())
    for key, size in SIZES.items():
        file = table.get_blob(key, "image")
        assert file is not None
        assert file.read() == blob_of(key, size)
    assert table.verify().ok


@pytest.fixture(scope="module")
def range_reads(written: Path, tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many a life makes that meets no fault."""
    script, place = FaultScript(), tmp_path_factory.mktemp("recorded") / "t"
    shutil.copytree(written, place)
    live(place, script)
    check(place)
    return [call.kind for call in script.calls].count("get_range")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.value))
def test_no_fault_at_a_range_read_of_a_blob_loses_or_tears_it(
    written: Path, range_reads: int, tmp_path: Path, kind: FaultKind
) -> None:
    assert range_reads >= 4, "both large blobs, when the log is looked at and when it is taken over"
    for number in range(range_reads):
        place = tmp_path / f"at{number}"
        shutil.copytree(written, place)
        script = FaultScript(OneRange(number=number, kind=kind))
        try:
            live(place, script)
        except SimulatedCrash:
            assert kind in (FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER)
        except CorruptDataError:
            assert kind is FaultKind.SHORT_READ
        assert len(script.injected) == 1
        check(place)
