"""Our generation of some rows and the reference's have the same bytes wherever bytes are not random."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lance.file import LanceFileReader

from lance_memwal.lance import wire
from lance_memwal.lance.deletions import decode_deletions
from lance_memwal.lance.manifest import Fragment, parse_lance_manifest
from tests.kit.flush_peer import Tables, key_field

TEXTS = ["b", "a", "", "b", "\0", "a\0", "日本", "zz" * 40, "a", "~", "abcdefgh", "abcdefg"]
BYTES = [b"b", b"a", b"", b"b", b"\0", b"a\0", b"\xff\xff", b"zz" * 40, b"a", b"\xfe", b"abcdefgh", b"abcdefg"]


def integers(bits: int, signed: bool) -> list[int]:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return [5, high, 0, 5, low, 1, high, 7, 0, 100, high - 1, low + 1]


KEYS: list[tuple[str, list[tuple[pa.DataType, list[Any]]]]] = [
    *((f"int{bits}", [(getattr(pa, f"int{bits}")(), integers(bits, True))]) for bits in (8, 16, 32, 64)),
    *((f"uint{bits}", [(getattr(pa, f"uint{bits}")(), integers(bits, False))]) for bits in (8, 16, 32, 64)),
    ("bool", [(pa.bool_(), [True, False, True] * 4)]),
    ("string", [(pa.string(), TEXTS)]),
    ("large_string", [(pa.large_string(), TEXTS)]),
    ("binary", [(pa.binary(), BYTES)]),
    ("large_binary", [(pa.large_binary(), BYTES)]),
    ("int64+string", [(pa.int64(), [1, 2, 1, 1] * 3), (pa.string(), TEXTS)]),
    ("string+binary+bool", [(pa.string(), TEXTS), (pa.binary(), BYTES), (pa.bool_(), [True, False] * 6)]),
    ("uint8+int16", [(pa.uint8(), [255, 0, 3] * 4), (pa.int16(), [-1, 0, -1, 1] * 3)]),
]


def flush_twice(root: Path, key: list[tuple[pa.DataType, list[Any]]], repeat: int = 1) -> tuple[Path, Path]:
    names = [f"k{i}" for i in range(len(key))]
    fields = [key_field(name, kind) for name, (kind, _) in zip(names, key, strict=True)]
    tables = Tables(root, pa.schema([*fields, pa.field("v", pa.int32(), nullable=False)]))
    keys = [dict(zip(names, row, strict=True)) for row in zip(*(values for _, values in key), strict=True)] * repeat
    live = [{**row, "v": i} for i, row in enumerate(keys)]
    ours = tables.directory(tables.write(tables.rows(live, keys[:2])))
    return ours, tables.peer(live, keys[:2])


@pytest.mark.parametrize("key", [k for _, k in KEYS], ids=[name for name, _ in KEYS])
def test_sidecar_filter_and_deletion_vector_are_the_reference_s(
    tmp_path: Path, key: list[tuple[pa.DataType, list[Any]]]
) -> None:
    ours, theirs = flush_twice(tmp_path, key)
    assert_same_side_files(ours, theirs)


@pytest.mark.parametrize("key", [KEYS[3][1], KEYS[9][1], KEYS[13][1]], ids=["int64", "string", "composite"])
def test_sidecars_of_several_pages_are_the_reference_s(
    tmp_path: Path, key: list[tuple[pa.DataType, list[Any]]]
) -> None:
    ours, theirs = flush_twice(tmp_path, key, repeat=1500)
    assert_same_side_files(ours, theirs)
    assert LanceFileReader(str(ours / "_pk_index/page_lookup.lance")).num_rows() == 3


def assert_same_side_files(ours: Path, theirs: Path) -> None:
    for name in ("bloom_filter.bin", "_pk_index/page_data.lance"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes(), name
    # The reference spells its schema metadata in random order, so that only the content can be the same.
    mine, other = (LanceFileReader(str(d / "_pk_index/page_lookup.lance")) for d in (ours, theirs))
    assert mine.read_all().to_table().equals(other.read_all().to_table())
    assert mine.metadata().schema.equals(other.metadata().schema, check_metadata=True)
    assert mine.metadata().minor_version == other.metadata().minor_version
    assert deleted(ours) == deleted(theirs)


def deleted(generation: Path) -> list[int]:
    (file,) = (generation / "_deletions").iterdir()
    rows: list[int] = decode_deletions(file.read_bytes(), physical_rows=1 << 20).tolist()
    return rows


def manifest_of(generation: Path) -> bytes:
    (file,) = (generation / "_versions").glob("*.manifest")
    return file.read_bytes()


def comparable(generation: Path) -> list[tuple[int, Any]]:
    """The manifest without time, random names, file sizes and transaction, every other field as it stands.

    We name no transaction; neither does the reference where a generation has a deletion vector.
    """
    manifest = parse_lance_manifest(manifest_of(generation))
    out: list[tuple[int, Any]] = []
    for field in manifest.message:
        if field.number == 2:
            (fragment,) = manifest.fragments()
            out.append((2, without_names(fragment)))
            out.append((2, [inner.number for inner in wire.parse(field.as_bytes())]))
        elif field.number not in {7, 12, 23}:
            out.append((field.number, field.value))
    return out


def without_names(fragment: Fragment) -> Any:
    (file,) = fragment.files
    shape = (file.field_ids, file.column_indices, file.major_version, file.minor_version)
    gone = fragment.deletion
    return (
        fragment.id,
        shape,
        fragment.physical_rows,
        gone and (gone.file_type, gone.read_version, gone.num_deleted_rows),
    )


SCHEMA = pa.schema(
    [
        pa.field("gone", pa.int32()),
        key_field("id", pa.int64()),
        pa.field("st", pa.struct([pa.field("x", pa.int32(), nullable=False), pa.field("y", pa.list_(pa.string()))])),
        pa.field("also_gone", pa.int32()),
        pa.field("v", pa.list_(pa.float32(), 2), nullable=False, metadata={"note": "kept"}),
        pa.field("d", pa.dictionary(pa.int8(), pa.string())),
        pa.field("last_gone", pa.int32()),
    ],
    metadata={"table": "note"},
)
ROWS = [
    {"id": 1, "st": {"x": 1, "y": ["q"]}, "v": [1.0, 2.0], "d": "a"},
    {"id": 2, "st": {"x": 2, "y": []}, "v": [3.0, 4.0], "d": "b"},
]


@pytest.mark.parametrize("storage", ["2.0", "2.1", "2.2"])
@pytest.mark.parametrize("drop", [(), ("gone", "also_gone", "last_gone")], ids=["no gaps", "gaps in ids"])
@pytest.mark.parametrize(
    "extra", [[], [{"id": 1, "st": {"x": 3, "y": None}, "v": [5.0, 6.0], "d": None}]], ids=["unique", "duplicate"]
)
def test_the_manifest_is_the_reference_s_but_for_time_and_names(
    tmp_path: Path, storage: str, drop: tuple[str, ...], extra: list[dict[str, Any]]
) -> None:
    tables = Tables(tmp_path, SCHEMA, drop=drop, storage=storage)
    live = [*ROWS, *extra]
    ours = tables.directory(tables.write(tables.rows(live)))
    theirs = tables.peer(live)
    assert comparable(ours) == comparable(theirs)
    assert [path.name for path in (ours / "_versions").glob("*.manifest")] == ["18446744073709551614.manifest"]


def test_a_table_without_a_key_has_the_empty_filter_and_no_sidecar(tmp_path: Path) -> None:
    tables = Tables(tmp_path, pa.schema([pa.field("a", pa.int64()), pa.field("b", pa.string())]))
    live = [{"a": 1, "b": "x"}, {"a": 1, "b": "x"}]
    sstable = tables.write(tables.rows(live))
    ours, theirs = tables.directory(sstable), tables.peer(live)
    assert (ours / "bloom_filter.bin").read_bytes() == (theirs / "bloom_filter.bin").read_bytes()
    assert comparable(ours) == comparable(theirs)
    assert {path.name for path in ours.iterdir()} == {"_versions", "data", "bloom_filter.bin"}
    assert sstable.primary_key_bytes is None
