"""Removing a table: base, logs, SSTables and everything else in its directory.

Owns `drop_table`. Invariants:

1. Nothing is removed while somebody seems to write (a writer of this process, rows of others that came within a minute and
   are not flushed), or if another table lies inside, unless it is forced.
2. The versions of the base table go first, the newest one last: until then the table is whole, afterwards there is none.
   What a crash leaves behind is removed by the next call.
3. What writers and compactions that were still at work bring meanwhile goes, too, unless it is so much that nothing ends.
"""

from __future__ import annotations

import re

from lance_memwal.arguments import check_flag
from lance_memwal.clock import in_order
from lance_memwal.errors import ConflictError, InvalidInputError
from lance_memwal.lance.manifest import VERSIONS_DIR, parse_version_name
from lance_memwal.log.epochs import IDLE_SECONDS
from lance_memwal.log.reading import tail_positions
from lance_memwal.log.shards import list_shards, newest_manifests
from lance_memwal.memtable import live
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.upkeep.tails import is_left_alone
from lance_memwal.write.shared_shards import own_tip

_AT_ONCE = 16
_ROUNDS = 8
_OTHER_TABLE = re.compile(rf"(?!{paths.MEM_WAL_DIR}/|tree/).+/{VERSIONS_DIR}/")  # a tree holds branches of this one


def drop_table(location: Location, tag: str | None, *, force: bool) -> int:
    """Remove the table; returns how many objects that were. `tag` is that of its entries."""
    check_flag("force", force)
    if not force:
        _refuse_writers(location, tag)
    found = _objects(location)
    inside = next((path for path in found if _OTHER_TABLE.match(path)), None)
    if inside is not None and not force:
        raise InvalidInputError(
            f"another table lies inside of {location.describe()}: {inside.rpartition(f'/{VERSIONS_DIR}/')[0]!r}; move it, or "
            "pass force=True to remove it, too"
        )
    newest = max(map(_version_of, filter(_is_version, found)), default=0)
    removed = 0
    for _ in range(_ROUNDS):
        _remove(location, found)
        removed += len(found)
        found = _late(_objects(location), newest)
        if not found:
            location.store.delete("")
            return removed
    raise ConflictError(
        f"the table at {location.describe()} was removed, and somebody goes on to write there; stop that, and drop it again"
    )


def _late(found: list[str], newest: int) -> list[str]:
    """What still came of a table whose newest version was `newest`; what may be another table's, made since, is not."""
    versions = [_version_of(path) for path in found if _is_version(path) and _version_of(path)]
    if versions:
        return found if min(versions) > newest else []
    return [path for path in found if path.startswith(f"{paths.MEM_WAL_DIR}/")]


def _objects(location: Location) -> list[str]:
    return [item.path for item in location.store.list("")]


def _remove(location: Location, found: list[str]) -> None:
    for path in sorted(filter(_is_version, found), key=_version_of):
        location.store.delete(path)
    rest = [path for path in found if not _is_version(path)]
    for _ in in_order(location.store.delete, rest, location.at_once(_AT_ONCE), "memwal-drop"):
        pass


def _is_version(path: str) -> bool:
    return path.rpartition("/")[0] == VERSIONS_DIR


def _version_of(path: str) -> int:
    """The version of a manifest; the hint for readers, which lies beside them, is below all."""
    return parse_version_name(path.rpartition("/")[2]) or 0


def _refuse_writers(location: Location, tag: str | None) -> None:
    if live.all_of(location.key):
        raise ConflictError("a writer of this process has the table open; close it, or pass force=True")
    for manifest in newest_manifests(location, list_shards(location)):
        tip = own_tip(location.key, manifest.shard_id)
        if tip and tail_positions(location, manifest)[-1:] == [tip]:
            continue  # the newest rows are of this process
        if not is_left_alone(location, manifest, idle_seconds=IDLE_SECONDS, tag=tag):
            raise ConflictError(
                f"rows came into shard {manifest.shard_id} within the last minute: somebody seems to write; close that "
                "writer or stop that stream, or pass force=True"
            )
