"""The log between memwal and pylance: each replays, fences and reads what the other wrote."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import FencedError, ShardManifestStore, WalAppender, WalTailer
from lance_memwal.lance.base import BaseTable
from lance_memwal.log.entry import encode_mark, encode_sentinel
from lance_memwal.log.reading import list_positions
from lance_memwal.store import paths
from lance_memwal.store.location import resolve
from tests.kit.logs import (
    KEY,
    SCHEMA,
    SHARD,
    ids,
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


def test_pylance_opens_a_shard_that_we_claimed_and_replays_what_we_appended(tmp_path: Path) -> None:
    uri = lance_table(tmp_path)
    writer = appender(uri)
    writer.append(rows(1, 2))
    writer.append([rows(3), rows(4, 5)])
    writer.append(rows(2, name="newer"))
    with peer(uri) as reader:
        assert peer_rows(reader) == [
            {"id": 1, "name": "n1"},
            {"id": 2, "name": "newer2"},
            *({"id": n, "name": f"n{n}"} for n in (3, 4, 5)),
        ]


def test_pylance_opens_a_shard_that_we_only_claimed(tmp_path: Path) -> None:
    uri = lance_table(tmp_path)
    for _ in range(3):
        open_shard(place(tmp_path))
    with peer(uri) as writer:
        assert peer_rows(writer) == []
        writer.put(rows(1))
        assert peer_ids(writer) == [1]
    assert manifests_at(place(tmp_path)).check_fenced(4).writer_epoch == 4


def test_pylance_replays_our_tombstones(tmp_path: Path) -> None:
    uri = lance_table(tmp_path)
    writer = appender(uri)
    writer.append(rows(1, 2, 3))
    writer.append(pa.table({"id": [2], "_tombstone": [True]}))
    with peer(uri) as reader:
        assert peer_ids(reader) == [1, 3]


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


ROWS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "decimal": (pa.decimal128(20, 3), [Decimal("1.250"), None]),
    "vector": (pa.list_(pa.float32(), 3), [[1.0, 2.0, 3.0], None]),
    "list": (pa.list_(pa.string()), [["a", None], []]),
    "struct": (
        pa.struct([("x", pa.int32()), ("y", pa.struct([("z", pa.string())]))]),
        [{"x": 1, "y": {"z": "q"}}, None],
    ),
    "list of structs": (pa.list_(pa.struct([("x", pa.int32())])), [[{"x": 1}, {"x": None}], None]),
    "timestamp": (pa.timestamp("us", tz="UTC"), [1_700_000_000_000_000, None]),
    "binary": (pa.large_binary(), [b"\0\xff", None]),
    "boolean": (pa.bool_(), [True, None]),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), ["a", None]),
}


@pytest.mark.parametrize("kind", ROWS)
def test_pylance_replays_every_kind_of_column(kind: str, tmp_path: Path) -> None:
    data_type, values = ROWS[kind]
    schema = pa.schema([SCHEMA.field("id"), pa.field("value", data_type)])
    uri = lance_table(tmp_path, schema)
    given = pa.table({"id": pa.array([1, 2]), "value": pa.array(values, data_type)}, schema=schema)
    writer = appender(uri)
    writer.append(given)
    writer.append(given.slice(1, 1))
    with peer(uri) as reader:
        assert peer_rows(reader) == given.to_pylist()


def test_pylance_replays_columns_that_are_not_null_in_the_table(tmp_path: Path) -> None:
    schema = pa.schema([SCHEMA.field("id"), pa.field("must", pa.string(), nullable=False)])
    uri = lance_table(tmp_path, schema)
    writer = appender(uri)
    writer.append(pa.table({"id": [1, 2], "must": ["a", "b"]}))
    writer.append(pa.table({"id": [1], "_tombstone": [True]}))
    with peer(uri) as reader:
        assert peer_rows(reader) == [{"id": 2, "must": "b"}]


def test_pylance_replays_a_composite_key(tmp_path: Path) -> None:
    key = {**KEY, "lance-schema:unenforced-primary-key:position": "1"}
    schema = pa.schema(
        [
            pa.field("a", pa.string(), nullable=False, metadata=key),
            pa.field("id", pa.int64(), nullable=False, metadata={**key, next(reversed(key)): "2"}),
            pa.field("v", pa.int8()),
        ]
    )
    uri = lance_table(tmp_path, schema)
    writer = appender(uri)
    writer.append(pa.table({"a": ["x", "x", "y"], "id": [1, 2, 1], "v": [1, 2, 3]}))
    writer.append(pa.table({"a": ["x"], "id": [2], "v": [9]}))
    with peer(uri) as reader:
        found = sorted((row["a"], row["id"], row["v"]) for row in reader.lsm_scanner().to_table().to_pylist())
    assert found == [("x", 1, 1), ("x", 2, 9), ("y", 1, 3)]


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
def test_pylance_replays_a_log_that_steps_over_the_limits_of_its_memtables(
    limit: str, rows_per_entry: int, tmp_path: Path
) -> None:
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


def test_a_living_writer_of_pylance_is_fenced_by_our_claim(tmp_path: Path) -> None:
    uri = lance_table(tmp_path)
    theirs = peer(uri)
    theirs.put(rows(1))
    ours = appender(uri)
    with pytest.raises(OSError, match="fenced"):
        theirs.put(rows(2))
    assert ours.append(rows(3)) == 3
    assert story(read_all(uri)) == [(1, 1, [1]), (2, 2, "sentinel"), (3, 2, [3])]
    with pytest.raises(OSError, match="fenced"):
        theirs.close()


def test_our_appender_is_fenced_by_the_open_of_pylance(tmp_path: Path) -> None:
    uri = lance_table(tmp_path)
    ours = appender(uri)
    ours.append(rows(1))
    with peer(uri) as theirs:
        with pytest.raises(FencedError, match="Writer fenced") as error:
            ours.append(rows(2))
        assert (error.value.our_epoch, error.value.current_epoch) == (1, 2)
        with pytest.raises(FencedError):
            ours.check_fenced()
        theirs.put(rows(3))
        assert peer_ids(theirs) == [1, 3]


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


@pytest.mark.parametrize("kind", ROWS)
def test_we_read_every_kind_of_column_that_pylance_writes(kind: str, tmp_path: Path) -> None:
    data_type, values = ROWS[kind]
    schema = pa.schema([SCHEMA.field("id"), pa.field("value", data_type)])
    uri = lance_table(tmp_path, schema)
    with peer(uri) as theirs:
        theirs.put(pa.table({"id": pa.array([1, 2]), "value": pa.array(values, data_type)}, schema=schema))
    (entry,) = read_all(uri)
    assert entry.batches[0].column("value").to_pylist() == pa.array(values, data_type).to_pylist()
    assert entry.batches[0].schema.field("value").type == data_type


def test_we_take_over_from_pylance_and_go_on_behind_its_entries(tmp_path: Path) -> None:
    uri = lance_table(tmp_path)
    theirs = peer(uri)
    for number in (1, 2, 3):
        theirs.put(rows(number))
    ours = appender(uri)
    assert (ours.epoch, ours.next_position) == (2, 5)
    assert ours.append(rows(4)) == 5
    assert ids(WalTailer(uri, SHARD).read_entry(3)) == [3]
    with pytest.raises(OSError, match="fenced"):
        theirs.close()


def test_a_shard_goes_back_and_forth_and_loses_nothing(tmp_path: Path) -> None:
    uri = lance_table(tmp_path)
    expected: list[int] = []
    for turn in range(4):
        ours = appender(uri)
        ours.append(rows(2 * turn), txn=("app", turn))
        expected.append(2 * turn)
        with peer(uri) as theirs:
            assert peer_ids(theirs) == expected
            theirs.put(rows(2 * turn + 1))
            expected.append(2 * turn + 1)
    ours = appender(uri)
    assert ours.append(rows(99), txn=("app", 3)) == 0, "the map is found behind what pylance wrote"
    positions = list_positions(place(tmp_path), SHARD)
    assert positions == list(range(1, len(positions) + 1))
    with peer(uri) as theirs:
        assert peer_ids(theirs) == expected
    manifest = ShardManifestStore(uri, SHARD).read_latest()
    assert manifest is not None
    assert manifest.writer_epoch == 4 * 2 + 2
