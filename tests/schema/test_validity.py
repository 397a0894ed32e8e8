"""Many texts are validated at once, and what is accepted is what Arrow accepts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from lance_memwal.rows.validity import validate

ROWS = 5_000
_KINDS = (pa.string(), pa.large_string())


def _place(kind: pa.DataType) -> type[np.generic]:
    return np.int32 if kind == pa.string() else np.int64


def _texts(kind: pa.DataType, values: list[str | None]) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(range(len(values))), "text": pa.array(values, kind)})


def _with(batch: pa.RecordBatch, places: np.ndarray, data: bytes, nulls: pa.Buffer | None = None) -> pa.RecordBatch:
    """`batch` with other buffers in its texts; of `nulls`, one is told of."""
    kind = batch.column(1).type
    buffers = [nulls, pa.py_buffer(places.astype(_place(kind)).tobytes()), pa.py_buffer(data)]
    column = pa.Array.from_buffers(kind, batch.num_rows, buffers, null_count=0 if nulls is None else 1)
    return pa.RecordBatch.from_arrays([batch.column(0), column], names=["id", "text"])


def _says(check: Callable[[], None]) -> str | None:
    try:
        check()
    except (pa.ArrowException, ValueError) as error:
        return type(error).__name__
    return None


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize(
    "values",
    [
        [f"name {i}" for i in range(ROWS)],
        ["é" * (i % 3) for i in range(ROWS)],
        ["日本" if i % 7 else "" for i in range(ROWS)],
        [None if i % 5 == 0 else f"🙂{i}" for i in range(ROWS)],
        [None] * ROWS,
        [""] * ROWS,
    ],
)
def test_sound_texts_are_accepted_whole_and_in_part(kind: pa.DataType, values: list[str | None]) -> None:
    batch = _texts(kind, values)
    validate(batch)
    validate(batch.slice(3, ROWS - 5))


@pytest.mark.parametrize("kind", _KINDS)
def test_texts_that_arrow_refuses_are_refused(kind: pa.DataType) -> None:
    batch = _texts(kind, ["aé"] * ROWS)
    data, places = "aé".encode() * ROWS, np.arange(0, 3 * ROWS + 1, 3)
    inside, falling = places.copy(), places.copy()
    inside[17] -= 1  # between the two bytes of a character: only the whole is a text
    falling[17] = 7
    broken = data[:600] + b"\xff" + data[601:]
    all_null = pa.py_buffer(bytes((ROWS + 7) // 8))  # one is told of
    made = [
        _with(batch, inside, data),
        _with(batch, falling, data),
        _with(batch, places, broken),
        _with(batch, places, data[:-1] + b"\xc3"),
        _with(batch, places, data, all_null),
    ]
    for each in made:
        assert _says(partial(each.validate, full=True)) is not None
        assert _says(partial(validate, each)) is not None


def test_bytes_of_no_value_may_be_anything() -> None:
    sound = _texts(pa.string(), [None if i == 4 else "ab" for i in range(ROWS)])
    _, places, data = sound.column(1).buffers()
    told = np.frombuffer(places, np.int32).copy()
    told[5:] += 1  # the null gets a byte
    raw = bytes(data)
    garbage = pa.Array.from_buffers(
        pa.string(), ROWS, [sound.column(1).buffers()[0], pa.py_buffer(told), pa.py_buffer(raw[:8] + b"\xff" + raw[8:])]
    )
    garbage.validate(full=True)
    validate(pa.RecordBatch.from_arrays([sound.column(0), garbage], names=["id", "text"]))


@pytest.mark.parametrize("kind", _KINDS)
def test_buffers_may_be_longer_than_their_values(kind: pa.DataType) -> None:
    width = _place(kind)().itemsize
    sound = _texts(kind, ["é"] * ROWS).column(1)
    _, places, data = sound.buffers()
    longer = [None, pa.py_buffer(bytes(places)[: (ROWS + 1) * width] + b"\x07"), pa.py_buffer(bytes(data) + b"\xff")]
    column = pa.Array.from_buffers(kind, ROWS - 2, longer, offset=2)
    column.validate(full=True)
    validate(pa.RecordBatch.from_arrays([column], names=["text"]))


def test_damage_anywhere_is_judged_as_arrow_does() -> None:
    rng = np.random.default_rng(5)
    batch = _texts(pa.string(), ["aé日🙂"[: i % 5] for i in range(ROWS)])
    _, places, data = batch.column(1).buffers()
    refused = 0
    for _ in range(200):
        told, raw = np.frombuffer(places, np.int32).copy(), bytearray(data)
        if rng.random() < 0.5:
            raw[rng.integers(len(raw))] = rng.integers(256)
        else:
            told[rng.integers(1, ROWS)] += rng.integers(-2, 3)
        each = _with(batch, told, bytes(raw))
        verdict = _says(partial(each.validate, full=True))
        assert _says(partial(validate, each)) == verdict
        refused += verdict is not None
    assert 20 < refused < 200


def test_types_without_a_hash_are_looked_at_too() -> None:
    class Unhashed(pa.ExtensionType):
        __hash__ = None  # type: ignore[assignment]

        def __init__(self) -> None:
            super().__init__(pa.int64(), "tests.unhashed")

        def __arrow_ext_serialize__(self) -> bytes:
            return b""

    column = pa.ExtensionArray.from_storage(Unhashed(), pa.array(range(ROWS)))
    validate(pa.RecordBatch.from_arrays([column, pa.array(["é"] * ROWS)], names=["own", "text"]))
