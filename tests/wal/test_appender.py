"""One append is one entry on storage, or an error that changes nothing."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pytest

from lance_memwal import (
    Bucket,
    FencedError,
    InvalidInputError,
    Manual,
    WalAppender,
    WalTailer,
    WriterPoisonedError,
    crash_points,
    create_table,
    route,
)
from lance_memwal.config import WriterConfig
from lance_memwal.store import paths
from lance_memwal.testing import FaultKind, FaultPlan, FaultScript
from lance_memwal.testing.clocks import SkippingClock
from lance_memwal.types import Transaction
from tests.kit.logs import KEY, OTHER_SHARD, SCHEMA, SHARD, ids, interrupted, lance_table, place, read_all, rows, story

STRICT = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata=KEY),
        pa.field("price", pa.float32(), nullable=False),
        pa.field("at", pa.timestamp("us")),
        pa.field("name", pa.large_string()),
    ]
)


def appender(uri: str | Any, shard_id: str = SHARD, **options: Any) -> WalAppender:
    return WalAppender.open(uri, shard_id, fsync=False, **options)


def stored(uri: str | Any) -> list[dict[str, Any]]:
    return [row for entry in read_all(uri) for batch in entry.batches for row in batch.to_pylist()]


# ------------------------------------------------------------------------------------------------- what goes in


def test_an_append_returns_the_position_of_one_entry_with_all_batches(tmp_path: Path) -> None:
    location = place(tmp_path)
    writer = appender(location)
    assert (writer.epoch, writer.next_position, writer.shard_id) == (1, 1, SHARD)
    assert [writer.append(rows(1)), writer.append([rows(2), rows(3, 4)])] == [1, 2]
    assert writer.next_position == 3
    assert [len(entry.batches) for entry in read_all(location)] == [1, 2]
    assert ids(WalTailer(location, SHARD).read_entry(2)) == [2, 3, 4]


SHAPES: dict[str, Any] = {
    "a batch": rows(1, 2),
    "batches": [rows(1), rows(2)],
    "a table": pa.Table.from_batches([rows(1), rows(2)]),
    "tables": [pa.Table.from_batches([rows(1)]), pa.Table.from_batches([rows(2)])],
    "dicts": [{"id": 1, "name": "n1"}, {"id": 2, "name": "n2"}],
    "columns": {"id": [1, 2], "name": ["n1", "n2"]},
    "pandas": pd.DataFrame({"id": [1, 2], "name": ["n1", "n2"]}),
    "polars": pl.DataFrame({"id": [1, 2], "name": ["n1", "n2"]}),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_anything_arrow_like_is_appended(shape: str, tmp_path: Path) -> None:
    uri = lance_table(tmp_path)
    appender(uri).append(SHAPES[shape])
    assert stored(uri) == [{"id": n, "name": f"n{n}", "_tombstone": False} for n in (1, 2)]


def test_a_reader_of_batches_is_appended(tmp_path: Path) -> None:
    uri = lance_table(tmp_path)
    appender(uri).append(pa.RecordBatchReader.from_batches(SCHEMA, [rows(1), rows(2)]))
    assert [row["id"] for row in stored(uri)] == [1, 2]


def test_columns_are_matched_by_name_reordered_cast_and_null_filled(tmp_path: Path) -> None:
    uri = lance_table(tmp_path, STRICT)
    given = pa.table({"price": pa.array([3, 4], pa.int8()), "id": pa.array([1, 2], pa.uint16())})
    appender(uri).append(given, missing="null")
    assert [(row["id"], row["price"], row["at"], row["name"]) for row in stored(uri)] == [
        (1, 3.0, None, None),
        (2, 4.0, None, None),
    ]
    (entry,) = read_all(uri)
    assert entry.batches[0].schema.types[:4] == STRICT.types
    assert entry.batches[0].schema.names == [*STRICT.names, "_tombstone"]


REFUSED: dict[str, tuple[Any, str]] = {
    "no batches": ([], "empty batch list"),
    "an empty table": (SCHEMA.empty_table(), "empty batch list"),
    "an empty batch": ([rows(1), rows()], "Batch 1 is empty"),
    "a null key": (pa.table({"id": pa.array([1, None], pa.int64()), "price": [1, 2]}), "'id'"),
    "a null in a NOT NULL column": (pa.table({"id": [1], "price": pa.array([None], pa.int8())}), "'price'"),
    "a missing key": (pa.table({"price": [1]}), "'id'"),
    "a missing NOT NULL column": (pa.table({"id": [1]}), "'price'"),
    "an unknown column": (pa.table({"id": [1], "price": [1], "colour": ["red"]}), "'colour'"),
    "a type that does not fit": (pa.table({"id": ["one"], "price": [1]}), "'id'"),
    "a value that does not fit": (pa.table({"id": [1.5], "price": [1]}), "'id'"),
    "flags that are no booleans": (pa.table({"id": [1], "price": [1], "_tombstone": [1]}), "'_tombstone'"),
    "flags with a null": (
        pa.table({"id": [1], "price": [1], "_tombstone": pa.array([None], pa.bool_())}),
        "'_tombstone'",
    ),
    "a number": (7, "int"),
    "a list of numbers": ([1, 2], "int"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_fit_is_refused_with_its_column_and_nothing_is_written(what: str, tmp_path: Path) -> None:
    uri = lance_table(tmp_path, STRICT)
    writer = appender(uri)
    data, told = REFUSED[what]
    with pytest.raises(InvalidInputError, match=told):
        writer.append(data, missing="null")
    assert read_all(uri) == []
    assert writer.append(pa.table({"id": [1], "price": [1]}), missing="null") == 1, "a refusal is no failure of the log"


def test_the_first_append_that_lands_sets_the_columns_where_there_is_no_table(tmp_path: Path) -> None:
    location = place(tmp_path)
    writer = appender(location)
    with pytest.raises(InvalidInputError):
        writer.append([pa.record_batch({"wrong": ["x"]}), pa.record_batch({"other": ["y"]})])
    assert writer.append(rows(1)) == 1
    assert writer.append(pa.record_batch({"name": ["b"], "id": pa.array([2], pa.int8())})) == 2
    with pytest.raises(InvalidInputError, match="'colour'"):
        writer.append(pa.record_batch({"id": [3], "colour": ["red"]}))
    assert [row["id"] for row in stored(location)] == [1, 2]


def test_fields_carry_the_ids_of_the_table_or_none_does(tmp_path: Path) -> None:
    uri = lance_table(tmp_path)
    appender(uri).append(rows(1))
    bare = place(tmp_path / "bare")
    appender(bare).append(rows(1))
    with_ids, without = (read_all(where)[0].batches[0].schema for where in (uri, bare))
    assert [field.metadata.get(b"lance:field_id") for field in with_ids if field.metadata] == [b"0", b"1"]
    assert all(b"lance:field_id" not in (field.metadata or {}) for field in without)


def test_every_column_but_the_key_is_stored_as_nullable_and_the_flag_comes_last(tmp_path: Path) -> None:
    uri = lance_table(tmp_path, STRICT)
    appender(uri).append(pa.table({"id": [1], "price": [1]}), missing="null")
    schema = read_all(uri)[0].batches[0].schema
    assert [(f.name, f.nullable) for f in schema] == [
        ("id", False),
        ("price", True),
        ("at", True),
        ("name", True),
        ("_tombstone", False),
    ]
    assert schema.field("_tombstone").metadata is None


# ------------------------------------------------------------------------------------------------- tombstones


def test_rows_may_carry_tombstones_in_any_place(tmp_path: Path) -> None:
    uri = lance_table(tmp_path)
    batch = pa.record_batch({"_tombstone": [False, True], "name": ["a", None], "id": [1, 2]})
    appender(uri).append(batch)
    assert stored(uri) == [{"id": 1, "name": "a", "_tombstone": False}, {"id": 2, "name": None, "_tombstone": True}]


def test_a_tombstone_needs_its_key_and_nothing_else(tmp_path: Path) -> None:
    uri = lance_table(tmp_path, STRICT)
    writer = appender(uri)
    writer.append(pa.table({"id": [5], "_tombstone": [True]}))
    mixed = pa.table({"id": [6, 7], "price": pa.array([None, 1], pa.int8()), "_tombstone": [True, False]})
    writer.append(mixed, missing="null")
    assert [(row["id"], row["price"] is None, row["_tombstone"]) for row in stored(uri)] == [
        (5, True, True),
        (6, True, True),
        (7, False, False),
    ]
    with pytest.raises(InvalidInputError, match="'price'"):
        writer.append(
            pa.table({"id": [6, 7], "price": pa.array([None, None], pa.int8()), "_tombstone": [True, False]}),
            missing="null",
        )
    with pytest.raises(InvalidInputError, match="'id'"):
        writer.append(pa.table({"id": pa.array([None], pa.int64()), "_tombstone": [True]}))


def test_flags_without_a_tombstone_change_nothing(tmp_path: Path) -> None:
    uri = lance_table(tmp_path, STRICT)
    with pytest.raises(InvalidInputError, match="'price'"):
        appender(uri).append(pa.table({"id": [5], "_tombstone": [False]}))


def test_rows_of_a_table_without_a_key_cannot_be_deleted(tmp_path: Path) -> None:
    uri = lance_table(tmp_path, pa.schema([("name", pa.string())]))
    writer = appender(uri)
    with pytest.raises(InvalidInputError, match="primary key"):
        writer.append(pa.table({"name": ["a"], "_tombstone": [True]}))
    assert writer.append(pa.table({"name": ["a"], "_tombstone": [False]})) == 1


# ------------------------------------------------------------------------------------------------- sizes


def test_many_small_batches_are_combined_so_that_every_reader_takes_the_entry(tmp_path: Path) -> None:
    uri = lance_table(tmp_path)
    most = WriterConfig().max_memtable_batches
    writer = appender(uri)
    writer.append([rows(n) for n in range(most)])
    relaxed = pa.record_batch({"name": ["late"], "id": [most]})
    writer.append([*(rows(n) for n in range(most)), relaxed])
    kept, combined = read_all(uri)
    assert (len(kept.batches), kept.num_rows) == (most, most)
    assert (len(combined.batches), combined.num_rows) == (1, most + 1)
    assert ids(combined) == list(range(most + 1))


def test_a_slice_counts_its_own_bytes_and_not_those_of_its_parent(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    create_table(
        uri,
        SCHEMA,
        sharding=Manual(),
        allow_keys_across_shards=True,
        writer_defaults={"max_memtable_size": 500_000, "max_entry_bytes": 600_000},
    )
    parent = rows(*range(40_000))
    assert parent.get_total_buffer_size() > 600_000
    writer = appender(uri)
    for at in range(0, 5_000, 1_000):
        writer.append(parent.slice(at, 1_000))
    assert [(ids(entry)[0], entry.generation) for entry in read_all(uri)] == [(at, 1) for at in range(0, 5_000, 1_000)]


def test_more_than_an_entry_may_hold_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    create_table(
        uri, SCHEMA, sharding=Manual(), allow_keys_across_shards=True, writer_defaults={"max_entry_bytes": 200_000}
    )
    writer = appender(uri)
    with pytest.raises(InvalidInputError, match="too many"):
        writer.append(rows(*range(20_000)))
    assert writer.append(rows(1)) == 1


# ------------------------------------------------------------------------------------------------- failure


def test_an_appender_whose_log_failed_refuses_everything_and_reopening_recovers(tmp_path: Path) -> None:
    clean = place(tmp_path)
    script = FaultScript()
    writer = appender(place(tmp_path, wrap=script.wrap), clock=SkippingClock())
    writer.append(rows(1))
    last = len(script.calls)
    script.plan = FaultPlan(at=dict.fromkeys(range(last, last + 40), FaultKind.ERROR_AFTER))
    with pytest.raises(WriterPoisonedError) as first:
        writer.append(rows(2))
    script.plan = FaultPlan()
    for _ in range(2):
        with pytest.raises(WriterPoisonedError) as again:
            writer.append(rows(3))
        assert str(again.value) == str(first.value)
    reopened = appender(clean)
    assert reopened.append(rows(4)) == 4
    assert story(read_all(clean)) == [(1, 1, [1]), (2, 1, [2]), (3, 2, "sentinel"), (4, 2, [4])]


def test_a_fenced_appender_says_so_again_and_again(tmp_path: Path) -> None:
    location = place(tmp_path)
    first = appender(location)
    first.check_fenced()
    second = appender(location)
    for ask in (lambda: first.append(rows(1)), first.check_fenced, lambda: first.append(rows(2))):
        with pytest.raises(FencedError, match="Writer fenced") as error:
            ask()
        assert (error.value.our_epoch, error.value.current_epoch) == (1, 2)
    second.check_fenced()
    assert second.append(rows(3)) == 2


def test_an_appender_that_learned_of_its_fence_from_the_manifest_appends_nothing_more(tmp_path: Path) -> None:
    location = place(tmp_path)
    writer = appender(location)
    writer._manifests.claim_epoch()  # a claim whose sentinel is still to come
    with pytest.raises(FencedError):
        writer.check_fenced()
    with pytest.raises(FencedError):
        writer.append(rows(1))
    assert read_all(location) == []


@pytest.mark.parametrize("landed", [False, True], ids=["before its put", "after its put"])
def test_an_append_that_was_interrupted_is_in_the_log_before_the_next_one(landed: bool, tmp_path: Path) -> None:
    uri = lance_table(tmp_path, max_memtable_rows=2)
    calls = interrupted("put_new", paths.wal_entry_path(SHARD, 2), _interrupt, before=not landed)
    writer = appender(place(tmp_path, wrap=calls))
    writer.append(rows(1, 2), txn=("app", 1))
    with pytest.raises(KeyboardInterrupt):
        writer.append(rows(3, 4))
    assert writer.next_position == 2
    assert writer.append(rows(5, 6)) == 3
    assert [entry.generation for entry in read_all(uri)] == [1, 2, 3]
    assert [ids(entry) for entry in read_all(uri)] == [[1, 2], [3, 4], [5, 6]]


@pytest.mark.repro("writer-11")
@pytest.mark.parametrize("txn", [None, ("app", 1)], ids=["rows", "transaction"])
@pytest.mark.parametrize("point", ["put_new", "wal.after_put"])
def test_an_interrupted_append_that_is_made_again_is_one_entry(
    point: str, txn: tuple[str, int] | None, tmp_path: Path
) -> None:
    calls = interrupted("put_new", paths.wal_entry_path(SHARD, 1), _interrupt) if point == "put_new" else None
    writer = appender(place(tmp_path, wrap=calls))
    crash_points.install(lambda reached: _interrupt() if reached == point else None)
    try:
        with pytest.raises(KeyboardInterrupt):
            writer.append(rows(1), txn=txn)
    finally:
        crash_points.install(None)
    assert [writer.append(rows(1), txn=txn), writer.append(rows(2))] == [1, 2]
    assert story(read_all(place(tmp_path))) == [(1, 1, [1]), (2, 1, [2])]


def _interrupt() -> None:
    raise KeyboardInterrupt


def test_threads_share_an_appender_and_every_append_gets_its_own_entry(tmp_path: Path) -> None:
    location = place(tmp_path)
    writer = appender(location)
    start = threading.Barrier(8)
    got: dict[int, int] = {}

    def work(name: int) -> None:
        start.wait()
        for n in range(20):
            number = name * 100 + n
            got[number] = writer.append(rows(number))

    threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got.values()) == list(range(1, 161))
    assert {entry.position: ids(entry) for entry in read_all(location)} == {p: [n] for n, p in got.items()}


# ------------------------------------------------------------------------------------------------- the rest


def test_rows_that_belong_to_another_shard_are_refused(tmp_path: Path) -> None:
    uri = lance_table(tmp_path, bucket_column="id", num_buckets=4)
    batch = rows(*range(20))
    routed = dict(route(batch, Bucket("id", 4), SCHEMA))
    shard, mine = next(iter(routed.items()))
    writer = appender(uri, shard)
    with pytest.raises(InvalidInputError, match="belong to shard"):
        writer.append(batch)
    assert writer.append(mine) == 1
    with pytest.raises(InvalidInputError, match="belong to shard"):
        appender(uri, OTHER_SHARD).append(mine)


def test_a_table_that_is_sharded_records_its_spec_in_the_manifest(tmp_path: Path) -> None:
    uri = lance_table(tmp_path, bucket_column="id", num_buckets=4)
    shard = next(iter(dict(route(rows(1), Bucket("id", 4), SCHEMA))))
    writer = appender(uri, shard)
    manifest = writer._manifests.read_latest()
    assert manifest is not None
    assert manifest.shard_spec_id == 1


def test_an_appender_says_which_shard_it_owns_and_under_which_epoch(tmp_path: Path) -> None:
    assert repr(appender(place(tmp_path))) == f"WalAppender(shard_id='{SHARD}', epoch=1, next_position=1)"


def test_a_transaction_may_be_given_as_a_value(tmp_path: Path) -> None:
    location = place(tmp_path)
    assert appender(location).append(rows(1), txn=Transaction("app", 3, "query")) == 1
    assert read_all(location)[0].txn == Transaction("app", 3, "query")
