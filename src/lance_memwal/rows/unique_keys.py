"""Whether rows can have a primary key: none of its values is null, and no key is there twice.

Owns that check. Invariants:

1. It is exact. Equal keys have equal hashes, so that only keys whose hash repeats are compared.
2. It holds eight bytes per row in memory, and the keys whose hashes repeat; never all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_memwal.errors import InvalidInputError
from lance_memwal.rows.key_encoding import hash_is_exact, key_hashes

__all__ = ["check_unique_keys"]

_SHOWN = 5
_SHOWN_CHARACTERS = 60


def check_unique_keys(read: Callable[[], Iterable[pa.RecordBatch]], key: Sequence[str]) -> None:
    """Return only if the rows have `key` as their primary key; `InvalidInputError` names the first that do not.

    `read` gives the batches anew at each call; they hold the key columns at least.
    """
    hashes = [_hashes(batch, key) for batch in read() if batch.num_rows]
    if not hashes:
        return
    repeated = _repeated(np.concatenate(hashes))
    if len(repeated):
        _refuse_equal_keys([_among(batch, key, repeated) for batch in read() if batch.num_rows], key)


def _hashes(batch: pa.RecordBatch, key: Sequence[str]) -> npt.NDArray[np.uint64]:
    for name in key:
        if batch.column(name).null_count:
            rows = batch.filter(pc.is_null(batch.column(name))).select([n for n in key if n != name]).to_pylist()
            beside = f", beside {_listed(rows)}" if len(key) > 1 else ""
            raise InvalidInputError(f"column {name!r} holds nulls{beside}, and cannot be part of the primary key")
    return key_hashes(_hashable(batch, key))


def _hashable(batch: pa.RecordBatch, key: Sequence[str]) -> list[pa.Array]:
    """The key columns in types whose values the hash depends on."""
    columns = [batch.column(name) for name in key]
    return columns if hash_is_exact([column.type for column in columns]) else [_widened(column) for column in columns]


def _widened(column: pa.Array) -> pa.Array:
    types = pa.types
    if types.is_uint64(column.type):
        return column.view(pa.int64())
    if types.is_integer(column.type) or types.is_boolean(column.type):
        return column.cast(pa.int64())
    return column.cast(pa.string() if types.is_large_string(column.type) else pa.binary())


def _repeated(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    hashes.sort()
    return np.unique(hashes[1:][hashes[1:] == hashes[:-1]])


def _among(batch: pa.RecordBatch, key: Sequence[str], hashes: npt.NDArray[np.uint64]) -> pa.RecordBatch:
    return batch.select(list(key)).filter(pa.array(np.isin(key_hashes(_hashable(batch, key)), hashes)))


def _refuse_equal_keys(suspects: list[pa.RecordBatch], key: Sequence[str]) -> None:
    counted = pa.Table.from_batches(suspects).group_by(list(key), use_threads=False).aggregate([([], "count_all")])
    twice = counted.filter(pc.greater(counted["count_all"], 1)).select(list(key))
    if twice.num_rows:
        shown = _listed(twice.slice(0, _SHOWN).to_pylist())
        raise InvalidInputError(
            f"{twice.num_rows} values of the primary key ({', '.join(key)}) are there more than once: {shown}"
            f"{', …' if twice.num_rows > _SHOWN else ''}; a primary key must be unique"
        )


def _listed(rows: list[dict[str, Any]]) -> str:
    texts = (repr(next(iter(row.values())) if len(row) == 1 else tuple(row.values())) for row in rows[:_SHOWN])
    return ", ".join(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…" for text in texts)
