"""A scan is a stream to every library that takes Arrow's C interface."""

from __future__ import annotations

from pathlib import Path

import polars
import pyarrow as pa
import pytest

import lance_memwal as mw
from tests.kit.tables import create


@pytest.fixture
def table(tmp_path: Path) -> mw.Table:
    table = create(str(tmp_path / "t"))
    with table:
        table.add({"id": [1, 2], "v": [10, 20], "s": ["a", None]})
        table.compact(flush=True)
        table.add({"id": [3], "v": [30], "s": ["c"]})
    return table


def test_pyarrow_and_polars_take_a_scan(table: mw.Table) -> None:
    scan = table.scan(["id", "s"], "v >= 20", order_by=["id"])
    expected = {"id": [2, 3], "s": [None, "c"]}
    assert pa.table(scan).to_pydict() == expected
    assert pa.RecordBatchReader.from_stream(scan).read_all().to_pydict() == expected
    assert polars.DataFrame(scan).to_dict(as_series=False) == expected
    assert pa.schema(scan) == scan.schema
    assert pa.table(scan).schema == scan.schema


def test_a_schema_may_be_asked_for(table: mw.Table) -> None:
    wanted = pa.schema([("id", pa.int32()), ("s", pa.large_string())])
    assert pa.RecordBatchReader.from_stream(table.scan(["id", "s"]), wanted).read_all().schema == wanted


def test_another_table_takes_a_scan(table: mw.Table, tmp_path: Path) -> None:
    with create(str(tmp_path / "copy")) as copy:
        copy.add(table.scan())
        assert sorted(copy.to_arrow()["id"].to_pylist()) == [1, 2, 3]


def test_no_rows_have_a_schema(table: mw.Table) -> None:
    assert pa.table(table.scan(["id"], limit=0)).schema == pa.schema([pa.field("id", pa.int64(), nullable=False)])
