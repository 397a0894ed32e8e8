"""Tables with a blob column, and what readers must see of them.

In files of version 2.2 Lance makes it one of the second layout.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

import lance_memwal as mw

ID = pa.field("id", pa.int64(), False, metadata={"lance-schema:unenforced-primary-key": "true"})
IMAGE = pa.field("image", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
SCHEMA = pa.schema([ID, IMAGE, ("n", pa.string())])
SHOWN_SECOND = pa.struct(
    [
        pa.field("kind", pa.uint8(), False),
        pa.field("position", pa.uint64(), False),
        pa.field("size", pa.uint64(), False),
        pa.field("blob_id", pa.uint32(), False),
        pa.field("blob_uri", pa.string(), False),
    ]
)
SHOWN = pa.struct([("position", pa.uint64()), ("size", pa.uint64())])


def blob_rows(images: dict[int, bytes | None]) -> pa.Table:
    keys = list(images)
    columns = [pa.array(keys), pa.array(list(images.values()), pa.large_binary()), pa.array(map(str, keys))]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def blob_table(place: Path, first: dict[int, bytes | None], version: Any = "2.1", **options: Any) -> mw.Table:
    uri = str(place / "t")
    lance.write_dataset(blob_rows(first), uri, data_storage_version=version, **options)
    return mw.enable(uri)


def check_blobs(table: Any, images: dict[int, bytes | None], absent: Sequence[int] = ()) -> None:
    """Every way to read must give exactly these blobs, in one type."""
    sizes = {key: None if image is None else len(image) for key, image in images.items()}
    scanned = table.scan().to_table()
    shown = SHOWN if scanned.schema.field("image").type.num_fields == 2 else SHOWN_SECOND
    assert scanned.schema.field("image").type == shown
    assert {row["id"]: _size(row) for row in scanned.to_pylist()} == sizes
    found = table.lookup([*images, *absent])
    assert found.schema.field("image").type == shown
    assert {row["id"]: _size(row) for row in found.to_pylist()} == sizes
    for key, image in images.items():
        assert _size(table.get(key)) == sizes[key]
        check_blob(table, key, image)
    for key in absent:
        assert table.get(key) is None
        assert table.get_blob(key, "image") is None


def check_blob(table: Any, key: int, image: bytes | None) -> None:
    """The blob of one row is these bytes, whole and in ranges."""
    file = table.get_blob(key, "image")
    if image is None:
        assert file is None
        return
    with file:
        assert file.size() == len(image)
        assert file.read() == image
        assert file.seek(len(image) // 2) == file.tell() == len(image) // 2
        assert file.read(3) == image[len(image) // 2 :][:3]
    assert file.closed


def _size(row: Any) -> int | None:
    return None if row["image"] is None else row["image"]["size"]
