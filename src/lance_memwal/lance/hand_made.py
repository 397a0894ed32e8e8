"""A version of the base table that Lance's API cannot commit: rows added and deleted, and generations marked, at once;
or other details of the MemWAL index, and nothing else.

Owns building the transaction and manifest bytes of that version from the bytes of the one before. Why that is needed:
`rfcs/0002-hand-made-base-versions.md`, and `rfcs/0010-index-catch-up-and-maintenance.md` for the details. Invariants:

1. The new version holds every fragment, index and setting of the old one, plus the new fragments. An old fragment
   changes in its deletion vector only, or goes because no row of it is left.
2. A generation is marked only above the recorded one, the rule that Lance itself applies.
3. Pure: the caller draws names and times, and creates both objects; whoever loses the race for the manifest's path has
   committed nothing.

`hand_commit_is_safe` must hold for the old version: a table with features that this builder does not know would become
unreadable. New fragments of a table with stable row ids carry theirs.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Any

from lance_memwal.errors import ConflictError, CorruptDataError, UnsupportedFormatError
from lance_memwal.lance import manifest as lm
from lance_memwal.lance import wire
from lance_memwal.lance.details import DETAILS_TYPE_URL, INDEX_NAME, MemWalDetails, decode_details, encode_details
from lance_memwal.lance.row_ids import RowIds
from lance_memwal.lance.transaction import UPDATE, transaction_path

_DELETION_FILES = 1
# Everything else in a manifest is a feature that an append might have to keep up (base paths, branches ...).
_SAFE_FIELDS = frozenset({1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16, 19, 23})
_REPLACED_FIELDS = frozenset(
    {
        lm.FRAGMENTS,
        lm.VERSION,
        lm.INDEX_SECTION,
        lm.TIMESTAMP,
        lm.READER_FLAGS,
        lm.WRITER_FLAGS,
        lm.MAX_FRAGMENT_ID,
        lm.NEXT_ROW_ID,
        lm.TRANSACTION_FILE,
        lm.TRANSACTION_SECTION,
        lm.TRANSACTION_SECTION_OF_13,
    }
)

Deletions = Mapping[int, lm.DeletionFile | None]


@dataclass(frozen=True, slots=True)
class HandMadeVersion:
    """What to create, in this order, each only if absent: the transaction, then the manifest, which is the commit."""

    version: int
    transaction_path: str
    transaction: bytes
    manifest_path: str
    manifest: bytes


def hand_commit_is_safe(manifest: lm.LanceManifest) -> bool:
    """Whether everything in this version is known to stay right in one that is made by hand."""
    flags = manifest.reader_flags | manifest.writer_flags
    fields = {field.number for field in manifest.message}
    if lm.TRANSACTION_SECTION not in fields:
        fields.discard(lm.TRANSACTION_SECTION_OF_13)
    return not flags & ~lm.KNOWN_FLAGS and fields <= _SAFE_FIELDS and manifest.data_storage_version.startswith("2.")


def fragment_of(metadata: Any) -> lm.Fragment:
    """A fragment as Lance describes one that it has written but not committed (`LanceFragment.create`)."""
    files = tuple(
        lm.DataFile(
            path=str(file.path),
            field_ids=tuple(file.fields),
            column_indices=tuple(file.column_indices),
            major_version=int(file.file_major_version),
            minor_version=int(file.file_minor_version),
            size_bytes=int(file.file_size_bytes or 0),
        )
        for file in metadata.files
    )
    return lm.Fragment(id=0, files=files, deletion=None, physical_rows=int(metadata.physical_rows))


def append_commit(
    data: bytes,
    fragments: Sequence[lm.Fragment],
    compacted: Mapping[str, int],
    *,
    transaction_uuid: str,
    index_uuid: str,
    now_ms: int,
    deletions: Deletions = MappingProxyType({}),
    row_ids: RowIds | None = None,
) -> HandMadeVersion:
    """The version after the manifest file `data`, with `fragments` appended and `compacted` generations marked.

    `deletions` gives fragments another deletion vector; with None the fragment goes, since no row of it is left.
    `row_ids` are those of the new rows, in a table that has stable ones.
    `ConflictError` if a generation is not above the recorded one: somebody else was faster.
    """
    old = lm.parse_lance_manifest(data)
    if not hand_commit_is_safe(old):
        raise UnsupportedFormatError("the base table has features that a hand-made commit would not keep")
    first_id = 0 if old.max_fragment_id is None else old.max_fragment_id + 1
    if old.has_stable_row_ids != (row_ids is not None):
        raise AssertionError("rows have stable ids in a table that has them, and in no other")
    fragments = fragments if row_ids is None else _with_row_ids(fragments, row_ids, old.version + 1)
    numbered = [replace(fragment, id=first_id + i) for i, fragment in enumerate(fragments)]
    changed, removed = _changed_fragments(old, deletions)
    return _version(
        old,
        [
            *_old_fragments(old, changed, removed),
            *(wire.bytes_field(lm.FRAGMENTS, lm.encode_fragment(fragment)) for fragment in numbered),
        ],
        _marked(old, compacted),
        _transaction(old.version, transaction_uuid, fragments, compacted, changed, removed),
        last_fragment_id=first_id + len(numbered) - 1,
        next_row_id=old.next_row_id if row_ids is None else row_ids.next_id,
        flags=_DELETION_FILES if changed else 0,
        transaction_uuid=transaction_uuid,
        index_uuid=index_uuid,
        now_ms=now_ms,
    )


def details_commit(
    data: bytes, details: MemWalDetails, *, transaction_uuid: str, index_uuid: str, now_ms: int
) -> HandMadeVersion:
    """The version after the manifest file `data`, with these details of the MemWAL index and nothing else changed.

    It is an update of no row: Lance lets every commit that started before it pass over it, on top of the new details.
    """
    old = lm.parse_lance_manifest(data)
    if not hand_commit_is_safe(old):
        raise UnsupportedFormatError("the base table has features that a hand-made commit would not keep")
    return _version(
        old,
        _fragment_fields(old),
        details,
        _transaction(old.version, transaction_uuid, (), {}, {}, ()),
        last_fragment_id=-1 if old.max_fragment_id is None else old.max_fragment_id,
        next_row_id=old.next_row_id,
        flags=0,
        transaction_uuid=transaction_uuid,
        index_uuid=index_uuid,
        now_ms=now_ms,
    )


def _version(
    old: lm.LanceManifest,
    fragments: Iterable[wire.Field],
    details: MemWalDetails,
    transaction: bytes,
    *,
    last_fragment_id: int,
    next_row_id: int,
    flags: int,
    transaction_uuid: str,
    index_uuid: str,
    now_ms: int,
) -> HandMadeVersion:
    """The version after `old` with these fragments and details; `flags` come to those that it has."""
    version = old.version + 1
    transaction_name = f"{old.version}-{transaction_uuid}.txn"
    indexes = lm.join_section(_index_section(old, details, version, index_uuid, now_ms))
    renewed = [
        *fragments,
        *_flags(lm.READER_FLAGS, old.reader_flags | flags),
        *_flags(lm.WRITER_FLAGS, old.writer_flags | flags),
        wire.varint_field(lm.VERSION, version),
        wire.varint_field(lm.INDEX_SECTION, 0),
        wire.bytes_field(lm.TIMESTAMP, lm.encode_timestamp(now_ms)),
        wire.bytes_field(lm.TRANSACTION_FILE, transaction_name),
        wire.varint_field(lm.TRANSACTION_SECTION, len(indexes)),
    ]
    if next_row_id:
        renewed.append(wire.varint_field(lm.NEXT_ROW_ID, next_row_id))
    if last_fragment_id >= 0:
        renewed.append(wire.varint_field(lm.MAX_FRAGMENT_ID, last_fragment_id))
    kept = [field for field in old.message if field.number not in _REPLACED_FIELDS]
    return HandMadeVersion(
        version=version,
        transaction_path=transaction_path(transaction_name),
        transaction=transaction,
        manifest_path=lm.version_path(version),
        manifest=lm.join_manifest_file(_in_order([*kept, *renewed]), indexes + lm.join_section(transaction)),
    )


def _with_row_ids(fragments: Sequence[lm.Fragment], row_ids: RowIds, version: int) -> list[lm.Fragment]:
    ends = list(accumulate((fragment.physical_rows for fragment in fragments), initial=0))
    if ends[-1] != len(row_ids.ids):
        raise AssertionError("every new row has an id")
    spans = zip(fragments, pairwise(ends), strict=True)
    return [replace(fragment, row_ids=row_ids.fields(start, end, version)) for fragment, (start, end) in spans]


def _changed_fragments(old: lm.LanceManifest, deletions: Deletions) -> tuple[dict[int, bytes], frozenset[int]]:
    """The messages of fragments with another deletion vector, and the ids of those that go."""
    if not deletions:
        return {}, frozenset()
    present = old.fragment_messages()
    gone = sorted(set(deletions) - set(present))
    if gone:
        raise CorruptDataError(f"fragment {gone[0]} is not in version {old.version}")
    changed = {
        number: lm.with_deletion(present[number], deletion)
        for number, deletion in deletions.items()
        if deletion is not None
    }
    return changed, frozenset(set(deletions) - set(changed))


def _old_fragments(
    old: lm.LanceManifest, changed: Mapping[int, bytes], removed: Collection[int]
) -> Iterator[wire.Field]:
    """The fragments of the old version, as they stand in the new one."""
    if not changed and not removed:
        yield from _fragment_fields(old)
        return
    for field in _fragment_fields(old):
        number = wire.Message(field.as_bytes()).number(1)
        if number not in removed:
            yield wire.bytes_field(lm.FRAGMENTS, changed[number]) if number in changed else field


def _fragment_fields(old: lm.LanceManifest) -> list[wire.Field]:
    return [field for field in old.message if field.number == lm.FRAGMENTS]


def _flags(number: int, value: int) -> list[wire.Field]:
    return [wire.varint_field(number, value)] if value else []


def _transaction(
    read_version: int,
    identity: str,
    fragments: Sequence[lm.Fragment],
    compacted: Mapping[str, int],
    changed: Mapping[int, bytes],
    removed: Collection[int],
) -> bytes:
    update = [
        *([wire.bytes_field(1, wire.varints_of(sorted(removed)))] if removed else []),
        *(wire.bytes_field(2, fragment) for _, fragment in sorted(changed.items())),
        *(wire.bytes_field(3, lm.encode_fragment(replace(fragment, id=0))) for fragment in fragments),
        *(wire.bytes_field(5, _encode_mark(shard, generation)) for shard, generation in sorted(compacted.items())),
    ]
    operation = wire.bytes_field(UPDATE, wire.join(update))
    return wire.join([wire.varint_field(1, read_version), wire.bytes_field(2, identity), operation])


def _entry(old: lm.LanceManifest) -> lm.IndexEntry:
    entry = old.index(INDEX_NAME)
    if entry is None:
        raise CorruptDataError("the base table has no MemWAL index to mark generations in")
    return entry


def _marked(old: lm.LanceManifest, compacted: Mapping[str, int]) -> MemWalDetails:
    """The details of the old version with these generations marked."""
    details = decode_details(_entry(old).details)
    for shard, generation in compacted.items():
        if generation <= details.compacted.get(shard, 0):
            raise ConflictError(f"generation {generation} of shard {shard} is compacted already")
    return replace(details, compacted={**details.compacted, **compacted})


def _index_section(old: lm.LanceManifest, details: MemWalDetails, version: int, index_uuid: str, now_ms: int) -> bytes:
    entry, encoded = _entry(old), encode_details(details)
    renewed = _in_order(
        [
            wire.bytes_field(1, wire.join([wire.bytes_field(1, uuid.UUID(index_uuid).bytes)])),
            wire.bytes_field(3, INDEX_NAME),
            wire.varint_field(4, version),
            wire.bytes_field(6, wire.join([wire.bytes_field(1, DETAILS_TYPE_URL), wire.bytes_field(2, encoded)])),
            *(field for field in wire.parse(entry.raw) if field.number not in {1, 3, 4, 6, 8}),
            wire.varint_field(8, now_ms),
        ]
    )
    return wire.join(
        wire.bytes_field(1, wire.join(renewed) if other.name == INDEX_NAME else other.raw)
        for other in old.index_entries
    )


def _in_order(fields: Iterable[wire.Field]) -> list[wire.Field]:
    """By number, as the reference writes; repeated fields keep their order."""
    return sorted(fields, key=lambda field: field.number)


def _encode_mark(shard_id: str, generation: int) -> bytes:
    shard = wire.join([wire.bytes_field(1, uuid.UUID(shard_id).bytes)])
    return wire.join([wire.bytes_field(1, shard), wire.varint_field(2, generation)])
