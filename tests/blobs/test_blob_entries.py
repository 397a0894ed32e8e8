"""Entries with blobs of the second layout: what they say, and what of them is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc
import pytest
from lance.blob import blob_array, blob_field

import lance_memwal as mw
from lance_memwal.log.blob_targets import BlobTarget, with_blobs
from lance_memwal.log.entry import EntryEncoder, decode_entry
from lance_memwal.rows.adapt import RowAdapter
from lance_memwal.rows.schema import TableSchema
from lance_memwal.store import paths
from lance_memwal.store.location import resolve
from lance_memwal.types import TOMBSTONE_FIELD, WalEntry

SHARD = "11111111-2222-4333-8444-555555555555"
SCHEMA = TableSchema.from_arrow(pa.schema([("id", pa.int64()), blob_field("image"), ("tag", pa.json_())]))
TARGET = BlobTarget.of("0a0b0c0d", SHARD, 3, 7, 8000)
MIB = 1 << 20


def encoded(images: list[Any]) -> bytes:
    columns = [pa.array(range(len(images))), blob_array(images), pa.array(['{"a":1}'] * len(images), pa.json_())]
    batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA.nullable)
    flagged = batch.append_column(TOMBSTONE_FIELD, pa.array([False] * len(images)))
    return EntryEncoder(SCHEMA.wal, 7, 3, TARGET.metadata()).encode([flagged])


def loaded(place: Path, data: bytes) -> WalEntry:
    return with_blobs(resolve(str(place)), SHARD, decode_entry(data))


def foreign(image: dict[str, Any], kind: pa.DataType | None = None, **target: str) -> bytes:
    """An entry as another implementation writes it; `kind` is how it holds a blob."""
    named = {key.encode(): value for key, value in target.items()}
    columns = SCHEMA.wal if kind is None else SCHEMA.wal.set(1, SCHEMA.wal.field(1).with_type(kind))
    schema = columns.with_metadata({b"writer_epoch": "7", b"generation": "3", **TARGET.metadata(), **named})
    arrays = [pa.array([1]), pa.array([image], schema.types[1]), pa.nulls(1, schema.types[2]), pa.array([False])]
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return bytes(sink.getvalue().to_pybytes())


def test_an_entry_of_ours_comes_back_whole(tmp_path: Path) -> None:
    entry = loaded(tmp_path, encoded([b"abc", None, b""]))
    (batch,) = entry.batches
    rows, flags = RowAdapter(SCHEMA).adapt(batch)
    assert (rows.schema.types, flags) == (SCHEMA.nullable.types, None)
    assert [value and value["data"] for value in rows.column("image").to_pylist()] == [b"abc", None, b""]
    assert rows.column("tag").to_pylist() == ['{"a":1}'] * 3
    assert entry.footer is not None


def test_the_bytes_of_an_entry_are_not_copied(tmp_path: Path) -> None:
    data = encoded([b"a" * MIB, b"b" * MIB])
    (batch,) = loaded(tmp_path, data).batches
    values = batch.column("image").storage.field(0).buffers()[2]
    start = pa.py_buffer(data).address
    assert start < values.address < start + len(data)


def test_all_our_writers_name_the_same_target_and_others_another() -> None:
    assert BlobTarget.of("0a0b0c0d", SHARD, 3, 9, 100).directory == TARGET.directory
    assert TARGET.directory.endswith("_gen_3")
    assert len(TARGET.data_file) == 24 + 26 + len(".lance")
    others = [BlobTarget.of("0a0b0c0e", SHARD, 3, 7, 8000), BlobTarget.of("0a0b0c0d", SHARD, 4, 7, 8000)]
    assert not {TARGET.data_file} & {other.data_file for other in others}


ELSEWHERE = {"kind": 1, "data": None, "uri": None, "blob_id": 1, "blob_size": 3, "position": 4}


def test_a_kind_that_we_do_not_know_is_not_understood(tmp_path: Path) -> None:
    with pytest.raises(mw.UnsupportedFormatError, match="kind 9"):
        loaded(tmp_path, foreign({**ELSEWHERE, "kind": 9}))


@pytest.mark.parametrize(
    ("fields", "image"),
    [
        ([], {}),
        ([("kind", pa.uint8())], {"kind": 0}),
        ([("kind", pa.uint8()), ("data", pa.list_(pa.int8()))], {"kind": 0, "data": [1]}),
        ([("kind", pa.string()), ("data", pa.large_binary())], {"kind": "x", "data": b""}),
        ([("kind", pa.uint8()), ("data", pa.large_binary())], {"kind": 1, "data": b""}),
        ([("kind", pa.uint8()), ("data", pa.large_binary())], {"kind": 3, "data": b""}),
    ],
)
def test_a_form_of_blobs_that_we_do_not_know_is_not_understood(
    tmp_path: Path, fields: list[tuple[str, pa.DataType]], image: dict[str, Any]
) -> None:
    data = foreign(image, pa.struct(fields))
    with pytest.raises(mw.UnsupportedFormatError, match="form") as refused:
        with_blobs(resolve(str(tmp_path)), SHARD, decode_entry(data, 5))
    assert refused.value.position == 5


def test_a_blob_beside_the_data_file_is_read_by_its_range(tmp_path: Path) -> None:
    path = tmp_path / paths.blob_path(SHARD, TARGET.directory, TARGET.data_file, 1)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"0123456789")
    assert path.name == "1" + "0" * 31 + ".blob"
    (batch,) = loaded(tmp_path, foreign(ELSEWHERE)).batches
    assert batch.column("image").to_pylist()[0]["data"] == b"456"
    with pytest.raises(mw.CorruptDataError, match="lacks the blob"):
        loaded(tmp_path, foreign({**ELSEWHERE, "blob_size": 7}))


@pytest.mark.parametrize(
    "target", [{"mem_wal_target_generation_dir": "../../etc"}, {"mem_wal_target_data_file": "../../../passwd"}]
)
def test_an_entry_whose_target_leads_elsewhere_is_refused(tmp_path: Path, target: dict[str, str]) -> None:
    with pytest.raises(mw.CorruptDataError, match="malformed"):
        loaded(tmp_path, foreign(ELSEWHERE, None, **target))


@pytest.mark.parametrize("cut", [1, 8, 40, 200])
def test_a_cut_entry_is_damaged(cut: int) -> None:
    with pytest.raises(mw.CorruptDataError):
        decode_entry(encoded([b"abc"])[:-cut])
