"""Fields inside of structs among the columns of a search, in every tier and for every kind of search."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import lance_memwal as mw

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("v", pa.list_(pa.float32(), 2)),
        ("t", pa.string()),
        ("meta", pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.string())]))])),
    ]
)
ROWS = [
    {"id": 0, "v": [0.0, 1.0], "t": "red fox", "meta": {"a": 1, "b": {"c": "x"}}},
    {"id": 1, "v": [0.1, 1.0], "t": "red red hen", "meta": None},
    {"id": 2, "v": [0.2, 1.0], "t": "red owl and more words", "meta": {"a": None, "b": None}},
]


@pytest.mark.parametrize("stage", ["memtable", "SSTable", "base"])
@pytest.mark.parametrize(
    "asked", [{"vector": [0.0, 1.0]}, {"text": "red"}, {"vector": [0.0, 1.0], "text": "red"}], ids=str
)
def test_a_search_shows_fields_as_a_scan_does(tmp_path: Path, stage: str, asked: dict[str, object]) -> None:
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", writer_defaults={"fsync": False})
    with table.writer() as writer:
        writer.put(ROWS)
        if stage != "memtable":
            writer.flush()
        if stage == "base":
            table.compact()
        paths = ["meta.b.c", "id", "meta.a"]
        found = table.search(**asked, columns=paths)  # type: ignore[arg-type]
        shown = {row["id"]: row for row in table.scan(paths).to_table().to_pylist()}
        score = found.schema.names[-1]
        assert found.schema.names == [*paths, score]
        assert found.num_rows == len(ROWS)
        assert all({**row, score: None} == {**shown[row["id"]], score: None} for row in found.to_pylist())
        assert found["id"].to_pylist() == table.search(**asked)["id"].to_pylist()  # type: ignore[arg-type]


def test_a_field_that_is_not_there_is_refused(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id")
    with pytest.raises(mw.InvalidInputError, match="no field 'z' in 'meta'"):
        table.search([0.0, 1.0], columns=["meta.z"])
