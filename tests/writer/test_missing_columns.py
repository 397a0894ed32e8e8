"""A put that leaves columns out: refused where it would erase values, and filled where nothing is replaced."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.write.changes import Terms
from lance_memwal.write.once import OnceAppender

INNER = pa.struct([("x", pa.int64()), ("y", pa.int64())])
COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("v", pa.int64()),
        pa.field("s", pa.struct([("a", pa.int64()), ("b", INNER)])),
        pa.field("l", pa.list_(INNER)),
    ]
)
WHOLE = {"id": 1, "v": 10, "s": {"a": 1, "b": {"x": 1, "y": 2}}, "l": [{"x": 1, "y": 2}]}
SHARD = mw.shard_id_for(mw.Unsharded())


def _without(row: dict[str, Any], path: str) -> dict[str, Any]:
    head, _, rest = path.partition(".")
    if not rest:
        return {name: value for name, value in row.items() if name != head}
    inner = [_without(item, rest) for item in row[head]] if isinstance(row[head], list) else _without(row[head], rest)
    return {**row, head: inner}


def _arrow(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows)


SHAPES: dict[str, Callable[[list[dict[str, Any]]], Any]] = {
    "dicts": lambda rows: rows,
    "columns": lambda rows: {name: [row[name] for row in rows] for name in rows[0]},
    "table": _arrow,
    "batch": lambda rows: _arrow(rows).to_batches()[0],
    "reader": lambda rows: _arrow(rows).to_reader(),
}


@pytest.mark.parametrize("path", ["v", "s.a", "s.b.y", "l.x"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_column_that_is_left_out_is_an_error_that_names_it_and_changes_nothing(
    tmp_path: Path, shape: str, path: str
) -> None:
    table = mw.create_table(str(tmp_path / "t"), COLUMNS, primary_key="id", writer_defaults={"fsync": False})
    part = _without(WHOLE, path)
    with table.writer() as writer:
        writer.put([WHOLE])
        for put in (
            writer.put,
            writer.put_nowait,
            writer.shard_writers[SHARD].put,
            writer.shard_writers[SHARD].put_nowait,
        ):
            with pytest.raises(mw.InvalidInputError, match=f"'{path}'.*missing='null'"):
                put(SHAPES[shape]([part]))
        assert table.scan().to_table().to_pylist() == [WHOLE]
        writer.put(SHAPES[shape]([part]), missing="null")
        (row,) = table.scan().to_table().to_pylist()
    head, *rest = path.split(".")
    found: Any = row[head][0] if head == "l" else row[head]
    for name in rest:
        found = found[name]
    assert found is None


def test_a_dict_that_lacks_what_the_others_have_is_missing_it_too(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), COLUMNS, primary_key="id", writer_defaults={"fsync": False})
    with table.writer() as writer:
        for path in ("v", "s.b.x", "l.y"):
            with pytest.raises(mw.InvalidInputError, match=f"'{path}'"):
                writer.put([WHOLE, {**_without(WHOLE, path), "id": 2}])
        writer.put([WHOLE, {**WHOLE, "id": 2, "s": None, "l": None}, {**WHOLE, "id": 3, "l": []}])
        assert table.count_rows() == 3


def test_nulls_that_are_given_are_no_missing_columns(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), COLUMNS, primary_key="id", writer_defaults={"fsync": False})
    with table.writer() as writer:
        writer.put([WHOLE])
        writer.put(pa.table({"id": [1], "v": pa.nulls(1), "s": pa.nulls(1), "l": pa.nulls(1)}))
        assert table.get(1) == {"id": 1, "v": None, "s": None, "l": None}


def test_an_append_only_table_fills_what_is_left_out_unless_told_otherwise(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), COLUMNS, writer_defaults={"fsync": False})
    with table.writer() as writer:
        writer.put([{"id": 1}, {"id": 2, "v": 5}])
        writer.put(pd.DataFrame({"id": [3]}))
        with pytest.raises(mw.InvalidInputError, match="'v', 's', 'l'"):
            writer.put({"id": [4]}, missing="error")
        assert sorted(row["id"] for row in table.scan().to_table().to_pylist()) == [1, 2, 3]


@pytest.mark.parametrize("key", ["id", None])
def test_a_not_null_column_is_never_filled(tmp_path: Path, key: str | None) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("n", pa.int64(), nullable=False)])
    table = mw.create_table(str(tmp_path / "t"), schema, primary_key=key)
    with table.writer() as writer:
        for missing in (None, "error", "null"):
            with pytest.raises(mw.InvalidInputError, match="'n'"):
                writer.put({"id": [1]}, missing=missing)  # type: ignore[arg-type]


@pytest.mark.parametrize(("missing", "reason"), [("keep", "update"), ("drop", "one of 'error', 'null'"), (3, "3")])
def test_what_cannot_be_done_with_missing_columns_is_refused(tmp_path: Path, missing: Any, reason: str) -> None:
    table = mw.create_table(str(tmp_path / "t"), COLUMNS, primary_key="id")
    with table.writer() as writer:
        for put in (writer.put, writer.put_nowait):
            if missing == "keep" and put == writer.put:
                continue
            with pytest.raises(mw.InvalidInputError, match=reason):
                put([WHOLE], missing=missing)


def test_appends_without_a_writer_follow_the_same_rule(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = mw.create_table(uri, COLUMNS, primary_key="id", writer_defaults={"fsync": False})
    part = _arrow([_without(WHOLE, "v")]).to_batches()
    deletes = [pa.record_batch({"id": [2], "_tombstone": [True]})]
    once = OnceAppender(table.location)
    claim = once.claim(SHARD)
    with pytest.raises(mw.InvalidInputError, match="'v'"):
        once.append(claim, part)
    once.append(claim, deletes)
    once.append(claim, part, terms=Terms("null"))
    assert table.get(1) == {**WHOLE, "v": None}
    appender = mw.WalAppender.open(uri, SHARD)
    with pytest.raises(mw.InvalidInputError, match="'v'"):
        appender.append(part)
    with pytest.raises(mw.InvalidInputError, match="'v'"):
        appender.append([WHOLE, {**_without(WHOLE, "v"), "id": 2}])
    appender.append(deletes)
    appender.append([{**WHOLE, "_tombstone": False}, {"id": 2, "_tombstone": True}])
    assert table.get(1) == WHOLE
    appender.append(part, missing="null")
    assert table.get(1) == {**WHOLE, "v": None}


def test_a_large_put_that_becomes_a_generation_follows_the_same_rule(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", pa.int64())])
    table = mw.create_table(str(tmp_path / "t"), schema, primary_key="id", writer_defaults={"max_entry_bytes": 1000})
    with table.writer(fsync=False) as writer:
        with pytest.raises(mw.InvalidInputError, match="'v'"):
            writer.put({"id": range(10_000)})
        writer.put({"id": pa.array(range(10_000))}, missing="null")
    assert table.count_rows("v is null") == 10_000
