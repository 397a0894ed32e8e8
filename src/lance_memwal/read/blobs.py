"""Blob columns of a base table: what a read must say to Lance so that it gets bytes.

Owns which columns are blobs. Invariant: a read gives the bytes of a blob, or says that it cannot; never where they are.
Such columns are read only, in the base table of a table that another implementation initialised; ours refuses them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import pyarrow as pa

from lance_memwal.errors import UnsupportedFormatError

__all__ = ["BLOB_HANDLING", "has_blobs", "refuse_unreadable"]

BLOB_HANDLING: Literal["all_binary"] = "all_binary"  # else Lance shows where the bytes are, not what they are
_BLOB = b"lance-encoding:blob"
_SECOND_LAYOUT = "lance.blob"


def refuse_unreadable(columns: Collection[pa.Field]) -> None:
    """Raise `UnsupportedFormatError` for a blob in the layout of Lance files 2.2, of which nobody here gets the bytes."""
    for column in columns:
        kind = column.type
        if isinstance(kind, pa.BaseExtensionType) and kind.extension_name.startswith(_SECOND_LAYOUT):
            raise UnsupportedFormatError(
                f"column {column.name!r} ({kind.extension_name}) is not understood by this version: name the other columns "
                "(columns=[...]), and read this one with Lance"
            )


def has_blobs(columns: Collection[pa.Field]) -> bool:
    """Whether one of the columns is a blob: then rows must be scanned, since Lance does not take them with their bytes."""
    return any(_BLOB in (column.metadata or {}) for column in columns)
