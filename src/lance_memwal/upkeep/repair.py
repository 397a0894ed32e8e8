"""Repair: what can be put right without a person, and nothing else.

Owns `repair_table`. Invariants:

1. Only structural damage is mended (a cut stream, a wrong checksum, an empty file), seen in several reads. What is whole
   but not understood is reported, never touched: it may hold rows that another version acknowledged.
2. Nothing is deleted but roll-ups whose own checksums do not hold (V-14): they are copies. The bytes of a torn entry are first
   copied aside and read back; then a mark-only entry takes their place in one atomic replacement. A freed position below
   a living writer would defeat the next sentinel.
3. Only the last entry of a log is replaced without being asked to: one that is damaged further down may hold acknowledged
   rows. A person may accept that loss. Then it is replaced in the same way, what is given up is written down beside its
   bytes, and the mark has the epoch of the entries above it: a higher one would make them stale. It is refused where the
   entries that remain could not be replayed, since their generations would skip a number.
4. A MemWAL index that was lost (base overwritten or restored, index dropped) is brought back as the newest version of the
   base table had it, with marks that hold for the base as it is: those of before if only the index was dropped, those
   of the restored state after a restore. If rows are missing then, a person decides, and without a decision the index
   stays away. An overwritten base keeps the old marks unless its compacted rows are asked for: whoever overwrote it
   meant them, too. It is refused where the columns no longer fit by name, id and type.
5. A dry run writes nothing and says what would be done.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.crash_points import reach
from lance_memwal.errors import ConflictError, CorruptDataError, MemWalError, UnavailableError, UnsupportedFormatError
from lance_memwal.lance.base import BaseTable, lance_errors
from lance_memwal.lance.details import MemWalDetails
from lance_memwal.lance.marks import counted
from lance_memwal.lance.mem_wal_index import commit_entry
from lance_memwal.lance.restored import held_marks
from lance_memwal.log.entry import decode_entry, encode_mark
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.reading import list_positions, shard_transactions
from lance_memwal.log.shards import list_shards
from lance_memwal.log.tail import may_follow
from lance_memwal.sstable.roll_up import forget_roll_up
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.types import ShardManifest
from lance_memwal.upkeep.after_restore import Restored, settle_lost, settle_restored
from lance_memwal.upkeep.reports import Problem, RepairAction, RepairReport
from lance_memwal.upkeep.verify import EntryInfo, ShardFindings, damaged_newest, inspect_base, inspect_shard
from lance_memwal.upkeep.verify_roll_ups import damaged_roll_ups, without_directory

__all__ = ["repair_table"]

_LOG = logging.getLogger(__name__)


def repair_table(
    location: Location,
    newest_base: Callable[[], BaseTable],
    *,
    dry_run: bool = True,
    restored: Restored | None = None,
    accept_loss: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> RepairReport:
    """Put right what can be: lost MemWAL index, restored base, torn last entries. Reports what it did and what is left.

    With `accept_loss` entries that are damaged further down are given up, too.
    """
    actions: list[RepairAction] = []
    shards = list_shards(location)
    is_newest = damaged_newest(newest_base()) is None  # nothing is decided by an older version than the table's own
    if shards and is_newest and newest_base().details is None:
        actions += _bring_index_back(newest_base(), restored, clock, dry_run=dry_run)
    if restored is not None and is_newest:
        actions += settle_restored(location, newest_base, restored, clock, dry_run=dry_run)
    problems: list[Problem] = []
    for shard_id in shards:
        findings = inspect_shard(location, shard_id, newest_base, clock=clock)
        mended = [] if not accept_loss else _give_up(location, findings, clock, newest_base().tag, dry_run=dry_run)
        last = _mend_last_entry(location, findings, clock, newest_base().tag, dry_run=dry_run)
        mended += [] if last is None else [last]
        actions += mended
        if any(action.done for action in mended):
            findings = inspect_shard(location, shard_id, newest_base, clock=clock)
        problems += findings.problems
        if findings.manifest is not None:
            try:
                actions += _remove_roll_ups(location, shard_id, dry_run=dry_run)
            except CorruptDataError as error:
                problems.append(without_directory(shard_id, error))
    return RepairReport(dry_run, tuple(actions), inspect_base(newest_base(), shards) + problems)


def _remove_roll_ups(location: Location, shard_id: str, *, dry_run: bool) -> list[RepairAction]:
    """Remove the damaged roll-ups of a shard: a flush or a maintenance makes them again."""
    actions = []
    for path, what in damaged_roll_ups(location, shard_id).items():
        if not dry_run:
            location.store.delete(path)
            forget_roll_up(location, path)
            _LOG.warning("removed a damaged roll-up [path=%s]: %s", path, what)
        actions.append(RepairAction(path, f"{what}: remove it, nothing but a copy is lost", done=not dry_run))
    return actions


# ------------------------------------------------------------------------------------------------------ a torn entry


def _mend_last_entry(
    location: Location, findings: ShardFindings, clock: Clock, tag: str | None, *, dry_run: bool
) -> RepairAction | None:
    last = max(findings.entries, default=0)
    if not last or not findings.entries[last].damaged or findings.manifest is None:
        return None
    path = paths.wal_entry_path(findings.shard_id, last)
    aside = paths.quarantine_path(findings.shard_id, last, clock.token_hex(4))
    what = f"the last entry is torn: keep its bytes at {aside} and put an empty entry in its place"
    if dry_run:
        return RepairAction(path, what)
    torn = _put_aside(location, path, last, aside)
    _put_mark(location, findings.manifest, last, torn, tag, max(1, findings.manifest.writer_epoch))
    _LOG.warning("put a torn entry aside [shard=%s, position=%d, copy=%s]", findings.shard_id, last, aside)
    return RepairAction(path, what, done=True)


def _put_aside(location: Location, path: str, position: int, aside: str) -> bytes:
    """The bytes of a damaged entry, of which a copy is durable now."""
    torn = location.store.get(path)
    if not _is_damaged(torn, position):
        raise UnavailableError(
            f"reads of {path} differ: it is damaged in one and whole in another; nothing was replaced"
        )
    location.store.put_new(aside, torn, sync=True)
    if location.store.get(aside) != torn:
        raise UnavailableError(f"the copy at {aside} differs from the torn entry; nothing was replaced")
    reach("repair.after_quarantine")
    return torn


def _is_damaged(data: bytes, position: int) -> bool:
    try:
        decode_entry(data, position)
    except CorruptDataError:
        return True
    except UnsupportedFormatError:
        return False
    return False


def _put_mark(
    location: Location, manifest: ShardManifest, position: int, torn: bytes, tag: str | None, epoch: int
) -> None:
    """Replace the torn entry by a mark that carries the transaction map of everything below it."""
    shard_id = manifest.shard_id
    path = paths.wal_entry_path(shard_id, position)
    below = [p for p in list_positions(location, shard_id) if p < position]
    known = shard_transactions(location, manifest, below, tag=tag)
    latest = ShardManifestStore(location, shard_id).read_latest()
    if latest is None or latest.writer_epoch != manifest.writer_epoch or location.store.get(path) != torn:
        raise ConflictError(f"shard {shard_id} was taken over while it was repaired; run verify again")
    mark = known.mark(table=tag)._replace(delta=None)  # its epoch may be that of an earlier release (RFC 0033)
    location.store.put(path, encode_mark(epoch, mark), sync=True)
    decode_entry(location.store.get(path), position, path=path)


# --------------------------------------------------------------------------------------------------- accepted loss


def _give_up(
    location: Location, findings: ShardFindings, clock: Clock, tag: str | None, *, dry_run: bool
) -> list[RepairAction]:
    """Replace the damaged entries below the last one, lowest first."""
    manifest, last = findings.manifest, max(findings.entries, default=0)
    damaged = [p for p, info in sorted(findings.entries.items()) if info.damaged and p != last]
    if manifest is None or not damaged:
        return []
    if (why := _why_not_replayed(manifest, findings.entries)) is not None:
        return [RepairAction(paths.wal_entry_path(findings.shard_id, damaged[0]), why)]
    return [_give_one_up(location, manifest, findings, position, clock, tag, dry_run=dry_run) for position in damaged]


def _give_one_up(
    location: Location,
    manifest: ShardManifest,
    findings: ShardFindings,
    position: int,
    clock: Clock,
    tag: str | None,
    *,
    dry_run: bool,
) -> RepairAction:
    shard_id, token = manifest.shard_id, clock.token_hex(4)
    path, aside = paths.wal_entry_path(shard_id, position), paths.quarantine_path(shard_id, position, token)
    is_flushed = position <= manifest.replay_after_wal_entry_position
    lost = "its rows are in SSTables" if is_flushed else "rows that only this entry holds are lost"
    what = f"entry {position} is damaged, and {lost}: keep its bytes at {aside} and put an empty entry in its place"
    if dry_run:
        return RepairAction(path, what)
    written = location.store.head(path)
    torn = _put_aside(location, path, position, aside)
    record = {
        "shard": shard_id,
        "position": position,
        "size_bytes": len(torn),
        "written_ms": written.modified_ms,
        "accepted_ms": clock.now_ms(),
        "rows_are_in_sstables": is_flushed,
    }
    location.store.put_new(paths.loss_path(shard_id, position, token), json.dumps(record).encode(), sync=True)
    _put_mark(location, manifest, position, torn, tag, _epoch_above(manifest, findings.entries, position))
    _LOG.warning("gave an entry up [shard=%s, position=%d, copy=%s]", shard_id, position, aside)
    return RepairAction(path, what, done=True)


def _epoch_above(manifest: ShardManifest, entries: Mapping[int, EntryInfo], position: int) -> int:
    """The lowest epoch above a position, which no entry there is stale under."""
    above = [info.writer_epoch for p, info in entries.items() if p > position and info.readable and not info.is_foreign]
    return min(above, default=max(1, manifest.writer_epoch))


def _why_not_replayed(manifest: ShardManifest, entries: Mapping[int, EntryInfo]) -> str | None:
    """Why the entries that can be read could not be replayed without the others; None if they can."""
    newest, is_first = manifest.current_generation, True
    for position, info in sorted(entries.items()):
        if position <= manifest.replay_after_wal_entry_position or not info.rows:
            continue
        generation = newest if info.generation is None else info.generation
        if generation < manifest.current_generation:
            continue
        if not may_follow(generation, newest, is_first=is_first):
            return (
                f"a damaged entry has all rows of generation {newest if is_first else newest + 1}, and entry {position} of "
                f"generation {generation} cannot follow without it: restore the object from a backup"
            )
        newest, is_first = generation, False
    return None


# --------------------------------------------------------------------------------------------------- a lost index


def _bring_index_back(base: BaseTable, restored: Restored | None, clock: Clock, *, dry_run: bool) -> list[RepairAction]:
    where = base.location.describe()
    old = _last_with_index(base)
    if old is None or old.details is None:
        what = "the MemWAL index is gone and no retained version of the base table has it: enable the table again"
        return [RepairAction(where, what)]
    misfit = _misfit(old, base)
    if misfit is not None:
        return [RepairAction(where, f"the rows of the shards do not fit the new base table: {misfit}")]
    actions, details = _details_that_hold(base, old, old.details, restored, clock, dry_run=dry_run)
    if details is None:
        return actions
    what = f"bring back the MemWAL index of base version {old.version}, and with it the rows of the shards"
    if not dry_run:
        reach("repair.before_index")
        commit_entry(base, details, clock.uuid4())
        _LOG.warning("brought the MemWAL index back [table=%s, from_version=%d]", where, old.version)
    return [*actions, RepairAction(where, what, done=not dry_run)]


def _details_that_hold(
    base: BaseTable, old: BaseTable, details: MemWalDetails, restored: Restored | None, clock: Clock, *, dry_run: bool
) -> tuple[list[RepairAction], MemWalDetails | None]:
    """The `details` of the older version with marks that are true of `base`; None if a person must decide first."""
    held = held_marks(base.location, base.version)
    was_overwritten = held.version > old.version
    if held.version == old.version or (was_overwritten and restored != "bring_back"):
        return [], details
    actions, marks = settle_lost(base.location, base, held.marks, restored, clock, dry_run=dry_run)
    if marks is None:
        return actions, None
    compacted = counted(old, marks) if base.primary_key else dict(marks)
    return actions, replace(details, compacted=compacted, index_catchup={})


def _last_with_index(base: BaseTable) -> BaseTable | None:
    """The newest older version that has a MemWAL index."""
    with lance_errors("listing the versions of the base table"):
        versions = sorted((int(item["version"]) for item in base.dataset.versions()), reverse=True)
    for version in versions:
        if version >= base.version:
            continue
        try:
            older = BaseTable.open(base.location, version=version)
            if older is not None and older.details is not None:
                return older
        except MemWalError as error:
            _LOG.info("a version of the base table cannot be read [version=%d]: %s", version, error)
    return None


def _misfit(old: BaseTable, new: BaseTable) -> str | None:
    """Why rows of the old columns cannot be read under the new ones, or None if they can."""
    if old.primary_key != new.primary_key:
        return f"its key is {list(new.primary_key)}, the shards have {list(old.primary_key)}"
    before = old.columns
    for column in before.columns:
        if column.name not in new.column_ids:
            continue
        if new.column_ids[column.name] != old.column_ids[column.name]:
            return f"column {column.name!r} has another field id"
        if new.schema.field(column.name).type != column.type:
            return f"column {column.name!r} has another type"
    reused = {new.column_ids[name]: name for name in new.column_ids if name not in old.column_ids}
    for name, number in old.column_ids.items():
        if number in reused:
            return f"column {reused[number]!r} has the field id that {name!r} had"
    return None
