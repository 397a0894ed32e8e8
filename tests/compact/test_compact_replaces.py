"""Compaction by a hand-made version: replaced rows go, new ones come; with stable row ids it looks like Lance's own merges."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import crash_points
from lance_memwal.lance import wire
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.manifest import FRAGMENTS
from lance_memwal.lance.marks import COUNTER_SHARD, commit_number
from lance_memwal.lance.row_ids import RowIds
from lance_memwal.lance.superseded import replaced_rows
from lance_memwal.rows.keys import KeySet
from lance_memwal.store.location import resolve
from lance_memwal.table import newest_base
from tests.harness.points import run_once_at
from tests.kit.compaction import by_lance_only, unheld_files, with_key

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


def rows(ids: Any, value: str) -> dict[str, Any]:
    numbers = list(ids)
    return {"id": numbers, "v": [value] * len(numbers)}


def made(place: Path, *parts: range, schema: pa.Schema = SCHEMA) -> mw.Table:
    """A table whose base has one fragment of old rows per part."""
    table = mw.create_table(str(place), schema, primary_key="id", sharding=mw.Unsharded())
    for part in parts:
        lance.write_dataset(pa.table(rows(part, "old"), schema=table.schema), table.uri, mode="append")
    return table


def write(table: mw.Table, *, put: Any = (), delete: Any = (), value: str = "new") -> None:
    with table.writer(compaction=None) as writer:
        if len(list(put)):
            writer.put(rows(put, value))
        if len(list(delete)):
            writer.delete(list(delete))
        writer.flush()


def plain(table: mw.Table) -> Counter[tuple[int, str]]:
    found = lance.dataset(table.uri).to_table(columns=["id", "v"])
    return Counter(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))


def values(**parts: Any) -> Counter[tuple[int, str]]:
    return Counter((number, value) for value, numbers in parts.items() for number in numbers)


def test_a_row_is_replaced_in_its_fragment_and_a_deleted_one_goes_in_one_version(tmp_path: Path) -> None:
    table = made(tmp_path / "t", range(10), range(10, 20))
    write(table, put=[3, 12, 99], delete=[4, 15, 1000])
    before = table.dataset.version
    table.compact()
    old = set(range(20)) - {3, 4, 12, 15}
    assert plain(table) == values(old=old, new=[3, 12, 99])
    assert table.dataset.version == before + 1
    dataset = lance.dataset(table.uri)
    dataset.validate()
    assert [fragment.num_deletions for fragment in dataset.get_fragments()] == [2, 2, 0]


def test_tombstones_make_no_fragment_and_an_empty_fragment_goes(tmp_path: Path) -> None:
    table = made(tmp_path / "t", range(10), range(10, 20))
    write(table, delete=[1, 2])
    before = table.dataset.version
    table.compact()
    assert plain(table) == values(old={0, *range(3, 20)})
    assert (table.dataset.version, len(table.dataset.get_fragments())) == (before + 1, 2)
    write(table, put=range(10))
    table.compact()
    assert plain(table) == values(old=range(10, 20), new=range(10))
    assert [fragment.fragment_id for fragment in lance.dataset(table.uri).get_fragments()] == [1, 2]


@pytest.mark.parametrize("many", [3, 9_000])
def test_what_was_deleted_before_stays_deleted(tmp_path: Path, many: int) -> None:
    """Lance keeps few deletions as an Arrow array and many as a bitmap; both are taken over."""
    size = 10 * many
    table = made(tmp_path / "t", range(size))
    table.dataset.delete(f"id < {many}")
    write(table, put=[many, size - 1])
    table.compact()
    assert plain(table) == values(old=range(many + 1, size - 1), new=[many, size - 1])
    write(table, put=[many + 1])
    table.compact()
    assert plain(table) == values(old=range(many + 2, size - 1), new=[many, many + 1, size - 1])


def test_a_key_that_the_base_has_twice_is_there_once_afterwards(tmp_path: Path) -> None:
    table = made(tmp_path / "t", range(5), range(3, 8))
    write(table, put=[3, 4], delete=[5])
    table.compact()
    assert plain(table) == values(old=[0, 1, 2, 6, 7], new=[3, 4])


@pytest.mark.parametrize("kind", ["BTREE", "BITMAP", "INVERTED"])
@pytest.mark.parametrize("replaced", [range(0, 300, 2), range(300)])
def test_indexes_find_new_rows_and_no_row_that_went(tmp_path: Path, kind: Any, replaced: range) -> None:
    table = made(tmp_path / "t", range(150), range(150, 300))
    table.dataset.create_scalar_index("v", kind)
    write(table, put=replaced)
    table.compact()
    dataset = lance.dataset(table.uri)

    def count(word: str) -> int:
        if kind == "INVERTED":
            return dataset.to_table(full_text_query=word).num_rows
        return dataset.to_table(filter=f"v = '{word}'").num_rows

    assert (count("old"), count("new")) == (300 - len(replaced), len(replaced))
    dataset.optimize.optimize_indices()
    dataset = lance.dataset(table.uri)
    assert (count("old"), count("new")) == (300 - len(replaced), len(replaced))


@pytest.mark.parametrize("kind", ["BTREE", "BITMAP"])
def test_where_the_key_is_indexed_few_keys_are_found_by_the_index(tmp_path: Path, kind: Any) -> None:
    """Also in fragments that the index does not cover, and beside rows that were deleted before."""
    table = made(tmp_path / "t", range(600))
    table.dataset.create_scalar_index("id", kind)
    lance.write_dataset(pa.table(rows(range(600, 610), "old"), schema=table.schema), table.uri, mode="append")
    table.dataset.delete("id = 7")
    write(table, put=[5, 605, 700], delete=[6, 609])
    base = BaseTable.open(resolve(table.uri))
    assert base is not None
    found = replaced_rows(base, KeySet(pa.array([5, 6, 605, 609, 700])))
    assert {number: None if gone is None else gone.tolist() for number, gone in found.items()} == {
        base.dataset.get_fragments()[0].fragment_id: [5, 6, 7],
        base.dataset.get_fragments()[1].fragment_id: [5, 9],
    }
    table.compact()
    assert plain(table) == values(old=set(range(609)) - {5, 6, 7, 605}, new=[5, 605, 700])


def test_a_key_that_somebody_appends_while_lance_merges_is_not_there_twice(tmp_path: Path) -> None:
    """A merge that asks an index would not notice it. The features of this table rule the hand-made version out."""
    uri = str(tmp_path / "t")
    lance.write_dataset(pa.table(rows(range(10), "old"), schema=with_key(SCHEMA)), uri, **by_lance_only(uri))
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    table = mw.enable(uri, sharding=mw.Unsharded())
    write(table, put=[5, 50])

    def append() -> None:
        lance.write_dataset(pa.table(rows([50], "direct"), schema=table.schema), uri, mode="append")

    happened = run_once_at("compact.before_upsert", append)
    assert table.compact().conflicts == 1
    assert happened
    assert plain(table) == values(old=set(range(10)) - {5}, new=[5, 50])


@pytest.mark.repro("reads-07b")
@pytest.mark.parametrize("indexed", [False, True])
def test_a_compaction_wins_in_the_end_where_others_commit_all_the_time(tmp_path: Path, indexed: bool) -> None:
    """Every attempt loses to somebody, 20 times; rows are written once, and each attempt looks at what is new."""
    table = made(tmp_path / "t", range(10))
    if indexed:
        table.dataset.create_scalar_index("id", "BTREE")
    write(table, put=[5, 7, 9], delete=[6])
    reached: list[str] = []
    written: set[str] = set()
    others = [
        lambda number: _append(table, 1000 + number),
        lambda number: lance.dataset(table.uri).delete(f"id = {number % 5}"),
        lambda number: _append(table, 5),  # a key that is about to be replaced: once more
        lambda number: lance.dataset(table.uri).optimize.compact_files(),
    ]

    def disturb(point: str) -> None:
        if point == "compact.before_manifest" and len(reached) < 20:
            reached.append(point)
            written.update(name for name in unheld_files(table.uri) if name.startswith("data/"))
            others[(len(reached) - 1) % 4](len(reached))

    crash_points.install(disturb)
    report = table.compact()
    assert report.conflicts >= 15  # to join small files may find nothing to do
    assert len(written) == 1, "the rows were written once"
    found = plain(table)
    assert {key: count for key, count in found.items() if key[1] == "new"} == {(n, "new"): 1 for n in (5, 7, 9)}
    assert not any(found[key] for key in [(5, "direct"), (5, "old"), (6, "old"), (7, "old")])
    assert sum(count for (_, value), count in found.items() if value == "direct") == 5
    assert unheld_files(table.uri) == set()


def _append(table: mw.Table, number: int) -> None:
    lance.write_dataset(pa.table(rows([number], "direct"), schema=table.schema), table.uri, mode="append")


def _delete(stale: lance.LanceDataset) -> None:
    stale.delete("id = 3")


def _update(stale: lance.LanceDataset) -> None:
    stale.update({"v": "'later'"}, where="id = 3")


def _merge(stale: lance.LanceDataset) -> None:
    later = pa.table(rows([3, 99], "later"), schema=stale.schema)
    stale.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(later)


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (_delete, {"old": [0, 1, 2, 4], "new": [99]}),
        (_update, {"old": [0, 1, 2, 4], "new": [99], "later": [3]}),
        (_merge, {"old": [0, 1, 2, 4], "later": [3, 99]}),
    ],
)
def test_a_later_change_by_a_stale_handle_of_lance_wins(
    tmp_path: Path, action: Callable[[lance.LanceDataset], None], expected: dict[str, list[int]]
) -> None:
    """Lance reads our transaction and starts the change over on the version that we made."""
    table = made(tmp_path / "t", range(5))
    write(table, put=[3, 99])
    stale = lance.dataset(table.uri)
    table.compact()
    action(stale)
    assert plain(table) == values(**expected)
    assert Counter(zip(*(table.scan().to_table()[c].to_pylist() for c in ("id", "v")), strict=True)) == values(
        **expected
    )


def test_every_compaction_counts(tmp_path: Path) -> None:
    table = made(tmp_path / "t", range(5))
    for count in (1, 2, 3):
        write(table, put=[count])
        table.compact()
        assert commit_number(newest_base(table)) == count
    assert COUNTER_SHARD not in {*table.details().compacted, *(info.shard_id for info in table.shards())}


@pytest.mark.parametrize(
    "parts", [[range(7)], [range(3), range(3, 5), range(5, 20)], [range(k, k + 1) for k in range(9)]]
)
def test_exactly_the_rows_of_the_asked_keys_are_found(tmp_path: Path, parts: list[range]) -> None:
    table = made(tmp_path / "t", *parts)
    table.dataset.delete("id = 1")
    base = BaseTable.open(table.location)
    assert base is not None
    asked = {0, 1, 2, 6, 1000}
    found = replaced_rows(base, KeySet(pa.array(sorted(asked))))
    expected: dict[int, list[int] | None] = {}
    for part in parts:
        gone = [offset for offset, key in enumerate(part) if key in asked]
        if any(part[offset] != 1 for offset in gone):
            expected[_fragment_of(base, part[0])] = None if len(gone) == len(part) else gone
    assert {n: None if offsets is None else offsets.tolist() for n, offsets in found.items()} == expected


def _fragment_of(base: BaseTable, key: int) -> int:
    for fragment in base.dataset.get_fragments():
        if key in fragment.to_table(columns=["id"])["id"].to_pylist() or (
            key == 1 and fragment.physical_rows > fragment.count_rows()
        ):
            return int(fragment.fragment_id)
    raise AssertionError(key)


def test_no_key_replaces_nothing(tmp_path: Path) -> None:
    base = BaseTable.open(made(tmp_path / "t", range(7)).location)
    assert base is not None
    assert replaced_rows(base, KeySet(pa.array([], pa.int64()))) == {}
    assert replaced_rows(base, KeySet(pa.array(np.arange(100, 200)))) == {}


KEY = {"lance-schema:unenforced-primary-key": "true"}
COLUMNS = [pa.field("v", pa.int64()), pa.field("s", pa.string())]
STABLE = pa.schema([pa.field("id", pa.int64(), nullable=False, metadata=KEY), *COLUMNS])
PAIR = pa.schema(
    [
        pa.field("a", pa.string(), nullable=False, metadata={f"{next(iter(KEY))}:position": "1"}),
        pa.field("id", pa.int64(), nullable=False, metadata={f"{next(iter(KEY))}:position": "2"}),
        *COLUMNS,
    ]
)
SYSTEM = ["_rowid", "_row_created_at_version", "_row_last_updated_at_version"]
SETTINGS = {"fsync": False}


def stable_rows(numbers: Any, v: int, schema: pa.Schema = STABLE) -> pa.Table:
    made = [{"a": f"a{i % 3}", "id": i, "v": v, "s": f"s{i % 5}"} for i in numbers]
    return pa.Table.from_pylist([{name: row[name] for name in schema.names} for row in made], schema=schema)


def stable(uri: str, schema: pa.Schema = STABLE, base_rows: int = 50) -> Any:
    return lance.write_dataset(stable_rows(range(base_rows), 0, schema), uri, enable_stable_row_ids=True)


def system_columns(uri: str, renumbered: Mapping[int, int]) -> dict[Any, tuple[Any, ...]]:
    """Per key its values, row id and versions, the latter as numbers of changes."""
    found = lance.dataset(uri).scanner(columns=["id", "v", "s", *SYSTEM]).to_table().to_pylist()
    return {r["id"]: (r["v"], r["s"], r["_rowid"], renumbered[r[SYSTEM[1]]], renumbered[r[SYSTEM[2]]]) for r in found}


@pytest.mark.parametrize("schema", [STABLE, PAIR], ids=["one column", "two columns"])
@pytest.mark.parametrize("seed", range(4))
def test_ids_and_versions_equal_those_of_lance_merges(tmp_path: Path, schema: pa.Schema, seed: int) -> None:
    """The same changes by `merge_insert` on a twin table: equal rows have equal ids, insert and update versions."""
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    stable(ours, schema)
    stable(theirs, schema)
    table = mw.enable(ours, writer_defaults=SETTINGS)
    draw = random.Random(seed)
    changes = {ours: {1: 0}, theirs: {1: 0}}
    for step in range(1, 6):
        upserts = stable_rows(sorted(draw.sample(range(90), draw.randint(1, 30))), step, schema)
        gone = [] if step == 1 else sorted(set(draw.sample(range(90), 5)) - set(upserts["id"].to_pylist()))
        with table.writer(compaction=None) as writer:
            writer.put(upserts)
            writer.delete(stable_rows(gone, 0, schema) if gone else [])
        table.compact()
        assert newest_base(table).takes_hand_commit
        changes[ours][newest_base(table).version] = step
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
    schema = STABLE if keyed else pa.schema([pa.field("id", pa.int64()), *COLUMNS])
    stable(uri, schema)
    table = mw.enable(uri, writer_defaults=SETTINGS)
    with table.writer(compaction=None) as writer:
        writer.put(stable_rows(range(40, 60), 1, schema))
    before = newest_base(table).version
    report = table.compact()
    assert (report.commits, newest_base(table).version) == (1, before + 1)
    dataset = lance.dataset(uri)
    assert dataset.count_rows() == (60 if keyed else 70)
    lance.write_dataset(stable_rows(range(100, 110), 2, schema), uri, mode="append")
    lance.dataset(uri).update({"v": "7"}, where="id >= 55")
    lance.dataset(uri).optimize.compact_files()
    lance.dataset(uri).validate()
    ids = lance.dataset(uri).scanner(columns=["_rowid"]).to_table()["_rowid"].to_pylist()
    assert len(set(ids)) == len(ids) == (70 if keyed else 80)
    with table.writer(compaction=None) as writer:
        writer.put(stable_rows(range(105, 115), 3, schema))
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
        writer.put(stable_rows(range(30, 80), 1))
    base = BaseTable.need(resolve(uri))
    lance.write_dataset(stable_rows(range(200, 210), 2), uri, mode="append")
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
        writer.put(stable_rows(chosen, 1))
    table.compact()
    found = lance.dataset(uri).scanner(columns=["id", "_rowid"]).to_table().to_pydict()
    assert found["id"] == found["_rowid"]
    fragments = [
        wire.Message(field.as_bytes()) for field in newest_base(table).manifest.message if field.number == FRAGMENTS
    ]
    segments = [wire.Message(segment) for segment in wire.Message(fragments[-1].data(5)).all(1)]
    assert [segment.has(5) for segment in segments] == ([True] if count > 64 else [False] * count)
