"""Fields inside of structs (`meta.a`) in scan, get and lookup, in every tier, named as Lance names them."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw

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
