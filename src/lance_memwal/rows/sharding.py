"""Which shard a row belongs to: the sharding of a table, and the routing of batches by it.

Owns `Unsharded`, `Bucket`, `Identity`, `Manual`, their validation, their form in the table's details, and `route`. Invariants:

1. Routing depends on the column's value and type in the *table* alone: every process, and LanceDB, routes alike.
2. `from_specs([to_spec(s, ...)], ...) == s`.
3. On a primary-key table the column is part of the key and shards are not named by hand, unless the user allowed keys
   across shards: otherwise two rows of one key could live in two shards, and newest-wins would hold per shard only.
4. `route` keeps every row exactly once, in its order within its shard.

A table on storage without a sharding spec has manual shards.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_memwal.arguments import check_instance, described
from lance_memwal.errors import CorruptDataError, InvalidInputError, UnsupportedFormatError
from lance_memwal.rows.bucket import bucket_of, is_bucket_type
from lance_memwal.rows.shard_ids import IDENTITY_TYPE_NAMES, bucket_shard_id, identity_shard_id, unsharded_shard_id
from lance_memwal.types import ShardingField, ShardingSpec

__all__ = [
    "MAX_BUCKETS",
    "ONE_SHARD",
    "SPEC_ID",
    "Bucket",
    "Identity",
    "Manual",
    "Sharding",
    "Unsharded",
    "bucket_shard_id",
    "check_rows_in_shard",
    "check_sharding",
    "from_specs",
    "num_shards",
    "route",
    "shard_id_for",
    "shard_ids",
    "shards_for_values",
    "to_spec",
]

MAX_BUCKETS = 1024
SPEC_ID = 1
_FIELD_ID = "bucket"  # of every transform, as the public layout has it


@dataclass(frozen=True, slots=True)
class Unsharded:
    """All rows go to one shard."""


ONE_SHARD = Unsharded()


@dataclass(frozen=True, slots=True)
class Bucket:
    """Rows spread over `num_buckets` shards (1 to 1024) by a hash of `column`; a null goes to bucket 0."""

    column: str
    num_buckets: int

    def __post_init__(self) -> None:
        _check_column_name(self.column)
        if not isinstance(self.num_buckets, int) or isinstance(self.num_buckets, bool):
            raise InvalidInputError(f"num_buckets must be an integer, not {described(self.num_buckets)}")
        if not 1 <= self.num_buckets <= MAX_BUCKETS:
            raise InvalidInputError(f"num_buckets must be from 1 to {MAX_BUCKETS}, not {self.num_buckets}")


@dataclass(frozen=True, slots=True)
class Identity:
    """One shard per distinct value of `column`; nulls are refused."""

    column: str

    def __post_init__(self) -> None:
        _check_column_name(self.column)


@dataclass(frozen=True, slots=True)
class Manual:
    """Whoever writes names the shard; every writer that names none gets a new one."""


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
    if isinstance(sharding, Unsharded):
        return
    if isinstance(sharding, Manual):
        if primary_key and not allow_keys_across_shards:
            raise InvalidInputError(
                f"with manual shards two rows of one primary key ({', '.join(primary_key)}) could be written to two shards, "
                "and the newest would win per shard only; use Unsharded(), shard by a key column, or pass "
                "allow_keys_across_shards=True"
            )
        return
    if not isinstance(sharding, Bucket | Identity):
        raise InvalidInputError(f"sharding must be {_SHARDINGS}, not {described(sharding)}")
    column = sharding.column
    if column not in schema.names:
        raise InvalidInputError(f"sharding column {column!r} is not in the table; it has {', '.join(schema.names)}")
    _check_type(sharding, schema.field(column).type)
    if primary_key and column not in primary_key and not allow_keys_across_shards:
        raise InvalidInputError(
            f"sharding column {column!r} is not part of the primary key ({', '.join(primary_key)}): two rows of one "
            "key could go to two shards, and the newest would win per shard only; shard by a key column, or pass "
            "allow_keys_across_shards=True"
        )


def num_shards(sharding: Sharding) -> int:
    """How many shards the details record: 0 where the number is open (identity, manual)."""
    if isinstance(sharding, Unsharded):
        return 1
    return sharding.num_buckets if isinstance(sharding, Bucket) else 0


def to_spec(sharding: Sharding, schema: pa.Schema, field_ids: Mapping[str, int]) -> ShardingSpec | None:
    """The spec that the table's details record for a checked `sharding`; None for manual shards.

    `field_ids` maps column names to Lance field ids.
    """
    if isinstance(sharding, Manual):
        return None
    if isinstance(sharding, Unsharded):
        return ShardingSpec(SPEC_ID, (ShardingField(_FIELD_ID, (), "unsharded", "int32"),))
    source = (field_ids[sharding.column],)
    if isinstance(sharding, Bucket):
        parameters = {"num_buckets": str(sharding.num_buckets)}
        return ShardingSpec(SPEC_ID, (ShardingField(_FIELD_ID, source, "bucket", "int32", parameters),))
    result_type = IDENTITY_TYPE_NAMES[schema.field(sharding.column).type]
    return ShardingSpec(SPEC_ID, (ShardingField(_FIELD_ID, source, "identity", result_type),))


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


def shard_ids(sharding: Sharding) -> list[str] | None:
    """All shard ids that `sharding` can lead to; None where they are open (identity, manual)."""
    if isinstance(sharding, Unsharded):
        return [unsharded_shard_id()]
    return [bucket_shard_id(n) for n in range(sharding.num_buckets)] if isinstance(sharding, Bucket) else None


def shard_id_for(sharding: Sharding, value: Any = None, *, kind: pa.DataType | None = None) -> str:
    """The id of the shard that holds rows with this `value` in the sharding column.

    `value` is a value of the column, never a bucket number (for that see `bucket_shard_id`); an unsharded table ignores
    it. `kind` is the column's type, which the hash depends on. Without it a pyarrow scalar has its own, and a plain
    value counts as bool, int64, double, string, date32 or timestamp[us].
    """
    check_instance("sharding", sharding, Sharding, _SHARDINGS)
    if kind is not None:
        check_instance("kind", kind, pa.DataType, "the type of the column")
    if isinstance(sharding, Unsharded):
        return unsharded_shard_id()
    if isinstance(sharding, Manual):
        raise InvalidInputError("a table with manual shards has no shard per value: name the shard yourself")
    plain = not isinstance(value, pa.Scalar)
    if kind is None:
        kind = _plain_type(value) if plain else value.type
    array = _to_array([value] if plain else pa.repeat(value, 1), kind)
    _check_type(sharding, array.type)
    return _groups(sharding, array)[0][0]


def shards_for_values(sharding: Sharding, values: Iterable[Any] | pa.Array, kind: pa.DataType) -> frozenset[str] | None:
    """The shards that can hold a row whose sharding column (of type `kind`) has one of `values`; None: any shard.

    For pruning: values that do not convert to `kind` give None, never too few shards. It holds for rows that were
    routed; a writer that was opened on a shard by hand may have put rows anywhere.
    """
    if isinstance(sharding, Manual):
        return None
    if isinstance(sharding, Unsharded):
        return frozenset([unsharded_shard_id()])
    try:
        array = _to_array(values, kind)
    except InvalidInputError:
        return None
    if isinstance(sharding, Identity):
        array = array.drop_null()
    return frozenset(shard_id for shard_id, _ in _groups(sharding, array))


def route(
    batch: pa.RecordBatch, sharding: Sharding, schema: pa.Schema | None = None
) -> list[tuple[str, pa.RecordBatch]]:
    """Every row of `batch` with its shard, in order within the shard; only shards that get rows.

    `schema` is the table's: the column is hashed as the table holds it. Where all rows go to one shard the batch itself
    is returned; otherwise every shard gets its own copy, so that no shard keeps the rows of another in memory.
    """
    check_instance("batch", batch, pa.RecordBatch, "a record batch")
    check_instance("sharding", sharding, Sharding, _SHARDINGS)
    if isinstance(sharding, Manual):
        raise InvalidInputError("a table with manual shards cannot route rows: write to a shard by its id")
    if schema is not None:
        check_instance("schema", schema, pa.Schema, "the schema of the table")
    if batch.num_rows == 0:
        return []
    if isinstance(sharding, Unsharded):
        return [(unsharded_shard_id(), batch)]
    groups = _groups(sharding, _column(batch, sharding, schema))
    if len(groups) == 1:
        return [(groups[0][0], batch)]
    return [(shard_id, batch.take(pa.array(rows))) for shard_id, rows in groups]


def check_rows_in_shard(batch: pa.RecordBatch, sharding: Sharding, schema: pa.Schema, shard_id: str) -> None:
    """Return only if every row of `batch` belongs to `shard_id`; manual shards take any row."""
    if isinstance(sharding, Manual) or batch.num_rows == 0:
        return
    elsewhere = [found for found, _ in route(batch, sharding, schema) if found != shard_id]
    if elsewhere:
        raise InvalidInputError(f"rows belong to shard {elsewhere[0]}, not to {shard_id}; write through the table")


def _groups(sharding: Bucket | Identity, array: pa.Array) -> list[tuple[str, npt.NDArray[np.int64]]]:
    """(shard id, row numbers ascending) per shard that gets rows; one stable sort for all."""
    if len(array) == 0:
        return []
    if isinstance(sharding, Bucket):
        keys = bucket_of(array, sharding.num_buckets).astype(np.uint16)  # 16 bits: numpy sorts them by radix
        return [(bucket_shard_id(int(key)), rows) for key, rows in _split(keys)]
    if array.null_count:
        raise InvalidInputError(
            f"a null in {sharding.column!r} cannot choose a shard: fill it, or shard by another column"
        )
    encoded = array.dictionary_encode()
    values, keys = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
    if len(values) <= 1 << 16:
        keys = keys.astype(np.uint16)
    return [(identity_shard_id(values[key], array.type), rows) for key, rows in _split(keys)]


def _split(keys: npt.NDArray[Any]) -> list[tuple[int, npt.NDArray[np.int64]]]:
    """(key, row numbers ascending) per distinct key, keys ascending."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    return [(int(ordered[at]), rows) for at, rows in zip(starts, np.split(order, starts[1:]), strict=True)]


def _column(batch: pa.RecordBatch, sharding: Bucket | Identity, schema: pa.Schema | None) -> pa.Array:
    """The sharding column with the type that the table has."""
    head, *rest = [sharding.column] if sharding.column in batch.schema.names else sharding.column.split(".")
    if head not in batch.schema.names:
        raise InvalidInputError(f"sharding column {sharding.column!r} is missing")
    if batch.schema.names.count(head) > 1:
        raise InvalidInputError(f"sharding column {head!r} is there twice")
    array = batch.column(head)
    wanted = schema.field(head).type if schema is not None and head in schema.names else array.type
    if wanted != array.type:
        try:
            array = array.cast(wanted)
        except pa.ArrowException as error:
            raise InvalidInputError(f"sharding column {sharding.column!r} does not fit the table: {error}") from None
    if rest:
        array = pc.struct_field(array, rest)
    _check_type(sharding, array.type)
    return array


def _to_array(values: Iterable[Any] | pa.Array, kind: pa.DataType) -> pa.Array:
    """`values` as a column of type `kind` would hold them; `InvalidInputError` if it cannot hold them unchanged."""
    given = values if isinstance(values, pa.Array) else list(values)
    try:
        array = given.cast(kind) if isinstance(given, pa.Array) else pa.array(given, kind)
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


def _check_column_name(column: object) -> None:
    if not isinstance(column, str) or not column:
        raise InvalidInputError(f"a sharding column is given by its name, not {described(column)}")


def _check_type(sharding: Bucket | Identity, kind: pa.DataType) -> None:
    if isinstance(sharding, Bucket) and not is_bucket_type(kind):
        raise InvalidInputError(
            f"column {sharding.column!r} of type {kind} cannot be bucketed: it must be a scalar column"
        )
    if isinstance(sharding, Identity) and kind not in IDENTITY_TYPE_NAMES:
        text = "it must hold integers, booleans or strings"
        raise InvalidInputError(f"column {sharding.column!r} of type {kind} cannot shard by identity: {text}")


def _stored_buckets(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not 1 <= int(text) <= MAX_BUCKETS:
        raise CorruptDataError(f"the table's sharding has a bad number of buckets: {text[:20]!r}")
    return int(text)
