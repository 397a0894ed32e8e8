"""A hand-made append with its mark is a version like any other to Lance, or it is not made."""

from __future__ import annotations

import dataclasses
import os
import uuid
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.fragment import LanceFragment
from lance.mem_wal import CompactedSsTable

from lance_memwal.errors import ConflictError, CorruptDataError, UnsupportedFormatError
from lance_memwal.lance import wire
from lance_memwal.lance.details import decode_details
from lance_memwal.lance.hand_made import HandMadeVersion, append_commit, fragment_of, hand_commit_is_safe
from lance_memwal.lance.manifest import (
    ARRAY,
    BITMAP,
    DeletionFile,
    LanceManifest,
    join_manifest_file,
    parse_lance_manifest,
    version_path,
)
from tests.kit.compaction import by_lance_only

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("s", pa.struct([pa.field("x", pa.int32())]))])

SHARD = "7a2f3c64-55a1-4d0e-9c44-0f6b2f9d1c10"
OTHER = "00000000-55a1-4d0e-9c44-0f6b2f9d1c10"


def rows(*ids: int) -> pa.Table:
    return pa.Table.from_pylist([{"id": i, "s": {"x": i}} for i in ids], schema=SCHEMA)


def create(root: Path, **options: Any) -> str:
    uri = str(root / "table")
    lance.write_dataset(rows(1, 2), uri, **options).initialize_mem_wal()
    return uri


def newest(uri: str) -> bytes:
    return Path(uri, version_path(lance.dataset(uri).version)).read_bytes()


def build(
    uri: str,
    table: pa.Table,
    compacted: dict[str, int],
    *,
    data: bytes | None = None,
    delete: dict[int, list[int]] | None = None,
) -> HandMadeVersion:
    """`delete` names rows by fragment and place."""
    dataset = lance.dataset(uri)
    fragment = LanceFragment.create(uri, table, mode="append", data_storage_version=dataset.data_storage_version)
    return append_commit(
        data or newest(uri),
        [fragment_of(fragment)],
        compacted,
        transaction_uuid=str(uuid.uuid4()),
        index_uuid=str(uuid.uuid4()),
        now_ms=1_700_000_000_123,
        deletions={number: deletions(uri, number, places) for number, places in (delete or {}).items()},
    )


def deletions(uri: str, number: int, places: list[int]) -> Any:
    """The vector that Lance writes; None if no row is left."""
    made = lance.dataset(uri).get_fragment(number).delete_rows(places)
    if made is None:
        return None
    file = made.deletion_file
    kind = BITMAP if file.file_type == "bitmap" else ARRAY
    return DeletionFile(kind, file.read_version, file.id, file.num_deleted_rows)


def publish(uri: str, commit: HandMadeVersion) -> None:
    for path, data in ((commit.transaction_path, commit.transaction), (commit.manifest_path, commit.manifest)):
        with open(os.path.join(uri, path), "xb") as file:
            file.write(data)


def compacted_in(uri: str) -> dict[str, int]:
    entry = parse_lance_manifest(newest(uri)).index("__lance_mem_wal")
    assert entry is not None
    return decode_details(entry.details).compacted


def ids_in(uri: str) -> list[int]:
    return sorted(lance.dataset(uri).to_table()["id"].to_pylist())


@pytest.mark.parametrize("storage", ["2.0", "2.1", "2.2"])
def test_rows_and_mark_appear_together(tmp_path: Path, storage: str) -> None:
    uri = create(tmp_path, data_storage_version=storage)
    publish(uri, build(uri, rows(1, 3), {SHARD: 4, OTHER: 1}))
    dataset = lance.dataset(uri)
    assert dataset.version == 3
    assert ids_in(uri) == [1, 1, 2, 3]
    assert compacted_in(uri) == {SHARD: 4, OTHER: 1}
    dataset.validate()
    assert dataset.versions()[-1]["timestamp"].year == 2023
    publish(uri, build(uri, rows(9), {SHARD: 5}))
    assert ids_in(uri) == [1, 1, 2, 3, 9]
    assert compacted_in(uri) == {SHARD: 5, OTHER: 1}
    assert [f.fragment_id for f in lance.dataset(uri).get_fragments()] == [0, 1, 2]


def test_lance_goes_on_from_such_a_version(tmp_path: Path) -> None:
    uri = create(tmp_path)
    publish(uri, build(uri, rows(3), {SHARD: 1}))
    lance.write_dataset(rows(4), uri, mode="append")
    lance.dataset(uri).delete("id = 1")
    lance.dataset(uri).optimize.compact_files()
    assert ids_in(uri) == [2, 3, 4]
    assert compacted_in(uri) == {SHARD: 1}


def test_stale_handles_of_lance_respect_the_mark_and_append_after_it(tmp_path: Path) -> None:
    uri = create(tmp_path)
    stale, late = lance.dataset(uri), lance.dataset(uri)
    publish(uri, build(uri, rows(3), {SHARD: 2}))
    merge = stale.merge_insert("id").when_not_matched_insert_all()
    with pytest.raises(OSError, match="Stale SSTable compaction"):
        merge.mark_sstables_as_compacted([CompactedSsTable(SHARD, 2)]).execute(rows(8))
    assert ids_in(uri) == [1, 2, 3]
    late.insert(rows(4))
    assert ids_in(uri) == [1, 2, 3, 4]
    assert compacted_in(uri) == {SHARD: 2}


def test_indexes_of_the_table_are_kept_and_new_rows_are_found_through_them(tmp_path: Path) -> None:
    uri = create(tmp_path)
    lance.dataset(uri).create_scalar_index("id", "BTREE", name="by_id")
    before = parse_lance_manifest(newest(uri)).index("by_id")
    publish(uri, build(uri, rows(2, 7), {SHARD: 1}))
    assert parse_lance_manifest(newest(uri)).index("by_id") == before
    assert lance.dataset(uri).to_table(filter="id = 7")["id"].to_pylist() == [7]
    assert lance.dataset(uri).to_table(filter="id = 2").num_rows == 2
    lance.dataset(uri).optimize.optimize_indices()
    assert lance.dataset(uri).to_table(filter="id = 7")["id"].to_pylist() == [7]


def test_deletions_and_configuration_are_kept(tmp_path: Path) -> None:
    uri = create(tmp_path)
    lance.dataset(uri).delete("id = 1")
    lance.dataset(uri).update_config({"note": "kept"})
    publish(uri, build(uri, rows(3), {SHARD: 1}))
    assert ids_in(uri) == [2, 3]
    assert lance.dataset(uri).config()["note"] == "kept"


@pytest.mark.parametrize("many", [False, True])
def test_rows_go_and_come_in_one_version(tmp_path: Path, many: bool) -> None:
    uri = str(tmp_path / "table")
    size = 20_000 if many else 4  # many deletions are kept as a bitmap, few as a list
    lance.write_dataset(rows(*range(3 * size)), uri, max_rows_per_file=size).initialize_mem_wal()
    lance.dataset(uri).create_scalar_index("id", "BTREE", name="by_id")
    lance.dataset(uri).delete("id = 0")
    gone = list(range(1, size - 1))
    commit = build(uri, rows(*gone), {SHARD: 1}, delete={0: gone, 1: list(range(size))})
    publish(uri, commit)
    dataset = lance.dataset(uri)
    dataset.validate()
    assert ids_in(uri) == sorted([*gone, size - 1, *range(2 * size, 3 * size)])
    assert [fragment.fragment_id for fragment in dataset.get_fragments()] == [0, 2, 3]
    assert dataset.to_table(filter="id = 2")["id"].to_pylist() == [2]
    assert dataset.to_table(filter=f"id = {size}").num_rows == 0
    assert compacted_in(uri) == {SHARD: 1}
    dataset.optimize.optimize_indices()
    dataset.optimize.compact_files()
    assert lance.dataset(uri).to_table(filter="id < 3")["id"].to_pylist() == [1, 2]


def test_lance_sees_which_fragments_such_a_version_changed(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    lance.write_dataset(rows(1, 2, 3, 4), uri, max_rows_per_file=2).initialize_mem_wal()
    stale = lance.dataset(uri)
    late = lance.dataset(uri)
    publish(uri, build(uri, rows(1), {SHARD: 1}, delete={0: [0]}))
    stale.delete("id = 4")
    assert ids_in(uri) == [1, 2, 3]
    late.update({"s": "NULL"}, where="id = 1")  # the row has moved: Lance looks at the newest version again
    assert [row["s"] for row in lance.dataset(uri).to_table(filter="id = 1").to_pylist()] == [None]
    assert ids_in(uri) == [1, 2, 3]


def test_a_table_without_mem_wal_or_a_deletion_in_an_absent_fragment_is_refused(tmp_path: Path) -> None:
    lance.write_dataset(rows(1), str(tmp_path / "plain"))
    with pytest.raises(CorruptDataError, match="no MemWAL index"):
        build(str(tmp_path / "plain"), rows(4), {SHARD: 1})
    named: dict[str, Any] = {"transaction_uuid": SHARD, "index_uuid": OTHER, "now_ms": 1}
    with pytest.raises(CorruptDataError, match="fragment 7"):
        append_commit(newest(create(tmp_path)), [], {SHARD: 1}, deletions={7: None}, **named)


def test_an_empty_base_table_takes_its_first_fragment(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    lance.write_dataset(SCHEMA.empty_table(), uri).initialize_mem_wal()
    publish(uri, build(uri, rows(5), {SHARD: 1}))
    assert ids_in(uri) == [5]
    lance.dataset(uri).validate()


def test_only_one_of_two_racing_commits_wins(tmp_path: Path) -> None:
    uri = create(tmp_path)
    data = newest(uri)
    first, second = build(uri, rows(3), {SHARD: 1}, data=data), build(uri, rows(3), {SHARD: 1}, data=data)
    publish(uri, first)
    with pytest.raises(FileExistsError):
        publish(uri, second)
    assert ids_in(uri) == [1, 2, 3]


def test_a_generation_that_is_marked_already_is_a_conflict(tmp_path: Path) -> None:
    uri = create(tmp_path)
    publish(uri, build(uri, rows(3), {SHARD: 2}))
    for generation in (1, 2):
        with pytest.raises(ConflictError, match="compacted already"):
            build(uri, rows(4), {SHARD: generation})
    with pytest.raises(ConflictError):
        build(uri, rows(4), {OTHER: 0})


def test_a_table_with_data_in_other_places_is_refused(tmp_path: Path) -> None:
    uri = create(tmp_path, **by_lance_only(str(tmp_path / "table")))
    assert not hand_commit_is_safe(parse_lance_manifest(newest(uri)))
    with pytest.raises(UnsupportedFormatError):
        append_commit(newest(uri), [], {SHARD: 1}, transaction_uuid=SHARD, index_uuid=OTHER, now_ms=1)


def plain(tmp_path: Path) -> LanceManifest:
    return parse_lance_manifest(newest(create(tmp_path)))


def test_a_branch_is_refused(tmp_path: Path) -> None:
    uri = create(tmp_path)
    branch = lance.dataset(uri).create_branch("work")
    data = Path(branch.uri, version_path(branch.version)).read_bytes()
    assert not hand_commit_is_safe(parse_lance_manifest(data))


def test_flags_of_an_append_are_safe_and_unknown_ones_or_old_files_are_not(tmp_path: Path) -> None:
    manifest = plain(tmp_path)
    for flag in (0, 1, 2, 4, 8, 15):
        assert hand_commit_is_safe(dataclasses.replace(manifest, reader_flags=flag)), flag
    for flag in (16, 32, 64, 1 << 40, 17):
        assert not hand_commit_is_safe(dataclasses.replace(manifest, reader_flags=flag)), flag
        assert not hand_commit_is_safe(dataclasses.replace(manifest, writer_flags=flag)), flag
    assert not hand_commit_is_safe(dataclasses.replace(manifest, data_storage_version="0.1"))


@pytest.mark.parametrize("number", [17, 18, 20, 24, 99])
def test_unknown_fields_are_not_safe(tmp_path: Path, number: int) -> None:
    manifest = plain(tmp_path)
    message = [f for f in manifest.message if f.number not in {6, 12, 23}]
    assert hand_commit_is_safe(parse_lance_manifest(join_manifest_file(message)))
    more = parse_lance_manifest(join_manifest_file([*message, wire.varint_field(number, 1)]))
    assert not hand_commit_is_safe(more)
