"""Values that cross module borders: positions, epochs, manifests, entries.

Owns frozen dataclasses only. Invariant: nothing here does I/O or holds a lock, so a value may be shared
between threads and processes freely.
"""

from __future__ import annotations

import re
import uuid
from bisect import bisect_right
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from operator import attrgetter
from typing import Final, NamedTuple, NewType

import pyarrow as pa

from lance_memwal.arguments import check_items, described
from lance_memwal.errors import CorruptDataError, InvalidInputError

Epoch = NewType("Epoch", int)
WalPosition = NewType("WalPosition", int)
Generation = NewType("Generation", int)
TOMBSTONE: Final = "_tombstone"  # the column that flags deleted rows, the last one wherever it is stored
TOMBSTONE_FIELD: Final = pa.field(TOMBSTONE, pa.bool_(), nullable=False)
ROW_ID: Final = "_rowid"
ROW_ADDRESS: Final = "_rowaddr"
# columns that Lance can add to the rows of any scan: no table has one of its own under such a name
LANCE_COLUMNS: Final = frozenset(
    {ROW_ID, ROW_ADDRESS, "_rowoffset", "_row_created_at_version", "_row_last_updated_at_version"}
)
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_GENERATION = attrgetter("generation")


def is_shard_id(name: str) -> bool:
    """Whether `name` is a lower-case dashed UUID."""
    return _UUID.fullmatch(name) is not None


def check_shard_id(shard_id: str | uuid.UUID) -> str:
    """Return the text of a shard id, which is given as a `uuid.UUID` or as its lower-case dashed text.

    Raises:
        InvalidInputError: The value is anything else.
    """
    text = str(shard_id) if isinstance(shard_id, uuid.UUID) else shard_id
    if not isinstance(text, str) or not is_shard_id(text):
        raise InvalidInputError(
            f"shard id must be a uuid.UUID or its lower-case dashed text, not {described(shard_id)}"
        )
    return text


def check_shard_ids(shards: Collection[str | uuid.UUID]) -> tuple[str, ...]:
    """Return the texts of shard ids; see `check_shard_id`."""
    return tuple(map(check_shard_id, check_items("shards", shards, "shard ids")))


def shard_id_of(data: bytes, what: str, path: str | None = None) -> str:
    """The shard id that 16 bytes on storage stand for; `CorruptDataError` if they are not so many, which `what` names."""
    if len(data) != 16:
        raise CorruptDataError(f"{what} has no shard id of 16 bytes", path=path)
    return str(uuid.UUID(bytes=data))


class ShardStatus(IntEnum):
    """Whether a shard takes claims. Unknown values on storage read as ACTIVE, as the peer does."""

    ACTIVE = 0
    SEALED = 1


@dataclass(frozen=True, slots=True)
class SsTable:
    """One flushed generation as the shard manifest lists it; `path` is the directory name alone.

    `unknown` are the fields of a newer version, as they are on storage.
    """

    generation: int
    path: str
    in_memory_bytes: int | None = None
    physical_rows: int | None = None
    primary_key_bytes: int | None = None
    unknown: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class ShardManifest:
    """One immutable version of a shard's manifest.

    `unknown` are the fields of a newer version, as they are on storage; `shard_field_unknown` those of each shard field
    entry, none if no entry has any.
    """

    version: int
    shard_id: str
    shard_spec_id: int = 0
    shard_field_entries: tuple[tuple[str, bytes], ...] = ()
    writer_epoch: int = 0
    replay_after_wal_entry_position: int = 0
    wal_entry_position_last_seen: int = 0
    current_generation: int = 1
    sstables: tuple[SsTable, ...] = ()
    status: ShardStatus = ShardStatus.ACTIVE
    unknown: bytes = field(default=b"", repr=False)
    shard_field_unknown: tuple[bytes, ...] = field(default=(), repr=False)
    _ascending: tuple[SsTable, ...] = field(init=False, repr=False, compare=False)  # so that no read sorts them again

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ascending", tuple(sorted(self.sstables, key=_GENERATION)))

    def above(self, mark: int) -> tuple[SsTable, ...]:
        """The listed generations above the mark, ascending: those that a base table with this mark has not."""
        return self._ascending[self._count_up_to(mark) :]

    def up_to(self, mark: int) -> tuple[SsTable, ...]:
        """The listed generations that a base table with this mark has, ascending."""
        return self._ascending[: self._count_up_to(mark)]

    def _count_up_to(self, mark: int) -> int:
        return bisect_right(self._ascending, mark, key=_GENERATION)

    @property
    def unlisted_mark(self) -> int:
        """The generation up to which the shard lists nothing any more: somebody holds all of it elsewhere."""
        return (self._ascending[0].generation if self._ascending else self.current_generation) - 1


@dataclass(frozen=True, slots=True)
class Transaction:
    """An idempotent write: the same (app, version) is applied once. `query` names the query that owns the app id."""

    app: str
    version: int
    query: str | None = None


@dataclass(frozen=True, slots=True)
class SeenTransaction:
    """The newest version of one app in a shard, and when (wall-clock milliseconds) it was written."""

    version: int
    written_ms: int
    query: str | None = None


SeenMap = Mapping[str, SeenTransaction]


@dataclass(frozen=True, slots=True)
class EntryTransaction:
    """A transaction in an entry, and which of its rows are its own; `num_rows` None: all of them."""

    txn: Transaction
    first_row: int = 0
    num_rows: int | None = None


class BaseMark(NamedTuple):
    """The base version whose columns rows have, and how many fragment ids that version had given (RFC 0036).

    `fragments` is None if it is not recorded.
    """

    version: int
    fragments: int | None = None


class EntryFooter(NamedTuple):
    """The footer of an entry without its checksums; the keys are those of RFC 0003. Every put makes one.

    `table` is the tag of the table that the entry was written for. `seen` is the whole map below the entry, without the
    transactions of the entry itself. `seal` ends a generation, `bulk` announces a generation that is not in the log. `joint`:
    any process that reads the whole log below may append in the epoch. `unknown` names the keys that this version does not
    support. `base` names the base version whose columns the rows have (RFC 0036).
    """

    table: str | None = None
    written_ms: int | None = None
    txns: tuple[EntryTransaction, ...] = ()
    seen: SeenMap | None = None
    seal: int | None = None
    bulk: SsTable | None = None
    joint: bool = False
    unknown: tuple[str, ...] = ()
    base: BaseMark | None = None

    def is_of(self, tag: str | None) -> bool:
        """Whether the entry may have been written for the table of that tag."""
        return tag is None or self.table is None or self.table == tag


@dataclass(frozen=True, slots=True)
class WalEntry:
    """One decoded, fully validated entry of a shard's WAL.

    `batches` are as stored, `_tombstone` last. `generation` is None where the writer stored none. `footer` is None
    where another implementation wrote the entry.
    """

    position: int
    writer_epoch: int
    generation: int | None
    batches: tuple[pa.RecordBatch, ...]
    is_sentinel: bool = False
    footer: EntryFooter | None = None
    schema: pa.Schema | None = None
    size_bytes: int = 0

    @property
    def num_rows(self) -> int:
        """Rows in all batches, tombstones included."""
        return sum(batch.num_rows for batch in self.batches)

    def is_of(self, tag: str | None) -> bool:
        """Whether the entry may have been written for the table of that tag: only two known tags exclude each other."""
        return self.footer is None or self.footer.is_of(tag)

    def as_mark(self) -> WalEntry:
        """The entry as one of another table counts: its position is taken, and it says nothing."""
        return replace(self, writer_epoch=0, generation=None, batches=(), is_sentinel=False, footer=None)

    @property
    def base(self) -> BaseMark | None:
        """The base version that the entry was written against; None if it is not recorded."""
        return None if self.footer is None else self.footer.base

    @property
    def bulk(self) -> SsTable | None:
        """The SSTable of a bulk write that the entry announces, if it is such a mark."""
        return None if self.footer is None else self.footer.bulk

    @property
    def txn(self) -> Transaction | None:
        """The first transaction of the entry; most have none or one."""
        return self.footer.txns[0].txn if self.footer is not None and self.footer.txns else None


@dataclass(frozen=True, slots=True)
class FlushResult:
    """What a flush published: the SSTable and the WAL position that it covers."""

    sstable: SsTable
    rows: int
    covered_position: int
    seconds: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class ShardingField:
    """One value that a sharding spec derives per row; `source_ids` are Lance field ids."""

    field_id: str
    source_ids: tuple[int, ...]
    transform: str | None
    result_type: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    expression: str | None = None


@dataclass(frozen=True, slots=True)
class ShardingSpec:
    """How rows map to shards."""

    spec_id: int
    fields: tuple[ShardingField, ...] = ()
