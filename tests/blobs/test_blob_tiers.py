"""Blobs of both layouts are the same in every tier, kept by updates that do not name them, and read as files."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.blob import Blob, BlobType, blob_array

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
def test_blobs_are_equal_in_every_tier(tmp_path: Path, version: str, stable: bool, index: str | None) -> None:
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


OLD: dict[int, bytes | None] = {1: b"one" * 100, 2: None, 3: b""}


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_an_update_keeps_the_blob_of_its_row(tmp_path: Path, version: str) -> None:
    table = blob_table(tmp_path, OLD, version)
    images = {**OLD, 4: b"four", 5: b"five"}
    with table.writer(compaction=None, fsync=False) as writer:
        writer.put(blob_rows({4: b"old", 5: b"five"}))
        writer.flush()
        writer.put(blob_rows({4: b"four"}))
        for round_number, step in enumerate(["tiers", "memtable", "SSTable", "base table"]):
            writer.update([{"id": key, "n": f"{step} {key}"} for key in images])
            check_blobs(table, images)
            assert {row["n"] for row in table.scan(["n"]).to_table().to_pylist()} == {f"{step} {k}" for k in images}
            if round_number:
                writer.flush()
            if round_number > 1:
                table.compact()
            check_blobs(table, images)


@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_partial_and_conditional_writes_know_blobs(tmp_path: Path, version: str) -> None:
    table = blob_table(tmp_path, OLD, version)
    with table.writer(compaction=None, fsync=False) as writer:
        writer.put([{"id": 1, "n": "kept"}, {"id": 7, "n": "new"}], missing="keep")
        check_blobs(table, {**OLD, 7: None})
        writer.put([{"id": 7, "image": b"seven"}, {"id": 7, "n": "after"}], missing="keep")  # one after the other
        check_blobs(table, {**OLD, 7: b"seven"})
        assert table.get(7, columns=["n"]) == {"n": "after"}
        writer.update(where="image.size > 4", set={"n": "concat('large ', cast(id as string))"})
        check_blobs(table, {**OLD, 7: b"seven"})
        assert table.get(7, columns=["n"]) == {"n": "large 7"}
        assert table.get(3, columns=["n"]) == {"n": "3"}
        writer.put(blob_rows({1: b"not this"}), if_absent=True)
        writer.put(blob_rows({1: b"but this"}), where="excluded.n <> n")
        check_blobs(table, {**OLD, 1: b"but this", 7: b"seven"})
        writer.delete(where="image is null")
        check_blobs(table, {1: b"but this", 3: b"", 7: b"seven"}, absent=[2])
        with pytest.raises(mw.InvalidInputError, match="no row in the table"):
            writer.update([{"id": 99, "n": "x"}])


def test_many_parts_of_one_write_see_each_other(tmp_path: Path) -> None:
    table = blob_table(tmp_path, OLD)
    with table.writer(compaction=None, fsync=False) as writer:
        rows = [{"id": 1, "image": b"x", "n": "a"}, {"id": 1, "n": "b"}, {"id": 1, "image": b"y"}, {"id": 1, "n": "c"}]
        writer.update(rows)
        assert table.get(1, columns=["n"]) == {"n": "c"}
        check_blobs(table, {**OLD, 1: b"y"})


@pytest.mark.parametrize("version", ["2.1", "2.2"])
@pytest.mark.parametrize("tier", ["memtable", "SSTable", "base table"])
def test_blobs_are_compared_by_their_bytes_or_not_at_all(tmp_path: Path, version: str, tier: str) -> None:
    table = blob_table(tmp_path, {}, version)
    with table.writer(compaction=None, fsync=False) as writer:
        writer.put(blob_rows(OLD))
        if tier != "memtable":
            writer.flush()
        if tier == "base table":
            table.compact()
        one = {"id": 1, "n": "1"}
        assert not writer.compare_and_set(1, {**one, "image": b"two" * 100}, {**one, "image": b"as long"})
        assert not writer.compare_and_set(1, {**one, "image": None}, None)
        assert not writer.compare_and_set(2, {"id": 2, "n": "2", "image": b""}, None), "null is not empty"
        assert writer.compare_and_set(1, {**one, "image": b"one" * 100}, {"n": "b", "image": b"new"})
        check_blobs(table, {**OLD, 1: b"new"})
        assert not writer.compare_and_set(1, one, {"n": "c"}), "the other columns are compared"
        assert writer.compare_and_set(1, {"n": "b"}, {"n": "c"}), "a blob that is left out is not compared, and stays"
        assert table.get(1, columns=["n"]) == {"n": "c"}
        check_blobs(table, {**OLD, 1: b"new"})
        assert writer.compare_and_set(2, {"n": "2", "image": None}, {"n": "d", "image": b"x"})
        assert writer.compare_and_set(9, None, {"n": "9"})
        assert writer.compare_and_set(3, {"n": "3", "image": b""}, None)
        check_blobs(table, {1: b"new", 2: b"x", 9: None}, absent=[3])
        with pytest.raises(mw.InvalidInputError, match="left out: 'n'"):
            writer.compare_and_set(1, {"image": b"new"}, None)


def test_an_update_refuses_references_as_a_put_does(tmp_path: Path) -> None:
    table = blob_table(tmp_path, OLD, "2.2")
    there = pa.record_batch({"id": pa.array([1]), "image": blob_array([Blob.from_uri("file:///etc/hosts")])})
    with table.writer(compaction=None, fsync=False) as writer, pytest.raises(mw.InvalidInputError, match="reference"):
        writer.update(there)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"data": b"bytes", "uri": "file:///etc/hosts"},
        {"data": b"bytes", "uri": ""},
        {"data": b"bytes", "position": 0, "size": 2},
        {"data": b"bytes", "size": 2},
        {"position": 0, "size": 2},
    ],
    ids=str,
)
def test_what_no_file_can_hold_is_refused_before_it_is_acknowledged(tmp_path: Path, given: dict[str, Any]) -> None:
    table = blob_table(tmp_path, OLD, "2.2")
    kind = BlobType()
    value = {field.name: given.get(field.name) for field in kind.storage_type}
    blobs = kind.wrap_array(pa.array([None, value], kind.storage_type))
    rows = pa.record_batch({"id": pa.array([7, 8]), "image": blobs, "n": pa.array(["7", "8"])})
    with table.writer(compaction=None, fsync=False) as writer:
        for write in (writer.put, writer.put_nowait, partial(writer.put, missing="keep"), writer.insert):
            with pytest.raises(mw.InvalidInputError, match="'image'"):
                write(rows)
        with pytest.raises(mw.InvalidInputError, match="'image'"):
            writer.update(rows, insert=True)
        writer.put(rows.slice(0, 1))  # a null is a blob like any other
        writer.flush()
        check_blobs(table, {**OLD, 7: None}, absent=[8])


LARGE = os.urandom(3 << 20)


@pytest.fixture(params=["memtable", "tail", "SSTable", "base table"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """One large blob, in each of the tiers."""
    table = blob_table(tmp_path, {1: b"old"})
    writer = table.writer(compaction=None, fsync=False)
    writer.put(blob_rows({1: LARGE}))
    if request.param == "tail":
        writer.abort()
    if request.param in ("SSTable", "base table"):
        writer.flush()
    if request.param == "base table":
        table.compact()
    found = table.get_blob(1, "image")
    yield found
    found.close()
    writer.abort()


def test_a_range_is_read_wherever_the_blob_is(file: Any) -> None:
    assert [file.readable(), file.seekable(), file.writable()] == [True, True, False]
    assert file.size() == len(LARGE)
    assert file.read(10) == LARGE[:10]
    assert file.tell() == 10
    assert file.seek(5, io.SEEK_CUR) == 15
    assert file.read(1 << 20) == LARGE[15 : 15 + (1 << 20)]
    assert file.seek(-7, io.SEEK_END) == len(LARGE) - 7
    assert file.read() == LARGE[-7:]
    assert file.read() == b""
    assert file.seek(len(LARGE) + 100) == len(LARGE) + 100
    assert file.read(1) == b""
    file.seek(0)
    target = bytearray(4)
    assert file.readinto(target) == 4
    assert bytes(target) == LARGE[:4]
    with pytest.raises(ValueError, match="before its first"):
        file.seek(-1)


def test_a_closed_file_reads_nothing(file: Any) -> None:
    with file as opened:
        assert opened.read(2) == LARGE[:2]
    assert file.closed
    assert "closed" in repr(file)
    for use in (file.read, file.tell, lambda: file.seek(0)):
        with pytest.raises(ValueError, match="closed"):
            use()


def test_a_file_can_be_given_to_others(file: Any) -> None:
    reader = io.BufferedReader(file)
    assert reader.read(100) == LARGE[:100]
    assert reader.peek(1)[:1] == LARGE[100:101]


def test_a_file_of_a_memtable_outlives_the_memtable(tmp_path: Path) -> None:
    table = blob_table(tmp_path, {1: b"old"})
    with table.writer(compaction=None, fsync=False) as writer:
        writer.put(blob_rows({1: LARGE}))
        found = writer.get_blob(1, "image")
    assert found is not None
    assert found.read() == LARGE


def test_a_file_whose_row_was_collected_says_so(tmp_path: Path) -> None:
    table = blob_table(tmp_path, {1: b"old"})
    with table.writer(compaction=None, fsync=False) as writer:
        writer.put(blob_rows({1: LARGE}))
    found = table.get_blob(1, "image")
    table.compact()
    table.gc(grace_seconds=0)
    with pytest.raises(mw.CollectedError, match="again"):
        found.read()
    assert table.get_blob(1, "image").read() == LARGE


def test_a_file_of_a_base_version_that_was_cleaned_up_says_so(tmp_path: Path) -> None:
    from datetime import timedelta

    table = blob_table(tmp_path, {1: LARGE, 2: b"x"})
    found = table.get_blob(1, "image")
    table.dataset.delete("id = 1")
    dataset = lance.dataset(table.uri)
    dataset.optimize.compact_files()
    lance.dataset(table.uri).cleanup_old_versions(timedelta(0))
    with pytest.raises(mw.CollectedError, match="again"):
        found.read()
    assert table.get_blob(1, "image") is None


def test_only_blob_columns_have_files(tmp_path: Path) -> None:
    table = blob_table(tmp_path, {1: b"old"})
    with pytest.raises(mw.InvalidInputError, match=r"'n' is not a blob column.*image"):
        table.get_blob(1, "n")
    with pytest.raises(mw.InvalidInputError, match="'id'"):
        table.get_blob(None, "image")


def test_a_composite_key_finds_its_blob(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("a", pa.string(), False), pa.field("b", pa.int32(), False), IMAGE])
    table = mw.create_table(str(tmp_path / "t"), schema, primary_key=["a", "b"], sharding=mw.Bucket("b", 3))
    with table.writer(compaction=None, fsync=False) as writer:
        writer.put([{"a": "x", "b": i, "image": b"%d" % i} for i in range(9)])
        for _ in range(3):
            assert [table.get_blob(("x", i), "image").read() for i in range(9)] == [b"%d" % i for i in range(9)]
            assert table.get_blob({"a": "y", "b": 1}, "image") is None
            if _:
                table.compact()
            writer.flush()
