"""Columns and nested fields are added, renamed and dropped while rows are in every tier: all read them by field id."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.rows.adapt import tombstone_flags
from lance_memwal.rows.field_match import fit_of
from lance_memwal.rows.fit import Fitted, Fitter, validate_rows
from lance_memwal.rows.schema import FieldId, TableSchema, tagged
from tests.kit.writers import SECONDS, in_thread, in_threads

SCHEMA = pa.schema([("id", pa.int64()), ("a", pa.string()), ("b", pa.int64())])


def make(place: Path, key: str | None) -> mw.Table:
    return mw.create_table(
        str(place), SCHEMA, primary_key=key, sharding=mw.Unsharded(), writer_defaults={"fsync": False}
    )


def rows_in_every_tier(table: mw.Table) -> mw.TableWriter:
    """One row in the base table, one in an SSTable, one in the log and the memtable; the writer lives."""
    writer = table.writer(compaction=None)
    writer.put({"id": [1], "a": ["base"], "b": [10]})
    writer.flush()
    table.compact()
    writer.put({"id": [2], "a": ["sstable"], "b": [20]})
    writer.flush()
    writer.put({"id": [3], "a": ["memtable"], "b": [30]})
    return writer


def rename(dataset: lance.LanceDataset) -> None:
    dataset.alter_columns({"path": "a", "name": "z"})


def drop_last_and_add(dataset: lance.LanceDataset) -> None:
    dataset.drop_columns(["b"])
    lance.dataset(dataset.uri).add_columns(pa.schema([("b", pa.int64())]))


def swap_names(dataset: lance.LanceDataset) -> None:
    dataset.alter_columns({"path": "a", "name": "t"})
    lance.dataset(dataset.uri).add_columns(pa.schema([("a", pa.string())]))


TEXT = ("base", "sstable", "memtable")
OLD = [{"id": i + 1, "a": TEXT[i], "b": (i + 1) * 10} for i in range(3)]
Change = Callable[[lance.LanceDataset], None]
CHANGES: list[tuple[Change, list[dict[str, Any]]]] = [
    (lambda d: d.add_columns(pa.schema([("c", pa.string())])), [{**row, "c": None} for row in OLD]),
    # A boolean gets the field id that `_tombstone` has in SSTables.
    (lambda d: d.add_columns(pa.schema([("c", pa.bool_())])), [{**row, "c": None} for row in OLD]),
    (rename, [{"id": row["id"], "z": row["a"], "b": row["b"]} for row in OLD]),
    (lambda d: d.drop_columns(["a"]), [{"id": row["id"], "b": row["b"]} for row in OLD]),
    (drop_last_and_add, [{"id": row["id"], "a": row["a"], "b": None} for row in OLD]),
    (swap_names, [{"id": row["id"], "t": row["a"], "b": row["b"], "a": None} for row in OLD]),
]


def by_id(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: row["id"])


@pytest.mark.parametrize("key", ["id", None])
@pytest.mark.parametrize(("change", "expected"), CHANGES)
def test_rows_of_every_tier_are_read_by_field_id(
    tmp_path: Path, key: str | None, change: Change, expected: list[dict[str, Any]]
) -> None:
    table = make(tmp_path / "t", key)
    writer = rows_in_every_tier(table)
    change(table.dataset)
    assert by_id(table.scan().to_table()) == expected  # the writer's own memtable
    writer.abort()
    assert by_id(mw.open_table(table.uri).scan().to_table()) == expected  # the log
    table.flush(idle_seconds=0)
    assert by_id(mw.open_table(table.uri).scan().to_table()) == expected
    assert table.verify().ok
    table.compact()
    assert by_id(lance.dataset(table.uri).to_table()) == expected
    assert table.gc(grace_seconds=0).refused == {}


@pytest.mark.parametrize(("change", "expected"), CHANGES)
def test_idle_writer_keeps_the_old_columns(tmp_path: Path, change: Change, expected: list[dict[str, Any]]) -> None:
    table = make(tmp_path / "t", "id")
    with rows_in_every_tier(table) as writer:
        change(table.dataset)
        for row in OLD:
            writer.put([row])
        assert by_id(table.scan().to_table()) == expected
    table.compact()
    assert by_id(lance.dataset(table.uri).to_table()) == expected


def new_rows(table: mw.Table) -> list[dict[str, Any]]:
    """Rows with a value in every column that the table has now."""
    values = {pa.int64(): 7, pa.string(): "new", pa.bool_(): True}
    return [{field.name: values[field.type] for field in table.schema}]


@pytest.mark.parametrize("key", ["id", None])
@pytest.mark.parametrize(("change", "expected"), CHANGES)
def test_a_live_writer_moves_to_the_new_columns(
    tmp_path: Path, key: str | None, change: Change, expected: list[dict[str, Any]]
) -> None:
    table = make(tmp_path / "t", key)
    writer = rows_in_every_tier(table)
    change(table.dataset)
    writer.evolve_schema()
    fresh = new_rows(table)
    writer.put(fresh)
    assert by_id(writer.scan().to_table()) == expected + fresh
    epochs = [w.epoch for w in writer.shard_writers.values()]
    writer.abort()
    assert by_id(mw.open_table(table.uri).scan().to_table()) == expected + fresh
    with table.writer(compaction=None) as again:
        again.put(fresh if key else [{**fresh[0], "id": 8}])
    assert epochs == [1]
    table.compact()
    left = by_id(lance.dataset(table.uri).to_table())
    assert left == expected + (fresh if key else [*fresh, {**fresh[0], "id": 8}])


def test_puts_of_other_threads_wait_for_the_move_and_none_is_lost(tmp_path: Path) -> None:
    table = make(tmp_path / "t", "id")
    writer = table.shard_writer()
    stop = threading.Event()
    written: list[int] = []

    def put(thread: int) -> None:
        number = thread
        while not stop.is_set():
            writer.put({"id": [number], "b": [number]}, missing="null")  # columns that stay
            written.append(number)
            number += 4

    threads = [in_thread(partial(put, i)) for i in range(4)]
    for turn in range(6):
        table.dataset.add_columns(pa.schema([(f"c{turn}", pa.string())]))
        writer.evolve_schema()
    stop.set()
    for thread in threads:
        thread.result(4 * SECONDS)
    assert writer.schema.names == ["id", "a", "b", *(f"c{turn}" for turn in range(6))]
    assert sorted(table.scan().to_table()["id"].to_pylist()) == sorted(written)
    writer.close()
    table.compact()
    assert sorted(lance.dataset(table.uri).to_table()["id"].to_pylist()) == sorted(written)


def test_a_log_only_writer_moves_too_and_without_a_change_nothing_is_flushed(tmp_path: Path) -> None:
    table = make(tmp_path / "t", "id")
    writer = table.shard_writer(enable_memtable=False)
    writer.put({"id": [1], "a": ["old"], "b": [1]})
    rename(table.dataset)
    writer.evolve_schema()
    writer.put({"id": [2], "z": ["new"], "b": [2]})
    assert by_id(table.scan(columns=["id", "z"]).to_table()) == [{"id": 1, "z": "old"}, {"id": 2, "z": "new"}]
    writer.close()
    with table.shard_writer() as writer:
        writer.put({"id": [3], "z": ["x"], "b": [1]})
        before = writer.manifest().sstables
        writer.evolve_schema()
        assert writer.manifest().sstables == before


def test_pylance_opens_a_log_with_entries_of_two_schemas(tmp_path: Path) -> None:
    table = make(tmp_path / "t", "id")
    writer = table.shard_writer()
    writer.put({"id": [1], "a": ["old"], "b": [1]})
    rename(table.dataset)
    writer.put({"id": [2], "a": ["still old"], "b": [2]})
    writer.evolve_schema()
    writer.put({"id": [3], "z": ["new"], "b": [3]})
    shard = writer.shard_id
    writer.abort()
    peer: Any = lance.dataset(table.uri).mem_wal_writer(shard)
    rows = {row["id"]: row["z"] for row in peer.lsm_scanner().to_table().to_pylist()}
    peer.close()
    assert rows == {1: "old", 2: "still old", 3: "new"}


INNER = pa.struct([("p", pa.int32()), ("q", pa.string())])
NESTED = pa.schema(
    [
        ("id", pa.int64()),
        ("s", pa.struct([("x", pa.int32()), ("y", pa.string()), ("t", INNER)])),
        ("many", pa.list_(INNER)),
        ("large", pa.large_list(INNER)),
    ]
)


def value(number: int) -> dict[str, Any]:
    inner = {"p": number, "q": f"q{number}"}
    return {
        "id": number,
        "s": None
        if number % 5 == 4
        else {"x": number * 10, "y": f"y{number}", "t": None if number % 5 == 3 else inner},
        "many": None if number % 5 == 2 else [inner, None, {"p": None, "q": "z"}][: number % 4],
        "large": [] if number % 5 == 1 else [inner],
    }


def put(writer: mw.TableWriter, first: int) -> None:
    writer.put(pa.Table.from_pylist([value(number) for number in range(first, first + 10)], schema=NESTED))


Row = dict[str, Any]
FieldChange = tuple[Callable[[lance.LanceDataset], None], Callable[[Row], Row]]


def _in_struct(change: Callable[[Row], Row]) -> Callable[[Row], Row]:
    return lambda row: {**row, "s": row["s"] and change(row["s"])}


def _in_lists(column: str, change: Callable[[Row], Row]) -> Callable[[Row], Row]:
    return lambda row: {**row, column: row[column] and [item and change(item) for item in row[column]]}


def _without(name: str) -> Callable[[Row], Row]:
    return lambda row: {key: item for key, item in row.items() if key != name}


def _renamed(old: str, new: str) -> Callable[[Row], Row]:
    return lambda row: {new if key == old else key: item for key, item in row.items()}


def _swap(dataset: lance.LanceDataset) -> None:
    dataset.alter_columns({"path": "s.y", "name": "was_y"})
    lance.dataset(dataset.uri).alter_columns({"path": "s.t.q", "name": "y"})


FIELD_CHANGES: dict[str, FieldChange] = {
    "a field is dropped": (lambda d: d.drop_columns(["s.x"]), _in_struct(_without("x"))),
    "a field is renamed": (lambda d: d.alter_columns({"path": "s.x", "name": "z"}), _in_struct(_renamed("x", "z"))),
    "a struct in a struct is dropped": (lambda d: d.drop_columns(["s.t"]), _in_struct(_without("t"))),
    "a field of a struct in a struct is dropped": (
        lambda d: d.drop_columns(["s.t.p"]),
        _in_struct(lambda s: {**s, "t": s["t"] and _without("p")(s["t"])}),
    ),
    "names move": (
        _swap,
        _in_struct(lambda s: _renamed("y", "was_y")({**s, "t": s["t"] and _renamed("q", "y")(s["t"])})),
    ),
    "the column itself is renamed, too": (
        lambda d: d.alter_columns({"path": "s", "name": "u"}, {"path": "s.x", "name": "z"}),
        lambda row: _renamed("s", "u")(_in_struct(_renamed("x", "z"))(row)),
    ),
    "a field inside a list is renamed": (
        lambda d: d.alter_columns({"path": "many.item.p", "name": "r"}),
        _in_lists("many", _renamed("p", "r")),
    ),
    "a field inside a large list is renamed": (
        lambda d: d.alter_columns({"path": "large.item.p", "name": "r"}),
        _in_lists("large", _renamed("p", "r")),
    ),
}


def shown(table: mw.Table) -> list[Row]:
    return sorted(table.scan().to_table().to_pylist(), key=lambda row: row["id"])


@pytest.mark.parametrize("key", ["id", None])
@pytest.mark.parametrize("change", FIELD_CHANGES)
def test_fields_inside_columns_are_read_by_field_id_in_every_tier(tmp_path: Path, change: str, key: str | None) -> None:
    alter, expected_of = FIELD_CHANGES[change]
    uri = str(tmp_path / "t")
    table = mw.create_table(uri, NESTED, primary_key=key, sharding=mw.Unsharded(), writer_defaults={"fsync": False})
    writer = table.writer(compaction=None)
    put(writer, 0)
    writer.flush()
    table.compact()
    put(writer, 10)
    writer.flush()
    put(writer, 20)
    alter(lance.dataset(uri))
    expected = [expected_of(value(number)) for number in range(30)]
    assert shown(table) == expected  # the memtable of the live writer
    if key is not None:
        assert [table.get(number) for number in (3, 13, 23)] == [expected[3], expected[13], expected[23]]
    writer.abort()
    assert shown(mw.open_table(uri)) == expected  # the log
    assert mw.open_table(uri).verify().ok
    again = mw.open_table(uri).shard_writer(mw.shard_id_for(mw.Unsharded()))  # the replay
    assert shown(mw.open_table(uri)) == expected
    again.close()
    assert shown(mw.open_table(uri)) == expected  # SSTables of both kinds
    if key is not None:
        assert mw.open_table(uri).lookup([29, 11]).sort_by("id").to_pylist() == [expected[11], expected[29]]
    mw.open_table(uri).compact()
    assert sorted(lance.dataset(uri).to_table().to_pylist(), key=lambda row: row["id"]) == expected
    assert mw.open_table(uri).verify().ok


def test_filters_on_fields_look_at_the_values_of_today(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = mw.create_table(uri, NESTED, primary_key="id", writer_defaults={"fsync": False})
    with table.writer(compaction=None) as writer:
        put(writer, 0)
    lance.dataset(uri).alter_columns({"path": "s.x", "name": "z"})
    with mw.open_table(uri).writer(compaction=None) as writer:
        writer.put(mw.open_table(uri).scan(filter="id = 1").to_table())
    found = mw.open_table(uri)
    assert sorted(found.scan(filter="s.z >= 50").to_table()["id"].to_pylist()) == [5, 6, 7, 8]
    assert sorted(found.scan(filter="s.z = 10").to_table()["id"].to_pylist()) == [1]
    with pytest.raises(mw.InvalidInputError):
        found.scan(filter="s.x = 10").to_table()


def _ids(number: int, *children: FieldId) -> FieldId:
    return FieldId(number, children)


def test_a_field_that_was_dropped_and_added_again_under_its_name_does_not_get_the_old_values() -> None:
    column = pa.field("s", pa.struct([("x", pa.int32()), ("y", pa.int32())]))
    stored = tagged(column, _ids(1, _ids(2), _ids(3)))
    values = pa.array([{"x": 1, "y": 2}, None, {"x": 3, "y": 4}, {"x": None, "y": 5}], column.type)
    same = fit_of(stored, column, _ids(1, _ids(2), _ids(3)))
    assert same.is_same
    assert same.apply(values) is values
    other = fit_of(stored, column, _ids(1, _ids(9), _ids(3))).apply(values)
    assert other.to_pylist() == [{"x": None, "y": 2}, None, {"x": None, "y": 4}, {"x": None, "y": 5}]
    swapped = fit_of(stored, column, _ids(1, _ids(3), _ids(2))).apply(values.slice(1))
    assert swapped.to_pylist() == [None, {"x": 4, "y": 3}, {"x": 5, "y": None}]


@pytest.mark.parametrize(
    "make", [pa.list_, pa.large_list, lambda kind: pa.list_(kind, 1), lambda k: pa.map_("string", k)]
)
def test_values_inside_lists_and_maps_fit_wherever_they_begin(make: Callable[[pa.DataType], pa.DataType]) -> None:
    old, new = pa.struct([("x", pa.int32()), ("y", pa.string())]), pa.struct([("z", pa.string()), ("w", pa.bool_())])
    inside = _ids(2, _ids(3), _ids(4)), _ids(2, _ids(4), _ids(5))
    is_map = pa.types.is_map(make(old))
    before, after = (_ids(1, _ids(7, _ids(8), ids)) if is_map else _ids(1, ids) for ids in inside)
    wrap: Callable[[Any], Any] = (lambda item: [("k", item)]) if is_map else (lambda item: [item])
    rows = [wrap({"x": n, "y": f"y{n}"}) if n % 3 else None for n in range(9)]
    expected = [wrap({"z": f"y{n}", "w": None}) if n % 3 else None for n in range(9)]
    fit = fit_of(tagged(pa.field("c", make(old)), before), pa.field("c", make(new)), after)
    values = pa.array(rows, make(old))
    for start, length in ((0, 9), (1, 8), (4, 3), (8, 0)):
        found = fit.apply(values.slice(start, length))
        found.validate(full=True)
        assert found.type == make(new)
        assert found.to_pylist() == expected[start : start + length]


def test_a_field_of_another_type_is_named_and_not_understood() -> None:
    stored = pa.field("s", pa.struct([("x", pa.list_(pa.int32()))]))
    wanted = pa.field("s", pa.struct([("x", pa.list_(pa.int64()))]))
    with pytest.raises(mw.UnsupportedFormatError, match=r"'s\.x\.item' is stored as int32, the table has int64"):
        fit_of(stored, wanted, None)
    missing = pa.field("s", pa.struct([pa.field("n", pa.int32(), nullable=False)]))
    with pytest.raises(mw.UnsupportedFormatError, match=r"rows lack 's\.n', which must not be null"):
        fit_of(stored, missing, None)


COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("a", pa.int32()), pa.field("s", pa.string(), False)])
FITTED = TableSchema(COLUMNS, ("id",))
SETTINGS: dict[str, Any] = {"fsync": False, "stats_log_interval_ms": None}


def batch(**columns: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


class Validations:
    """Counts full validations of this thread."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Validations:
        sys.setprofile(self._called)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, argument: object) -> None:
        self.count += event == "call" and frame.f_code is validate_rows.__code__


@pytest.mark.parametrize("sharding", [mw.Unsharded(), mw.Bucket("id", 4), mw.Identity("id")])
def test_a_put_through_the_table_validates_its_rows_once(tmp_path: Path, sharding: Any) -> None:
    table = mw.create_table(str(tmp_path / "t"), COLUMNS, primary_key="id", sharding=sharding)
    rows = batch(id=[1, 2, 3], a=[1, 2, 3], s=["x", "y", "z"])
    with table.writer(compaction=None, **SETTINGS) as writer:
        writer.put(rows)  # opens the shards
        with Validations() as seen:
            writer.put(rows)
        assert seen.count == 1
        assert table.count_rows() == 3


def test_rows_that_fit_these_columns_are_taken_as_they_are_and_others_are_fitted_again() -> None:
    fitter = Fitter(FITTED)
    fitted = Fitted([fitter.fit(batch(s=["x"], a=[1], id=[7]))], TableSchema(COLUMNS, ("id",)))
    assert fitter.fit_all(fitted, True) is fitted
    wider = TableSchema(COLUMNS.append(pa.field("new", pa.float64())), ("id",))
    again = Fitter(wider).fit_all(fitted, True)
    assert [part.schema.names for part in again] == [["id", "a", "s", "new"]]
    with pytest.raises(mw.InvalidInputError, match="'gone'"):
        fitter.fit_all(Fitted([batch(id=[1], a=[1], s=["x"], gone=[1])], wider), True)


def test_only_tombstones_may_leave_a_not_null_column_out() -> None:
    fitter = Fitter(FITTED)
    dead = fitter.fit_flagged(batch(id=[1, 2], _tombstone=[True, True]))
    assert dead.to_pylist() == [{"id": i, "a": None, "s": None, "_tombstone": True} for i in (1, 2)]
    mixed = batch(id=[1, 2], a=[None, 5], s=[None, "x"], _tombstone=[True, False])
    assert fitter.fit_flagged(mixed).column("s").to_pylist() == [None, "x"]
    for wrong in ([False, True], [False, False]):
        with pytest.raises(mw.InvalidInputError, match="'s' must not be null"):
            fitter.fit_flagged(batch(id=[1, 2], a=[1, 5], s=[None, "x"], _tombstone=wrong))
    with pytest.raises(mw.InvalidInputError, match="'id' must not be null"):
        fitter.fit_flagged(batch(id=[1, None], _tombstone=[True, True]))
    with pytest.raises(mw.InvalidInputError, match="left out: 'a', 's'"):
        fitter.fit_flagged(batch(id=[1, 2], _tombstone=[True, False]))
    with pytest.raises(mw.InvalidInputError, match="not for puts"):
        fitter.fit(batch(id=[1], a=[1], s=["x"], _tombstone=[True]))


def test_threads_that_share_a_fitter_get_the_rows_that_they_gave() -> None:
    fitter, wrong = Fitter(FITTED), []
    forms = [("id", "a", "s"), ("s", "id", "a"), ("a", "s", "id")]

    def fit(order: tuple[str, ...]) -> None:
        values = {"id": [1], "a": [2], "s": ["x"]}
        given = batch(**{name: values[name] for name in order})
        for _ in range(300):
            if fitter.fit(given).to_pylist() != [{"id": 1, "a": 2, "s": "x"}]:
                wrong.append(order)

    in_threads(fit, forms)
    assert wrong == []


@pytest.mark.parametrize("rows", [batch(_tombstone=[True, None, False]), pa.table({"_tombstone": [True, None, False]})])
def test_a_flag_that_is_null_says_that_the_row_is_no_tombstone(rows: pa.Table | pa.RecordBatch) -> None:
    assert tombstone_flags(rows).tolist() == [True, False, False]
