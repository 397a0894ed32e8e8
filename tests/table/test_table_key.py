"""The primary key and the sharding of a table: how they are set and checked, where rows go, what a read may leave out."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.create import Choices, enable_base
from lance_memwal.lance.base import BaseTable
from lance_memwal.store.location import resolve
from tests.kit.tables import create, files_below, ids_of, keyed, lance_filter, manifest_of, rows_of, upsert_base
from tests.kit.writers import put_undrained

ROWS = pa.table({"x": [0.5, 1.5, 2.5], "id": pa.array([1, 2, 3]), "s": ["a", "b", "c"]})


def _plain(uri: str, data: pa.Table = ROWS) -> lance.LanceDataset:
    """A plain Lance table of several files, whose field ids have a gap."""
    dataset = lance.write_dataset(data.add_column(0, "gone", pa.nulls(len(data), pa.int8())), uri, max_rows_per_file=2)
    dataset.drop_columns(["gone"])
    dataset.update_field_metadata({"s": {"mine": "kept"}})
    return lance.dataset(uri)


def _ids(dataset: lance.LanceDataset) -> list[int]:
    return [int(field.id()) for field in dataset.lance_schema.fields()]


@pytest.mark.parametrize("key", ["id", ["s", "id"], ["id"]])
def test_enable_sets_the_key_of_a_plain_table(tmp_path: Path, key: Any) -> None:
    uri = str(tmp_path / "t")
    plain = _plain(uri)
    table = mw.enable(uri, primary_key=key, writer_defaults={"fsync": False})
    names = [key] if isinstance(key, str) else key
    assert table.primary_key == mw.open_table(uri).primary_key == names
    assert [field.name for field in table.schema if not field.nullable] == [n for n in ("id", "s") if n in names]
    assert _ids(table.dataset) == _ids(plain)
    with table.writer() as writer:
        writer.put([{"x": 9.0, "id": 2, "s": "b"}])
        writer.delete([{"id": 3, "s": "c"}])
    table.compact()
    assert rows_of(table.dataset.to_table(), "id") == [{"x": 0.5, "id": 1, "s": "a"}, {"x": 9.0, "id": 2, "s": "b"}]


TWICE = pa.table({"id": [1, 2, 3, 2, 1, 5], "s": ["a", "b", "c", "b", "x", None]})


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("id", r"2 values of the primary key \(id\) are there more than once: 1, 2;|more than once: 2, 1;"),
        (["id", "s"], r"column 's' holds nulls, beside 5"),
        ("s", "column 's' holds nulls"),
        ("absent", "not in the schema"),
        ([], "at least one"),
        (["id", "id"], "each once"),
        (7, "name of a column"),
        ([7], "must be a text"),
    ],
)
def test_a_key_that_the_rows_do_not_have_is_refused_without_a_trace(tmp_path: Path, key: Any, reason: str) -> None:
    uri = str(tmp_path / "t")
    lance.write_dataset(TWICE, uri, max_rows_per_file=2)
    with pytest.raises(mw.InvalidInputError, match=reason):
        mw.enable(uri, primary_key=key)
    assert lance.dataset(uri).version == 1
    if key not in ("absent", [], 7):
        with pytest.raises(mw.InvalidInputError):
            mw.create_table(str(tmp_path / "c"), TWICE, primary_key=key)
        assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        *((kind, [1, 2]) for kind in (pa.int8(), pa.int32(), pa.uint64())),
        (pa.uint64(), [2**64 - 1, 2**63]),
        (pa.bool_(), [True, False]),
        *((kind, ["one", "two"]) for kind in (pa.string(), pa.large_string())),
        *((kind, [b"one", b"two"]) for kind in (pa.binary(), pa.large_binary())),
    ],
)
def test_a_repeated_key_of_every_type_is_found(tmp_path: Path, kind: pa.DataType, values: list[Any]) -> None:
    once = pa.table({"k": pa.array(values, kind), "n": [1, 2]})
    assert mw.create_table(str(tmp_path / "once"), once, primary_key="k").count_rows() == 2
    twice = pa.concat_tables([once, once.slice(1)])
    with pytest.raises(mw.InvalidInputError, match="1 values of the primary key"):
        mw.create_table(str(tmp_path / "twice"), twice, primary_key="k")


def test_a_key_that_lance_marked_is_checked_too_and_another_one_refused(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False, metadata={"lance-schema:unenforced-primary-key": "true"}),
            ("s", pa.string()),
        ]
    )
    lance.write_dataset(pa.table({"id": [1, 2], "s": ["a", "b"]}, schema=schema), uri)
    with pytest.raises(mw.InvalidInputError, match=r"is \(id\)"):
        mw.enable(uri, primary_key="s")
    lance.write_dataset(pa.table({"id": [2], "s": ["c"]}, schema=schema), uri, mode="append")
    for key in (None, "id"):
        with pytest.raises(mw.InvalidInputError, match="more than once: 2"):
            mw.enable(uri, primary_key=key)
    assert lance.dataset(uri).version == 2
    lance.dataset(uri).delete("s = 'c'")
    assert mw.enable(uri, primary_key="id").primary_key == ["id"]
    with pytest.raises(mw.InvalidInputError, match="already"):
        mw.enable(uri, primary_key="id")


@pytest.mark.parametrize("appended", ["a repeated key", "a new key"])
def test_rows_added_during_enable_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, appended: str) -> None:
    """Lance lets a change of metadata pass over appends: the version that results is what counts."""
    uri = str(tmp_path / "t")
    before = _plain(uri)
    number = 2 if appended == "a repeated key" else 9
    mark_metadata = lance.LanceDataset.update_field_metadata

    def append_first(self: lance.LanceDataset, *args: Any, **kwargs: Any) -> Any:
        if any("primary-key" in name for marks in args[0].values() for name in marks):
            more = pa.table({"x": [9.5], "id": [number], "s": ["z"]}).cast(lance.dataset(uri).schema)
            lance.write_dataset(more, uri, mode="append")
        return mark_metadata(self, *args, **kwargs)

    monkeypatch.setattr(lance.LanceDataset, "update_field_metadata", append_first)
    base = BaseTable.open(resolve(uri))
    assert base is not None
    if number == 9:
        assert enable_base(base, "id", Choices()).primary_key == ("id",)
        return
    with pytest.raises(mw.InvalidInputError, match="more than once: 2"):
        enable_base(base, "id", Choices())
    left = lance.dataset(uri)
    assert left.schema.equals(before.schema, check_metadata=True)
    assert _ids(left) == _ids(before)
    assert sorted(left.to_table()["id"].to_pylist()) == [1, 2, 2, 3]
    with pytest.raises(mw.InvalidInputError, match=r"memwal\.enable"):
        mw.open_table(uri)


def test_enable_that_fails_leaves_the_columns_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = str(tmp_path / "t")
    before = _plain(uri)
    with pytest.raises(mw.InvalidInputError, match="no index"):
        mw.enable(uri, primary_key="id", maintained_indexes=["absent"])
    with pytest.raises(mw.InvalidInputError, match="not part of the primary key"):
        mw.enable(uri, primary_key="id", sharding=mw.Bucket("s", 2))
    assert lance.dataset(uri).version == before.version

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("the store is away")

    monkeypatch.setattr(lance.LanceDataset, "update_field_metadata", fail)
    with pytest.raises(mw.UnavailableError, match="the store is away"):
        mw.enable(uri, primary_key="id")
    assert lance.dataset(uri).version > before.version
    assert lance.dataset(uri).schema.equals(before.schema, check_metadata=True)
    assert _ids(lance.dataset(uri)) == _ids(before)


HOSTILE = [
    "plain",
    "' OR '1'='1",
    "plain' OR k IS NOT NULL --",
    "\\' OR true --",
    '" OR true --',
    "`k` = `k`",
    "x') OR (true",
    "%",
    "a\nb\0c",
    "NULL",
]


@pytest.mark.parametrize("name", ["k", "k' OR true --", 'k" OR "'])
def test_a_key_that_looks_like_a_filter_is_a_value_in_every_tier(tmp_path: Path, name: str) -> None:
    schema = pa.schema([pa.field(name, pa.string(), nullable=False), ("v", pa.int64())])
    table = mw.create_table(str(tmp_path / "t"), schema, primary_key=name, writer_defaults={"fsync": False})
    absent = ["'", "absent' OR '1'='1", "\\", "''"]

    def check(gone: int) -> None:
        for number, key in enumerate(HOSTILE):
            expected = None if number < gone else {name: key, "v": number}
            assert table.get(key) == expected
            assert table.lookup([key]).to_pylist() == ([] if expected is None else [expected])
        assert [table.get(key) for key in absent] == [None] * len(absent)
        assert sorted(table.scan().to_table()["v"].to_pylist()) == list(range(gone, len(HOSTILE)))

    with table.writer(compaction=None) as writer:
        writer.put([{name: key, "v": number} for number, key in enumerate(HOSTILE)])
        check(0)
    table.compact(flush=True)
    check(0)
    for gone in (1, 2):
        with table.writer(compaction=None) as writer:
            writer.delete([HOSTILE[gone - 1], absent[gone]])
        table.compact(flush=True)
        check(gone)


ONE, TWO = (uuid.UUID(int=number << 64 | 0xABCDEF) for number in (1, 2))
SCHEMA = pa.schema([pa.field("id", pa.uuid(), nullable=False), ("v", pa.int64()), ("u", pa.uuid())])


@pytest.fixture
def table(tmp_path: Path) -> Iterator[mw.Table]:
    with create(str(tmp_path / "t"), SCHEMA) as made:
        yield made


def test_rows_with_texts_are_those_with_uuids(table: mw.Table) -> None:
    table.put([{"id": str(ONE), "v": 1, "u": TWO.hex.upper()}, {"id": TWO.bytes, "v": 2, "u": None}])
    table.put(pa.table({"id": [str(ONE)], "v": [3], "u": pa.array([None], pa.string())}))
    table.put({"id": [ONE, str(TWO)], "v": [4, 5], "u": [str(ONE), None]})
    assert sorted(table.to_arrow().to_pylist(), key=lambda row: row["v"]) == [
        {"id": ONE, "v": 4, "u": ONE},
        {"id": TWO, "v": 5, "u": None},
    ]
    for update in ([{"id": str(TWO), "v": 6}], pa.table({"id": [str(TWO)], "v": [7]})):
        assert table.update(update).matched == 1
    assert table.get(TWO) == {"id": TWO, "v": 7, "u": None}
    assert table.update(where="v = 7", values={"u": str(TWO)}).matched == 1


@pytest.mark.parametrize("stage", ["memtable", "base"])
def test_keys_may_be_texts(table: mw.Table, stage: str) -> None:
    table.put([{"id": ONE, "v": 1, "u": None}, {"id": TWO, "v": 2, "u": None}])
    if stage == "base":
        table.compact(flush=True)
    assert table.get(str(ONE)) == table.get(ONE.hex.upper()) == table.get(ONE) == {"id": ONE, "v": 1, "u": None}
    assert table.lookup([str(ONE), TWO]).num_rows == table.lookup(pa.array([str(ONE), str(TWO)])).num_rows == 2
    assert table.get(str(uuid.UUID(int=9))) is None
    assert table.delete([str(ONE)], count=True).matched == 1
    with table.writer(shared=True) as writer:
        assert writer.compare_and_set(str(TWO), table.get(TWO), None)
    assert len(table) == 0


@pytest.mark.parametrize("wrong", ["", "nope", "0" * 31, "g" * 32, "é" * 32])
def test_other_texts_are_refused(table: mw.Table, wrong: str) -> None:
    for call in (
        lambda: table.get(wrong),
        lambda: table.delete([wrong]),
        lambda: table.put([{"id": wrong, "v": 1, "u": None}]),
        lambda: table.put(pa.table({"id": [wrong], "v": [1], "u": [str(ONE)]})),
    ):
        with pytest.raises(mw.InvalidInputError, match=r"'id'.*no UUID"):
            call()


def test_uuids_and_json_inside_of_structs_are_taken_from_dicts(tmp_path: Path) -> None:
    inner = pa.struct([("j", pa.json_()), ("l", pa.list_(pa.json_())), pa.field("n", pa.int64(), nullable=False)])
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("m", inner), ("js", pa.list_(pa.json_()))])
    rows = [
        {"id": 1, "m": {"j": '{"b": 1.50, "a": 2}', "l": ["[1]", None], "n": 1}, "js": ["null", "{}"]},
        {"id": 2, "m": None, "js": None},
        {"id": 3, "m": {"j": None, "l": None, "n": 2}, "js": []},
    ]
    with create(str(tmp_path / "t"), schema) as table:
        table.put(rows)
        rows[0]["m"]["j"] = '{"a":2,"b":1.5}'  # type: ignore[index]
        assert sorted(table.to_arrow().to_pylist(), key=lambda row: row["id"]) == rows
        table.compact(flush=True)
        assert sorted(table.to_arrow().to_pylist(), key=lambda row: row["id"]) == rows
        for wrong, why in (({"j": "{", "l": [], "n": 1}, "cannot store the JSON"), ({"l": [], "n": 1}, "'m.j'")):
            with pytest.raises(mw.InvalidInputError, match=why):
                table.put([{"id": 4, "m": wrong, "js": None}])


def test_a_quote_in_the_name_of_a_key_is_named_as_the_reason(tmp_path: Path) -> None:
    plain = pa.schema([pa.field('a"b', pa.int64(), nullable=False), ("v", pa.int64())])
    nested = plain.append(pa.field("m", pa.struct([("x", pa.int64())])))
    with create(str(tmp_path / "plain"), plain, primary_key='a"b') as table:
        table.put([{'a"b': 1, "v": 1}])
        assert table.get(1) == {'a"b': 1, "v": 1}
    with pytest.raises(mw.InvalidInputError, match=r"""a"b.*rename"""):
        create(str(tmp_path / "nested"), nested, primary_key='a"b')


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


def test_a_shard_tells_what_storage_shows_of_it(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"))
    with table.shard_writer() as writer:
        assert writer.shard_id == mw.shard_id_for(mw.Unsharded()) == "aa48498d-ac91-59e2-8452-69f46010ace2"
        writer.put([{"id": 1}], missing="null")
        writer.force_seal_active()
        writer.wait_for_flush_drain()
        writer.put([{"id": 2}], missing="null")
        [info] = table.shards()
        assert (info.shard_id, info.epoch, info.status) == (writer.shard_id, 1, mw.ShardStatus.ACTIVE)
        assert (info.generations, info.current_generation, info.wal_tail) == ((1,), 2, 1)
        assert info.bytes > 0


# ---------------------------------------------------------------------------------------------------- who writes where


def test_a_sharded_table_wants_to_know_which_shard_a_writer_is_for(tmp_path: Path) -> None:
    for name, sharding in (("bucket", FOUR), ("identity", mw.Identity("id"))):
        table = create(str(tmp_path / name), sharding=sharding)
        with pytest.raises(mw.InvalidInputError, match="shard_id_for"):
            table.shard_writer()
        assert table.shards() == []


def test_rows_of_another_shard_are_refused_at_the_shard(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), sharding=FOUR)
    mine = mw.shard_id_for(FOUR, 1)
    others = [i for i in range(50) if mw.shard_id_for(FOUR, i) != mine]
    with table.shard_writer(mine) as writer, table.shard_writer(str(uuid.uuid4())) as stranger:
        writer.put([{"id": 1}], missing="null")
        before = files_below(table.uri)
        with pytest.raises(mw.InvalidInputError, match="belong to shard"):
            stranger.put([{"id": 1}], missing="null")
        for call in (
            lambda: writer.put([{"id": 1}, {"id": others[0]}], missing="null"),
            lambda: put_undrained(writer, [{"id": others[0], "v": 1, "s": "a"}]),
            lambda: writer.delete([1, others[0]]),
        ):
            with pytest.raises(mw.InvalidInputError, match=mw.shard_id_for(FOUR, others[0])):
                call()
        assert files_below(table.uri) == before
    assert ids_of(table.scan()) == [1]


def test_a_null_chooses_bucket_zero_but_no_identity_shard(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("region", pa.string()), pa.field("v", pa.int64())])
    buckets = create(str(tmp_path / "b"), schema, primary_key=None, sharding=mw.Bucket("region", 4))
    with buckets.writer() as writer:
        assert list(writer.put([{"region": None, "v": 1}]).shards) == ["4a388480-a25b-59a8-b058-24217f980256"]
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
            with pytest.raises(mw.InvalidInputError, match="next to the key"):
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


@pytest.mark.parametrize("where", ["s = 'x' /* and id = 5 and */", "s = 'x' -- and id = 5", "s = 'x' -- \n or id = 99"])
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
