"""What `docs/howto/backup.md` says of copies: a table that is written, but neither compacted nor collected, can be copied."""

from __future__ import annotations

import random
import shutil
import threading
from pathlib import Path

import pyarrow as pa
import pytest

import lance_memwal as mw

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])


def copy_file(file: Path, source: Path, target: Path) -> None:
    place = target / file.relative_to(source)
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        shutil.copyfile(file, place)
    except FileNotFoundError:  # a temporary file, which has its name by now
        place.unlink(missing_ok=True)


def copy_manifests_first(source: Path, target: Path, order: random.Random) -> None:
    """Every file, those of a `manifest` directory before all others; each part is listed when its turn comes."""
    for part in ("_mem_wal/*/manifest/*", "**/*"):
        files = [
            file for file in source.glob(part) if file.is_file() and not (target / file.relative_to(source)).exists()
        ]
        order.shuffle(files)
        for file in files:
            if part != "**/*" and file.name.startswith("version_hint"):
                continue
            copy_file(file, source, target)


@pytest.mark.parametrize("seed", range(3))
def test_a_copy_of_a_table_that_is_written_is_whole(tmp_path: Path, seed: int) -> None:
    table = mw.create_table(
        str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=mw.Bucket("id", 2), writer_defaults={"fsync": False}
    )
    acknowledged, stop = 0, threading.Event()

    def write() -> None:
        nonlocal acknowledged
        with table.writer(compaction=None) as writer:
            while not stop.is_set():
                writer.put([{"id": acknowledged * 10 + n, "v": "x"} for n in range(10)])
                acknowledged += 1
                if acknowledged % 7 == 0:
                    writer.flush()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        while acknowledged < 20:
            stop.wait(0.01)
        before = acknowledged
        copy_manifests_first(tmp_path / "t", tmp_path / "copy", random.Random(seed))
    finally:
        stop.set()
        thread.join()
    copy = mw.open_table(str(tmp_path / "copy"))
    report = copy.verify()
    assert report.ok, report
    keys = set(copy.scan(["id"]).to_table()["id"].to_pylist())
    assert keys >= set(range(before * 10))
    with copy.writer() as writer:
        writer.put([{"id": -1, "v": "new"}])
    assert copy.get(-1) == {"id": -1, "v": "new"}
    assert copy.verify().ok
