"""Blob columns can be read from the base table of a table that pylance initialised: their bytes, or a clear error."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance.blob import blob_array, blob_field

import lance_memwal as mw

ID = pa.field("id", pa.int64(), False, metadata={"lance-schema:unenforced-primary-key": "true"})
FIRST = pa.field("image", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
IMAGES = [b"x" * 5000, None, b""]


def opened(place: Path, column: pa.Field, images: pa.Array, version: str, index: str | None = None) -> mw.Table:
    uri, schema = str(place / "t"), pa.schema([ID, column, ("n", pa.string())])
    rows = pa.table([pa.array([1, 2, 3]), images, pa.array(["a", "b", "c"])], schema=schema)
    lance.write_dataset(rows, uri, data_storage_version=version)
    if index is not None:
        lance.dataset(uri).create_scalar_index("id", index)
    lance.dataset(uri).initialize_mem_wal(unsharded=True)
    return mw.open_table(uri)


@pytest.mark.parametrize("index", [None, "BTREE"])
@pytest.mark.parametrize("version", ["2.0", "2.1"])
def test_a_lookup_gives_the_bytes_of_a_blob_as_a_scan_does(tmp_path: Path, version: str, index: str | None) -> None:
    table = opened(tmp_path, FIRST, pa.array(IMAGES, pa.large_binary()), version, index)
    shown = table.scan().to_table().sort_by("id").to_pylist()
    assert shown[0]["image"] == IMAGES[0]
    assert [table.get(number) for number in (1, 2, 3)] == shown
    assert table.lookup([3, 1]).sort_by("id").to_pylist() == [shown[0], shown[2]]
    assert table.get(2, columns=["n"]) == {"n": "b"}
    assert table.get(9) is None


def test_a_blob_of_the_newer_layout_is_named_and_the_other_columns_can_be_read(tmp_path: Path) -> None:
    table = opened(tmp_path, blob_field("image"), blob_array(IMAGES), "2.2")
    for read in (lambda: table.get(1), lambda: table.lookup([1]), lambda: table.scan().to_table()):
        with pytest.raises(mw.UnsupportedFormatError, match=r"'image' \(lance\.blob\.v2\).*columns="):
            read()
    assert table.get(1, columns=["id", "n"]) == {"id": 1, "n": "a"}
    assert table.scan(columns=["n"]).to_table().num_rows == table.count_rows() == 3


def test_a_search_gives_the_bytes_of_a_blob_too(tmp_path: Path) -> None:
    uri, vectors = str(tmp_path / "t"), pa.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]], pa.list_(pa.float32(), 2))
    schema = pa.schema([ID, FIRST, ("n", pa.string()), ("vec", vectors.type)])
    images = pa.array(IMAGES, pa.large_binary())
    rows = pa.table([pa.array([1, 2, 3]), images, pa.array(["a b", "b", "c b"]), vectors], schema=schema)
    lance.write_dataset(rows, uri, data_storage_version="2.0")
    lance.dataset(uri).initialize_mem_wal(unsharded=True)
    table = mw.open_table(uri)
    near = table.search(vector=[3.0, 0.0]).to_pylist()
    assert [(row["id"], row["image"]) for row in near] == [(3, IMAGES[2]), (2, IMAGES[1]), (1, IMAGES[0])]
    told = table.search(text="b", column="n").to_pylist()
    assert {row["id"]: row["image"] for row in told} == dict(enumerate(IMAGES, 1))
    both = table.search(vector=[3.0, 0.0], text="c", column="n", k=1).to_pylist()
    assert both[0]["image"] == IMAGES[both[0]["id"] - 1]


def test_a_search_names_a_blob_of_the_newer_layout(tmp_path: Path) -> None:
    table = opened(tmp_path, blob_field("image"), blob_array(IMAGES), "2.2")
    with pytest.raises(mw.UnsupportedFormatError, match=r"'image' \(lance\.blob\.v2\).*columns="):
        table.search(text="c", column="n")
    assert table.search(text="c", column="n", columns=["id"]).column("id").to_pylist() == [3]
