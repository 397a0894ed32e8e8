"""Shard ids that follow from the shard's value, so that every process finds the same shard without asking.

Owns the derivation: UUID version 5 in the namespace `LSMWRITE_SHARD01` (16 ASCII bytes) of the name `unsharded`,
`bucket-{n}` (decimal) or `identity-` + value bytes. Value bytes: integers little-endian in the width of their type,
booleans one byte, strings UTF-8. Invariant: the ids are those that LanceDB derives.
"""

from __future__ import annotations

import hashlib
import uuid
from functools import lru_cache
from typing import Any

import pyarrow as pa

from lance_memwal.errors import InvalidInputError

__all__ = [
    "IDENTITY_TYPE_NAMES",
    "bucket_shard_id",
    "encode_identity_value",
    "identity_shard_id",
    "shard_id_of_name",
    "unsharded_shard_id",
]

_NAMESPACE = b"LSMWRITE_SHARD01"

IDENTITY_TYPE_NAMES: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "int8",
    pa.int16(): "int16",
    pa.int32(): "int32",
    pa.int64(): "int64",
    pa.uint8(): "uint8",
    pa.uint16(): "uint16",
    pa.uint32(): "uint32",
    pa.uint64(): "uint64",
    pa.string(): "utf8",
    pa.large_string(): "large_utf8",
}
"""The column types that can shard by identity, with the names that the table's details record for them."""


def shard_id_of_name(name: bytes) -> str:
    """The shard id that belongs to `name`."""
    digest = hashlib.sha1(_NAMESPACE + name, usedforsecurity=False).digest()
    return str(uuid.UUID(bytes=digest[:16], version=5))


@lru_cache(maxsize=1)
def unsharded_shard_id() -> str:
    """The id of the only shard of an unsharded table."""
    return shard_id_of_name(b"unsharded")


@lru_cache(maxsize=1024)
def bucket_shard_id(bucket: int) -> str:
    """The shard id of one bucket, by its number."""
    if bucket < 0:
        raise InvalidInputError(f"a bucket number is not negative: {bucket}")
    return shard_id_of_name(b"bucket-%d" % bucket)


def identity_shard_id(value: Any, kind: pa.DataType) -> str:
    """The shard id of one value of an identity column of type `kind`."""
    return shard_id_of_name(b"identity-" + encode_identity_value(value, kind))


def encode_identity_value(value: Any, kind: pa.DataType) -> bytes:
    """The bytes of `value` as a column of type `kind` holds it; null has none and is refused."""
    if kind not in IDENTITY_TYPE_NAMES:
        raise InvalidInputError(f"a column of type {kind} cannot shard by identity")
    if value is None:
        raise InvalidInputError("a null cannot choose a shard: an identity column must hold a value in every row")
    if pa.types.is_boolean(kind) and isinstance(value, bool):
        return b"\x01" if value else b"\x00"
    if pa.types.is_integer(kind) and isinstance(value, int) and not isinstance(value, bool):
        try:
            return value.to_bytes(kind.bit_width // 8, "little", signed=pa.types.is_signed_integer(kind))
        except OverflowError:
            raise InvalidInputError(f"value out of the range of {kind}") from None
    if isinstance(value, str) and not pa.types.is_boolean(kind) and not pa.types.is_integer(kind):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise InvalidInputError("value is not valid Unicode text") from None
    raise InvalidInputError(f"a value of type {type(value).__name__} does not fit a column of type {kind}")
