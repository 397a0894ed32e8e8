"""Rows on their way to the commit: how much of them travels in messages, and where the rest lies."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql import types as st

import lance_memwal as mw
from lance_memwal.spark.executor_mode import balanced
from lance_memwal.spark.options import Options
from lance_memwal.spark.pieces import Piece, all_staged, by_shard, inline_share, load_pieces, unstage, write_pieces
from lance_memwal.spark.rows import WritePlan
from lance_memwal.spark.sink import commit_pieces
from lance_memwal.store.paths import STAGE_DIR
from lance_memwal.types import Transaction
from tests.kit.spark_tables import PLAIN, append_only

JOB = "0b"
FRAME = st.StructType([st.StructField("id", st.LongType()), st.StructField("value", st.StringType())])


def rows(start: int, number: int) -> pa.RecordBatch:
    return pa.record_batch(
        {"id": pa.array(range(start, start + number), pa.int64()), "value": ["x" * 50] * number}, schema=PLAIN
    )


def test_messages_are_bounded_in_sum_however_many_tasks_there_are() -> None:
    options = Options.parse({"path": "t", "messageBytes": "64m", "inlineBytes": "4m"})
    shares = [inline_share(options, number) for number in range(100_000)]
    assert sum(shares) <= 64 << 20
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 1 << 20, "few tasks stage nothing that is small"
    assert inline_share(replace(options, inline_bytes=0), 0) == 0


def test_what_is_too_large_is_one_staged_object_per_task_with_every_shard_in_it(uri: str) -> None:
    table = append_only(uri, 8)
    plan = WritePlan.make(table, FRAME, Options.parse({"path": uri, "inlineBytes": "1k"}))
    message = write_pieces(plan, JOB, iter([rows(0, 500), rows(500, 500)]))
    small = write_pieces(plan, JOB, iter([rows(1000, 1)]))
    assert [piece.data for piece in message.pieces] == [None] * 8
    assert [piece.path for piece in small.pieces] == [None]
    store = table.location.store
    assert len(store.list(STAGE_DIR)) == 1
    pieces = by_shard([message, None, small])
    staged = all_staged(table.location, JOB, pieces)
    assert len(store.list(STAGE_DIR)) == 2
    assert all(piece.data is None for found in staged.values() for piece in found)
    for given in (pieces, staged):
        batches = [batch for found in given.values() for batch in load_pieces(table.location, found)]
        ids = [key for batch in batches for key in batch.column("id").to_pylist()]
        assert sorted(ids) == list(range(1001))
    unstage(table.location, [piece for found in staged.values() for piece in found])
    assert store.list(STAGE_DIR) == []
    assert mw.open_table(uri).count_rows() == 0, "nothing became visible"


def test_groups_of_shards_have_about_the_same_size() -> None:
    sizes = {f"s{number}": 100 if number else 1000 for number in range(11)}
    pieces = {
        shard_id: [Piece(shard_id, 1, size // 2), Piece(shard_id, 1, size // 2)] for shard_id, size in sizes.items()
    }
    groups = balanced(pieces, 2)
    assert sorted(sum(sizes[shard_id] for shard_id in group) for group in groups) == [1000, 1000]
    assert sorted(shard_id for group in groups for shard_id in group) == sorted(sizes)
    assert len(balanced(pieces, 100)) == 11


def test_rows_that_were_routed_for_a_table_before_are_refused_by_the_one_after_it(uri: str) -> None:
    options = Options.parse({"path": uri, "upkeep": "off"})
    before = append_only(uri, 4)
    message = write_pieces(WritePlan.make(before, FRAME, options), JOB, iter([rows(0, 100)]))
    before.drop()
    table = append_only(uri, 3)
    plan = WritePlan.make(table, FRAME, options)
    with pytest.raises(mw.InvalidInputError, match="rows belong to shard"):
        commit_pieces(plan, [message], Transaction("query", 1))
    commit_pieces(plan, [write_pieces(plan, JOB, iter([rows(0, 100)]))], Transaction("query", 2))
    assert table.count_rows() == 100
