"""Columns of every type and tables in unusual states: changed columns, no base table yet, a sidecar or a filter that is
short.
"""

import datetime as dt
import decimal
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_memwal as mw
from lance_memwal.process.cache import CACHE
from lance_memwal.rows.filter import RowFilter, pushdown
from lance_memwal.sstable import sidecar, write
from lance_memwal.store.location import resolve
from tests.kit.tables import Outside, create, keyed, nothing_kept, outside, rows_of, upsert_base

UTC = dt.UTC
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "flag": (pa.bool_(), [True, False, None]),
    "tiny": (pa.uint8(), [0, 255, None]),
    "huge": (pa.uint64(), [0, (1 << 64) - 1, None]),
    "half": (pa.float16(), [0.5, -2.0, None]),
    "real": (pa.float64(), [1.5, float("inf"), None]),
    "price": (pa.decimal128(12, 3), [decimal.Decimal("1.250"), decimal.Decimal("-7.000"), None]),
    "day": (pa.date32(), [dt.date(2020, 2, 29), dt.date(1969, 12, 31), None]),
    "seen": (
        pa.timestamp("us", "UTC"),
        [dt.datetime(2020, 1, 1, tzinfo=UTC), dt.datetime(1960, 1, 1, tzinfo=UTC), None],
    ),
    "took": (pa.duration("ms"), [dt.timedelta(seconds=1), dt.timedelta(days=-1), None]),
    "text": (pa.large_string(), ["", "日本語", None]),
    "raw": (pa.binary(), [b"", b"\0\xff", None]),
    "code": (pa.binary(3), [b"abc", b"\0\0\0", None]),
    "kind": (pa.dictionary(pa.int8(), pa.string()), ["red", "blue", None]),
    "tags": (pa.list_(pa.string()), [["a", None], [], None]),
    "point": (
        pa.struct([("x", pa.int32()), ("y", pa.list_(pa.float32()))]),
        [{"x": 1, "y": [0.5]}, {"x": None, "y": None}, None],
    ),
    "vector": (pa.list_(pa.float32(), 3), [[1.0, 2.0, 3.0], [-1.0, 0.0, 0.5], None]),
}


@pytest.fixture(params=[True, False], ids=["rows kept", "rows not kept"])
def _caching(request: pytest.FixtureRequest) -> Iterator[None]:
    CACHE.clear()
    with nullcontext() if request.param else nothing_kept():
        yield


def _in_all_tiers(table: mw.Table, rows: list[dict[str, Any]]) -> mw.TableWriter:
    """The same rows in the base table (ids from 0), an SSTable (from 100) and a memtable (from 200)."""

    def copy(start: int) -> pa.Table:
        listed = [row | {"id": start + i} for i, row in enumerate(rows)]
        return pa.Table.from_pylist(listed, schema=table.schema)

    upsert_base(table.uri, copy(0))
    writer = table.writer(compaction=None)
    writer.put(copy(100))
    writer.flush()
    writer.put(copy(200))
    return writer


@pytest.mark.usefixtures("_caching")
def test_values_of_every_type_come_back_from_every_tier(tmp_path: Path) -> None:
    fields = [pa.field(name, kind) for name, (kind, _) in COLUMNS.items()]
    table = create(str(tmp_path / "t"), keyed(*fields))
    rows = [{name: values[i] for name, (_, values) in COLUMNS.items()} for i in range(3)]
    with _in_all_tiers(table, rows):
        expected = [row | {"id": start + i} for start in (0, 100, 200) for i, row in enumerate(rows)]
        for found in (rows_of(table.scan()), rows_of(table.lookup([row["id"] for row in expected]))):
            assert [{name: row[name] for name in ["id", *COLUMNS]} for row in found] == [
                {name: row[name] for name in ["id", *COLUMNS]} for row in expected
            ]
        for row in expected:
            assert table.get(row["id"]) == row
        for name in COLUMNS:
            assert table.scan(columns=[name]).to_table().num_rows == 9
            assert table.count_rows(f"{name} is null") == 3
            assert table.count_rows(pc.field(name).is_valid()) == 6
    assert table.count_rows() == 9


FLOATS = [float("nan"), 0.0, -0.0, 1.0, 2.5, float("inf"), float("-inf"), None]
NUMBER_FILTERS: list[str | pc.Expression] = [
    "x > 1",
    "x < 1",
    "x = 1",
    "x != 1",
    "x >= 0 and x <= 1",
    "x is null",
    "x is not null",
    "not (x > 1)",
    "x in (1, 2.5)",
    "x = x",
    pc.field("x") > 1,
    pc.field("x") != 1,
    ~(pc.field("x") > 1),
    pc.field("x").is_nan(),
    pc.field("x").is_null(nan_is_null=True),
    pc.field("x").isin([1.0, 2.5]),
    pc.field("u") > pa.scalar(3, pa.uint64()),
    pc.field("u").isin(pa.array([(1 << 64) - 1], pa.uint64())),
    pc.utf8_upper(pc.field("s")) == "A1",
    pc.starts_with(pc.field("s"), "a"),
    (pc.field("d") == "red") & pc.field("x").is_valid(),
    pc.field("n", "a") > 1,
    "n.a > 1",
    "d = 'red'",
    "s like 'a%'",
    "u > 3",
    "lower(s) = 'a1'",
]


@pytest.mark.usefixtures("_caching")
def test_a_filter_selects_the_same_rows_in_every_tier(tmp_path: Path) -> None:
    schema = keyed(
        pa.field("x", pa.float64()),
        pa.field("u", pa.uint64()),
        pa.field("s", pa.string()),
        pa.field("d", pa.dictionary(pa.int8(), pa.string())),
        pa.field("n", pa.struct([("a", pa.int64())])),
    )
    table = create(str(tmp_path / "t"), schema)
    rows: list[dict[str, Any]] = [
        {
            "x": x,
            "u": [0, 4, (1 << 64) - 1, None][i % 4],
            "s": [f"a{i}", f"B{i}", None][i % 3],
            "d": ["red", "blue", None][i % 3],
            "n": None if i == 4 else {"a": i - 3},
        }
        for i, x in enumerate(FLOATS)
    ]
    with _in_all_tiers(table, rows):
        for where in NUMBER_FILTERS:
            found = sorted(row["id"] for row in table.scan(columns=["id"], filter=where).to_table().to_pylist())
            base = [i for i in found if i < 100]
            assert found == base + [100 + i for i in base] + [200 + i for i in base], str(where)
            if isinstance(where, str):
                assert base == sorted(lance.dataset(table.uri).to_table(columns=["id"], filter=where)["id"].to_pylist())
            else:
                kept = lance.dataset(table.uri).to_table().filter(where)
                assert base == sorted(kept["id"].to_pylist()), str(where)


@pytest.mark.usefixtures("_caching")
def test_columns_of_any_name_are_read(tmp_path: Path) -> None:
    names = ["My Column", "UPPER", "select", "ключ", "a-b", "1st", "it's", 'say "hi"', "100%"]
    schema = pa.schema(
        [pa.field("the key", pa.int64(), nullable=False), *[pa.field(name, pa.int64()) for name in names]]
    )
    table = create(str(tmp_path / "t"), schema, primary_key="the key", sharding=mw.Bucket("the key", 2))
    rows = [{"the key": key, **{name: key * 10 + i for i, name in enumerate(names)}} for key in range(9)]
    upsert_base(table.uri, pa.Table.from_pylist(rows[:3], schema=schema))
    with table.writer(compaction=None) as writer:
        writer.put(rows[3:6])
        writer.flush()
        writer.put(rows[6:])
        assert rows_of(table.scan(), "the key") == rows
        assert rows_of(table.lookup(list(range(9))), "the key") == rows
        for key in range(9):
            assert table.get(key) == rows[key]
        assert table.scan(columns=names[::-1]).to_table().schema.names == names[::-1]
        for i, name in enumerate(names):
            assert table.count_rows(f"`{name}` = {40 + i}") == 1
            assert table.count_rows(pc.field(name) == 70 + i) == 1
        assert rows_of(table.scan(filter="`the key` = 7"), "the key") == [rows[7]]


# ------------------------------------------------------------------------------------------------------ schema changes


def _tail(table: mw.Table) -> mw.TableWriter:
    """Base rows 0-1, SSTable rows 2-3, and rows 4-5 that are only in the log and in this writer's memtable."""
    upsert_base(table.uri, _numbered(table, 0))
    writer = table.writer(compaction=None)
    writer.put(_numbered(table, 2))
    writer.flush()
    writer.put(_numbered(table, 4))
    return writer


def _numbered(table: mw.Table, start: int) -> pa.Table:
    rows = [{"id": i, "v": i * 10, "s": f"s{i}"} for i in (start, start + 1)]
    return pa.Table.from_pylist(rows, schema=table.schema)


CHANGES: dict[str, tuple[Callable[[Any], Any], Callable[[int], dict[str, Any]]]] = {
    "a column is added": (
        lambda base: base.add_columns(pa.schema([("n", pa.int32())])),
        lambda i: {"id": i, "v": i * 10, "s": f"s{i}", "n": None},
    ),
    "two columns are added": (
        lambda base: base.add_columns(pa.schema([("n", pa.bool_()), ("m", pa.list_(pa.int8()))])),
        lambda i: {"id": i, "v": i * 10, "s": f"s{i}", "n": None, "m": None},
    ),
    "a column is renamed": (
        lambda base: base.alter_columns({"path": "v", "name": "value"}),
        lambda i: {"id": i, "value": i * 10, "s": f"s{i}"},
    ),
    "two columns swap their names": (
        lambda base: (
            base.alter_columns({"path": "v", "name": "old"}),
            base.alter_columns({"path": "s", "name": "v"}),
            base.alter_columns({"path": "old", "name": "s"}),
        ),
        lambda i: {"id": i, "s": i * 10, "v": f"s{i}"},
    ),
    "a column is dropped": (lambda base: base.drop_columns(["v"]), lambda i: {"id": i, "s": f"s{i}"}),
    "a column is dropped and one of its name and type is added": (
        lambda base: (base.drop_columns(["v"]), base.add_columns(pa.schema([("v", pa.int64())]))),
        lambda i: {"id": i, "s": f"s{i}", "v": None},
    ),
    "a column is dropped and one of its name and another type is added": (
        lambda base: (base.drop_columns(["v"]), base.add_columns(pa.schema([("v", pa.string())]))),
        lambda i: {"id": i, "s": f"s{i}", "v": None},
    ),
}


@pytest.fixture(scope="module")
def reader_outside() -> Iterator[Outside]:
    """One second process for all changes."""
    with outside() as reader:
        yield reader


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.usefixtures("_caching")
def test_rows_are_read_by_field_id_after(tmp_path: Path, change: str, reader_outside: Outside) -> None:
    alter, row = CHANGES[change]
    table = create(str(tmp_path / "t"))
    writer = _tail(table)
    before = rows_of(table.scan())  # everything is cached under the old columns
    assert len(before) == 6
    alter(lance.dataset(table.uri))
    expected = [row(i) for i in range(6)]
    for step in ("with the writer's memtable", "with the log's tail"):
        for reader in (table, mw.open_table(table.uri)):
            assert rows_of(reader.scan()) == expected, step
            assert rows_of(reader.lookup(list(range(9)))) == expected, step
            assert [reader.get(i) for i in range(7)] == [*expected, None], step
            assert reader.scan(columns=["id"]).to_table().num_rows == 6
        writer.abort()
    assert rows_of(reader_outside.ask("scan", table.uri)) == expected
    with table.writer(compaction=None) as successor:
        successor.put([row(9)])
        assert rows_of(table.scan()) == [*expected, row(9)]
    assert rows_of(table.scan(consistency="flushed")) == [*expected, row(9)]


@pytest.mark.usefixtures("_caching")
def test_a_filter_on_a_renamed_column_reads_old_and_new_rows(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"))
    writer = _tail(table)
    wheres: tuple[Any, ...] = ("v >= 10 and v <= 40", (pc.field("v") >= 10) & (pc.field("v") <= 40))
    for where in wheres:
        assert len(rows_of(table.scan(filter=where))) == 4
    lance.dataset(table.uri).alter_columns({"path": "v", "name": "value"})
    wheres = ("value >= 10 and value <= 40", (pc.field("value") >= 10) & (pc.field("value") <= 40))
    for _ in range(2):
        for where in wheres:
            assert [row["id"] for row in rows_of(table.scan(filter=where))] == [1, 2, 3, 4]
            assert rows_of(table.scan(columns=["s", "id"], filter=where))[0] == {"s": "s1", "id": 1}
            assert table.count_rows(where) == 4
        with pytest.raises(mw.InvalidInputError):
            table.scan(filter="v = 1").to_table()
        writer.abort()


@pytest.mark.usefixtures("_caching")
def test_a_filter_on_an_added_column_finds_only_rows_that_have_it(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"))
    _tail(table).close()
    lance.dataset(table.uri).add_columns(pa.schema([("n", pa.int32())]))
    with table.writer(compaction=None) as writer:
        writer.put([{"id": 1, "v": 1, "s": "x", "n": 7}, {"id": 8, "v": 1, "s": "x", "n": 8}])
        for _ in range(2):
            assert [row["id"] for row in rows_of(table.scan(filter="n > 6"))] == [1, 8]
            assert [row["id"] for row in rows_of(table.scan(filter=pc.field("n") > 7))] == [8]
            assert table.count_rows("n is null") == 5
            writer.flush()


def test_columns_may_change_while_other_threads_read(tmp_path: Path) -> None:
    """Each read sees one set of columns, before or after, and all rows."""
    table = create(str(tmp_path / "t"))
    with _tail(table):
        for round_ in range(6):
            name = f"n{round_}"
            scan = table.scan()
            lance.dataset(table.uri).add_columns(pa.schema([(name, pa.int32())]))
            assert name not in scan.schema.names
            assert scan.to_table().num_rows == 6
            assert table.scan().to_table().schema.names[-1] == name
            assert table.get(5)[name] is None  # type: ignore[index]


def test_an_expression_is_left_to_lance_wherever_it_reads_it_alike() -> None:
    vectors = pa.schema([("id", pa.int64()), ("s", pa.string()), ("x", pa.float64()), ("e", pa.list_(pa.float32(), 4))])
    by_key = RowFilter(pc.field("id") == 5, vectors)
    assert pushdown(by_key).told is not None
    assert by_key.columns == ["id"]
    assert pushdown(RowFilter("x > 1", vectors)).told == "x > 1"
    for late in (pc.field("x") > 1, pc.utf8_upper(pc.field("s")) == "A"):
        shared = pushdown(RowFilter(late, vectors))
        assert shared.told is None
        assert shared.late is not None
    both = RowFilter((pc.field("x") > 1) & (pc.field("id") == 5), vectors)
    assert both.columns == ["id", "x"]
    assert pushdown(both).told == "`id` in (5)", "Lance is told what it reads alike"
    assert pushdown(both).late is not None, "and the whole is applied late"


# A shard is read although its base table is not there yet: SSTables, frozen and active memtables.

KEY = {b"lance-schema:unenforced-primary-key": b"true"}
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False, metadata=KEY), ("v", pa.string())])
SHARD = "11111111-2222-4333-8444-555555555555"


def rows(ids: range, tag: str) -> list[dict[str, object]]:
    return [{"id": i, "v": f"{tag}{i}"} for i in ids]


def test_all_tiers_of_a_shard_without_a_base_table_are_read(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    expected = (
        {i: f"a{i}" for i in range(10)} | {i: f"b{i}" for i in range(5, 15)} | {i: f"c{i}" for i in range(12, 18)}
    )
    del expected[0], expected[6]
    with mw.ShardWriter.open(uri, SCHEMA, shard_id=SHARD, fsync=False) as writer:
        for tag, ids in (("a", range(10)), ("b", range(5, 15))):
            writer.put(rows(ids, tag))
            writer.force_seal_active()
            writer.wait_for_flush_drain()
        writer.put(rows(range(12, 18), "c"))
        writer.delete([0, 6, 99])
        found = writer.scan().to_table()
        assert dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True)) == expected
        assert writer.scan(["id"], "v like 'b%'", limit=3, order_by=["-id"]).to_table()["id"].to_pylist() == [
            11,
            10,
            9,
        ]
        assert writer.scan(with_generation=True).to_table()["_memtable_gen"].to_pylist().count(0) == 0
        assert "base table" not in writer.scan().explain()
        assert writer.scan().count_rows() == len(expected)
        assert {i: (writer.get(i) or {}).get("v") for i in range(20)} == {i: expected.get(i) for i in range(20)}
        assert writer.lookup(list(range(20))).num_rows == len(expected)
        dead = writer.lookup([0, 1, 6], with_tombstones=True)
        assert {row["id"]: row["_tombstone"] for row in dead.to_pylist()} == {0: True, 1: False, 6: True}
    with mw.ShardWriter.open(uri, SCHEMA, shard_id=SHARD, fsync=False) as writer:
        assert writer.scan().count_rows() == len(expected)


def test_once_the_base_table_is_there_its_rows_count(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    with mw.ShardWriter.open(uri, SCHEMA, shard_id=SHARD, fsync=False) as writer:
        writer.put(rows(range(3), "fresh"))
        assert writer.get(7) is None
    base = pa.Table.from_pylist(rows(range(2, 8), "base"), SCHEMA)
    lance.write_dataset(base, uri)
    table = mw.enable(uri, sharding=mw.Manual(), allow_keys_across_shards=True, adopt_shards=True)
    assert table.get(7) == {"id": 7, "v": "base7"}
    assert table.get(2) == {"id": 2, "v": "fresh2"}
    with pytest.raises(mw.InvalidInputError):
        mw.open_table(str(tmp_path / "none"))


def test_a_get_from_memory_opens_nothing(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    with mw.ShardWriter.open(uri, SCHEMA, shard_id=SHARD, fsync=False) as writer:
        writer.put(rows(range(3), "a"))
        writer.delete([1])
        assert writer.get(2) == {"id": 2, "v": "a2"}
        assert writer.get(2, ["v"]) == {"v": "a2"}
        assert writer.get(1) is None
        with pytest.raises(mw.InvalidInputError, match="nonsense"):
            writer.get(2, ["nonsense"])
        metrics = resolve(uri).metrics
        metrics.reset()
        writer.get(2)
        calls = {kind: stats.count for kind, stats in metrics.snapshot().items()}
        assert calls == {"list_names": 2} | calls, (
            "whether there is a base table by now, and which manifest is the newest"
        )
        assert sum(calls.values()) <= 4


# An SSTable whose sidecar and deletion vector lack its last rows.
#
# pylance's writer publishes such a generation when a flush overtakes the update of its key index: the data file holds
# every row, the sidecar only those that were indexed by then.

TEXTS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])


def short(columns: Sequence[pa.Array]) -> sidecar.SortedKeys:
    """What an index knows that has taken in the first two rows."""
    known = sidecar.sort_keys([column.slice(0, 2) for column in columns])
    return sidecar.SortedKeys(known.values, known.stored, known.order, np.empty(0, np.int64))


@pytest.fixture
def indexed_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> mw.Table:
    """Generation 1 with a short sidecar (rows 1, 2, 3, and a newer 1), generation 2 that replaces 2 and deletes 3."""
    made = mw.create_table(str(tmp_path / "table"), TEXTS, primary_key="id", sharding=mw.Unsharded())
    with made.writer(compaction=None, fsync=False) as writer:
        for key, value in ((1, "old"), (2, "old"), (3, "old"), (1, "new")):
            writer.put({"id": [key], "v": [value]})
        with monkeypatch.context() as patch:
            patch.setattr(write, "sort_keys", short)
            writer.flush()
        writer.put({"id": [2], "v": ["newer"]})
        writer.delete([3])
        writer.flush()
    return made


def test_every_read_gives_the_newest_row_of_every_key(indexed_short: mw.Table) -> None:
    assert sorted((row["id"], row["v"]) for row in indexed_short.scan().to_table().to_pylist()) == [
        (1, "new"),
        (2, "newer"),
    ]
    assert indexed_short.count_rows() == 2
    assert indexed_short.get(1) == {"id": 1, "v": "new"}
    assert indexed_short.get(3) is None
    assert sorted(indexed_short.lookup([1, 2, 3])["v"].to_pylist()) == ["new", "newer"]
    assert indexed_short.scan(filter="v = 'old'").to_table().num_rows == 0


def test_compaction_gives_the_newest_row_of_every_key(indexed_short: mw.Table) -> None:
    indexed_short.compact()
    assert sorted((row["id"], row["v"]) for row in indexed_short.dataset.to_table().to_pylist()) == [
        (1, "new"),
        (2, "newer"),
    ]


def test_verify_says_what_the_sidecar_lacks(indexed_short: mw.Table) -> None:
    assert any("sidecar" in str(problem) for problem in indexed_short.verify().problems)


# A bloom filter that came back short is damage with a place, and only for the read that met it.

_SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.int64())])


@pytest.fixture
def eight_generations(tmp_path: Path) -> mw.Table:
    table = mw.create_table(str(tmp_path / "t"), _SCHEMA, primary_key="id")
    with table.writer(compaction=None) as writer:
        for key in range(8):
            writer.put([{"id": key, "value": key}])
            writer.flush()
    return table


@pytest.fixture
def cut(eight_generations: mw.Table, tmp_path: Path) -> tuple[Path, bytes]:
    """A filter of which half is there, and all of it."""
    path = min(tmp_path.glob("t/_mem_wal/*/*_gen_1/bloom_filter.bin"))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    return path, whole


def test_lookup_after_a_short_filter_reads_it_again(eight_generations: mw.Table, cut: tuple[Path, bytes]) -> None:
    path, whole = cut
    with pytest.raises(mw.CorruptDataError) as told:
        eight_generations.get(0)
    assert told.value.path is not None
    assert str(path).endswith(told.value.path)
    path.write_bytes(whole)
    assert eight_generations.get(0) == {"id": 0, "value": 0}
