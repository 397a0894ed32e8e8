from pathlib import Path

import pyarrow as pa
import pytest

import lance_memwal as mw


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Five rows with text and vectors, flushed, in the one shard of an unsharded table."""
    uri = tmp_path / "t"
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("vec", pa.list_(pa.float32(), 2))])
    made = mw.create_table(
        str(uri), schema, primary_key="id", sharding=mw.Unsharded(), writer_defaults={"fsync": False}
    )
    with made.writer() as writer:
        writer.put([{"id": i, "name": f"name{i} common", "vec": [i, 0]} for i in range(5)])
    return uri
