"""One append is one entry on storage, or an error that changes nothing; if its position is taken, the entry there decides."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.config import WriterConfig
from lance_memwal.log.entry import encode_mark, encode_sentinel
from lance_memwal.log.wal import PersistPolicy, ShardLog, open_log
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.store.wrap import WrappedStore
from lance_memwal.testing import FaultKind, FaultPlan, FaultScript
from lance_memwal.testing.clocks import SkippingClock
from lance_memwal.types import ShardManifest, Transaction
from tests.kit.logs import (
    KEY,
    NO_SYNC,
    OTHER_SHARD,
    SCHEMA,
    SHARD,
    entry_bytes,
    ids,
    interrupted,
    lance_table,
    manifests_at,
    open_shard,
    place,
    put_entry,
    read_all,
    rows,
    story,
)
from tests.kit.writers import in_threads

STRICT = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata=KEY),
        pa.field("price", pa.float32(), nullable=False),
        pa.field("at", pa.timestamp("us")),
        pa.field("name", pa.large_string()),
    ]
)


def appender(uri: str | Any, shard_id: str = SHARD, **options: Any) -> mw.WalAppender:
    return mw.WalAppender.open(uri, shard_id, fsync=False, **options)


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
    assert ids(mw.WalTailer(location, SHARD).read_entry(2)) == [2, 3, 4]


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
    with pytest.raises(mw.InvalidInputError, match=told):
        writer.append(data, missing="null")
    assert read_all(uri) == []
    assert writer.append(pa.table({"id": [1], "price": [1]}), missing="null") == 1, "a refusal is no failure of the log"


def test_the_first_append_that_lands_sets_the_columns_where_there_is_no_table(tmp_path: Path) -> None:
    location = place(tmp_path)
    writer = appender(location)
    with pytest.raises(mw.InvalidInputError):
        writer.append([pa.record_batch({"wrong": ["x"]}), pa.record_batch({"other": ["y"]})])
    assert writer.append(rows(1)) == 1
    assert writer.append(pa.record_batch({"name": ["b"], "id": pa.array([2], pa.int8())})) == 2
    with pytest.raises(mw.InvalidInputError, match="'colour'"):
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
    with pytest.raises(mw.InvalidInputError, match="'price'"):
        writer.append(
            pa.table({"id": [6, 7], "price": pa.array([None, None], pa.int8()), "_tombstone": [True, False]}),
            missing="null",
        )
    with pytest.raises(mw.InvalidInputError, match="'id'"):
        writer.append(pa.table({"id": pa.array([None], pa.int64()), "_tombstone": [True]}))


def test_flags_without_a_tombstone_change_nothing(tmp_path: Path) -> None:
    uri = lance_table(tmp_path, STRICT)
    with pytest.raises(mw.InvalidInputError, match="'price'"):
        appender(uri).append(pa.table({"id": [5], "_tombstone": [False]}))


def test_rows_of_a_table_without_a_key_cannot_be_deleted(tmp_path: Path) -> None:
    uri = lance_table(tmp_path, pa.schema([("name", pa.string())]))
    writer = appender(uri)
    with pytest.raises(mw.InvalidInputError, match="primary key"):
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
    mw.create_table(
        uri,
        SCHEMA,
        sharding=mw.Manual(),
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
    mw.create_table(
        uri, SCHEMA, sharding=mw.Manual(), allow_keys_across_shards=True, writer_defaults={"max_entry_bytes": 200_000}
    )
    writer = appender(uri)
    with pytest.raises(mw.InvalidInputError, match="too many"):
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
    with pytest.raises(mw.WriterPoisonedError) as first:
        writer.append(rows(2))
    script.plan = FaultPlan()
    for _ in range(2):
        with pytest.raises(mw.WriterPoisonedError) as again:
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
        with pytest.raises(mw.FencedError, match="Writer fenced") as error:
            ask()
        assert (error.value.our_epoch, error.value.current_epoch) == (1, 2)
    second.check_fenced()
    assert second.append(rows(3)) == 2


def test_an_appender_that_learned_of_its_fence_from_the_manifest_appends_nothing_more(tmp_path: Path) -> None:
    location = place(tmp_path)
    writer = appender(location)
    writer._manifests.claim_epoch()  # a claim whose sentinel is still to come
    with pytest.raises(mw.FencedError):
        writer.check_fenced()
    with pytest.raises(mw.FencedError):
        writer.append(rows(1))
    assert read_all(location) == []


@pytest.mark.repro("writer-11")
@pytest.mark.parametrize("landed", [False, True], ids=["before its put", "after its put"])
def test_interrupted_append_poisons_and_its_transaction_is_written_once(landed: bool, tmp_path: Path) -> None:
    uri = lance_table(tmp_path, max_memtable_rows=2)
    calls = interrupted("put_new", paths.wal_entry_path(SHARD, 2), _interrupt, before=not landed)
    writer = appender(place(tmp_path, wrap=calls))
    writer.append(rows(1, 2), txn=("app", 1))
    with pytest.raises(KeyboardInterrupt):
        writer.append(rows(3, 4), txn=("app", 2))
    with pytest.raises(mw.WriterPoisonedError):
        writer.append(rows(5, 6))
    again = appender(place(tmp_path))
    assert (again.append(rows(3, 4), txn=("app", 2)) == 0) is landed
    again.append(rows(5, 6))
    found = [ids(entry) for entry in read_all(uri) if entry.batches]
    assert found == [[1, 2], [3, 4], [5, 6]]


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

    in_threads(work, range(8))
    assert sorted(got.values()) == list(range(1, 161))
    assert {entry.position: ids(entry) for entry in read_all(location)} == {p: [n] for n, p in got.items()}


# ------------------------------------------------------------------------------------------------- the rest


def test_rows_that_belong_to_another_shard_are_refused(tmp_path: Path) -> None:
    uri = lance_table(tmp_path, bucket_column="id", num_buckets=4)
    batch = rows(*range(20))
    routed = dict(mw.route(batch, mw.Bucket("id", 4), SCHEMA))
    shard, mine = next(iter(routed.items()))
    writer = appender(uri, shard)
    with pytest.raises(mw.InvalidInputError, match="belong to shard"):
        writer.append(batch)
    assert writer.append(mine) == 1
    with pytest.raises(mw.InvalidInputError, match="belong to shard"):
        appender(uri, OTHER_SHARD).append(mine)


def test_a_table_that_is_sharded_records_its_spec_in_the_manifest(tmp_path: Path) -> None:
    uri = lance_table(tmp_path, bucket_column="id", num_buckets=4)
    shard = next(iter(dict(mw.route(rows(1), mw.Bucket("id", 4), SCHEMA))))
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


def second_owner(location: Location) -> ShardLog:
    """The log under epoch 2: its sentinel is at 1, its next position is 2."""
    manifests_at(location).claim_epoch()
    return open_shard(location).log


def faulty(log: ShardLog, script: FaultScript, policy: PersistPolicy = NO_SYNC) -> ShardLog:
    """The same log through a store with faults."""
    location = replace(log.location, store_once=script.wrap(log.location.store_once))
    return ShardLog(location, log.shard_id, log.epoch, log.next_position, policy, SkippingClock())


def test_same_epoch_and_same_bytes_are_ours(tmp_path: Path) -> None:
    location = place(tmp_path)
    log = second_owner(location)
    data = entry_bytes(2, 5)
    put_entry(location, 2, data)
    assert log.append(data) == 2
    assert log.next_position == 3
    assert story(read_all(location)) == [(1, 2, "sentinel"), (2, 2, [5])]


@pytest.mark.parametrize(
    ("data", "cause", "replayed"),
    [
        (entry_bytes(2, 5), mw.ConflictError, True),
        (entry_bytes(1, 5), mw.ConflictError, True),
        (encode_mark(1), mw.ConflictError, True),
        (b"", mw.CorruptDataError, False),
        (b"torn", mw.CorruptDataError, False),
        (entry_bytes(1, 5)[:-9], mw.CorruptDataError, False),
    ],
    ids=["same epoch, other bytes", "lower rows", "lower mark", "empty", "text", "cut"],
)
def test_entry_that_is_not_ours_poisons(data: bytes, cause: type[Exception], replayed: bool, tmp_path: Path) -> None:
    location = place(tmp_path)
    log = second_owner(location)
    put_entry(location, 2, data)
    with pytest.raises(mw.WriterPoisonedError, match="reopen" if replayed else None) as error:
        log.append(entry_bytes(2, 6))
    assert isinstance(error.value.__cause__, cause)
    assert log.next_position == 2
    if replayed:
        assert location.store.get(paths.wal_entry_path(SHARD, 2)) == data
        reopened = open_shard(location)
        assert (reopened.log.epoch, reopened.replay_start, reopened.replay_end) == (3, 1, 3)


@pytest.mark.parametrize(
    "data", [entry_bytes(3, 5), encode_sentinel(3), encode_mark(3)], ids=["rows", "sentinel", "mark"]
)
def test_a_higher_epoch_fences(data: bytes, tmp_path: Path) -> None:
    location = place(tmp_path)
    log = second_owner(location)
    put_entry(location, 2, data)
    with pytest.raises(mw.FencedError, match="Writer fenced") as error:
        log.append(entry_bytes(2, 6))
    assert (error.value.our_epoch, error.value.current_epoch) == (2, 3)


def test_a_lower_sentinel_moves_the_entry_to_the_next_position(tmp_path: Path) -> None:
    location = place(tmp_path)
    log = second_owner(location)
    put_entry(location, 2, encode_sentinel(1))
    put_entry(location, 3, encode_sentinel(0))
    assert log.append(entry_bytes(2, 6)) == 4
    assert log.next_position == 5
    assert story(read_all(location))[1:] == [(2, 1, "sentinel"), (3, 0, "sentinel"), (4, 2, [6])]


@pytest.mark.parametrize(
    ("faults", "fsync", "calls"),
    [
        ({0: FaultKind.CONFLICT_WITHOUT_EFFECT}, False, ["put_new", "get", "put_new"]),
        ({0: FaultKind.ERROR_AFTER, 2: FaultKind.ERROR_BEFORE}, False, ["put_new", "put_new", "get", "put_new", "get"]),
        # The first attempt may have created the name and failed at its fsync.
        ({0: FaultKind.ERROR_AFTER}, True, ["put_new", "put_new", "get", "sync_tree"]),
    ],
    ids=["taken but not found", "failed read back", "found, made durable before it is acknowledged"],
)
def test_append_is_retried_at_its_position(
    faults: dict[int, FaultKind], fsync: bool, calls: list[str], tmp_path: Path
) -> None:
    log = second_owner(place(tmp_path))
    script = FaultScript(FaultPlan(at=faults))
    policy = PersistPolicy(fsync=True) if fsync else NO_SYNC
    assert faulty(log, script, policy).append(entry_bytes(2, 6)) == 2
    assert [(call.kind, call.path) for call in script.calls] == [
        (kind, paths.wal_entry_path(SHARD, 2)) for kind in calls
    ]


def test_an_entry_that_vanished_before_it_was_read_is_tried_again_at_the_same_position(tmp_path: Path) -> None:
    """A staging object of a store may show up and go: the position decides, not the first answer."""
    location = place(tmp_path)
    log = second_owner(location)
    path = paths.wal_entry_path(SHARD, 2)
    put_entry(location, 2, encode_sentinel(1))
    vanishing = place(tmp_path, wrap=interrupted("get", path, lambda: location.store.delete(path), before=True))
    again = ShardLog(vanishing, SHARD, log.epoch, log.next_position, NO_SYNC, SkippingClock())
    assert again.append(entry_bytes(2, 6)) == 2


@pytest.mark.parametrize("kind", [FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER, FaultKind.LATE_EFFECT])
def test_retry_sends_the_same_bytes_to_the_same_position(kind: FaultKind, tmp_path: Path) -> None:
    location = place(tmp_path)
    log = second_owner(location)
    script = FaultScript(FaultPlan(at={0: kind}))
    data = entry_bytes(2, 6)
    assert faulty(log, script).append(data) == 2
    script.settle()
    assert {call.path for call in script.calls} == {paths.wal_entry_path(SHARD, 2)}
    assert location.store.get(paths.wal_entry_path(SHARD, 2)) == data
    assert len(read_all(location)) == 2


def test_a_put_that_keeps_failing_poisons_after_the_configured_retries_with_growing_waits(tmp_path: Path) -> None:
    log = second_owner(place(tmp_path))
    script = FaultScript(FaultPlan(rate=1.0, kinds=frozenset({FaultKind.ERROR_BEFORE})))
    clock = SkippingClock()
    location = replace(log.location, store_once=script.wrap(log.location.store_once))
    policy = PersistPolicy(max_retries=4, base_delay_seconds=0.1, fsync=False)
    with pytest.raises(mw.WriterPoisonedError) as error:
        ShardLog(location, SHARD, 2, 2, policy, clock).append(entry_bytes(2, 6))
    assert isinstance(error.value.__cause__, mw.UnavailableError)
    assert [call.kind for call in script.calls] == ["put_new"] * 5
    assert len(clock.slept) == 4
    for wait, ceiling in zip(clock.slept, (0.1, 0.2, 0.4, 0.8), strict=True):
        assert ceiling / 2 <= wait <= ceiling


def test_an_entry_that_cannot_be_made_durable_is_not_acknowledged(tmp_path: Path) -> None:
    log = second_owner(place(tmp_path))
    plan = FaultPlan(at={0: FaultKind.ERROR_AFTER, 3: FaultKind.ERROR_BEFORE, 6: FaultKind.ERROR_BEFORE})
    policy = PersistPolicy(max_retries=2, fsync=True)
    with pytest.raises(mw.WriterPoisonedError):
        faulty(log, FaultScript(plan), policy).append(entry_bytes(2, 6))


def test_a_sentinel_whose_answer_was_lost_is_recognised_and_no_second_one_is_written(tmp_path: Path) -> None:
    location = place(tmp_path)
    mw.WalAppender.open(location, SHARD).append(rows(1))
    script = FaultScript(FaultPlan(at={0: FaultKind.ERROR_AFTER}))
    through = replace(location, store_once=_OnlyTheLog(script, location))
    opened = open_log(manifests_at(through), policy=NO_SYNC, clock=SkippingClock())
    assert len(script.injected) == 1
    assert (opened.replay_end, opened.log.next_position) == (2, 3)
    assert story(read_all(location)) == [(1, 1, [1]), (2, 2, "sentinel")]


class _OnlyTheLog(WrappedStore):
    """A store with faults for WAL entries, and none for the hint of the manifest."""

    def __init__(self, script: FaultScript, location: Location) -> None:
        super().__init__(script.wrap(location.store_once))
        self._plain = location.store_once

    def put(self, path: str, data: bytes, *, sync: bool = False) -> None:
        self._plain.put(path, data, sync=sync)


@pytest.mark.parametrize("landed", [False, True], ids=["no effect", "lost answer"])
def test_takeover_between_two_attempts_fences_unless_the_entry_is_below_the_sentinel(
    landed: bool, tmp_path: Path
) -> None:
    """If the first attempt had an effect before the successor's sentinel, it is acknowledged: the successor has it."""
    location = place(tmp_path)
    opened = open_shard(location)
    script = FaultScript(FaultPlan(at={0: FaultKind.ERROR_AFTER if landed else FaultKind.ERROR_BEFORE}))
    through = replace(location, store_once=script.wrap(location.store_once))
    log = ShardLog(through, SHARD, opened.log.epoch, opened.log.next_position, NO_SYNC, _TakingOver(location))
    if landed:
        assert log.append(entry_bytes(1, 1)) == 1
    with pytest.raises(mw.FencedError):
        log.append(entry_bytes(1, 2))
    assert story(read_all(location)) == ([(1, 1, [1]), (2, 2, "sentinel")] if landed else [(1, 2, "sentinel")])


class _TakingOver(SkippingClock):
    """A clock whose first sleep is long enough for somebody else to open the shard."""

    def __init__(self, location: Location) -> None:
        super().__init__()
        self._location: Location | None = location

    def sleep(self, seconds: float) -> None:  # type: ignore[override]
        if self._location is not None:
            location, self._location = self._location, None
            open_shard(location)


def test_a_manifest_that_has_moved_on_changes_nothing_for_an_append(tmp_path: Path) -> None:
    """Appends do not read the manifest: the log alone decides, so a claim without a sentinel fences at the next open."""
    location = place(tmp_path)
    log = second_owner(location)
    claimed: tuple[int, ShardManifest] = manifests_at(location).claim_epoch()
    assert claimed[0] == 3
    script = FaultScript()
    assert faulty(log, script).append(entry_bytes(2, 6)) == 2
    assert [call.kind for call in script.calls] == ["put_new"]
