"""Repair: what can be put right without a person, and what a person decided.

Owns `repair_table`. Invariants:

1. Only structural damage is mended (a cut stream, a wrong checksum, an empty file), seen in several reads. What is whole
   but not understood is reported, never touched: it may hold rows that another version acknowledged.
2. Nothing is deleted. The bytes of a torn entry are first copied aside and read back. Then a mark-only entry takes their place
   in one atomic replacement: a freed position below a live writer would defeat the next sentinel.
3. Only the last entry of a log is replaced without being asked to: one that is damaged further down may hold acknowledged
   rows. A person may accept that loss. Then it is replaced in the same way, what is given up is written down beside its
   bytes, and the mark has the epoch of the entries above it: a higher one would make them stale. It is refused where the
   entries that remain could not be replayed, since their generations would skip a number.
4. A MemWAL index that was lost (base overwritten or restored, index dropped) is brought back as the newest version of the
   base table had it, with marks that hold for the base as it is: those of before if only the index was dropped, those
   of the restored state after a restore. If rows are missing then, the index stays away until a person accepts the loss
   (`restored="keep_base"`) or restores a later version. An overwritten base table keeps the old marks: the overwrite
   meant the compacted rows, too. It is refused where the columns no longer fit by name, id and type.
5. `restored="keep_base"` records generations that no shard lists and that the base table lost as compacted. Reads, compaction
   and GC then take the base table as it is. Listed generations stay fresh. The rows can also come back without a repair: Lance
   keeps the newer base versions, and restoring one of them ends the state.
6. Which column a reused field id means (RFC 0036) is decided by a person, with `reused_ids`. The decision is stored among the
   writer settings of the table. It holds for rows of base versions up to the one at which it was made, and only where no kept
   version decides.
7. A dry run writes nothing and says what would be done.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.crash_points import reach
from lance_memwal.errors import ConflictError, CorruptDataError, MemWalError, UnavailableError, UnsupportedFormatError
from lance_memwal.lance.base import BaseTable, lance_errors
from lance_memwal.lance.column_past import RULINGS_KEY, Ruling, rulings_of
from lance_memwal.lance.commit import mark
from lance_memwal.lance.details import MemWalDetails
from lance_memwal.lance.live_details import change_details
from lance_memwal.lance.marks import compacted, counted
from lance_memwal.lance.mem_wal_index import commit_entry
from lance_memwal.lance.restored import REMEDY, given_up, held_marks
from lance_memwal.log.entry import decode_entry, encode_mark
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.reading import list_positions, read_transactions
from lance_memwal.log.shards import list_shards, newest_manifests
from lance_memwal.log.tail import may_follow
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.store.sequenced import attempts
from lance_memwal.types import ShardManifest
from lance_memwal.upkeep.reports import Problem, RepairAction, RepairReport
from lance_memwal.upkeep.verify import EntryInfo, ShardFindings, damaged_newest, inspect_base, inspect_shard

_LOG = logging.getLogger(__name__)


def repair_table(
    location: Location,
    newest_base: Callable[[], BaseTable],
    *,
    dry_run: bool = True,
    restored: Literal["keep_base"] | None = None,
    reused_ids: Literal["values", "null"] | None = None,
    accept_loss: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> RepairReport:
    """Repair a lost MemWAL index, a restored base table, truncated last entries and undecided columns, as far as allowed.

    Returns what was done and which problems remain. With `accept_loss` entries that are damaged further down are given up, too.
    """
    actions: list[RepairAction] = []
    shards = list_shards(location)
    is_newest = damaged_newest(newest_base()) is None  # nothing is decided by an older version than the table's own
    if shards and is_newest and newest_base().details is None:
        actions += _bring_index_back(newest_base(), clock, keep_base=restored is not None, dry_run=dry_run)
    if restored is not None and is_newest:
        actions += settle_restored(location, newest_base, dry_run=dry_run)
    if reused_ids is not None and is_newest:
        found = [inspect_shard(location, shard_id, newest_base, clock=clock).undecided for shard_id in shards]
        actions += decide_reused_ids(newest_base, set().union(*found), reused_ids == "values", clock, dry_run=dry_run)
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
    return RepairReport(dry_run, tuple(actions), inspect_base(newest_base(), shards) + problems)


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
    known = read_transactions(location, manifest, below, tag=tag)
    latest = ShardManifestStore(location, shard_id).read_latest()
    if latest is None or latest.writer_epoch != manifest.writer_epoch or location.store.get(path) != torn:
        raise ConflictError(f"shard {shard_id} was taken over while it was repaired; run verify again")
    location.store.put(path, encode_mark(epoch, known.mark(table=tag)), sync=True)
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


def _bring_index_back(base: BaseTable, clock: Clock, *, keep_base: bool, dry_run: bool) -> list[RepairAction]:
    where = base.location.describe()
    old = _last_with_index(base)
    if old is None or old.details is None:
        what = "the MemWAL index is gone and no retained version of the base table has it: enable the table again"
        return [RepairAction(where, what)]
    misfit = _misfit(old, base)
    if misfit is not None:
        return [RepairAction(where, f"the rows of the shards do not fit the new base table: {misfit}")]
    actions, details = _details_that_hold(base, old, old.details, keep_base=keep_base, dry_run=dry_run)
    if details is None:
        return actions
    what = f"bring back the MemWAL index of base version {old.version}, and with it the rows of the shards"
    if not dry_run:
        reach("repair.before_index")
        commit_entry(base, details, clock.uuid4())
        _LOG.warning("brought the MemWAL index back [table=%s, from_version=%d]", where, old.version)
    return [*actions, RepairAction(where, what, done=not dry_run)]


def _details_that_hold(
    base: BaseTable, old: BaseTable, details: MemWalDetails, *, keep_base: bool, dry_run: bool
) -> tuple[list[RepairAction], MemWalDetails | None]:
    """The `details` of the older version with marks that are true of `base`; None if a person must decide first."""
    held = held_marks(base.location, base.version)
    if held.version >= old.version:  # above it, the version that overwrote the table
        return [], details
    actions, marks = settle_lost(base.location, held.marks, keep_base=keep_base, dry_run=dry_run)
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


# ------------------------------------------------------------------------------------------------------ after restore


@dataclass(frozen=True, slots=True)
class _Gap:
    """Generations of one shard that neither the shard nor the base table has."""

    manifest: ShardManifest
    missing: range

    def action(self, what: str, *, done: bool = False) -> RepairAction:
        where = paths.manifest_path(self.manifest.shard_id, self.manifest.version)
        return RepairAction(where, what.format(generations=list(self.missing)), done=done)


def settle_restored(location: Location, newest_base: Callable[[], BaseTable], *, dry_run: bool) -> list[RepairAction]:
    """Accept that rows are missing because the base table was restored; returns no actions if none are missing."""
    for _ in attempts(f"the table at {location.describe()}"):
        manifests = list(newest_manifests(location))
        base = newest_base()  # read after the manifests, so that a compaction in between is not taken for a restore
        gaps = [] if base.details is None else _gaps(manifests, compacted(base))
        try:
            if gaps and not dry_run:
                marks = _accepted(gaps)
                mark(base, counted(base, marks) if base.primary_key else marks)
                _LOG.warning("accepted a restored base table [table=%s]", base.location.describe())
            return _keep_base(gaps, dry_run=dry_run)
        except ConflictError as error:
            _LOG.info("the table changed during a repair, retrying: %s", error)
    raise AssertionError("the last attempt returns or raises")


def settle_lost(
    location: Location, marks: Mapping[str, int], *, keep_base: bool, dry_run: bool
) -> tuple[list[RepairAction], Mapping[str, int] | None]:
    """Decide about rows that a base table without MemWAL index, which has the rows up to `marks`, has lost.

    Returns the actions, and the marks for the index to bring back; None if the index must stay away.
    """
    gaps = _gaps(newest_manifests(location), marks)
    if gaps and not keep_base:
        what = "the base table was restored to a state without the rows of generations {generations}: " + REMEDY
        return [gap.action(what) for gap in gaps], None
    return _keep_base(gaps, dry_run=dry_run), {**marks, **_accepted(gaps)}


def _gaps(manifests: Iterable[ShardManifest], marks: Mapping[str, int]) -> list[_Gap]:
    found = [_Gap(manifest, given_up(manifest, marks.get(manifest.shard_id, 0))) for manifest in manifests]
    return [gap for gap in found if gap.missing]


def _accepted(gaps: list[_Gap]) -> dict[str, int]:
    return {gap.manifest.shard_id: gap.missing[-1] for gap in gaps}


def _keep_base(gaps: list[_Gap], *, dry_run: bool) -> list[RepairAction]:
    what = "keep the base table as it is: rows that generations {generations} added to later versions of it are lost"
    return [gap.action(what, done=not dry_run) for gap in gaps]


# --------------------------------------------------------------------------------------------------------- reused ids


def decide_reused_ids(
    newest_base: Callable[[], BaseTable],
    undecided: Collection[tuple[int, str]],
    keeps_values: bool,
    clock: Clock,
    *,
    dry_run: bool,
) -> list[RepairAction]:
    """Decide for undecided columns (field id and stored name) whether their values are shown, or read as null."""
    base = newest_base()
    rulings = [Ruling(number, name, base.version, keeps_values) for number, name in sorted(undecided)]

    def decided(newest: BaseTable) -> MemWalDetails:
        settings = newest.need_details().writer_config_defaults
        known = [r for r in rulings_of(settings.get(RULINGS_KEY)) if (r.id, r.name) not in undecided]
        return replace(
            newest.need_details(), writer_config_defaults={**settings, RULINGS_KEY: json.dumps([*known, *rulings])}
        )

    if rulings and not dry_run:
        change_details(newest_base, decided, clock)
        _LOG.warning("decided about reused field ids [table=%s, columns=%d]", base.location.describe(), len(rulings))
    what = (
        "are shown in the column that has it today" if keeps_values else "are read as null, and compaction drops them"
    )
    return [
        RepairAction(base.location.describe(), f"values of {r.name!r} (field id {r.id}) {what}", done=not dry_run)
        for r in rulings
    ]
