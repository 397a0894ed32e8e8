"""The settings of a writer, drawn anew for every life.

Owns `draw_settings`: those that any writer has. What one kind of life has beside them is drawn there.
"""

from __future__ import annotations

import random
from typing import Any

__all__ = ["draw_settings"]


def draw_settings(draw: random.Random, *, durable: bool = False) -> dict[str, Any]:
    """Settings with small limits, so that everything happens within a few writes; all writes are durable if that is asked."""
    settings: dict[str, Any] = {
        "durable_write": durable or draw.random() < 0.7,
        "fsync": draw.random() < 0.1,
        "max_memtable_rows": draw.choice((1, 8, 25, 80, 1_000)),
        "max_memtable_batches": draw.choice((4, 8, 20, 1_000)),
        "max_wal_flush_interval_ms": draw.choice((1, 5, 20)),
        "max_wal_buffer_size": draw.choice((0, 400, 4_000)),
    }
    if draw.random() < 0.1:
        settings["max_unflushed_memtable_bytes"] = 4_000
    return settings
