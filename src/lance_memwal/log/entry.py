"""The bytes of one WAL entry: an Arrow IPC stream, then our footer.

Owns encoding and decoding of entries, sentinels and mark-only entries. Layout:

    [Arrow IPC stream][footer: `lance_memwal.log.footer`]

The stream's schema metadata holds `writer_epoch`, `generation` and, on a sentinel, `fence_sentinel`; nothing else may be
there, since the peer refuses unknown keys. The peer ignores what follows the end-of-stream marker. Invariants:

1. Every entry that we encode carries the footer.
2. An entry without a footer was written by another implementation: its structure is validated fully and its
   end-of-stream marker is required. Bytes after that marker that are no valid footer are corruption.
3. No batch leaves the decoder unvalidated, and no other exception than `CorruptDataError` or `UnsupportedFormatError` does.
   The first is for structural damage alone: an empty file, frames that do not lead to the end of the stream, a wrong
   checksum. What is whole but refused (a type, an IPC feature, metadata or content that we do not take) is the second.
4. An entry of another implementation may be compressed. What it asks for is bounded before anything is allocated.
5. Equal input gives equal bytes, so that a retry sends exactly what the first attempt sent.
"""

from __future__ import annotations

import io
import re
import struct
import zlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.ipc as ipc

from lance_memwal.errors import CorruptDataError, InvalidInputError, UnsupportedFormatError, reason_of
from lance_memwal.log.blob_targets import TARGET_KEYS, TARGET_PREFIX
from lance_memwal.log.footer import (
    FOOTER_BYTES,
    MAGIC,
    MAX_U64,
    PLAIN,
    MalformedError,
    checksum_damage,
    encode_extension,
    encode_footer,
    refusal,
    split,
)
from lance_memwal.rows.blobs import PREPARED_NAME, as_prepared, is_blob, is_prepared
from lance_memwal.rows.fit import validate_rows
from lance_memwal.rows.ipc_frames import asked_bytes, end_of_stream
from lance_memwal.rows.json_values import encoded, is_json_bytes
from lance_memwal.rows.validity import validate
from lance_memwal.types import EntryFooter, WalEntry

MAX_ENTRY_BYTES: Final = 1 << 31
_ARROW_FILE: Final = b"ARROW1"
_END_OF_STREAM: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_HARMLESS_BYTES: Final = 32 << 10  # a byte of zstd becomes 32,768 at most, one of LZ4 255
_DECIMAL: Final = re.compile(rb"[0-9]{1,20}")
_EPOCH_KEY: Final = b"writer_epoch"
_GENERATION_KEY: Final = b"generation"
_SENTINEL_KEY: Final = b"fence_sentinel"
_METADATA_KEYS: Final = frozenset({_EPOCH_KEY, _GENERATION_KEY, _SENTINEL_KEY}) | frozenset(TARGET_KEYS)
_EXTENSION_NAME: Final = b"ARROW:extension:name"
_OPTIONS: Final = ipc.IpcWriteOptions()  # given, since Arrow asks the environment for them otherwise, each time
_ARROW_ERRORS: Final = (
    pa.ArrowException,
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    OSError,
    OverflowError,
    EOFError,  # a marker in the middle of the stream
)


# ---------------------------------------------------------------------------------------------------- encoding


class RowEncoder:
    """Encodes rows of one schema as messages of an Arrow stream, which entries of any epoch and generation take over.

    What cannot be encoded fails here, before anybody relies on it, and so does what our own decoder would refuse. Rows are
    validated before they come here; what the encoding builds anew (dictionaries, above all) is read back.
    """

    __slots__ = ("_is_read_back", "_json", "_prefix", "_prepared", "_schema", "never_fails")

    def __init__(self, fields: pa.Schema) -> None:
        """`fields` is the WAL schema without schema-level metadata, `_tombstone` last."""
        self._schema = fields.with_metadata({_EPOCH_KEY: "1", _GENERATION_KEY: "1"})  # of the entry that is read back
        self._is_read_back = not all(_is_plain(field.type) for field in fields)
        self._prefix = _prefix(self._schema)
        self._json = [i for i, field in enumerate(fields) if is_json_bytes(field)]
        self._prepared = [i for i, field in enumerate(fields) if is_prepared(field)]
        self.never_fails = not (self._is_read_back or self._json or self._prepared)  # with rows that are validated

    def messages(self, batches: Sequence[pa.RecordBatch]) -> list[pa.Buffer]:
        """The messages of `batches`, with their dictionaries in front; `InvalidInputError` if they cannot be encoded."""
        try:
            if self._json or self._prepared:
                batches = self.as_logged(batches)
            return list(self._read_back(batches) if self._is_read_back else map(pa.RecordBatch.serialize, batches))
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise InvalidInputError(f"the rows cannot be encoded: {error}") from error

    def as_logged(self, batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
        """The batches with JSON, and blobs of the second layout, in the form that the log holds."""
        if not self._json and not self._prepared:
            return batches
        changed = []
        for batch in batches:
            arrays = batch.columns
            for at in self._json:
                arrays[at] = encoded(arrays[at])
            for at in self._prepared:
                arrays[at] = as_prepared(arrays[at], self._schema.field(at).type)
            changed.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema.remove_metadata()))
        return changed

    def _read_back(self, batches: Sequence[pa.RecordBatch]) -> list[pa.Buffer]:
        stream = _encode_stream(self._schema, batches)
        try:
            decode_entry(stream)
        except (CorruptDataError, UnsupportedFormatError) as error:
            for batch in batches:
                validate_rows(batch)
            raise InvalidInputError(f"these rows could not be read back from the log: {error}") from None
        return [pa.py_buffer(stream)[len(self._prefix) : -len(_END_OF_STREAM)]]

    def measure(self, batches: Sequence[pa.RecordBatch]) -> int:
        """The bytes of `messages`, without making them."""
        batches = self.as_logged(batches)
        if not self._is_read_back:
            return sum(ipc.get_record_batch_size(batch) for batch in batches)
        sink = pa.MockOutputStream()
        _write_stream(sink, self._schema, batches)
        return int(sink.size()) - len(self._prefix) - len(_END_OF_STREAM)


class EntryEncoder:
    """Encodes entries of one (epoch, generation): the schema message and its checksum are made once."""

    __slots__ = ("_has_blobs", "_prefix", "_prefix_crc", "_rows", "_schema", "epoch", "generation")

    def __init__(
        self, fields: pa.Schema, epoch: int, generation: int, target: Mapping[bytes, str] = MappingProxyType({})
    ) -> None:
        """`fields` is the WAL schema without schema-level metadata, `_tombstone` last.

        `target`: what entries with blobs of the second layout say besides (`lance_memwal.log.blob_targets`).
        """
        self.epoch = epoch
        self.generation = generation
        self._rows = RowEncoder(fields)
        self._schema = fields.with_metadata({_EPOCH_KEY: str(epoch), _GENERATION_KEY: str(generation), **target})
        self._prefix = _prefix(self._schema)
        self._prefix_crc = zlib.crc32(self._prefix)
        self._has_blobs = any(is_blob(field) or is_prepared(field) for field in fields)

    def encode(self, batches: Sequence[pa.RecordBatch], footer: EntryFooter = PLAIN) -> bytes:
        """The bytes of one entry that holds `batches`, whose columns are those of the WAL schema."""
        if self._has_blobs:
            return self._encode_in_place(batches, footer)
        return self.assemble(self._rows.messages(batches), footer)

    def _encode_in_place(self, batches: Sequence[pa.RecordBatch], footer: EntryFooter) -> bytes:
        """The same bytes, written where they stay: rows with blobs are in memory once more while their entry is written,
        not twice."""
        sink, extension = io.BytesIO(), encode_extension(footer)
        try:
            _write_stream(sink, self._schema, self._rows.as_logged(batches))
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise InvalidInputError(f"the rows cannot be encoded: {error}") from error
        with sink.getbuffer() as stream:
            length, crc = len(stream), zlib.crc32(stream)
        sink.write(extension)
        sink.write(encode_footer(length, crc, extension))
        return _bounded(sink.getvalue())

    def assemble(self, messages: Sequence[pa.Buffer], footer: EntryFooter = PLAIN) -> bytes:
        """The bytes of one entry that holds `messages` of a `RowEncoder` of the same columns."""
        extension = encode_extension(footer)
        crc = self._prefix_crc
        length = len(self._prefix) + len(_END_OF_STREAM)
        for message in messages:
            crc = zlib.crc32(message, crc)
            length += message.size
        crc = zlib.crc32(_END_OF_STREAM, crc)
        tail = (_END_OF_STREAM, extension, encode_footer(length, crc, extension))
        return _bounded(b"".join((self._prefix, *messages, *tail)))


def _prefix(schema: pa.Schema) -> bytes:
    return _encode_stream(schema, ())[: -len(_END_OF_STREAM)]


def encode_sentinel(epoch: int, footer: EntryFooter = PLAIN) -> bytes:
    """A fence sentinel: an empty schema, no batches, the claimed epoch."""
    return _encode_empty({_EPOCH_KEY: str(epoch), _SENTINEL_KEY: "true"}, footer)


def encode_mark(epoch: int, footer: EntryFooter = PLAIN) -> bytes:
    """A mark-only entry: like a sentinel without the fence; other implementations replay it as a no-op."""
    return _encode_empty({_EPOCH_KEY: str(epoch)}, footer)


def _encode_empty(metadata: dict[bytes, str], footer: EntryFooter) -> bytes:
    return _with_footer(_encode_stream(pa.schema([], metadata=metadata), ()), encode_extension(footer))


def _encode_stream(schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> bytes:
    sink = pa.BufferOutputStream()
    _write_stream(sink, schema, batches)
    return bytes(sink.getvalue().to_pybytes())


def _write_stream(sink: pa.NativeFile | io.BytesIO, schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> None:
    with ipc.new_stream(sink, schema, options=_OPTIONS) as writer:
        for batch in batches:
            writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))


def _with_footer(stream: bytes, extension: bytes) -> bytes:
    return _bounded(b"".join((stream, extension, encode_footer(len(stream), zlib.crc32(stream), extension))))


def _bounded(data: bytes) -> bytes:
    """`data`, unless it is more than a decoder takes: what is in the log must be readable for ever."""
    if len(data) > MAX_ENTRY_BYTES:
        raise InvalidInputError(f"{len(data)} bytes are too many for one WAL entry, at most {MAX_ENTRY_BYTES}")
    return data


def _is_plain(kind: pa.DataType) -> bool:
    """Whether Arrow writes the very buffers that it was given."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _is_plain(kind.storage_type)
    if types.is_dictionary(kind) or types.is_union(kind) or types.is_run_end_encoded(kind) or types.is_list_view(kind):
        return False
    if types.is_string_view(kind) or types.is_binary_view(kind) or types.is_large_list_view(kind):
        return False
    return all(_is_plain(kind.field(i).type) for i in range(kind.num_fields))


def _holds_dictionary(data_type: pa.DataType) -> bool:
    if pa.types.is_dictionary(data_type):
        return True
    if isinstance(data_type, pa.BaseExtensionType):
        return _holds_dictionary(data_type.storage_type)
    return any(_holds_dictionary(data_type.field(i).type) for i in range(data_type.num_fields))


# ---------------------------------------------------------------------------------------------------- decoding


class EntryDecoder:
    """Decodes entries, remembering the last schema message: a run of entries by one writer parses it once.

    Not thread-safe; every reader has its own.
    """

    __slots__ = ("_head", "_prefix")

    def __init__(self) -> None:
        self._prefix: bytes | None = None
        self._head: _Head | None = None

    def decode(self, data: bytes, position: int, *, path: str | None = None) -> WalEntry:
        """The entry in `data`, fully validated; else `CorruptDataError` or `UnsupportedFormatError` with its place."""
        try:
            return self._decode(data, position)
        except MalformedError as error:
            raise refusal(error, _damage(data), path, position) from error.__cause__

    def _decode(self, data: bytes, position: int) -> WalEntry:
        if len(data) > MAX_ENTRY_BYTES:
            raise MalformedError(f"{len(data)} bytes exceed the limit of {MAX_ENTRY_BYTES}")
        stream_length, footer = split(data) or (None, None)
        try:
            head, batches = self._read(data, stream_length)
        except MalformedError:
            raise
        except MemoryError as error:
            raise MalformedError("decoding asks for too much memory") from error
        except _ARROW_ERRORS as error:
            raise MalformedError(reason_of(error)[:200]) from error
        schema, epoch, generation, is_sentinel = head
        return WalEntry(position, epoch, generation, batches, is_sentinel, footer, schema, len(data))

    def _read(self, data: bytes, stream_length: int | None) -> tuple[_Head, tuple[pa.RecordBatch, ...]]:
        if len(data) > _HARMLESS_BYTES:
            _check_decompressed(data, stream_length)
        prefix, head = self._prefix, self._head
        if prefix is not None and head is not None and stream_length is not None and data.startswith(prefix):
            batches = _read_messages(data, len(prefix), stream_length, head.schema)
            if batches is not None:
                return head, batches
        return self._read_stream(data, stream_length)

    def _read_stream(self, data: bytes, stream_length: int | None) -> tuple[_Head, tuple[pa.RecordBatch, ...]]:
        if TARGET_PREFIX in _schema_message(data):
            return self._read_prepared(data, stream_length)
        buffer = pa.py_buffer(data)
        source = pa.BufferReader(buffer if stream_length is None else buffer.slice(0, stream_length))
        reader = ipc.open_stream(source)
        schema_end = source.tell()
        _check_columns(reader.schema)
        batches = tuple(_checked(batch) for batch in reader)
        end = source.tell()
        if data[end - len(_END_OF_STREAM) : end] != _END_OF_STREAM:
            raise MalformedError("the end-of-stream marker is missing")
        if end != (len(data) if stream_length is None else stream_length):
            raise MalformedError("bytes after the end of the stream are no footer")
        head = _head(reader.schema)
        if stream_length is not None and not any(_holds_dictionary(field.type) for field in reader.schema):
            self._prefix, self._head = data[:schema_end], head
        return head, batches

    @staticmethod
    def _read_prepared(data: bytes, stream_length: int | None) -> tuple[_Head, tuple[pa.RecordBatch, ...]]:
        """An entry with blobs of the second layout: pyarrow refuses the type by which these are known, as entries hold it."""
        message = _schema_message(data)
        end = end_of_stream(data) if stream_length is None else stream_length
        if end is None or end != (len(data) if stream_length is None else stream_length):
            raise MalformedError("the stream does not end where the entry does")
        schema = ipc.read_schema(pa.py_buffer(message.replace(_EXTENSION_NAME, PREPARED_NAME)))
        _check_columns(schema)
        batches = _read_messages(data, len(message), end, schema)
        if batches is None:
            raise MalformedError("blobs of the second layout beside dictionaries")
        return _head(schema), batches


def _check_decompressed(data: bytes, stream_length: int | None) -> None:
    """Refuse a stream whose compressed buffers become more than an entry may have."""
    try:
        asked = asked_bytes(pa.py_buffer(data).slice(0, stream_length))
    except struct.error as error:
        raise MalformedError("what its compressed buffers become is not to be found") from error
    if asked > MAX_ENTRY_BYTES:
        raise MalformedError(f"decompressed it has more than {MAX_ENTRY_BYTES} bytes")


def _schema_message(data: bytes) -> bytes:
    """The first message of a stream, which is its schema; less if the bytes are no stream."""
    length = struct.unpack_from("<i", data, 4)[0] if len(data) >= 8 else 0
    return data[: 8 + max(0, length)]


def decode_entry(data: bytes, position: int = 0, *, path: str | None = None) -> WalEntry:
    """The entry in `data`, fully validated; else `CorruptDataError` or `UnsupportedFormatError`."""
    return EntryDecoder().decode(data, position, path=path)


def _damage(data: bytes) -> str | None:
    """What is structurally wrong with the bytes of an entry; None if they are whole, understood or not."""
    if not data:
        return "it is empty"
    has_footer = len(data) >= FOOTER_BYTES
    if has_footer and data.endswith(MAGIC):
        return checksum_damage(data)
    if has_footer and data[:-1].endswith(MAGIC[:-1]):  # a footer of another version, or ours with a flipped last byte
        return None if checksum_damage(data) is not None else "the last byte of the footer is wrong"
    if data.startswith(_ARROW_FILE):
        return None
    end = end_of_stream(data)
    if end is None:
        return "the stream is cut, or its frames do not fit"
    rest = data[end:]
    is_cut_footer = rest.startswith(b"{") or struct.pack("<Q", end).startswith(rest[:8])
    return "the footer is cut, or not ours" if rest and is_cut_footer else None


def _read_messages(data: bytes, start: int, end: int, schema: pa.Schema) -> tuple[pa.RecordBatch, ...] | None:
    """The batches between a known schema message and the end of the stream; None where the slow way must decide."""
    source = pa.BufferReader(pa.py_buffer(data).slice(start, end - start))
    last = end - start - len(_END_OF_STREAM)
    batches = []
    while source.tell() < last:
        message = ipc.read_message(source)
        if message.type != "record batch":
            return None
        batches.append(_checked(ipc.read_record_batch(message, schema)))
    return tuple(batches) if source.tell() == last and data[end - 8 : end] == _END_OF_STREAM else None


def _check_columns(schema: pa.Schema) -> None:
    """Refuse columns that could not be told apart, and texts that would fail later, wherever they are first looked at."""
    if len(set(schema.names)) != len(schema.names):
        raise MalformedError("a column is there twice")
    for column in schema:
        _check_text(column.type)


def _check_text(data_type: pa.DataType) -> None:
    if isinstance(data_type, pa.BaseExtensionType):
        _check_text(data_type.storage_type)
    if pa.types.is_dictionary(data_type):
        _check_text(data_type.value_type)
    if pa.types.is_timestamp(data_type) and data_type.tz is not None:
        data_type.tz.encode()
    for i in range(data_type.num_fields):
        data_type.field(i).name.encode()
        _check_text(data_type.field(i).type)


def _checked(batch: pa.RecordBatch) -> pa.RecordBatch:
    validate(batch)
    if not 0 < batch.num_rows <= MAX_ENTRY_BYTES:  # columns of nulls cost no bytes, so the size alone bounds nothing
        raise MalformedError(f"a batch holds {batch.num_rows} rows")
    return batch


class _Head(NamedTuple):
    """The schema of an entry, and what its metadata says."""

    schema: pa.Schema
    epoch: int
    generation: int | None
    is_sentinel: bool


def _head(schema: pa.Schema) -> _Head:
    metadata = schema.metadata or {}
    epoch = _number(metadata, _EPOCH_KEY)
    if epoch is None:
        raise MalformedError("the writer epoch is missing")
    target = {key for key in metadata if key.startswith(TARGET_PREFIX)}
    if target and not target.issuperset(TARGET_KEYS):
        raise MalformedError("it does not say which files are reserved for its rows (Blob v2)")
    return _Head(schema, epoch, _number(metadata, _GENERATION_KEY), metadata.get(_SENTINEL_KEY) == b"true")


def unknown_metadata(schema: pa.Schema) -> tuple[str, ...]:
    """The keys of an entry's schema metadata that we do not know."""
    return tuple(sorted(key.decode(errors="replace") for key in (schema.metadata or {}).keys() - _METADATA_KEYS))


def _number(metadata: dict[bytes, bytes], key: bytes) -> int | None:
    text = metadata.get(key)
    if text is None:
        return None
    if _DECIMAL.fullmatch(text) is None or int(text) > MAX_U64:
        raise MalformedError(f"the metadata key {key.decode()} is no number")
    return int(text)
