"""Reading the log of a shard: which entries are there, what they say, and the transactions that they know.

Owns the reads that writers, readers, feeds and maintenance share. Invariants:

1. Nothing here writes.
2. A position that is missing below another one is an error, never the end.
3. An entry of another table (RFC 0004) takes its position and says nothing: it is a mark, and what lies above a missing
   position counts only if it is ours.
4. Transactions are those of the newest whole map and of all entries above it.
5. `with_texts` makes texts of the JSON of many entries together: Lance converts a thousand values at the price of one. It reads
   ahead a bounded number of entries and bytes, and keeps JSON that cannot be converted: adapting the rows reports it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from types import MappingProxyType
from typing import TypeAlias

import pyarrow as pa

from lance_memwal.clock import SYSTEM_CLOCK, Clock, in_order
from lance_memwal.errors import CorruptDataError, InvalidInputError, ObjectNotFoundError
from lance_memwal.log.blob_targets import with_blobs
from lance_memwal.log.entry import EntryDecoder, decode_entry
from lance_memwal.log.footer import decode_footer
from lance_memwal.log.transactions import ShardTime, TransactionMap, is_whole
from lance_memwal.rows.json_values import decoded, holds_json, is_json_bytes, texts_field
from lance_memwal.rows.schema import TableSchema
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.types import EntryFooter, ShardManifest, WalEntry

_TAIL_BYTES = 64 * 1024
_READ_AHEAD = 8
_LOOKS = "memwal-look-back"
_LONGEST_GAP = 256  # as many entries as there are between two whole maps; what is longer was collected
Footers: TypeAlias = Mapping[int, EntryFooter | None]
_NO_FOOTERS: Footers = MappingProxyType({})


def list_positions(location: Location, shard_id: str) -> list[int]:
    """Every WAL position on storage, ascending; stray names do not count."""
    names = location.store.list_names(paths.wal_dir(shard_id))
    return sorted(p for p in map(paths.parse_entry_name, names) if p is not None)


def tail_positions(location: Location, manifest: ShardManifest) -> list[int]:
    """The WAL positions on storage after the cursor, ascending."""
    cursor = manifest.replay_after_wal_entry_position
    return [position for position in list_positions(location, manifest.shard_id) if position > cursor]


def own_end(
    location: Location, shard_id: str, positions: list[int], tag: str | None, footers: Footers = _NO_FOOTERS
) -> list[int]:
    """`positions` up to the newest entry that may be of the table with this tag; `footers` were read already."""
    while positions and tag is not None and not _is_own(location, shard_id, positions[-1], tag, footers):
        positions = positions[:-1]
    return positions


def _is_own(location: Location, shard_id: str, position: int, tag: str, footers: Footers) -> bool:
    footer = _footer_at(location, shard_id, position, footers)
    return footer is None or footer.is_of(tag)


def tags_of(location: Location, shard_id: str, positions: list[int]) -> set[str]:
    """The tags of all tables that wrote these entries."""
    footers = in_order(partial(_footer_at, location, shard_id), positions, location.at_once(_READ_AHEAD), _LOOKS)
    return {footer.table for footer in footers if footer is not None and footer.table is not None}


def read_run(
    location: Location,
    shard_id: str,
    start: int,
    end: int,
    *,
    tag: str | None = None,
    looked: dict[int, WalEntry] | None = None,
) -> Iterator[WalEntry]:
    """The entries of `[start, end)` in order; a missing one is an error, never the tip.

    `looked` are entries that were read by this function before: entries never change, so those need no second read. They
    are taken out, so that memory holds them once.

    Entries of another table than the one with this tag count as marks; where nothing but such entries lies above a
    missing position, the log ends there. On object stores a bounded number of reads runs ahead of the consumer.
    """
    decoder = EntryDecoder()
    while looked is not None and start < end and start in looked:
        yield looked.pop(start)
        start += 1
    for position, (path, data) in zip(range(start, end), _fetch(location, shard_id, start, end), strict=True):
        if data is None:
            if not _goes_on(location, shard_id, position, end, tag):
                return
            raise CorruptDataError("WAL entry is missing inside the log", path=path, position=position)
        yield _as_ours(location, shard_id, decoder.decode(data, position, path=path), tag)


def is_missing(location: Location, error: CorruptDataError) -> bool:
    """Whether what `error` is about is not there at all: an entry that is there may be damaged, but was not collected."""
    if error.path is None:
        return True
    try:
        location.store.head(error.path)
    except ObjectNotFoundError:
        return True
    return False


def read_next(
    location: Location, shard_id: str, start: int, most: int, *, tag: str | None, at_once: int = 1
) -> Iterator[WalEntry]:
    """At most `most` entries from `start` on, up to the first missing position. Entries above it may exist.

    `at_once` requests run at the same time on an object store.
    """
    decoder = EntryDecoder()
    found = _fetch(location, shard_id, start, start + most, at_once)
    for position, (path, data) in zip(range(start, start + most), found, strict=False):
        if data is None:
            return
        yield _as_ours(location, shard_id, decoder.decode(data, position, path=path), tag)


def _as_ours(location: Location, shard_id: str, entry: WalEntry, tag: str | None) -> WalEntry:
    """An entry as it counts in the log of the table with this tag."""
    return with_blobs(location, shard_id, entry) if entry.is_of(tag) else entry.as_mark()


def read_tail(
    location: Location, manifest: ShardManifest, end: int | None = None, *, tag: str | None, start: int | None = None
) -> Iterator[WalEntry]:
    """The entries after the cursor, or from `start` on, in order: `read_run` up to `end`, or to the newest on storage."""
    if start is None:
        start = manifest.replay_after_wal_entry_position + 1
    if end is None:
        end = max([start, *(position + 1 for position in tail_positions(location, manifest)[-1:])])
    return read_run(location, manifest.shard_id, start, end, tag=tag)


def tail_end(location: Location, manifest: ShardManifest, *, tag: str | None) -> int:
    """The first position after the newest entry, by a listing alone; `CorruptDataError` if one is missing below it."""
    start, found = manifest.replay_after_wal_entry_position + 1, tail_positions(location, manifest)
    if found != list(range(start, start + len(found))):  # what another table left above a hole does not count
        found = own_end(location, manifest.shard_id, found, tag)
    if found != list(range(start, start + len(found))):
        raise CorruptDataError("WAL entry is missing inside the log", path=paths.wal_dir(manifest.shard_id))
    return start + len(found)


def _goes_on(location: Location, shard_id: str, position: int, end: int, tag: str | None) -> bool:
    """Whether the log of our table goes on above a missing position; without a tag everything is ours."""
    if tag is None:
        return True
    above = [p for p in list_positions(location, shard_id) if position < p < end]
    return not above or bool(own_end(location, shard_id, above, tag))


def _fetch(
    location: Location, shard_id: str, start: int, end: int, at_once: int = _READ_AHEAD
) -> Iterator[tuple[str, bytes | None]]:
    """The path of each position, and what is there."""
    directory = paths.wal_dir(shard_id)

    def read(position: int) -> tuple[str, bytes | None]:
        path = paths.entry_path_below(directory, position)
        try:
            return path, location.store.get(path)
        except ObjectNotFoundError:
            return path, None

    return in_order(read, range(start, end), location.at_once(at_once), "memwal-read-ahead")


# -------------------------------------------------------------------------------------------------- its transactions


def read_transactions(
    location: Location,
    manifest: ShardManifest,
    positions: list[int],
    clock: Clock = SYSTEM_CLOCK,
    *,
    tag: str | None = None,
    footers: Footers = _NO_FOOTERS,
) -> TransactionMap:
    """The transactions in the log of a shard: the newest whole map and all that came after it.

    `tag` is that of the table: what entries of another one say does not count. `manifest` was read before `positions`
    were listed: a bulk mark that it has not reached does not count. `footers` are those that were read already.
    """
    newest = _newest_footers(location, manifest.shard_id, positions, tag, footers)
    newest_ms = max((footer.written_ms or 0 for _, footer in newest), default=0)
    known = TransactionMap({}, ShardTime(clock, newest_ms))
    for position, footer in reversed(newest):
        known.take(footer, decided=position <= manifest.replay_after_wal_entry_position)
    return known


def _newest_footers(
    location: Location, shard_id: str, positions: list[int], tag: str | None, footers: Footers
) -> list[tuple[int, EntryFooter]]:
    """The footers from the newest entry down to the one with the newest whole map; other implementations have none."""
    read = partial(_footer_at, location, shard_id, known=footers)
    found: list[tuple[int, EntryFooter]] = []
    newest_first, step = _without_gaps(positions)[::-1], 1  # a sentinel answers at once; a long log is read in parallel
    while newest_first:
        at_once = location.at_once(_READ_AHEAD)
        for position, footer in zip(newest_first, in_order(read, newest_first[:step], at_once, _LOOKS), strict=False):
            if footer is not None and footer.is_of(tag):
                found.append((position, footer))
                if is_whole(footer):
                    return found
        newest_first, step = newest_first[step:], min(step * _READ_AHEAD, _READ_AHEAD**2)
    return found


def _without_gaps(positions: list[int]) -> list[int]:
    """`positions`, and those that a listing may have missed: above the newest whole map nothing is ever collected."""
    filled = positions[:1]
    for below, above in pairwise(positions):
        filled += range(below + 1, above + 1) if above - below <= _LONGEST_GAP else (above,)
    return filled


def _footer_at(location: Location, shard_id: str, position: int, known: Footers = _NO_FOOTERS) -> EntryFooter | None:
    if position in known:
        return known[position]
    path = paths.wal_entry_path(shard_id, position)
    try:
        tail = location.store.get_tail(path, _TAIL_BYTES)
        found = decode_footer(tail, path=path)
        if found is not None:
            return found
        data = tail if len(tail) < _TAIL_BYTES else location.store.get(path)
    except ObjectNotFoundError:
        return None
    return decode_entry(data, position, path=path).footer  # no footer, or a map larger than the tail


def written_ms_at(location: Location, shard_id: str, position: int) -> int | None:
    """When the entry at a position was written, as `written_ms` says it."""
    return written_ms(location, shard_id, position, _footer_at(location, shard_id, position))


def written_ms(location: Location, shard_id: str, position: int, footer: EntryFooter | None) -> int | None:
    """When an entry was written: what its footer says, else when the store got it; None if it is not there."""
    if footer is not None and footer.written_ms is not None:
        return footer.written_ms
    try:
        return location.store.head(paths.wal_entry_path(shard_id, position)).modified_ms
    except ObjectNotFoundError:
        return None


_AT_ONCE = 512
_AT_ONCE_BYTES = 1 << 20
_Item: TypeAlias = tuple[int, WalEntry]


def with_texts(items: Iterable[_Item], schema: TableSchema) -> Iterator[_Item]:
    """Entries with their generations, JSON columns as texts; those of a table without JSON as they are."""
    if not any(holds_json(column.type) for column in schema.columns):
        yield from items
        return
    waiting: list[_Item] = []
    size_bytes = 0
    for item in items:
        waiting.append(item)
        size_bytes += sum(batch.nbytes for batch in item[1].batches)
        if len(waiting) >= _AT_ONCE or size_bytes >= _AT_ONCE_BYTES:
            yield from _converted(waiting)
            waiting, size_bytes = [], 0
    yield from _converted(waiting)


def _converted(items: list[_Item]) -> list[_Item]:
    batches = [list(entry.batches) for _, entry in items]
    places = [
        (number, at, column)
        for number, listed in enumerate(batches)
        for at, batch in enumerate(listed)
        for column, field in enumerate(batch.schema)
        if is_json_bytes(field)
    ]
    if not places:
        return items
    stored = [batches[number][at].column(column) for number, at, column in places]
    try:
        texts = decoded(pa.concat_arrays([array.cast(pa.large_binary()) for array in stored]))
    except InvalidInputError:
        return items
    start = 0
    for (number, at, column), array in zip(places, stored, strict=True):
        batch = batches[number][at]
        field = texts_field(batch.schema.field(column))
        batches[number][at] = batch.set_column(column, field, texts.slice(start, len(array)))
        start += len(array)
    return [(g, replace(entry, batches=tuple(b))) for (g, entry), b in zip(items, batches, strict=True)]
