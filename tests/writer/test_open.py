"""Opening a shard: stored settings and overrides, the claim, and opens that are doomed and so must fence nobody."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import InvalidInputError, WriterConfig
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.types import ShardStatus
from tests.kit.writers import (
    KEYED,
    MANIFEST,
    SHARD,
    WAL,
    base_table,
    epoch_of,
    flushed,
    in_thread,
    key_field,
    open_writer,
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


def test_extra_stored_keys_survive_and_harm_no_writer(tmp_path: Path) -> None:
    table = base_table(tmp_path / "t", writer_defaults={"max_memtable_rows": 9, "owner": "team blue"})
    assert table.details().writer_config_defaults["owner"] == "team blue"
    with mw.ShardWriter.open(table.uri) as writer:
        assert writer.config.max_memtable_rows == 9


def test_overrides_of_one_writer_win_over_stored_defaults(tmp_path: Path) -> None:
    table = base_table(tmp_path / "t", writer_defaults={"max_memtable_rows": 9, "max_memtable_batches": 8})
    with mw.ShardWriter.open(table.uri, max_memtable_rows=11) as writer:
        assert (writer.config.max_memtable_rows, writer.config.max_memtable_batches) == (11, 8)


def test_a_given_config_replaces_stored_defaults(tmp_path: Path) -> None:
    table = base_table(tmp_path / "t", writer_defaults={"max_memtable_rows": 9})
    with mw.ShardWriter.open(table.uri, config=WriterConfig(max_memtable_batches=3), fsync=False) as writer:
        assert (writer.config.max_memtable_rows, writer.config.max_memtable_batches) == (100_000, 3)
        assert writer.config.fsync is False


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


def test_each_open_claims_the_next_epoch(tmp_path: Path) -> None:
    for epoch in (1, 2, 3):
        with open_writer(tmp_path) as writer:
            assert writer.epoch == epoch
            assert epoch_of(tmp_path) == epoch


def test_the_next_position_is_right_from_the_moment_of_open(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        assert writer.wal_stats().next_wal_entry_position == 1
        writer.put(rows([1]))
        writer.put(rows([2]))
        assert writer.wal_stats().next_wal_entry_position == 3
    with open_writer(tmp_path) as writer:
        assert writer.wal_stats().next_wal_entry_position == 4  # our sentinel is entry 3


def test_a_fence_mark_is_placed_only_if_somebody_claimed_before(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    open_writer(location).abort()
    assert store.count("put_new", WAL) == 0
    open_writer(location).abort()
    assert store.count("put_new", WAL) == 1


def _sealed(root: Path) -> None:
    store = ShardManifestStore(str(root), SHARD)
    store.commit_maintenance(lambda m: replace(m, version=m.version + 1, status=ShardStatus.SEALED))


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


def test_a_base_table_that_was_overwritten_refuses_new_writers(tmp_path: Path) -> None:
    """Lesson E1.4: a writer kept acknowledging rows that nobody could read any more."""
    base_table(tmp_path / "t")
    lance.write_dataset(pa.table({"id": [1], "v": ["a"]}, schema=KEYED), str(tmp_path / "t"), mode="overwrite")
    with pytest.raises(InvalidInputError, match=r"repair"):
        open_writer(tmp_path / "t")


def test_a_sealed_shard_refuses_claims(tmp_path: Path) -> None:
    open_writer(tmp_path).close()
    _sealed(tmp_path)
    with pytest.raises(InvalidInputError, match="sealed"):
        open_writer(tmp_path)
    assert epoch_of(tmp_path) == 1


def test_a_shard_needs_no_base_table(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.put(rows([1]))
        assert scanned(writer) == {1: "a"}
        assert writer.schema.equals(KEYED)


def test_a_claim_whose_answer_was_lost_is_never_taken_as_won(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    store.fail("put_new", MANIFEST, 1, after=True)
    with pytest.raises(mw.UnavailableError):
        open_writer(location)  # this store is not retried below the engine
    with open_writer(location) as writer:
        assert writer.epoch == 2


def test_a_writer_that_slept_between_claim_and_sentinel_does_not_come_alive(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    open_writer(location).close()
    sleeper = store.hold("put_new", WAL, 1)
    opening = in_thread(lambda: open_writer(location))
    sleeper.wait_reached()
    with open_writer(tmp_path) as successor:
        successor.put(rows([1]))
        sleeper.open()
        with pytest.raises(mw.FencedError) as caught:
            opening.result()
        assert (caught.value.our_epoch, caught.value.current_epoch) == (2, 3)
        successor.put(rows([2]))
        assert set(scanned(successor)) == {1, 2}


def test_a_writer_describes_itself(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        assert repr(writer) == f"ShardWriter(shard_id='{SHARD}', epoch=1, open)"
        assert (writer.shard_id, writer.epoch, writer.closed) == (SHARD, 1, False)
    assert repr(writer).endswith("closed)")
