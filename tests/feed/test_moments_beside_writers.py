"""Moments that are taken beside writers, compaction and collection: each has what was acknowledged before it, and stays so."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import lance_memwal as mw
from tests.harness.profile import scaled

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])
KEYS = 20


def rows(view: mw.TableView) -> dict[int, int]:
    found = view.scan().to_table()
    return dict(zip(found["id"].to_pylist(), found["n"].to_pylist(), strict=True))


@contextmanager
def running(*loops: Callable[[], None]) -> Iterator[None]:
    """Runs every loop again and again until the end of the block, and raises what one of them raised."""
    stop = threading.Event()

    def again(loop: Callable[[], None]) -> None:
        while not stop.is_set():
            loop()

    with ThreadPoolExecutor(len(loops)) as pool:
        done = [pool.submit(again, loop) for loop in loops]
        try:
            yield
        finally:
            stop.set()
        for future in done:
            future.result()


@pytest.mark.scaled
@pytest.mark.parametrize("grace_seconds", [0, 3600])
def test_a_moment_has_what_was_acknowledged_and_keeps_it(tmp_path: Path, grace_seconds: float) -> None:
    uri = str(tmp_path / "t")
    table = mw.create_table(
        uri, SCHEMA, primary_key="id", sharding=mw.Bucket("id", 2), writer_defaults={"fsync": False}
    )
    writer = table.writer(compaction=None, max_memtable_rows=200)
    acknowledged = dict.fromkeys(range(KEYS), 0)
    writer.put({"id": list(acknowledged), "n": list(acknowledged.values())})

    def write() -> None:
        for key in range(KEYS):
            writer.put({"id": [key], "n": [acknowledged[key] + 1]})
            acknowledged[key] += 1
        writer.flush()

    def keep_house() -> None:
        mw.open_table(uri).compact()
        mw.open_table(uri).gc(grace_seconds=grace_seconds)

    moments = []
    with running(write, keep_house):
        for number in range(scaled(ci=6, prove=100)):
            before = dict(acknowledged)
            checkpoint = table.checkpoint_create(f"c{number}")
            then = rows(table.at(checkpoint.name))
            assert all(then[key] >= n for key, n in before.items())
            moments.append((checkpoint, then))
    writer.close()
    table.maintain(versions=timedelta(0), grace_seconds=0)
    for checkpoint, then in moments:
        assert rows(table.at(checkpoint.name)) == rows(table.at(checkpoint.snapshot)) == then
    for (a, before), (b, after) in itertools.pairwise(moments):
        changes = table.diff(a.name, b.name)
        assert dict(zip(changes["id"].to_pylist(), changes["n"].to_pylist(), strict=True)) == {
            key: n for key, n in after.items() if before[key] != n
        }
    assert table.verify().ok
