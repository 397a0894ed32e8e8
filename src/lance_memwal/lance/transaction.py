"""A transaction of a Lance dataset: what a version did to the one before.

Owns the name of its file and the few operations that decide which rows a version holds. The bytes stand in the manifest,
in a file of their own, or in both. Invariant: an operation that is not modelled here reads as one that keeps rows and marks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lance_memwal.arguments import digits_of
from lance_memwal.errors import ObjectNotFoundError
from lance_memwal.lance import wire
from lance_memwal.lance.manifest import LanceManifest
from lance_memwal.store.location import Location
from lance_memwal.store.paths import check_file_name
from lance_memwal.types import shard_id_of

TRANSACTIONS_DIR = "_transactions"
UPDATE = 108  # the operation that adds and changes fragments and marks generations
_OVERWRITE, _CREATE_INDEX, _RESTORE = 102, 103, 106
_UPDATE_MARKS = 5


@dataclass(frozen=True, slots=True)
class LanceTransaction:
    """What one transaction does; `restores` is the version that it goes back to, `marks` the generations that it marks."""

    overwrites: bool = False
    changes_indexes: bool = False
    restores: int | None = None
    marks: Mapping[str, int] = field(default_factory=dict)


def transaction_path(name: str) -> str:
    """Path of a transaction's file inside its dataset; `CorruptDataError` if it would lie elsewhere."""
    return f"{TRANSACTIONS_DIR}/{check_file_name(name, 'transaction file')}"


def read_version_of(name: str) -> int | None:
    """The version that a transaction file of this name started from, or None if it is named otherwise."""
    digits, dash, _ = name.partition("-")
    return digits_of(digits) if dash and name.endswith(".txn") else None


def parse_transaction(data: bytes) -> LanceTransaction:
    """What the transaction does; `CorruptDataError` if it is malformed."""
    message = wire.Message(data)
    update = wire.Message(message.data(UPDATE))
    return LanceTransaction(
        overwrites=message.has(_OVERWRITE),
        changes_indexes=message.has(_CREATE_INDEX),
        restores=wire.Message(message.data(_RESTORE)).number(1) if message.has(_RESTORE) else None,
        marks=dict(_mark(item) for item in update.all(_UPDATE_MARKS)),
    )


def transaction_of(location: Location, manifest: LanceManifest) -> LanceTransaction | None:
    """The transaction that made this version of the base table; None if the version does not say."""
    if manifest.transaction is not None:
        return parse_transaction(manifest.transaction)
    if manifest.transaction_file is None:
        return None
    try:
        return parse_transaction(location.store.get(transaction_path(manifest.transaction_file)))
    except ObjectNotFoundError:
        return None


def _mark(data: bytes) -> tuple[str, int]:
    message = wire.Message(data)
    shard = wire.Message(message.data(1)).data(1)
    return shard_id_of(shard, "a mark of a transaction"), message.number(2)
