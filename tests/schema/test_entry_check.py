"""Rows that the decoder of the log would refuse fail their own put, as the caller's error."""

from __future__ import annotations

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.log.entry import RowEncoder
from lance_memwal.rows.schema import TableSchema
from lance_memwal.types import TOMBSTONE_FIELD

KIND = pa.dictionary(pa.int8(), pa.string())
COLUMNS = pa.schema([("c", KIND)])


def batch(index: int) -> pa.RecordBatch:
    indices, values = pa.array([index], pa.int8()), pa.array(["a"])
    made = pa.DictionaryArray.from_arrays(indices, values, safe=False)
    return pa.RecordBatch.from_arrays([made, pa.array([False])], schema=COLUMNS.append(TOMBSTONE_FIELD))


def test_an_entry_that_is_whole_and_not_understood_is_invalid_input() -> None:
    encoder = RowEncoder(TableSchema.from_arrow(COLUMNS).wal)
    encoder.messages([batch(0)])
    with pytest.raises(mw.InvalidInputError, match="column 'c'"):
        encoder.messages([batch(5)])
