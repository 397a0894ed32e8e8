"""Many blobs, larger together than memory may grow: through a kill and every tier, and none is lost or changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.log.entry import EntryEncoder, RowEncoder, decode_entry
from lance_memwal.memtable.blobs import MemBlobs
from lance_memwal.memtable.memtable import MemTable
from lance_memwal.rows.adapt import RowAdapter
from lance_memwal.rows.schema import TableSchema
from lance_memwal.types import TOMBSTONE_FIELD
from tests.kit.blobs import SCHEMA, blob_rows

HERE = Path(__file__).parent
MIB = 1 << 20


def child(stage: str, uri: str, memtable_mib: int, kinds: list[str]) -> subprocess.Popen[str]:
    paths = [str(HERE.parent.parent), os.environ.get("PYTHONPATH", "")]
    command = [sys.executable, str(HERE / "blob_child.py"), stage, uri, str(memtable_mib), *kinds]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    )


def run(stages: list[str], uri: str, memtable_mib: int, kinds: list[str]) -> list[dict[str, Any]]:
    """What every stage told, all of them in one process."""
    with child(",".join(stages), uri, memtable_mib, kinds) as process:
        assert process.stdout is not None
        told = [json.loads(line) for line in process.stdout if line.startswith("{")]
    assert process.returncode == 0
    return told


def acked_before_a_kill(uri: str, memtable_mib: int, kinds: list[str], count: int) -> int:
    """The puts that a writer acknowledged before it was killed, after at least `count`."""
    acked = 0
    with child("write", uri, memtable_mib, kinds) as process:
        assert process.stdout is not None
        for line in process.stdout:
            acked += line.startswith("acked")
            if acked == count:
                process.kill()
    assert process.returncode == -9
    return acked


def live(place: Path, memtable_mib: int, kinds: list[str], limit_mib: int, *, apart: bool) -> dict[str, float]:
    """What each stage took, in MiB; none may take more than `limit_mib`. `apart`: every stage has a process of its own."""
    uri, total = str(place / "t"), sum(int(kind.split(":")[0]) for kind in kinds)
    mw.create_table(uri, SCHEMA)
    acked = acked_before_a_kill(uri, memtable_mib, kinds, total // 2)
    # "write" puts everything once more, above what the killed writer left
    stages = ["scan", "replay", "write", "scan", "read", "compact", "read"]
    told = [run([s], uri, memtable_mib, kinds)[0] for s in stages] if apart else run(stages, uri, memtable_mib, kinds)
    killed, _, _, scanned, of_sstables, compacted, of_base = told
    assert acked <= killed["found"] <= acked + 1
    assert [scanned["found"], of_sstables["found"], of_base["found"]] == [total] * 3
    assert compacted["rows"] >= total  # in several commits, where they are many
    assert mw.open_table(uri).verify().ok
    peaks = {f"{number} {answer['stage']}": answer["peak_mib"] for number, answer in enumerate(told)}
    assert max(peaks.values()) <= limit_mib, peaks
    return peaks


def test_blobs_survive_a_kill_and_memory_stays_flat(tmp_path: Path) -> None:
    live(tmp_path, 8, ["50:1", "104:1048576", f"2:{8 * MIB}"], limit_mib=96, apart=False)  # of 120 MiB


@pytest.mark.prove
def test_a_thousand_small_and_a_few_huge_blobs_survive_a_kill_and_memory_stays_flat(tmp_path: Path) -> None:
    peaks = live(tmp_path, 64, ["1000:1", "200:1048576", f"4:{64 * MIB}"], limit_mib=420, apart=True)  # of 456 MiB
    print(peaks)


def test_a_memtable_holds_the_bytes_that_it_was_given(tmp_path: Path) -> None:
    """No copy: what is written out, and what is read by key, lies in the buffers of the put."""
    schema = TableSchema.from_arrow(SCHEMA)
    given = blob_rows({1: b"a" * MIB, 2: b"b" * MIB, 3: None}).combine_chunks().to_batches()[0]
    memtable = MemTable(schema, 1, 0, 0)
    memtable.append(given, None)
    memtable.append(blob_rows({4: b"c"}).combine_chunks().to_batches()[0], None)
    rows = memtable.capture()
    assert rows.table().nbytes < 1000  # what readers get holds no bytes of a blob
    start = given.column("image").buffers()[2].address
    stored = list(rows.stored())
    assert [batch.num_rows for batch in stored] == [4]  # small ones are joined
    assert memtable.blob(1, "image").address == start + MIB
    alone = MemTable(schema, 1, 0, 0)
    alone.append(given, None)
    (only,) = alone.capture().stored()
    assert only.column("image").buffers()[2].address == start


def test_a_memtable_that_can_read_blobs_again_holds_nothing_of_their_entry() -> None:
    schema = TableSchema.from_arrow(SCHEMA)
    batch = blob_rows({1: b"a" * MIB, 2: None}).combine_chunks().to_batches()[0]
    flagged = batch.append_column(TOMBSTONE_FIELD, pa.array([False, True]))
    data = EntryEncoder(schema.wal, 1, 1).encode([flagged])
    nobody_else = sys.getrefcount(data)
    memtable = MemTable(schema, 1, 0, 0)
    memtable.append(*RowAdapter(schema).adapt(*decode_entry(data, 1).batches), again=lambda: batch)
    assert sys.getrefcount(data) == nobody_else
    assert memtable.size_bytes < 10_000
    held = memtable.capture().table()
    assert held.column("id").to_pylist() == [1, 2]
    assert held.column(TOMBSTONE_FIELD.name).to_pylist() == [False, True]
    assert memtable.blob(0, "image").to_pybytes() == b"a" * MIB


def test_parts_are_cut_by_bytes() -> None:
    schema = TableSchema.from_arrow(SCHEMA)
    memtable = MemTable(schema, 1, 0, 0)
    sizes = [3 * MIB, 3 * MIB, 9 * MIB, 1, 1, 8 * MIB, 20 * MIB]
    rows = blob_rows({i: b"x" * size for i, size in enumerate(sizes)})
    memtable.append(rows.combine_chunks().to_batches()[0], None)
    parts = [batch.column("id").to_pylist() for batch in memtable.capture().stored()]
    assert parts == [[0, 1], [2], [3, 4], [5], [6]]


def test_an_entry_with_blobs_has_the_bytes_that_it_always_had() -> None:
    """It is encoded in another way than others, into the same bytes."""
    schema = TableSchema.from_arrow(SCHEMA)
    plain = TableSchema.from_arrow(pa.schema([field.remove_metadata() for field in SCHEMA]))
    batch = blob_rows({1: b"abc", 2: None}).combine_chunks().to_batches()[0]
    flagged = batch.append_column(TOMBSTONE_FIELD, pa.array([False, False]))
    ours = EntryEncoder(schema.wal, 3, 4).encode([flagged, flagged])
    others = EntryEncoder(plain.wal, 3, 4).encode([flagged, flagged])
    rows = EntryEncoder(schema.wal, 3, 4)
    assert ours == rows.assemble(RowEncoder(schema.wal).messages([flagged, flagged]))
    assert len(ours) != len(others)  # the schema's metadata


def test_a_batch_that_was_interrupted_on_its_way_leaves_no_blob(tmp_path: Path) -> None:
    blobs = MemBlobs(TableSchema.from_arrow(SCHEMA))
    first, second = (blob_rows({1: data}).combine_chunks().to_batches()[0] for data in (b"interrupted", b"came"))
    blobs.take_in(0, first, None)  # and never in the memtable
    blobs.take_in(0, second, None)
    assert blobs.of(0, "image").to_pylist() == [b"came"]
