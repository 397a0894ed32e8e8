"""Several puts in one write: each keeps its transaction, its rows, its result and its error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.types import EntryTransaction, Transaction
from tests.kit.writers import UNKEYED, rows


def together(*puts: tuple[str, int, int]) -> list[EntryTransaction]:
    """The marks of puts: application, version, rows."""
    marks, first = [], 0
    for app, version, count in puts:
        marks.append(EntryTransaction(Transaction(app, version), first, count))
        first += count
    return marks


@pytest.fixture
def table(tmp_path: Path) -> mw.Table:
    return mw.create_table(str(tmp_path / "t"), UNKEYED, writer_defaults={"fsync": False})


@pytest.fixture
def writer(table: mw.Table) -> Iterator[mw.ShardWriter]:
    with table.shard_writer() as writer:
        yield writer


def ids(table: mw.Table) -> list[int]:
    return sorted(table.scan(columns=["id"]).to_table().column("id").to_pylist())


def test_puts_in_one_write_are_one_entry_with_a_transaction_each(table: mw.Table, writer: mw.ShardWriter) -> None:
    before = writer.stats()
    done = writer.put_together(rows(range(6), schema=UNKEYED), together(("a", 1, 2), ("b", 7, 1), ("c", 1, 3)))
    assert [result.written for result in done] == [2, 1, 3]
    assert not any(result.skipped for result in done)
    after = writer.stats()
    assert (after.wal_flush_count - before.wal_flush_count, after.put_count - before.put_count) == (1, 3)
    [versions] = table.transactions().values()
    assert versions == {"a": 1, "b": 7, "c": 1}
    assert ids(table) == [0, 1, 2, 3, 4, 5]


def test_what_is_there_already_is_skipped_and_the_rest_is_written(table: mw.Table, writer: mw.ShardWriter) -> None:
    writer.put(rows([1], schema=UNKEYED), txn=("b", 7))
    done = writer.put_together(rows([0, 1, 2], schema=UNKEYED), together(("a", 1, 1), ("b", 7, 1), ("c", 1, 1)))
    assert [(result.written, result.skipped) for result in done] == [(1, False), (0, True), (1, False)]
    assert ids(table) == [0, 1, 2]


def test_a_repeat_is_known_to_the_next_writer(table: mw.Table) -> None:
    batch, marks = rows([0, 1, 2], schema=UNKEYED), together(("a", 1, 1), ("b", 7, 1), ("c", 1, 1))
    with table.shard_writer() as first:
        first.put_together(batch, marks)
        shard_id = first.shard_id
        first.abort()
    with table.shard_writer(shard_id) as second:
        assert [result.skipped for result in second.put_together(batch, marks)] == [True] * 3
    assert ids(table) == [0, 1, 2]


def test_what_is_wrong_with_one_put_does_not_keep_the_others_out(table: mw.Table, writer: mw.ShardWriter) -> None:
    writer.put(rows([9], schema=UNKEYED), txn=("b", 7))
    done = writer.put_together(rows([0, 1, 2], schema=UNKEYED), together(("a", 1, 1), ("b", 6, 1), ("c", 1, 1)))
    assert isinstance(done[1], mw.InvalidInputError)
    assert [done[0].written, done[2].written] == [1, 1]
    assert ids(table) == [0, 2, 9]


def test_two_versions_of_one_application_are_written_in_their_order(table: mw.Table, writer: mw.ShardWriter) -> None:
    done = writer.put_together(rows([0, 1, 2], schema=UNKEYED), together(("a", 1, 1), ("a", 2, 1), ("a", 2, 1)))
    assert [result.skipped for result in done] == [False, False, True]
    assert ids(table) == [0, 1]


def test_a_table_that_merges_rows_is_refused(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("ts", pa.int64())])
    table = mw.create_table(str(tmp_path / "t"), schema, primary_key="id", merge=mw.LastWrite(sequence="ts"))
    batch = pa.record_batch([pa.array([1]), pa.array([1])], schema=schema)
    with table.shard_writer() as writer, pytest.raises(mw.InvalidInputError):
        writer.put_together(batch, together(("a", 1, 1)))


WRONG = {
    "a version that no decoder takes": Transaction("b", 1 << 64),
    "a version below 0": Transaction("b", -1),
    "a version that is no number": Transaction("b", True),
    "an application without a name": Transaction("", 1),
    "an application that is too long": Transaction("b" * 600, 1),
    "a query that is no text": Transaction("b", 1, 5),  # type: ignore[arg-type]
    "a digest that is none": Transaction("b", 1, None, "zz"),
    "no transaction at all": None,
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_transaction_that_no_reader_would_understand_is_refused(
    table: mw.Table, writer: mw.ShardWriter, wrong: str
) -> None:
    """It was acknowledged, and from then on nobody could read or open the shard."""
    marks = together(("a", 1, 1), ("b", 1, 1), ("c", 1, 1))
    marks[1] = EntryTransaction(WRONG[wrong], 1, 1)  # type: ignore[arg-type]
    done = writer.put_together(rows([0, 1, 2], schema=UNKEYED), marks)
    assert isinstance(done[1], mw.InvalidInputError)
    assert [done[0].written, done[2].written] == [1, 1]
    assert ids(table) == [0, 2]
    writer.abort()
    with table.shard_writer(writer.shard_id) as second:
        assert second.put(rows([5], schema=UNKEYED), txn=("a", 2)).written == 1
    assert ids(table) == [0, 2, 5]


@pytest.mark.parametrize(
    "ranges",
    [
        [(0, 1), (1, 1)],
        [(0, 1), (1, 3)],
        [(0, 2), (1, 1)],
        [(1, 1), (0, 2)],
        [(0, 3), (3, 0)],
        [(0, 4), (4, -1)],
        [(0, 1), (1, None)],
        [(0, True), (1, 2)],
        [(0, 1.0), (1.0, 2)],
        [],
    ],
)
def test_rows_that_are_not_those_of_the_puts_are_refused(
    table: mw.Table, writer: mw.ShardWriter, ranges: list[tuple[int, int]]
) -> None:
    marks = [EntryTransaction(Transaction(f"a{first}{count}", 1), first, count) for first, count in ranges]
    with pytest.raises(mw.InvalidInputError, match="one after the other"):
        writer.put_together(rows([0, 1, 2], schema=UNKEYED), marks)
    assert ids(table) == []
