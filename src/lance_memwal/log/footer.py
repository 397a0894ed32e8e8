"""The footer behind the stream of a WAL entry: its checksums, and the extension, which says what Arrow has no place for.

Owns the bytes after the stream, and `EntryFooter` as JSON (RFC 0003). Layout (all integers little-endian):

    [extension: JSON, may be empty]
    [u64 stream length][u32 extension length][u32 crc32 of the stream][u32 crc32 of extension + these 16 bytes]["MWALEND1"]

Invariants:

1. A flipped bit or a cut, in the stream or behind it, is detected.
2. A key of the extension never changes its shape; one that we do not know is named on the decoded footer.
3. Whether bytes are damaged (`CorruptDataError`) or whole and not understood (`UnsupportedFormatError`) is told by their
   structure, never by who refused them.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from typing import Any, Final, TypeGuard

from lance_memwal.errors import CorruptDataError, InvalidInputError, UnsupportedFormatError
from lance_memwal.types import BaseMark, EntryFooter, EntryTransaction, SeenMap, SeenTransaction, SsTable, Transaction

FOOTER_BYTES: Final = 28
MAGIC: Final = b"MWALEND1"
MAX_U64: Final = (1 << 64) - 1
PLAIN: Final = EntryFooter()
_FOOTER: Final = struct.Struct("<QII")
_CRC: Final = struct.Struct("<I")
_MAX_EXTENSION_BYTES: Final = 64 << 20
_KNOWN_KEYS: Final = frozenset({"t", "ms", "txns", "seen", "seal", "bulk", "joint", "base", "fragments"})
_IGNORED_KEYS: Final = frozenset({"delta", "digests"})  # written by earlier versions
_TABLE_TAG: Final = re.compile(r"[0-9a-f]{8}")
_NUMBER: Final = rb"(0|[1-9][0-9]{0,17})"
# the extension of most puts
_USUAL: Final = re.compile(rb'\{"t":"([0-9a-f]{8})","ms":%b,"base":%b,"fragments":%b\}' % (_NUMBER, _NUMBER, _NUMBER))
_MAX_USUAL_BYTES: Final = 103
_NOTHING_MORE: Final = PLAIN[2:-1]  # except for the table, the time and the base version
_to_json: Final = json.JSONEncoder(separators=(",", ":")).encode


class MalformedError(Exception):
    """Why bytes are no entry that we take; never leaves this room."""


# ---------------------------------------------------------------------------------------------------- encoding


def encode_footer(stream_length: int, stream_crc: int, extension: bytes) -> bytes:
    """What follows the extension of an entry."""
    fixed = _FOOTER.pack(stream_length, len(extension), stream_crc)
    return fixed + _CRC.pack(zlib.crc32(fixed, zlib.crc32(extension))) + MAGIC


def encode_extension(footer: EntryFooter) -> bytes:
    """The JSON of a footer; nothing if it says nothing."""
    table, written_ms, base = footer.table, footer.written_ms, footer.base
    if footer[2:-1] == _NOTHING_MORE and table is not None and written_ms is not None and base is not None:
        version, fragments = base
        if fragments is not None:  # most puts: the same, faster
            return b'{"t":"%s","ms":%d,"base":%d,"fragments":%d}' % (table.encode(), written_ms, version, fragments)
    value: dict[str, Any] = {}
    if footer.table is not None:
        value["t"] = footer.table
    if footer.written_ms is not None:
        value["ms"] = footer.written_ms
    if footer.base is not None:
        value["base"] = footer.base.version
        if footer.base.fragments is not None:
            value["fragments"] = footer.base.fragments
    if footer.txns:
        value["txns"] = [[t.txn.app, t.txn.version, t.txn.query, t.first_row, t.num_rows] for t in footer.txns]
    if footer.seen is not None:
        value["seen"] = seen_to_json(footer.seen)
    if footer.seal is not None:
        value["seal"] = footer.seal
    if footer.bulk is not None:
        bulk = footer.bulk
        sizes = [bulk.in_memory_bytes, bulk.physical_rows, bulk.primary_key_bytes]
        value["bulk"] = {"generation": bulk.generation, "path": bulk.path, "sizes": sizes}
    if footer.joint:
        value["joint"] = True
    if not value:
        return b""
    data = _to_json(value).encode()  # ASCII: any text that JSON can hold comes back unchanged
    if len(data) > _MAX_EXTENSION_BYTES:
        raise InvalidInputError(f"the transaction map is too large: {len(data)} bytes, at most {_MAX_EXTENSION_BYTES}")
    return data


def seen_to_json(seen: SeenMap) -> dict[str, list[Any]]:
    """The JSON value of a transaction map, keys in order."""
    return {app: [s.version, s.written_ms, s.query] for app, s in sorted(seen.items())}


# ---------------------------------------------------------------------------------------------------- decoding


def decode_footer(tail: bytes, *, path: str | None = None) -> EntryFooter | None:
    """The footer in the last bytes of an entry; None if `tail` holds no footer or not all of its extension."""
    if len(tail) < FOOTER_BYTES or not tail.endswith(MAGIC):
        return None
    _, extension_length, _ = _FOOTER.unpack_from(tail, len(tail) - FOOTER_BYTES)
    if extension_length + FOOTER_BYTES > len(tail):
        return None
    damage = _footer_damage(tail, extension_length)
    if damage is not None:
        raise refusal(MalformedError(damage), damage, path, None)
    try:
        return _extension(tail, extension_length)
    except MalformedError as error:
        raise refusal(error, None, path, None) from error.__cause__


def refusal(
    error: MalformedError, damage: str | None, path: str | None, position: int | None
) -> CorruptDataError | UnsupportedFormatError:
    """The error to raise: whether bytes are damaged is told by their structure, never by who refused them."""
    if damage is not None:
        return CorruptDataError(f"WAL entry is damaged: {damage}", path=path, position=position)
    return UnsupportedFormatError(
        f"WAL entry is whole, but not understood by this version: {error}", path=path, position=position
    )


def checksum_damage(data: bytes) -> str | None:
    """What is wrong with the footer that ends `data`, or with what it covers."""
    stream_length, extension_length, stream_crc = _FOOTER.unpack_from(data, len(data) - FOOTER_BYTES)
    if stream_length + extension_length + FOOTER_BYTES != len(data):
        return "the footer's lengths do not add up"
    if zlib.crc32(memoryview(data)[:stream_length]) != stream_crc:
        return "the checksum of the stream does not match"
    return _footer_damage(data, extension_length)


def _footer_damage(data: bytes, extension_length: int) -> str | None:
    """What is wrong with the checksum of the extension and footer that end `data`."""
    crc_at = len(data) - FOOTER_BYTES + _FOOTER.size
    covered = memoryview(data)[crc_at - _FOOTER.size - extension_length : crc_at]
    wrong = zlib.crc32(covered) != _CRC.unpack_from(data, crc_at)[0]
    return "the checksum of the footer does not match" if wrong else None


def split(data: bytes) -> tuple[int, EntryFooter] | None:
    """The length of the stream of an entry, and its footer, both checked; None where there is none."""
    if len(data) < FOOTER_BYTES or not data.endswith(MAGIC):
        return None
    damage = checksum_damage(data)
    if damage is not None:
        raise MalformedError(damage)
    stream_length, extension_length, _ = _FOOTER.unpack_from(data, len(data) - FOOTER_BYTES)
    return stream_length, _extension(data, extension_length)


def _extension(data: bytes, extension_length: int) -> EntryFooter:
    """The extension in front of the footer that ends `data`, whose checksum was checked."""
    if extension_length > _MAX_EXTENSION_BYTES:
        raise MalformedError(f"an extension of {extension_length} bytes exceeds the limit")
    if not extension_length:
        return PLAIN
    end = len(data) - FOOTER_BYTES
    text = memoryview(data)[end - extension_length : end]
    if extension_length <= _MAX_USUAL_BYTES and (usual := _USUAL.fullmatch(text)) is not None:
        return EntryFooter(usual[1].decode(), int(usual[2]), base=BaseMark(int(usual[3]), int(usual[4])))
    try:
        value = json.loads(bytes(text))
    except (ValueError, RecursionError) as error:
        raise MalformedError("the extension is not JSON") from error
    if not isinstance(value, dict):
        raise MalformedError("the extension is not an object")
    return _parse_footer(value)


def _parse_footer(value: dict[str, Any]) -> EntryFooter:
    table, written_ms, seal = value.get("t"), value.get("ms"), value.get("seal")
    base, fragments = value.get("base"), value.get("fragments")
    if not (table is None or (isinstance(table, str) and _TABLE_TAG.fullmatch(table) is not None)):
        raise MalformedError("the extension's table is malformed")
    if not all(number is None or _is_u64(number) for number in (written_ms, seal, base, fragments)):
        raise MalformedError("a number of the extension is malformed")
    if not isinstance(value.get("joint", False), bool):
        raise MalformedError("the extension's kind of epoch is malformed")
    return EntryFooter(
        table=table,
        written_ms=written_ms,
        txns=_parse_txns(value),
        seen=_parse_seen(value["seen"]) if value.get("seen") is not None else None,
        seal=seal,
        bulk=_parse_bulk(value["bulk"]) if value.get("bulk") is not None else None,
        joint=value.get("joint", False),
        unknown=tuple(sorted(value.keys() - _KNOWN_KEYS - _IGNORED_KEYS)),
        base=None if base is None else BaseMark(base, fragments),
    )


def _parse_txns(value: dict[str, Any]) -> tuple[EntryTransaction, ...]:
    items = value.get("txns")
    if items is None:
        return ()
    if not isinstance(items, list):
        raise MalformedError("the extension's transactions are malformed")
    return tuple(map(_parse_txn, items))


def _parse_txn(value: Any) -> EntryTransaction:
    if isinstance(value, list) and len(value) == 5:
        app, version, query, first_row, num_rows = value
        named = isinstance(app, str) and _is_u64(version) and (query is None or isinstance(query, str))
        if named and _is_u64(first_row) and (num_rows is None or _is_u64(num_rows)):
            return EntryTransaction(Transaction(app, version, query), first_row, num_rows)
    raise MalformedError("the extension's transaction is malformed")


def _parse_bulk(value: Any) -> SsTable:
    if isinstance(value, dict) and isinstance(value.get("path"), str) and _is_u64(value.get("generation")):
        sizes = value.get("sizes")
        if isinstance(sizes, list) and len(sizes) == 3 and all(size is None or _is_u64(size) for size in sizes):
            return SsTable(value["generation"], value["path"], *sizes)
    raise MalformedError("the extension's bulk mark is malformed")


def _parse_seen(value: Any) -> SeenMap:
    if not isinstance(value, dict):
        raise MalformedError("the extension's map is malformed")
    seen: dict[str, SeenTransaction] = {}
    for app, item in value.items():
        if not isinstance(item, list) or len(item) != 3:
            raise MalformedError("the extension's map is malformed")
        version, written_ms, query = item
        if not (_is_u64(version) and _is_u64(written_ms) and (query is None or isinstance(query, str))):
            raise MalformedError("the extension's map is malformed")
        seen[app] = SeenTransaction(version, written_ms, query)
    return seen


def _is_u64(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_U64
