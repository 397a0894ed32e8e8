"""Whole tables between memwal and pylance, both ways: four buckets, rows in every tier, takeovers in either direction."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.mem_wal import LsmPointLookupPlanner, LsmScanner

import lance_memwal as mw
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.process.cache import CACHE
from lance_memwal.rows.key_encoding import hash_is_exact
from lance_memwal.sstable.read import SsTableReader
from lance_memwal.store.location import resolve
from tests.harness.shard_audit import peer_snapshot
from tests.kit.interop_tables import APPEND, CASES, NAMES, SHAPES, Duel, Shape, in_order
from tests.kit.tables import compact_shard, create, ids_of, keyed, outside, rows_of, upsert_base, watched_table

FOUR = mw.Bucket("id", 4)
KEY = {"lance-schema:unenforced-primary-key": "true"}
SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False, metadata=KEY), pa.field("v", pa.int64()), pa.field("s", pa.string())]
)


def _rows(numbers: Any, v: int) -> list[dict[str, Any]]:
    return [{"id": i, "v": v, "s": f"{v}-{i}"} for i in numbers]


def _peer_snapshots(table: mw.Table) -> list[Any]:
    return [peer_snapshot(table.uri, shard.shard_id) for shard in table.shards()]


def _peer_rows(table: mw.Table) -> list[dict[str, Any]]:
    """All rows as pylance's scanner reads them over all shards."""
    scanner: Any = LsmScanner.from_snapshots(lance.dataset(table.uri), _peer_snapshots(table))
    return rows_of(scanner.to_table().select(["id", "v", "s"]))


def _peer_get(table: mw.Table, key: int) -> list[dict[str, Any]]:
    planner = LsmPointLookupPlanner(lance.dataset(table.uri), _peer_snapshots(table))
    found: list[dict[str, Any]] = planner.plan_lookup(pa.array([key], pa.int64())).to_table().to_pylist()
    return found


def _by_shard(rows: list[dict[str, Any]]) -> dict[str, pa.Table]:
    batch = pa.Table.from_pylist(rows, schema=SCHEMA).to_batches()[0]
    return {shard_id: pa.Table.from_batches([part]) for shard_id, part in mw.route(batch, FOUR, SCHEMA)}


# ------------------------------------------------------------------------------------------------------- ours, theirs


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_pylance_reads_all_shards_of_a_table_that_we_wrote(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), sharding=FOUR)
    upsert_base(table.uri, pa.Table.from_pylist(_rows(range(20), 0), schema=SCHEMA))
    with table.writer(compaction=None) as writer:
        writer.put(_rows(range(10, 40), 1) + _rows(range(12, 16), 2))
        writer.flush()
        writer.delete([0, 11, 30, 999])
        writer.put(_rows(range(35, 50), 3))
        writer.flush()
        writer.put(_rows([30, 1], 4))
    expected = rows_of(table.scan())
    assert len(expected) == 48
    assert _peer_rows(table) == expected
    for key, wanted in ((0, []), (11, []), (30, _rows([30], 4)), (5, _rows([5], 0)), (13, _rows([13], 2)), (77, [])):
        assert [{name: row[name] for name in ("id", "v", "s")} for row in _peer_get(table, key)] == wanted
    for shard in table.shards():
        compact_shard(table.uri, shard.shard_id)
    assert _peer_rows(table) == expected
    assert rows_of(table.scan()) == expected


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_pylance_takes_over_every_shard_of_ours_and_we_take_them_back(tmp_path: Path) -> None:
    """With rows that are only in our log: pylance replays them, and ours replays its."""
    table = create(str(tmp_path / "t"), sharding=FOUR)
    writer = table.writer(compaction=None)
    writer.put(_rows(range(20), 1))
    writer.flush()
    writer.put(_rows(range(10, 30), 2))
    writer.delete([0, 1, 2, 3])
    expected = {row["id"]: row for row in _rows(range(4, 10), 1) + _rows(range(10, 30), 2)}
    assert rows_of(table.scan()) == [expected[i] for i in sorted(expected)]
    theirs = {shard.shard_id: table.dataset.mem_wal_writer(shard.shard_id) for shard in table.shards()}
    with pytest.raises(mw.FencedError):
        writer.put(_rows([4], 9))
    for shard_id, part in _by_shard(_rows(range(25, 45), 3)).items():
        theirs[shard_id].put(part)
    expected |= {row["id"]: row for row in _rows(range(25, 45), 3)}
    everything = [expected[i] for i in sorted(expected)]
    assert rows_of(table.scan()) == everything  # ours is superseded: the log is read
    theirs[next(iter(theirs))].close()
    assert rows_of(table.scan()) == everything
    with mw.open_table(table.uri).writer(compaction=None) as successor:
        successor.put(_rows(range(45, 60), 4))
        successor.delete([25])
        expected |= {row["id"]: row for row in _rows(range(45, 60), 4)}
        del expected[25]
        everything = [expected[i] for i in sorted(expected)]
        assert rows_of(table.scan()) == everything
    writer.abort()
    assert _peer_rows(table) == everything
    assert rows_of(table.scan(consistency="flushed")) == everything


# ------------------------------------------------------------------------------------------------------- theirs, ours


def _their_table(uri: str, **options: Any) -> lance.LanceDataset:
    dataset = lance.write_dataset(pa.Table.from_pylist(_rows(range(10), 0), schema=SCHEMA), uri)
    dataset.initialize_mem_wal(**options)
    return lance.dataset(uri)


def test_we_read_all_shards_of_a_table_that_pylance_wrote(tmp_path: Path) -> None:
    """While its writers live, with flushed generations and with rows that are only in its log."""
    uri = str(tmp_path / "t")
    dataset = _their_table(uri, bucket_column="id", num_buckets=4, max_wal_buffer_size=1)
    table = mw.open_table(uri)
    assert table.sharding == FOUR
    writers: dict[str, Any] = {}
    expected = {row["id"]: row for row in _rows(range(10), 0)}
    for version, numbers in ((1, range(5, 25)), (2, range(20, 40)), (3, range(38, 44))):
        for shard_id, part in _by_shard(_rows(numbers, version)).items():
            if shard_id not in writers:
                writers[shard_id] = dataset.mem_wal_writer(shard_id, max_memtable_batches=2)
            writers[shard_id].put(part)
        expected |= {row["id"]: row for row in _rows(numbers, version)}
        for reader in (table, mw.open_table(uri)):
            assert rows_of(reader.scan()) == [expected[i] for i in sorted(expected)]
    for shard_id, part in _by_shard(_rows([0, 6, 22, 41], 0)).items():
        writers[shard_id].delete(part.select(["id"]))
    expected = {i: row for i, row in expected.items() if i not in (0, 6, 22, 41)}
    everything = [expected[i] for i in sorted(expected)]
    assert rows_of(table.scan()) == everything
    assert [table.get(i) for i in range(45)] == [expected.get(i) for i in range(45)]
    assert rows_of(table.lookup(list(range(50)))) == everything
    assert ids_of(table.scan(filter="v = 2")) == [i for i, row in expected.items() if row["v"] == 2]
    with outside() as other:
        assert rows_of(other.ask("scan", uri)) == everything
    for writer in writers.values():
        writer.close()
    assert rows_of(table.scan(consistency="flushed")) == everything
    assert all(shard.epoch == 1 for shard in table.shards())


@pytest.mark.parametrize(
    ("options", "sharding"),
    [
        ({}, mw.Manual()),
        ({"unsharded": True}, mw.Unsharded()),
        ({"bucket_column": "id", "num_buckets": 7}, mw.Bucket("id", 7)),
        ({"identity_column": "id"}, mw.Identity("id")),
    ],
)
def test_sharding_of_pylance_is_opened_and_written(tmp_path: Path, options: dict[str, Any], sharding: Any) -> None:
    uri = str(tmp_path / "t")
    _their_table(uri, max_memtable_rows=77, **options)
    table = mw.open_table(uri)
    assert table.sharding == sharding
    assert table.primary_key == ["id"]
    with table.writer(fsync=False) as writer:
        writer.put(_rows(range(8, 14), 1))
        assert all(shard.config.max_memtable_rows == 77 for shard in writer.shard_writers.values())
        writer.delete([0])
        assert ids_of(table.scan()) == list(range(1, 14))
    assert ids_of(table.scan(consistency="flushed")) == list(range(1, 14))


def test_what_we_create_pylance_knows_as_its_own(tmp_path: Path) -> None:
    for name, sharding, column in (
        ("b", FOUR, "bucket"),
        ("i", mw.Identity("id"), "identity"),
        ("u", mw.Unsharded(), "unsharded"),
    ):
        table = create(str(tmp_path / name), sharding=sharding, writer_defaults={"max_memtable_rows": 9})
        details = lance.dataset(table.uri).mem_wal_index_details()
        assert details["sharding_specs"][0]["fields"][0]["transform"] == column
        assert details["writer_config_defaults"]["max_memtable_rows"] == "9"
        assert table.dataset.count_rows() == 0
    with pytest.raises(OSError, match="already"):
        lance.dataset(table.uri).initialize_mem_wal()


# -------------------------------------------------------------------------------------------------------------- types


def test_an_append_only_table_of_pylance_is_read_by_us_while_its_own_readers_refuse(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    schema = keyed()
    lance.write_dataset(pa.Table.from_pylist(_rows([1], 0), schema=schema), uri).initialize_mem_wal(unsharded=True)
    shard_id = mw.shard_id_for(mw.Unsharded())
    theirs = lance.dataset(uri).mem_wal_writer(shard_id, max_wal_buffer_size=1)
    theirs.put(pa.Table.from_pylist(_rows([1, 1, 2], 1), schema=schema))
    table = mw.open_table(uri)
    assert sorted((row["id"], row["v"]) for row in rows_of(table.scan())) == [(1, 0), (1, 1), (1, 1), (2, 1)]
    theirs.close()
    assert table.count_rows() == 4
    with table.writer(fsync=False) as writer:
        writer.put(_rows([1], 2))
        assert table.count_rows() == 5
    with pytest.raises(ValueError, match="primary key"):
        LsmScanner.from_snapshots(lance.dataset(uri), [peer_snapshot(uri, shard_id)]).to_table()


# Generations of pylance's writer and of ours, with columns of every kind, end as the same rows of the base table.

SMALL = {"max_memtable_rows": 12}
PLAIN = next(shape for shape in SHAPES if shape.name == "string key")


def _write(duel: Duel, who: str) -> None:
    writer = duel.peer(**SMALL) if who == "peer" else duel.ours(**SMALL)
    with writer:
        duel.write_some(writer, 1)


@pytest.mark.parametrize(("shape", "storage"), [*CASES, (APPEND, "2.1")], ids=[*NAMES, "append-only 2.1"])
@pytest.mark.parametrize("first", ["peer", "ours"])
def test_plain_lance_shows_every_row_after_compaction(shape: Shape, storage: str, first: str, tmp_path: Path) -> None:
    duel = Duel(tmp_path, shape, storage)
    _write(duel, first)
    _write(duel, "ours" if first == "peer" else "peer")
    report = mw.open_table(duel.uri).compact()
    assert report.generations >= 2
    dataset = lance.dataset(duel.uri)
    dataset.validate()
    assert in_order(dataset.to_table()) == duel.rows


@pytest.mark.parametrize("who", ["peer", "ours"])
def test_generations_of_both_are_read_from_their_data_files(who: str, tmp_path: Path) -> None:
    duel = Duel(tmp_path, PLAIN)
    _write(duel, who)
    location = resolve(duel.uri)
    manifest = ShardManifestStore(location, duel.shard_id).read_latest()
    assert manifest is not None
    assert manifest.sstables
    assert all(
        SsTableReader(location, duel.shard_id, sstable).stored.data_file is not None for sstable in manifest.sstables
    )


@pytest.mark.parametrize("shape", SHAPES, ids=[shape.name for shape in SHAPES])
def test_keys_and_rows_are_found_in_cold_generations_of_both(shape: Shape, tmp_path: Path) -> None:
    duel = Duel(tmp_path, shape, shape.storage[-1], base_rows=0)
    for number in range(8):
        with duel.ours() if number % 4 == 3 else duel.peer() as writer:
            duel.put(writer, [0, 10 * number + 1, 10 * number + 2], number)
            if number == 6:
                duel.delete(writer, [21])
    read: list[str] = []
    CACHE.clear()
    table = watched_table(duel.uri, lambda kind, path: read.append(path.rpartition("/")[2]))
    key = [tuple(shape.row(i, 0)[name] for name in shape.keys) for i in (0, 1, 22, 41, 72, 21, 99)]
    found = [table.get(one if len(one) > 1 else one[0]) for one in key]
    assert found[-2:] == [None, None]
    expected = [duel.model[one] for one in key[:-2]]
    assert in_order(pa.Table.from_pylist(found[:-2], schema=duel.schema)) == in_order(
        pa.Table.from_pylist(expected, schema=duel.schema)
    )
    types = [duel.schema.field(name).type for name in shape.keys]
    assert read.count("bloom_filter.bin") == (8 if hash_is_exact(types) else 0), "one each, and kept"
    CACHE.clear()
    table = mw.open_table(duel.uri)
    assert table.count_rows() == len(duel.model)
    assert in_order(table.scan().to_table()) == duel.rows
    CACHE.clear()
    assert [table.get(one if len(one) > 1 else one[0]) for one in key] == found
    assert table.verify().problems == []
    assert duel.peer_rows() == duel.rows
    table.compact()
    assert in_order(lance.dataset(duel.uri).to_table()) == duel.rows


KEY_FIELD = {b"lance-schema:unenforced-primary-key": b"true"}
KEYED = pa.schema([pa.field("id", pa.int64(), False, KEY_FIELD), ("v", pa.string())])


def rows(*numbers: int) -> pa.Table:
    return pa.table({"id": list(numbers), "v": ["x"] * len(numbers)}, schema=KEYED)


def append(uri: str) -> None:
    first = lance.dataset(uri).count_rows() + 100
    lance.write_dataset(rows(first, first + 1), uri, mode="append")


def merge(uri: str) -> None:
    """An upsert of one row that is there and one that is not."""
    merging = lance.dataset(uri).merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    merging.execute(rows(7, 200 + lance.dataset(uri).count_rows()))


def update(uri: str) -> None:
    lance.dataset(uri).update({"v": "'y'"}, where="id % 2 = 0")


def write(uri: str) -> None:
    table = mw.open_table(uri)
    with table.writer(compaction=None) as writer:
        writer.put({"id": [7, 300], "v": ["p", "p"]})
    table.compact()


@pytest.mark.parametrize(
    "steps", [(), (merge, merge), (append, merge, append), (merge, update, append), (write, merge)]
)
@pytest.mark.parametrize("first", [(), (1, 2)], ids=["empty", "with rows"])
@pytest.mark.parametrize("stable", [True, False], ids=["stable row ids", "addresses"])
def test_lance_compacts_the_files_of_a_table_that_we_enabled(
    tmp_path: Path, stable: bool, first: tuple[int, ...], steps: tuple[Callable[[str], None], ...]
) -> None:
    uri = str(tmp_path / "t")
    lance.write_dataset(rows(*first), uri, enable_stable_row_ids=stable)
    mw.enable(uri)
    for step in steps:
        step(uri)
    shown = mw.open_table(uri).scan().to_table().sort_by("id")
    lance.dataset(uri).optimize.compact_files()
    assert mw.open_table(uri).scan().to_table().sort_by("id") == shown
    assert lance.dataset(uri).to_table().sort_by("id").to_pylist() == shown.to_pylist()


@pytest.mark.parametrize("stable", [True, False], ids=["stable row ids", "addresses"])
def test_pylance_writes_a_table_that_we_enabled_and_we_read_it(tmp_path: Path, stable: bool) -> None:
    uri = str(tmp_path / "t")
    lance.write_dataset(rows(1, 2), uri, enable_stable_row_ids=stable)
    mw.enable(uri)
    assert lance.dataset(uri).mem_wal_index_details()["num_shards"] == 1
    with lance.dataset(uri).mem_wal_writer(mw.shard_id_for(mw.Unsharded())) as writer:
        writer.put(rows(2, 3))
    assert sorted(mw.open_table(uri).scan().to_table()["id"].to_pylist()) == [1, 2, 3]
    mw.open_table(uri).compact()
    assert lance.dataset(uri).count_rows() == 3
