"""What a scan can do, over a table that has rows in every tier: base, SSTables, a frozen and an active memtable."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product
from pathlib import Path
from typing import Any

import lance
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_memwal as mw
from lance_memwal.read.plan import count_superseded
from tests.kit.pages import lived_in
from tests.kit.tables import compact_shard, create, held_flush, ids_of, keyed, lance_filter, rows_of, upsert_base

SHARD = mw.shard_id_for(mw.Unsharded())


def _rows(numbers: Any, v: int) -> list[dict[str, Any]]:
    return [{"id": i, "v": v, "s": f"{v}-{i}"} for i in numbers]


@pytest.fixture
def layered(tmp_path: Path) -> Iterator[mw.Table]:
    """Rows 0-9 in the base table; of these and others, ever fewer are replaced or deleted in newer and newer tiers.

    Tier v = 1 and 2 are SSTables, 3 is frozen, 4 is active; row i shows the newest tier that has it.
    """
    table = create(str(tmp_path / "t"))
    upsert_base(table.uri, pa.Table.from_pylist(_rows(range(10), 0), schema=keyed()))
    with table.writer(compaction=None) as writer:
        writer.put(_rows([1, 2, 3, 4, 5, 6, 20, 21], 1))
        writer.put(_rows([20], 1))
        writer.flush()
        writer.put(_rows([2, 3, 4, 21, 22], 2))
        writer.delete([5, 20])
        writer.flush()
        with held_flush():
            writer.put(_rows([3, 4, 23], 3))
            writer.delete([6, 22])
            writer.shard_writers[SHARD].force_seal_active()
            writer.put(_rows([4, 24], 4))
            writer.put(_rows([4], 4))
            writer.delete([7, 23])
            yield table


SHOWN = {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 8: 0, 9: 0, 21: 2, 24: 4}
ALL = [{"id": i, "v": v, "s": f"{v}-{i}"} for i, v in SHOWN.items()]


def test_the_newest_row_of_every_key_is_shown_and_nothing_that_was_deleted(layered: mw.Table) -> None:
    assert rows_of(layered.scan()) == ALL
    assert layered.count_rows() == len(ALL)
    for row in ALL:
        assert layered.get(row["id"]) == row
    for gone in (5, 6, 7, 20, 22, 23, 99):
        assert layered.get(gone) is None
    assert rows_of(layered.lookup(list(range(30)))) == ALL


# ------------------------------------------------------------------------------------------------------------- columns


def test_columns_come_in_the_order_in_which_they_were_asked_for(layered: mw.Table) -> None:
    for columns in (["s", "id"], ["v"], ["id", "v", "s"], ["s", "v", "id"]):
        scan = layered.scan(columns=columns)
        found = scan.to_table()
        assert scan.schema.names == found.schema.names == columns
        wanted = sorted(tuple(row[name] for name in columns) for row in ALL)
        assert sorted(tuple(row.values()) for row in found.to_pylist()) == wanted
        looked_up = layered.lookup(list(SHOWN), columns)
        assert looked_up.schema.names == columns
        assert sorted(tuple(row.values()) for row in looked_up.to_pylist()) == wanted


def test_no_columns_leave_the_number_of_rows(layered: mw.Table) -> None:
    found = layered.scan(columns=[]).to_table()
    assert (found.num_columns, found.num_rows) == (0, len(ALL))
    assert sum(batch.num_rows for batch in layered.scan(columns=[])) == len(ALL)
    assert layered.scan(columns=[], filter="v = 0").to_table().num_rows == 3
    assert layered.scan(columns=[], limit=4).to_table().num_rows == 4
    assert layered.lookup([1, 2, 5, 99], []).num_rows == 2
    assert layered.get(1, []) == {}
    assert layered.get(5, []) is None


def test_columns_that_are_none_are_refused(layered: mw.Table) -> None:
    for columns in (["nope"], ["id", "id"], ["_tombstone"], "id", "v"):
        with pytest.raises(mw.InvalidInputError, match="column"):
            layered.scan(columns=columns)
        with pytest.raises(mw.InvalidInputError, match="column"):
            layered.lookup([1], columns)
        for key in SHOWN:
            with pytest.raises(mw.InvalidInputError, match="column"):
                layered.get(key, columns)


def test_rows_say_their_generation_and_base_rows_their_address(layered: mw.Table) -> None:
    scan = layered.scan(columns=["id", "v"], with_generation=True, with_row_address=True)
    assert scan.schema.names == ["id", "v", "_rowaddr", "_memtable_gen"]
    found = {row["id"]: row for row in scan.to_table().to_pylist()}
    assert {i: row["_memtable_gen"] for i, row in found.items()} == SHOWN
    base = lance.dataset(layered.uri).to_table(with_row_address=True)
    addresses = dict(zip(base["id"].to_pylist(), base["_rowaddr"].to_pylist(), strict=True))
    assert all(found[i]["_rowaddr"] == addresses[i] for i, v in SHOWN.items() if v == 0)
    fresh = {row["_rowaddr"] for i, row in found.items() if SHOWN[i] > 0}
    assert fresh == {None}, "an address in a memtable or an SSTable is that of another base row"


def test_a_column_that_is_named_like_what_a_read_adds_is_told_from_it(tmp_path: Path) -> None:
    """Results that somebody kept as a table have such columns."""
    kept = {"id": 1, "v": [0.0, 1.0], "_distance": 0.5, "_memtable_gen": 7}
    v = pa.field("v", pa.list_(pa.float32(), 2))
    schema = pa.schema(
        [pa.field("id", pa.int64(), False), v, ("_distance", pa.float32()), ("_memtable_gen", pa.int64())]
    )
    table = mw.create_table(str(tmp_path / "t"), schema, primary_key="id", writer_defaults={"fsync": False})
    with table.writer() as writer:
        writer.put([kept])
    assert table.scan().to_table().to_pylist() == [kept]
    with pytest.raises(mw.InvalidInputError, match="_memtable_gen"):
        table.scan(with_generation=True)
    assert table.scan(columns=["id"], with_generation=True).to_table().num_rows == 1
    with pytest.raises(mw.InvalidInputError, match="_distance"):
        table.search(vector=[0, 1])
    assert table.search(vector=[0, 1], columns=["id"]).to_pylist() == [{"id": 1, "_distance": 0.0}]


@pytest.mark.parametrize("stable", [False, True])
def test_base_rows_say_their_row_id_which_stays_if_it_is_stable(tmp_path: Path, stable: bool) -> None:
    uri = str(tmp_path / "t")
    key = {b"lance-schema:unenforced-primary-key": b"true"}
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False, metadata=key), ("v", pa.string())])
    rows = pa.table({"id": range(6), "v": ["base"] * 6}, schema=schema)
    lance.write_dataset(rows, uri, enable_stable_row_ids=stable)
    table = mw.enable(uri, writer_defaults={"fsync": False})
    with table.shard_writer() as writer:
        writer.put({"id": [1, 9], "v": ["fresh"] * 2})
        writer.delete([2])
        for scan in (table.scan(["id"], with_row_id=True), writer.scan(["id"], with_row_id=True, order_by=["-id"])):
            assert scan.schema.names == ["id", "_rowid"]
            found = {row["id"]: row["_rowid"] for row in scan.to_table().to_pylist()}
            base = lance.dataset(uri).to_table(with_row_id=True)
            ids = dict(zip(base["id"].to_pylist(), base["_rowid"].to_pylist(), strict=True))
            assert found == {i: ids[i] for i in (0, 3, 4, 5)} | {1: None, 9: None}
    table.compact()
    both = table.scan(["id"], with_row_id=True, with_row_address=True, with_generation=True).to_table()
    assert both.schema.names == ["id", "_rowid", "_rowaddr", "_memtable_gen"]
    after = dict(zip(both["id"].to_pylist(), both["_rowid"].to_pylist(), strict=True))
    assert None not in after.values()
    assert len(set(after.values())) == 6
    if stable:
        assert {i: after[i] for i in (0, 1, 3, 4, 5)} == {i: ids[i] for i in (0, 1, 3, 4, 5)}


# -------------------------------------------------------------------------------------------------------------- filters

FILTERS: dict[str, tuple[str, pc.Expression]] = {
    "equality": ("v = 2", pc.field("v") == 2),
    "a range": ("id between 2 and 21", (pc.field("id") >= 2) & (pc.field("id") <= 21)),
    "a string": ("s = '3-3'", pc.field("s") == "3-3"),
    "a list": ("id in (1, 5, 24)", pc.field("id").isin([1, 5, 24])),
    "an alternative": ("v = 0 or id = 24", (pc.field("v") == 0) | (pc.field("id") == 24)),
    "a negation": ("not (v = 0)", ~(pc.field("v") == 0)),
    "nothing": ("v > 100", pc.field("v") > 100),
    "a null test": ("s is not null", pc.field("s").is_valid()),
}


@pytest.mark.parametrize("name", FILTERS)
def test_sql_and_pyarrow_expressions_select_alike_over_all_tiers(layered: mw.Table, name: str) -> None:
    sql, expression = FILTERS[name]
    wanted = lance_filter(pa.Table.from_pylist(ALL, schema=keyed()), sql)
    for where in (sql, expression):
        for columns in (None, ["s"], []):
            found = layered.scan(columns=columns, filter=where).to_table()
            assert found.num_rows == wanted.num_rows
            if columns != []:
                assert sorted(found["s"].to_pylist()) == sorted(wanted["s"].to_pylist())
        assert layered.count_rows(where) == wanted.num_rows


def test_a_newer_row_that_does_not_match_hides_the_older_one_that_does(layered: mw.Table) -> None:
    """Recency is decided before the filter, between every two tiers."""
    for old in range(5):
        assert ids_of(layered.scan(filter=f"v = {old}")) == [i for i, v in SHOWN.items() if v == old]


def test_a_filter_that_cannot_be_read_is_refused(layered: mw.Table) -> None:
    bad: list[Any] = ["", "  ", "v =", "nope = 1", "v = 'x' and", 5]
    for where in bad:
        with pytest.raises(mw.InvalidInputError):
            layered.scan(filter=where).to_table()


def test_a_filter_needs_no_column_of_the_answer(layered: mw.Table) -> None:
    assert layered.scan(columns=["s"], filter="id = 4").to_table().to_pylist() == [{"s": "4-4"}]


# ------------------------------------------------------------------------------------------------------------- limits


def test_limit_and_offset_count_live_rows(layered: mw.Table) -> None:
    numbers = (0, 1, 4, len(ALL), 100, None)
    for limit, offset in product(numbers, numbers):
        scan = layered.scan(limit=limit, offset=offset)
        found = rows_of(scan)
        left = max(0, len(ALL) - (offset or 0))
        assert len(found) == (left if limit is None else min(limit, left))
        assert scan.count_rows() == len(found)
        assert [row for row in ALL if row in found] == found


def test_a_limit_is_filled_from_live_rows_that_match(layered: mw.Table) -> None:
    assert ids_of(layered.scan(filter="id < 9", limit=6)) == [0, 1, 2, 3, 4, 8]
    pages = [ids_of(layered.scan(filter="v < 4", limit=2, offset=at)) for at in (0, 2, 4, 6)]
    assert sorted(i for page in pages for i in page) == [i for i, v in SHOWN.items() if v < 4]


def test_a_limit_that_is_none_is_refused(layered: mw.Table) -> None:
    bad: list[dict[str, Any]] = [{"limit": -1}, {"offset": -1}, {"limit": 1.5}, {"limit": True}, {"offset": "1"}]
    for options in bad:
        with pytest.raises(mw.InvalidInputError, match=next(iter(options))):
            layered.scan(**options)


# ------------------------------------------------------------------------------------------------------ forms of answer


def test_all_forms_of_an_answer_hold_the_same_rows(layered: mw.Table) -> None:
    scan = layered.scan(columns=["id", "v", "s"])
    assert rows_of(scan.to_table()) == ALL
    assert rows_of(scan.to_reader().read_all()) == ALL
    assert rows_of(pa.Table.from_batches(scan.to_batches())) == ALL
    assert rows_of(pa.Table.from_batches(list(scan))) == ALL
    assert sorted(scan.to_pandas()["id"]) == list(SHOWN)
    frame = scan.to_polars()
    assert isinstance(frame, polars.DataFrame)
    assert sorted(frame["s"]) == sorted(row["s"] for row in ALL)
    assert scan.count_rows() == len(ALL)
    assert all(batch.schema == scan.schema for batch in scan)


def test_an_answer_without_rows_has_its_columns(layered: mw.Table) -> None:
    scan = layered.scan(columns=["s", "id"], filter="v = 77")
    assert scan.to_table().schema.names == ["s", "id"]
    assert scan.to_reader().schema.names == ["s", "id"]
    assert list(scan.to_pandas().columns) == ["s", "id"]
    assert list(scan) == []
    assert layered.lookup([99], ["v"]).schema.names == ["v"]


def test_a_scan_shows_the_moment_at_which_it_was_made_however_often_it_is_read(layered: mw.Table) -> None:
    scan = layered.scan()
    shard = layered.dataset
    upsert_base(layered.uri, pa.Table.from_pylist(_rows([0, 50], 9), schema=keyed()))
    assert rows_of(scan) == ALL
    assert rows_of(scan) == ALL
    assert layered.count_rows() == len(ALL) + 1
    assert layered.get(0) == {"id": 0, "v": 9, "s": "9-0"}
    assert shard.count_rows() == 10


def test_what_is_put_after_a_scan_was_made_is_not_in_it(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"))
    with table.writer(compaction=None) as writer:
        writer.put(_rows(range(5), 1))
        scan = table.scan()
        writer.put(_rows(range(3, 9), 2))
        writer.delete([0])
        assert rows_of(scan) == _rows(range(5), 1)
        writer.flush()
        assert rows_of(scan) == _rows(range(5), 1)
        assert ids_of(table.scan()) == list(range(1, 9))


def test_a_capture_can_be_handed_over_by_hand(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"))
    with table.shard_writer() as writer:
        writer.put(_rows([1], 1))
        captured = writer.in_memory_memtable_refs()
        writer.put(_rows([2], 1))
        assert ids_of(table.scan(in_memory=captured)) == [1]
        assert ids_of(table.scan(in_memory=[captured])) == [1]
        for wrong in ("captures", 5, [captured.active], captured.active):
            with pytest.raises(mw.InvalidInputError, match="in_memory_memtable_refs"):
                table.scan(in_memory=wrong)
        assert ids_of(table.scan()) == [1, 2]


@pytest.mark.parametrize("key", ["id", None])
def test_captures_in_any_order_show_the_newest_rows(tmp_path: Path, key: str | None) -> None:
    table = create(str(tmp_path / "t"), keyed(), primary_key=key)

    def seen(in_memory: Any) -> list[tuple[Any, ...]]:
        return sorted(tuple(row.values()) for row in table.scan(in_memory=in_memory).to_table().to_pylist())

    with table.shard_writer() as writer, held_flush():
        captures = []
        for version in range(4):
            writer.put(_rows([1, 10 + version], version))
            captures.append(writer.in_memory_memtable_refs())
            if version < 3:
                writer.force_seal_active()
        newest = captures[-1]
        expected = seen(None)
        assert len(expected) == (5 if key else 8)
        for first, *rest in permutations((*newest.frozen, newest.active)):
            assert seen(replace(newest, active=first, frozen=tuple(rest))) == expected
        for several in permutations(captures):
            assert seen(several) == expected
        assert seen(iter([newest, captures[0], newest])) == expected


def test_flushed_consistency_leaves_memtables_and_tails_out(layered: mw.Table) -> None:
    expected = {0: 0, 1: 1, 2: 2, 3: 2, 4: 2, 6: 1, 7: 0, 8: 0, 9: 0, 21: 2, 22: 2}
    scan = layered.scan(consistency="flushed")
    assert {row["id"]: row["v"] for row in rows_of(scan)} == expected
    assert layered.count_rows(consistency="flushed") == len(expected)
    assert "memtable" not in scan.explain()
    with pytest.raises(mw.InvalidInputError, match="consistency"):
        layered.scan(consistency="soon")  # type: ignore[arg-type]


# -------------------------------------------------------------------------------------------------------------- explain


def test_explain_names_every_tier_with_its_rows(layered: mw.Table) -> None:
    text = layered.scan(columns=["id"], filter="v > 0", limit=5, offset=1).explain()
    for part in (
        f"scan of {layered.uri}",
        "columns: id",
        "filter:  v > 0 (after recency)",
        "limit:   5, offset 1",
        "newest row per (id), deletes hidden",
        f"shard {SHARD} (epoch 1",
        "memtable generation 4: 5 rows",
        "memtable generation 3: 5 rows",
        "SSTable generation 2: 7 rows",
        "SSTable generation 1: 9 rows",
        "base table version 3: 10 rows",
    ):
        assert part in text, text
    order = [
        text.index(part) for part in ("generation 4", "generation 3", "generation 2", "generation 1", "base table")
    ]
    assert order == sorted(order)


def test_explain_says_what_was_left_out(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"))
    with table.writer(compaction=None) as writer:
        writer.put(_rows([1], 1))
    compact_shard(table.uri, SHARD, trim=False)
    text = table.scan().explain()
    assert "1 compacted generations skipped" in text
    assert "SSTable" not in text
    empty = create(str(tmp_path / "e"), keyed(), primary_key=None)
    assert "append-only, every row counts" in empty.scan(columns=[]).explain()
    assert "columns: (none)" in empty.scan(columns=[]).explain()
    assert "Scan(" in repr(empty.scan())


def test_explain_says_where_fresh_rows_of_another_writer_come_from(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"))
    writer = table.writer()
    writer.put(_rows([1, 2], 1))
    assert "memtable generation 1: 2 rows" in table.scan().explain()
    writer.abort()
    assert "WAL tail generation 1: 2 rows" in table.scan().explain()
    assert "nothing above the base table" in table.scan(consistency="flushed").explain()


def test_a_plan_has_what_explain_says(tmp_path: Path) -> None:
    with lived_in(tmp_path / "t", sharding=mw.Bucket("id", 2)) as table:
        scan = table.scan(["city"], "id = 7", 5, order_by=["-id"])
        plan = scan.plan()
        assert str(plan) == scan.explain()
        assert (plan.columns, plan.filter, plan.order, plan.limit) == (("city",), "id = 7", "-id", 5)
        assert (len(plan.shards), len(plan.pruned_shards)) == (1, 1)
        (shard,) = plan.shards
        assert [tier.tier for tier in shard.tiers] == ["memtable", "sstable", "sstable"][-len(shard.tiers) :]
        assert sum(fragment.rows - fragment.deleted for fragment in plan.fragments) == plan.base_rows == 10


def test_rows_of_a_writer_elsewhere_are_told_as_its_log(tmp_path: Path) -> None:
    with lived_in(tmp_path / "t") as table:
        (shard,) = table.scan(consistency="flushed").plan().shards
        assert [tier.tier for tier in shard.tiers] == ["sstable", "sstable"]
        assert [tier.rows for tier in shard.tiers] == [10, 15]


def test_superseded_and_live_rows_are_all_rows(tmp_path: Path) -> None:
    with lived_in(tmp_path / "t", sharding=mw.Bucket("id", 3)) as table:
        scan = table.scan()
        counted, plan = count_superseded(scan.snapshot), scan.plan()
        physical = sum(tier.rows or 0 for shard in plan.shards for tier in shard.tiers) + plan.base_rows
        hidden = sum(counted.generations.values()) + counted.base + sum(counted.tombstones.values())
        assert physical - hidden == table.count_rows() == 30
        assert counted.fragments is not None
        assert sum(counted.fragments.values()) == counted.base == 5


@pytest.fixture
def table(tmp_path: Path) -> mw.Table:
    table = create(str(tmp_path / "t"))
    with table:
        table.put({"id": [1, 2], "v": [10, 20], "s": ["a", None]})
        table.compact(flush=True)
        table.put({"id": [3], "v": [30], "s": ["c"]})
    return table


def test_pyarrow_and_polars_take_a_scan(table: mw.Table) -> None:
    scan = table.scan(["id", "s"], "v >= 20", order_by=["id"])
    expected = {"id": [2, 3], "s": [None, "c"]}
    assert pa.table(scan).to_pydict() == expected
    assert pa.RecordBatchReader.from_stream(scan).read_all().to_pydict() == expected
    assert polars.DataFrame(scan).to_dict(as_series=False) == expected
    assert pa.schema(scan) == scan.schema
    assert pa.table(scan).schema == scan.schema


def test_a_schema_may_be_asked_for(table: mw.Table) -> None:
    wanted = pa.schema([("id", pa.int32()), ("s", pa.large_string())])
    assert pa.RecordBatchReader.from_stream(table.scan(["id", "s"]), wanted).read_all().schema == wanted


def test_another_table_takes_a_scan(table: mw.Table, tmp_path: Path) -> None:
    with create(str(tmp_path / "copy")) as copy:
        copy.put(table.scan())
        assert sorted(copy.to_arrow()["id"].to_pylist()) == [1, 2, 3]


def test_no_rows_have_a_schema(table: mw.Table) -> None:
    assert pa.table(table.scan(["id"], limit=0)).schema == pa.schema([pa.field("id", pa.int64(), nullable=False)])


# Fields inside of structs (`meta.a`) in scan, get and lookup, in every tier, named as Lance names them.

INNER = pa.struct([("c", pa.string()), ("d", pa.list_(pa.int32())), ("j", pa.json_())])
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("meta", pa.struct([pa.field("a", pa.int64()), ("b", INNER)])),
        ("n", pa.int64()),
    ]
)
ROWS = [
    {"id": 0, "meta": {"a": 1, "b": {"c": "x", "d": [1, 2], "j": '{"z":1}'}}, "n": 0},
    {"id": 1, "meta": None, "n": 1},
    {"id": 2, "meta": {"a": None, "b": None}, "n": 2},
    {"id": 3, "meta": {"a": 4, "b": {"c": None, "d": [], "j": None}}, "n": 3},
]
ASKED = [["meta.a"], ["meta.b.c", "id"], ["id", "meta.b", "meta.a"], ["meta", "meta.b.d"], ["meta.b.j", "n"]]


@pytest.mark.parametrize("stage", ["memtable", "log", "SSTable", "base"])
def test_fields_are_the_same_in_every_tier_and_named_as_lance_names_them(tmp_path: Path, stage: str) -> None:
    uri = str(tmp_path / "t")
    table = mw.create_table(uri, SCHEMA, primary_key="id", writer_defaults={"fsync": False})
    writer = table.shard_writer()
    writer.put(pa.Table.from_pylist(ROWS, pa.schema([f if f.name != "meta" else _plain(f) for f in SCHEMA])))
    if stage == "log":
        writer.abort()
    elif stage != "memtable":
        writer.close()
    if stage == "base":
        table.compact()
    read = table if stage == "memtable" else mw.open_table(uri)
    oracle = lance.write_dataset(read.scan().to_table(), "memory://", data_storage_version="2.2")
    for asked in ASKED:
        expected = oracle.to_table(columns=[*asked, *([] if "id" in asked else ["id"])])
        by_id = dict(zip(expected["id"].to_pylist(), expected.select(asked).to_pylist(), strict=True))
        found = read.scan(asked).to_table()
        assert found.schema.names == asked
        assert found.schema.types == expected.select(asked).schema.types
        assert sorted(map(str, found.to_pylist())) == sorted(map(str, by_id.values()))
        assert {i: read.get(i, asked) for i in by_id} == by_id
        looked = read.lookup(list(by_id), asked)
        assert looked.schema.names == asked
        assert sorted(map(str, looked.to_pylist())) == sorted(map(str, by_id.values()))
        filtered = read.scan(asked, "meta.a = 4 or n = 2").to_table().to_pylist()
        assert sorted(map(str, filtered)) == sorted(str(by_id[i]) for i in (2, 3))
    writer.abort()


def _plain(field: pa.Field) -> pa.Field:
    return pa.field("meta", pa.struct([("a", pa.int64()), ("b", pa.struct([*list(INNER)[:2], ("j", pa.string())]))]))


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ("meta.z", "no field 'z' in 'meta'; its fields: a, b"),
        ("n.a", "it is no struct"),
        ("meta.b.d.item", "it is no struct"),
        ("nope.a", "'nope' is not in the table"),
        ("meta.", "no field ''"),
    ],
)
def test_a_field_that_is_not_there_is_refused_by_name(tmp_path: Path, asked: str, why: str) -> None:
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", writer_defaults={"fsync": False})
    for read in (lambda: table.scan([asked]), lambda: table.get(1, [asked]), lambda: table.lookup([1], [asked])):
        with pytest.raises(mw.InvalidInputError, match=why):
            read()
