"""Idempotent writes: which (application, version) a shard has, and whether a new one may be written.

Owns the rules around the transaction map. Invariants:

1. The map of a shard is, per application, the maximum over the newest map in the WAL and the maps beside the listed
   generations.
2. An equal version is skipped, a lower one is an error, and so is an old version under another query's application id.
3. An application that was silent for longer than `EXPIRY_MS` leaves the map with the next transaction.

Called by: the log (open), the writer, compaction and garbage collection.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from memwal.errors import CorruptDataError, InvalidInputError, ObjectNotFoundError
from memwal.format.wal_entry import parse_seen, seen_to_json
from memwal.store import paths
from memwal.store.location import Location
from memwal.types import SeenMap, SeenTransaction, ShardManifest, Transaction

__all__ = [
    "EXPIRY_MS",
    "as_transaction",
    "encode_map",
    "is_repeat",
    "load_generation_maps",
    "merge_seen",
    "with_transaction",
]

EXPIRY_MS = 30 * 24 * 3600 * 1000


def as_transaction(txn: Transaction | tuple[str, int] | None) -> Transaction | None:
    """`txn` as given by a user, checked: what is refused here would make the log unreadable."""
    if txn is None:
        return None
    if isinstance(txn, tuple) and len(txn) in (2, 3):
        txn = Transaction(*txn)
    if not isinstance(txn, Transaction) or not _is_valid(txn):
        raise InvalidInputError(f"txn must be (application, version >= 0), not {txn!r}")
    return txn


def _is_valid(txn: Transaction) -> bool:
    return (
        isinstance(txn.app, str)
        and txn.app != ""
        and isinstance(txn.version, int)
        and not isinstance(txn.version, bool)
        and 0 <= txn.version < 1 << 63
        and (txn.query is None or isinstance(txn.query, str))
    )


def is_repeat(txn: Transaction, seen: SeenMap) -> bool:
    """Whether `txn` was written already; an error if its version is lower than what the shard has."""
    known = seen.get(txn.app)
    if known is None or txn.version > known.version:
        return False
    if txn.query != known.query and txn.query is not None and known.query is not None:
        raise InvalidInputError(
            f"application {txn.app!r} is used by another query and stands at version {known.version}; use another id"
        )
    if txn.version < known.version and txn.query is None:
        raise InvalidInputError(
            f"transaction {txn.app!r} version {txn.version} is older than the shard's version {known.version}"
        )
    return True


def with_transaction(seen: SeenMap, txn: Transaction, now_ms: int) -> dict[str, SeenTransaction]:
    """`seen` with `txn` in it, without the applications that expired."""
    kept = {app: s for app, s in seen.items() if now_ms - s.written_ms < EXPIRY_MS}
    kept[txn.app] = SeenTransaction(txn.version, now_ms, txn.query)
    return kept


def merge_seen(maps: Iterable[SeenMap | None]) -> dict[str, SeenTransaction]:
    """Per application the highest version over `maps`."""
    merged: dict[str, SeenTransaction] = {}
    for seen in maps:
        for app, item in (seen or {}).items():
            if app not in merged or item.version > merged[app].version:
                merged[app] = item
    return merged


def load_generation_maps(location: Location, manifest: ShardManifest) -> dict[str, SeenTransaction]:
    """The maps beside the listed generations; most generations have none."""
    found: list[Mapping[str, SeenTransaction]] = []
    for sstable in manifest.sstables:
        path = paths.txn_map_path(manifest.shard_id, sstable.path)
        try:
            found.append(parse_seen(json.loads(location.store.get(path)), path=path))
        except ObjectNotFoundError:
            continue
        except (ValueError, RecursionError) as error:
            raise CorruptDataError("transaction map is not JSON", path=path) from error
    return merge_seen(found)


def encode_map(seen: SeenMap) -> bytes:
    """The bytes of the map beside a generation."""
    return json.dumps(seen_to_json(seen), separators=(",", ":")).encode()
