"""Rows that were accepted are the caller's no more: whatever it does with its memory, log and memtable have what was put."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import lance_memwal as mw

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.float64())])


def _frame() -> tuple[Any, Callable[[], None]]:
    frame = pd.DataFrame({"id": np.arange(3), "v": np.zeros(3)})

    def change() -> None:
        frame.loc[:, "id"] += 10

    return frame, change


def _numbers() -> tuple[Any, Callable[[], None]]:
    numbers = {"id": np.arange(3), "v": np.zeros(3)}

    def change() -> None:
        numbers["id"] += 10

    return numbers, change


@pytest.mark.parametrize("make", [_frame, _numbers], ids=["pandas", "numpy"])
def test_rows_do_not_change_with_the_numbers_that_they_were_made_of(
    tmp_path: Path, make: Callable[[], tuple[Any, Callable[[], None]]]
) -> None:
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id")
    given, change = make()
    with table.writer(fsync=False) as writer:
        writer.put(given)
        change()
        assert sorted(table.to_arrow()["id"].to_pylist()) == [0, 1, 2]
    assert sorted(mw.open_table(table.uri).to_arrow()["id"].to_pylist()) == [0, 1, 2]


def test_a_buffer_that_is_used_again_does_not_reach_the_log(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
    table = mw.create_table(str(tmp_path / "t"), schema, primary_key="id")
    sent = pa.record_batch([pa.array([1, 2, 3]), pa.array(["hello"] * 3)], schema=schema).serialize().to_pybytes()
    received = bytearray(sent)
    writer = table.writer(fsync=False)
    ack = writer.put_nowait(pa.ipc.read_record_batch(pa.py_buffer(received), schema), drain=False)
    received[:] = b"\xff" * len(sent)
    ack.wait()
    writer.abort()
    assert mw.open_table(table.uri).to_arrow()["v"].to_pylist() == ["hello"] * 3
