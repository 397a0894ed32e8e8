"""What sharing costs, on a disk that is synchronized: figures of this machine, compared within one run."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import pyarrow as pa
import pytest

import lance_memwal as mw
from tests.harness.processes import start
from tests.serve.shared_child import own_and_put, put_for

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])
ROUNDS = 3


def new_table(path: Path) -> mw.Table:
    return mw.create_table(str(path), SCHEMA, primary_key="id", writer_defaults={"fsync": True})


def put_seconds(writer: mw.TableWriter, first: int, count: int) -> float:
    """The median of single puts."""
    taken = []
    for number in range(first, first + count):
        batch = pa.record_batch([pa.array([number]), pa.array(["x"])], schema=SCHEMA)
        started = time.perf_counter()
        writer.put(batch)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


@pytest.mark.prove
def test_a_forwarded_put_costs_at_most_three_local_ones(tmp_path: Path) -> None:
    table, alone = new_table(tmp_path / "t"), new_table(tmp_path / "alone")
    child = start(own_and_put, table.uri, [{"id": 0, "v": "owner"}], {})
    assert child.receive(60) is not None
    with table.writer(shared=True) as forwarding, alone.writer() as local:
        pairs = [
            (put_seconds(local, 1000 * round_, 200), put_seconds(forwarding, 1000 * round_, 200))
            for round_ in range(1, 2 + ROUNDS)
        ][1:]
        assert forwarding.owned_shards == set()
    child.kill()
    for local_seconds, forwarded_seconds in pairs:
        print(f"local {1e6 * local_seconds:.0f} us, forwarded {1e6 * forwarded_seconds:.0f} us")
    assert statistics.median(forwarded / local for local, forwarded in pairs) <= 3


@pytest.mark.prove
def test_four_processes_together_are_not_slower_than_one_alone(tmp_path: Path) -> None:
    ratios = []
    for round_ in range(ROUNDS):
        one = puts_per_second(tmp_path / f"one-{round_}", processes=1, shared=False)
        four = puts_per_second(tmp_path / f"four-{round_}", processes=4, shared=True)
        print(f"one alone {one:.0f}/s, four together {four:.0f}/s")
        ratios.append(four / one)
    assert statistics.median(ratios) >= 1


def puts_per_second(path: Path, *, processes: int, shared: bool) -> float:
    table, seconds, begin = new_table(path), 3.0, path.with_suffix(".begin")
    children = [start(put_for, table.uri, name, 8, seconds, shared, str(begin)) for name in range(1, 1 + processes)]
    for child in children:
        assert child.receive(60) == ("ready",)
    begin.touch()
    counts = [child.receive(60) for child in children]
    for child in children:
        assert child.wait(60) == 0
    return sum(count[0] for count in counts if count is not None) / seconds
