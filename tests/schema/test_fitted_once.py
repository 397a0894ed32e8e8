"""Rows are made to fit the table once, and validated once, whatever they pass through."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.rows.adapt import tombstone_flags
from lance_memwal.rows.fit import Fitted, Fitter, validate_rows
from lance_memwal.rows.schema import TableSchema

COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("a", pa.int32()), pa.field("s", pa.string(), False)])
SCHEMA = TableSchema(COLUMNS, ("id",))
SETTINGS: dict[str, Any] = {"fsync": False, "stats_log_interval_ms": None}


def batch(**columns: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


class Validations:
    """Counts full validations of this thread."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Validations:
        sys.setprofile(self._called)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, argument: object) -> None:
        self.count += event == "call" and frame.f_code is validate_rows.__code__


@pytest.mark.parametrize("sharding", [mw.Unsharded(), mw.Bucket("id", 4), mw.Identity("id")])
def test_a_put_through_the_table_validates_its_rows_once(tmp_path: Path, sharding: Any) -> None:
    table = mw.create_table(str(tmp_path / "t"), COLUMNS, primary_key="id", sharding=sharding)
    rows = batch(id=[1, 2, 3], a=[1, 2, 3], s=["x", "y", "z"])
    with table.writer(compaction=None, **SETTINGS) as writer:
        writer.put(rows)  # opens the shards
        with Validations() as seen:
            writer.put(rows)
        assert seen.count == 1
        assert table.count_rows() == 3


def test_rows_that_fit_these_columns_are_taken_as_they_are_and_others_are_fitted_again() -> None:
    fitter = Fitter(SCHEMA)
    fitted = Fitted([fitter.fit(batch(s=["x"], a=[1], id=[7]))], TableSchema(COLUMNS, ("id",)))
    assert fitter.fit_all(fitted, True) is fitted
    wider = TableSchema(COLUMNS.append(pa.field("new", pa.float64())), ("id",))
    again = Fitter(wider).fit_all(fitted, True)
    assert [part.schema.names for part in again] == [["id", "a", "s", "new"]]
    with pytest.raises(mw.InvalidInputError, match="'gone'"):
        fitter.fit_all(Fitted([batch(id=[1], a=[1], s=["x"], gone=[1])], wider), True)


def test_only_tombstones_may_leave_a_not_null_column_out() -> None:
    fitter = Fitter(SCHEMA)
    dead = fitter.fit_flagged(batch(id=[1, 2], _tombstone=[True, True]))
    assert dead.to_pylist() == [{"id": i, "a": None, "s": None, "_tombstone": True} for i in (1, 2)]
    mixed = batch(id=[1, 2], a=[None, 5], s=[None, "x"], _tombstone=[True, False])
    assert fitter.fit_flagged(mixed).column("s").to_pylist() == [None, "x"]
    for wrong in ([False, True], [False, False]):
        with pytest.raises(mw.InvalidInputError, match="'s' must not be null"):
            fitter.fit_flagged(batch(id=[1, 2], a=[1, 5], s=[None, "x"], _tombstone=wrong))
    with pytest.raises(mw.InvalidInputError, match="'id' must not be null"):
        fitter.fit_flagged(batch(id=[1, None], _tombstone=[True, True]))
    with pytest.raises(mw.InvalidInputError, match="left out: 'a', 's'"):
        fitter.fit_flagged(batch(id=[1, 2], _tombstone=[True, False]))
    with pytest.raises(mw.InvalidInputError, match="not for puts"):
        fitter.fit(batch(id=[1], a=[1], s=["x"], _tombstone=[True]))


def test_threads_that_share_a_fitter_get_the_rows_that_they_gave() -> None:
    fitter, wrong = Fitter(SCHEMA), []
    forms = [("id", "a", "s"), ("s", "id", "a"), ("a", "s", "id")]

    def fit(order: tuple[str, ...]) -> None:
        values = {"id": [1], "a": [2], "s": ["x"]}
        given = batch(**{name: values[name] for name in order})
        for _ in range(300):
            if fitter.fit(given).to_pylist() != [{"id": 1, "a": 2, "s": "x"}]:
                wrong.append(order)

    threads = [threading.Thread(target=fit, args=(order,)) for order in forms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("rows", [batch(_tombstone=[True, None, False]), pa.table({"_tombstone": [True, None, False]})])
def test_a_flag_that_is_null_says_that_the_row_is_no_tombstone(rows: pa.Table | pa.RecordBatch) -> None:
    assert tombstone_flags(rows).tolist() == [True, False, False]
