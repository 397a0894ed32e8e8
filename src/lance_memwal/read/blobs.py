"""Blob columns of a base table: what a read must say to Lance so that it gets bytes.

Owns which columns are blobs, and `rows_by_id`. Invariant: a read gives the bytes of a blob, or says that it cannot; never
where they are. Such columns are read only, in the base table of a table that another implementation initialised; ours
refuses them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_memwal.errors import UnsupportedFormatError
from lance_memwal.lance.base import BaseTable, take_rows
from lance_memwal.rows.sql import in_list

__all__ = ["BLOB_HANDLING", "refuse_unreadable", "rows_by_id"]

BLOB_HANDLING: Literal["all_binary"] = "all_binary"  # else Lance shows where the bytes are, not what they are
_BLOB = b"lance-encoding:blob"
_SECOND_LAYOUT = "lance.blob"
_ROW_ID = "_rowid"


def refuse_unreadable(columns: Collection[pa.Field]) -> None:
    """Raise `UnsupportedFormatError` for a blob in the layout of Lance files 2.2, of which nobody here gets the bytes."""
    for column in columns:
        kind = column.type
        if isinstance(kind, pa.BaseExtensionType) and kind.extension_name.startswith(_SECOND_LAYOUT):
            raise UnsupportedFormatError(
                f"column {column.name!r} ({kind.extension_name}) is not understood by this version: name the other columns "
                "(columns=[...]), and read this one with Lance"
            )


def rows_by_id(base: BaseTable, row_ids: npt.NDArray[Any], columns: Sequence[str]) -> pa.Table:
    """`columns` of the base rows with these ids, in that order."""
    fields = [base.schema.field(name) for name in columns]
    refuse_unreadable(fields)
    with base.reading("reading rows of the base table"):
        if not any(_BLOB in (field.metadata or {}) for field in fields):
            return take_rows(base.dataset, row_ids.tolist(), columns)
        # Lance takes no blobs with their bytes: such rows are scanned
        asked = in_list(_ROW_ID, pa.array(row_ids.astype(np.uint64)))
        scanner = base.dataset.scanner(list(columns), asked, with_row_id=True, blob_handling=BLOB_HANDLING)
        rows = scanner.to_table()
    found = rows.column(_ROW_ID).to_numpy()
    order = np.argsort(found)
    return rows.select(list(columns)).take(pa.array(order[np.searchsorted(found, row_ids, sorter=order)]))
