"""What tests of roll-ups share: a table with many small generations, and its roll-ups."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import lance_memwal as mw
from lance_memwal.lance.base import BaseTable
from lance_memwal.log.shards import newest_manifests
from lance_memwal.sstable.rolling import roll_up
from lance_memwal.store.location import resolve
from tests.kit.writers import wait_for

GENERATIONS, ROWS = 72, 6


def fill(
    table: mw.Table, keys: dict[str, pa.Array], generations: int = GENERATIONS, rolled: Sequence[str] = ()
) -> None:
    """Generation n replaces some keys of others, writes one twice, and deletes one; `keys` are the key columns, many rows.

    The writer stays open until the roll-ups of these ranges are there.
    """
    rng, total = np.random.default_rng(3), len(next(iter(keys.values())))
    with table.writer(compaction=None, fsync=False) as writer:
        for number in range(generations):
            chosen = rng.choice(total, ROWS, replace=False)
            rows = pa.table({name: column.take(pa.array(chosen)) for name, column in keys.items()})
            values = [f"g{number}-{at}" for at in range(ROWS)]
            rows = rows.append_column("v", pa.array(values))
            writer.put(rows.cast(table.schema))
            writer.put(rows.slice(1, 1).cast(table.schema))
            writer.delete([key_of(rows, 2)])
            writer.flush()
        wait_for(lambda: set(rolled) <= ranges(table.uri))


def ranges(uri: str) -> set[str]:
    """The ranges of generations that a table has roll-ups of, as in "1-8"."""
    return {path.name.rpartition("-")[0] for path in roll_ups(uri)}


def key_of(rows: pa.Table, at: int) -> Any:
    """The key of one row, as users give it."""
    parts = [rows.column(name)[at].as_py() for name in rows.schema.names if name != "v"]
    return parts[0] if len(parts) == 1 else tuple(parts)


def roll_up_all(uri: str, few_generations: int = 0) -> list[str]:
    """Write the roll-ups that the shards of a table should have; returns the new ones."""
    location = resolve(uri)
    base = BaseTable.need(location)
    written = []
    for manifest in newest_manifests(location):
        written += roll_up(location, manifest, base.columns, few_generations=few_generations)
    return written


def roll_ups(uri: str) -> list[Path]:
    """The files of roll-ups of a table."""
    return sorted(Path(uri, "_mem_wal").glob("*/memwal_rollups/*"))


def generation_files(uri: str, last: int) -> list[Path]:
    """The directories of the generations up to `last`."""
    found = Path(uri, "_mem_wal").glob("*/*_gen_*")
    return [path for path in found if int(path.name.rpartition("_")[2]) <= last]
