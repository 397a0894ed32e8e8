"""Opening a shard: stored settings and overrides, the claim, doomed opens, WAL-only mode, and the age limit of memtables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import FencedError, InvalidInputError, ShardWriter, WriterConfig
from lance_memwal.clock import SYSTEM_CLOCK
from tests.kit.maintained import wait_until
from tests.kit.writers import (
    KEYED,
    SHARD,
    UNKEYED,
    WAL,
    base_table,
    entries,
    epoch_of,
    flushed,
    in_threads,
    key_field,
    memwal_threads,
    open_writer,
    positions_of,
    row_entries,
    rows,
    scanned,
    watched,
)


def test_a_writer_starts_from_the_defaults_that_the_table_stores(tmp_path: Path) -> None:
    stored = WriterConfig(max_memtable_rows=77, max_wal_flush_interval_ms=None, durable_write=False)
    table = base_table(tmp_path / "t", writer_defaults=stored)
    defaults = dict(table.details().writer_config_defaults)
    assert defaults.pop("memwal.table_id")
    assert defaults == stored.to_defaults()
    with mw.ShardWriter.open(table.uri) as writer:
        assert writer.config.replace(shard_id=None) == stored


def test_a_writer_without_a_shard_id_gets_a_new_shard(tmp_path: Path) -> None:
    with open_writer(tmp_path, shard_id=None) as one, open_writer(tmp_path, shard_id=None) as other:
        assert one.shard_id != other.shard_id
        assert one.config.shard_id == one.shard_id


def test_the_spec_id_of_a_sharded_table_is_resolved_at_open(tmp_path: Path) -> None:
    """Lesson 41: a writer stored spec id 0 on a table with a sharding spec."""
    table = base_table(tmp_path / "t", sharding=mw.Bucket("id", 4))
    spec_id = table.details().sharding_specs[0].spec_id
    assert spec_id != 0
    with mw.ShardWriter.open(table.uri, shard_id=mw.shard_id_for(mw.Bucket("id", 4), 2)) as writer:
        assert writer.manifest().shard_spec_id == spec_id


def test_each_open_claims_the_next_epoch_and_the_first_needs_no_sentinel(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    for epoch in (1, 2, 3):
        writer = open_writer(location)
        assert writer.epoch == epoch_of(tmp_path) == epoch
        writer.abort()
        assert store.count("put_new", WAL) == epoch - 1


Doom = tuple[str, Callable[[Path], Any], str]
DOOMED: list[Doom] = [
    ("an unknown setting", lambda root: open_writer(root, max_rows=1), "max_rows"),
    ("a bad setting", lambda root: open_writer(root, max_memtable_rows=0), "max_memtable_rows"),
    ("a config of another kind", lambda root: open_writer(root, config={"fsync": False}), "WriterConfig"),
    ("a bad shard id", lambda root: open_writer(root, shard_id="x"), "shard id"),
    ("another column name", lambda root: open_writer(root, pa.schema([key_field(), pa.field("w", pa.string())])), "'w'"),
    ("another type", lambda root: open_writer(root, pa.schema([key_field(), pa.field("v", pa.int8())])), "'v'"),
    ("another key type", lambda root: open_writer(root, pa.schema([key_field("id", pa.float64()), KEYED[1]])), "id"),
    ("indexes without a memtable", lambda root: open_writer(root, enable_memtable=False, indexes=[object()]),
     "indexes require enable_memtable=True"),
]  # fmt: skip


@pytest.mark.parametrize(("open_it", "reason"), [doom[1:] for doom in DOOMED], ids=[doom[0] for doom in DOOMED])
def test_a_doomed_open_fences_nobody(tmp_path: Path, open_it: Callable[[Path], Any], reason: str) -> None:
    root = tmp_path / "t"
    base_table(root)
    with open_writer(root) as living:
        living.put(rows([1]))
        with pytest.raises(InvalidInputError, match=reason):
            open_it(root)
        assert epoch_of(root) == 1
        living.put(rows([2]))
        assert set(scanned(living)) == {1, 2}


def test_a_doomed_open_of_a_table_without_schema_fences_nobody(tmp_path: Path) -> None:
    with open_writer(tmp_path) as living:
        with pytest.raises(InvalidInputError, match="give a schema"):
            open_writer(tmp_path, None)
        with pytest.raises(InvalidInputError, match="'_tombstone' is reserved"):
            open_writer(tmp_path, KEYED.append(pa.field("_tombstone", pa.bool_())))
        with pytest.raises(InvalidInputError, match="unique"):
            open_writer(tmp_path, pa.schema([*KEYED, pa.field("v", pa.string())]))
        with pytest.raises(InvalidInputError, match="at least one column"):
            open_writer(tmp_path, pa.schema([]))
        with pytest.raises(InvalidInputError, match="nested"):
            open_writer(tmp_path, pa.schema([key_field("nested", pa.list_(pa.int64())), KEYED[1]]))
        assert epoch_of(tmp_path) == 1
        living.put(rows([1]))


def test_a_column_type_that_no_generation_could_hold_is_refused_before_the_claim(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="'when'"):
        open_writer(tmp_path, KEYED.append(pa.field("when", pa.month_day_nano_interval())))
    assert epoch_of(tmp_path) == 0


def test_a_column_is_stored_as_lance_stores_it_whatever_the_schema_says(tmp_path: Path) -> None:
    views = pa.schema([key_field(), pa.field("v", pa.string_view())])
    with open_writer(tmp_path, views) as writer:
        writer.put(pa.record_batch([pa.array([1]), pa.array(["a"], pa.string_view())], schema=views))
        assert writer.schema.field("v").type == pa.string()
        assert scanned(writer) == {1: "a"}
    base_table(tmp_path / "t")
    with open_writer(tmp_path / "t", views) as writer:
        assert writer.schema.field("v").type == pa.string()


def test_a_shard_without_a_base_table_flushes_columns_that_need_a_newer_file_version(tmp_path: Path) -> None:
    maps = pa.schema([key_field(), pa.field("m", pa.list_(pa.map_(pa.string(), pa.int64())))])
    with open_writer(tmp_path, maps) as writer:
        writer.put([{"id": 1, "m": [[("a", 1)]]}])
    assert flushed(tmp_path)[1][0]["m"] == [[("a", 1)]]


def test_an_open_of_a_table_without_a_memwal_index_fences_nobody_and_says_what_to_do(tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"id": [1], "v": ["a"]}, schema=KEYED), str(tmp_path / "t"))
    with pytest.raises(InvalidInputError, match=r"memwal\.enable"):
        open_writer(tmp_path / "t")
    assert epoch_of(tmp_path / "t") == 0


def test_a_shard_needs_no_base_table_and_a_writer_describes_itself(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.put(rows([1]))
        assert scanned(writer) == {1: "a"}
        assert writer.schema.equals(KEYED)
        assert repr(writer) == f"ShardWriter(shard_id='{SHARD}', epoch=1, open)"
        assert (writer.shard_id, writer.epoch, writer.closed) == (SHARD, 1, False)
    assert repr(writer).endswith("closed)")


SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])
SETTINGS = {"fsync": False, "stats_log_interval_ms": None}


def make(place: Path, sharding: mw.Unsharded | mw.Bucket | None = None) -> mw.Table:
    return mw.create_table(
        str(place / "t"), SCHEMA, primary_key="id", sharding=sharding or mw.Unsharded(), writer_defaults=SETTINGS
    )


def generations(table: mw.Table) -> list[int]:
    return [generation for shard in table.shards() for generation in shard.generations]


def test_rows_are_flushed_at_their_age_without_another_write(tmp_path: Path) -> None:
    defaults = {**SETTINGS, "max_memtable_age_ms": 150}
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", writer_defaults=defaults)
    assert table.details().writer_config_defaults["max_memtable_age_ms"] == "150"
    with table.writer(compaction=None) as writer:
        writer.put({"id": [1], "v": ["a"]})
        assert generations(table) == []
        assert wait_until(lambda: generations(table) == [1], 20)
        writer.put({"id": [2], "v": ["b"]})
        assert wait_until(lambda: generations(table) == [1, 2], 20)
        assert table.count_rows() == 2
        assert table.stats().wal_lag_entries == 0


def test_the_first_row_counts_whatever_comes_after_it(tmp_path: Path) -> None:
    table = make(tmp_path)
    started = SYSTEM_CLOCK.monotonic()
    with table.writer(compaction=None, max_memtable_age_ms=200) as writer:
        number = 0
        while not generations(table):
            writer.put({"id": [number], "v": ["a"]})
            number += 1
            SYSTEM_CLOCK.sleep(0.01)
            assert SYSTEM_CLOCK.monotonic() < started + 20
        assert number > 3
        assert table.count_rows() == number


def test_without_an_age_limit_rows_stay_in_memory(tmp_path: Path) -> None:
    table = make(tmp_path)
    with table.writer(compaction=None, max_memtable_age_ms=None) as writer:
        writer.put({"id": [1], "v": ["a"]})
        (shard,) = writer.shard_writers.values()
        assert not wait_until(lambda: bool(generations(table)), 0.4)
        assert shard.memtable_stats().row_count == 1


def test_replayed_rows_have_an_age_too(tmp_path: Path) -> None:
    table = make(tmp_path)
    writer = table.writer(compaction=None)
    writer.put({"id": [1, 2], "v": ["a", "b"]})
    writer.abort()
    with table.shard_writer(max_memtable_age_ms=100) as again:
        assert again.memtable_stats().row_count == 2
        assert wait_until(lambda: generations(table) == [1], 20)
    assert table.count_rows() == 2


def test_a_parked_shard_is_flushed_at_the_same_age(tmp_path: Path) -> None:
    """Else maintenance would find a log without a live writer, claim it, and fence the writer that parked it."""
    table = make(tmp_path, mw.Bucket("id", 8))
    with table.writer(compaction=None, max_open_shards=2, max_memtable_age_ms=300) as writer:
        for number in range(32):
            writer.put({"id": [number], "v": ["a"]})
        assert len(writer.shard_writers) <= 2
        used = {shard.shard_id for shard in table.shards()}
        assert len(used) > 3
        assert wait_until(lambda: table.stats().wal_lag_entries == 0, 20)
        assert {shard.shard_id for shard in table.shards() if shard.generations} == used
        for number in range(32):  # none of them was fenced
            writer.put({"id": [number], "v": ["b"]})
    assert table.count_rows("v = 'b'") == 32


def wal_only(root: Path, **settings: object) -> ShardWriter:
    return open_writer(root, enable_memtable=False, **settings)


def test_every_memtable_accessor_is_refused(tmp_path: Path) -> None:
    with wal_only(tmp_path) as writer:
        writer.put(rows([1]))
        for accessor in (
            writer.memtable_stats,
            writer.memtable_scanner,
            writer.scan,
            writer.active_memtable_ref,
            writer.in_memory_memtable_refs,
            writer.force_seal_active,
            writer.wait_for_flush_drain,
            lambda: writer.get(1),
            lambda: writer.get_blob(1, "v"),
            lambda: writer.lookup([1]),
        ):
            with pytest.raises(InvalidInputError, match="WAL-only mode"):
                accessor()
        assert writer._live.capture() is None


def test_writes_that_read_rows_are_refused(tmp_path: Path) -> None:
    base_table(tmp_path, KEYED, [{"id": 1, "v": "a"}])
    row = rows([1])
    with wal_only(tmp_path) as writer:
        for write in (
            lambda: writer.insert(rows([2])),
            lambda: writer.put(row, if_absent=True),
            lambda: writer.put(row, where="v = 'a'"),
            lambda: writer.put({"id": [1]}, missing="keep"),
            lambda: writer.update(row),
            lambda: writer.update(where="id = 1", set={"v": "'b'"}),
            lambda: writer.delete(where="id = 1"),
            lambda: writer.delete([1], count=True),
            lambda: writer.compare_and_set(1, {"id": 1, "v": "a"}, {"id": 1, "v": "b"}),
        ):
            with pytest.raises(InvalidInputError, match="WAL-only mode"):
                write()
    assert row_entries(tmp_path) == []


@pytest.mark.parametrize("merge", [mw.FirstRow(), mw.LastWrite("n")])
def test_put_on_a_table_with_merge_is_refused(tmp_path: Path, merge: mw.FirstRow | mw.LastWrite) -> None:
    schema = pa.schema([*KEYED, ("n", pa.int64())])
    table = mw.create_table(str(tmp_path), schema, merge=merge)
    with table.shard_writer(enable_memtable=False) as writer, pytest.raises(InvalidInputError, match="WAL-only mode"):
        writer.put({"id": [1], "v": ["a"], "n": [1]})


def test_put_above_the_entry_limit_is_refused_and_writes_nothing(tmp_path: Path) -> None:
    with wal_only(tmp_path, max_entry_bytes=4096) as writer:
        for write in (writer.put, writer.put_nowait):
            with pytest.raises(InvalidInputError, match="max_entry_bytes=4096, the limit of one write"):
                write(rows(range(1000)))
        with pytest.raises(InvalidInputError, match="max_entry_bytes=4096"):
            writer.delete(list(range(1000)))
        writer.put(rows(range(50)))
    assert [entry.num_rows for entry in row_entries(tmp_path)] == [50]


def test_puts_wait_while_the_queue_is_over_its_budget(tmp_path: Path) -> None:
    timers = {"max_wal_flush_interval_ms": None, "max_wal_buffer_size": 0}
    with wal_only(tmp_path, durable_write=False, max_unflushed_memtable_bytes=2000, **timers) as writer:
        for k in range(50):
            writer.put(rows([k], "x" * 100))
        waits = writer.backpressure_stats().total_count
        assert 0 < waits == len(row_entries(tmp_path)), "each wait drained the queue into the log"
        writer.put(rows([50], "x" * 100_000))  # it is taken whole
    assert sum(entry.num_rows for entry in row_entries(tmp_path)) == 51


def test_table_writer_reads_what_it_put_in_wal_only_mode(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path), KEYED, sharding=mw.Bucket("id", 3))
    with table.writer(enable_memtable=False, fsync=False, max_open_shards=1) as writer:
        writer.put(rows(range(10)))
        writer.delete([3])
        assert writer.get(4) == {"id": 4, "v": "a"}
        assert writer.get(3) is None
        assert writer.count_rows() == table.count_rows() == 9
        assert table.count_rows(consistency="flushed") == 0
        with pytest.raises(InvalidInputError, match="WAL-only mode"):
            writer.flush()
    assert {len(info.generations) for info in table.shards()} == {0}
    table.flush(force=True)
    assert table.count_rows(consistency="flushed") == 9


def test_puts_and_deletes_are_durable_and_nothing_is_ever_flushed(tmp_path: Path) -> None:
    with wal_only(tmp_path, max_memtable_rows=2, max_memtable_age_ms=1) as writer:
        assert positions_of(writer.put([rows([1]), rows([2])])) == range(2)
        writer.delete([1])
        writer.put_nowait(rows([3])).wait()
    stats = writer.stats()
    assert (stats.put_count, stats.wal_flush_count) == (3, 3)
    assert (stats.memtable_flush_count, stats.index_update_count) == (0, 0)
    assert flushed(tmp_path) == {}
    assert [e.num_rows for e in row_entries(tmp_path)] == [2, 1, 1]
    assert not memwal_threads()


def test_a_memtable_writer_replays_what_wal_only_mode_wrote(tmp_path: Path) -> None:
    for skipped in (False, True):
        with wal_only(tmp_path) as writer:
            assert writer.put(rows([1, 2]), txn=("a", 1)).skipped is skipped
            assert writer.put(rows([1, 2]), txn=("a", 1)).skipped
            writer.delete([1])
    assert len(row_entries(tmp_path)) == 3
    with open_writer(tmp_path) as writer:
        assert scanned(writer) == {2: "a"}


def test_entries_are_numbered_within_the_memtable_limits_also_after_a_reopen(tmp_path: Path) -> None:
    with wal_only(tmp_path, max_memtable_rows=10) as writer:
        for k in range(3):
            writer.put(rows(range(4 * k, 4 * k + 4)))
    with wal_only(tmp_path, max_memtable_rows=10) as writer:
        writer.put(rows(range(4)))
        writer.put(rows(range(4)))
    assert [e.generation for e in row_entries(tmp_path)] == [1, 1, 2, 2, 3]
    with open_writer(tmp_path) as writer:  # a memtable writer takes over: the closed generations become SSTables
        assert list(flushed(tmp_path)) == [1, 2]
        assert writer.memtable_stats().generation == 3
        writer.put(rows([99]))
        writer.close()
    with wal_only(tmp_path) as writer:
        writer.put(rows([100]))
    assert row_entries(tmp_path)[-1].generation == 4


def test_group_commit_works_as_in_memtable_mode(tmp_path: Path) -> None:
    with wal_only(tmp_path, durable_write=False, max_wal_flush_interval_ms=None) as writer:
        for k in range(50):
            writer.put(rows([k]))
        assert entries(tmp_path) == []
    assert [e.num_rows for e in row_entries(tmp_path)] == [50]


def test_eight_threads_lose_and_repeat_nothing(tmp_path: Path) -> None:
    with wal_only(tmp_path, max_memtable_batches=30) as writer:
        in_threads(lambda t: [writer.put(rows([100 * t + k])) for k in range(20)], range(8))
    log = row_entries(tmp_path)
    found = [k for e in log for b in e.batches for k in b.column("id").to_pylist()]
    assert sorted(found) == sorted(100 * t + k for t in range(8) for k in range(20))
    generations = [e.generation for e in log]
    assert generations == sorted(generations)
    assert max(sum(len(e.batches) for e in log if e.generation == g) for g in set(generations)) <= 30


def test_fencing_works_as_in_memtable_mode(tmp_path: Path) -> None:
    first = wal_only(tmp_path)
    first.put(rows([1]))
    with wal_only(tmp_path) as second:
        with pytest.raises(FencedError):
            first.put(rows([2]))
        second.put(rows([3]))
    with pytest.raises(FencedError):
        first.close()


def test_an_append_only_table_keeps_every_row_once(tmp_path: Path) -> None:
    table = base_table(tmp_path / "t", UNKEYED)
    with table.shard_writer(enable_memtable=False, fsync=False) as writer:
        for _ in range(3):
            writer.put(rows([1, 1], schema=UNKEYED))
    assert table.scan().count_rows() == 6


def test_input_is_checked_as_in_memtable_mode(tmp_path: Path) -> None:
    with wal_only(tmp_path) as writer:
        with pytest.raises(InvalidInputError, match="empty batch list"):
            writer.put([])
        with pytest.raises(InvalidInputError, match="'id' must not be null"):
            writer.put({"id": [None], "v": ["a"]})
        with pytest.raises(InvalidInputError, match="'w'"):
            writer.put({"id": [1], "w": ["a"]})
        assert writer.schema.equals(KEYED)
