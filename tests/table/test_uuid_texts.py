"""UUIDs may be given as texts, wherever rows and keys are."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import lance_memwal as mw
from tests.kit.tables import create

ONE, TWO = (uuid.UUID(int=number << 64 | 0xABCDEF) for number in (1, 2))
SCHEMA = pa.schema([pa.field("id", pa.uuid(), nullable=False), ("v", pa.int64()), ("u", pa.uuid())])


@pytest.fixture
def table(tmp_path: Path) -> Iterator[mw.Table]:
    with create(str(tmp_path / "t"), SCHEMA) as made:
        yield made


def test_rows_with_texts_are_those_with_uuids(table: mw.Table) -> None:
    table.add([{"id": str(ONE), "v": 1, "u": TWO.hex.upper()}, {"id": TWO.bytes, "v": 2, "u": None}])
    table.upsert(pa.table({"id": [str(ONE)], "v": [3], "u": pa.array([None], pa.string())}))
    table.upsert({"id": [ONE, str(TWO)], "v": [4, 5], "u": [str(ONE), None]})
    assert sorted(table.to_arrow().to_pylist(), key=lambda row: row["v"]) == [
        {"id": ONE, "v": 4, "u": ONE},
        {"id": TWO, "v": 5, "u": None},
    ]
    for update in ([{"id": str(TWO), "v": 6}], pa.table({"id": [str(TWO)], "v": [7]})):
        assert table.update(update).matched == 1
    assert table.get(TWO) == {"id": TWO, "v": 7, "u": None}
    assert table.update("v = 7", {"u": str(TWO)}).matched == 1


@pytest.mark.parametrize("stage", ["memtable", "base"])
def test_keys_may_be_texts(table: mw.Table, stage: str) -> None:
    table.add([{"id": ONE, "v": 1, "u": None}, {"id": TWO, "v": 2, "u": None}])
    if stage == "base":
        table.compact(flush=True)
    assert table.get(str(ONE)) == table.get(ONE.hex.upper()) == table.get(ONE) == {"id": ONE, "v": 1, "u": None}
    assert table.lookup([str(ONE), TWO]).num_rows == table.lookup(pa.array([str(ONE), str(TWO)])).num_rows == 2
    assert table.get(str(uuid.UUID(int=9))) is None
    assert table.delete([str(ONE)], count=True).matched == 1
    with table.writer(shared=True) as writer:
        assert writer.compare_and_set(str(TWO), table.get(TWO), None)
    assert len(table) == 0


@pytest.mark.parametrize("wrong", ["", "nope", "0" * 31, "g" * 32, "é" * 32])
def test_other_texts_are_refused(table: mw.Table, wrong: str) -> None:
    for call in (
        lambda: table.get(wrong),
        lambda: table.delete([wrong]),
        lambda: table.upsert([{"id": wrong, "v": 1, "u": None}]),
        lambda: table.upsert(pa.table({"id": [wrong], "v": [1], "u": [str(ONE)]})),
    ):
        with pytest.raises(mw.InvalidInputError, match=r"'id'.*no UUID"):
            call()


def test_uuids_and_json_inside_of_structs_are_taken_from_dicts(tmp_path: Path) -> None:
    inner = pa.struct([("j", pa.json_()), ("l", pa.list_(pa.json_())), pa.field("n", pa.int64(), nullable=False)])
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("m", inner), ("js", pa.list_(pa.json_()))])
    rows = [
        {"id": 1, "m": {"j": '{"b": 1.50, "a": 2}', "l": ["[1]", None], "n": 1}, "js": ["null", "{}"]},
        {"id": 2, "m": None, "js": None},
        {"id": 3, "m": {"j": None, "l": None, "n": 2}, "js": []},
    ]
    with create(str(tmp_path / "t"), schema) as table:
        table.add(rows)
        rows[0]["m"]["j"] = '{"a":2,"b":1.5}'  # type: ignore[index]
        assert sorted(table.to_arrow().to_pylist(), key=lambda row: row["id"]) == rows
        table.compact(flush=True)
        assert sorted(table.to_arrow().to_pylist(), key=lambda row: row["id"]) == rows
        for wrong, why in (({"j": "{", "l": [], "n": 1}, "no JSON"), ({"l": [], "n": 1}, "'m.j'")):
            with pytest.raises(mw.InvalidInputError, match=why):
                table.add([{"id": 4, "m": wrong, "js": None}])


def test_a_quote_in_the_name_of_a_key_is_named_as_the_reason(tmp_path: Path) -> None:
    plain = pa.schema([pa.field('a"b', pa.int64(), nullable=False), ("v", pa.int64())])
    nested = plain.append(pa.field("m", pa.struct([("x", pa.int64())])))
    with create(str(tmp_path / "plain"), plain, primary_key='a"b') as table:
        table.add([{'a"b': 1, "v": 1}])
        assert table.get(1) == {'a"b': 1, "v": 1}
    with pytest.raises(mw.InvalidInputError, match=r"the key .* cannot be named so beside .* structs .*rename"):
        create(str(tmp_path / "nested"), nested, primary_key='a"b')
