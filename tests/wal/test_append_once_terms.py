"""Appends without a writer that depend on existing rows: partial rows, conditions, merges and sequences, in every tier."""

from __future__ import annotations

import multiprocessing
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import crash_points
from lance_memwal.lance.base import NewestBase
from lance_memwal.read.reader import Reader
from lance_memwal.table import newest_base
from lance_memwal.write.changes import Terms
from lance_memwal.write.claim import ShardClaim
from lance_memwal.write.once import OnceAppender
from lance_memwal.write.table_appender import TableAppender, TakeoverPolicy

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("v", pa.string()), pa.field("n", pa.int64(), nullable=False)]
)
KEEP = Terms("keep")
UPDATE = Terms("keep", insert=False)
ABSENT = Terms(if_absent=True)
NEWER = Terms(where="excluded.n > n")


def make(place: Path, schema: pa.Schema = SCHEMA, **options: Any) -> mw.Table:
    return mw.create_table(str(place), schema, primary_key="id", writer_defaults={"fsync": False}, **options)


def appender(table: mw.Table, **options: Any) -> OnceAppender:
    return OnceAppender(table.location, look_up=Reader(NewestBase(newest_base(table))).stored_rows, **options)


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
@pytest.mark.parametrize("has_merge", [False, True], ids=["partial rows", "merge"])
def test_append_resolves_again_at_a_new_position(
    tmp_path: Path, has_merge: bool, moves: str, max_entry_bytes: int | None
) -> None:
    table = make(tmp_path / "t", merge=mw.LastWrite(sequence="n") if has_merge else None)
    one, other = appender(table, max_entry_bytes=max_entry_bytes), appender(table)
    claim = claimed(table, one)
    one.append(claim, rows({"id": 1, "v": "a", "n": 1}, {"id": 2, "v": "a", "n": 1}))
    beaten = False

    def act(point: str) -> None:
        nonlocal beaten
        if point in ("once.before_put", "once.before_mark") and not beaten:
            beaten = True
            other.append(claim, rows({"id": 1, "v": "other", "n": 9 if has_merge else 5}), txn=("other", 1))
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
    assert result.rows == (1 if has_merge else 2)
    assert contents(table) == {1: ("other", 9 if has_merge else 7), 2: ("a", 1), 3: (None, 7)}


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


TIMED = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string()), ("ts", pa.int64())])


def versions(*given: tuple[int, int | None, str]) -> list[pa.RecordBatch]:
    """(key, sequence, value); the value "" is a delete."""
    keys, sequences, values = zip(*given, strict=True)
    columns = {
        "id": pa.array(keys, pa.int64()),
        "v": pa.array([v or None for v in values], pa.string()),
        "ts": pa.array(sequences, pa.int64()),
        "_tombstone": pa.array([not v for v in values]),
    }
    return [pa.record_batch(columns)]


def timed(table: mw.Table) -> dict[int, tuple[str, int]]:
    return {row["id"]: (row["v"], row["ts"]) for row in table.scan().to_table().to_pylist()}


@pytest.mark.parametrize("max_entry_bytes", [None, 10])
@pytest.mark.parametrize("move", ["log", "sstable", "base"])
def test_late_rows_and_deletes_are_left_out(tmp_path: Path, move: str, max_entry_bytes: int | None) -> None:
    table = make(tmp_path / "t", TIMED, merge=mw.LastWrite(sequence="ts"))
    once = appender(table, max_entry_bytes=max_entry_bytes)
    claim = claimed(table, once)
    first = versions((1, 10, "a"), (2, 10, "a"), (2, 20, ""), (1, 5, "late"))
    assert once.append(claim, first, txn=("app", 1)).rows == 3
    if move != "log":
        once.flush_tail(claim)
    if move == "base":
        table.compact()
    result = once.append(claim, versions((1, 9, "late"), (2, 15, "late"), (3, 1, "new"), (1, 9, "")), txn=("app", 2))
    assert (result.rows, result.skipped) == (1, False)
    assert once.append(claim, versions((1, 9, "late")), txn=("app", 3)).rows == 0
    assert once.append(claim, versions((1, 11, "b")), txn=("app", 3)).rows == 1, "nothing was written, and no mark"
    assert once.append(claim, versions((1, 99, "c")), txn=("app", 3)).skipped
    assert timed(table) == {1: ("b", 11), 3: ("new", 1)}
    with table.writer() as writer:
        assert writer.put([{"id": 2, "v": "late", "ts": 19}]).written == 0
        assert writer.put([{"id": 2, "v": "c", "ts": 21}]).written == 1


def test_the_first_row_stays_and_a_delete_makes_room(tmp_path: Path) -> None:
    table = make(tmp_path / "t", TIMED, merge=mw.FirstRow())
    once = appender(table)
    claim = claimed(table, once)
    assert once.append(claim, versions((1, 1, "a"), (1, 2, "b"), (2, 1, "c"))).rows == 2
    assert once.append(claim, versions((1, 3, "no"), (1, 4, ""), (1, 5, "next"), (3, 1, "d"))).rows == 3
    assert timed(table) == {1: ("next", 5), 2: ("c", 1), 3: ("d", 1)}


def test_rows_without_a_sequence_and_appenders_without_a_look_up_are_refused(tmp_path: Path) -> None:
    table = make(tmp_path / "t", TIMED, merge=mw.LastWrite(sequence="ts"))
    once, blind = appender(table), OnceAppender(table.location)
    claim = claimed(table, once)
    for wrong in (versions((1, None, "a")), versions((1, None, ""))):
        with pytest.raises(mw.InvalidInputError, match="sequence"):
            once.append(claim, wrong)
    with pytest.raises(mw.InvalidInputError, match="merge="):
        blind.append(claim, versions((1, 1, "a")))
    assert timed(table) == {}


Event = tuple[int, int, str]


def _append_all(uri: str, claim: ShardClaim, events: list[Event], number: int) -> None:
    """What one process does: append its share of the events, some at a time, each of them twice."""
    once = appender(mw.open_table(uri), max_entry_bytes=400)
    for start in range(0, len(events), 3):
        some = versions(*events[start : start + 3])
        for _ in range(2):
            once.append(claim, some, txn=(f"process {number}", start))
        if start % 9 == 0:
            once.flush_tail(claim)


def race(place: Path, seed: int, worker: Any) -> None:
    """Events of a few keys, deletes among them, in any order, through three workers at once, and compactions between."""
    draw = random.Random(seed)
    events = [(draw.randrange(5), ts, draw.choice(["a", "b", ""])) for ts in draw.sample(range(1000), 45)]
    newest = {key: (value, ts) for key, ts, value in sorted(events, key=lambda event: event[1])}
    table = make(place, TIMED, merge=mw.LastWrite(sequence="ts"))
    claim = appender(table).claim(str(table.sharding.default_shard()))
    shares = [(str(place), claim, events[number::3], number) for number in range(3)]
    workers = [worker(target=_append_all, args=share) for share in shares]
    for one in workers:
        one.start()
    while any(one.is_alive() for one in workers):
        table.compact()
        for one in workers:
            one.join(0.05)
    assert all(getattr(one, "exitcode", 0) == 0 for one in workers)
    assert timed(table) == {key: found for key, found in newest.items() if found[0]}
    assert table.verify().ok


@pytest.mark.parametrize("seed", range(2))
def test_appenders_that_race_leave_the_table_that_any_order_leaves(tmp_path: Path, seed: int) -> None:
    race(tmp_path / "t", seed, threading.Thread)


@pytest.mark.prove
@pytest.mark.parametrize("seed", range(20))
def test_processes_that_race_leave_the_table_that_any_order_leaves(tmp_path: Path, seed: int) -> None:
    race(tmp_path / "t", seed, multiprocessing.get_context("spawn").Process)


SEQUENCED = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("v", pa.string()), pa.field("ts", pa.int64(), nullable=False)]
)
SHARD = mw.shard_id_for(mw.Unsharded())
BY_TS = Terms(sequence="ts")


def sink_of(table: mw.Table) -> TableAppender:
    return TableAppender(appender(table), policy=TakeoverPolicy(20, 60))


def test_exclusive_writer_of_this_process_decides_by_sequence(tmp_path: Path) -> None:
    table = make(tmp_path / "t", SEQUENCED)
    with table.writer() as writer:
        writer.put([{"id": 9, "v": "of the owner", "ts": 1}])
        sink = sink_of(table)
        sink.append(SHARD, versions((1, 10, "a"), (2, 10, "a")), terms=BY_TS)
        assert sink.append(SHARD, versions((1, 9, "late"), (2, 20, "")), terms=BY_TS).rejected_rows == 1
        assert timed(table) == {1: ("a", 10), 9: ("of the owner", 1)}
    table.flush(force=True)
    table.compact()
    table.gc(grace_seconds=0)
    with table.writer() as writer:
        writer.delete([9])
        assert sink_of(table).append(SHARD, versions((2, 19, "late")), terms=BY_TS).rejected_rows == 1
    assert sink_of(table).append(SHARD, versions((2, 19, "late"), (2, 21, "b")), terms=BY_TS).rejected_rows == 1
    assert timed(table) == {1: ("a", 10), 2: ("b", 21)}


def test_other_writes_of_such_a_table_are_what_they_were(tmp_path: Path) -> None:
    table = make(tmp_path / "t", SEQUENCED)
    sink = sink_of(table)
    sink.append(SHARD, versions((1, 10, "a"), (2, 10, "")), terms=BY_TS)
    assert table.merge is None
    sink.append(SHARD, versions((1, 5, "plain")))
    table.flush(force=True)
    with table.writer() as writer:
        writer.put_nowait([{"id": 3, "v": "plain", "ts": 1}])
        writer.put([{"id": 3, "v": "plainer", "ts": 0}])
        writer.delete([1])
    assert timed(table) == {3: ("plainer", 0)}
    sink.append(SHARD, versions((1, 1, "after a delete that has no sequence"), (2, 9, "late")), terms=BY_TS)
    assert sorted(timed(table)) == [1, 3]


def test_a_table_goes_by_one_sequence_also_when_its_column_gets_another_name(tmp_path: Path) -> None:
    table = make(tmp_path / "t", SEQUENCED.append(pa.field("n", pa.int64())))
    with ThreadPoolExecutor(4) as pool:
        sinks = [sink_of(table) for _ in range(4)]
        made = [
            pool.submit(sink.append, SHARD, versions((1, 10 + n, f"v{n}")), terms=Terms("null", sequence="ts"))
            for n, sink in enumerate(sinks)
        ]
    assert sum(len(future.result().rejected or ()) + future.result().rows for future in made) == 4
    assert timed(table) == {1: ("v3", 13)}
    with pytest.raises(mw.InvalidInputError, match=r"'ts'.*'n'"):
        sinks[0].append(SHARD, versions((1, 10, "a")), terms=Terms("null", sequence="n"))
    table.dataset.alter_columns({"path": "ts", "name": "at"})
    renamed = versions((1, 12, "late"))[0].rename_columns(["id", "v", "at", "_tombstone"])
    assert sink_of(table).append(SHARD, [renamed], terms=Terms("null", sequence="at")).rejected_rows == 1


@pytest.mark.parametrize(
    ("terms", "given", "merge", "match"),
    [
        (BY_TS, (1, None, ""), None, "'ts'"),
        (Terms(sequence="v"), (1, 1, "a"), None, "'v'"),
        (Terms(sequence="id"), (1, 1, "a"), None, "'id'"),
        (BY_TS, (1, 1, "a"), mw.FirstRow(), "FirstRow"),
    ],
)
def test_what_cannot_be_put_in_order_is_refused(
    tmp_path: Path, terms: Terms, given: tuple[int, int | None, str], merge: Any, match: str
) -> None:
    table = make(tmp_path / "t", SEQUENCED, merge=merge)
    with pytest.raises(mw.InvalidInputError, match=match):
        sink_of(table).append(SHARD, versions(given), terms=terms)
    assert timed(table) == {}


COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])


def test_batches_that_are_joined_need_not_say_the_same_of_nulls(tmp_path: Path) -> None:
    defaults = mw.WriterConfig(max_memtable_batches=1, fsync=False)
    table = mw.create_table(str(tmp_path / "t"), COLUMNS, primary_key="id", writer_defaults=defaults)
    appender = OnceAppender(table.uri)
    strict = pa.record_batch([pa.array([1]), pa.array(["a"])], schema=COLUMNS)
    relaxed = pa.record_batch({"v": ["b"], "id": [2]})
    appender.append(appender.claim(mw.shard_id_for(mw.Unsharded())), [strict, relaxed])
    assert table.scan().to_table().sort_by("id").to_pylist() == [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]


@pytest.mark.parametrize("max_entry_bytes", [None, 10], ids=["an entry", "a generation"])
def test_columns_added_during_an_append_are_not_mixed_into_it(tmp_path: Path, max_entry_bytes: int | None) -> None:
    table = mw.create_table(str(tmp_path / "t"), COLUMNS, primary_key="id", writer_defaults={"fsync": False})
    appender = OnceAppender(table.location, max_entry_bytes=max_entry_bytes)
    claim = appender.claim(SHARD)
    rows = [pa.record_batch({"id": [1], "v": ["a"]})]

    def meanwhile(_: int) -> None:
        if "n" not in table.schema.names:
            table.dataset.add_columns(pa.schema([pa.field("n", pa.int64())]))
            appender.refresh()  # as an append of another thread, to another shard, does it

    assert appender.append(claim, rows, guard=meanwhile).rows == 1
    assert "n" in appender.schema.columns.names
    assert appender.append(claim, [pa.record_batch({"id": [2], "v": ["b"], "n": [2]})]).rows == 1
    appender.flush_tail(claim)
    table.compact()
    assert table.scan().to_table().sort_by("id").to_pylist() == [
        {"id": 1, "v": "a", "n": None},
        {"id": 2, "v": "b", "n": 2},
    ]
