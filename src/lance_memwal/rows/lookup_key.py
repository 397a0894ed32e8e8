"""One key as a caller gives it, in every form that a tier compares.

Entry points: `one_key` gives the key columns, `LookupKey` all forms, each made when it is first needed.

Invariants:

1. Every verb that takes one key reads it with `one_key` or `LookupKey`, so that all accept and refuse the same keys.
2. All forms are of the same key. A short form may be None; the columns never are, or the key is refused.
3. No form of a plain key that memtables need makes an Arrow array. An array costs more than the rest of a lookup.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pyarrow as pa

from lance_memwal.errors import InvalidInputError
from lance_memwal.rows.ingest import key_batch
from lance_memwal.rows.keys import key_array
from lance_memwal.rows.schema import TableSchema
from lance_memwal.rows.sharding import Sharding, shards_of_keys, shards_of_plain_key


def one_key(given: Any, schema: TableSchema) -> pa.RecordBatch:
    """The key columns of one key: a value, a tuple or list of values in key order, a dict, a struct, or a row of Arrow data.

    Raises:
        InvalidInputError: It is not exactly one key of the table, or a value does not fit its column without loss.
    """
    named = key_batch([given], schema)
    if named.num_rows != 1:
        raise InvalidInputError(f"give one key; {type(given).__name__} with {named.num_rows} rows was given")
    return named


class LookupKey:
    """One key of a table: as given, as memtables hold it (`held`), as one value (`whole`), and as columns."""

    __slots__ = ("_columns", "_schema", "_whole", "given", "held")

    def __init__(self, given: Any, schema: TableSchema) -> None:
        self.given = given
        self.held = schema.key_form.hashable(given)
        self._schema = schema
        self._columns: pa.RecordBatch | None = None
        self._whole: int | bytes | None = None

    @property
    def whole(self) -> int | bytes | None:
        """What an array of keys has for it; None if that cannot be told in short."""
        if self._whole is None and self.held is not None:
            self._whole = self._schema.key_form.whole(self.held)
        return self._whole

    @property
    def columns(self) -> pa.RecordBatch:
        """The key columns; `InvalidInputError` if it is no key of the table."""
        if self._columns is None:
            self._columns = one_key(self.given, self._schema)
        return self._columns

    @property
    def values(self) -> pa.Array:
        """The key as an array of one."""
        return key_array(self.columns.columns)

    def part(self, place: int) -> pa.Array:
        """One of its columns."""
        if self._columns is None and self.held is not None:  # then each value is of the class of its column
            try:
                return pa.array([self._parts[place]], self._schema.columns.field(self._schema.primary_key[place]).type)
            except (pa.ArrowException, ValueError, OverflowError):  # no value of the type, which is said below
                pass
        return self.columns.column(place)

    def refuse_misfit(self) -> None:
        """Raise `InvalidInputError` if it is no key of the table: a number of its class may be out of range."""
        if self.whole is None:
            one_key(self.given, self._schema)

    def shards(self, sharding: Sharding, primary_key: Sequence[str], shards: Collection[str]) -> Collection[str] | None:
        """Those of `shards` that can hold it; None: any of them."""
        if self.held is not None:
            found = shards_of_plain_key(sharding, primary_key, self._parts, self._schema.columns, shards)
            if found is not None:
                return found
        return shards_of_keys(sharding, primary_key, self.part, shards)

    @property
    def _parts(self) -> tuple[Any, ...]:
        return self.given if isinstance(self.given, tuple) else (self.given,)
