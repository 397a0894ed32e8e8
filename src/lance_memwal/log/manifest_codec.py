"""Shard manifest bytes: one protobuf message per version, byte for byte as the public layout has it.

Owns `ShardManifest` ⇄ bytes. Layout (proto3, ascending field numbers, zero scalars omitted):

    1 version u64 · 2 writer_epoch u64 · 3 replay_after_wal_entry_position u64 · 4 wal_entry_position_last_seen u64
    6 current_generation u64 · 8 sstables {1 generation, 2 path, 3..5 optional in_memory_bytes, physical_rows,
    primary_key_bytes} · 10 shard_spec_id u32 · 11 shard_id {1: 16 bytes} · 14 {1 field id, 2 value} · 15 status

Invariants:

1. `decode_manifest(encode_manifest(m)) == m`, and equal manifests have equal bytes.
2. A manifest that leaves `decode_manifest` is whole: shard id present, version and generations at least 1, every
   SSTable path well-formed and of the generation listed, no generation twice. Everything else is `CorruptDataError`.
3. Fields that we do not know, nested ones too, stay with the value and are written back as they were. An unknown status
   is such a field; it reads as ACTIVE, as the peer does. `unknown_fields` names them all.
4. Cross-version rules (what may follow what) are not checked here but in `lance_memwal.log.invariants`.
"""

from __future__ import annotations

import sys
import uuid
from typing import Any

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from google.protobuf.unknown_fields import UnknownFieldSet  # type: ignore[import-untyped]

from lance_memwal.errors import CorruptDataError, InvalidInputError
from lance_memwal.lance.proto import mem_wal_pb2
from lance_memwal.lance.proto.bounded import parse_message
from lance_memwal.store import paths
from lance_memwal.types import ShardManifest, ShardStatus, SsTable, check_shard_id, shard_id_of

MAX_MANIFEST_BYTES = 64 * 1024 * 1024


def encode_hint(version: int) -> bytes:
    """The bytes of the hint file that names a version."""
    return b'{"version":%d}' % version


def encode_manifest(manifest: ShardManifest) -> bytes:
    """The bytes of `manifest`; `InvalidInputError` if no reader could take them."""
    _check(manifest)
    try:
        data: bytes = _to_message(manifest).SerializeToString(deterministic=True)
    except (ValueError, TypeError, DecodeError) as error:
        raise InvalidInputError(f"manifest value out of range: {error}") from None
    if len(data) > MAX_MANIFEST_BYTES:
        raise InvalidInputError(f"manifest is too large: {len(data)} bytes, at most {MAX_MANIFEST_BYTES}")
    return data


def decode_manifest(
    data: bytes,
    *,
    path: str | None = None,
    expected_version: int | None = None,
    expected_shard_id: str | None = None,
) -> ShardManifest:
    """The manifest in `data`, fully validated, or `CorruptDataError` naming `path`.

    `expected_version` is the number in the file name and `expected_shard_id` the shard's directory, where known.
    """
    message = parse_message(
        mem_wal_pb2.ShardManifest, data, what="shard manifest", max_bytes=MAX_MANIFEST_BYTES, path=path
    )
    manifest = ShardManifest(
        version=message.version,
        shard_id=shard_id_of(message.shard_id.value, "shard manifest", path),
        shard_spec_id=message.shard_spec_id,
        shard_field_entries=tuple((entry.field_id, entry.value) for entry in message.shard_field_entries),
        writer_epoch=message.writer_epoch,
        replay_after_wal_entry_position=message.replay_after_wal_entry_position,
        wal_entry_position_last_seen=message.wal_entry_position_last_seen,
        current_generation=message.current_generation,
        sstables=tuple(_sstable(entry) for entry in message.sstables),
        status=ShardStatus.SEALED if message.status == ShardStatus.SEALED else ShardStatus.ACTIVE,
        unknown=_unknown_of_manifest(message),
        shard_field_unknown=_unknown_of_entries(message),
    )
    try:
        _check(manifest)
    except InvalidInputError as error:
        raise CorruptDataError(str(error), path=path) from None
    if expected_version is not None and manifest.version != expected_version:
        text = f"manifest version {manifest.version} does not match its file name, {expected_version}"
        raise CorruptDataError(text, path=path)
    if expected_shard_id is not None and manifest.shard_id != expected_shard_id:
        text = f"manifest of shard {manifest.shard_id} lies in the directory of {expected_shard_id}"
        raise CorruptDataError(text, path=path)
    return manifest


def unknown_fields(manifest: ShardManifest) -> tuple[str, ...]:
    """What a newer version put into `manifest`, in words; empty if we understand all of it."""
    found = _names("field", mem_wal_pb2.ShardManifest, manifest.unknown)
    for sstable in manifest.sstables:
        found += _names(f"field of generation {sstable.generation}", mem_wal_pb2.SsTable, sstable.unknown)
    for unknown in manifest.shard_field_unknown:
        found += _names("field of a shard field entry", mem_wal_pb2.ShardFieldEntry, unknown)
    return tuple(dict.fromkeys(found))


def _names(what: str, kind: Any, unknown: bytes) -> list[str]:
    if not unknown:
        return []
    message = kind.FromString(unknown)
    names = [f"{what} {field.number}" for field, _ in message.ListFields()]  # a known field with a value that is not
    return names + [f"{what} {field.field_number}" for field in UnknownFieldSet(message)]


def _unknown_of_manifest(message: mem_wal_pb2.ShardManifest) -> bytes:
    """The fields that we do not know, as a message of their own; with them a status and parts of the id, if unknown."""
    rest = mem_wal_pb2.ShardManifest.FromString(_unknown(message))
    if message.status not in (ShardStatus.ACTIVE, ShardStatus.SEALED):
        rest.status = message.status
    of_id = _unknown(message.shard_id)
    if of_id:
        rest.shard_id.MergeFromString(of_id)  # two occurrences of a message are merged by whoever parses them
    return bytes(rest.SerializeToString(deterministic=True))


def _unknown_of_entries(message: mem_wal_pb2.ShardManifest) -> tuple[bytes, ...]:
    found = tuple(_unknown(entry) for entry in message.shard_field_entries)
    return found if any(found) else ()


def _unknown(message: Any) -> bytes:
    """The bytes of the fields of `message` that its type does not have."""
    if not len(UnknownFieldSet(message)):
        return b""
    rest = type(message)()
    rest.CopyFrom(message)
    for field in rest.DESCRIPTOR.fields:
        rest.ClearField(field.name)
    return bytes(rest.SerializeToString(deterministic=True))


def _sstable(entry: mem_wal_pb2.SsTable) -> SsTable:
    return SsTable(
        generation=entry.generation,
        path=sys.intern(entry.path),  # readers compare long lists of them, version by version
        in_memory_bytes=entry.in_memory_bytes if entry.HasField("in_memory_bytes") else None,
        physical_rows=entry.physical_rows if entry.HasField("physical_rows") else None,
        primary_key_bytes=entry.primary_key_bytes if entry.HasField("primary_key_bytes") else None,
        unknown=_unknown(entry),
    )


def _check(manifest: ShardManifest) -> None:
    """Raise `InvalidInputError` unless `manifest` is whole by itself (invariant 2)."""
    check_shard_id(manifest.shard_id)
    if manifest.version < 1:
        raise InvalidInputError("manifest version must be at least 1")
    if manifest.current_generation < 1:
        raise InvalidInputError("current_generation must be at least 1")
    generations = set()
    for sstable in manifest.sstables:
        if sstable.generation < 1 or paths.parse_sstable_name(sstable.path) != sstable.generation:
            text = f"SSTable path {sstable.path[:80]!r} does not fit generation {sstable.generation}"
            raise InvalidInputError(text)
        generations.add(sstable.generation)
    if len(generations) != len(manifest.sstables):
        raise InvalidInputError("manifest lists a generation twice")


def _to_message(manifest: ShardManifest) -> mem_wal_pb2.ShardManifest:
    message = _known_fields(manifest)
    message.MergeFromString(manifest.unknown)
    for entry, sstable in zip(message.sstables, manifest.sstables, strict=True):
        if sstable.unknown:
            entry.MergeFromString(sstable.unknown)
    for entry, unknown in zip(message.shard_field_entries, manifest.shard_field_unknown, strict=False):
        entry.MergeFromString(unknown)
    return message


def _known_fields(manifest: ShardManifest) -> mem_wal_pb2.ShardManifest:
    return mem_wal_pb2.ShardManifest(
        version=manifest.version,
        writer_epoch=manifest.writer_epoch,
        replay_after_wal_entry_position=manifest.replay_after_wal_entry_position,
        wal_entry_position_last_seen=manifest.wal_entry_position_last_seen,
        current_generation=manifest.current_generation,
        sstables=[
            mem_wal_pb2.SsTable(
                generation=sstable.generation,
                path=sstable.path,
                in_memory_bytes=sstable.in_memory_bytes,
                physical_rows=sstable.physical_rows,
                primary_key_bytes=sstable.primary_key_bytes,
            )
            for sstable in manifest.sstables
        ],
        shard_spec_id=manifest.shard_spec_id,
        shard_id=mem_wal_pb2.Uuid(value=uuid.UUID(manifest.shard_id).bytes),
        shard_field_entries=[
            mem_wal_pb2.ShardFieldEntry(field_id=field_id, value=value)
            for field_id, value in manifest.shard_field_entries
        ],
        status=int(manifest.status),
    )
