"""A base table that was restored to a version before a compaction: rows that neither it nor a shard has any more.

Owns the rule by which that is known. Invariants:

1. Generations below the lowest listed one were compacted and trimmed. A base version whose mark is below them does not
   hold their rows. The manifest must have been read before the base version: a compaction in between only raises marks.
2. It is a restore if an older version of the same table has a higher mark, or if old versions are missing, so that none
   can be seen. Otherwise somebody else emptied the list without leaving marks, which other compactors may do: reads go
   on, since the rows are in the base table; `verify` tells.

Old versions are looked at only where such a gap is found, each once per process.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from memwal.base_table import BaseTable
from memwal.errors import ObjectNotFoundError, TableReplacedError
from memwal.format.index_details import INDEX_NAME, decode_details
from memwal.format.lance_manifest import old_version_path, parse_lance_manifest, version_path
from memwal.store.location import Location
from memwal.types import ShardManifest

__all__ = ["REMEDY", "check_not_restored", "given_up", "is_restored", "unlisted_mark"]

REMEDY = (
    "decide with Table.repair(dry_run=False, restored=...): 'keep_base' takes the base table as it is, and what was "
    "compacted after the restored version is gone; 'bring_back' lists these generations again, if they still exist"
)
_KEPT = 1024

_lock = threading.RLock()  # reentrant: a signal handler may read, too
_known: OrderedDict[tuple[str, str | None, str, int], tuple[int, bool]] = OrderedDict()


def unlisted_mark(manifest: ShardManifest) -> int:
    """The generation up to which the shard lists nothing any more: somebody holds all of it elsewhere."""
    return min((sstable.generation for sstable in manifest.sstables), default=manifest.current_generation) - 1


def given_up(manifest: ShardManifest, mark: int) -> range:
    """The published generations that neither the shard nor a base version with this mark has; mostly none."""
    return range(mark + 1, max(mark, unlisted_mark(manifest)) + 1)


def check_not_restored(base: BaseTable, manifest: ShardManifest, mark: int) -> None:
    """Return only if no row is missing because the base was restored; `manifest` was read before `base`."""
    missing = given_up(manifest, mark)
    if missing and is_restored(base, manifest.shard_id, mark):
        raise TableReplacedError(
            f"the base table at {base.location.describe()} was restored to a state before {_named(missing)} of shard "
            f"{manifest.shard_id} came into it, so that their rows are missing; {REMEDY}"
        )


def _named(missing: range) -> str:
    return f"generation {missing[0]}" if len(missing) == 1 else f"generations {missing[0]} to {missing[-1]}"


def is_restored(base: BaseTable, shard_id: str, mark: int) -> bool:
    """Whether an older version of this table has, or may have had, a higher mark of the shard than `mark`."""
    key = (base.location.key, base.table_id, shard_id, mark)
    with _lock:
        through, restored = _known.get(key, (0, False))
    if not restored:
        restored = _had_more(base, shard_id, mark, through)
    with _lock:
        _known[key] = (base.version, restored)
        _known.move_to_end(key)
        if len(_known) > _KEPT:
            _known.popitem(last=False)
    return restored


def _had_more(base: BaseTable, shard_id: str, mark: int, through: int) -> bool:
    for version in range(base.version - 1, through, -1):
        data = _manifest_bytes(base.location, version)
        if data is None:
            return True
        entry = parse_lance_manifest(data).index(INDEX_NAME)
        if entry is None:  # before this version the table was another one
            return False
        if decode_details(entry.details).compacted.get(shard_id, 0) > mark:
            return True
    return False


def _manifest_bytes(location: Location, version: int) -> bytes | None:
    for path in (version_path(version), old_version_path(version)):
        try:
            return location.store.get(path)
        except ObjectNotFoundError:
            continue
    return None
