"""Many batches of one exactly-once append, which differ in what they say of nulls and of order."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

import lance_memwal as mw
from lance_memwal.write.once import OnceAppender

COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])


def test_batches_that_are_joined_need_not_say_the_same_of_nulls(tmp_path: Path) -> None:
    defaults = mw.WriterConfig(max_memtable_batches=1, fsync=False)
    table = mw.create_table(str(tmp_path / "t"), COLUMNS, primary_key="id", writer_defaults=defaults)
    appender = OnceAppender(table.uri)
    strict = pa.record_batch([pa.array([1]), pa.array(["a"])], schema=COLUMNS)
    relaxed = pa.record_batch({"v": ["b"], "id": [2]})
    appender.append(appender.claim(mw.shard_id_for(mw.Unsharded())), [strict, relaxed])
    assert table.scan().to_table().sort_by("id").to_pylist() == [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]
