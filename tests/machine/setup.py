"""What a table of the machine is, and how it is written: kinds of tables, and configurations that must not matter.

Owns `KINDS`, `CONFIGURATIONS`, `Kind` and `Configuration`. Answers depend on the kind, and never on the configuration.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

import lance_memwal as mw
from tests.machine.model import Row

KEYS = 12
BLOB = "image"
_REST = [
    pa.field("v", pa.int64()),
    pa.field("s", pa.string()),
    pa.field("q", pa.int64()),
    pa.field("t", pa.string()),
    pa.field("vec", pa.list_(pa.float32(), 2)),
]
_IMAGE = pa.field(BLOB, pa.large_binary(), metadata={"lance-encoding:blob": "true"})


@dataclass(frozen=True)
class Kind:
    """A kind of table: its key columns (none: append-only), and what a later write of a key does."""

    name: str
    key: tuple[pa.Field, ...]
    merge: mw.LastWrite | mw.FirstRow | None = None
    has_blobs: bool = False

    @property
    def names(self) -> list[str]:
        return [item.name for item in self.key]

    @property
    def schema(self) -> pa.Schema:
        number = [] if self.key else [pa.field("n", pa.int64())]
        return pa.schema([*self.key, *number, *_REST, *([_IMAGE] if self.has_blobs else [])])

    @property
    def is_plain(self) -> bool:
        """Whether a key replaces its row, and nothing else is to be known."""
        return bool(self.key) and self.merge is None

    def key_of(self, number: int) -> tuple[Any, ...]:
        """The key that belongs to a small number."""
        if len(self.key) == 2:
            return (number % 3 - 1, f"b{number // 3}")
        if not self.key:
            return (number,)
        return (f"ключ-{number}" if pa.types.is_string(self.key[0].type) else number * 1_000_003 - 5_000_000,)

    def row(self, number: int, version: int) -> Row:
        """The row of a key in a version."""
        named = dict(zip(self.names or ["n"], self.key_of(number), strict=True))
        words = None if version % 11 == 0 else f"w{version % 5} x{version % 3} common"
        rest = {"v": version, "s": [None, "odd", "even"][version % 3], "q": version, "t": words}
        image = {BLOB: [None, b"", b"%d," % version * 50][version % 3]} if self.has_blobs else {}
        return named | rest | {"vec": [float(version % 7), float(version % 4)]} | image


def _key(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


# Columns that are added have types of their own, one after the other: Lance may give the number of a dropped column to the next
# one, and rows that are not in the base table tell the two apart by their types alone (docs/design/compaction.md).
_ADDED = (
    pa.int64(),
    pa.string(),
    pa.float64(),
    pa.int32(),
    pa.bool_(),
    pa.float32(),
    pa.int16(),
    pa.large_string(),
    pa.int8(),
    pa.uint8(),
)


def added_column(number: int) -> pa.Field:
    """The column that is added as the so many-th one."""
    return pa.field(f"e{number}", _ADDED[number % len(_ADDED)])


def added_values(columns: Iterable[str], version: int) -> Row:
    """What the row of a version has in those of `columns` that were added."""
    return {name: _value(_ADDED[int(name[1:]) % len(_ADDED)], version) for name in columns if name.startswith("e")}


def _value(kind: pa.DataType, version: int) -> Any:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return str(version)
    return version % 2 == 0 if pa.types.is_boolean(kind) else version % 100


KINDS = (
    Kind("an integer key", (_key("id", pa.int64()),)),
    Kind("a text key", (_key("name", pa.string()),)),
    Kind("a composite key", (_key("a", pa.int32()), _key("b", pa.string()))),
    Kind("the last write of a sequence", (_key("id", pa.int64()),), mw.LastWrite("q")),
    Kind("the first row", (_key("id", pa.int64()),), mw.FirstRow()),
    Kind("a key and blobs", (_key("id", pa.int64()),), has_blobs=True),
    Kind("no key", ()),
)


@dataclass(frozen=True)
class Configuration:
    """How a table is written and kept: nothing that an answer may depend on."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    made: Literal["created", "enabled", "of LanceDB"] = "created"
    buckets: int = 0
    by_value: bool = False
    indexes: bool = True
    maintained: str | None = "all"
    compaction: mw.CompactionPolicy | None = None
    cache_bytes: int | None = None

    def sharding(self, kind: Kind) -> mw.Unsharded | mw.Bucket | mw.Identity | mw.Manual:
        """How rows are spread; manual shards tell no keys apart, so that only tables without one have them."""
        if self.by_value:
            return mw.Identity(kind.names[-1]) if kind.key else mw.Manual()
        column = kind.names[-1] if kind.key else "n"
        return mw.Bucket(column, self.buckets) if self.buckets else mw.Unsharded()

    @property
    def durable(self) -> bool:
        return bool(self.settings.get("durable_write", True))


CONFIGURATIONS = (
    Configuration("as it comes"),
    Configuration("tiny memtables", {"max_memtable_rows": 4}, made="enabled"),
    Configuration(
        "few batches, little room", {"max_memtable_batches": 2, "max_unflushed_memtable_bytes": 1}, buckets=2
    ),
    Configuration("synced, lingering", {"fsync": True, "commit_linger_ms": 1}, made="of LanceDB"),
    Configuration("not waiting for storage", {"durable_write": False, "max_wal_flush_interval_ms": 1}, buckets=3),
    Configuration("no indexes, a shard per value", {"max_memtable_rows": 8}, by_value=True, indexes=False),
    Configuration("indexes not mirrored, nothing cached", maintained=None, cache_bytes=0, buckets=2),
    Configuration(
        "compacted behind its back",
        {"max_memtable_rows": 4},
        compaction=mw.CompactionPolicy(max_generations=1, max_waiting_generations=1, check_interval_seconds=0.02),
    ),
)
