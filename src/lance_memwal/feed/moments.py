"""What a caller names a moment of a table by, and the snapshot that is meant.

Owns `Moment` and its texts. A moment is a snapshot, a time, a version of the base table, or the name of a checkpoint; as a text
it is what `str(snapshot)` gave, a time of ISO 8601 with a zone, a number, or a name. Invariant: no text has two meanings.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import TypeAlias

from lance_memwal.arguments import described, digits_of
from lance_memwal.errors import InvalidInputError
from lance_memwal.read.snapshot import Snapshot, is_snapshot_text

Moment: TypeAlias = Snapshot | datetime | int | str
FEED_WORDS = ("earliest", "latest", "now", "snapshot")
"""Where a feed may begin or end, in words: no checkpoint may be created with such a name, in any case."""
_NUMBER = re.compile(r"[0-9]+")
_DATE = re.compile(r"[0-9]{4}-?[0-9]{2}-?[0-9]{2}")


def is_plain_name(name: str) -> bool:
    """Whether a text can mean nothing but the name of a checkpoint."""
    return not (is_snapshot_text(name) or _NUMBER.fullmatch(name) or _DATE.match(name))


def parse_moment(moment: Moment) -> Snapshot | datetime | int | str:
    """The moment that a caller gave; a text that is no name becomes what it means."""
    if isinstance(moment, Snapshot | datetime) or (isinstance(moment, int) and not isinstance(moment, bool)):
        return moment
    if not isinstance(moment, str) or not moment:
        raise InvalidInputError(
            "a moment is a snapshot, the name of a checkpoint, a datetime or a version of the base table, "
            f"not {described(moment)}"
        )
    if is_plain_name(moment):
        return moment
    if is_snapshot_text(moment):
        return Snapshot.parse(moment)
    if _NUMBER.fullmatch(moment):
        version = digits_of(moment)
        if version is None:
            raise InvalidInputError(f"no version of the base table has such a number: {described(moment)}")
        return version
    try:
        return datetime.fromisoformat(moment)
    except ValueError:
        raise InvalidInputError(f"not a time as in 2026-01-31T12:00:00+00:00: {described(moment)}") from None


def milliseconds(time: datetime) -> int:
    """A time in milliseconds since 1970; it must have a zone."""
    if time.tzinfo is None:
        raise InvalidInputError(f"{time.isoformat()} has no time zone: give one, as in datetime.now(timezone.utc)")
    return int(time.timestamp() * 1000)
