"""JSON of many entries made texts together.

Owns `with_texts`. Lance converts JSON by datasets in memory, which costs as much for one value as for a thousand, and most
entries are small. Invariants:

1. Entries come in order, and each is the same but for the form of its JSON columns.
2. Memory: a bounded number of entries and bytes is read ahead.
3. What cannot be converted is left as it is: whoever adapts the rows of that entry says so, with its position.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeAlias

import pyarrow as pa

from lance_memwal.errors import InvalidInputError
from lance_memwal.rows.json_values import decoded, holds_json, is_json_bytes, texts_field
from lance_memwal.rows.schema import TableSchema
from lance_memwal.types import WalEntry

_AT_ONCE = 512
_AT_ONCE_BYTES = 1 << 20
_Item: TypeAlias = tuple[int, WalEntry]


def with_texts(items: Iterable[_Item], schema: TableSchema) -> Iterator[_Item]:
    """Entries with their generations, JSON columns as texts; those of a table without JSON as they are."""
    if not any(holds_json(column.type) for column in schema.columns):
        yield from items
        return
    waiting: list[_Item] = []
    size_bytes = 0
    for item in items:
        waiting.append(item)
        size_bytes += sum(batch.nbytes for batch in item[1].batches)
        if len(waiting) >= _AT_ONCE or size_bytes >= _AT_ONCE_BYTES:
            yield from _converted(waiting)
            waiting, size_bytes = [], 0
    yield from _converted(waiting)


def _converted(items: list[_Item]) -> list[_Item]:
    batches = [list(entry.batches) for _, entry in items]
    places = [
        (number, at, column)
        for number, listed in enumerate(batches)
        for at, batch in enumerate(listed)
        for column, field in enumerate(batch.schema)
        if is_json_bytes(field)
    ]
    if not places:
        return items
    stored = [batches[number][at].column(column) for number, at, column in places]
    try:
        texts = decoded(pa.concat_arrays([array.cast(pa.large_binary()) for array in stored]))
    except InvalidInputError:
        return items
    start = 0
    for (number, at, column), array in zip(places, stored, strict=True):
        batch = batches[number][at]
        field = texts_field(batch.schema.field(column))
        batches[number][at] = batch.set_column(column, field, texts.slice(start, len(array)))
        start += len(array)
    return [(g, replace(entry, batches=tuple(b))) for (g, entry), b in zip(items, batches, strict=True)]
