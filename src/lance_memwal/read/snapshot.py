"""A moment of a table as a small value: which base version, and per shard which manifest and how much of its log.

Owns `Snapshot` and its text. It names what is on storage and holds no row, so it can be printed, kept and sent; what it
shows is made of it in `lance_memwal.read.rebuilt`. Text, about 40 characters per shard:

    memwal1:<tag of the table>:<base version>:<shard>.<manifest version>.<cursor>.<tip>:<shard>. ...

The tag has 8 hexadecimal digits, `-` stands for a table without an id. A shard is the 16 bytes of its id in URL-safe
base64, without padding. Invariants:

1. `Snapshot.parse(str(s)) == s`; a text that no snapshot has is refused, numbers beyond 64 bits too.
2. Rows of a shard are those of the SSTables that its manifest lists, and of the entries in (cursor, tip]; shards that are
   not named have none. A snapshot without shards shows what plain Lance shows of the base version.
"""

from __future__ import annotations

import base64
import re
import uuid
from dataclasses import dataclass

from lance_memwal.errors import CorruptDataError, InvalidInputError, TableReplacedError, UnsupportedFormatError
from lance_memwal.types import check_shard_id

_FORM = "memwal1"
_MAX = (1 << 64) - 1
_ANY_FORM = re.compile(r"memwal[0-9]{1,4}:")
_HEAD = re.compile(r"(-|[0-9a-f]{8}):([0-9]{1,20})")
_SHARD = re.compile(r"([A-Za-z0-9_-]{22})\.([0-9]{1,20})\.([0-9]{1,20})\.([0-9]{1,20})")


@dataclass(frozen=True, slots=True)
class SnapshotShard:
    """One shard: the version of its manifest, the cursor there, and the last position of the log that counts."""

    shard_id: str
    manifest_version: int
    cursor: int
    tip: int

    def is_part_of(self, other: SnapshotShard | None) -> bool:
        """Whether `other` is the same moment of the shard's manifest, and as much of its log."""
        if other is None or self.manifest_version != other.manifest_version:
            return False
        return self.cursor == other.cursor and self.tip <= other.tip

    def __str__(self) -> str:
        name = base64.urlsafe_b64encode(uuid.UUID(self.shard_id).bytes).decode().rstrip("=")
        return f"{name}.{self.manifest_version}.{self.cursor}.{self.tip}"


@dataclass(frozen=True, slots=True, repr=False)
class Snapshot:
    """One moment of a table, durable rows only; `str` is a text that `parse` reads. Equal snapshots show equal rows.

    `table` is the tag of the table, the first digits of its id.
    """

    table: str | None
    base_version: int
    shards: tuple[SnapshotShard, ...] = ()

    def __str__(self) -> str:
        return ":".join((_FORM, self.table or "-", str(self.base_version), *map(str, self.shards)))

    def __repr__(self) -> str:
        return f"Snapshot({str(self)!r})"

    def check_table(self, tag: str | None) -> Snapshot:
        """Itself, if it is one of the table with this tag; else `TableReplacedError`."""
        if self.table is not None and tag is not None and self.table != tag:
            raise TableReplacedError("this snapshot is one of another table: take a new one")
        return self

    def is_part_of(self, other: Snapshot) -> bool:
        """Whether whoever keeps all that `other` needs keeps all that this one needs."""
        kept = {shard.shard_id: shard for shard in other.shards}
        same_base = (self.table, self.base_version) == (other.table, other.base_version)
        return same_base and all(shard.is_part_of(kept.get(shard.shard_id)) for shard in self.shards)

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        """The snapshot that `str` gave this text; `InvalidInputError` if it is none."""
        if not isinstance(text, str) or not is_snapshot_text(text):
            what = repr(text[:80]) if isinstance(text, str) else type(text).__name__
            raise InvalidInputError(f"a snapshot is the text that str(snapshot) gave, not {what}")
        form, _, rest = text.partition(":")
        if form != _FORM:
            raise UnsupportedFormatError(f"a snapshot of the form {form!r} was made by another version of lance-memwal")
        parts = rest.split(":")
        head = _HEAD.fullmatch(":".join(parts[:2]))
        found = [_SHARD.fullmatch(part) for part in parts[2:]]
        names = [_shard_id(match.group(1)) for match in found if match]
        if head is None or None in found or names != sorted(set(names)):
            raise InvalidInputError(f"the text of a snapshot was cut or changed: {text[:60]!r}")
        version = int(head.group(2))
        numbers = [tuple(map(int, match.groups()[1:])) for match in found if match]
        if max(version, *map(max, numbers), 0) > _MAX:
            raise InvalidInputError(f"a number in the text of a snapshot has more than 64 bits: {text[:60]!r}")
        points = tuple(SnapshotShard(name, *three) for name, three in zip(names, numbers, strict=True))
        return cls(None if head.group(1) == "-" else head.group(1), version, points)

    @classmethod
    def stored(cls, text: str, *, what: str, path: str) -> Snapshot:
        """The snapshot that the object at `path` names, which is `what`; `CorruptDataError` if the text is none."""
        try:
            return cls.parse(text)
        except InvalidInputError as error:
            raise CorruptDataError(f"{what} is malformed ({error})", path=path) from None
        except UnsupportedFormatError as error:
            raise UnsupportedFormatError(f"{what} is not understood ({error})", path=path) from None


def is_snapshot_text(text: str) -> bool:
    """Whether a text says that it is a snapshot, whole or not; no name of a checkpoint does."""
    return _ANY_FORM.match(text) is not None


def _shard_id(name: str) -> str:
    return check_shard_id(str(uuid.UUID(bytes=base64.urlsafe_b64decode(f"{name}=="))))
