"""Writing roll-ups: which ones a shard should have, and making them.

Owns the blocks of generations that are rolled up together (RFC 0031). Invariants:

1. Blocks are of 8, 64 and 512 generations, and begin where their numbers say, so that all who roll up a shard make the same ones.
   One is made when its last generation is listed, with at least half of it, unless a roll-up as large has all of them.
2. A shard with few generations gets none: a compaction that keeps up never pays for it.
3. A roll-up is bounded in size; of large generations it has the filter and the manifest, not keys and rows.
4. Nothing is put into a table that was replaced while it was copied, and no directory of a removed one is made again.
5. What is copied was read and checked as readers do it. A generation with a sidecar that is not whole is copied without keys.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby

from lance_memwal.clock import in_order
from lance_memwal.crash_points import reach
from lance_memwal.errors import ObjectExistsError, UnsupportedFormatError
from lance_memwal.lance.manifest import parse_lance_manifest
from lance_memwal.rows.schema import TableSchema
from lance_memwal.sstable.bloom import BLOOM_BYTES
from lance_memwal.sstable.read import SsTableReader
from lance_memwal.sstable.roll_up import Copy, Keys, encode_roll_up, find_rolled, listed_roll_ups, path_of_roll_up
from lance_memwal.sstable.several import use_roll_ups
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.types import ShardManifest, SsTable

__all__ = ["copy_of", "may_be_due", "roll_up"]

_LOG = logging.getLogger(__name__)
_SIZES = (8, 64, 512)
_FEW_GENERATIONS = 32
_SMALL_ROWS = 16_384  # of a generation whose keys are copied
_SMALL_BYTES = 512 << 10  # of one whose rows are copied
_MOST_BYTES = 32 << 20
_OFFSET_BYTES = 8
_COPY_AT_ONCE = 8  # each waits for several small files


def _go_on() -> None:
    """Nothing speaks against it."""


def may_be_due(generation: int) -> bool:
    """Whether a roll-up may be due once this generation is published."""
    return generation % _SIZES[0] == 0


def roll_up(
    location: Location,
    manifest: ShardManifest,
    schema: TableSchema,
    *,
    above: int = 0,
    at_most: int | None = None,
    few_generations: int = _FEW_GENERATIONS,
    refuse: Callable[[], None] = _go_on,
    look: Callable[[], object] = _go_on,
) -> list[str]:
    """Write the roll-ups that the shard should have and has not, the largest first, `at_most` so many; returns their paths.

    Generations up to `above` are compacted, and none of a roll-up; a shard with less than `few_generations` others needs
    none. `refuse` raises when it is to end: it is asked before every generation that is copied, and before the put. `look`
    raises if the table is another one by then.
    """
    listed = manifest.above(above)
    if not schema.primary_key or len(listed) < few_generations:
        return []
    present = listed_roll_ups(location, manifest.shard_id)
    found = find_rolled(location, manifest.shard_id, listed)
    together = {path: len(rolled.roll_up.sstables) for path, rolled in found.items()}
    written: list[str] = []
    for block in _blocks(listed):
        if at_most is not None and len(written) >= at_most:
            break
        # One that is there and not found is damaged: it is collected, and made again after that.
        is_there = path_of_roll_up(manifest.shard_id, block) in present
        if not is_there and any(together.get(sstable.path, 0) < len(block) for sstable in block):
            written.append(_write(location, manifest.shard_id, block, schema, refuse, look))
            together |= {sstable.path: len(block) for sstable in block}
    return written


def _blocks(listed: Sequence[SsTable]) -> Iterator[list[SsTable]]:
    """The blocks of these generations, which ascend, that make a roll-up; the largest first."""
    last = listed[-1].generation
    for size in reversed(_SIZES):
        for number, members in groupby(listed, partial(_number_of_block, size)):
            block = list(members)
            is_over = (number + 1) * size <= last
            if is_over and 2 * len(block) >= size and sum(map(_size_of, block)) <= _MOST_BYTES:
                yield block


def _number_of_block(size: int, sstable: SsTable) -> int:
    return (sstable.generation - 1) // size


def _size_of(sstable: SsTable) -> int:
    """What a generation adds to a roll-up, at most."""
    if not _is_small(sstable):
        return BLOOM_BYTES
    rows_bytes = sstable.in_memory_bytes if _has_small_rows(sstable) else 0
    keys_bytes = (sstable.primary_key_bytes or 0) + 2 * _OFFSET_BYTES * (sstable.physical_rows or 0)
    return BLOOM_BYTES + keys_bytes + (rows_bytes or 0)


def _is_small(sstable: SsTable) -> bool:
    known = sstable.physical_rows is not None and sstable.primary_key_bytes is not None  # else nobody knows how large
    return known and (sstable.physical_rows or 0) <= _SMALL_ROWS


def _has_small_rows(sstable: SsTable) -> bool:
    return sstable.in_memory_bytes is not None and sstable.in_memory_bytes <= _SMALL_BYTES


def _write(
    location: Location,
    shard_id: str,
    block: Sequence[SsTable],
    schema: TableSchema,
    refuse: Callable[[], None],
    look: Callable[[], object],
) -> str:
    def copied(reader: SsTableReader) -> Copy:
        refuse()
        return copy_of(reader, schema)

    readers = [SsTableReader(location, shard_id, sstable) for sstable in block]
    use_roll_ups(readers)
    data = encode_roll_up(list(in_order(copied, readers, location.at_once(_COPY_AT_ONCE), "memwal-roll-up")))
    path = path_of_roll_up(shard_id, block)
    refuse()
    look()
    reach("rollup.before_put")
    location.store.make_directory(paths.roll_up_dir(shard_id))
    try:
        location.store.put_new(path, data, make_directory=False)
    except ObjectExistsError:
        _LOG.debug("somebody else made the same roll-up, or it is damaged [path=%s]", path)
    reach("rollup.after_put")
    return path


def copy_of(reader: SsTableReader, schema: TableSchema) -> Copy:
    """What a roll-up holds of a generation."""
    sstable, keys, rows = reader.sstable, None, None
    if _is_small(sstable) and reader.knows_every_key:
        keys = Keys(*reader.entries(), reader.tombstones(schema))
        rows = reader.stored.every_row() if _has_small_rows(sstable) else None
    manifest = reader.stored.newest_manifest_bytes()
    if manifest is not None:
        with suppress(UnsupportedFormatError):  # what is cut must not be kept for ever because of one bad read
            parse_lance_manifest(manifest, path=reader.stored.directory)
    return Copy(
        sstable,
        reader.sidecar.filter_bytes(),
        manifest,
        keys,
        rows,
        None if rows is None else reader.stored.columns,
    )
