"""Appends without a writer that depend on the rows that are there: partial rows and conditions, in every tier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import crash_points
from lance_memwal.lance.base import NewestBase
from lance_memwal.read.reader import Reader
from lance_memwal.write.changes import Terms
from lance_memwal.write.claim import ShardClaim
from lance_memwal.write.once import OnceAppender

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("v", pa.string()), pa.field("n", pa.int64(), nullable=False)]
)
KEEP = Terms("keep")
UPDATE = Terms("keep", insert=False)
ABSENT = Terms(if_absent=True)
NEWER = Terms(where="excluded.n > n")


def make(place: Path, **options: Any) -> mw.Table:
    return mw.create_table(str(place), SCHEMA, primary_key="id", writer_defaults={"fsync": False}, **options)


def appender(table: mw.Table, **options: Any) -> OnceAppender:
    return OnceAppender(table.location, look_up=Reader(NewestBase(table.base)).stored_rows, **options)


def claimed(table: mw.Table, once: OnceAppender) -> ShardClaim:
    shard_id = table.sharding.default_shard()
    assert shard_id is not None
    return once.claim(shard_id)


def rows(*given: dict[str, Any]) -> list[pa.RecordBatch]:
    names = list(given[0])
    types = {**dict(zip(SCHEMA.names, SCHEMA.types, strict=True)), "_tombstone": pa.bool_()}
    return [pa.record_batch({name: pa.array([row[name] for row in given], types[name]) for name in names})]


def contents(table: mw.Table) -> dict[int, tuple[str, int]]:
    return {row["id"]: (row["v"], row["n"]) for row in table.scan().to_table().to_pylist()}


def rejected(result: Any) -> list[int]:
    return [] if result.rejected is None else sorted(result.rejected.column("id").to_pylist())


@pytest.mark.parametrize("max_entry_bytes", [None, 10])
@pytest.mark.parametrize("tier", ["log", "sstable", "base"])
def test_terms_are_met_against_every_tier(tmp_path: Path, tier: str, max_entry_bytes: int | None) -> None:
    table = make(tmp_path / "t")
    once = appender(table, max_entry_bytes=max_entry_bytes)
    claim = claimed(table, once)
    once.append(claim, rows(*({"id": i, "v": f"v{i}", "n": 10} for i in range(5))))
    if tier != "log":
        once.flush_tail(claim)
    if tier == "base":
        table.compact()
    expected = {i: (f"v{i}", 10) for i in range(5)}

    assert once.append(claim, rows({"id": 0, "n": 11}, {"id": 7, "n": 1}), terms=KEEP).rows == 2
    expected |= {0: ("v0", 11), 7: (None, 1)}
    assert contents(table) == expected

    result = once.append(claim, rows({"id": 1, "v": "x", "n": 0}, {"id": 8, "v": "new", "n": 0}), terms=ABSENT)
    assert (result.rows, rejected(result)) == (1, [1])
    expected |= {8: ("new", 0)}

    result = once.append(claim, rows({"id": 2, "v": "x", "n": 9}, {"id": 3, "v": "y", "n": 12}), terms=NEWER)
    assert (result.rows, rejected(result)) == (1, [2])
    expected |= {3: ("y", 12)}
    assert contents(table) == expected

    once.append(claim, rows({"id": 4, "v": "u"}), terms=UPDATE)
    expected |= {4: ("u", 10)}
    for wrong in ({"id": 99, "v": "u"}, {"id": 4, "v": "w"} | {"id": 98}):
        with pytest.raises(mw.InvalidInputError, match="no row in the table"):
            once.append(claim, rows({"id": 4, "v": "not"}, wrong), terms=UPDATE)
    assert contents(table) == expected


def test_partial_rows_and_tombstones_share_an_append_in_their_order(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    once = appender(table)
    claim = claimed(table, once)
    once.append(claim, rows(*({"id": i, "v": f"v{i}", "n": 10} for i in range(4))))
    mixed = rows({"id": 0, "n": 11, "_tombstone": False}, {"id": 1, "n": None, "_tombstone": True})
    assert once.append(claim, mixed, terms=KEEP).rows == 2
    again = rows(
        {"id": 2, "n": 1, "_tombstone": False},
        {"id": 2, "n": None, "_tombstone": True},
        {"id": 2, "n": 3, "_tombstone": False},
        {"id": 3, "n": 4, "_tombstone": False},
    )
    once.append(claim, again, terms=KEEP)
    assert contents(table) == {0: ("v0", 11), 2: (None, 3), 3: ("v3", 4)}, "what was deleted keeps nothing"
    gone = rows({"id": 3, "n": None, "_tombstone": True}, {"id": 77, "n": None, "_tombstone": True})
    once.append(claim, gone, terms=UPDATE)
    assert contents(table) == {0: ("v0", 11), 2: (None, 3)}, "a delete needs no row"
    kept_out = rows({"id": 0, "v": None, "n": 1, "_tombstone": True}, {"id": 2, "v": None, "n": 9, "_tombstone": True})
    assert rejected(once.append(claim, kept_out, terms=NEWER)) == [0], "a delete is under the condition"
    assert contents(table) == {0: ("v0", 11)}


def test_a_transaction_of_which_nothing_was_left_is_decided_anew(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    once = appender(table)
    claim = claimed(table, once)
    once.append(claim, rows({"id": 1, "v": "a", "n": 1}))
    again = rows({"id": 1, "v": "b", "n": 2})
    assert once.append(claim, again, txn=("app", 1), terms=ABSENT).rows == 0
    once.append(claim, rows({"id": 1, "_tombstone": True}))
    assert once.append(claim, again, txn=("app", 1), terms=ABSENT).rows == 1
    repeat = once.append(claim, again, txn=("app", 1), terms=ABSENT)
    assert (repeat.skipped, repeat.rows, repeat.rejected) == (True, 0, None)


@pytest.mark.parametrize("max_entry_bytes", [None, 10])
@pytest.mark.parametrize("moves", ["append", "append and flush", "append, flush and compact"])
def test_an_append_that_lost_its_place_is_resolved_again(
    tmp_path: Path, moves: str, max_entry_bytes: int | None
) -> None:
    table = make(tmp_path / "t")
    one, other = appender(table, max_entry_bytes=max_entry_bytes), appender(table)
    claim = claimed(table, one)
    one.append(claim, rows({"id": 1, "v": "a", "n": 1}, {"id": 2, "v": "a", "n": 1}))
    beaten = False

    def act(point: str) -> None:
        nonlocal beaten
        if point in ("once.before_put", "once.before_mark") and not beaten:
            beaten = True
            other.append(claim, rows({"id": 1, "v": "other", "n": 5}), txn=("other", 1))
            if "flush" in moves:
                other.flush_tail(claim)
            if "compact" in moves:
                table.compact()

    crash_points.install(act)
    try:
        result = one.append(claim, rows({"id": 1, "n": 7}, {"id": 3, "n": 7}), txn=("one", 1), terms=KEEP)
    finally:
        crash_points.install(None)
    assert beaten
    assert result.rows == 2
    assert contents(table) == {1: ("other", 7), 2: ("a", 1), 3: (None, 7)}


def test_partial_rows_that_become_too_large_are_a_generation(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    once = appender(table, max_entry_bytes=20_000)
    claim = claimed(table, once)
    for i in range(8):
        once.append(claim, rows({"id": i, "v": "x" * 10_000, "n": i}))
    result = once.append(claim, rows(*({"id": i, "n": -i} for i in range(8))), terms=KEEP, txn=("a", 1))
    assert (result.rows, result.position) == (8, 0)
    assert result.generation > 0
    assert contents(table) == {i: ("x" * 10_000, -i) for i in range(8)}
    assert once.append(claim, rows({"id": 1, "n": 0}), terms=KEEP, txn=("a", 1)).skipped


def test_blobs_that_are_left_out_stay(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("n", pa.int64()),
            pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"}),
        ]
    )
    table = mw.create_table(str(tmp_path / "t"), schema, primary_key="id", writer_defaults={"fsync": False})
    once = appender(table)
    claim = claimed(table, once)
    whole = pa.record_batch({"id": [1, 2], "n": [1, 1], "b": pa.array([b"one", b"two"], pa.large_binary())})
    once.append(claim, [whole])
    for step in range(3):
        once.append(claim, [pa.record_batch({"id": [1], "n": [step]})], terms=KEEP)
        once.flush_tail(claim)
        assert table.get(1, columns=["n"]) == {"n": step}
        table.compact()
        with table.get_blob(2, "b") as blob:
            assert blob.read() == b"two"
        with table.get_blob(1, "b") as blob:
            assert blob.read() == b"one"


def test_terms_with_a_merge(tmp_path: Path) -> None:
    table = make(tmp_path / "last", merge=mw.LastWrite(sequence="n"))
    once = appender(table)
    claim = claimed(table, once)
    once.append(claim, rows({"id": 1, "v": "a", "n": 10}, {"id": 2, "v": "b", "n": 10}))
    result = once.append(claim, rows({"id": 1, "n": 9}, {"id": 2, "n": 11}), terms=KEEP)
    assert (result.rows, rejected(result)) == (1, [1])
    once.append(claim, rows({"id": 1, "v": "c"}), terms=UPDATE)
    assert contents(table) == {1: ("c", 10), 2: ("b", 11)}, "an update without the sequence keeps it"
    with pytest.raises(mw.InvalidInputError, match="must not be null"):
        once.append(claim, rows({"id": 3, "v": "c"}), terms=KEEP)
    with pytest.raises(mw.InvalidInputError, match="must not be null"):
        once.append(claim, rows({"id": 1, "v": None, "_tombstone": True}), terms=KEEP)

    first = make(tmp_path / "first", merge=mw.FirstRow())
    once = appender(first)
    claim = claimed(first, once)
    once.append(claim, rows({"id": 1, "v": "a", "n": 1}), terms=ABSENT)
    assert once.append(claim, rows({"id": 1, "v": "b", "n": 1}), terms=ABSENT).rows == 0
    for terms, row in (
        (KEEP, {"id": 1, "v": "b"}),
        (UPDATE, {"id": 1, "v": "b"}),
        (NEWER, {"id": 1, "v": "b", "n": 1}),
    ):
        with pytest.raises(mw.InvalidInputError, match="cannot be changed"):
            once.append(claim, rows(row), terms=terms)


def test_terms_that_cannot_be_met_are_refused(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    once, blind = appender(table), OnceAppender(table.location)
    claim = claimed(table, once)
    row = rows({"id": 1, "v": "a", "n": 1})
    with pytest.raises(mw.InvalidInputError, match="give one of them"):
        once.append(claim, row, terms=Terms(if_absent=True, insert=False))
    with pytest.raises(mw.InvalidInputError, match="look-up"):
        blind.append(claim, row, terms=ABSENT)
    with pytest.raises(mw.InvalidInputError, match="nope"):
        once.append(claim, row, terms=Terms(where="nope > 1"))
    plain = mw.create_table(str(tmp_path / "p"), SCHEMA)
    once = appender(plain)
    with pytest.raises(mw.InvalidInputError, match="no primary key"):
        once.append(claimed(plain, once), row, terms=KEEP)
    assert contents(table) == {}
