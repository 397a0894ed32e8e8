"""Whether the buffers of rows hold what their types say.

Owns `validate`, which everything that is written or read goes through. Invariant: it accepts exactly what Arrow's full
validation accepts. Of many texts that takes Arrow five times as long as all else that is done with them, since it looks
at each value for itself. Here they are validated as bytes (places in order, within the buffer, as many nulls as are told),
and all their bytes at once as one text:

    "ab" "" "cé"  ->  61 62 63 C3 A9, places 0 2 2 4    one text, and no value begins inside a character (80 to BF)

Where that says no, Arrow is asked: bytes that belong to no value may be anything.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

_MANY_ROWS = 4096  # for fewer, one call of Arrow takes less time
_FIRST_INSIDE, _LAST_INSIDE = 0x80, 0xBF  # of a character of several bytes


def validate(batch: pa.RecordBatch) -> None:
    """Return only if every value of `batch` is one of its type; raises what Arrow's full validation raises."""
    if batch.num_rows < _MANY_ROWS or not any(map(_is_text, batch.schema.types)):
        batch.validate(full=True)
        return
    batch.validate()  # that the buffers are there: only then can they be looked at
    for column in batch.columns:
        if not (_is_text(column.type) and _holds_text(column)):
            column.validate(full=True)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _holds_text(column: pa.Array) -> bool:
    """Whether `column`, of texts, is proven to be valid; False does not say that it is not."""
    is_large = pa.types.is_large_string(column.type)
    column.view(pa.large_binary() if is_large else pa.binary()).validate(full=True)
    place = np.dtype(np.int64 if is_large else np.int32)
    _, places, data = column.buffers()
    begins = np.frombuffer(places, place, len(column) + 1, column.offset * place.itemsize)
    values = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    first, end = int(begins[0]), int(begins[-1])
    used = values[first:end]
    if not len(used) or used.max() < _FIRST_INSIDE:
        return True
    return _is_one_text(used, begins[:-1] - first)


def _is_one_text(values: np.ndarray, begins: np.ndarray) -> bool:
    """Whether `values` are UTF-8, and none of the texts that begin at `begins` does so inside a character."""
    whole = pa.Array.from_buffers(
        pa.large_string(), 1, [None, pa.py_buffer(np.array([0, len(values)])), pa.py_buffer(values)]
    )
    try:
        whole.validate(full=True)
    except pa.ArrowException:
        return False
    heads = values[begins[begins < len(values)]]
    return not ((heads >= _FIRST_INSIDE) & (heads <= _LAST_INSIDE)).any()
