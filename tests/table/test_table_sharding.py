"""Sharding at the level of a table: where rows go, who refuses them, and what a read may leave out."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from tests.kit.tables import create, files_below, ids_of, keyed, lance_filter, manifest_of, rows_of, upsert_base

FOUR = mw.Bucket("id", 4)
REGION = pa.schema(
    [
        pa.field("region", pa.string(), nullable=False),
        pa.field("id", pa.int64(), nullable=False),
        pa.field("v", pa.int64()),
    ]
)
ACROSS = {"schema": REGION, "primary_key": "id", "sharding": mw.Identity("region"), "allow_keys_across_shards": True}


def _row(region: str, number: int, v: int) -> dict[str, Any]:
    return {"region": region, "id": number, "v": v}


def _by_region(uri: str) -> mw.Table:
    return create(uri, REGION, primary_key=["region", "id"], sharding=mw.Identity("region"))


# ------------------------------------------------------------------------------------------------------------ shard ids


def test_shard_ids_of_a_table_are_those_that_lancedb_derives(tmp_path: Path) -> None:
    bucketed = create(str(tmp_path / "bucket"), sharding=FOUR)
    with bucketed.writer() as writer:
        writer.put([{"id": i} for i in range(100)], missing="null")
    assert {shard.shard_id for shard in bucketed.shards()} == {
        "4a388480-a25b-59a8-b058-24217f980256",
        "8e131bde-8368-54ff-89d9-c2e1cc781b29",
        "e00299e4-8c4b-50fc-bbdd-ce8179135761",
        "1d8d46d4-1ffd-5f6e-9aea-466d5ea76fdb",
    }
    single = create(str(tmp_path / "single"))
    with single.writer() as writer:
        writer.put([{"id": 1}], missing="null")
    assert [shard.shard_id for shard in single.shards()] == ["aa48498d-ac91-59e2-8452-69f46010ace2"]
    regions = _by_region(str(tmp_path / "regions"))
    with regions.writer() as writer:
        writer.put([_row("eu", 1, 1)])
    assert [shard.shard_id for shard in regions.shards()] == ["dedbd690-6632-519a-8f78-3919befe6c6a"]


def test_a_shard_tells_what_storage_shows_of_it(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"))
    with table.writer() as writer:
        writer.put([{"id": 1}], missing="null")
        writer.flush()
        writer.put([{"id": 2}], missing="null")
        [info] = table.shards()
        assert (info.epoch, info.status, info.generations) == (1, mw.ShardStatus.ACTIVE, (1,))
        assert (info.current_generation, info.wal_tail) == (2, 1)
        assert info.bytes > 0


# ---------------------------------------------------------------------------------------------------- who writes where


def test_a_sharded_table_wants_to_know_which_shard_a_writer_is_for(tmp_path: Path) -> None:
    for name, sharding in (("bucket", FOUR), ("identity", mw.Identity("id"))):
        table = create(str(tmp_path / name), sharding=sharding)
        with pytest.raises(mw.InvalidInputError, match="shard_id_for"):
            table.shard_writer()
        assert table.shards() == []


def test_the_shard_writer_of_an_unsharded_table_needs_no_name(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"))
    with table.shard_writer() as writer:
        assert writer.shard_id == mw.shard_id_for(mw.Unsharded())


def test_rows_of_another_shard_are_refused_at_the_shard(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), sharding=FOUR)
    mine = mw.shard_id_for(FOUR, 1)
    others = [i for i in range(50) if mw.shard_id_for(FOUR, i) != mine]
    with table.shard_writer(mine) as writer:
        writer.put([{"id": 1}], missing="null")
        before = files_below(table.uri)
        for call in (
            lambda: writer.put([{"id": 1}, {"id": others[0]}], missing="null"),
            lambda: writer.put_nowait([{"id": others[0]}], missing="null"),
            lambda: writer.delete([1, others[0]]),
        ):
            with pytest.raises(mw.InvalidInputError, match=mw.shard_id_for(FOUR, others[0])):
                call()
        assert files_below(table.uri) == before
    assert ids_of(table.scan()) == [1]


def test_a_shard_that_is_none_of_the_tables_takes_no_rows(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), sharding=FOUR)
    with table.shard_writer(str(uuid.uuid4())) as writer, pytest.raises(mw.InvalidInputError, match="belong to shard"):
        writer.put([{"id": 1}], missing="null")


def test_a_null_chooses_bucket_zero_but_no_identity_shard(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("region", pa.string()), pa.field("v", pa.int64())])
    buckets = create(str(tmp_path / "b"), schema, primary_key=None, sharding=mw.Bucket("region", 4))
    with buckets.writer() as writer:
        assert list(writer.put([{"region": None, "v": 1}])) == ["4a388480-a25b-59a8-b058-24217f980256"]
    assert buckets.scan(filter="region is null").to_table().to_pylist() == [{"region": None, "v": 1}]
    regions = create(str(tmp_path / "i"), schema, primary_key=None, sharding=mw.Identity("region"))
    with regions.writer() as writer:
        with pytest.raises(mw.InvalidInputError, match="null"):
            writer.put([{"region": "eu", "v": 1}, {"region": None, "v": 2}])
        assert writer.shard_writers == {}


def test_manual_shards_are_named_by_whoever_writes(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), sharding=mw.Manual(), allow_keys_across_shards=True)
    chosen = str(uuid.uuid4())
    with table.shard_writer(chosen) as one, table.shard_writer() as two, table.writer() as three:
        one.put([{"id": 1}], missing="null")
        two.put([{"id": 2}], missing="null")
        three.put([{"id": 3}], missing="null")
        three.delete([7])
        assert one.shard_id == chosen
        assert len({one.shard_id, two.shard_id, *three.shard_writers}) == 3
        assert len(three.shard_writers) == 1
        assert ids_of(table.scan()) == [1, 2, 3]
        assert ids_of(table.scan(shards=[chosen])) == [1]
        assert ids_of(table.scan(shards=[one.shard_id, two.shard_id])) == [1, 2]
        assert ids_of(table.scan(shards=[str(uuid.uuid4())])) == []
        assert manifest_of(table.uri, chosen).shard_spec_id == 0
    with pytest.raises(mw.InvalidInputError, match="UUID"):
        table.scan(shards=["nope"])
    with pytest.raises(mw.InvalidInputError, match="UUID"):
        table.shard_writer("nope")


def test_a_table_is_one_shard_unless_asked_otherwise(tmp_path: Path) -> None:
    """Two writers in turn that put one key into two shards left two rows of it, of which the older one could win."""
    lance.write_dataset(keyed().empty_table(), str(tmp_path / "e"))
    tables = [
        mw.create_table(str(tmp_path / "k"), keyed(), primary_key="id"),
        mw.create_table(str(tmp_path / "a"), keyed()),
        mw.enable(str(tmp_path / "e")),
    ]
    assert [table.sharding for table in tables] == [mw.Unsharded()] * 3
    keyed_table = tables[0]
    for turn in range(4):
        with keyed_table.writer(fsync=False) as writer:
            writer.put([{"id": 1, "v": turn, "s": "x"}])
        with keyed_table.shard_writer(fsync=False) as shard:
            shard.put([{"id": 2, "v": turn, "s": "x"}])
        with mw.ShardWriter.open(keyed_table.uri, fsync=False) as shard:
            shard.put([{"id": 3, "v": turn, "s": "x"}])
        assert [keyed_table.get(key, ["v"]) for key in (1, 2, 3)] == [{"v": turn}] * 3
    assert len(keyed_table.shards()) == 1
    keyed_table.compact()
    assert rows_of(keyed_table.dataset.to_table()) == [{"id": n, "v": 3, "s": "x"} for n in (1, 2, 3)]


def test_manual_shards_are_asked_for_by_name_and_with_a_key_twice(tmp_path: Path) -> None:
    lance.write_dataset(keyed().empty_table(), str(tmp_path / "l"))
    with pytest.raises(mw.InvalidInputError, match="allow_keys_across_shards"):
        mw.create_table(str(tmp_path / "t"), keyed(), primary_key="id", sharding=mw.Manual())
    for call in (
        lambda: mw.create_table(str(tmp_path / "t"), keyed(), sharding=None),  # type: ignore[arg-type]
        lambda: mw.enable(str(tmp_path / "l"), sharding=None),
    ):  # type: ignore[arg-type]
        with pytest.raises(mw.InvalidInputError, match=r"Manual\(\)"):
            call()
    assert not (tmp_path / "t").exists()
    assert mw.create_table(str(tmp_path / "a"), keyed(), sharding=mw.Manual()).sharding == mw.Manual()
    assert mw.open_table(str(tmp_path / "a")).sharding == mw.Manual()


def test_a_writer_that_routes_takes_no_shard_id(tmp_path: Path) -> None:
    """It would put all rows of an unsharded table into a shard where nobody else looks for their keys."""
    for sharding in (mw.Unsharded(), FOUR):
        table = create(str(tmp_path / type(sharding).__name__), sharding=sharding)
        with pytest.raises(mw.InvalidInputError, match="shard_id"):
            table.writer(shard_id=str(uuid.uuid4()))
        with pytest.raises(mw.InvalidInputError, match="shard_id"):
            table.writer(config=mw.WriterConfig(shard_id=str(uuid.uuid4())))
    with pytest.raises(mw.InvalidInputError, match="sharded by 'id'"):
        mw.ShardWriter.open(table.uri)
    assert table.shards() == []


def test_the_sharding_column_may_be_renamed_while_shards_hold_rows(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), REGION, primary_key=None, sharding=mw.Bucket("region", 2))
    with table.writer() as writer:
        writer.put([_row("eu", 1, 1), _row("us", 2, 2)])
    table.dataset.alter_columns({"path": "region", "name": "area"})
    assert table.sharding == mw.Bucket("area", 2)
    with table.writer() as writer:
        writer.put([{"area": "eu", "id": 3, "v": 3}])
    assert ids_of(table.scan(filter="area = 'eu'")) == [1, 3]


# ---------------------------------------------------------------------------------------------- keys across the shards


def test_keys_across_shards_are_refused_with_the_reason_unless_allowed(tmp_path: Path) -> None:
    with pytest.raises(mw.InvalidInputError, match="newest would win per shard only"):
        create(str(tmp_path / "t"), **(ACROSS | {"allow_keys_across_shards": False}))
    lance.write_dataset(
        REGION.set(1, REGION.field("id").with_metadata({"lance-schema:unenforced-primary-key": "true"})).empty_table(),
        str(tmp_path / "l"),
    )
    with pytest.raises(mw.InvalidInputError, match="newest would win per shard only"):
        mw.enable(str(tmp_path / "l"), sharding=mw.Identity("region"))
    assert mw.enable(
        str(tmp_path / "l"), sharding=mw.Identity("region"), allow_keys_across_shards=True
    ).primary_key == ["id"]


@pytest.mark.parametrize("flushed", [False, True])
def test_with_keys_across_shards_the_newest_row_wins_per_shard_only(tmp_path: Path, flushed: bool) -> None:
    """Documented: a key that moved to another shard is there twice, in scans and lookups alike, until it is deleted."""
    table = create(str(tmp_path / "t"), **ACROSS)
    upsert_base(table.uri, pa.Table.from_pylist([_row("eu", 1, 0), _row("eu", 2, 0)], schema=REGION))
    with table.writer() as writer:
        writer.put([_row("eu", 1, 1), _row("us", 1, 2)])
        writer.put([_row("eu", 1, 3)])
        if flushed:
            writer.flush()
        both = [_row("eu", 1, 3), _row("us", 1, 2)]
        assert sorted(table.scan(filter="id = 1").to_table().to_pylist(), key=lambda r: r["region"]) == both
        assert sorted(table.lookup([1]).to_pylist(), key=lambda r: r["region"]) == both
        assert table.get(1) in both
        assert table.count_rows() == 3
        writer.delete([_row("us", 1, 0)])
        assert table.lookup([1]).to_pylist() == [_row("eu", 1, 3)]
        writer.delete(pa.table({"id": [1], "region": ["eu"]}))
        assert table.lookup([1]).num_rows == 0
        assert table.get(1) is None
        assert ids_of(table.scan()) == [2]


def test_with_keys_across_shards_a_key_alone_names_no_shard(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), **ACROSS)
    with table.writer() as writer:
        for keys in ([1], [(1,)], [{"id": 1}], pa.array([1])):
            with pytest.raises(mw.InvalidInputError, match="beside"):
                writer.delete(keys)
        assert writer.shard_writers == {}


def test_with_keys_across_shards_a_filter_prunes_nothing(tmp_path: Path) -> None:
    """The newest row of a key may lie in a shard that the filter does not name, and hide a base row that matches."""
    table = create(str(tmp_path / "t"), **ACROSS)
    upsert_base(table.uri, pa.Table.from_pylist([_row("eu", 1, 0)], schema=REGION))
    with table.writer() as writer:
        writer.put([_row("us", 1, 1)])
        assert table.scan(filter="region = 'eu'").to_table().num_rows == 0
        assert rows_of(table.scan(filter="region = 'us'")) == [_row("us", 1, 1)]


# -------------------------------------------------------------------------------------------------------------- pruning


def _pruned(scan: mw.Scan) -> int:
    return len(scan.snapshot.pruned_shards)


@pytest.mark.parametrize(
    ("where", "prunes"),
    [
        ("id = 5", True),
        ("ID = 5", True),
        ("`id` = 5", True),
        ("id in (5, 6)", True),
        ("v > 0 and id = 5", True),
        ("id = 5 and (v > 0 or s is null)", True),
        ("5 = id", True),
        ("id = 5 or id = 6", False),
        ("id != 5", False),
        ("id > 5", False),
        ("not id = 5", False),
        ("id between 4 and 5", False),
        ("id + 0 = 5", False),
        ("id = v", False),
        ("v = 5", False),
        ("s = 'id = 5'", False),
        ("s = ' and id = 5 and '", False),
    ],
)
def test_a_filter_that_pins_the_sharding_column_reads_only_its_shards(tmp_path: Path, where: str, prunes: bool) -> None:
    table = create(str(tmp_path / "t"), sharding=mw.Bucket("id", 8))
    with table.writer() as writer:
        writer.put([{"id": i, "v": i % 7, "s": "id = 5" if i == 3 else " and id = 5 and "} for i in range(40)])
        scan = table.scan(filter=where)
        everything = table.scan().to_table()
        assert (_pruned(scan) > 0) == prunes
        assert ("pruned" in scan.explain()) == prunes
        wanted = ids_of(lance_filter(everything, where))
        assert wanted == ids_of(scan)


def test_two_columns_that_differ_in_case_are_two_columns(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("ID", pa.int64())])
    table = create(str(tmp_path / "t"), schema, sharding=mw.Bucket("id", 8))
    with table.writer() as writer:
        writer.put([{"id": i, "ID": 5} for i in range(20)])
        assert table.scan(filter="ID = 5").to_table().num_rows == 20
        assert table.scan(filter="`ID` = 5 and id = 3").to_table().num_rows == 1
        assert _pruned(table.scan(filter="ID = 5")) == 0
        assert _pruned(table.scan(filter="id = 5")) == 7


@pytest.mark.parametrize(
    "where",
    [
        "s = 'x' /* and id = 5 and */",
        "s = 'x' -- and id = 5",
        "s = 'x' -- \n or id = 99",
    ],
)
def test_a_comment_is_no_condition(tmp_path: Path, where: str) -> None:
    table = create(str(tmp_path / "t"), sharding=mw.Bucket("id", 8))
    with table.writer() as writer:
        writer.put([{"id": i, "v": 1, "s": "x"} for i in range(20)])
        assert _pruned(table.scan(filter=where)) == 0


def test_a_shard_that_somebody_opened_by_hand_is_never_pruned(tmp_path: Path) -> None:
    """pylance checks no rows: a shard with an id of its own may hold any of them."""
    table = create(str(tmp_path / "t"), sharding=FOUR)
    with table.writer() as writer:
        writer.put([{"id": i, "v": 0, "s": "ours"} for i in range(20)])
    foreign = table.dataset.mem_wal_writer(str(uuid.uuid4()))
    foreign.put(pa.Table.from_pylist([{"id": 100, "v": 1, "s": "theirs"}], schema=table.schema))
    foreign.close()
    assert rows_of(table.scan(filter="id = 100")) == [{"id": 100, "v": 1, "s": "theirs"}]
    assert table.get(100) == {"id": 100, "v": 1, "s": "theirs"}
    assert table.lookup([100, 3]).num_rows == 2
    regions = _by_region(str(tmp_path / "r"))
    foreign = regions.dataset.mem_wal_writer(str(uuid.uuid4()))
    foreign.put(pa.Table.from_pylist([_row("eu", 1, 1)], schema=regions.schema))
    foreign.close()
    assert regions.scan(filter="region = 'eu'").to_table().num_rows == 1
    assert regions.get(("eu", 1)) == _row("eu", 1, 1)


def test_identity_shards_are_pruned_by_their_value(tmp_path: Path) -> None:
    table = _by_region(str(tmp_path / "t"))
    with table.writer() as writer:
        writer.put([_row(region, i, i) for i, region in enumerate(["eu", "us", "asia", "eu's"])])
        assert _pruned(table.scan(filter="region = 'eu'")) == 3
        assert rows_of(table.scan(filter="region = 'eu''s'")) == [_row("eu's", 3, 3)]
        assert rows_of(table.scan(filter="region in ('us', 'asia', 'mars')"), "id") == [
            _row("us", 1, 1),
            _row("asia", 2, 2),
        ]
        assert table.get(("mars", 1)) is None
        assert table.lookup([("eu", 0), ("us", 1), ("us", 7)]).num_rows == 2


def test_an_append_only_table_is_pruned_by_its_sharding_column(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), keyed(), primary_key=None, sharding=mw.Bucket("v", 8))
    with table.writer() as writer:
        writer.put([{"id": i, "v": i % 10, "s": "x"} for i in range(50)])
        scan = table.scan(filter="v = 3")
        assert _pruned(scan) > 0
        assert ids_of(scan) == [3, 13, 23, 33, 43]
        assert table.count_rows("v = 3") == 5
