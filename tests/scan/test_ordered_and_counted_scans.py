"""Counts of live rows, `order_by`, and scans of memtables alone."""

import math
import random
import shutil
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lance.dataset import ColumnOrdering

import lance_memwal as mw
from lance_memwal import InvalidInputError
from lance_memwal.memtable.memtable import InMemoryMemTables, MemTable
from lance_memwal.process.cache import CACHE
from lance_memwal.read.memory import winners
from lance_memwal.read.memory_scan import MemTableScanner
from lance_memwal.read.order import Order
from lance_memwal.read.tiers import Tiers
from lance_memwal.rows.schema import TableSchema
from lance_memwal.store.location import resolve

KINDS = ["int64", "bool", "string", "binary", "uuid", "composite"]


def key_of(kind: str, number: int) -> dict[str, Any]:
    texts = f"key-{number:03d}" + "x" * (number % 3)
    return {
        "int64": {"id": number},
        "bool": {"id": bool(number % 2)},
        "string": {"id": texts},
        "binary": {"id": bytes([number % 256, 0, number // 256])[: 1 + number % 3] + texts.encode()},
        "uuid": {"id": number.to_bytes(16, "big")},
        "composite": {"tenant": f"t{number % 7}", "id": number},
    }[kind]


def make(place: Path, kind: str) -> mw.Table:
    types = {
        "int64": pa.int64(),
        "bool": pa.bool_(),
        "string": pa.string(),
        "binary": pa.binary(),
        "uuid": pa.binary(16),
    }
    columns = [("tenant", pa.string()), ("id", pa.int64())] if kind == "composite" else [("id", types[kind])]
    schema = pa.schema([*columns, ("value", pa.int64())])
    key = [name for name, _ in columns]
    return mw.create_table(
        str(place), schema, primary_key=key, sharding=mw.Unsharded(), writer_defaults={"fsync": False}
    )


def rows(kind: str, numbers: np.ndarray) -> list[dict[str, Any]]:
    return [key_of(kind, n) | {"value": None if n % 5 == 0 else n} for n in numbers.tolist()]


@pytest.mark.parametrize("kind", KINDS)
def test_a_count_is_that_of_a_scan_over_all_tiers(tmp_path: Path, kind: str) -> None:
    table, draw, live = make(tmp_path / "t", kind), np.random.default_rng(3), {}

    def check() -> None:
        for cold in (False, False, True):  # the second count may know more than the first, and a cold one nothing
            if cold:
                CACHE.clear()
            assert table.count_rows() == len(live)
        assert table.scan().to_table().num_rows == len(live)

    with table.writer(compaction=None) as writer:
        for step in range(6):
            written = draw.integers(0, 300, 120)
            writer.put(pa.Table.from_pylist(rows(kind, written), schema=table.schema))
            live |= {tuple(key_of(kind, n).values()): n for n in written.tolist()}
            gone = draw.integers(0, 300, 20)
            writer.delete([key_of(kind, n) for n in gone.tolist()])
            for number in gone.tolist():
                live.pop(tuple(key_of(kind, number).values()), None)
            check()
            if step % 2:
                writer.flush()
                check()
            if step == 3:
                table.compact()
                check()


def without_data(table: mw.Table, *below: str) -> mw.Table:
    """The table as a new process finds it, with all files of rows gone."""
    for place in (Path(table.uri, *below)).rglob("data"):
        shutil.rmtree(place)
    CACHE.clear()
    return mw.open_table(table.uri)


def test_manifests_count_what_was_compacted(tmp_path: Path) -> None:
    table = make(tmp_path / "t", "string")
    with table.writer(compaction=None) as writer:
        writer.put(pa.Table.from_pylist(rows("string", np.arange(50)), schema=table.schema))
        writer.flush()
    table.compact()
    assert without_data(table).count_rows() == 50


def test_manifests_count_tables_without_a_key(tmp_path: Path) -> None:
    schema = pa.schema([("value", pa.int64())])
    table = mw.create_table(str(tmp_path / "t"), schema, sharding=mw.Unsharded(), writer_defaults={"fsync": False})
    with table.writer(compaction=None) as writer:
        for _ in range(2):
            writer.put([{"value": 1}] * 10)
            writer.flush()
            table.compact(max_generations=1)
        writer.put([{"value": 1}] * 3)
        writer.flush()
        writer.put([{"value": 1}] * 4)
    assert without_data(table).count_rows() == 27


def test_a_count_reads_no_row_of_an_sstable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lance_memwal.sstable.read import SsTableReader

    table = make(tmp_path / "t", "composite")
    with table.writer(compaction=None) as writer:
        for _ in range(3):
            writer.put(pa.Table.from_pylist(rows("composite", np.arange(50)), schema=table.schema))
            writer.flush()
    CACHE.clear()
    asked, batches = [], SsTableReader.batches

    def watched(self: SsTableReader, schema: Any, columns: Any, *rest: Any) -> Any:
        asked.append(list(columns))
        return batches(self, schema, columns, *rest)

    monkeypatch.setattr(SsTableReader, "batches", watched)
    assert table.count_rows() == 50
    assert asked == [[], [], []]
    assert table.count_rows() == 50
    assert len(asked) == 3


@pytest.mark.parametrize("kind", ["int64", "bool", "string", "composite"])
def test_keys_alone_count_a_table_with_nothing_in_memory(tmp_path: Path, kind: str) -> None:
    """The first count needs no index; later ones, a new SSTable, a delete and another base version are counted as ever."""
    table, draw, live = make(tmp_path / "t", kind), np.random.default_rng(4), set()

    def write(numbers: list[int], *gone: int) -> None:
        with table.writer(compaction=None) as writer:
            writer.put(pa.Table.from_pylist(rows(kind, np.array(numbers)), schema=table.schema))
            live.update(tuple(key_of(kind, n).values()) for n in numbers)
            if gone:
                writer.delete([key_of(kind, n) for n in gone])
                live.difference_update(tuple(key_of(kind, n).values()) for n in gone)

    def check() -> None:
        CACHE.clear()
        for _ in range(3):
            assert table.count_rows() == len(live)

    write(list(range(40)))
    check()
    write(list(range(40)))  # the same keys again
    check()
    table.compact()
    check()
    write(draw.integers(20, 80, 30).tolist())
    check()
    write(draw.integers(20, 80, 30).tolist())
    assert table.count_rows() == len(live), "a new SSTable after a count"
    check()
    table.compact(max_generations=1)
    assert table.count_rows() == len(live), "another base version after a count"
    write([5], 6, 7, 90)
    check()


SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("score", pa.float32()),
        ("name", pa.string()),
        ("tag", pa.dictionary(pa.int16(), pa.string())),
        ("meta", pa.struct([("n", pa.int32()), ("at", pa.timestamp("us", "UTC"))])),
        ("u", pa.uuid()),
    ]
)
NAN = math.nan
DAY = datetime(1970, 1, 1, tzinfo=UTC)
ORDERS = [
    ["score"],
    ["-score"],
    ["name", "-score"],
    ["-tag", "name"],
    ["meta.n"],
    ["-meta.at", "meta.n"],
    ["-u"],
    ["-id"],
]


def row(i: int, rng: random.Random) -> dict[str, Any]:
    return {
        "id": i,
        "score": rng.choice([None, NAN, -NAN, 0.0, -0.0, math.inf, rng.random(), -rng.random()]),
        "name": rng.choice([None, "", "é", "B", "a", "aa", "b"]),
        "tag": rng.choice([None, "x", "y", "z"]),
        "meta": rng.choice(
            [None, {"n": rng.randint(0, 4), "at": None}, {"n": None, "at": DAY + timedelta(rng.randint(0, 9))}]
        ),
        "u": uuid.UUID(int=rng.getrandbits(128)),
    }


def tiers(uri: Path) -> tuple[mw.Table, mw.ShardWriter]:
    """Rows in the base table, in an SSTable and in a memtable; some replaced, some deleted."""
    rng = random.Random(7)
    table = mw.create_table(str(uri), SCHEMA, primary_key="id", writer_defaults={"fsync": False})
    writer = table.shard_writer()
    for start in (0, 60, 120):
        writer.put([row(i, rng) for i in range(max(0, start - 20), start + 60)])
        writer.delete([start + 1, start + 7])
        if start < 120:
            writer.force_seal_active()
            writer.wait_for_flush_drain()
        if not start:
            table.compact()
    return table, writer


def by_lance(table: mw.Table, order: list[str]) -> list[int]:
    """What Lance's own scanner makes of the same rows."""
    rows = lance.write_dataset(table.scan().to_table().unify_dictionaries(), "memory://", data_storage_version="2.2")
    wanted = [ColumnOrdering(name.lstrip("-"), ascending=not name.startswith("-")) for name in [*order, "id"]]
    return rows.scanner(order_by=wanted).to_table()["id"].to_pylist()


def test_the_order_is_that_of_lance_and_the_same_in_every_tier(tmp_path: Path) -> None:
    table, writer = tiers(tmp_path / "t")
    expected = {tuple(order): by_lance(table, order) for order in ORDERS}
    for stage in ("fresh", "flushed", "compacted"):
        if stage == "flushed":
            writer.close()
        if stage == "compacted":
            table.compact()
        for order in ORDERS:
            found = table.scan(order_by=order)
            assert found.to_table()["id"].to_pylist() == expected[tuple(order)], (stage, order)
            cut = table.scan(["id", "meta.n"], "id % 3 != 0", limit=5, offset=2, order_by=order).to_table()
            assert cut.schema.names == ["id", "meta.n"]
            assert cut["id"].to_pylist() == [i for i in expected[tuple(order)] if i % 3][2:7], (stage, order)
            assert table.scan(order_by=order).count_rows() == len(expected[tuple(order)])
            streamed = pa.Table.from_batches(list(table.scan(["name"], limit=9, order_by=order)))
            assert streamed.num_rows == 9


def test_every_kind_of_scan_takes_an_order(tmp_path: Path) -> None:
    table, shard = tiers(tmp_path / "t")
    expected = table.scan(["id"], order_by=["-name", "score"], limit=4).to_table()["id"].to_pylist()
    shard_scan = shard.scan(["id"], limit=4, order_by=["-name", "score"])
    assert shard_scan.to_table()["id"].to_pylist() == expected
    assert "order:   -name, score, id (the first 4 are kept)" in shard_scan.explain()
    own = shard.memtable_scanner().project(["id"]).order_by(["-id"]).limit(2).to_table()["id"].to_pylist()
    assert own == sorted(shard.memtable_scanner().to_table()["id"].to_pylist())[:-3:-1]
    with pytest.raises(mw.InvalidInputError, match="order of its own"):
        shard.memtable_scanner().full_text_search("name", "a").order_by(["id"]).to_table()
    shard.close()
    with table.writer() as writer:
        assert writer.scan(["id"], order_by=["-name", "score"], limit=4).to_table()["id"].to_pylist() == expected


@pytest.mark.parametrize(
    ("order", "why"),
    [
        (["nope"], "'nope' is not in the table"),
        (["-meta.zz"], "no field 'zz'"),
        (["meta"], "cannot be ordered by 'meta'"),
        (["name", "-name"], "twice"),
        ([], "names no column"),
        ("name", "list of texts"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused(tmp_path: Path, order: Any, why: str) -> None:
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", writer_defaults={"fsync": False})
    with pytest.raises(mw.InvalidInputError, match=why):
        table.scan(order_by=order)


def test_superseded_rows_of_the_base_table_take_no_place(tmp_path: Path) -> None:
    """The largest rows of the base table are all replaced by small ones: more is asked for until enough of them live."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("score", pa.float64()), ("u8", pa.uint8())])
    table = mw.create_table(
        str(tmp_path / "t"),
        pa.table({"id": range(3000), "score": [float(i) for i in range(3000)], "u8": [1] * 3000}, schema=schema),
        primary_key="id",
        writer_defaults={"fsync": False},
    )
    with table.shard_writer() as writer:
        gone = list(range(1000, 3000))
        writer.put({"id": gone[:1500], "score": [-1.0] * 1500, "u8": [2] * 1500})
        writer.delete(gone[1500:])
        for late in (None, "u8 < 3", pc.field("u8") < 3, pc.field("u8") == 1):
            found = table.scan(filter=late, order_by=["-score"], limit=5, offset=1).to_table()
            assert found["id"].to_pylist() == [998, 997, 996, 995, 994]
            small = table.scan(filter=late, order_by=["score", "-id"], limit=2).to_table()["id"].to_pylist()
            assert small == ([0, 1] if late is not None and "==" in str(late) else [2499, 2498])
    plain = mw.create_table(str(tmp_path / "u"), pa.table({"n": [3, 1, 2]}), writer_defaults={"fsync": False})
    with plain.shard_writer() as writer:
        writer.put({"n": [0, 5]})
        assert plain.scan(order_by=["-n"], limit=4).to_table()["n"].to_pylist() == [5, 3, 2, 1]


def test_a_limit_bounds_what_is_held_in_memory() -> None:
    schema = pa.schema([pa.field("id", pa.int64()), ("pad", pa.binary())])
    order = Order.of(["-id"], TableSchema.from_arrow(schema))
    assert order is not None
    held = pa.total_allocated_bytes()
    peak = 0

    def batches() -> Any:
        nonlocal peak
        for start in range(0, 1 << 20, 1 << 14):
            peak = max(peak, pa.total_allocated_bytes() - held)
            ids = pa.array(range(start, start + (1 << 14)))
            yield pa.record_batch([ids, pa.array([b"x" * 100] * (1 << 14))], schema=schema)

    found = order.first(batches(), schema, 3)
    assert found["id"].to_pylist() == [(1 << 20) - 1, (1 << 20) - 2, (1 << 20) - 3]
    assert peak < 40 << 20, "of 115 MB"


# Scans of memtables: recency before filter and limit, tombstones never seen, projections, one capture per scanner.

PK = {b"lance-schema:unenforced-primary-key": b"true"}
COLUMNS = pa.schema(
    [pa.field("id", pa.int64(), nullable=False, metadata=PK), pa.field("v", pa.string()), pa.field("n", pa.int64())]
)
KEYED = TableSchema.from_arrow(COLUMNS)
UNKEYED = TableSchema.from_arrow(pa.schema([column.remove_metadata() for column in COLUMNS]))
Write = tuple[int, str | None]  # a None value is a delete


def memtables(generations: Sequence[Sequence[Write]], schema: TableSchema = KEYED) -> InMemoryMemTables:
    tables, number = [], 0
    for generation, writes in enumerate(generations, 1):
        table = MemTable(schema, generation, 0, 0)
        for key, value in writes:
            row = pa.record_batch(
                [pa.array([key]), pa.array([value], pa.string()), pa.array([number])], schema=schema.nullable
            )
            table.append(row, pa.array([value is None]) if value is None else None)
            number += 1
        tables.append(table.capture())
    return InMemoryMemTables(tables[-1], tuple(tables[:-1]), "shard", 1)


def scan(generations: Sequence[Sequence[Write]], schema: TableSchema = KEYED) -> MemTableScanner:
    return MemTableScanner(Tiers.of_memory(resolve("nowhere"), schema, memtables(generations, schema)))


def pairs(table: pa.Table) -> dict[int, str]:
    return {row["id"]: row["v"] for row in table.to_pylist()}


def test_projection_returns_exactly_the_columns_asked_for() -> None:
    """Lesson E1.9: the key came along unasked."""
    table = scan([[(1, "a")]]).project(["v"]).to_table()
    assert table.schema.names == ["v"]
    assert scan([[(1, "a")]]).project(["n", "id"]).filter("v = 'a'").to_table().schema.names == ["n", "id"]


def test_several_filters_must_all_be_true() -> None:
    """Lesson E1.9: a second filter silently replaced the first."""
    data: list[list[Write]] = [[(k, "x" if k % 2 else "y") for k in range(10)]]
    assert set(pairs(scan(data).filter("v = 'x'").filter("id > 4").to_table())) == {5, 7, 9}


def test_filters_may_be_expressions() -> None:
    data: list[list[Write]] = [[(1, "a"), (2, "b")]]
    assert pairs(scan(data).filter(pc.field("v") == "b").to_table()) == {2: "b"}


def test_a_scanner_can_be_run_again_and_gives_the_same() -> None:
    scanner = scan([[(1, "a")], [(2, "b")]]).filter("id > 0")
    assert scanner.to_table().equals(scanner.to_table())


def test_what_cannot_be_scanned_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="'w' is not in the table"):
        scan([[(1, "a")]]).project(["w"])
    bad: tuple[Any, ...] = (-1, None, 1.5, True)
    for limit in bad:
        with pytest.raises(InvalidInputError, match="limit must be an integer"):
            scan([[(1, "a")]]).limit(limit)
    for columns in ("v", ["v", "v"]):
        with pytest.raises(InvalidInputError, match="columns"):
            scan([[(1, "a")]]).project(columns)
    with pytest.raises(InvalidInputError):
        scan([[(1, "a")]]).filter("v = ").to_table()
    with pytest.raises(InvalidInputError, match="not int"):
        scan([[(1, "a")]]).filter(7)  # type: ignore[arg-type]


def test_an_empty_writer_scans_to_an_empty_table_with_the_columns() -> None:
    table = scan([[]]).to_table()
    assert table.num_rows == 0
    assert table.schema.names == COLUMNS.names
    assert scan([[]]).filter("id = 1").project(["v"]).limit(1).to_table().schema.names == ["v"]


def test_every_row_of_a_table_without_a_key_is_scanned() -> None:
    data: list[list[Write]] = [[(1, "a"), (1, "a")], [(1, "b")]]
    assert scan(data, UNKEYED).count_rows() == 3


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 5), st.none() | st.sampled_from("xyz")), max_size=8), min_size=1, max_size=5
    )
)
def test_scans_agree_with_a_dict(generations: list[list[Write]]) -> None:
    model: dict[int, str | None] = {}
    for writes in generations:
        model.update(dict(writes))
    live = {key: value for key, value in model.items() if value is not None}
    assert pairs(scan(generations).to_table()) == live
    matching = {key: value for key, value in live.items() if value == "x"}
    assert pairs(scan(generations).filter("v = 'x'").to_table()) == matching
    for limit in (0, 2, 100):  # hidden rows do not use up a limit
        assert scan(generations).limit(limit).to_table().num_rows == min(limit, len(live))
        assert scan(generations).filter("v = 'x'").limit(limit).to_table().num_rows == min(limit, len(matching))
    assert scan(generations).count_rows() == len(live)
    newest = [ref.table().filter(pa.array(mask)) for ref, mask in winners(memtables(generations).ascending)]
    assert sorted(key for table in newest for key in table.column("id").to_pylist()) == sorted(model)
