"""Blobs of both layouts are the same in every tier, however they are read."""

from __future__ import annotations

import threading
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import crash_points
from tests.kit.blobs import ID, IMAGE, SCHEMA, SHOWN, blob_rows, blob_table, check_blob, check_blobs

FIRST: dict[int, bytes | None] = {1: b"x" * 5000, 2: None, 3: b"", 4: b"four"}
NEWER: dict[int, bytes | None] = {2: b"two" * 100, 4: None, 5: b"", 6: b"six"}
THEN = {**FIRST, **NEWER}
del THEN[1]


@pytest.mark.parametrize("index", [None, "BTREE"])
@pytest.mark.parametrize(
    ("version", "stable"), [("2.0", False), ("2.1", False), ("2.1", True), ("2.2", False), ("2.2", True)]
)
def test_blobs_are_the_same_from_the_memtable_to_the_base_table(
    tmp_path: Path, version: str, stable: bool, index: str | None
) -> None:
    table = blob_table(tmp_path, FIRST, version, enable_stable_row_ids=stable)
    if index is not None:
        lance.dataset(table.uri).create_scalar_index("id", index)
    check_blobs(table, FIRST, absent=[9])
    with table.writer(compaction=None, fsync=False) as writer:
        for key, image in NEWER.items():
            writer.put([{"id": key, "image": image, "n": "new"}])
        writer.delete([1])
        check_blobs(table, THEN, absent=[1])
        check_blobs(writer, THEN, absent=[1])
        writer.flush()
        check_blobs(table, THEN, absent=[1])
        writer.put(blob_rows({7: b"seven"}))  # above an SSTable
        check_blobs(writer, {**THEN, 7: b"seven"}, absent=[1])
    table.compact()
    check_blobs(table, {**THEN, 7: b"seven"}, absent=[1])
    plain = lance.dataset(table.uri)
    found = plain.scanner(["id", "image"], blob_handling="all_binary").to_table().to_pylist()
    assert {row["id"]: row["image"] for row in found} == {**THEN, 7: b"seven"}
    assert table.verify().ok


@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_blobs_of_a_log_that_nobody_owns_are_read_and_replayed(tmp_path: Path, version: str) -> None:
    table = blob_table(tmp_path, FIRST, version)
    writer = table.shard_writer(fsync=False)
    writer.put(blob_rows(NEWER))
    writer.delete([1])
    check_blob(writer, 2, NEWER[2])
    check_blob(writer, 3, FIRST[3])
    writer.abort()
    check_blobs(table, THEN, absent=[1])  # from the tail
    with table.shard_writer(fsync=False) as again:  # replayed
        check_blobs(table, THEN, absent=[1])
        again.force_seal_active()
        again.wait_for_flush_drain()
        check_blobs(table, THEN, absent=[1])


def test_blobs_of_a_frozen_memtable_are_read(tmp_path: Path) -> None:
    table = blob_table(tmp_path, FIRST)
    go_on = threading.Event()
    crash_points.install(lambda point: go_on.wait(10) if point == "flush.before_write" else None)
    try:
        writer = table.shard_writer(fsync=False, max_memtable_rows=4)
        writer.put(blob_rows(NEWER))
        writer.delete([1])
        assert [ref.num_rows for ref in writer.in_memory_memtable_refs().frozen] == [4]
        check_blobs(table, THEN, absent=[1])
    finally:
        go_on.set()
        crash_points.install(None)
    writer.close()
    check_blobs(table, THEN, absent=[1])


def test_a_table_with_blobs_is_made_and_holds_them(tmp_path: Path) -> None:
    made = mw.create_table(str(tmp_path / "empty"), SCHEMA)
    assert made.schema.field("image").equals(IMAGE, check_metadata=True)
    assert made.dataset.data_storage_version == "2.1"  # files from 2.2 on would have another layout
    with pytest.raises(mw.InvalidInputError, match="already"):
        mw.create_table(made.uri, SCHEMA)
    with made.writer(fsync=False) as writer:
        writer.put(blob_rows(FIRST))
    check_blobs(made, FIRST)
    filled = mw.create_table(str(tmp_path / "filled"), blob_rows(FIRST))
    assert filled.dataset.data_storage_version == "2.1"
    check_blobs(filled, FIRST)


def test_an_append_only_table_holds_blobs(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.int64()), IMAGE])
    table = mw.create_table(str(tmp_path / "t"), schema)
    with table.writer(compaction=None, fsync=False) as writer:
        writer.put([{"a": 1, "image": b"one"}, {"a": 1, "image": None}])
        assert sorted(str(row["image"]) for row in table.scan().to_table().to_pylist()) == [
            "None",
            "{'position': None, 'size': 3}",
        ]
    table.compact()
    found = lance.dataset(table.uri).scanner(blob_handling="all_binary").to_table().to_pylist()
    assert found == [{"a": 1, "image": b"one"}, {"a": 1, "image": None}]
    with pytest.raises(mw.InvalidInputError, match="primary key"):
        table.get_blob(1, "image")


def test_fresh_rows_have_no_position_and_base_rows_have_lances(tmp_path: Path) -> None:
    table = blob_table(tmp_path, FIRST)
    with table.writer(compaction=None, fsync=False) as writer:
        writer.put(blob_rows({8: b"12345678"}))
        assert table.get(8, columns=["image"]) == {"image": {"position": None, "size": 8}}
        writer.flush()
        assert table.get(8, columns=["image"]) == {"image": {"position": None, "size": 8}}
    theirs = lance.dataset(table.uri).to_table().to_pylist()
    assert table.scan(filter="id < 8").to_table().sort_by("id").to_pylist() == theirs


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_filters_on_a_blob_column_select_the_same_rows_in_every_tier(tmp_path: Path, version: str) -> None:
    table = blob_table(tmp_path, FIRST, version)

    def keys(given: str) -> list[int]:
        return sorted(table.scan(["id"], filter=given).to_table().column("id").to_pylist())

    def check() -> None:
        assert keys("image is null") == [4]
        assert keys("image is not null and id > 2") == [3, 5, 6]
        assert keys("image.size > 3") == [1, 2]
        assert table.count_rows("image.size = 0") == 2
        with pytest.raises(mw.InvalidInputError):
            keys("image = X'616263'")

    with table.writer(compaction=None, fsync=False) as writer:
        writer.put(blob_rows(NEWER))
        check()
        writer.flush()
        check()
    table.compact()
    check()


def test_rows_that_are_searched_show_their_blobs(tmp_path: Path) -> None:
    vectors = pa.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]], pa.list_(pa.float32(), 2))
    schema = pa.schema([ID, IMAGE, ("n", pa.string()), ("vec", vectors.type)])
    images = pa.array([b"x" * 50, None, b""], pa.large_binary())
    rows = pa.Table.from_arrays([pa.array([1, 2, 3]), images, pa.array(["a b", "b", "c b"]), vectors], schema=schema)
    table = mw.create_table(str(tmp_path / "t"), rows.slice(0, 2))
    with table.writer(compaction=None, fsync=False) as writer:
        writer.put(rows.slice(2))
        for _ in ("memtable", "SSTable"):
            near = table.search(vector=[3.0, 0.0]).to_pylist()
            assert [(row["id"], row["image"]) for row in near] == [
                (3, {"position": None, "size": 0}),
                (2, None),
                (1, {"position": 0, "size": 50}),
            ]
            told = table.search(text="b", column="n").to_pylist()
            assert {row["id"] for row in told} == {1, 2, 3}
            assert table.search(text="b", column="n", filter="image is null", columns=["id"]).num_rows == 1
            assert table.search(vector=[3.0, 0.0], filter="image is null").num_rows == 1
            writer.flush()


@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_rows_are_replaced_and_columns_added_beside_a_blob(tmp_path: Path, version: str) -> None:
    table = blob_table(tmp_path, FIRST, version)
    with table.writer(compaction=None, fsync=False) as writer:
        writer.put(blob_rows({1: b"again", 2: b"once"}))
        table.dataset.add_columns(pa.field("more", pa.int32()))
        check_blobs(table, {**FIRST, 1: b"again", 2: b"once"})  # rows with the old columns, read with the new ones
        writer.evolve_schema()
        writer.put([{"id": 2, "image": b"twice", "n": "2", "more": 1}])
        check_blobs(table, {**FIRST, 1: b"again", 2: b"twice"})
        writer.flush()
        check_blobs(table, {**FIRST, 1: b"again", 2: b"twice"})
    table.compact()
    check_blobs(table, {**FIRST, 1: b"again", 2: b"twice"})
    table.dataset.alter_columns({"path": "image", "name": "photo"})
    with table.writer(compaction=None, fsync=False) as writer:
        writer.put([{"id": 1, "photo": b"photo", "n": "1", "more": 1}])
        assert writer.get_blob(1, "photo").read() == b"photo"
        assert writer.get_blob(2, "photo").read() == b"twice"


@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_a_blob_column_that_is_renamed_is_read_by_its_id(tmp_path: Path, version: str) -> None:
    table = blob_table(tmp_path, FIRST, version)
    with table.writer(compaction=None, fsync=False) as writer:
        writer.put(blob_rows({1: b"in an SSTable"}))
        writer.flush()
        writer.put(blob_rows({2: b"in a memtable"}))
        table.dataset.alter_columns({"path": "image", "name": "photo"})
        assert table.get_blob(1, "photo").read() == b"in an SSTable"
        assert table.get_blob(2, "photo").read() == b"in a memtable"
        assert table.get_blob(4, "photo").read() == b"four"
        with pytest.raises(mw.InvalidInputError, match="'image' is not a blob column"):
            table.get_blob(1, "image")


@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_blobs_that_are_too_large_for_an_entry_are_published_at_once(tmp_path: Path, version: str) -> None:
    table = blob_table(tmp_path, FIRST, version)
    large: dict[int, bytes | None] = {10: b"a" * 300_000, 11: b"b" * 300_000}
    with table.writer(compaction=None, fsync=False, max_entry_bytes=400_000) as writer:
        writer.put(blob_rows({9: b"before"}))
        writer.put(blob_rows(large))
        check_blobs(table, {**FIRST, 9: b"before", **large})
    table.compact()
    check_blobs(table, {**FIRST, 9: b"before", **large})


def test_the_shown_type_is_lances(tmp_path: Path) -> None:
    table = blob_table(tmp_path, FIRST)
    plain = lance.dataset(table.uri).to_table().schema.field("image")
    assert plain.type == SHOWN
    assert table.scan().schema.field("image").equals(plain, check_metadata=True)
    assert table.scan(limit=0).to_table().schema.field("image").type == SHOWN
    assert table.lookup([99]).schema.field("image").type == SHOWN


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_the_size_of_a_blob_is_a_field_that_can_be_asked_for(tmp_path: Path, version: str) -> None:
    table = blob_table(tmp_path, FIRST, version)

    def check() -> None:
        found = table.scan(["id", "image.size"]).to_table().sort_by("id").to_pylist()
        assert found == [
            {"id": k, "image.size": None if v is None else len(v)} for k, v in sorted({**FIRST, **NEWER}.items())
        ]
        largest = table.scan(["id"], filter="id <> 2", order_by=["-image.size"], limit=1).to_table()
        assert largest.column("id").to_pylist() == [1]
        assert table.get(2, columns=["image.size"]) == {"image.size": 300}
        assert table.lookup([1], columns=["image.size"]).to_pylist() == [{"image.size": 5000}]
        with pytest.raises(mw.InvalidInputError, match="'image'"):
            table.scan(order_by=["image"]).to_table()

    with table.writer(compaction=None, fsync=False) as writer:
        writer.put(blob_rows(NEWER))
        check()
        writer.flush()
        check()
    table.compact()
    check()


class StoppedError(Exception):
    """The compaction is not to go on."""


@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_a_compaction_that_fails_leaves_no_file_of_blobs(tmp_path: Path, version: str) -> None:
    table = blob_table(tmp_path, FIRST, version)
    with table.writer(compaction=None, fsync=False) as writer:
        writer.put(blob_rows({8: b"x" * 200_000, 9: b"y" * 5_000_000}))  # in files of their own, in the second layout

    def files() -> list[Path]:
        return sorted(path for path in (Path(table.uri) / "data").rglob("*") if path.is_file())

    def stop(point: str) -> None:
        if point == "compact.after_fragments":
            assert len(files()) > len(before)
            raise StoppedError

    before = files()
    crash_points.install(stop)
    try:
        with pytest.raises(StoppedError):
            table.compact()
    finally:
        crash_points.install(None)
    assert files() == before
    table.compact()
    check_blobs(table, {**FIRST, 8: b"x" * 200_000, 9: b"y" * 5_000_000})
