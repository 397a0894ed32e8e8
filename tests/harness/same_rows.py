"""Two reads of the same rows, compared.

Owns `require_same` (I7).
"""

from __future__ import annotations

import pyarrow as pa

__all__ = ["require_same"]


def require_same(what: str, fast: pa.Table, slow: pa.Table, *, but: str | None = None) -> None:
    """An error unless both hold the same rows, in any order; the column `but` is not looked at."""
    if set(fast.schema.names) != set(slow.schema.names):
        raise AssertionError(f"I7: the {what} has columns {fast.schema.names}, not {slow.schema.names}")
    names = [name for name in slow.schema.names if name != but]
    shown, held = (sorted(map(repr, table.select(names).to_pylist())) for table in (fast, slow))
    if shown != held:
        lacks, more = set(held) - set(shown), set(shown) - set(held)
        raise AssertionError(f"I7: the {what} lacks {lacks} and has {more}: {len(shown)} rows of {len(held)}")
