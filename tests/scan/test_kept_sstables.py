"""What reads keep of SSTables stays within its limit, whatever was read in which order."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.process.cache import CACHE
from tests.kit.tables import create

GENERATIONS, ROWS = 12, 200
LIMIT_BYTES = 200_000  # four generations


@pytest.fixture(autouse=True)
def _a_small_limit() -> Iterator[None]:
    limit = CACHE.limit_bytes
    CACHE.clear()
    CACHE.limit_bytes = LIMIT_BYTES
    yield
    CACHE.limit_bytes = limit
    CACHE.clear()


def _table(place: Path) -> mw.Table:
    """Every generation has keys of its own, and all have one in common."""
    table = create(str(place))
    with table.writer(compaction=None, fsync=False) as writer:
        for number in range(GENERATIONS):
            keys = [0, *range(number * ROWS + 1, (number + 1) * ROWS)]
            writer.put([{"id": key, "v": number, "s": "x" * 100} for key in keys])
            writer.flush()
    return table


@pytest.mark.repro("reads-09")
def test_rows_and_keys_that_are_kept_never_pass_the_limit(tmp_path: Path) -> None:
    table = _table(tmp_path / "t")
    want = GENERATIONS * (ROWS - 1) + 1
    gc.collect()
    before = pa.total_allocated_bytes()
    for _ in range(2):
        assert table.count_rows() == want
        assert table.scan().to_table().num_rows == want
        assert sorted(table.lookup([0, 5, ROWS + 5], ["v"])["v"].to_pylist()) == [0, 1, GENERATIONS - 1]
        assert 0 < CACHE.size_bytes <= LIMIT_BYTES
    gc.collect()
    assert pa.total_allocated_bytes() - before < 2 * LIMIT_BYTES, "what was let go is not held by somebody else"
    table.compact()
    assert table.count_rows() == want
    assert CACHE.size_bytes <= LIMIT_BYTES


def test_threads_that_push_each_others_rows_out_read_what_is_there(tmp_path: Path) -> None:
    table = _table(tmp_path / "t")
    failures: list[BaseException] = []

    def read(first: int) -> None:
        try:
            for number in range(15):
                at = (first + number) % GENERATIONS
                rows = table.scan(["id", "v"], filter=f"id > {at * ROWS} and id < {(at + 1) * ROWS}").to_table()
                assert rows["v"].to_pylist() == [at] * (ROWS - 1)
                assert set(table.lookup([0, at * ROWS + 7], ["v"])["v"].to_pylist()) == {GENERATIONS - 1, at}
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read, args=(n * 3,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert CACHE.size_bytes <= LIMIT_BYTES
