"""The tables that crash tests write: every row says which write made it.

Owns `TableKind`: how a key number becomes key columns and back, with one integer key, with a composite key, or with no
key at all (append-only). Invariant: `rows_of(batch_of(key, number))` gives the same key and number back, intact; any
other note is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import lance
import pyarrow as pa

from tests.harness.oracle import Row

__all__ = ["KINDS", "TableKind", "region_of"]

_KEY: Final = "lance-schema:unenforced-primary-key"


class TableKind:
    """One shape of table. `name` is `integer`, `composite` or `append`."""

    def __init__(self, name: str) -> None:
        if name not in KINDS:
            raise ValueError(f"{name!r} is no kind of table; known: {', '.join(KINDS)}")
        self.name = name
        self.schema = pa.schema(
            [
                *_KEY_FIELDS[name],
                pa.field("number", pa.int64(), nullable=False),
                pa.field("note", pa.string()),
            ]
        )

    @property
    def has_key(self) -> bool:
        """Whether rows are replaced and deleted by key."""
        return self.name != "append"

    def create(self, uri: str) -> None:
        """An empty table of this kind with a MemWAL index."""
        lance.write_dataset(self.schema.empty_table(), uri).initialize_mem_wal()

    def batch_of(self, keys: Sequence[int], number: int) -> pa.RecordBatch:
        """The rows that write `number` puts at these keys."""
        columns = self._key_columns(keys)
        columns["number"] = [number] * len(keys)
        columns["note"] = [_note(key, number) for key in keys]
        return pa.RecordBatch.from_pydict(columns, schema=self.schema)

    def keys_of(self, keys: Sequence[int]) -> pa.RecordBatch:
        """These keys as data to delete by."""
        fields = _KEY_FIELDS[self.name]
        return pa.RecordBatch.from_pydict(self._key_columns(keys), schema=pa.schema(fields))

    def key_values(self, keys: Sequence[int]) -> list[Any]:
        """These keys as a lookup takes them: scalars, or tuples for a composite key."""
        columns = list(self._key_columns(keys).values())
        return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))

    def rows_of(self, table: pa.Table) -> list[Row]:
        """The rows of a read."""
        keys = self._keys(table)
        numbers, notes = table.column("number").to_pylist(), table.column("note").to_pylist()
        read = zip(keys, numbers, notes, strict=True)
        return [Row(key, number, note == _note(key, number)) for key, number, note in read]

    def _key_columns(self, keys: Sequence[int]) -> dict[str, list[Any]]:
        if self.name == "composite":
            return {"region": [region_of(key) for key in keys], "id": list(keys)}
        return {"id": list(keys)}

    def _keys(self, table: pa.Table) -> Iterable[int]:
        keys: list[int] = table.column("id").to_pylist()
        if self.name != "composite":
            return keys
        regions = table.column("region").to_pylist()
        # A row whose two key columns do not belong together is nobody's: an impossible key makes it a phantom.
        return [key if region == region_of(key) else -1 for key, region in zip(keys, regions, strict=True)]


def region_of(key: int) -> str:
    """The other half of a composite key."""
    return f"region-{key % 3}"


def _note(key: int, number: int) -> str | None:
    return None if number % 11 == 0 else f"{key}/{number}" + "." * (number % 7 * 5)


_KEY_FIELDS: Final = {
    "integer": [pa.field("id", pa.int64(), nullable=False, metadata={_KEY: "true"})],
    "composite": [
        pa.field("region", pa.string(), nullable=False, metadata={f"{_KEY}:position": "1"}),
        pa.field("id", pa.int32(), nullable=False, metadata={f"{_KEY}:position": "2"}),
    ],
    "append": [pa.field("id", pa.int64(), nullable=False)],
}
KINDS: Final = tuple(_KEY_FIELDS)
