"""Rows as one Arrow stream: what is read of them is bounded."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from lance_memwal.errors import CorruptDataError
from lance_memwal.rows.streams import read_stream, stream_of


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_a_stream_that_would_become_too_large_is_refused_before_it_does(compression: str) -> None:
    count, most = 1_000, 3 << 30
    batch = pa.record_batch({"zeros": pa.array([0] * count, pa.int64())})
    honest = stream_of(batch.schema, [batch], compression=compression).to_pybytes()
    assert read_stream(honest, "rows") == pa.table(batch)
    size = struct.pack("<q", 8 * count)
    assert honest.count(size) == 1
    with pytest.raises(CorruptDataError, match="rows would have more than"):
        read_stream(honest.replace(size, struct.pack("<q", most)), "rows", path="somewhere")
    assert pa.default_memory_pool().max_memory() < most
