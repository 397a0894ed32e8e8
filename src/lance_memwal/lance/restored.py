"""A base table that was restored to a version before a compaction: rows that neither it nor a shard has any more.

Owns the rule by which that is known. Invariants:

1. Generations below the lowest listed one were compacted and trimmed. A base version whose mark is below them does not
   hold their rows. The manifest must have been read before the base version: a compaction in between only raises marks.
2. It is a restore if an older version of the same table has a higher mark, or if old versions are missing, so that none
   can be seen. It is one, too, if the newest versions were removed: then a transaction that started from this version,
   or from a later one, marks generations all of which the shard gave up. (Nobody gives up what is not committed, and an
   attempt at generations that are still listed proves nothing.) Otherwise somebody else emptied the list without
   leaving marks, which other compactors may do: reads go on, since the rows are in the base table; `verify` tells.
3. A version without a MemWAL index holds what the version held that it came from: the one before, or the restored one;
   an overwritten table holds nothing of before.

4. Of old versions the recorded marks count, not what they name beside them (`lance_memwal.lance.marks`, rule 3): a shard
   gives up only what is recorded, and a name stands in every later version until its mark is recorded.

5. A shard whose next generation has a number that the base table calls compacted is older than the base table: a part of a
   backup, or removed and made anew. It is read, since the base table has what it lacks, and takes no writes: they would be
   taken for compacted ones. Here the base version must have been read before the manifest.

Old versions and transactions are looked at only where such a gap is found, once per process and base version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lance_memwal.errors import CorruptDataError, ObjectNotFoundError, TableReplacedError, UnsupportedFormatError
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.details import INDEX_NAME, decode_details
from lance_memwal.lance.manifest import at_version, parse_lance_manifest
from lance_memwal.lance.transaction import (
    TRANSACTIONS_DIR,
    LanceTransaction,
    parse_transaction,
    read_version_of,
    transaction_of,
    transaction_path,
)
from lance_memwal.process.cache import CACHE, SMALL_BYTES
from lance_memwal.store.location import Location
from lance_memwal.types import ShardManifest

REMEDY = (
    "to get the rows back, restore a later version (lance.dataset(uri).versions() lists them): "
    "lance.dataset(uri, version=N).restore(); to accept the loss: Table.repair(restored='keep_base', dry_run=False)"
)


def given_up(manifest: ShardManifest, mark: int) -> range:
    """The published generations that neither the shard nor a base version with this mark has; mostly none."""
    return range(mark + 1, max(mark, manifest.unlisted_mark) + 1)


def check_not_restored(base: BaseTable, manifest: ShardManifest, mark: int) -> None:
    """Return only if no row is missing because the base was restored; `manifest` was read before `base`."""
    missing = given_up(manifest, mark)
    if missing and is_restored(base, manifest, mark):
        raise TableReplacedError(
            f"the base table at {base.location.describe()} was restored to a state before {_named(missing)} of shard "
            f"{manifest.shard_id} came into it, so that their rows are missing; {REMEDY}"
        )


def check_not_older(location: Location, manifest: ShardManifest, mark: int) -> None:
    """Return only if the next generation of the shard counts for readers; `mark` was read before `manifest`."""
    if mark >= manifest.current_generation:
        raise TableReplacedError(
            f"shard {manifest.shard_id} of the table at {location.describe()} is an older state than the base table, which "
            f"has its generations up to {mark}: what is written to generation {manifest.current_generation} would be hidden. "
            "Restore the newest files of the shard, or copy the rows (Table.scan) into a new table"
        )


def _named(missing: range) -> str:
    return f"generation {missing[0]}" if len(missing) == 1 else f"generations {missing[0]} to {missing[-1]}"


def is_restored(base: BaseTable, manifest: ShardManifest, mark: int) -> bool:
    """Whether another version of this table has, or may have had, a higher mark of the shard than `mark`."""
    shard_id = manifest.shard_id
    slot = ("restored", base.location.key, base.table_id, shard_id, mark)
    through, restored = CACHE.find(slot) or (0, False)
    if not restored and base.version != through:
        restored = _had_more(base, shard_id, mark, through) or _lost_more(base, shard_id, given_up(manifest, mark))
    CACHE.keep(slot, (base.version, restored), SMALL_BYTES)
    return restored


def _had_more(base: BaseTable, shard_id: str, mark: int, through: int) -> bool:
    """Whether an older version has a higher mark."""
    for version in range(base.version - 1, through, -1):
        data = _manifest_bytes(base.location, version)
        if data is None:
            return True
        manifest = parse_lance_manifest(data)
        entry = manifest.index(INDEX_NAME)
        if entry is not None and decode_details(entry.details).compacted.get(shard_id, 0) > mark:
            return True
        if entry is None and _begins_anew(transaction_of(base.location, manifest)):
            return False
    return False


def _begins_anew(transaction: LanceTransaction | None) -> bool:
    """Whether the table was another one before a version without a MemWAL index that this transaction made.

    A restore goes on with the same table, and so does what is done to its rows.
    """
    return transaction is None or transaction.overwrites or transaction.changes_indexes


def _lost_more(base: BaseTable, shard_id: str, missing: range) -> bool:
    """Whether a compaction of missing generations was committed on top of this version, and is gone."""
    store = base.location.store
    for name in store.list_names(TRANSACTIONS_DIR):
        started_from = read_version_of(name)
        if started_from is None or started_from < base.version:
            continue
        try:
            transaction = parse_transaction(store.get(transaction_path(name)))
        except (ObjectNotFoundError, CorruptDataError):
            continue  # an attempt that was given up, or never written to its end
        if transaction.marks.get(shard_id, 0) in missing:
            return True
    return False


@dataclass(frozen=True, slots=True)
class Held:
    """Per shard the generation up to which a version holds every row, and the version that says so; 0: none does."""

    marks: Mapping[str, int] = field(default_factory=dict)
    version: int = 0


def held_marks(location: Location, version: int) -> Held:
    """What a version holds, whether or not it has a MemWAL index itself; where history is missing, nothing is known to be."""
    while version > 0:
        data = _manifest_bytes(location, version)
        if data is None:
            break
        try:
            manifest = parse_lance_manifest(data)
            transaction = transaction_of(location, manifest)
        except (CorruptDataError, UnsupportedFormatError):
            break
        entry = manifest.index(INDEX_NAME)
        if entry is not None:
            return Held(decode_details(entry.details).compacted, version)
        if transaction is None:
            break
        if transaction.overwrites:
            return Held({}, version)
        version = min(version - 1, version if transaction.restores is None else transaction.restores)
    return Held()


def _manifest_bytes(location: Location, version: int) -> bytes | None:
    try:
        return at_version(version, location.store.get)
    except ObjectNotFoundError:
        return None
