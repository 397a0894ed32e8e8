"""`append_once`: any process that has the epoch may append, and each version is there once."""

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import crash_points
from lance_memwal.types import Transaction
from lance_memwal.write.changes import Terms
from lance_memwal.write.once import OnceAppender
from tests.kit.spark import append_only, ids_of, keyed

SHARDING = mw.Bucket("id", 1)
SHARD = mw.shard_id_for(SHARDING, 0)


@pytest.fixture
def table(uri: str) -> mw.Table:
    return append_only(uri, 1)


def batch(*ids: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64()), "value": [str(i) for i in ids]})


def test_a_repeat_is_skipped_by_this_and_by_every_other_process(table: mw.Table, uri: str) -> None:
    first = OnceAppender(uri)
    claim = first.claim(SHARD)
    assert not first.append(claim, [batch(1, 2)], txn=("app", 1)).skipped
    assert first.append(claim, [batch(1, 2)], txn=("app", 1)).skipped
    assert OnceAppender(uri).append(claim, [batch(1, 2)], txn=("app", 1)).skipped
    assert ids_of(table) == [1, 2]
    assert table.transactions() == {SHARD: {"app": 1}}


def test_rows_without_a_transaction_are_appended_each_time(table: mw.Table, uri: str) -> None:
    appender = OnceAppender(uri)
    claim = appender.claim(SHARD)
    appender.append(claim, [batch(1)])
    appender.append(claim, [batch(1)])
    assert ids_of(table) == [1, 1]


def test_a_lower_version_and_a_foreign_query_are_errors_and_not_skips(table: mw.Table, uri: str) -> None:
    appender = OnceAppender(uri)
    claim = appender.claim(SHARD)
    appender.append(claim, [batch(1)], txn=Transaction("app", 5, "query-a"))
    with pytest.raises(mw.InvalidInputError, match="another query"):
        appender.append(claim, [batch(2)], txn=Transaction("app", 4, "query-b"))
    with pytest.raises(mw.InvalidInputError, match="older"):
        appender.append(claim, [batch(2)], txn=("app", 4))
    assert appender.append(claim, [batch(2)], txn=Transaction("app", 4, "query-a")).skipped
    assert ids_of(table) == [1]


def test_who_was_superseded_is_fenced_and_the_map_goes_over_to_the_successor(table: mw.Table, uri: str) -> None:
    old = OnceAppender(uri)
    stale = old.claim(SHARD)
    old.append(stale, [batch(1)], txn=("app", 1))
    new = OnceAppender(uri)
    claim = new.claim(SHARD)
    with pytest.raises(mw.FencedError) as caught:
        old.append(stale, [batch(2)], txn=("app", 2))
    assert (caught.value.our_epoch, caught.value.current_epoch) == (1, 2)
    assert new.append(claim, [batch(1)], txn=("app", 1)).skipped
    assert not new.append(claim, [batch(2)], txn=("app", 2)).skipped
    assert ids_of(table) == [1, 2]


def test_an_ordinary_writer_takes_over_and_skips_the_same_transaction(table: mw.Table, uri: str) -> None:
    appender = OnceAppender(uri)
    appender.append(appender.claim(SHARD), [batch(1)], txn=("app", 1))
    with table.writer() as writer:
        assert writer.put(batch(1), txn=("app", 1)).skipped
        assert not writer.put(batch(2), txn=("app", 2)).skipped
    again = OnceAppender(uri)
    assert again.append(again.claim(SHARD), [batch(2)], txn=("app", 2)).skipped
    assert ids_of(table) == [1, 2]


def test_too_much_for_an_entry_becomes_a_generation_with_the_map_beside_it(table: mw.Table, uri: str) -> None:
    small = OnceAppender(uri)
    claim = small.claim(SHARD)
    small.append(claim, [batch(1)], txn=("app", 1))
    bulk = OnceAppender(uri, max_entry_bytes=16)
    assert bulk.append(claim, [batch(2, 3)], txn=("app", 2)).generation == 2
    assert table.shards()[0].generations == (1, 2)
    for appender in (small, bulk, OnceAppender(uri)):
        assert appender.append(claim, [batch(2, 3)], txn=("app", 2)).skipped
    assert not small.append(claim, [batch(4)], txn=("app", 3)).skipped
    assert ids_of(table) == [1, 2, 3, 4]
    assert table.verify().ok


def test_versions_stay_known_through_flush_compaction_and_collection(table: mw.Table, uri: str) -> None:
    appender = OnceAppender(uri)
    claim = appender.claim(SHARD)
    for version in range(5):
        appender.append(claim, [batch(version)], txn=("app", version))
    assert appender.flush_tail(claim) == 1
    OnceAppender(uri, max_entry_bytes=16).append(claim, [batch(5)], txn=("app", 5))
    for _ in range(2):
        table.compact()
        table.gc(grace_seconds=0)
        assert OnceAppender(uri).append(claim, [batch(5)], txn=("app", 5)).skipped
        assert OnceAppender(uri).append(claim, [batch(3)], txn=Transaction("app", 3, "q")).skipped
        OnceAppender(uri).append(claim, [batch(6)], txn=("other", 1))
    assert ids_of(table) == [0, 1, 2, 3, 4, 5, 6]
    assert table.verify().ok


def test_a_put_into_a_slot_that_collection_emptied_does_not_count_and_is_made_again(table: mw.Table, uri: str) -> None:
    sleeper, other = OnceAppender(uri), OnceAppender(uri)
    claim = sleeper.claim(SHARD)
    slept = []

    def meanwhile(point: str) -> None:
        if point == "once.before_put" and not slept:
            slept.append(point)
            for number in (10, 11, 12):
                other.append(claim, [batch(number)], txn=("other", number))
            other.flush_tail(claim)
            table.compact()
            table.gc(grace_seconds=0)

    crash_points.install(meanwhile)
    try:
        result = sleeper.append(claim, [batch(1)], txn=("app", 1))
    finally:
        crash_points.install(None)
    assert slept
    assert result.position > 3
    assert ids_of(table) == [1, 10, 11, 12]


def test_rows_of_another_shard_are_refused(uri: str) -> None:
    keyed(uri, 4)
    appender = OnceAppender(uri)
    mine = mw.shard_id_for(mw.Bucket("id", 4), 1)
    foreign = next(i for i in range(100) if mw.shard_id_for(mw.Bucket("id", 4), i) != mine)
    with pytest.raises(mw.InvalidInputError, match="belong to shard"):
        appender.append(appender.claim(mine), [pa.record_batch({"id": [foreign]})], terms=Terms("null"))


def test_tombstones_delete_and_live_rows_still_need_their_not_null_columns(uri: str) -> None:
    table = mw.create_table(
        uri,
        pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("value", pa.string(), nullable=False)]),
        primary_key="id",
        sharding=SHARDING,
    )
    appender = OnceAppender(uri)
    claim = appender.claim(SHARD)
    appender.append(claim, [batch(1, 2, 3)])
    flags = pa.record_batch({"id": [2], "_tombstone": [True]})
    appender.append(claim, [flags])
    assert ids_of(table) == [1, 3]
    with pytest.raises(mw.InvalidInputError, match="value"):
        appender.append(claim, [pa.record_batch({"id": [4, 5], "value": ["4", None], "_tombstone": [False, False]})])
