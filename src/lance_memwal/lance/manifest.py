"""The manifest file of a Lance dataset: reading it, and making one whose field ids we choose.

Owns the file layout `[index section][transaction section][u32 length][Manifest][u64 position of the length word]
[u16 major][u16 minor]"LANC"`, where a section is a u32 length and a message. Messages are handled as wire fields
(`lance_memwal.lance.wire`), so that everything unknown is kept. Invariants:

1. A manifest is used only if its frame, its schema tree and its sections are consistent; anything else is
   `CorruptDataError`, a layout that we do not know is `UnsupportedFormatError`.
2. `generation_manifest` has the layout of the reference's own flush of duplicates: version 1, one fragment, no
   transaction, base field ids.
3. Nothing here does I/O or draws random numbers: names, ids and times come from the caller.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import TypeVar

from lance_memwal.arguments import digits_of
from lance_memwal.errors import CorruptDataError, ObjectNotFoundError, UnsupportedFormatError
from lance_memwal.lance import wire
from lance_memwal.store.paths import check_file_name
from lance_memwal.types import BaseMark

T = TypeVar("T")
ARRAY, BITMAP = 0, 1
BASE_VERSION_KEY = "memwal.base_version"  # in the configuration of a generation: the base version whose columns it has
BASE_FRAGMENTS_KEY = "memwal.base_fragments"  # in the same place: how many fragment ids that version had given
VERSIONS_DIR = "_versions"
_MAGIC = b"LANC"
_MAJOR, _MINOR = 0, 2
_FOOTER = struct.Struct("<QHH4s")
_LENGTH = struct.Struct("<I")
_MAX_VERSION = (1 << 64) - 1
_MOST_ROWS = (1 << 32) - 1  # of a fragment: the address of a row has 32 bits for its offset

# Fields of the Manifest message.
FIELDS, FRAGMENTS, VERSION, SCHEMA_METADATA, INDEX_SECTION, TIMESTAMP = 1, 2, 3, 5, 6, 7
READER_FLAGS, WRITER_FLAGS, MAX_FRAGMENT_ID, TRANSACTION_FILE = 9, 10, 11, 12
NEXT_ROW_ID = 14
WRITER_VERSION, DATA_FORMAT, TABLE_CONFIG, TRANSACTION_SECTION = 13, 15, 16, 23
TRANSACTION_SECTION_OF_13 = 21  # the number of this field in Lance 13, and thus in tables of LanceDB 0.40
_INDEX_FILES = 10  # of the IndexMetadata message
# Deletion files, stable row ids, the flag of old files of format 2, and table configuration.
KNOWN_FLAGS = 1 | 2 | 4 | 8
_STABLE_ROW_IDS = 2


@dataclass(frozen=True, slots=True)
class LanceField:
    """One field of the schema tree; the tree is listed in pre-order. `parent_id` is -1 at the top."""

    name: str
    id: int
    parent_id: int
    logical_type: str
    nullable: bool
    metadata: Mapping[str, bytes]
    is_primary_key: bool
    primary_key_position: int


@dataclass(frozen=True, slots=True)
class DataFile:
    """One data file of a fragment; `field_ids[i]` is stored in column `column_indices[i]`."""

    path: str
    field_ids: tuple[int, ...]
    column_indices: tuple[int, ...]
    major_version: int
    minor_version: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class DeletionFile:
    """The deletion vector of a fragment: its kind (`ARRAY` or `BITMAP`), identity and number of deleted rows."""

    file_type: int
    read_version: int
    id: int
    num_deleted_rows: int


@dataclass(frozen=True, slots=True)
class Fragment:
    """One fragment of a dataset; `row_ids` are those of a new one that carries any (`lance_memwal.lance.row_ids`)."""

    id: int
    files: tuple[DataFile, ...]
    deletion: DeletionFile | None
    physical_rows: int
    row_ids: tuple[wire.Field, ...] = ()


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One entry of the index section. `details_type` is a protobuf type URL; `raw` is the whole message."""

    uuid: str
    name: str
    field_ids: tuple[int, ...]
    dataset_version: int
    details_type: str
    details: bytes
    raw: bytes


@dataclass(frozen=True, slots=True)
class LanceManifest:
    """A parsed manifest; `message` are the fields of the Manifest message as they stand in the file."""

    version: int
    fields: tuple[LanceField, ...]
    reader_flags: int
    writer_flags: int
    max_fragment_id: int | None
    data_storage_version: str
    transaction_file: str | None
    transaction: bytes | None
    index_entries: tuple[IndexEntry, ...]
    next_row_id: int
    message: tuple[wire.Field, ...]

    @property
    def unknown_reader_flags(self) -> int:
        """The features that a reader must know and that we do not: Lance may, but its files are not for us to read then."""
        return self.reader_flags & ~KNOWN_FLAGS

    @property
    def has_stable_row_ids(self) -> bool:
        """Whether rows keep their ids when they move; such fragments carry row-id sequences."""
        return bool((self.reader_flags | self.writer_flags) & _STABLE_ROW_IDS)

    def fragments(self) -> tuple[Fragment, ...]:
        """All fragments, parsed on demand: a large table has many."""
        return tuple(parse_fragment(field.as_bytes()) for field in self.message if field.number == FRAGMENTS)

    def fragment_messages(self) -> dict[int, bytes]:
        """All fragments by id, as they stand in the file: equal bytes are the same files with the same deletions."""
        messages = (field.as_bytes() for field in self.message if field.number == FRAGMENTS)
        return {wire.Message(message).number(1): message for message in messages}

    def schema_metadata(self) -> dict[str, bytes]:
        """The metadata of the schema."""
        entries = (wire.Message(field.as_bytes()) for field in self.message if field.number == SCHEMA_METADATA)
        return {entry.text(1): entry.data(2) for entry in entries}

    def config(self, key: str) -> str | None:
        """The value of a key in the table's configuration, or None."""
        pairs = (wire.Message(field.as_bytes()) for field in self.message if field.number == TABLE_CONFIG)
        return next((pair.text(2) for pair in pairs if pair.text(1) == key), None)

    def index(self, name: str) -> IndexEntry | None:
        """The index entry of that name, or None."""
        return next((entry for entry in self.index_entries if entry.name == name), None)


def version_path(version: int) -> str:
    """Path of a version's manifest inside its dataset (names sort newest first)."""
    return f"{VERSIONS_DIR}/{_MAX_VERSION - version}.manifest"


def parse_version_name(name: str) -> int | None:
    """The version whose manifest has this name, under either way of naming them; None if it is no manifest's."""
    digits = name.removesuffix(".manifest")
    number = None if digits == name else digits_of(digits, most=_MAX_VERSION)
    return _MAX_VERSION - number if number is not None and len(digits) == len(str(_MAX_VERSION)) else number


def old_version_path(version: int) -> str:
    """The same in datasets that were created before names sorted newest first."""
    return f"{VERSIONS_DIR}/{version}.manifest"


def at_version(version: int, ask: Callable[[str], T]) -> T:
    """What `ask` answers about the path of a version's manifest, which has one name or the other."""
    try:
        return ask(version_path(version))
    except ObjectNotFoundError:
        return ask(old_version_path(version))


def removal_order(path: str) -> tuple[bool, str]:
    """Sorts the files of a dataset as they are removed, manifests first: one that is only half gone is no dataset any more."""
    return f"/{VERSIONS_DIR}/" not in path, path


def data_path(name: str) -> str:
    """Path of a data file inside its dataset; `CorruptDataError` if it would lie elsewhere."""
    return f"data/{check_file_name(name, 'data file')}"


def deletion_path(fragment_id: int, deletion: DeletionFile) -> str:
    """Path of a fragment's deletion vector inside its dataset."""
    suffix = "bin" if deletion.file_type == BITMAP else "arrow"
    return f"_deletions/{fragment_id}-{deletion.read_version}-{deletion.id}.{suffix}"


def parse_lance_manifest(data: bytes, *, path: str | None = None) -> LanceManifest:
    """Everything that the engine needs of a manifest file, checked."""
    try:
        return _parse(data)
    except CorruptDataError as error:
        raise CorruptDataError(f"Lance manifest is malformed: {error}", path=path) from error


def generation_manifest(
    fields: Sequence[bytes],
    fragment: Fragment,
    *,
    field_ids: Mapping[int, int],
    schema_metadata: Mapping[bytes, bytes],
    storage_version: str,
    lance_version: str,
    now_ms: int,
    base: BaseMark | None = None,
) -> bytes:
    """The manifest file of version 1 of a dataset with one fragment and chosen field ids.

    `fields` are Field messages in pre-order and `fragment` a fragment as Lance numbered them; `field_ids` maps these
    numbers to the wanted ones. Unknown parts of `fields` are kept. `base` is stored in the table configuration.
    """
    files = tuple(
        replace(file, field_ids=tuple(field_ids.get(number, number) for number in file.field_ids))
        for file in fragment.files
    )
    pairs = [wire.join([wire.bytes_field(1, k), wire.bytes_field(2, v)]) for k, v in sorted(schema_metadata.items())]
    data_format = wire.join([wire.bytes_field(1, "lance"), wire.bytes_field(2, storage_version)])
    writer_version = wire.join([wire.bytes_field(1, "lance"), wire.bytes_field(2, lance_version)])
    message = [
        *(wire.bytes_field(FIELDS, _renumber_field(field, field_ids)) for field in fields),
        wire.bytes_field(FRAGMENTS, encode_fragment(replace(fragment, id=0, files=files))),
        wire.varint_field(VERSION, 1),
        *(wire.bytes_field(SCHEMA_METADATA, pair) for pair in pairs),
        wire.bytes_field(TIMESTAMP, encode_timestamp(now_ms)),
        wire.varint_field(MAX_FRAGMENT_ID, 0),
        wire.bytes_field(WRITER_VERSION, writer_version),
        wire.bytes_field(DATA_FORMAT, data_format),
    ]
    for key, number in zip((BASE_VERSION_KEY, BASE_FRAGMENTS_KEY), base or (), strict=False):
        if number is not None:
            pair = [wire.bytes_field(1, key), wire.bytes_field(2, str(number))]
            message.append(wire.bytes_field(TABLE_CONFIG, wire.join(pair)))
    return join_manifest_file(message)


def with_indexes_of(first: bytes, newest: bytes) -> bytes:
    """The manifest file `first`, which has no sections, with the indexes that `newest`, a later version, has."""
    section = _optional_section(newest, wire.Message(_manifest_message(newest)), INDEX_SECTION)
    if section is None:
        return first
    message = wire.Message(_manifest_message(first)).fields
    at = sum(field.number < INDEX_SECTION for field in message)
    return join_manifest_file(
        [*message[:at], wire.varint_field(INDEX_SECTION, 0), *message[at:]], join_section(section)
    )


def join_manifest_file(message: Iterable[wire.Field], sections: bytes = b"") -> bytes:
    """A manifest file: `sections` (whose offsets `message` names) and the Manifest message."""
    body = wire.join(message)
    return sections + join_section(body) + _FOOTER.pack(len(sections), _MAJOR, _MINOR, _MAGIC)


def join_section(message: bytes) -> bytes:
    """A message behind its length word."""
    return _LENGTH.pack(len(message)) + message


def encode_fragment(fragment: Fragment) -> bytes:
    """The DataFragment message."""
    deletion = fragment.deletion
    parts = [
        *_scalars((1, fragment.id)),
        *(wire.bytes_field(2, _encode_data_file(file)) for file in fragment.files),
        *([] if deletion is None else [wire.bytes_field(3, _encode_deletion_file(deletion))]),
        *_scalars((4, fragment.physical_rows)),
        *fragment.row_ids,
    ]
    return wire.join(parts)


def with_deletion(fragment: bytes, deletion: DeletionFile) -> bytes:
    """The DataFragment message with another deletion vector; everything else in it stays."""
    fields = wire.Message(fragment).fields
    others = [field for field in fields if field.number != 3]
    at = next((i for i, field in enumerate(others) if field.number > 3), len(others))
    return wire.join([*others[:at], wire.bytes_field(3, _encode_deletion_file(deletion)), *others[at:]])


def encode_timestamp(now_ms: int) -> bytes:
    """The Timestamp message."""
    return wire.join(_scalars((1, now_ms // 1000), (2, now_ms % 1000 * 1_000_000)))


def _encode_data_file(file: DataFile) -> bytes:
    return wire.join(
        [
            wire.bytes_field(1, file.path),
            wire.bytes_field(2, wire.varints_of(file.field_ids)),
            wire.bytes_field(3, wire.varints_of(file.column_indices)),
            *_scalars((4, file.major_version), (5, file.minor_version), (6, file.size_bytes)),
        ]
    )


def _encode_deletion_file(deletion: DeletionFile) -> bytes:
    values = (deletion.file_type, deletion.read_version, deletion.id, deletion.num_deleted_rows)
    return wire.join(_scalars(*enumerate(values, 1)))


def _scalars(*values: tuple[int, int]) -> list[wire.Field]:
    """Proto3 scalars: zeros are not written."""
    return [wire.varint_field(number, value) for number, value in values if value]


def _renumber_field(data: bytes, field_ids: Mapping[int, int]) -> bytes:
    message = wire.Message(data)
    number, parent = message.signed(3), message.signed(4)
    fields = _set_number(message.fields, 3, field_ids.get(number, number))
    return wire.join(_set_number(fields, 4, parent if parent < 0 else field_ids.get(parent, parent)))


def _set_number(fields: Sequence[wire.Field], number: int, value: int) -> list[wire.Field]:
    """The fields with a scalar set, in ascending place."""
    others = [field for field in fields if field.number != number]
    at = next((i for i, field in enumerate(others) if field.number > number), len(others))
    return [*others[:at], *_scalars((number, value)), *others[at:]]


def _parse(data: bytes) -> LanceManifest:
    message = wire.Message(_manifest_message(data))
    manifest = LanceManifest(
        version=message.number(VERSION),
        fields=tuple(_field(field) for field in message.all(FIELDS)),
        reader_flags=message.number(READER_FLAGS),
        writer_flags=message.number(WRITER_FLAGS),
        max_fragment_id=message.number(MAX_FRAGMENT_ID) if message.has(MAX_FRAGMENT_ID) else None,
        data_storage_version=wire.Message(message.data(DATA_FORMAT)).text(2),
        transaction_file=message.text(TRANSACTION_FILE) or None,
        transaction=_optional_section(data, message, TRANSACTION_SECTION),
        index_entries=_index_entries(_optional_section(data, message, INDEX_SECTION)),
        next_row_id=message.number(NEXT_ROW_ID),
        message=message.fields,
    )
    _check_tree(manifest.fields)
    return manifest


def _manifest_message(data: bytes) -> bytes:
    if len(data) < _FOOTER.size + _LENGTH.size:
        raise CorruptDataError("file is too short")
    position, major, minor, magic = _FOOTER.unpack_from(data, len(data) - _FOOTER.size)
    if magic != _MAGIC or (major, minor) == (0, 0):  # there never was such a layout: bytes are lost
        raise CorruptDataError("file does not end with a layout and LANC")
    if (major, minor) != (_MAJOR, _MINOR):
        raise UnsupportedFormatError(f"Lance manifest layout {major}.{minor} is not known")
    return _section(data, position)


def _section(data: bytes, position: int) -> bytes:
    limit = len(data) - _FOOTER.size
    start = position + _LENGTH.size
    if start > limit:
        raise CorruptDataError("section lies outside the file")
    (length,) = _LENGTH.unpack_from(data, position)
    if length > limit - start:
        raise CorruptDataError("section is cut off")
    return data[start : start + length]


def _optional_section(data: bytes, message: wire.Message, number: int) -> bytes | None:
    return _section(data, message.number(number)) if message.has(number) else None


def _check_tree(fields: Sequence[LanceField]) -> None:
    ids = [field.id for field in fields]
    if len(set(ids)) != len(ids) or any(not 0 <= number < 1 << 31 for number in ids):
        raise CorruptDataError("field ids are not unique 31-bit numbers")
    open_ids = [-1]
    for field in fields:
        while open_ids and open_ids[-1] != field.parent_id:
            open_ids.pop()
        if not open_ids:
            raise CorruptDataError("schema fields are not a tree in pre-order")
        open_ids.append(field.id)


@lru_cache(maxsize=4096)  # every generation of a table repeats the same fields
def _field(data: bytes) -> LanceField:
    message = wire.Message(data)
    entries = [wire.Message(entry) for entry in message.all(10)]
    return LanceField(
        name=message.text(2),
        id=message.signed(3),
        parent_id=message.signed(4),
        logical_type=message.text(5),
        nullable=bool(message.number(6)),
        metadata=MappingProxyType({entry.text(1): entry.data(2) for entry in entries}),
        is_primary_key=bool(message.number(12)),
        primary_key_position=message.number(13),
    )


def parse_fragment(data: bytes) -> Fragment:
    """A DataFragment message."""
    message = wire.Message(data)
    if message.number(4) > _MOST_ROWS:
        raise CorruptDataError(f"a fragment claims to have {message.number(4)} rows")
    return Fragment(
        id=message.number(1),
        files=tuple(_data_file(file) for file in message.all(2)),
        deletion=_deletion_file(message.data(3)) if message.has(3) else None,
        physical_rows=message.number(4),
    )


def _data_file(data: bytes) -> DataFile:
    message = wire.Message(data)
    return DataFile(
        path=message.text(1),
        field_ids=message.numbers(2),
        column_indices=message.numbers(3),
        major_version=message.number(4),
        minor_version=message.number(5),
        size_bytes=message.number(6),
    )


def _deletion_file(data: bytes) -> DeletionFile:
    message = wire.Message(data)
    return DeletionFile(message.number(1), message.number(2), message.number(3), message.number(4))


def _index_entries(section: bytes | None) -> tuple[IndexEntry, ...]:
    return () if section is None else tuple(_index_entry(entry) for entry in wire.Message(section).all(1))


def _index_entry(data: bytes) -> IndexEntry:
    message = wire.Message(data)
    identity = wire.Message(message.data(1)).data(1)
    if len(identity) != 16:
        raise CorruptDataError("index uuid does not have 16 bytes")
    details = wire.Message(message.data(6))
    for file in message.all(_INDEX_FILES):  # which Lance needs, and refuses a damaged one
        wire.Message(file).text(1)
    return IndexEntry(
        uuid=str(uuid.UUID(bytes=identity)),
        name=message.text(3),
        field_ids=message.numbers(2),
        dataset_version=message.number(4),
        details_type=details.text(1),
        details=details.data(2),
        raw=data,
    )
