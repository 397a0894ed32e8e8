"""Tables with stable row ids are compacted by hand, and look as if Lance's own merges had written them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.lance import wire
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.manifest import FRAGMENTS
from lance_memwal.lance.row_ids import RowIds
from lance_memwal.store.location import resolve

KEY = {"lance-schema:unenforced-primary-key": "true"}
COLUMNS = [pa.field("v", pa.int64()), pa.field("s", pa.string())]
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False, metadata=KEY), *COLUMNS])
PAIR = pa.schema(
    [
        pa.field("a", pa.string(), nullable=False, metadata={f"{next(iter(KEY))}:position": "1"}),
        pa.field("id", pa.int64(), nullable=False, metadata={f"{next(iter(KEY))}:position": "2"}),
        *COLUMNS,
    ]
)
SYSTEM = ["_rowid", "_row_created_at_version", "_row_last_updated_at_version"]
SETTINGS = {"fsync": False}


def rows(numbers: Any, v: int, schema: pa.Schema = SCHEMA) -> pa.Table:
    made = [{"a": f"a{i % 3}", "id": i, "v": v, "s": f"s{i % 5}"} for i in numbers]
    return pa.Table.from_pylist([{name: row[name] for name in schema.names} for row in made], schema=schema)


def stable(uri: str, schema: pa.Schema = SCHEMA, base_rows: int = 50) -> Any:
    return lance.write_dataset(rows(range(base_rows), 0, schema), uri, enable_stable_row_ids=True)


def system_columns(uri: str, renumbered: Mapping[int, int]) -> dict[Any, tuple[Any, ...]]:
    """Per key its values, row id and versions, the latter as numbers of changes."""
    found = lance.dataset(uri).scanner(columns=["id", "v", "s", *SYSTEM]).to_table().to_pylist()
    return {r["id"]: (r["v"], r["s"], r["_rowid"], renumbered[r[SYSTEM[1]]], renumbered[r[SYSTEM[2]]]) for r in found}


@pytest.mark.parametrize("schema", [SCHEMA, PAIR], ids=["one column", "two columns"])
@pytest.mark.parametrize("seed", range(4))
def test_ids_and_versions_are_those_that_merges_of_lance_would_give(
    tmp_path: Path, schema: pa.Schema, seed: int
) -> None:
    """The same changes by `merge_insert` on a twin table: equal rows have equal ids, insert and update versions."""
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    stable(ours, schema)
    stable(theirs, schema)
    table = mw.enable(ours, writer_defaults=SETTINGS)
    draw = random.Random(seed)
    changes = {ours: {1: 0}, theirs: {1: 0}}
    for step in range(1, 6):
        upserts = rows(sorted(draw.sample(range(90), draw.randint(1, 30))), step, schema)
        gone = [] if step == 1 else sorted(set(draw.sample(range(90), 5)) - set(upserts["id"].to_pylist()))
        with table.writer(compaction=None) as writer:
            writer.put(upserts)
            writer.delete(rows(gone, 0, schema) if gone else [])
        table.compact()
        assert table.base.takes_hand_commit
        changes[ours][table.base.version] = step
        merge = lance.dataset(theirs).merge_insert(table.primary_key)
        merge.when_matched_update_all().when_not_matched_insert_all().execute(upserts)
        changes[theirs][lance.dataset(theirs).version] = step
        if gone:
            lance.dataset(theirs).delete(f"id in ({', '.join(map(str, gone))})")
        lance.dataset(ours).validate()
        seen, expected = system_columns(ours, changes[ours]), system_columns(theirs, changes[theirs])
        replaced = {key for key, row in expected.items() if row[3] < row[4] or row[3] == 0}
        assert {key: seen[key] for key in replaced} == {key: expected[key] for key in replaced}
        assert {key: row[:2] + row[3:] for key, row in seen.items()} == {
            key: row[:2] + row[3:] for key, row in expected.items()
        }
        assert len({row[2] for row in seen.values()}) == len(seen)


@pytest.mark.parametrize("keyed", [True, False])
def test_it_is_one_commit_and_lance_goes_on_from_it(tmp_path: Path, keyed: bool) -> None:
    uri = str(tmp_path / "t")
    schema = SCHEMA if keyed else pa.schema([pa.field("id", pa.int64()), *COLUMNS])
    stable(uri, schema)
    table = mw.enable(uri, writer_defaults=SETTINGS)
    with table.writer(compaction=None) as writer:
        writer.put(rows(range(40, 60), 1, schema))
    before = table.base.version
    report = table.compact()
    assert (report.commits, table.base.version) == (1, before + 1)
    dataset = lance.dataset(uri)
    assert dataset.count_rows() == (60 if keyed else 70)
    lance.write_dataset(rows(range(100, 110), 2, schema), uri, mode="append")
    lance.dataset(uri).update({"v": "7"}, where="id >= 55")
    lance.dataset(uri).optimize.compact_files()
    lance.dataset(uri).validate()
    ids = lance.dataset(uri).scanner(columns=["_rowid"]).to_table()["_rowid"].to_pylist()
    assert len(set(ids)) == len(ids) == (70 if keyed else 80)
    with table.writer(compaction=None) as writer:
        writer.put(rows(range(105, 115), 3, schema))
    table.compact()
    assert table.count_rows() == lance.dataset(uri).count_rows() == (75 if keyed else 90)


def test_indexes_of_the_base_answer_for_the_rows_as_they_are_now(tmp_path: Path) -> None:
    """An index knows the old value of a row that kept its id: it must not be believed."""
    uri = str(tmp_path / "t")
    dataset = stable(uri, base_rows=1_000)
    dataset.create_scalar_index("v", "BTREE", name="v_index")
    dataset.create_scalar_index("s", "INVERTED", name="s_index")
    table = mw.enable(uri, writer_defaults=SETTINGS, maintained_indexes=None)
    with table.writer(compaction=None) as writer:
        writer.put([{"id": i, "v": 5, "s": "zebra"} for i in range(0, 1_000, 3)])
        writer.delete(range(1, 1_000, 300))
    table.compact()
    expected = {i for i in range(1_000) if i % 3 and i not in range(1, 1_000, 300)}
    for _ in range(2):
        plain = lance.dataset(uri)
        assert set(plain.to_table(filter="v = 0")["id"].to_pylist()) == expected
        assert len(plain.to_table(filter="v = 5")) == 334
        texts = plain.to_table(full_text_query="zebra", columns=["id"], limit=2_000)
        assert set(texts["id"].to_pylist()) == set(range(0, 1_000, 3))
        assert set(table.scan(filter="v = 0").to_table()["id"].to_pylist()) == expected
        lance.dataset(uri).optimize.optimize_indices()


def test_a_plain_writer_that_never_stops_does_not_starve_a_compaction(tmp_path: Path) -> None:
    """Each commit of the plain writer costs one more attempt, which reads only what it changed."""
    uri = str(tmp_path / "t")
    stable(uri)
    table = mw.enable(uri, writer_defaults=SETTINGS)
    with table.writer(compaction=None) as writer:
        writer.put(rows(range(30, 80), 1))
    base = BaseTable.need(resolve(uri))
    lance.write_dataset(rows(range(200, 210), 2), uri, mode="append")
    assert base.version < BaseTable.need(resolve(uri)).version
    table.compact()
    ids = lance.dataset(uri).scanner(columns=["_rowid"]).to_table()["_rowid"].to_pylist()
    assert len(set(ids)) == len(ids) == 90


def hexes(row_ids: RowIds, version: int) -> list[str]:
    return [bytes(field.as_bytes()).hex() for field in row_ids.fields(0, len(row_ids.ids), version)]


def test_the_bytes_are_those_that_lance_writes() -> None:
    """Golden: what pylance 14.0.2 wrote for ten new rows, and for rows 3 and 700 replaced with two new ones after them."""
    assert hexes(RowIds.of_new_rows(10, 0, 1), 1) == ["0a040a02100a", "0a080a040a02100a1001", "0a080a040a02100a1001"]
    mixed = RowIds.replacing(4, 10, 2, np.array([0, 1]), np.array([3, 700], "u8"), np.array([1, 1], "u8"))
    assert mixed.ids.tolist() == [3, 700, 10, 11]
    assert mixed.next_id == 12
    ids, changed, created = hexes(mixed, 2)
    assert changed == "0a080a040a0210041002"
    assert created == "0a080a040a02100210010a0a0a060a04080210041002"
    assert ids == "0a060a04080310040a080a0608bc0510bd050a060a04080a100c"


@pytest.mark.parametrize("count", [1, 2, 100, 5_000])
def test_ids_in_any_order_are_read_back_by_lance(tmp_path: Path, count: int) -> None:
    """Many ids in no order are a list instead of ranges."""
    uri = str(tmp_path / "t")
    stable(uri, base_rows=2 * count)
    table = mw.enable(uri, writer_defaults=SETTINGS)
    chosen = list(range(0, 2 * count, 2))
    random.Random(count).shuffle(chosen)
    with table.writer(compaction=None) as writer:
        writer.put(rows(chosen, 1))
    table.compact()
    found = lance.dataset(uri).scanner(columns=["id", "_rowid"]).to_table().to_pydict()
    assert found["id"] == found["_rowid"]
    fragments = [wire.Message(field.as_bytes()) for field in table.base.manifest.message if field.number == FRAGMENTS]
    segments = [wire.Message(segment) for segment in wire.Message(fragments[-1].data(5)).all(1)]
    assert [segment.has(5) for segment in segments] == ([True] if count > 64 else [False] * count)
