"""What may follow what: pure checks of (old manifest, new manifest), run before every manifest commit.

Owns the rules below. They judge one step only, so a manifest that another implementation left in an odd but legal state
(a lagging cursor, a gap, another order of its SSTables) is accepted as `old`; we never add to its oddness. Rules:

I-1  The version is the old one + 1; the first is 1.
I-2  The shard id never changes; spec id and field entries never change once they are set.
I-3  The epoch stays, or rises by exactly 1.
I-4  A commit that raises the epoch (a claim) changes nothing else, and no SEALED shard is claimed.
I-5  The replay cursor and the last-seen position never fall. The cursor rises only in a commit that adds an SSTable,
     and `wal_entry_position_last_seen` is then not below it.
I-6  `current_generation` is at least 1 and rises only by the SSTables that are added.
I-7  Added SSTables are contiguous, begin at the old `current_generation` and end below the new one.
I-8  SSTables are removed from the low end only; the ones that stay are not altered; ascending order, none twice.
I-9  Every added path is well-formed and of its generation.
I-10 A SEALED shard becomes ACTIVE again (the drop that sealed it was aborted) only in a commit that changes nothing else;
     the status is a known one.
I-11 The first manifest is blank: epoch 0 or 1, cursor 0, generation 1, no SSTables, ACTIVE.
I-12 Fields of a newer version stay as they are. (Those of SSTables: I-8.)

A breach is our own bug or a caller's bad function: `InvalidInputError`, and nothing has been written.
"""

from __future__ import annotations

from dataclasses import replace

from lance_memwal.errors import InvalidInputError
from lance_memwal.store.paths import parse_sstable_name
from lance_memwal.types import ShardManifest, ShardStatus, SsTable, check_shard_id


def check_manifest_transition(old: ShardManifest | None, new: ShardManifest) -> None:
    """Return only if `new` may be committed right after `old` (None: as the first manifest), else raise."""
    check_shard_id(new.shard_id)
    _require(isinstance(new.status, ShardStatus), "I-10", f"unknown status {new.status!r}")
    if old is None:
        _check_first(new)
        return
    _require(new.version == old.version + 1, "I-1", f"version {new.version} cannot follow {old.version}")
    _require(new.shard_id == old.shard_id, "I-2", f"shard {old.shard_id} cannot become {new.shard_id}")
    _check_identity(old, new)
    if new.writer_epoch != old.writer_epoch:
        _check_claim(old, new)
        return
    opened = old.status is ShardStatus.SEALED and new.status is ShardStatus.ACTIVE
    alone = new == replace(old, version=new.version, status=new.status)
    _require(not opened or alone, "I-10", "a commit that opens a sealed shard again must change nothing else")
    added = _check_sstables(old, new)
    _check_positions(old, new, bool(added))


def _require(holds: bool, rule: str, text: str) -> None:
    if not holds:
        raise InvalidInputError(f"manifest commit refused, rule {rule}: {text}")


def _check_first(new: ShardManifest) -> None:
    _require(new.version == 1, "I-1", f"the first version is 1, not {new.version}")
    _require(new.writer_epoch in (0, 1), "I-11", f"the first epoch is 0 or 1, not {new.writer_epoch}")
    blank = ShardManifest(
        version=1,
        shard_id=new.shard_id,
        shard_spec_id=new.shard_spec_id,
        shard_field_entries=new.shard_field_entries,
        writer_epoch=new.writer_epoch,
    )
    _require(new == blank, "I-11", "the first manifest of a shard must be blank")


def _check_identity(old: ShardManifest, new: ShardManifest) -> None:
    spec_stays = old.shard_spec_id in (0, new.shard_spec_id)
    _require(spec_stays, "I-2", f"spec id {old.shard_spec_id} cannot become {new.shard_spec_id}")
    entries_stay = old.shard_field_entries in ((), new.shard_field_entries)
    _require(entries_stay, "I-2", "shard field entries cannot change once they are set")
    unknown_stays = (old.unknown, old.shard_field_unknown) == (new.unknown, new.shard_field_unknown)
    _require(unknown_stays, "I-12", "fields of a newer version cannot change")


def _check_claim(old: ShardManifest, new: ShardManifest) -> None:
    rises = new.writer_epoch == old.writer_epoch + 1
    _require(rises, "I-3", f"epoch {new.writer_epoch} cannot follow {old.writer_epoch}")
    _require(old.status is not ShardStatus.SEALED, "I-4", "a sealed shard cannot be claimed")
    copied = replace(old, version=new.version, writer_epoch=new.writer_epoch)
    _require(new == copied, "I-4", "a claim must copy everything but version and epoch")


def _check_sstables(old: ShardManifest, new: ShardManifest) -> list[SsTable]:
    """Check I-6 to I-9 and return the SSTables that `new` adds."""
    known = {sstable.generation: sstable for sstable in old.sstables}
    kept = [sstable for sstable in new.sstables if sstable.generation in known]
    added = [sstable for sstable in new.sstables if sstable.generation not in known]
    for sstable in kept:
        unaltered = known[sstable.generation] == sstable
        _require(unaltered, "I-8", f"the SSTable of generation {sstable.generation} was altered")
    _check_kept(old, kept)
    expected = old.current_generation
    for sstable in added:
        contiguous = sstable.generation == expected
        _require(contiguous, "I-7", f"generation {sstable.generation} was added where {expected} is due")
        well_formed = parse_sstable_name(sstable.path) == sstable.generation
        _require(well_formed, "I-9", f"path {sstable.path[:80]!r} does not fit generation {sstable.generation}")
        expected += 1
    rises = new.current_generation == expected
    _require(rises, "I-6", f"current_generation must be {expected}, not {new.current_generation}")
    _require(expected >= 1, "I-6", "current_generation must be at least 1")
    in_order = list(new.sstables) == kept + added and _same_order(old, kept)
    _require(in_order, "I-8", "SSTables must be listed in ascending order")
    return added


def _check_kept(old: ShardManifest, kept: list[SsTable]) -> None:
    stays = {sstable.generation for sstable in kept}
    _require(len(stays) == len(kept), "I-8", "a generation is listed twice")
    removed = [sstable.generation for sstable in old.sstables if sstable.generation not in stays]
    from_below = not removed or not stays or max(removed) < min(stays)
    _require(from_below, "I-8", "SSTables may be removed from the low end only")


def _same_order(old: ShardManifest, kept: list[SsTable]) -> bool:
    """Ascending, or as another implementation had them."""
    generations = [sstable.generation for sstable in kept]
    stays = set(generations)
    inherited = [sstable.generation for sstable in old.sstables if sstable.generation in stays]
    return generations in (sorted(generations), inherited)


def _check_positions(old: ShardManifest, new: ShardManifest, adds_sstable: bool) -> None:
    before, after = old.replay_after_wal_entry_position, new.replay_after_wal_entry_position
    _require(after >= before, "I-5", f"the replay cursor cannot fall from {before} to {after}")
    _require(after == before or adds_sstable, "I-5", "the replay cursor moves only with the SSTable that it covers")
    seen_before, seen = old.wal_entry_position_last_seen, new.wal_entry_position_last_seen
    _require(seen >= seen_before, "I-5", f"the last-seen position cannot fall from {seen_before} to {seen}")
    _require(after == before or seen >= after, "I-5", f"the last-seen position {seen} is below the cursor {after}")
