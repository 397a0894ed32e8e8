"""What named checkpoints of a table have left on storage.

Owns `CheckpointRecord`, the numbered records of `memwal_checkpoints/{name}` (`lance_memwal.store.sequenced`). Invariants:

1. The newest record of a name counts. An active one names a snapshot, everything of which stays.
2. It ends by a record that says so: `dropped`, or `expired`, which collection writes after the lifetime and before it passes.
3. A record of another table (one that was here before) says nothing.
4. A tag of Lance, `memwal-<name>`, keeps the base version from clean-ups that know nothing of records. The record comes first
   and goes first: a tag without an active record is left over, and an active record without a tag gets it again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any, Literal

from lance_memwal.clock import Clock
from lance_memwal.crash_points import reach
from lance_memwal.errors import CorruptDataError, InvalidInputError, UnsupportedFormatError
from lance_memwal.lance.base import BaseTable, lance_errors
from lance_memwal.read.snapshot import Snapshot
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.store.sequenced import Record, Records, is_time, record_names

CheckpointState = Literal["active", "dropped", "expired"]
_LOG = logging.getLogger(__name__)
_STATES = ("active", "dropped", "expired")
_TAG = "memwal-"
_WHAT = "a record of a checkpoint, which can be dropped,"
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

    def is_active(self, table_id: str | None) -> bool:
        """Whether what it names must stay for this table."""
        return self.state == "active" and self.table_id == table_id

    def is_too_old(self, now_ms: int) -> bool:
        """Whether its lifetime has passed."""
        return self.expires_ms is not None and now_ms >= self.expires_ms


def _records(location: Location, name: str) -> Records:
    return Records(location.store, paths.record_dir(paths.CHECKPOINTS_DIR, name))


def checkpoint_record(location: Location, name: str) -> CheckpointRecord | None:
    """The record of this name that counts, whatever it says; None if there is none."""
    records = _records(location, name)
    newest = records.newest()
    return None if newest is None else _parse(name, newest, paths.record_path(records.directory, newest.number))


def checkpoint_names(location: Location) -> list[str]:
    """The names that have records, whatever they say."""
    return record_names(location.store, paths.CHECKPOINTS_DIR)


def newest_number(location: Location, name: str) -> int:
    """The number of the record that counts, whole or not; 0 if there is none."""
    return max(_records(location, name).numbers(), default=0)


def read_checkpoints(location: Location, table_id: str | None) -> list[CheckpointRecord]:
    """The active checkpoints of the table, by name."""
    found = (checkpoint_record(location, name) for name in checkpoint_names(location))
    return [record for record in found if record is not None and record.is_active(table_id)]


def write_checkpoint(base: BaseTable, record: CheckpointRecord) -> bool:
    """Create a record, and make the tag agree with it; False if somebody else was faster. `base` is the newest version."""
    if record.expires_ms is not None and not is_time(record.expires_ms):
        raise InvalidInputError(
            "a lifetime ends before the year 10000; None is for a checkpoint that stays until it is dropped"
        )
    if not _records(base.location, record.name).create(record):
        return False
    reach("checkpoint.after_record")
    _set_tag(base, record.name, record.snapshot.base_version if record.state == "active" else None)
    return True


def tidy_checkpoints(base: BaseTable, clock: Clock) -> None:
    """Let checkpoints end whose lifetime has passed, and make tags agree with records; `base` is the newest version."""
    tags = _tags(base)  # before the records: whatever is tagged has its record by then
    active = {record.name: record for record in read_checkpoints(base.location, base.table_id)}
    for record in list(active.values()):
        if record.is_too_old(clock.now_ms()):
            ended = replace(record, number=record.number + 1, state="expired", by=clock.uuid4())
            if write_checkpoint(base, ended):
                del active[record.name]
                tags.pop(record.name, None)
    for name in tags.keys() | active.keys():
        wanted = active[name].snapshot.base_version if name in active else None
        if tags.get(name) != wanted:
            _set_tag(base, name, wanted)


def _tags(base: BaseTable) -> dict[str, int]:
    """The versions that our tags name, by the names of checkpoints."""
    return {name[len(_TAG) :]: version for name, version in base.tags().items() if name.startswith(_TAG)}


def _set_tag(base: BaseTable, name: str, version: int | None) -> None:
    """Let the tag of a checkpoint be at this version, or be gone; a version that is gone cannot have one."""
    tag, known = f"{_TAG}{name}", _tags(base).get(name)
    try:
        with lance_errors("tagging the base version of a checkpoint"):
            tags = base.tags_to_write()
            if version is None:
                if known is not None:
                    tags.delete(tag)
            elif known is None:
                tags.create(tag, version)
            else:
                tags.update(tag, version)
    except InvalidInputError as error:  # others were faster, or the version was removed, which whoever reads it finds
        _LOG.info("a tag was not set [tag=%s]: %s", tag, error)


def _parse(name: str, record: Record, path: str) -> CheckpointRecord:
    value = record.value
    if value.get("format") != _FORMAT:
        raise UnsupportedFormatError("a record of a checkpoint was written by a newer version", path=path)
    table, expires = value.get("table"), value.get("expires_ms")
    is_whole = (
        value.get("state") in _STATES
        and (table is None or isinstance(table, str))
        and isinstance(value.get("by"), str)
        and is_time(value.get("created_ms"))
        and (expires is None or is_time(expires))
    )
    if not is_whole:
        raise CorruptDataError(f"{_WHAT} is malformed", path=path)
    snapshot = Snapshot.stored(value.get("snapshot", ""), what=_WHAT, path=path)
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
