"""Where a reader of changes stands: a small value that can be printed, kept and given back.

Owns `Cursor` and its text. Invariants:

1. `Cursor.parse(str(cursor)) == cursor`, and anything else is an `InvalidInputError`.
2. A shard that it does not name was not read at all: position 0.
3. It carries the tag of its table: the cursor of another one is refused.

The text, which holds no character that a shell would touch:

    c1,0a1b2c3d,<shard>=17,<shard>=20+500           17 is done; of 21 the first 500 rows are
    c1,0a1b2c3d,<shard>=17/300/<snapshot>           300 rows of the snapshot are; after it the feed goes on from 17
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from lance_memwal.errors import CorruptDataError, InvalidInputError, TableReplacedError
from lance_memwal.types import check_shard_id

_FORMAT = "c1"
CURSOR_PREFIX = "c1,"
_NO_TAG = "-"
_TAG = re.compile(r"[0-9a-f]{8}|-")
_PLACE = re.compile(r"([0-9a-f-]{36})=([0-9]{1,19})(?:\+([1-9][0-9]{0,18}))?")
_ROWS = re.compile(r"[0-9]{1,19}")


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """How far one shard was read: everything up to `position`, and the first `rows` rows of the next one."""

    position: int = 0
    rows: int = 0


_START = Place()


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a feed was read. `snapshot` (its text) is what is read before the changes, `rows` how much of it was."""

    table: str | None
    shards: Mapping[str, Place] = field(default_factory=dict)
    snapshot: str | None = None
    rows: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "shards", MappingProxyType(dict(sorted(self.shards.items()))))

    def __hash__(self) -> int:
        return hash(str(self))

    def __reduce__(self) -> tuple[object, ...]:
        return Cursor.parse, (str(self),)

    def place(self, shard_id: str | uuid.UUID) -> Place:
        """How far this shard was read."""
        return self.shards.get(check_shard_id(shard_id), _START)

    @property
    def positions(self) -> dict[str, int]:
        """Per shard the position up to which everything was read."""
        return {shard_id: place.position for shard_id, place in self.shards.items()}

    def check_table(self, tag: str | None) -> Cursor:
        """Itself, if it is one of the table with this tag; else `TableReplacedError`."""
        if self.table is not None and tag is not None and self.table != tag:
            raise TableReplacedError("this cursor is one of another table: start again from a snapshot")
        return self

    @classmethod
    def stored(cls, text: str, *, path: str) -> Cursor:
        """The cursor that the record at `path` names; `CorruptDataError` if the text is none."""
        try:
            return cls.parse(text)
        except InvalidInputError as error:
            raise CorruptDataError(f"the cursor of a consumer is malformed ({error}); drop it", path=path) from None

    def __str__(self) -> str:
        parts = [_FORMAT, self.table or _NO_TAG]
        for shard_id, place in self.shards.items():
            parts.append(f"{shard_id}={place.position}" + (f"+{place.rows}" if place.rows else ""))
        text = ",".join(parts)
        return text if self.snapshot is None else f"{text}/{self.rows}/{self.snapshot}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """The cursor that was printed as `text`."""
        if not isinstance(text, str):
            raise InvalidInputError(f"a cursor is a text, not {type(text).__name__}")
        plain, slash, rest = text.partition("/")
        rows, _, snapshot = rest.partition("/")
        head, tag, *places = [*plain.split(","), ""][:-1] if plain.count(",") else [plain, ""]
        if head != _FORMAT or _TAG.fullmatch(tag) is None or (slash and not (_ROWS.fullmatch(rows) and snapshot)):
            raise InvalidInputError(f"not a cursor: {text[:80]!r}; pass what str(feed.cursor) gave")
        shards: dict[str, Place] = {}
        for item in places:
            match = _PLACE.fullmatch(item)
            if match is None or check_shard_id(match.group(1)) in shards:
                raise InvalidInputError(f"not a cursor: {item[:80]!r} is no place in a shard")
            shards[match.group(1)] = Place(int(match.group(2)), int(match.group(3) or 0))
        return cls(None if tag == _NO_TAG else tag, shards, snapshot if slash else None, int(rows) if slash else 0)
