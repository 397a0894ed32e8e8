"""Datasets with features of newer writers: read through Lance where Lance knows them, else "not understood", never "damaged"."""

from __future__ import annotations

import struct
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.lance import manifest as lm
from lance_memwal.lance import wire
from lance_memwal.lance.text_index import open_segment

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
FLAGS = [128, 256, 512, 1024, 2048, 4096, 8192]


def set_reader_flag(path: Path, flag: int) -> None:
    """Rewrite a manifest of Lance, which ends with the place of its message."""
    data = path.read_bytes()
    manifest = lm.parse_lance_manifest(data)
    others = [field for field in manifest.message if field.number != lm.READER_FLAGS]
    body = wire.join([*others, wire.varint_field(lm.READER_FLAGS, manifest.reader_flags | flag)])
    (start,) = struct.unpack("<Q", data[-16:-8])
    path.write_bytes(data[:start] + struct.pack("<I", len(body)) + body + struct.pack("<Q", start) + data[-8:])


def newest_manifest(dataset: Path) -> Path:
    return min((dataset / "_versions").glob("*.manifest"))  # numbers count down


def lance_reads(dataset: Path) -> bool:
    try:
        return lance.dataset(str(dataset)).count_rows() >= 0
    except (ValueError, OSError):
        return False


def make(uri: Path) -> mw.Table:
    table = mw.create_table(str(uri), SCHEMA, primary_key="id", writer_defaults={"fsync": False})
    with table.shard_writer() as writer:
        writer.put([{"id": i, "text": f"word{i} common"} for i in range(6)])
    table.compact()
    with table.shard_writer() as writer:
        writer.put([{"id": i, "text": "fresh common"} for i in range(4, 9)])
    return table


@pytest.mark.parametrize("flag", FLAGS)
def test_a_generation_is_never_read_behind_the_back_of_lance(tmp_path: Path, flag: int) -> None:
    uri = tmp_path / "t"
    make(uri)
    (generation,) = uri.glob("_mem_wal/*/*_gen_2")
    set_reader_flag(newest_manifest(generation), flag)
    table = mw.open_table(str(uri))
    reads = (lambda: table.scan().to_table(), lambda: table.get(8), table.compact)
    if lance_reads(generation):
        assert table.count_rows() == 9
        assert table.get(8) == {"id": 8, "text": "fresh common"}
        return
    for read in reads:
        with pytest.raises(mw.UnsupportedFormatError, match=f"reader flags {flag}"):
            read()


@pytest.mark.parametrize("flag", FLAGS)
def test_a_base_table_with_features_that_lance_does_not_know_is_not_called_damaged(tmp_path: Path, flag: int) -> None:
    uri = tmp_path / "t"
    make(uri)
    lance.dataset(str(uri)).create_scalar_index("text", "INVERTED")
    expected = sorted(mw.open_table(str(uri)).search(text="common", k=20)["id"].to_pylist())
    set_reader_flag(newest_manifest(uri), flag)
    if not lance_reads(uri):
        with pytest.raises(mw.UnsupportedFormatError, match=f"reader flags {flag}"):
            mw.open_table(str(uri))
        return
    table = mw.open_table(str(uri))
    assert not table.base.takes_hand_commit
    assert table.count_rows() == 9
    assert sorted(table.search(text="common", k=20)["id"].to_pylist()) == expected == list(range(9))


@pytest.mark.parametrize("flag", [0, *FLAGS])
def test_files_of_a_text_index_are_read_only_where_all_features_are_known(tmp_path: Path, flag: int) -> None:
    uri = tmp_path / "t"
    make(uri)
    lance.dataset(str(uri)).create_scalar_index("text", "INVERTED", name="text_index")
    if flag:
        set_reader_flag(newest_manifest(uri), flag)
        if not lance_reads(uri):
            return  # the table cannot be opened at all: see above
    base = mw.open_table(str(uri)).base
    (entry,) = (entry for entry in base.index_entries if entry.name == "text_index")
    if not flag:
        assert open_segment(base, entry).parts
        return
    with pytest.raises(mw.UnsupportedFormatError, match="features that are not known"):
        open_segment(base, entry)
