"""The log between memwal and pylance: each replays, fences and reads what the other wrote."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import FencedError, ShardManifestStore, WalAppender, WalTailer
from lance_memwal.lance.base import BaseTable
from lance_memwal.log.entry import encode_mark, encode_sentinel
from lance_memwal.store import paths
from lance_memwal.store.location import resolve
from tests.kit.feeds import ops_of
from tests.kit.logs import (
    SCHEMA,
    SHARD,
    lance_table,
    manifests_at,
    open_shard,
    place,
    put_entry,
    read_all,
    rows,
    story,
    with_map,
)
from tests.kit.tables import create, keyed, rows_of


def appender(uri: str) -> WalAppender:
    return WalAppender.open(uri, SHARD, fsync=False)


def peer(uri: str) -> Any:
    """pylance's writer of the shard: its open claims, places a sentinel and replays."""
    return lance.dataset(uri).mem_wal_writer(SHARD)


def peer_rows(writer: Any, key: str = "id") -> list[dict[str, Any]]:
    """What pylance reads from its memtables, SSTables and base table."""
    return sorted(writer.lsm_scanner().to_table().to_pylist(), key=lambda row: row[key])


def peer_ids(writer: Any) -> list[int]:
    return [row["id"] for row in peer_rows(writer)]


# ---------------------------------------------------------------------------------------- pylance reads what we wrote


def test_an_entry_without_a_generation_is_of_the_newest_one_of_the_tail_for_everybody(tmp_path: Path) -> None:
    """Lance 13 writes none. Of an older generation it would be lost to a read that finds that one compacted."""
    uri = lance_table(tmp_path)
    open_shard(place(tmp_path))
    for position, (generation, name) in enumerate([("1", "first"), ("2", "second"), (None, "third")], 1):
        put_entry(place(tmp_path), position, foreign_entry(uri, generation, name))
    shown = mw.open_table(uri).scan(with_generation=True).to_table().to_pylist()
    assert shown == [{"id": 7, "name": "third", "_memtable_gen": 2}]
    with peer(uri) as theirs:
        assert theirs.memtable_stats()["generation"] == 2
        assert peer_rows(theirs) == [{"id": 7, "name": "third"}]


def foreign_entry(uri: str, generation: str | None, name: str) -> bytes:
    """An entry of epoch 1 as another implementation writes it."""
    base = BaseTable.open(resolve(uri))
    assert base is not None
    schema = base.columns.wal.with_metadata(
        {"writer_epoch": "1", **({} if generation is None else {"generation": generation})}
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(pa.record_batch([pa.array([7]), pa.array([name]), pa.array([False])], schema=schema))
    return bytes(sink.getvalue().to_pybytes())


def test_pylance_opens_a_shard_that_we_only_claimed(tmp_path: Path) -> None:
    uri = lance_table(tmp_path)
    for _ in range(3):
        open_shard(place(tmp_path))
    with peer(uri) as writer:
        assert peer_rows(writer) == []
        writer.put(rows(1))
        assert peer_ids(writer) == [1]
    assert manifests_at(place(tmp_path)).check_fenced(4).writer_epoch == 4


def test_pylance_accepts_our_sentinels_marks_and_transactions_as_no_rows(tmp_path: Path) -> None:
    uri = lance_table(tmp_path)
    location = place(tmp_path)
    writer = appender(uri)
    writer.append(rows(1), txn=("app", 1))
    writer = appender(uri)
    writer.append(rows(2), txn=("app", 2))
    writer._opened.log.append(encode_mark(writer.epoch, with_map(app=2)))
    writer = appender(uri)
    writer.append(rows(3))
    log = story(read_all(location))
    assert log == [(1, 1, [1]), (2, 2, "sentinel"), (3, 2, [2]), (4, 2, "mark"), (5, 3, "sentinel"), (6, 3, [3])]
    with peer(uri) as reader:
        assert peer_ids(reader) == [1, 2, 3]


def test_our_sentinels_are_those_of_pylance_but_for_padding_and_footer(tmp_path: Path) -> None:
    uri = lance_table(tmp_path)
    peer(uri).close()
    peer(uri).close()
    (theirs,) = read_all(place(tmp_path))
    with pa.ipc.open_stream(encode_sentinel(2)) as ours:
        assert theirs.is_sentinel
        assert theirs.schema is not None
        assert dict(theirs.schema.metadata) == dict(ours.schema.metadata)
        assert theirs.schema.names == ours.schema.names == []


def test_pylance_flushes_every_row_of_a_table_without_a_key_once(tmp_path: Path) -> None:
    uri = lance_table(tmp_path, pa.schema([("id", pa.int64())]))
    writer = appender(uri)
    for _ in range(3):
        writer.append(pa.table({"id": [1, 2]}))
    peer(uri).close()
    assert generation_ids(uri) == [[1, 2, 1, 2, 1, 2]]
    appender(uri).append(pa.table({"id": [7]}))
    peer(uri).close()
    assert generation_ids(uri) == [[1, 2, 1, 2, 1, 2], [7]]


def generation_ids(uri: str) -> list[list[int]]:
    """The ids in every SSTable that the manifest lists, in its order."""
    manifest = ShardManifestStore(uri, SHARD).read_latest()
    assert manifest is not None
    directories = [f"{uri}/{paths.sstable_dir(SHARD, sstable.path)}" for sstable in manifest.sstables]
    return [lance.dataset(directory).to_table().column("id").to_pylist() for directory in directories]


LIMITS: dict[str, dict[str, int]] = {
    "rows": {"max_memtable_rows": 5},
    "batches": {"max_memtable_batches": 3},
    "bytes": {"max_memtable_size": 60},
    "rows and batches": {"max_memtable_rows": 7, "max_memtable_batches": 2},
}


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("rows_per_entry", [1, 2, 9])
def test_pylance_replays_a_log_over_its_memtable_limits(limit: str, rows_per_entry: int, tmp_path: Path) -> None:
    uri = lance_table(tmp_path, **LIMITS[limit])
    writer = appender(uri)
    for number in range(20):
        writer.append(rows(*range(number * rows_per_entry, (number + 1) * rows_per_entry)))
        if number == 10:
            writer = appender(uri)
    steps = [entry.generation for entry in read_all(uri) if entry.batches]
    assert len(set(steps)) > 2
    with peer(uri) as reader:
        assert peer_ids(reader) == list(range(20 * rows_per_entry))


def test_pylance_replays_an_entry_of_as_many_batches_as_a_memtable_takes_and_more(tmp_path: Path) -> None:
    uri = lance_table(tmp_path, max_memtable_batches=50)
    writer = appender(uri)
    writer.append([rows(n) for n in range(50)])
    writer.append([rows(n) for n in range(50, 101)])
    with peer(uri) as reader:
        assert peer_ids(reader) == list(range(101))


# --------------------------------------------------------------------------------------------- fencing, both ways


def test_an_appender_that_never_wrote_is_fenced_by_the_open_of_pylance(tmp_path: Path) -> None:
    uri = lance_table(tmp_path)
    ours = appender(uri)
    with peer(uri), pytest.raises(FencedError):
        ours.append(rows(2))


# --------------------------------------------------------------------------------------- we read what pylance wrote


def test_we_tail_what_pylance_writes_while_it_lives(tmp_path: Path) -> None:
    uri = lance_table(tmp_path)
    theirs = peer(uri)
    tailer = WalTailer(uri, SHARD)
    assert tailer.read_entry(1) is None
    theirs.put(rows(1, 2))
    theirs.delete(pa.table({"id": [1]}, schema=pa.schema([SCHEMA.field("id")])))
    put, delete = tailer.read_entry(1), tailer.read_entry(2)
    assert put is not None
    assert (put.writer_epoch, put.generation, put.footer) == (1, 1, None)
    assert put.batches[0].to_pylist() == [{"id": n, "name": f"n{n}", "_tombstone": False} for n in (1, 2)]
    assert delete is not None
    assert delete.batches[0].to_pylist() == [{"id": 1, "name": None, "_tombstone": True}]
    assert (tailer.read_entry(3), tailer.next_position(), tailer.first_position()) == (None, 3, 1)
    theirs.close()


FEED_SCHEMA = keyed(pa.field("v", pa.int64()))
FEED_SHARD = mw.shard_id_for(mw.Unsharded())


def feed_rows(ids: list[int], v: int) -> pa.Table:
    return pa.table({"id": ids, "v": [v] * len(ids)}, FEED_SCHEMA)


def test_changes_of_both_writers_are_one_feed_with_times_and_images(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = create(uri, FEED_SCHEMA)
    began = datetime.now(UTC) - timedelta(seconds=1)
    with table.shard_writer(max_entry_bytes=4096, fsync=False) as writer:
        writer.put(feed_rows([1, 2], 1))
        writer.put(feed_rows(list(range(1000, 2000)), 1))  # a generation of its own, with a mark
    peer = lance.dataset(uri).mem_wal_writer(FEED_SHARD)
    peer.put(feed_rows([2, 3], 2))
    peer.close()
    with table.shard_writer(fsync=False) as writer:
        writer.delete([3])
    found = [row for batch in table.changes(until="now") for row in batch.to_pylist()]
    small = [(row["_op"], row["id"], row["v"]) for row in found if row["id"] < 1000]
    assert small == [("u", 1, 1), ("u", 2, 1), ("u", 2, 2), ("u", 3, 2), ("d", 3, None)]
    assert len(found) == 1005
    assert all(began <= row["_time"] <= datetime.now(UTC) + timedelta(seconds=1) for row in found)
    images = [op for op in ops_of(table.changes(until="now", before=True), "id", "v") if op[1] < 1000]
    assert images == [
        ("insert", 1, 1),
        ("insert", 2, 1),
        ("update_before", 2, 1),
        ("update_after", 2, 2),
        ("insert", 3, 2),
        ("delete", 3, 2),
    ]
    assert len(rows_of(table.scan())) == 1002
