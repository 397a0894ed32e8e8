"""Lance manifests and deletion vectors are read and written as the reference does it; hostile bytes are refused."""

from __future__ import annotations

import random
import struct
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from lance_memwal.errors import CorruptDataError, UnsupportedFormatError
from lance_memwal.lance import wire
from lance_memwal.lance.deletions import decode_deletions, encode_deletions
from lance_memwal.lance.manifest import (
    BITMAP,
    DeletionFile,
    LanceManifest,
    deletion_path,
    generation_manifest,
    join_manifest_file,
    old_version_path,
    parse_lance_manifest,
    parse_version_name,
    version_path,
)

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata={"lance-schema:unenforced-primary-key": "true"}),
        pa.field(
            "s", pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.list_(pa.string()))]), metadata={"n": "é"}
        ),
        pa.field("v", pa.list_(pa.float32(), 2)),
    ]
)
ROWS = [{"id": i, "s": {"x": i, "y": [str(i)]}, "v": [1.0, 2.0]} for i in range(10)]


def write(root: Path, **options: Any) -> Path:
    lance.write_dataset(pa.Table.from_pylist(ROWS, schema=SCHEMA), root / "table", **options)
    return root / "table"


def newest(table: Path) -> bytes:
    return (table / version_path(lance.dataset(str(table)).version)).read_bytes()


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A manifest with nested fields, a deletion file, indexes, configuration and MemWAL details."""
    table = write(tmp_path_factory.mktemp("rich"))
    dataset = lance.dataset(str(table))
    dataset.create_scalar_index("id", "BTREE", name="by_id")
    dataset.delete("id = 3")
    dataset.update_config({"note": "kept"})
    dataset.initialize_mem_wal()
    return newest(table)


def test_paths_of_versions_and_deletion_files() -> None:
    assert version_path(1) == "_versions/18446744073709551614.manifest"
    assert old_version_path(7) == "_versions/7.manifest"
    for path in (version_path(7), old_version_path(7)):
        assert parse_version_name(path.removeprefix("_versions/")) == 7
    assert parse_version_name("latest.manifest") is parse_version_name("7.json") is None
    assert deletion_path(0, DeletionFile(BITMAP, 1, 5, 2)) == "_deletions/0-1-5.bin"
    assert deletion_path(3, DeletionFile(0, 4, 5, 2)) == "_deletions/3-4-5.arrow"


def test_a_rich_manifest_is_read(rich: bytes) -> None:
    manifest = parse_lance_manifest(rich)
    assert manifest.version == 5
    assert [(f.name, f.id, f.parent_id, f.logical_type, f.nullable) for f in manifest.fields] == [
        ("id", 0, -1, "int64", False),
        ("s", 1, -1, "struct", True),
        ("x", 2, 1, "int32", True),
        ("y", 3, 1, "list", True),
        ("item", 4, 3, "string", True),
        ("v", 5, -1, "fixed_size_list:float:2", True),
    ]
    assert [f.is_primary_key for f in manifest.fields] == [True, False, False, False, False, False]
    assert manifest.fields[1].metadata == {"n": "é".encode()}
    assert (manifest.reader_flags, manifest.writer_flags) == (1, 9)
    assert not manifest.has_stable_row_ids
    assert manifest.max_fragment_id == 0
    assert manifest.data_storage_version.startswith("2.")
    assert [(e.name, e.field_ids, e.details_type) for e in manifest.index_entries] == [
        ("by_id", (0,), "/lance.table.BTreeIndexDetails"),
        ("__lance_mem_wal", (), "/lance.table.MemWalIndexDetails"),
    ]
    entry = manifest.index("__lance_mem_wal")
    assert entry is not None
    assert entry.details == b"\x60\x01"
    assert entry.dataset_version == 4
    assert manifest.index("nothing") is None
    (fragment,) = manifest.fragments()
    assert (fragment.id, fragment.physical_rows) == (0, 10)
    assert fragment.deletion is not None
    assert (fragment.deletion.read_version, fragment.deletion.num_deleted_rows) == (2, 1)
    assert fragment.files[0].path.endswith(".lance")
    assert manifest.transaction_file is not None
    assert manifest.transaction is not None
    assert wire.Message(manifest.transaction).number(1) == 4


def test_the_transaction_section_is_the_transaction_file(tmp_path: Path) -> None:
    table = write(tmp_path)
    manifest = parse_lance_manifest(newest(table))
    assert manifest.transaction_file is not None
    assert (table / "_transactions" / manifest.transaction_file).read_bytes() == manifest.transaction


def test_stable_row_ids_are_seen(tmp_path: Path) -> None:
    assert parse_lance_manifest(newest(write(tmp_path, enable_stable_row_ids=True))).has_stable_row_ids


def test_a_manifest_without_sections_has_no_indexes_and_no_transaction() -> None:
    manifest = parse_lance_manifest(join_manifest_file([]))
    assert manifest.index_entries == ()
    assert manifest.transaction is None
    assert manifest.transaction_file is None
    assert manifest.max_fragment_id is None


# ---------------------------------------------------------------------------------------------------- generations

IDS = {0: 4, 1: 0, 2: 9, 3: 11, 4: 200, 5: 1}


def remade(old: LanceManifest, **changes: Any) -> bytes:
    """A generation's manifest from the fields and the fragment of another dataset's."""
    options: dict[str, Any] = {
        "field_ids": {},
        "schema_metadata": {},
        "storage_version": old.data_storage_version,
        "lance_version": lance.__version__,
        "now_ms": 1_700_000_000_123,
    }
    deletion = changes.pop("deletion", None)
    (fragment,) = old.fragments()
    fields = [f.as_bytes() for f in old.message if f.number == 1]
    return generation_manifest(fields, replace(fragment, deletion=deletion), **{**options, **changes})


def test_a_generation_of_unchanged_ids_is_the_manifest_that_lance_wrote(tmp_path: Path) -> None:
    old = parse_lance_manifest(newest(write(tmp_path)))
    new = parse_lance_manifest(remade(old))
    assert [f for f in new.message if f.number != 7] == [f for f in old.message if f.number not in {7, 12, 23}]


def test_a_generation_has_the_chosen_ids_and_deletions(tmp_path: Path) -> None:
    old = parse_lance_manifest(newest(write(tmp_path, data_storage_version="2.1")))
    deletion = DeletionFile(BITMAP, 1, (1 << 64) - 1, 3)
    new = parse_lance_manifest(remade(old, field_ids=IDS, deletion=deletion))
    assert [f.id for f in new.fields] == [4, 0, 9, 11, 200, 1]
    assert [f.parent_id for f in new.fields] == [-1, -1, 0, 0, 11, -1]
    assert names(new) == names(old)
    (was,), (now,) = old.fragments(), new.fragments()
    assert now.deletion == deletion
    assert now.files[0].field_ids == tuple(IDS[i] for i in was.files[0].field_ids)
    assert now.files[0].column_indices == was.files[0].column_indices
    assert (now.files[0].path, now.physical_rows) == (was.files[0].path, was.physical_rows)


def names(manifest: LanceManifest) -> list[Any]:
    return [(f.name, f.logical_type, f.nullable, f.metadata, f.is_primary_key) for f in manifest.fields]


def test_ids_there_and_back_give_the_same_message(tmp_path: Path) -> None:
    old = parse_lance_manifest(newest(write(tmp_path)))
    there = parse_lance_manifest(remade(old, field_ids=IDS))
    assert remade(there, field_ids={new: old for old, new in IDS.items()}) == remade(old) != remade(old, field_ids=IDS)


def test_fields_keep_what_nobody_knows(tmp_path: Path) -> None:
    old = parse_lance_manifest(newest(write(tmp_path)))
    unknown = wire.bytes_field(500, b"future")
    richer = [
        wire.bytes_field(1, f.as_bytes() + wire.join([unknown])) if f.number == 1 else f
        for f in old.message
        if f.number not in {12, 23}
    ]
    new = parse_lance_manifest(remade(parse_lance_manifest(join_manifest_file(richer)), field_ids=IDS))
    assert all(unknown in wire.parse(f.as_bytes()) for f in new.message if f.number == 1)


def test_lance_reads_a_made_manifest_with_its_metadata(tmp_path: Path) -> None:
    table = write(tmp_path)
    path = table / version_path(1)
    old = parse_lance_manifest(path.read_bytes())
    path.write_bytes(remade(old, field_ids={5: 8}, schema_metadata={b"k": b"v", b"a": b""}))
    dataset = lance.dataset(str(table))
    assert [f.id() for f in dataset.lance_schema.fields()] == [0, 1, 8]
    assert dataset.to_table().to_pylist() == ROWS
    assert dataset.schema.metadata == {b"k": b"v", b"a": b""}
    assert dataset.versions()[0]["timestamp"].year == 2023
    dataset.validate()


# ------------------------------------------------------------------------------------------------- hostile bytes


def reframe(message: list[wire.Field]) -> bytes:
    return join_manifest_file(message)


def field(name: str, number: int, parent: int) -> wire.Field:
    parts = [wire.bytes_field(2, name), wire.varint_field(3, number), wire.varint_field(4, parent)]
    return wire.bytes_field(1, wire.join(parts))


@pytest.mark.parametrize(
    "tree",
    [
        [("a", 0, -1), ("b", 0, -1)],
        [("a", 0, 7)],
        [("a", 0, 0)],
        [("a", 0, -1), ("b", 1, -1), ("c", 2, 0)],
        [("a", -5, -1)],
        [("a", 1 << 40, -1)],
    ],
    ids=["same id twice", "no such parent", "own parent", "not in pre-order", "negative", "too large"],
)
def test_a_schema_that_is_no_tree_is_refused(tree: list[tuple[str, int, int]]) -> None:
    with pytest.raises(CorruptDataError):
        parse_lance_manifest(reframe([field(*item) for item in tree]))


def test_wrong_frames_are_refused(rich: bytes) -> None:
    for size in (0, 3, 16, 19):
        with pytest.raises(CorruptDataError):
            parse_lance_manifest(rich[len(rich) - size :])
    with pytest.raises(CorruptDataError, match="LANC"):
        parse_lance_manifest(rich[:-1] + b"X")
    with pytest.raises(UnsupportedFormatError, match=r"1\.2"):
        parse_lance_manifest(rich[:-8] + struct.pack("<HH", 1, 2) + b"LANC")
    for position in (len(rich), len(rich) - 16, (1 << 64) - 1):
        with pytest.raises(CorruptDataError, match="outside"):
            parse_lance_manifest(rich[:-16] + struct.pack("<Q", position) + rich[-8:])


def test_the_error_names_the_file() -> None:
    with pytest.raises(CorruptDataError) as caught:
        parse_lance_manifest(b"", path="_versions/1.manifest")
    assert caught.value.path == "_versions/1.manifest"


@pytest.mark.parametrize("number", [6, 23])
def test_a_section_outside_the_file_is_refused(rich: bytes, number: int) -> None:
    message = [f for f in parse_lance_manifest(rich).message if f.number not in {6, 23}]
    with pytest.raises(CorruptDataError):
        parse_lance_manifest(reframe([*message, wire.varint_field(number, 1 << 40)]))


def test_damage_anywhere_is_refused_or_harmless_but_never_a_crash(rich: bytes) -> None:
    draw = random.Random(11)
    refused = 0
    for _ in range(4_000):
        damaged = bytearray(rich)
        for _ in range(draw.randint(1, 4)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        try:
            manifest = parse_lance_manifest(bytes(damaged))
            manifest.fragments()
        except (CorruptDataError, UnsupportedFormatError):
            refused += 1
    assert refused > 500


@given(st.binary(max_size=200))
def test_random_bytes_in_a_frame_are_refused_or_parsed(data: bytes) -> None:
    framed = struct.pack("<I", len(data)) + data + struct.pack("<QHH", 0, 0, 2) + b"LANC"
    try:
        parse_lance_manifest(framed).fragments()
    except CorruptDataError:
        return


# ----------------------------------------------------------------------------------------------------------- wire


@given(
    st.lists(
        st.builds(wire.varint_field, st.integers(1, 1 << 28), st.integers(0, (1 << 64) - 1))
        | st.builds(wire.bytes_field, st.integers(1, 1 << 28), st.binary(max_size=200))
        | st.builds(wire.Field, st.integers(1, 99), st.just(1), st.binary(min_size=8, max_size=8))
        | st.builds(wire.Field, st.integers(1, 99), st.just(5), st.binary(min_size=4, max_size=4))
    )
)
def test_messages_survive_a_round_trip(fields: list[wire.Field]) -> None:
    assert wire.parse(wire.join(fields)) == fields


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1)))
def test_packed_numbers_survive_a_round_trip(numbers: list[int]) -> None:
    message = wire.Message(wire.join([wire.bytes_field(4, wire.varints_of(numbers))]))
    assert list(message.numbers(4)) == numbers
    loose = wire.Message(wire.join([wire.varint_field(4, number) for number in numbers]))
    assert list(loose.numbers(4)) == numbers


@pytest.mark.parametrize(
    "hexadecimal",
    ["08", "0880", "08ffffffffffffffffffff01", "0a05aa", "0d0000", "090000", "0b", "0c", "0f", "00", "0001", "ff" * 12],
)
def test_a_message_that_is_cut_or_wrong_is_refused(hexadecimal: str) -> None:
    with pytest.raises(CorruptDataError):
        wire.parse(bytes.fromhex(hexadecimal))


def test_a_field_of_the_wrong_kind_is_refused() -> None:
    message = wire.Message(wire.join([wire.varint_field(1, 5), wire.bytes_field(2, b"\xff")]))
    with pytest.raises(CorruptDataError, match="not length-delimited"):
        message.data(1)
    with pytest.raises(CorruptDataError, match="not a number"):
        message.number(2)
    with pytest.raises(CorruptDataError, match="UTF-8"):
        message.text(2)


offsets = st.sets(st.integers(0, (1 << 32) - 1) | st.integers(0, 300), max_size=200)


def test_two_rows_have_the_bytes_that_the_reference_writes() -> None:
    assert encode_deletions(np.array([1, 0])).hex() == "3a30000001000000000001001000000000000100"


@given(offsets)
def test_deleted_rows_survive_a_round_trip_sorted(rows: set[int]) -> None:
    data = encode_deletions(np.array(list(rows), np.int64))
    assert decode_deletions(data, physical_rows=1 << 32).tolist() == sorted(rows)


def test_a_dense_vector_survives_a_round_trip() -> None:
    rows = np.arange(0, 200_000, 2)
    assert decode_deletions(encode_deletions(rows), physical_rows=200_000).tolist() == rows.tolist()


@pytest.mark.parametrize("rows", [[0, 1], list(range(0, 200_000, 3))])
def test_a_cut_vector_is_refused(rows: list[int]) -> None:
    data = encode_deletions(np.array(rows))
    for size in {0, 1, 4, 8, len(data) // 2, len(data) - 1}:
        with pytest.raises(CorruptDataError):
            decode_deletions(data[:size], physical_rows=200_000)


@given(st.binary(max_size=80))
def test_hostile_bytes_are_a_bitmap_or_refused(data: bytes) -> None:
    try:
        rows = decode_deletions(data, physical_rows=1 << 16)
    except CorruptDataError:
        return
    assert (np.diff(rows.astype(np.int64)) > 0).all()
    assert not len(rows) or rows[-1] < 1 << 16


def test_a_few_hostile_bytes_do_not_become_gigabytes() -> None:
    everything = BitMap(range(1 << 16))
    for high in range(1, 12):
        everything.update(range(high << 28, (high << 28) + (1 << 18)))
    everything.run_optimize()
    data = bytes(everything.serialize())
    assert len(data) < 1_000
    assert len(everything) > 2_500_000
    tracemalloc.start()
    try:
        with pytest.raises(CorruptDataError, match="there are 1000"):
            decode_deletions(data, physical_rows=1_000)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1 << 20


def test_a_vector_may_name_the_last_row_and_none_behind_it() -> None:
    data = encode_deletions(np.array([0, 9]))
    assert decode_deletions(data, physical_rows=10).tolist() == [0, 9]
    with pytest.raises(CorruptDataError):
        decode_deletions(data, physical_rows=9)
