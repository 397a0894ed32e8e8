"""The frames of an Arrow IPC stream, without looking at what is in them.

Owns `end_of_stream`: whether a stream is there from its first message to its end-of-stream marker. Every message says how
long its metadata and its body are, in places that no version of the format has moved, so that a stream whose types,
features or metadata version are unknown can still be told from one that was cut. Layout (little-endian):

    [0xFFFFFFFF][i32 metadata length][metadata: a flatbuffer with the body's length][body] ... [0xFFFFFFFF][0]

Invariant: input is hostile; every read is bounded by it.
"""

from __future__ import annotations

import struct
from typing import Final

__all__ = ["end_of_stream"]

_FRAME: Final = struct.Struct("<Ii")
_CONTINUATION: Final = 0xFFFFFFFF
_BODY_LENGTH_SLOT: Final = 3  # Message { version, header type, header, bodyLength, custom metadata }


def end_of_stream(data: bytes) -> int | None:
    """The offset after the end-of-stream marker; None if the frames do not lead there."""
    at = 0
    while at + _FRAME.size <= len(data):
        marker, length = _FRAME.unpack_from(data, at)
        if marker != _CONTINUATION or length < 0:
            return None
        begin, at = at, at + _FRAME.size
        if length == 0:
            return at if begin else None  # a stream begins with its schema
        try:
            at += length + _body_length(data[at : at + length])
        except struct.error:
            return None
    return None


def _body_length(metadata: bytes) -> int:
    """What a Message says of its body: root table, its vtable, the slot; an absent slot is the default, zero."""
    (table,) = struct.unpack_from("<I", metadata)
    (back,) = struct.unpack_from("<i", metadata, table)
    vtable = table - back
    if vtable < 0:
        raise struct.error("the vtable is outside")
    (vtable_bytes,) = struct.unpack_from("<H", metadata, vtable)
    slot_at = 4 + 2 * _BODY_LENGTH_SLOT
    if slot_at + 2 > vtable_bytes:
        return 0
    (offset,) = struct.unpack_from("<H", metadata, vtable + slot_at)
    if offset == 0:
        return 0
    (length,) = struct.unpack_from("<q", metadata, table + offset)
    if length < 0:
        raise struct.error("a body of less than nothing")
    return int(length)
