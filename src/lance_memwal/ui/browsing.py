"""The pages of logs and manifests.

Invariant: every answer is bounded: entries and versions by number, rows by `ui.answers`; where something was left out, the
answer says so.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from lance_memwal.errors import InvalidInputError
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.reading import list_positions
from lance_memwal.log.tailer import WalTailer
from lance_memwal.rows.blobs import shown_batch, shown_field
from lance_memwal.rows.text_values import to_plain
from lance_memwal.store.location import Location
from lance_memwal.types import check_shard_id
from lance_memwal.ui.answers import Cells, columns_told
from lance_memwal.upkeep.inspect import entry_info, list_entries, manifest_changes, read_manifests

ENTRIES: Final = 50
VERSIONS: Final = 200
_ENTRY_ROWS: Final = 100


def log(location: Location, shard_id: str, before: int | None) -> dict[str, Any]:
    """A page of a log, newest first: the entries below the position `before`, or the newest ones."""
    positions = list_positions(location, check_shard_id(shard_id))
    below = [position for position in positions if before is None or position < before]
    chosen = below[-ENTRIES:][::-1]
    return {
        "shard": shard_id,
        "entries": [to_plain(found) for found in list_entries(location, shard_id, chosen)],
        "first": positions[0] if positions else None,
        "last": positions[-1] if positions else None,
        "count": len(positions),
        "older": max(0, len(below) - ENTRIES),
    }


def entry(location: Location, shard_id: str, position: int) -> dict[str, Any]:
    """One entry of a log, with its first rows."""
    found = WalTailer(location, check_shard_id(shard_id)).read_entry(position)
    if found is None:
        raise InvalidInputError(f"the log of shard {shard_id} ends before position {position}")
    schema = pa.schema(map(shown_field, found.batches[0].schema)) if found.batches else pa.schema([])
    cells = Cells(_ENTRY_ROWS).add((shown_batch(batch, schema) for batch in found.batches), len(schema))
    footer = found.footer
    return {
        "entry": to_plain(entry_info(found)),
        "written_ms": None if footer is None else footer.written_ms,
        "joint": footer is not None and footer.joint,
        "seal": None if footer is None else footer.seal,
        "columns": columns_told(schema),
        "rows": cells.rows,
        "more": cells.more,
        "cut": cells.cut,
    }


def manifests(location: Location, shard_id: str) -> dict[str, Any]:
    """The newest manifests of a shard, each with what it changed."""
    times = ShardManifestStore(location, shard_id).written_ms()
    newest = list(times)[-ENTRIES:]
    before = list(times)[-ENTRIES - 1 : -ENTRIES]
    found = {m.version: m for m in read_manifests(location, shard_id, [*before, *newest])}
    told = []
    for version in reversed([version for version in newest if version in found]):
        older = max((v for v in found if v < version), default=None)
        changes = manifest_changes(None if older is None else found[older], found[version])
        told.append(
            {
                "version": version,
                "time_ms": times[version],
                "epoch": found[version].writer_epoch,
                "changes": to_plain(changes) if older is not None or version == 1 else None,
            }
        )
    return {"shard": shard_id, "manifests": told, "versions": list(times)[-VERSIONS:], "count": len(times)}


def manifest(location: Location, shard_id: str, version: int, against: int | None) -> dict[str, Any]:
    """One manifest, and how it differs from another one (None: from the one before it)."""
    times = ShardManifestStore(location, shard_id).written_ms()
    if against is None:
        against = max((known for known in times if known < version), default=None)
    wanted = [version] if against is None else [version, against]
    found = {m.version: m for m in read_manifests(location, shard_id, wanted)}
    if version not in found or (against is not None and against not in found):
        missing = version if version not in found else against
        raise InvalidInputError(f"manifest {missing} of shard {shard_id} is not there, or not any more")
    other = None if against is None else found[against]
    comparable = other is not None or version == 1
    return {
        "manifest": to_plain(found[version]),
        "time_ms": times.get(version),
        "against": against,
        "changes": to_plain(manifest_changes(other, found[version])) if comparable else None,
    }
