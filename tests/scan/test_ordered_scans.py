"""`order_by`: the first rows of all tiers in order, as Lance itself orders them, wherever a row is."""

from __future__ import annotations

import math
import random
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from lance.dataset import ColumnOrdering

import lance_memwal as mw
from lance_memwal.read.order import Order
from lance_memwal.rows.schema import TableSchema

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
    shard_scan = shard.lsm_scan(["id"], limit=4, order_by=["-name", "score"])
    assert shard_scan.to_table()["id"].to_pylist() == expected
    assert "order:   -name, score, id (the first 4 are kept)" in shard_scan.explain()
    own = shard.scan().project(["id"]).order_by(["-id"]).limit(2).to_table()["id"].to_pylist()
    assert own == sorted(shard.scan().to_table()["id"].to_pylist())[:-3:-1]
    with pytest.raises(mw.InvalidInputError, match="order of its own"):
        shard.scan().full_text_search("name", "a").order_by(["id"]).to_table()
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
