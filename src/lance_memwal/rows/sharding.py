"""Which shard a row belongs to: the sharding of a table, the routing of batches by it, and what it says about a read.

Owns `Unsharded`, `Bucket`, `Identity`, `Manual`, values with one interface, and the ids of shards: UUID version 5 in the
namespace `LSMWRITE_SHARD01` (16 ASCII bytes) of the name `unsharded`, `bucket-{n}` (decimal) or `identity-` + value bytes, as
LanceDB derives them. Value bytes: integers little-endian in the width of their type, booleans one byte, strings UTF-8.
Invariants:

1. Routing depends on the column's value and type in the *table* alone: every process, and LanceDB, routes alike.
2. `from_specs([s.spec(...)], ...) == s`.
3. On a primary-key table the column is part of the key and shards are not named by hand, unless the user allowed keys
   across shards: otherwise two rows of one key could live in two shards, and newest-wins would hold per shard only.
4. `route` keeps every row exactly once, in its order within its shard.
5. Pruning never leaves a shard out that can hold a row: one that was opened by hand, with an id of its own, may hold any.

A table on storage without a sharding spec has manual shards.
"""

from __future__ import annotations

import datetime
import hashlib
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_memwal.arguments import check_column, check_instance, check_number, described, digits_of
from lance_memwal.errors import CorruptDataError, InvalidInputError, UnsupportedFormatError
from lance_memwal.rows.bucket import bucket_of, bucket_of_one, is_bucket_type
from lance_memwal.rows.expressions import demands_of
from lance_memwal.rows.sql import parse, values_of
from lance_memwal.rows.where import Where
from lance_memwal.types import ShardingField, ShardingSpec

_NAMESPACE = b"LSMWRITE_SHARD01"

IDENTITY_TYPE_NAMES: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "int8",
    pa.int16(): "int16",
    pa.int32(): "int32",
    pa.int64(): "int64",
    pa.uint8(): "uint8",
    pa.uint16(): "uint16",
    pa.uint32(): "uint32",
    pa.uint64(): "uint64",
    pa.string(): "utf8",
    pa.large_string(): "large_utf8",
}
"""The column types that can shard by identity, with the names that the table's details record for them."""


def shard_id_of_name(name: bytes) -> str:
    """The shard id that belongs to `name`."""
    digest = hashlib.sha1(_NAMESPACE + name, usedforsecurity=False).digest()
    return str(uuid.UUID(bytes=digest[:16], version=5))


@lru_cache(maxsize=1)
def unsharded_shard_id() -> str:
    """The id of the only shard of an unsharded table."""
    return shard_id_of_name(b"unsharded")


@lru_cache(maxsize=1024)
def bucket_shard_id(bucket: int) -> str:
    """The shard id of one bucket, by its number."""
    if bucket < 0:
        raise InvalidInputError(f"a bucket number is not negative: {bucket}")
    return shard_id_of_name(b"bucket-%d" % bucket)


def identity_shard_id(value: Any, kind: pa.DataType) -> str:
    """The shard id of one value of an identity column of type `kind`."""
    return shard_id_of_name(b"identity-" + encode_identity_value(value, kind))


def encode_identity_value(value: Any, kind: pa.DataType) -> bytes:
    """The bytes of `value` as a column of type `kind` holds it; null has none and is refused."""
    if kind not in IDENTITY_TYPE_NAMES:
        raise InvalidInputError(f"a column of type {kind} cannot shard by identity")
    if value is None:
        raise InvalidInputError("a null cannot choose a shard: an identity column must hold a value in every row")
    if pa.types.is_boolean(kind) and isinstance(value, bool):
        return b"\x01" if value else b"\x00"
    if pa.types.is_integer(kind) and isinstance(value, int) and not isinstance(value, bool):
        try:
            return value.to_bytes(kind.bit_width // 8, "little", signed=pa.types.is_signed_integer(kind))
        except OverflowError:
            raise InvalidInputError(f"value out of the range of {kind}") from None
    if isinstance(value, str) and not pa.types.is_boolean(kind) and not pa.types.is_integer(kind):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise InvalidInputError("value is not valid Unicode text") from None
    raise InvalidInputError(f"a value of type {type(value).__name__} does not fit a column of type {kind}")


# ----------------------------------------------------------------------------------------------------------- sharding


MAX_BUCKETS = 1024
SPEC_ID = 1
_FIELD_ID = "bucket"  # of every transform, as the public layout has it
_Groups = list[tuple[str, npt.NDArray[np.int64]]]
_Routed = list[tuple[str, pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class _Sharding(ABC):
    """What every sharding can be asked. `column` is the one whose value names the shard, or None."""

    is_routed: ClassVar[bool] = True

    def check(self, schema: pa.Schema) -> None:  # noqa: B027
        """Return only if a table of this schema can be sharded so; `InvalidInputError` gives the reason."""

    def keeps_keys_together(self, primary_key: Sequence[str]) -> bool:
        """Whether all rows of one key are in one shard."""
        return self.is_routed

    def spec(self, schema: pa.Schema, field_ids: Mapping[str, int]) -> ShardingSpec | None:
        """What the table's details record (None: nothing); `field_ids` maps column names to Lance field ids."""
        return None

    def shard_ids(self) -> list[str] | None:
        """All shards that rows are routed to; None where they are open (identity, manual)."""
        return None

    def strangers(self, shards: frozenset[str]) -> frozenset[str]:
        """Those of `shards` that no row is routed to: whoever opened them by hand may have put any row there."""
        return shards.difference(self.shard_ids() or ())

    @property
    def num_shards(self) -> int:
        """How many shards the details record: 0 where the number is open."""
        return len(self.shard_ids() or ())

    @abstractmethod
    def default_shard(self) -> str | None:
        """The shard of a writer that names none; None: a new one."""

    @abstractmethod
    def shard_for(self, value: Any, kind: pa.DataType | None) -> str:
        """The shard of rows with this value in the column, which has the type `kind`."""

    def shards_for(self, values: Iterable[Any] | pa.Array, kind: pa.DataType) -> frozenset[str] | None:
        """The shards that can hold a row whose column (of type `kind`) has one of `values`; None: any shard.

        Values that do not convert to `kind` give None, never too few shards. It holds for rows that were routed; a
        writer that was opened on a shard by hand may have put rows anywhere.
        """
        ids = self.shard_ids()
        return None if ids is None else frozenset(ids)

    def shard_of_plain(self, value: Any, kind: pa.DataType) -> str | None:
        """The shard of rows with this value in the column, which has the type `kind`, if it can be told without Arrow."""
        return None

    @abstractmethod
    def route(self, batch: pa.RecordBatch, schema: pa.Schema | None) -> _Routed:
        """Every row with its shard: see the function `route`."""

    def check_rows(self, schema: pa.Schema, shard_id: str, batch: pa.RecordBatch) -> None:
        """Return only if every row of `batch` belongs to `shard_id`; manual shards take any row."""
        routed = self.route(batch, schema) if self.is_routed else []
        elsewhere = [found for found, _ in routed if found != shard_id]
        if elsewhere:
            raise InvalidInputError(f"rows belong to shard {elsewhere[0]}, not to {shard_id}; write through the table")

    def __str__(self) -> str:
        given = ",".join(str(getattr(self, field.name)) for field in fields(self))
        return type(self).__name__.lower() + (f"({given})" if given else "")


@dataclass(frozen=True, slots=True)
class Unsharded(_Sharding):
    """All rows go to one shard."""

    column: ClassVar[None] = None

    def spec(self, schema: pa.Schema, field_ids: Mapping[str, int]) -> ShardingSpec | None:
        return _spec("unsharded")

    def shard_ids(self) -> list[str] | None:
        return [unsharded_shard_id()]

    def default_shard(self) -> str | None:
        return unsharded_shard_id()

    def shard_for(self, value: Any, kind: pa.DataType | None) -> str:
        return unsharded_shard_id()

    def route(self, batch: pa.RecordBatch, schema: pa.Schema | None) -> _Routed:
        return [(unsharded_shard_id(), batch)] if batch.num_rows else []


ONE_SHARD = Unsharded()


@dataclass(frozen=True, slots=True)
class Manual(_Sharding):
    """Whoever writes names the shard; every writer that names none gets a new one."""

    column: ClassVar[None] = None
    is_routed: ClassVar[bool] = False

    def default_shard(self) -> str | None:
        return None

    def shard_for(self, value: Any, kind: pa.DataType | None) -> str:
        raise InvalidInputError("a table with manual shards has no shard per value: name the shard yourself")

    def route(self, batch: pa.RecordBatch, schema: pa.Schema | None) -> _Routed:
        raise InvalidInputError("a table with manual shards cannot route rows: write to a shard by its id")


@dataclass(frozen=True, slots=True)
class _ByColumn(_Sharding):
    """What `Bucket` and `Identity` share: the value of one column names the shard."""

    column: str

    def __post_init__(self) -> None:
        if not isinstance(self.column, str) or not self.column:
            raise InvalidInputError(f"a sharding column is given by its name, not {described(self.column)}")

    @abstractmethod
    def _check_type(self, kind: pa.DataType) -> None:
        """Return only if a column of this type can name shards."""

    @abstractmethod
    def _shard_of(self, array: pa.Array) -> str:
        """The shard of the one value of a column."""

    @abstractmethod
    def _groups(self, array: pa.Array) -> _Groups:
        """(shard id, row numbers ascending) per shard that gets rows of a column that is not empty."""

    def check(self, schema: pa.Schema) -> None:
        check_column(self.column, schema.names, "sharding column")
        self._check_type(schema.field(self.column).type)

    def keeps_keys_together(self, primary_key: Sequence[str]) -> bool:
        return self.column in primary_key

    def default_shard(self) -> str | None:
        raise InvalidInputError(
            f"the table is sharded by {self.column!r}: name a shard (lance_memwal.shard_id_for), or use Table.writer()"
        )

    def shard_for(self, value: Any, kind: pa.DataType | None) -> str:
        plain = not isinstance(value, pa.Scalar)
        if kind is None:
            kind = _plain_type(value) if plain else value.type
        array = _to_array([value] if plain else pa.repeat(value, 1), kind)
        self._check_type(array.type)
        return self._shard_of(array)

    def shards_for(self, values: Iterable[Any] | pa.Array, kind: pa.DataType) -> frozenset[str] | None:
        try:
            array = _to_array(values, kind)
        except InvalidInputError:
            return None
        if len(array) == 1:
            return frozenset({self._shard_of(array)})
        return frozenset(shard_id for shard_id, _ in self._groups(array)) if len(array) else frozenset()

    def route(self, batch: pa.RecordBatch, schema: pa.Schema | None) -> _Routed:
        if batch.num_rows == 0:
            return []
        groups = self._groups(self._values(batch, schema))
        if len(groups) == 1:
            return [(groups[0][0], batch)]
        return [(shard_id, batch.take(pa.array(rows))) for shard_id, rows in groups]

    def _values(self, batch: pa.RecordBatch, schema: pa.Schema | None) -> pa.Array:
        """The sharding column with the type that the table has."""
        head, *rest = [self.column] if self.column in batch.schema.names else self.column.split(".")
        if head not in batch.schema.names:
            raise InvalidInputError(f"sharding column {self.column!r} is missing")
        if batch.schema.names.count(head) > 1:
            raise InvalidInputError(f"sharding column {head!r} is there twice")
        array = batch.column(head)
        wanted = schema.field(head).type if schema is not None and head in schema.names else array.type
        if wanted != array.type:
            try:
                array = array.cast(wanted)
            except pa.ArrowException as error:
                raise InvalidInputError(f"sharding column {self.column!r} does not fit the table: {error}") from None
        if rest:
            array = pc.struct_field(array, rest)
        self._check_type(array.type)
        return array


@dataclass(frozen=True, slots=True)
class Bucket(_ByColumn):
    """Rows spread over `num_buckets` shards (1 to 1024) by a hash of `column`; a null goes to bucket 0."""

    num_buckets: int

    def __post_init__(self) -> None:
        _ByColumn.__post_init__(self)
        check_number("num_buckets", self.num_buckets, least=1, most=MAX_BUCKETS)

    def _check_type(self, kind: pa.DataType) -> None:
        if not is_bucket_type(kind):
            reason = "it must be a scalar column"
            raise InvalidInputError(f"column {self.column!r} of type {kind} cannot be bucketed: {reason}")

    def spec(self, schema: pa.Schema, field_ids: Mapping[str, int]) -> ShardingSpec | None:
        return _spec("bucket", field_ids[self.column], parameters={"num_buckets": str(self.num_buckets)})

    def shard_ids(self) -> list[str] | None:
        return list(_bucket_shards(self.num_buckets))

    def strangers(self, shards: frozenset[str]) -> frozenset[str]:
        return _bucket_strangers(self.num_buckets, shards)

    def shard_of_plain(self, value: Any, kind: pa.DataType) -> str | None:
        bucket = bucket_of_one(value, kind, self.num_buckets)
        return None if bucket is None else bucket_shard_id(bucket)

    def _shard_of(self, array: pa.Array) -> str:
        return bucket_shard_id(int(bucket_of(array, self.num_buckets)[0]))

    def _groups(self, array: pa.Array) -> _Groups:
        keys = bucket_of(array, self.num_buckets).astype(np.uint16)  # 16 bits: numpy sorts them by radix
        return [(bucket_shard_id(key), rows) for key, rows in _split(keys)]


@dataclass(frozen=True, slots=True)
class Identity(_ByColumn):
    """One shard per distinct value of `column`; nulls are refused."""

    def _check_type(self, kind: pa.DataType) -> None:
        if kind not in IDENTITY_TYPE_NAMES:
            reason = "it must hold integers, booleans or strings"
            raise InvalidInputError(f"column {self.column!r} of type {kind} cannot shard by identity: {reason}")

    def spec(self, schema: pa.Schema, field_ids: Mapping[str, int]) -> ShardingSpec | None:
        result = IDENTITY_TYPE_NAMES[schema.field(self.column).type]
        return _spec("identity", field_ids[self.column], result=result)

    def shards_for(self, values: Iterable[Any] | pa.Array, kind: pa.DataType) -> frozenset[str] | None:
        listed = values if isinstance(values, pa.Array) else [value for value in values if value is not None]
        return _ByColumn.shards_for(self, listed.drop_null() if isinstance(listed, pa.Array) else listed, kind)

    def strangers(self, shards: frozenset[str]) -> frozenset[str]:
        # Those of values cannot be listed, but they are UUIDs of version 5, which nobody draws at random.
        return frozenset(shard_id for shard_id in shards if shard_id[14] != "5")

    def _shard_of(self, array: pa.Array) -> str:
        self._refuse_nulls(array)
        return identity_shard_id(array[0].as_py(), array.type)

    def _refuse_nulls(self, array: pa.Array) -> None:
        if array.null_count:
            raise InvalidInputError(
                f"a null in {self.column!r} cannot choose a shard: fill it, or shard by another column"
            )

    def _groups(self, array: pa.Array) -> _Groups:
        self._refuse_nulls(array)
        encoded = array.dictionary_encode()
        values, keys = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
        if len(values) <= 1 << 16:
            keys = keys.astype(np.uint16)
        return [(identity_shard_id(values[key], array.type), rows) for key, rows in _split(keys)]


Sharding = Unsharded | Bucket | Identity | Manual
_SHARDINGS = "Unsharded(), Bucket(...), Identity(...) or Manual()"


def check_sharding(
    sharding: Sharding,
    schema: pa.Schema,
    *,
    primary_key: Sequence[str] = (),
    allow_keys_across_shards: bool = False,
) -> None:
    """Return only if a table of this schema and key can be sharded so; `InvalidInputError` gives the reason."""
    check_instance("sharding", sharding, Sharding, _SHARDINGS)
    sharding.check(schema)
    if not primary_key or allow_keys_across_shards or sharding.keeps_keys_together(primary_key):
        return
    key, column = ", ".join(primary_key), sharding.column
    if column is None:
        raise InvalidInputError(
            f"with manual shards two rows of one primary key ({key}) could be written to two shards, "
            "and the newest would win per shard only; use Unsharded(), shard by a key column, or pass "
            "allow_keys_across_shards=True"
        )
    raise InvalidInputError(
        f"sharding column {column!r} is not part of the primary key ({key}): two rows of one "
        "key could go to two shards, and the newest would win per shard only; shard by a key column, or pass "
        "allow_keys_across_shards=True"
    )


def _spec(
    transform: str, *source: int, result: str = "int32", parameters: Mapping[str, str] | None = None
) -> ShardingSpec:
    return ShardingSpec(SPEC_ID, (ShardingField(_FIELD_ID, source, transform, result, dict(parameters or {})),))


def from_specs(specs: Sequence[ShardingSpec], column_names: Mapping[int, str]) -> Sharding:
    """The sharding that the specs of a table record; `UnsupportedFormatError` if it is none that we know.

    `column_names` maps Lance field ids to column names (nested ones dotted).
    """
    if not specs:
        return Manual()
    if len(specs) > 1 or len(specs[0].fields) != 1:
        raise UnsupportedFormatError("the table has a sharding of several specs or fields")
    part = specs[0].fields[0]
    if part.transform == "unsharded" and part.expression is None:
        return Unsharded()
    if part.transform not in ("bucket", "identity") or part.expression is not None or len(part.source_ids) != 1:
        raise UnsupportedFormatError(f"the table has a sharding that is not known here: {part.transform!r}")
    column = column_names.get(part.source_ids[0])
    if not column:
        raise CorruptDataError(f"the table is sharded by field {part.source_ids[0]}, which it does not have")
    if part.transform == "identity":
        return Identity(column)
    return Bucket(column, _stored_buckets(part.parameters.get("num_buckets", "")))


def shard_id_for(sharding: Sharding, value: Any = None, *, kind: pa.DataType | None = None) -> str:
    """The id of the shard that holds rows with this `value` in the sharding column.

    `value` is a value of the column, never a bucket number (for that see `bucket_shard_id`); an unsharded table ignores
    it. `kind` is the column's type, which the hash depends on. Without it a pyarrow scalar has its own, and a plain
    value counts as bool, int64, double, string, date32 or timestamp[us].
    """
    check_instance("sharding", sharding, Sharding, _SHARDINGS)
    if kind is not None:
        check_instance("kind", kind, pa.DataType, "the type of the column")
    return sharding.shard_for(value, kind)


def route(batch: pa.RecordBatch, sharding: Sharding, schema: pa.Schema | None = None) -> _Routed:
    """Every row of `batch` with its shard, in order within the shard; only shards that get rows.

    `schema` is the table's: the column is hashed as the table holds it. Where all rows go to one shard the batch itself
    is returned; otherwise every shard gets its own copy, so that no shard keeps the rows of another in memory.
    """
    check_instance("batch", batch, pa.RecordBatch, "a record batch")
    check_instance("sharding", sharding, Sharding, _SHARDINGS)
    if schema is not None:
        check_instance("schema", schema, pa.Schema, "the schema of the table")
    return sharding.route(batch, schema)


# ------------------------------------------------------------------------------------------------------------- pruning


def shards_of_filter(
    sharding: Sharding, given: object, columns: pa.Schema, primary_key: Sequence[str], shards: Collection[str]
) -> frozenset[str] | None:
    """Those of `shards` in which rows can match the filter `given`; None: any of them."""
    column = sharding.column
    given = given.sql(columns) if isinstance(given, Where) else given
    if not isinstance(given, str | pc.Expression) or column is None or (primary_key and column not in primary_key):
        return None
    demands = parse(given).predicates(columns.names) if isinstance(given, str) else demands_of(given, columns)
    values = values_of(column, demands)
    return None if values is None else _candidates(sharding, values, columns.field(column).type, shards)


def shards_of_keys(
    sharding: Sharding,
    primary_key: Sequence[str],
    values_of_column: Callable[[int], pa.Array],
    shards: Collection[str],
) -> frozenset[str] | None:
    """Those of `shards` that can hold some keys; None: any of them.

    `values_of_column` gives a column of the keys, by its place in the key; it is asked only if the shard depends on it.
    """
    if sharding.column is None or sharding.column not in primary_key:
        return None
    column = values_of_column(primary_key.index(sharding.column))
    return _candidates(sharding, column, column.type, shards)


def shards_of_plain_key(
    sharding: Sharding, primary_key: Sequence[str], key: Sequence[Any], columns: pa.Schema, shards: Collection[str]
) -> frozenset[str] | None:
    """`shards_of_keys` for one key of plain values, if that can be told without Arrow; else None."""
    if sharding.column is None or sharding.column not in primary_key:
        return None
    kind = columns.field(sharding.column).type
    named = sharding.shard_of_plain(key[primary_key.index(sharding.column)], kind)
    return None if named is None else _those(sharding, frozenset({named}), shards)


def _candidates(sharding: Sharding, values: Any, kind: pa.DataType, shards: Collection[str]) -> frozenset[str] | None:
    named = sharding.shards_for(values, kind)
    return None if named is None else _those(sharding, named, shards)


def _those(sharding: Sharding, named: frozenset[str], shards: Collection[str]) -> frozenset[str]:
    """Those of `shards` that are `named`, or that no row is routed to."""
    there = frozenset(shards)
    return (there & named) | sharding.strangers(there)


@lru_cache(maxsize=16)
def _bucket_shards(num_buckets: int) -> dict[str, int]:
    """The shards of all buckets, with their numbers."""
    return {bucket_shard_id(number): number for number in range(num_buckets)}


@lru_cache(maxsize=16)
def _bucket_strangers(num_buckets: int, shards: frozenset[str]) -> frozenset[str]:
    """Those of `shards` that no bucket has; remembered, since readers ask for the same ones again and again."""
    return shards - _bucket_shards(num_buckets).keys()


def _split(keys: npt.NDArray[Any]) -> list[tuple[int, npt.NDArray[np.int64]]]:
    """(key, row numbers ascending) per distinct key, keys ascending."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    return [(int(ordered[at]), rows) for at, rows in zip(starts, np.split(order, starts[1:]), strict=True)]


def _to_array(values: Iterable[Any] | pa.Array, kind: pa.DataType) -> pa.Array:
    """`values` as a column of type `kind` would hold them; `InvalidInputError` if it cannot hold them unchanged."""
    given = values if isinstance(values, pa.Array) else list(values)
    try:
        array = pa.array(given, kind) if isinstance(given, list) else given if given.type == kind else given.cast(kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        raise InvalidInputError(f"a value does not fit a column of type {kind}") from None
    if isinstance(given, list) and pa.types.is_integer(kind) and array.to_pylist() != given:
        raise InvalidInputError(f"a value does not fit a column of type {kind}")  # pyarrow cuts fractions off
    return array


def _plain_type(value: Any) -> pa.DataType:
    if value is None:
        return pa.int64()  # a null has the same bucket in every type
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, datetime.datetime):
        return pa.timestamp("us", tz="UTC" if value.tzinfo is not None else None)
    for python_type, kind in (
        (int, pa.int64()),
        (float, pa.float64()),
        (str, pa.string()),
        (datetime.date, pa.date32()),
    ):
        if isinstance(value, python_type):
            return kind
    raise InvalidInputError(f"a value of type {type(value).__name__} cannot choose a shard; pass the column's type")


def _stored_buckets(text: str) -> int:
    number = digits_of(text, most=MAX_BUCKETS)
    if not number:
        raise CorruptDataError(f"the table's sharding has a bad number of buckets: {text[:20]!r}")
    return number


def sharding_of_text(text: str) -> Sharding:
    """The sharding that `str` of it writes: "unsharded", "bucket(column,n)", "identity(column)" or "manual"."""
    name, _, rest = text.strip().partition("(")
    arguments = [part.strip() for part in rest.rstrip(") ").split(",") if part.strip()]
    if name == "manual" and not arguments:
        return Manual()
    if name == "unsharded" and not arguments:
        return Unsharded()
    buckets = digits_of(arguments[1]) if name == "bucket" and len(arguments) == 2 else None
    if buckets is not None:
        return Bucket(arguments[0], buckets)
    if name == "identity" and len(arguments) == 1:
        return Identity(arguments[0])
    raise InvalidInputError(f"{described(text)} is none of unsharded, bucket(column,n), identity(column), manual")
