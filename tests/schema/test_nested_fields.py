"""Fields inside columns are dropped and renamed by plain Lance while rows are in every tier: they are read by field id, too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.rows.field_match import fit_of
from lance_memwal.rows.schema import FieldId, tagged

INNER = pa.struct([("p", pa.int32()), ("q", pa.string())])
SCHEMA = pa.schema(
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
    writer.put(pa.Table.from_pylist([value(number) for number in range(first, first + 10)], schema=SCHEMA))


Row = dict[str, Any]
Change = tuple[Callable[[lance.LanceDataset], None], Callable[[Row], Row]]


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


CHANGES: dict[str, Change] = {
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
@pytest.mark.parametrize("change", CHANGES)
def test_fields_inside_columns_are_read_by_field_id_in_every_tier(tmp_path: Path, change: str, key: str | None) -> None:
    alter, expected_of = CHANGES[change]
    uri = str(tmp_path / "t")
    table = mw.create_table(uri, SCHEMA, primary_key=key, sharding=mw.Unsharded(), writer_defaults={"fsync": False})
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
    table = mw.create_table(uri, SCHEMA, primary_key="id", writer_defaults={"fsync": False})
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
