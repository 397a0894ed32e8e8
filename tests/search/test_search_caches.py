"""What searches and lookups keep between calls belongs to bytes on storage, not to names, numbers or counts."""

import os
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.lance.base import BaseTable
from lance_memwal.process.cache import CACHE
from lance_memwal.read.base_rows import BaseLookup
from lance_memwal.store.location import resolve
from tests.kit.tables import nothing_kept

SETTINGS: dict[str, Any] = {"fsync": False, "stats_log_interval_ms": None}
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("title", pa.string()),
        pa.field("body", pa.string()),
        pa.field("va", pa.list_(pa.float32(), 2)),
        pa.field("vb", pa.list_(pa.float32(), 2)),
    ]
)
TITLES = pa.schema([SCHEMA.field("id"), SCHEMA.field("title")])
ROWS = [
    {"id": i, "title": f"apple t{i}", "body": f"pear b{i}", "va": [float(i), 0.0], "vb": [float(100 - i), 0.0]}
    for i in range(20)
]


@pytest.fixture(params=["base", "SSTable", "SSTable that is not kept"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[mw.Table]:
    rows = pa.Table.from_pylist(ROWS, schema=SCHEMA)
    uri = str(tmp_path / "t")
    given = rows if request.param == "base" else SCHEMA
    made = mw.create_table(uri, given, primary_key="id", sharding=mw.Unsharded())
    if request.param != "base":
        with made.writer(compaction=None, **SETTINGS) as writer:
            writer.put(rows)
    with nothing_kept() if request.param == "SSTable that is not kept" else nullcontext():
        yield made


def words(table: mw.Table, text: str, column: str) -> list[int]:
    return sorted(table.search(text=text, column=column, k=50).column("id").to_pylist())


def searched(table: mw.Table) -> None:
    """Every kind of search of every column, so that whatever is kept is kept."""
    for column in ("title", "body"):
        assert len(words(table, "apple pear", column)) == len(ROWS)
    for column in ("va", "vb"):
        assert table.search(vector=[0.0, 0.0], column=column).num_rows == 10


@pytest.mark.repro("reads-04")
def test_columns_that_exchanged_their_names_are_searched_under_the_new_ones(table: mw.Table) -> None:
    searched(table)
    dataset = lance.dataset(table.uri)
    for old, new in (("title", "x"), ("body", "title"), ("x", "body"), ("va", "y"), ("vb", "va"), ("y", "vb")):
        dataset.alter_columns({"path": old, "name": new})
    assert words(table, "apple", "title") == []
    assert words(table, "b3", "title") == [3]
    assert words(table, "t3", "body") == [3]
    nearest = table.search(vector=[0.0, 0.0], column="va", k=1).to_pylist()[0]
    assert (nearest["id"], nearest["va"], nearest["_distance"]) == (19, [81.0, 0.0], 81.0**2)


@pytest.mark.repro("reads-04")
def test_a_column_that_was_added_under_the_name_of_a_dropped_one_has_no_words(table: mw.Table) -> None:
    searched(table)
    dataset = lance.dataset(table.uri)
    dataset.drop_columns(["title", "va"])
    dataset.add_columns(pa.schema([pa.field("title", pa.string()), pa.field("va", pa.list_(pa.float32(), 2))]))
    assert words(table, "apple", "title") == []
    assert table.search(vector=[0.0, 0.0], column="va").num_rows == 0
    assert words(table, "b3", "body") == [3]


@pytest.mark.repro("reads-04")
def test_a_restored_base_with_another_deleted_row_is_searched_as_it_is(tmp_path: Path) -> None:
    """As many rows are deleted in both histories; only the deletion vectors differ."""
    uri = str(tmp_path / "t")
    rows = pa.Table.from_pylist(ROWS, schema=SCHEMA)
    table = mw.create_table(uri, rows, primary_key="id", sharding=mw.Unsharded())
    before = lance.dataset(uri).version
    lance.dataset(uri).delete("id = 0")
    assert words(table, "t3 t0", "title") == [3]
    lance.dataset(uri, version=before).restore()
    lance.dataset(uri).delete("id = 19")
    for i in (0, 3, 18):
        assert words(table, f"t{i}", "title") == [i]
    assert words(table, "t19", "title") == []


def test_a_table_made_anew_at_the_same_place_is_searched_as_it_is(table: mw.Table) -> None:
    searched(table)
    uri = table.uri
    shutil.rmtree(uri)
    rows = pa.Table.from_pylist([{**row, "title": f"plum p{row['id']}"} for row in reversed(ROWS)], schema=SCHEMA)
    anew = mw.create_table(uri, rows, primary_key="id", sharding=mw.Unsharded())
    assert words(anew, "apple", "title") == []
    assert words(anew, "p3", "title") == [3]
    nearest = anew.search(vector=[3.0, 0.0], column="va", k=1).to_pylist()[0]
    assert (nearest["id"], nearest["title"]) == (3, "plum p3")


@pytest.mark.parametrize("key", [pa.int64(), pa.string()], ids=str)
def test_keys_of_a_recreated_table_with_the_same_version_are_found_again(tmp_path: Path, key: pa.DataType) -> None:
    uri = str(tmp_path / "t")
    schema = pa.schema([pa.field("id", key, nullable=False), pa.field("n", pa.int64())])
    lookup, found = BaseLookup(), []
    for order in (range(40), reversed(range(40))):
        ids = list(order)
        rows = pa.table([pa.array(ids).cast(key), pa.array(ids, pa.int64())], schema=schema)
        shutil.rmtree(uri, ignore_errors=True)
        mw.create_table(uri, rows, primary_key="id", sharding=mw.Unsharded())
        base = BaseTable.open(resolve(uri))
        assert base is not None
        wanted = pa.record_batch([pa.array([3, 5]).cast(key)], names=["id"])
        found.append((base.version, sorted(lookup.find(base, wanted, ["n"]).column("n").to_pylist())))
    assert found == [(found[0][0], [3, 5])] * 2


@pytest.mark.parametrize(("kind", "finds_keys"), [("BTREE", True), ("BITMAP", True), ("INVERTED", False)])
def test_index_of_words_on_the_key_does_not_replace_one_of_keys(tmp_path: Path, kind: str, finds_keys: bool) -> None:
    schema = pa.schema([pa.field("id", pa.string(), nullable=False)])
    rows = pa.table([pa.array([f"k{number}" for number in range(40)])], schema=schema)
    mw.create_table(str(tmp_path / "t"), rows, primary_key="id", sharding=mw.Unsharded())
    lance.dataset(str(tmp_path / "t")).create_scalar_index("id", kind)
    base = BaseTable.need(resolve(str(tmp_path / "t")))
    before = CACHE.size_bytes
    found = BaseLookup().find(base, pa.record_batch([pa.array(["k3"])], names=["id"]), ["id"])
    assert found.column("id").to_pylist() == ["k3"]
    assert (CACHE.size_bytes == before) is finds_keys  # else our own index of keys is built at once


def test_files_of_replaced_indexes_do_not_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CACHE, "limit_bytes", 8 << 20)
    rows = [{"id": i, "title": f"apple t{i} u{i}"} for i in range(6_000)]  # smaller files are not kept open
    dataset = lance.write_dataset(pa.Table.from_pylist(rows, schema=TITLES), str(tmp_path / "t"))
    dataset.create_scalar_index("title", "INVERTED", name="by_title")
    table = mw.enable(str(tmp_path / "t"), primary_key="id", writer_defaults=SETTINGS)
    with table.writer(compaction=None) as writer:
        for turn in range(9):
            writer.put([{"id": turn, "title": f"apple turn{turn}"}])
            assert table.search(text="apple").num_rows == 10  # with fresh rows we read the files, and so does Lance
            writer.flush()
            table.compact()
            table.dataset.optimize.optimize_indices(num_indices_to_merge=10)
            for number in range(8):
                table.dataset.update_config({"turn": str(number)})
    opened = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    mine = [name for name in opened if name.startswith(str(tmp_path))]
    assert len(mine) <= 10, mine
