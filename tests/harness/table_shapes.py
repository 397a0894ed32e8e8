"""The tables that whole lives write: every row says which writes made it.

Owns `Shape`: the columns of a table, how keys become rows and rows become what the oracle knows of them. A row has two kinds of
columns. A partial update sets `number` and `note`; all the others (`kept`, the blob, the columns that were added later) stay
as the last whole write left them. Invariants:

1. What a row shows is `(number, kept, columns)`: the write that touched it last, the last one that wrote it whole, and, as
   bits, the added columns that this one gave.
2. Every other column follows from these and the key; a row in which one does not is not intact.
3. Where rows are searched for, the vector of a row is that of no other row, and its note is one word, which all rows of a write
   have: a search for the nearest one finds the row, a search for the word all rows of the write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
from lance.blob import blob_array, blob_field

import lance_memwal as mw
from tests.harness.crash_tables import region_of
from tests.harness.oracle import Row

__all__ = ["KEYS", "SHAPES", "Shape", "Shown", "added_name", "vector_of", "word_of"]

KEYS: Final = 48
SHAPES: Final = ("upsert", "composite", "last_write", "first_row", "blobs", "append", "search", "blobs_second")
_IMAGES: Final = {
    "blobs": pa.field("image", pa.large_binary(), metadata={"lance-encoding:blob": "true"}),
    "blobs_second": blob_field("image"),
}
_VECTOR: Final = pa.field("vector", pa.list_(pa.float32(), 4))


class Shown(NamedTuple):
    """What a row shows: the write that touched it last, the last that wrote it whole, and the added columns that it gave."""

    number: int
    kept: int
    columns: int


def added_name(column: int) -> str:
    """The name of the added column with this number."""
    return f"x{column}"


@dataclass(frozen=True, slots=True)
class Shape:
    """One kind of table; `shards` is 0 for a table that is not sharded."""

    name: str
    shards: int = 0

    @property
    def has_key(self) -> bool:
        """Whether rows are replaced and deleted by key."""
        return self.name != "append"

    @property
    def has_blobs(self) -> bool:
        """Whether rows have a blob."""
        return self.name in _IMAGES

    @property
    def is_searched(self) -> bool:
        """Whether rows have a vector, and an index of their notes."""
        return self.name == "search"

    @property
    def key_columns(self) -> list[str]:
        """The columns of the primary key."""
        return {"composite": ["region", "id"], "append": []}.get(self.name, ["id"])

    @property
    def schema(self) -> pa.Schema:
        """The columns at the start."""
        fields = [pa.field("region", pa.string(), False)] if self.name == "composite" else []
        fields += [
            pa.field("id", pa.int64(), False),
            pa.field("number", pa.int64()),
            pa.field("kept", pa.int64()),
            pa.field("note", pa.string()),
        ]
        if self.name == "last_write":
            fields.append(pa.field("seq", pa.int64()))
        if self.has_blobs:
            fields.append(_IMAGES[self.name])
        if self.is_searched:
            fields.append(_VECTOR)
        return pa.schema(fields)

    def create(self, uri: str) -> mw.Table:
        """A new table of this shape."""
        merge = {"last_write": mw.LastWrite("seq"), "first_row": mw.FirstRow()}.get(self.name)
        table = mw.create_table(
            uri,
            self.schema,
            primary_key=self.key_columns or None,
            sharding=mw.Bucket("id", self.shards) if self.shards else mw.Unsharded(),
            merge=merge,
        )
        if self.is_searched:
            table.create_index(mw.FtsIndex("note"))
        return table

    # ------------------------------------------------------------------------------------------------------ writing

    def rows(
        self, keys: Sequence[int], number: int, columns: Iterable[int] = (), sequence: int | None = None
    ) -> pa.Table:
        """Whole rows of these keys, as the write `number` makes them, with the added `columns`."""
        data = self._parts(keys, number, sequence)
        data["kept"] = [number] * len(keys)
        if self.has_blobs:
            data["image"] = [_image(key, number) for key in keys]
        if self.is_searched:
            data["vector"] = [vector_of(key, number) for key in keys]
        schema = self.schema
        for column in columns:
            data[added_name(column)] = [_added(number, column)] * len(keys)
            schema = schema.append(pa.field(added_name(column), pa.int64()))
        return pa.table([_column(data[field.name], field) for field in schema], schema=schema)

    def parts(self, keys: Sequence[int], number: int) -> pa.Table:
        """The keys, and what a partial update of them sets."""
        data = self._parts(keys, number, None)
        return pa.table({name: pa.array(data[name], self.schema.field(name).type) for name in data})

    def update_values(self, number: int) -> dict[str, Any]:
        """What a partial update of any rows sets."""
        return {"number": number, "note": _note(number)}

    def _parts(self, keys: Sequence[int], number: int, sequence: int | None) -> dict[str, list[Any]]:
        data: dict[str, list[Any]] = self.key_data(keys)
        data["number"] = [number] * len(keys)
        data["note"] = [_note(number)] * len(keys)
        if self.name == "last_write":
            data["seq"] = [number if sequence is None else sequence] * len(keys)
        return data

    def key_data(self, keys: Sequence[int]) -> dict[str, list[Any]]:
        """The key columns of these keys."""
        regions: dict[str, list[Any]] = {"region": [region_of(key) for key in keys]} if self.name == "composite" else {}
        return regions | {"id": list(keys)}

    def key_table(self, keys: Sequence[int]) -> pa.Table:
        """These keys, as deletes and look-ups take them."""
        data = self.key_data(keys)
        return pa.table({name: pa.array(data[name], self.schema.field(name).type) for name in data})

    def key_value(self, key: int) -> Any:
        """One key, as `get` takes it."""
        return (region_of(key), key) if self.name == "composite" else key

    def shards_of(self, sharding: Any, keys: Sequence[int]) -> dict[str, list[int]]:
        """These keys by the shard that has them."""
        batch = pa.record_batch({"id": pa.array(keys, pa.int64())})
        return {shard: part.column(0).to_pylist() for shard, part in sharding.route(batch, self.schema)}

    # ------------------------------------------------------------------------------------------------------ reading

    def rows_of(self, table: pa.Table, images: Mapping[int, bytes | None] | None = None) -> list[Row]:
        """What the rows of a read show; `images` are blobs that were read, by key."""
        return [self._row(row, images or {}) for row in table.to_pylist()]

    def _row(self, row: Mapping[str, Any], images: Mapping[int, bytes | None]) -> Row:
        key, number, kept = row["id"], row["number"], row["kept"]
        added = {int(name[1:]): value for name, value in row.items() if name[0] == "x" and value is not None}
        intact = (
            row["note"] == _note(number)
            and all(value == _added(kept, column) for column, value in added.items())
            and row.get("region", region_of(key)) == region_of(key)
            and ("seq" not in row or row["seq"] == number)
            and ("vector" not in row or row["vector"] == vector_of(key, kept))
            and ("image" not in row or _image_size(row["image"]) == _length(_image(key, kept)))
            and (key not in images or images[key] == _image(key, kept))
        )
        return Row(key, Shown(number, kept, sum(1 << column for column in added)), intact)


def _column(values: list[Any], field: pa.Field) -> pa.Array:
    return blob_array(values) if isinstance(field.type, pa.BaseExtensionType) else pa.array(values, field.type)


def vector_of(key: int, kept: int) -> list[float]:
    """The vector of a row that this write made whole."""
    return [float(key), float(kept), float(key * kept % 17), 1.0]


def word_of(number: int) -> str | None:
    """The word in the note of a row that this write touched last."""
    note = _note(number)
    return None if note is None else note.rstrip(".")


def _note(number: int) -> str | None:
    return None if number % 11 == 0 else f"n{number}" + "." * (number % 7 * 5)


def _added(number: int, column: int) -> int:
    return number * 64 + column


def _image(key: int, number: int) -> bytes | None:
    return None if number % 5 == 0 else bytes([key % 251, number % 251]) * (10 + (number * 7 + key) % 400)


def _length(image: bytes | None) -> int | None:
    return None if image is None else len(image)


def _image_size(shown: Any) -> int | None:
    if shown is None or isinstance(shown, bytes):
        return _length(shown)
    size = shown["size"]
    return None if size is None else int(size)
