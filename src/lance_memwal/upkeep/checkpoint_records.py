"""What named checkpoints of a table have left on storage.

Owns `CheckpointRecord`, the numbered records of `memwal_checkpoints/{name}` (`lance_memwal.store.records`). Invariants:

1. The newest record of a name counts. An active one names a snapshot, everything of which stays until it is dropped, or
   its lifetime has passed.
2. A record of another table (one that was here before) says nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from lance_memwal.errors import CorruptDataError, InvalidInputError, UnsupportedFormatError
from lance_memwal.read.snapshot import Snapshot
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.store.records import Record, Records

__all__ = ["CheckpointRecord", "CheckpointState", "checkpoint_record", "checkpoint_records", "read_checkpoints"]

CheckpointState = Literal["active", "dropped"]
_STATES = ("active", "dropped")
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """One record of a checkpoint; `by` is whoever wrote it, so that no two records are equal."""

    name: str
    number: int
    state: CheckpointState
    table_id: str | None
    snapshot: Snapshot
    created_ms: int
    expires_ms: int | None
    by: str

    @property
    def value(self) -> dict[str, Any]:
        """What is stored; the name and the number are those of the object."""
        return {
            "format": _FORMAT,
            "state": self.state,
            "table": self.table_id,
            "snapshot": str(self.snapshot),
            "created_ms": self.created_ms,
            "expires_ms": self.expires_ms,
            "by": self.by,
        }

    def is_active(self, table_id: str | None, now_ms: int) -> bool:
        """Whether what it names must stay for this table."""
        lives = self.expires_ms is None or now_ms < self.expires_ms
        return self.state == "active" and self.table_id == table_id and lives


def checkpoint_records(location: Location, name: str) -> Records:
    """The records of one checkpoint."""
    return Records(location.store, paths.record_dir(paths.CHECKPOINTS_DIR, name))


def checkpoint_record(location: Location, name: str) -> CheckpointRecord | None:
    """The record of this name that counts, whatever it says; None if there is none."""
    records = checkpoint_records(location, name)
    newest = records.newest()
    return None if newest is None else _parse(name, newest, paths.record_path(records.directory, newest.number))


def read_checkpoints(location: Location, table_id: str | None, now_ms: int) -> list[CheckpointRecord]:
    """The active checkpoints of the table, by name."""
    names = sorted(location.store.list_names(paths.CHECKPOINTS_DIR))
    found = (checkpoint_record(location, name) for name in names)
    return [record for record in found if record is not None and record.is_active(table_id, now_ms)]


def _parse(name: str, record: Record, path: str) -> CheckpointRecord:
    value = record.value
    if value.get("format") != _FORMAT:
        raise UnsupportedFormatError("a record of a checkpoint was written by a newer version", path=path)
    table, expires = value.get("table"), value.get("expires_ms")
    is_whole = (
        value.get("state") in _STATES
        and (table is None or isinstance(table, str))
        and isinstance(value.get("by"), str)
        and _is_ms(value.get("created_ms"))
        and (expires is None or _is_ms(expires))
    )
    try:
        snapshot = Snapshot.parse(value.get("snapshot", "") if is_whole else "")
    except InvalidInputError as error:
        raise CorruptDataError(
            f"a record of a checkpoint is malformed ({error}); drop the checkpoint", path=path
        ) from None
    return CheckpointRecord(
        name=name,
        number=record.number,
        state=value["state"],
        table_id=table,
        snapshot=snapshot,
        created_ms=value["created_ms"],
        expires_ms=expires,
        by=value["by"],
    )


def _is_ms(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
